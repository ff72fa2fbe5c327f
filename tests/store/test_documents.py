"""Plain JSON documents."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.documents import from_json, to_json
from penstock.store.errors import ValueRefusedError
from penstock.store.remote.forms import read_item, write_item
from penstock.store.values import DEPTH_MAX, Item, Value, encode_item, encode_value
from tests.store.anything import exact_numbers, texts

plain: st.SearchStrategy[Value] = st.recursive(
    st.one_of(st.none(), st.booleans(), texts, exact_numbers),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "''" not in repr(value))


@given(plain)
def test_a_document_is_read_as_it_was_written(value: Value) -> None:
    assert encode_value(from_json(to_json(value))) == encode_value(value)


def nested(levels: int) -> Item:
    """An item with a list in a list, and so on."""
    value: Value = []
    for _ in range(levels - 1):
        value = [value]
    return {"id": "k", "deep": value}


def test_an_item_of_all_levels_is_read_as_it_was_written() -> None:
    item = nested(DEPTH_MAX)
    assert encode_item(item).size
    assert from_json(to_json(item)) == item
    assert read_item("plain", write_item("plain", item)) == item
    deeper = nested(DEPTH_MAX + 1)
    with pytest.raises(ValueRefusedError, match="nested more than 32 levels"):
        from_json(to_json(deeper))
    with pytest.raises(ValueRefusedError, match="nested more than 32 levels"):
        read_item("plain", write_item("plain", deeper))


def test_numbers_keep_every_digit() -> None:
    """F15."""
    text = '{"a":12345678901234567890123456789012345678,"b":[0.1,1E-130,1.0,-0.0,9007199254740993]}'
    assert from_json(text) == {
        "a": 12345678901234567890123456789012345678,
        "b": [Decimal("0.1"), Decimal("1E-130"), 1, 0, 2**53 + 1],
    }
    assert [type(number) for number in from_json("[1.0, 1e2, 0.5]")] == [int, int, Decimal]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        *["", "{", "nan", "[1,]", "1e126", "1e-131", "1e99999999999999999999", "9" * 39],
        *["9" * 5000, "[" * 33 + "]" * 33, '"\\ud800"', "0." + "1" * 39],
    ],
)
def test_what_cannot_be_kept_exactly_is_refused(text: str) -> None:
    with pytest.raises(ValueRefusedError):
        from_json(text)


@pytest.mark.parametrize("value", [b"x", {"a": {"x"}}, [[b""]]])
def test_what_plain_json_has_no_form_for_is_refused(value: Value) -> None:
    with pytest.raises(ValueRefusedError, match="DynamoDB's JSON"):
        to_json(value)
