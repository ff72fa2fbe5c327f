"""Keys as bytes that sort as their values do."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.errors import (
    KeyTooLargeError,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    ValueRefusedError,
)
from penstock.store.keys import KeyAttribute, KeyType, after, beginning, encode_key, key_of

TEXT = KeyAttribute("name", KeyType.STRING)
NUMBER = KeyAttribute("number", KeyType.NUMBER)
BINARY = KeyAttribute("data", KeyType.BINARY)

numbers = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.integers(-9, 9),
    st.tuples(st.integers(-(10**20), 10**20), st.integers(-100, 100)).map(
        lambda parts: Decimal(f"{parts[0]}E{parts[1]}")
    ),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
binaries = st.binary(min_size=1)


def encoded(value: Any, attribute: KeyAttribute) -> bytes:
    return encode_key(value, attribute, bytes_max=2048)


def agree(first: Any, second: Any, attribute: KeyAttribute, *, order: tuple[Any, Any]) -> None:
    one, other = encoded(first, attribute), encoded(second, attribute)
    assert (one < other) is (order[0] < order[1])
    assert (one == other) is (order[0] == order[1])
    if one != other:
        assert not one.startswith(other)


@given(numbers, numbers)
def test_numbers_sort_by_value_and_equal_ones_are_one_key(first: Any, second: Any) -> None:
    """F15."""
    agree(first, second, NUMBER, order=(first, second))


@given(texts, texts)
def test_strings_sort_by_their_utf_8_bytes(first: str, second: str) -> None:
    agree(first, second, TEXT, order=(first.encode(), second.encode()))


@given(binaries, binaries)
def test_any_byte_may_be_in_a_binary_key(first: bytes, second: bytes) -> None:
    """F16."""
    agree(first, second, BINARY, order=(first, second))


@given(st.binary(), binaries)
def test_the_keys_that_begin_with_bytes_are_those_that_do(prefix: bytes, key: bytes) -> None:
    low = beginning(prefix, BINARY)
    high = after(low)
    data = encoded(key, BINARY)
    assert (low <= data and (high is None or data < high)) is key.startswith(prefix)


def test_neighbours_that_a_float_cannot_tell_apart_are_two_keys() -> None:
    """F15: 2^53 and 2^53 + 1."""
    assert encoded(2**53, NUMBER) < encoded(2**53 + 1, NUMBER)
    assert encoded(Decimal("1.50"), NUMBER) == encoded(Decimal("1.5"), NUMBER)


@pytest.mark.parametrize(
    ("value", "attribute", "error"),
    [
        ("", TEXT, ValueRefusedError),
        (b"", BINARY, ValueRefusedError),
        ("\ud800", TEXT, ValueRefusedError),
        (1, TEXT, KeyTypeMismatchError),
        ("1", NUMBER, KeyTypeMismatchError),
        (True, NUMBER, KeyTypeMismatchError),
        (None, TEXT, KeyTypeMismatchError),
        (1.5, NUMBER, KeyTypeMismatchError),
        ("x", BINARY, KeyTypeMismatchError),
        (10**38 + 1, NUMBER, ValueRefusedError),
        (Decimal("NaN"), NUMBER, ValueRefusedError),
        (Decimal("1E+126"), NUMBER, ValueRefusedError),
        (Decimal("1E-131"), NUMBER, ValueRefusedError),
        ("é" * 1025, TEXT, KeyTooLargeError),
    ],
)
def test_what_is_no_key_is_refused(value: Any, attribute: KeyAttribute, error: type) -> None:
    with pytest.raises(error):
        encoded(value, attribute)


def test_a_missing_key_attribute_is_named() -> None:
    with pytest.raises(MissingKeyAttributeError, match="'name'"):
        key_of({"other": 1}, TEXT, bytes_max=2048)


@pytest.mark.parametrize("value", ["x" * 2048, "é" * 1024])
def test_the_longest_key_is_taken(value: str) -> None:
    assert encoded(value, TEXT)
