"""DynamoDB's JSON for values."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.attributevalue import (
    decode_attributes,
    decode_value,
    encode_attribute,
    encode_attributes,
    parse_number,
)
from penstock.store.errors import (
    MalformedValueError,
    NumberRefusedError,
    RefusedError,
    ValueRefusedError,
)
from penstock.store.values import Item, Number, Value, encode_item, encode_value
from tests.store.anything import exact_numbers, items, values
from tests.store.support import name_of

INVALID = "One or more parameter values were invalid: "


@given(items)
def test_an_item_is_read_exactly_as_it_was_written(item: Item) -> None:
    """F15."""
    written = json.loads(json.dumps(encode_attributes(item)))
    assert encode_item(decode_attributes(written)) == encode_item(item)


@given(values)
def test_a_value_has_one_form(value: Value) -> None:
    written = encode_attribute(value)
    assert encode_attribute(decode_value(written)) == written
    assert len(written) == 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("é", {"S": "é"}),
        ("", {"S": ""}),
        (Decimal("1.50"), {"N": "1.5"}),
        (Decimal("1E+3"), {"N": "1000"}),
        (Decimal("1E-3"), {"N": "0.001"}),
        (Decimal("-0.0"), {"N": "0"}),
        (b"\x00\xff", {"B": "AP8="}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        ([1, "x"], {"L": [{"N": "1"}, {"S": "x"}]}),
        ({"a": []}, {"M": {"a": {"L": []}}}),
        ({"b", "a"}, {"SS": ["a", "b"]}),
        ({2, Decimal("1.5")}, {"NS": ["1.5", "2"]}),
        ({b"b", b"a"}, {"BS": ["YQ==", "Yg=="]}),
    ],
    ids=name_of,
)
def test_values_are_written_as_dynamodb_writes_them(value: Value, written: dict[str, Any]) -> None:
    assert encode_attribute(value) == written
    assert encode_value(decode_value(written)) == encode_value(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+1", 1),
        ("1.", 1),
        (".5", Decimal("0.5")),
        ("1e2", 100),
        ("100E-2", 1),
        ("0" * 6000 + "1", 1),
        ("1" + "0" * 125, 10**125),
        ("1" + "0" * 6000 + "E-6000", 1),
        ("0e999999999", 0),
        ("-" + "9" * 38 + "E87", -(10**38 - 1) * 10**87),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_numbers_are_read_as_dynamodb_reads_them(text: str, number: Number) -> None:
    assert parse_number(text) == number
    assert type(parse_number(text)) is type(number)


@given(exact_numbers, st.integers(0, 50))
def test_a_number_is_the_same_however_it_is_written(number: Number, shift: int) -> None:
    sign, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)) + "0" * shift
    written = f"{'-' if sign else ''}{text}E{exponent - shift}"
    assert encode_value(parse_number(written)) == encode_value(number)


OVERFLOW = (
    "Number overflow. Attempting to store a number with magnitude larger than supported range"
)
UNDERFLOW = (
    "Number underflow. Attempting to store a number with magnitude smaller than supported range"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The parameter cannot be converted to a numeric value"),
        *[
            (text, f"The parameter cannot be converted to a numeric value: {text}")
            for text in ("abc", ".", "1e", "--1", "1_0", " 1", "NaN", "Infinity", "0x1", "١")
        ],
        ("1e99999999999", "The parameter cannot be converted to a numeric value: 1e99999999999"),
        ("1e126", OVERFLOW),
        ("9" * 6000, OVERFLOW),
        ("1e-131", UNDERFLOW),
        ("9" * 39, "Attempting to store more than 38 significant digits in a Number"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_number_is_refused_in_dynamodbs_words(text: str, said: str) -> None:
    with pytest.raises(NumberRefusedError) as refused:
        parse_number(text)
    assert str(refused.value) == said


EMPTY = "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
MULTIPLE = "Base64 encoded length is expected a multiple of 4 bytes"
NO_BLOB = "can not be converted to a Blob"
SEVERAL = (
    "Supplied AttributeValue has more than one datatypes set, "
    "must contain exactly one of the supported datatypes"
)


@pytest.mark.parametrize(
    ("written", "kind", "said"),
    [
        ({}, ValueRefusedError, EMPTY),
        ({"X": 1}, ValueRefusedError, EMPTY),
        ({"S": None}, ValueRefusedError, EMPTY),
        ({"S": "a", "N": "1"}, ValueRefusedError, SEVERAL),
        (
            {"NULL": False},
            ValueRefusedError,
            f"{INVALID}Null attribute value types must have the value of true",
        ),
        ({"SS": []}, ValueRefusedError, f"{INVALID}An string set  may not be empty"),
        ({"NS": []}, ValueRefusedError, f"{INVALID}An number set  may not be empty"),
        ({"BS": []}, ValueRefusedError, f"{INVALID}Binary sets should not be empty"),
        (
            {"SS": ["a", "b", "a"]},
            ValueRefusedError,
            f"{INVALID}Input collection [a, b, a] contains duplicates.",
        ),
        ({"NS": ["1", "1.0"]}, ValueRefusedError, "Input collection contains duplicates"),
        (
            {"BS": ["YQ==", "YQ=="]},
            ValueRefusedError,
            f"{INVALID}Input collection [YQ==, YQ==]of type BS contains duplicates.",
        ),
        (
            {"S": 5},
            MalformedValueError,
            "NUMBER_VALUE cannot be converted to String",
        ),
        (
            {"N": True},
            MalformedValueError,
            "TRUE_VALUE cannot be converted to String",
        ),
        ({"S": []}, MalformedValueError, "Start of list found where not expected"),
        ({"S": {}}, MalformedValueError, "Start of structure or map found where not expected"),
        ({"L": "a"}, MalformedValueError, "Expected list or null"),
        ({"M": "a"}, MalformedValueError, "Expected map or null"),
        ({"M": []}, MalformedValueError, "Start of list found where not expected"),
        ("a", MalformedValueError, "Expected null"),
        ({"L": [1]}, MalformedValueError, "Expected null"),
        ({"BOOL": "maybe"}, MalformedValueError, "Unexpected token received from parser"),
        (
            {"B": "abc"},
            MalformedValueError,
            f"'abc' {NO_BLOB}: {MULTIPLE} but found: 3",
        ),
        (
            {"B": "ab-_"},
            MalformedValueError,
            "'ab-_' can not be converted to a Blob: Invalid Base64 character: '-'",
        ),
        (
            {"B": "YR=="},
            MalformedValueError,
            f"'YR==' {NO_BLOB}: Invalid last non-pad Base64 character dectected",
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_value_is_refused_in_dynamodbs_words(
    written: object, kind: type[RefusedError], said: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        decode_value(written)
    assert type(refused.value) is kind
    assert str(refused.value) == said


def test_values_are_nested_32_deep_and_no_deeper() -> None:
    written: dict[str, Any] = {"S": "x"}
    for _ in range(32):
        written = {"L": [written]}
    encode_value(decode_value(written))
    with pytest.raises(ValueRefusedError, match="Nesting Levels have exceeded supported limits"):
        decode_value({"L": [written]})


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(ValueRefusedError, match="Unicode"):
        decode_value({"S": "\ud800"})
