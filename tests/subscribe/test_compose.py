"""Composed descriptions: applied to the old document they give what all give in order (P10)."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.subscribe.compose import Composition, InexactError, completed
from tests.seeds import cases
from tests.subscribe.deltas import (
    PARTS,
    applied,
    containers,
    crossing,
    delta,
    documents,
    updates,
)


def composed(*descriptions: dict[str, Any], paths: bytes = b"{}") -> Any:
    """The composition; None if there is none."""
    composition = Composition()
    try:
        for one in descriptions:
            composition.add(msgspec.json.encode(one), paths=paths)
    except InexactError:
        return None
    return msgspec.json.decode(composition.encoded())


@given(documents, st.integers(1, 6), st.data())
def test_a_composed_delta_applied_to_the_old_document_equals_all_deltas_in_order_p10(
    old: Any, count: int, data: st.DataObject
) -> None:
    """Whichever of its parts an applier takes first, as with one that MongoDB writes."""
    new = old
    said: list[dict[str, Any]] = []
    for _ in range(count):
        description, new = data.draw(updates(new))
        said.append(description)
    found = composed(*said)
    if found is not None:
        for order in itertools.permutations(PARTS):
            assert applied(old, found, order) == new


@settings(max_examples=cases(25))
@given(documents, st.data())
def test_a_single_delta_is_its_own_composition(old: Any, data: st.DataObject) -> None:
    description, _ = data.draw(updates(old))
    assert composed(description) == description


@settings(max_examples=cases(25))
@given(documents, st.integers(2, 6), st.data())
def test_updates_of_fields_always_compose(old: Any, count: int, data: st.DataObject) -> None:
    """Only arrays that shrink and grow have none: of documents alone every sequence composes."""
    new = old
    said: list[dict[str, Any]] = []
    for _ in range(count):
        description, after = data.draw(updates(new))
        in_arrays = any(
            isinstance(node, list) and path and crossing(path, target)
            for path, node in containers(new)
            for target in (*description["updatedFields"], *description["removedFields"])
        )
        if not in_arrays and not description["truncatedArrays"]:
            said.append(description)
            new = after
    assert composed(*said) is not None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([delta({"a": 1}), delta({"b": 2})], delta({"a": 1, "b": 2})),
        ([delta({"a": 1}), delta({"a": 2})], delta({"a": 2})),
        ([delta({"a.b": 1}), delta({"a": 2})], delta({"a": 2})),
        # A child of what was set goes into its value: MongoDB forbids paths that cross.
        ([delta({"a": {"x": 1}}), delta({"a.b": 2})], delta({"a": {"x": 1, "b": 2}})),
        ([delta({"a": [1, [2]]}), delta({"a.1.0": 3})], delta({"a": [1, [3]]})),
        ([delta({"a": [1]}), delta({"a.1": 2})], delta({"a": [1, 2]})),
        ([delta({"a": {"b": 1}}), delta(removed=["a.b"])], delta({"a": {}})),
        ([delta({"a": [1, 2, 3]}), delta(cuts={"a": 1})], delta({"a": [1]})),
        ([delta({"a": {"b": [1, 2]}}), delta(cuts={"a.b": 1})], delta({"a": {"b": [1]}})),
        ([delta(removed=["a"]), delta({"a": 1})], delta({"a": 1})),
        ([delta({"a": 1}), delta(removed=["a"])], delta(removed=["a"])),
        ([delta({"a.b": 1}), delta(removed=["a"])], delta(removed=["a"])),
        ([delta(removed=["a.b"]), delta({"a": 1})], delta({"a": 1})),
        ([delta(cuts={"a": 5}), delta(cuts={"a": 3})], delta(cuts={"a": 3})),
        ([delta(cuts={"a": 5}), delta({"a": []})], delta({"a": []})),
        ([delta({"a.1": 1, "a.7": 2}), delta(cuts={"a": 4})], delta({"a.1": 1}, cuts={"a": 4})),
        ([delta(cuts={"a": 5}), delta({"a.4": 1})], delta({"a.4": 1}, cuts={"a": 5})),
        ([delta({"a.5": 1}), delta({"a.6": 2}), delta({"a.5": 3})], delta({"a.5": 3, "a.6": 2})),
    ],
)
def test_composition_by_example(steps: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert composed(*steps) == expected


@pytest.mark.parametrize(
    "steps",
    [
        # Applied before the cut, what grew again would be lost.
        [delta(cuts={"a": 2}), delta({"a.2": 1})],
        # The array may have been shorter than it is cut to now.
        [delta({"a.4": 1, "a.5": 2, "a.6": 3}), delta(cuts={"a": 6})],
        # What no database says: it means that something is missing between the two.
        [delta(removed=["a"]), delta({"a.b": 1})],
        [delta({"a": 5}), delta({"a.b": 1})],
        [delta({"a": [1]}), delta({"a.5": 1})],
        [delta({"a": {"x": 1}}), delta({"a.b.c": 1})],
        [delta({"a": [1, 2]}), delta(removed=["a.0"])],
        [delta(cuts={"a": 2}), delta(cuts={"a": 2})],
        [delta({"a": {"$oid": "0" * 24}}), delta({"a.b": 1})],
        [delta({"a": {"b.c": 1}}), delta({"a.b.c": 2})],
        [delta({"a.x": 1}), delta(cuts={"a": 1})],
        # Paths that can mean more than one thing.
        [delta({"a..b": 1})],
        [delta({".a": 1})],
        [delta({"a.": 1})],
        [delta({"": 1})],
        [delta({"a.$b": 1})],
        [delta({r"a\.b": 1})],
        [{**delta({"a": 1}), "somethingNew": 1}],
        [{"updatedFields": []}],
    ],
)
def test_what_may_mean_another_document_has_no_composition(steps: list[dict[str, Any]]) -> None:
    assert composed(*steps) is None


def test_paths_that_a_source_does_not_state_compose_only_without_dots() -> None:
    """The field `a.b` would be lost with the object `a` that is set after it."""
    steps = (delta({"a.b": 1}), delta({"a": {"b": 2}}))
    assert composed(*steps) == delta({"a": {"b": 2}})
    for paths in (b"", b'{"a.b":["a.b"]}'):
        assert composed(*steps, paths=paths) is None
    assert composed(delta({"a": 1}), delta({"b": 2}), paths=b"") == delta({"a": 1, "b": 2})


def test_values_keep_the_bytes_that_they_had() -> None:
    """Nothing goes through a float: neither the type of a number nor a digit of it changes."""
    first = rb'{"updatedFields":{"a":{"long":{"$numberLong":"5"},"double":3.0,"x":1}}}'
    second = rb'{"updatedFields":{"a.x":18446744073709551615,"a.y":0.1000000000000000055}}'
    third = (
        rb'{"updatedFields":{"b":1e400},'
        rb'"truncatedArrays":[{"field":"c","newSize":{"$numberLong":"2"}}]}'
    )
    composition = Composition()
    for one in (first, second, third):
        composition.add(one, paths=b"{}")
    assert composition.encoded() == (
        rb'{"updatedFields":{"a":{"long":{"$numberLong":"5"},"double":3.0,"x":18446744073709551615,'
        rb'"y":0.1000000000000000055},"b":1e400},"removedFields":[],'
        rb'"truncatedArrays":[{"field":"c","newSize":{"$numberLong":"2"}}]}'
    )


def test_a_field_not_sent_again_is_taken_from_the_change_before() -> None:
    """With its bytes, and in the order of the row; what neither sent stays unchanged."""
    document, unchanged = completed(
        b'{"id":1,"seen":true}',
        ("big", "far", "never"),
        earlier=b'{"id":1,"big":3.0,"seen":false}',
        earlier_unchanged=("far",),
    )
    assert document == b'{"id":1,"big":3.0,"seen":true}'
    assert unchanged == ("far",)
