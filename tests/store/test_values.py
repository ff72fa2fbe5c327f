"""What an item may hold, and its one encoding."""

import copy
from decimal import Context, Decimal, Inexact, Rounded, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.errors import DocumentTooLargeError, ValueRefusedError
from penstock.store.values import (
    Item,
    decode_item,
    encode_item,
    encode_value,
    number_text,
    value_size,
)

numbers = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.tuples(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-90, 80)).map(
        lambda parts: Decimal(f"{parts[0]}E{parts[1]}")
    ),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.one_of(st.none(), st.booleans(), texts, st.binary(max_size=8), numbers)
sets = st.one_of(
    st.sets(texts, min_size=1, max_size=4),
    st.sets(st.binary(max_size=4), min_size=1, max_size=4),
    st.sets(numbers, min_size=1, max_size=4),
)
names = texts.filter(bool)
values = st.recursive(
    st.one_of(scalars, sets),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
items = st.dictionaries(names, values, max_size=5)


def typed(value: Any) -> Any:
    """A value with its types, in which 1 and True differ and 1 and Decimal(1) do not."""
    inside: Any = value
    if isinstance(value, dict):
        return {name: typed(inside[name]) for name in inside}
    if isinstance(value, list):
        return [typed(inner) for inner in inside]
    kind = "number" if isinstance(value, Decimal) else type(value).__name__.replace("int", "number")
    return kind, value


@given(items)
def test_an_item_is_read_back_as_it_was_written(item: Item) -> None:
    """F15: every number exactly."""
    written = copy.deepcopy(item)
    read = decode_item(encode_item(item).data)
    assert typed(read) == typed(written)
    assert encode_item(read) == encode_item(item)


@pytest.mark.parametrize(
    "context",
    [
        Context(prec=3, Emin=-5, Emax=5, traps=[]),
        Context(prec=3, traps=[Inexact, Rounded]),
        Context(capitals=0),
    ],
)
@given(item=items)
def test_what_is_written_does_not_depend_on_the_callers_decimal_context(
    context: Context, item: Item
) -> None:
    """F15: it may round, trap, and write numbers otherwise."""
    plain = encode_item(item)
    with localcontext(context):
        written = encode_item(item)
        read = decode_item(written.data)
    assert written == plain
    assert typed(read) == typed(item)


@given(values, values)
def test_equal_values_and_only_they_have_equal_bytes(first: Any, second: Any) -> None:
    """F6: how a write that changes nothing is told."""
    assert (encode_value(first) == encode_value(second)) is (typed(first) == typed(second))


def test_the_order_of_a_map_and_the_form_of_a_number_do_not_matter() -> None:
    """F6."""
    one = {"a": Decimal("1.0"), "b": {"x": 10, "y": {"s", "t"}}}
    other = {"b": {"y": {"t", "s"}, "x": Decimal("1E1")}, "a": 1}
    assert encode_item(one) == encode_item(other)
    assert encode_item({"a": True}) != encode_item({"a": 1})


def test_an_integral_number_is_read_as_an_int_and_any_other_as_a_decimal() -> None:
    read = decode_item(encode_item({"a": Decimal("2.00"), "b": Decimal("2.50"), "c": 10**100}).data)
    assert [type(value) for value in read.values()] == [int, Decimal, int]
    assert str(read["b"]) == "2.5"


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("Fred", 4),
        ("é", 2),
        (b"abc", 3),
        (None, 1),
        (True, 1),
        (0, 1),
        (7, 2),
        (-7, 3),
        (100, 2),
        (123, 3),
        (Decimal("-1.25"), 4),
        ({"a", "bc"}, 3),
        ([], 3),
        (["a"], 5),
        ({"a": "b"}, 6),
    ],
)
def test_sizes_are_dynamodbs(value: Any, size: int) -> None:
    assert value_size(value) == size


def test_the_sizes_that_were_recorded_from_dynamodb() -> None:
    """{id: Fred} has 6 bytes and {id: Fred, name: Fred} 14."""
    assert encode_item({"id": "Fred"}).size == 6
    assert encode_item({"id": "Fred", "name": "Fred"}).size == 14


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    ({"a": 0.5}, "a is a float"),
    ({"a": {"b": [1, 0.5]}}, r"a\.b\[1\] is a float"),
    ({"a": set()}, "must not be empty"),
    ({"a": {1, "x"}}, "never a mixture"),
    ({"a": {True}}, "not bool"),
    ({"a": (1, 2)}, "a is a tuple"),
    ({"a": object()}, "a is a object"),
    ({"": 1}, "no attribute's name"),
    ({1: 1}, "no attribute's name"),
    ({"a": "\ud800"}, "not Unicode"),
    ({"a": 10**38 + 1}, "39 significant digits"),
    ({"a": Decimal("1E+126")}, "magnitude"),
    ({"a": Decimal("-1E-131")}, "magnitude"),
    ({"a": Decimal("Infinity")}, "no number"),
    ({"a": 10**5000}, "magnitude"),
    ({"a": -(10**126)}, "magnitude"),
    ({"a": nested(33)}, "more than 32 levels"),
]


@pytest.mark.parametrize(("item", "message"), REFUSED)
def test_what_cannot_be_kept_exactly_is_refused_by_its_path(item: Any, message: str) -> None:
    with pytest.raises(ValueRefusedError, match=message):
        encode_item(item)


def test_an_item_at_the_limit_is_kept_and_one_byte_more_is_refused() -> None:
    assert encode_item({"a": "x" * (409_600 - 1)}).size == 409_600
    with pytest.raises(DocumentTooLargeError, match="409601 bytes"):
        encode_item({"a": "x" * 409_600})
    assert encode_item({"a": nested(32)})


def test_numbers_are_written_out_in_full() -> None:
    assert number_text(10**20) == "1" + "0" * 20
    assert number_text(Decimal("1E-5")) == "0.00001"
