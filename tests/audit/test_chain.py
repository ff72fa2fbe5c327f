"""A root stands for its leaves and their order, and a hash for every batch before it."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.chain import (
    ERASED_SALT,
    batch_hash,
    content_digest,
    leaf,
    leaf_of,
    new_salt,
    root_of,
)
from penstock.audit.records import Parts

leaves = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=40)


def by_definition(some: list[bytes]) -> bytes:
    """RFC 6962, 2.1: split at the largest power of two below the count."""
    if len(some) == 1:
        return some[0]
    half = 1
    while half * 2 < len(some):
        half *= 2
    left, right = by_definition(some[:half]), by_definition(some[half:])
    return hashlib.sha256(b"\1" + left + right).digest()


@given(leaves)
def test_a_root_is_that_of_the_definition(some: list[bytes]) -> None:
    assert root_of(some) == by_definition(some)


@given(leaves, st.data())
def test_another_leaf_or_order_has_another_root(some: list[bytes], data: st.DataObject) -> None:
    other = list(some)
    what = data.draw(st.sampled_from(["alter", "swap", "drop", "repeat"]))
    at = data.draw(st.integers(0, len(some) - 1))
    match what:
        case "alter":
            other[at] = bytes(byte ^ 1 for byte in other[at])
        case "swap":
            other[at], other[0] = other[0], other[at]
        case "drop":
            del other[at]
        case _:
            other.append(other[at])
    if other and other != some:
        assert root_of(other) != root_of(some)


def test_nothing_has_no_root() -> None:
    with pytest.raises(ValueError, match="without records"):
        root_of([])


def test_a_hash_stands_for_all_that_it_says_and_for_what_is_before_it() -> None:
    said = {"before": b"a" * 32, "root": b"b" * 32, "number": 2, "first": 3, "last": 4}
    made = {batch_hash(**said, key=None)}  # type: ignore[arg-type]
    for name, value in (("before", b"c" * 32), ("root", b"c" * 32), ("number", 9), ("last", 9)):
        made.add(batch_hash(**{**said, name: value}, key=None))  # type: ignore[arg-type]
    made.add(batch_hash(**said, key=b"k" * 16))  # type: ignore[arg-type]
    made.add(batch_hash(**said, key=b"l" * 16))  # type: ignore[arg-type]
    assert len(made) == 7


@given(st.binary(), st.binary())
def test_what_stands_for_erased_content_gives_the_same_leaf(head: bytes, content: bytes) -> None:
    salt = new_salt()
    assert salt != ERASED_SALT
    assert leaf_of(Parts(head, content), salt) == leaf(head, content_digest(content, salt))
    assert content_digest(content, salt) != content_digest(content, new_salt())
