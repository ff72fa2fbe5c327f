"""Values reach Zero as they are, or are refused: nothing is rounded, nothing made null (Z8)."""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import extjson
from penstock.zero.inferring import fits, kind_of, type_of
from penstock.zero.types import (
    TYPE_NAMES,
    UnfitError,
    column_spec,
    converter,
    is_type,
    plain_json,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SAFE = (1 << 53) - 1

texts = st.text(st.characters(exclude_categories=["Cs"]))
int64 = st.integers(-(1 << 63), (1 << 64) - 1)
instants = st.integers(-8796093022207999, 8796093022207999).map(
    lambda micros: EPOCH + timedelta(microseconds=micros)
)
doubles = st.floats(allow_nan=False, allow_infinity=False)


def stored(value: Any) -> bytes:
    """A value as a document has it."""
    return bytes(extjson.encode({"": value}))[4:-1]


def micros(wire: Any) -> datetime:
    return EPOCH + timedelta(microseconds=round(wire * 1000))


EXACT: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "text": (texts, str),
    "uuid": (st.uuids(), UUID),
    "int": (st.integers(-SAFE, SAFE), int),
    "bigint": (int64, int),
    "double": (doubles.filter(lambda one: not 2**63 <= abs(one) < 1e21), float),
    "decimal": (st.decimals(allow_nan=False), Decimal),
    "bool": (st.booleans(), bool),
    "timestamp": (instants, micros),
    "exact": (texts | int64 | st.binary(), json.loads),
    "binary": (st.binary(), base64.b64decode),
    "enum": (texts, str),
    "text[]": (st.lists(texts | st.none()), list),
    "bigint[]": (st.lists(int64), lambda wire: [int(one) for one in wire]),
}


@pytest.mark.parametrize("name", EXACT)
@given(st.data())
def test_a_value_comes_back_from_the_wire_as_it_was_z8(name: str, data: st.DataObject) -> None:
    values, back = EXACT[name]
    value = data.draw(values)
    wire = json.loads(converter(name)(stored(value)))
    again = back(wire)
    if name == "exact":
        assert again == json.loads(stored(value))
    else:
        assert again == value
        assert isinstance(again, type(value))
    if isinstance(wire, int):
        assert abs(wire) <= SAFE


@given(st.recursive(
    texts | int64 | doubles | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(texts.filter(lambda n: n[:1] != "$"), inner),
))  # fmt: skip
def test_plain_json_keeps_every_digit_and_no_integer_that_javascript_lacks_z8(value: Any) -> None:
    assert undone(json.loads(plain_json(stored(value))), value) == value


def undone(wire: Any, value: Any) -> Any:
    """What `wire` says, in the types of `value`."""
    if isinstance(value, dict):
        assert wire.keys() == value.keys()
        return {name: undone(wire[name], value[name]) for name in wire}
    if isinstance(value, list):
        pairs = zip(wire, cast("Sequence[Any]", value), strict=True)
        return [undone(one, other) for one, other in pairs]
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_text = abs(value) > SAFE and value == int(value)
        assert isinstance(wire, str) == is_text
        return type(value)(wire)
    return wire


@pytest.mark.parametrize(
    ("name", "value", "wire"),
    [
        ("objectid", b'{"$oid":"0123456789abcdef01234567"}', b'"0123456789abcdef01234567"'),
        ("jsontext", rb'"{\"a\": [1.50, \"x\"]}"', b'{"a": [1.50, "x"]}'),
        ("jsontext", rb'"{\"$oid\": 9007199254740993}"', b'{"$oid":"9007199254740993"}'),
        ("jsontext", b'{"a":{"$numberLong":"5"}}', b'{"a":5}'),
        ("uuid", b'{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"00"}}',
         b'"00000000-0000-0000-0000-000000000001"'),
        ("int", b'{"$numberLong":"-5"}', b"-5"),
        ("int", b"9007199254740991", b"9007199254740991"),
        ("bigint", b"18446744073709551615", b'"18446744073709551615"'),
        ("double", b"9007199254740994", b"9007199254740994.0"),
        ("decimal", b'{"$numberDecimal":"1.10"}', b'"1.10"'),
        ("decimal", b"5", b'"5"'),
        ("numeric", b'{"$numberDecimal":"1.10"}', b"1.1"),
        ("numeric", b'{"$numberDecimal":"9007199254740993"}', b"9007199254740992.0"),
        ("bool", b"1", b"true"),
        ("bool", b'{"$numberLong":"0"}', b"false"),
        ("timestamp", b'{"$date":"2023-11-14T22:13:20.123Z"}', b"1700000000123"),
        ("timestamp", b'{"$date":"2023-11-14T22:13:20.123456Z"}', b"1700000000123.456"),
        ("timestamp", b'{"$date":{"$numberLong":"-1"}}', b"-1"),
        ("timestamp", b'"2023-11-14 22:13:20.5"', b"1700000000500"),
        ("timestamp", b'"2023-11-14 22:13:20"', b"1700000000000"),
        ("date", b'"1970-01-02"', b"86400000"),
        ("date", b'{"$date":"1970-01-02T00:00:00.000Z"}', b"86400000"),
        ("time", b'"00:00:01.50"', b"1500"),
        ("time", b'"-838:59:59.000001"', b"-3020399000.001"),
        ("json", b'{"$oid":"0123456789abcdef01234567"}', b'"0123456789abcdef01234567"'),
        ("json", b'[{"$date":{"$numberLong":"-1"}},{"$numberDouble":"NaN"},1e20]',
         b'[-1,"NaN","1e+20"]'),
        ("json", b'{"a":{"$numberLong":"5"},"b":{"$timestamp":{"t":1,"i":2}}}',
         b'{"a":5,"b":{"$timestamp":{"t":1,"i":2}}}'),
        ("json", b'{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}',
         b'"00000000-0000-0000-0000-000000000001"'),
        ("exact", b'{"$numberLong":"5"}', b'"{\\"$numberLong\\":\\"5\\"}"'),
        ("timestamp[]", b'[{"$date":"1970-01-01T00:00:00.001Z"},null]', b"[1,null]"),
    ],
)  # fmt: skip
def test_a_value_is_on_the_wire_as_documented(name: str, value: bytes, wire: bytes) -> None:
    assert converter(name)(value) == wire


@pytest.mark.parametrize(
    ("name", "value", "came"),
    [
        ("text", b"5", "an integer"),
        ("text", b'{"$oid":"0123456789abcdef01234567"}', "an ObjectId"),
        ("objectid", b'"0123456789abcdef01234567"', "text"),
        ("uuid", b'{"$binary":{"base64":"AAAA","subType":"04"}}', "bytes that are no UUID"),
        ("int", b"9007199254740992", "an integer beyond 2^53-1"),
        ("int", b"-9007199254740992", "an integer beyond 2^53-1"),
        ("int", b"3.0", "a double"),
        ("int", b"true", "a boolean"),
        ("bigint", b"1.5", "a double"),
        ("double", b'{"$numberDouble":"NaN"}', "a double that is no number (NaN, Infinity)"),
        ("double", b"9007199254740993", "an integer that is no double"),
        ("double", b"1e20", "a double between 2^63 and 10^21, which Zero's replica cannot hold"),
        ("double", b'{"$numberDecimal":"1.1"}', "a decimal"),
        ("double", b"true", "a boolean"),
        ("decimal", b"1.5", "a double"),
        ("numeric", b'{"$numberDecimal":"1E+400"}', "a decimal"),
        ("numeric", b'"5"', "text"),
        ("bool", b"2", "an integer"),
        ("bool", b"1.0", "a double"),
        ("timestamp", b'"0000-00-00 00:00:00"', "a date that no calendar has"),
        ("timestamp", b'"2023-11-14"', "text that is no date and time"),
        ("timestamp", b'{"$date":{"$numberLong":"9223372036854775807"}}', "an instant beyond"),
        ("timestamp", b'"9999-12-31 23:59:59.999999"', "microseconds outside"),
        ("date", b'"2023-00-10"', "a date that no calendar has"),
        ("date", b'"2023-W01-1"', "text that is no date"),
        ("date", b'{"$date":"1970-01-02T00:00:00.001Z"}', "an instant that is not midnight"),
        ("time", b'"1 o\'clock"', "text that is no time"),
        ("binary", b'"AAAA"', "text"),
        ("jsontext", b'"{"', "text that is no JSON"),
        ("jsontext", b'"1e400"', "text that is no JSON"),
        ("enum", b"[]", "an array"),
        ("int[]", b'[1,"2"]', "an array with text"),
        ("int[]", b"5", "an integer"),
    ],
)
def test_what_does_not_fit_is_refused_and_named_but_not_shown_z8(
    name: str, value: bytes, came: str
) -> None:
    with pytest.raises(UnfitError) as raised:
        converter(name)(value)
    assert raised.value.came.startswith(came)


def test_arrays_and_enums_are_announced_as_zero_wants_them_z5() -> None:
    array = column_spec("timestamp[]", pos=1, not_null=False)
    assert (array.data_type, array.elem_pg_type_class) == ("timestamptz[]", "b")
    enum = column_spec("enum", pos=2, not_null=False)
    assert (enum.data_type, enum.pg_type_class) == ("enum", "e")
    assert column_spec("enum[]", pos=3, not_null=False).elem_pg_type_class == "e"
    assert column_spec("int", pos=4, not_null=True).not_null


def test_only_types_are_types() -> None:
    assert all(is_type(name) and is_type(f"{name}[]") for name in TYPE_NAMES)
    assert not any(is_type(name) for name in ("", "[]", "int[][]", "varchar"))


@given(
    st.lists(
        texts | int64 | doubles | st.booleans() | instants | st.decimals(allow_nan=False),
        min_size=1,
    )
)
def test_the_inferred_type_takes_every_value_that_it_was_inferred_from(values: list[Any]) -> None:
    encoded = [stored(value) for value in values]
    inferred = type_of(frozenset(map(kind_of, encoded)))
    assert all(fits(value, inferred) for value in encoded)
    of_key = type_of(frozenset(map(kind_of, encoded)), key=True)
    assert all(fits(value, of_key) for value in encoded)
    assert of_key not in {"json", "numeric"}
