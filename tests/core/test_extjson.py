"""A document keeps every value's type and content, or is refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId, Timestamp, json_util
from bson.codec_options import DatetimeConversion
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from penstock import extjson
from penstock.extjson import AmbiguousDocumentError, DocumentEncoder, encode, relaxed

CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)


def bson_hook(value: Any) -> Any:
    """A hook as a MongoDB source has one."""
    if isinstance(value, Int64):
        return extjson.long(value)
    if isinstance(value, Binary):
        return extjson.binary(bytes(value), value.subtype)
    if isinstance(value, DatetimeMS):
        return extjson.date(int(value))
    if isinstance(value, ObjectId):
        return {"$oid": str(value)}
    if isinstance(value, Decimal128):
        return {"$numberDecimal": str(value)}
    if isinstance(value, Timestamp):
        return {"$timestamp": {"t": value.time, "i": value.inc}}
    return extjson.python_hook(value)


ENCODER = DocumentEncoder(bson_hook)


def read(encoded: bytes) -> Any:
    """What a reader of Extended JSON that keeps types sees."""
    return json_util.loads(bytes(encoded).decode(), json_options=CANONICAL)


# A key may hold `$` anywhere, but the reader that we compare with takes wrapper names for wrappers.
keys = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8
).filter(lambda key: not key.startswith("$"))
strings = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["null", '{"$numberLong":"5"}', '"$date":', '{"$oid', "\\", '"', "\u2028"]),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.builds(Int64, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(Int64, st.integers(-3, 3)),
    st.floats(allow_nan=False),
    st.sampled_from([float("nan"), 0.0, -0.0, 3.0, 1e16, 1e22, 5e-324, 1.7976931348623157e308]),
    strings,
    st.binary(max_size=9).map(lambda data: Binary(data, 0)),
    st.builds(Binary, st.binary(max_size=9), st.sampled_from([0, 4, 5, 128])),
    st.builds(DatetimeMS, st.integers(-(1 << 62), 1 << 62)),
    st.builds(DatetimeMS, st.integers(-1, 253_402_300_800_000)),
    st.builds(ObjectId, st.binary(min_size=12, max_size=12)),
    st.builds(Timestamp, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)),
    st.sampled_from(["0", "-0", "1.10", "1E+6144", "NaN", "Infinity"]).map(Decimal128),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)
bson_documents = st.dictionaries(keys, values, max_size=4)


@given(bson_documents)
@example({})
@example({"": {"": []}})
def test_every_value_keeps_its_type_and_content(document: dict[str, Any]) -> None:
    """Read back and written as BSON it is the same, byte for byte: int32, int64, double and all."""
    assert bson.encode(read(ENCODER.encode(document))) == bson.encode(document)


@given(bson_documents)
def test_relaxed_is_what_mongodb_calls_relaxed(document: dict[str, Any]) -> None:
    theirs = json_util.dumps(document, json_options=json_util.RELAXED_JSON_OPTIONS)
    ours = relaxed(ENCODER.encode(document))
    assert bson.encode({"": read(ours)}) == bson.encode({"": read(theirs.encode())})
    # And a reader that knows no Extended JSON finds plain numbers where theirs are plain.
    assert b'{"$numberLong"' not in ours.replace(b'{"$date":{"$numberLong"', b"")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (5, "5"),
        (-(1 << 31), "-2147483648"),
        (1 << 31, "2147483648"),
        (Int64(1 << 31), "2147483648"),
        (Int64((1 << 31) - 1), '{"$numberLong":"2147483647"}'),
        (Int64(-(1 << 31)), '{"$numberLong":"-2147483648"}'),
        (Int64(-(1 << 31) - 1), "-2147483649"),
        (Int64(0), '{"$numberLong":"0"}'),
        ((1 << 64) - 1, "18446744073709551615"),
        (-(1 << 63), "-9223372036854775808"),
        (3.0, "3.0"),
        (-0.0, "-0.0"),
        (1e22, "1e22"),
        (0.1, "0.1"),
        (float("nan"), '{"$numberDouble":"NaN"}'),
        (float("inf"), '{"$numberDouble":"Infinity"}'),
        (float("-inf"), '{"$numberDouble":"-Infinity"}'),
        (Decimal("1.10"), '{"$numberDecimal":"1.10"}'),
        (Decimal("-0"), '{"$numberDecimal":"-0"}'),
        (Decimal("1E+40"), '{"$numberDecimal":"1E+40"}'),
        (Decimal("9" * 65), '{"$numberDecimal":"' + "9" * 65 + '"}'),
        (datetime(2026, 1, 1, tzinfo=UTC), '{"$date":"2026-01-01T00:00:00.000Z"}'),
        (datetime(2026, 1, 1, 0, 0, 0, 7000, UTC), '{"$date":"2026-01-01T00:00:00.007Z"}'),
        (datetime(2026, 1, 1, 0, 0, 0, 7, UTC), '{"$date":"2026-01-01T00:00:00.000007Z"}'),
        (
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            '{"$date":"2025-12-31T18:30:00.000Z"}',
        ),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC), '{"$date":"9999-12-31T23:59:59.999Z"}'),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), '{"$date":{"$numberLong":"-1000"}}'),
        (datetime(1, 1, 1, 0, 0, 0, 1, UTC), '{"$date":"0001-01-01T00:00:00.000001Z"}'),
        (DatetimeMS(253_402_300_800_000), '{"$date":{"$numberLong":"253402300800000"}}'),
        (b"\0\xff", '{"$binary":{"base64":"AP8=","subType":"00"}}'),
        (bytearray(b"a"), '{"$binary":{"base64":"YQ==","subType":"00"}}'),
        (memoryview(b"a"), '{"$binary":{"base64":"YQ==","subType":"00"}}'),
        (UUID(int=1), '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}'),
        ((1, "a"), '[1,"a"]'),
        ([], "[]"),
        ({}, "{}"),
        ('a"b\\\n\0é\U0001f6d2', '"a\\"b\\\\\\n\\u0000é\U0001f6d2"'),
    ],
)
def test_the_mapping_is_as_documented(value: Any, written: str) -> None:
    assert bytes(ENCODER.encode({"v": value})).decode() == f'{{"v":{written}}}'
    nested = bytes(ENCODER.encode({"a": [{"v": value}]})).decode()
    assert nested == f'{{"a":[{{"v":{written}}}]}}'


def test_python_values_need_no_hook_of_their_own() -> None:
    document = {"at": datetime(2026, 1, 1, tzinfo=UTC), "sum": Decimal("1.10"), "raw": b"a"}
    assert json.loads(bytes(encode(document))) == {
        "at": {"$date": "2026-01-01T00:00:00.000Z"},
        "sum": {"$numberDecimal": "1.10"},
        "raw": {"$binary": {"base64": "YQ==", "subType": "00"}},
    }


class Colour(Enum):
    RED = 1


class Point(Struct):
    x: int


@dataclass
class Size:
    x: int


@pytest.mark.parametrize(
    "value",
    list[Any](
        [
            date(2026, 1, 1),
            time(1, 2),
            timedelta(1),
            datetime(2026, 1, 1),  # noqa: DTZ001
            {1, 2},
            frozenset(),
            Colour.RED,
            Point(1),
            Size(1),
            object(),
            1j,
            {1: 2},
            {None: 1},
            {b"k": 1},
            {"a": 1, 2: 3},
        ]
    ),
)
def test_a_value_without_a_mapping_is_refused_and_its_field_named(value: Any) -> None:
    """Never flattened to text: the type would be lost, and nobody would know."""
    with pytest.raises(TypeError):
        encode({"v": value})
    if type(value) is not object and type(value) is not complex:
        with pytest.raises(TypeError, match=r"the field a\.0\.v"):
            encode({"a": [{"v": value}]})


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, 10**40])
def test_an_integer_beyond_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"the field a\.1 holds an integer beyond 64 bits"):
        encode({"a": [0, value]})


def test_a_signalling_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="signalling"):
        encode({"v": Decimal("sNaN")})


@pytest.mark.parametrize(
    "document", [{"a": {"b": "\ud800"}}, {"a": ["x", "\udfff"]}, {"\ud800": 1}]
)
def test_a_lone_surrogate_is_refused_and_its_field_named(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the field (a\.b|a\.1|.*ud800.*) holds text with a lone"):
        encode(document)


@pytest.mark.parametrize(
    "wrapper",
    [
        {"$oid": "0" * 24},
        {"$numberLong": "5"},
        {"$numberInt": "5"},
        {"$numberDouble": "NaN"},
        {"$numberDecimal": "1"},
        {"$date": "2026-01-01T00:00:00Z"},
        {"$date": {"$numberLong": "1"}},
        {"$binary": {"base64": "", "subType": "00"}},
        {"$code": "x", "$scope": {}},
        {"$timestamp": {"t": 1, "i": 1}},
        {"$regularExpression": {"pattern": "", "options": ""}},
        {"$uuid": "x"},
        {"$symbol": "x"},
        {"$dbPointer": {}},
        {"$minKey": 1},
        {"$maxKey": 1},
        {"$undefined": True},
    ],
)
def test_a_plain_document_that_mimics_a_wrapper_is_refused(wrapper: dict[str, Any]) -> None:
    for document in (wrapper, {"v": wrapper}, {"a": [{"v": wrapper}]}):
        with pytest.raises(AmbiguousDocumentError, match="reserves"):
            encode(document)
    # Not hidden by a wrapper of our own beside it.
    with pytest.raises(AmbiguousDocumentError, match="the field v "):
        encode({"b": b"x", "v": wrapper})


@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "orders", "$id": 5},
        {"$set": {"$inc": 1}},
        {"a": "$oid", "b": '{"$oid":"x"}'},
        {"price$": 1, "a$date": {"x": 1}},
        {"": {"$": 1}},
    ],
)
def test_other_dollars_are_a_documents_own(document: dict[str, Any]) -> None:
    assert json.loads(bytes(encode(document))) == document


@given(st.dictionaries(strings, strings, max_size=4))
def test_text_that_looks_like_a_wrapper_stays_text(document: dict[str, str]) -> None:
    encoded = bytes(encode({f"-{key}": value for key, value in document.items()}))
    assert relaxed(encoded) == encoded


def test_relaxed_unwraps_only_what_was_wrapped() -> None:
    document = {
        "n": Int64(5),
        "text": '{"$numberLong":"5"}',
        'a"$date': Int64(6),
        "at": DatetimeMS(-1),
        "list": [Int64(-7), {"x": Int64(8)}],
    }
    assert relaxed(ENCODER.encode(document)) == (
        b'{"n":5,"text":"{\\"$numberLong\\":\\"5\\"}","a\\"$date":6,'
        b'"at":{"$date":{"$numberLong":"-1"}},"list":[-7,{"x":8}]}'
    )


def test_relaxed_leaves_bytes_without_a_wrapped_number_as_they_are() -> None:
    encoded = bytes(encode({"a": 1}))
    assert relaxed(encoded) is encoded


def wrapping(inner: Callable[[Any], Any]) -> DocumentEncoder:
    """An encoder for Point whose wrapper holds `inner(point)`."""

    def hook(value: Any) -> Any:
        if isinstance(value, Point):
            return {"$code": "f", "$scope": inner(value)}
        return bson_hook(value)

    return DocumentEncoder(hook)


def test_a_wrapper_may_hold_values_that_are_wrapped_too() -> None:
    encoder = wrapping(lambda point: {"id": ObjectId(b"0" * 12), "n": Int64(point.x)})
    assert json.loads(bytes(encoder.encode({"v": Point(5)}))) == {
        "v": {
            "$code": "f",
            "$scope": {"id": {"$oid": "30" * 12}, "n": {"$numberLong": "5"}},
        }
    }


def test_a_plain_document_inside_a_wrapper_is_held_to_the_same_rules() -> None:
    exact = wrapping(lambda _: extjson.exact({"x": float("nan")}))
    assert b'{"x":{"$numberDouble":"NaN"}}' in bytes(exact.encode({"v": Point(1)}))
    with pytest.raises(AmbiguousDocumentError):
        wrapping(lambda _: extjson.exact({"x": {"$oid": "y"}})).encode({"v": Point(1)})
    with pytest.raises(TypeError, match="the field x"):
        wrapping(lambda _: extjson.exact({"x": b"y"})).encode({"v": Point(1)})


def test_a_hook_may_use_its_own_encoder() -> None:
    def hook(value: Any) -> Any:
        if isinstance(value, Point):
            return {"$code": bytes(encoder.encode({"x": ObjectId(b"0" * 12)})).decode()}
        return bson_hook(value)

    encoder = DocumentEncoder(hook)
    document = {"p": Point(1), "id": ObjectId(b"1" * 12)}
    assert json.loads(bytes(encoder.encode(document))) == {
        "p": {"$code": '{"x":{"$oid":"303030303030303030303030"}}'},
        "id": {"$oid": "31" * 12},
    }
    with pytest.raises(AmbiguousDocumentError):
        encoder.encode({"p": Point(1), "v": {"$oid": "mimic"}})


def test_an_encoder_goes_on_after_a_refusal() -> None:
    encoder = DocumentEncoder(bson_hook)
    for bad in ({"v": Int64(1), "x": object()}, {"v": {"$oid": 1}}, {"v": "\ud800"}):
        with pytest.raises((TypeError, ValueError)):
            encoder.encode(bad)
        assert bytes(encoder.encode({"v": Int64(1)})) == b'{"v":{"$numberLong":"1"}}'


def test_encoded_json_inside_a_document_is_spliced() -> None:
    assert bytes(encode({"v": Raw(b'{"$numberLong":"1"}')})) == b'{"v":{"$numberLong":"1"}}'


@given(st.integers(-(1 << 45), 1 << 48) | st.integers(0, 253_402_300_799_999))
def test_an_instant_is_its_text_to_the_millisecond(milliseconds: int) -> None:
    """From 1970 to 9999; its number before and behind."""
    expected: object = {"$numberLong": str(milliseconds)}
    if 0 <= milliseconds < 253_402_300_800_000:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        expected = f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    assert extjson.date(milliseconds) == {"$date": expected}
