"""Names and values of captured collections: nothing is changed in silence, and no two are one."""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock.extjson import encode
from penstock.serve.dynamodb.captured.names import (
    Name,
    is_table_name,
    place_of,
    read_before,
    read_sequence_number,
    read_table_name,
    table_name,
)
from penstock.serve.dynamodb.captured.values import item_of, key_of
from penstock.serve.dynamodb.numbers import begins_with, ends_with, number_of
from penstock.sources.mongodb.documents import BsonEncoder, decode
from penstock.store.attributevalue import decode_attributes
from penstock.store.values import encode_item

# --- names --------------------------------------------------------------------------------------

PART = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
HARD = st.text(alphabet="ab.-_0 é", min_size=1, max_size=12)
NAMES = st.builds(Name, PART | HARD, PART | HARD, PART | HARD)


@given(NAMES)
def test_a_table_name_is_one_that_the_protocol_allows_and_is_read_back(name: Name) -> None:
    table = table_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_.-]{3,255}", table)
    assert read_table_name(table) in {name, None}
    assert is_table_name(table)
    if len(table) < 200:
        assert read_table_name(table) == name


@given(NAMES, NAMES)
def test_two_collections_have_two_names(one: Name, other: Name) -> None:
    assert (table_name(one) == table_name(other)) == (one == other)


def test_long_names_are_cut_and_stay_apart() -> None:
    one, other = (Name("s", "d", "é" * 120 + end) for end in ("1", "2"))
    names = {table_name(one), table_name(other)}
    assert len(names) == 2
    assert {len(name) for name in names} <= set(range(250, 256))
    assert [read_table_name(name) for name in names] == [None, None]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (Name("shop", "db", "orders"), "shop.db.orders"),
        (Name("shop", "my-db", "fs.files"), "shop.my--db.fs.files"),
        (Name("eu.shop", "db", "a b"), "eu-2eshop.db.a-20b"),
    ],
)
def test_names_are_written_as_documented(name: Name, table: str) -> None:
    assert table_name(name) == table


@given(st.integers(1, 2**63), st.sampled_from([0, 1]))
def test_sequence_numbers_are_ordered_as_text_and_read_back(sequence: int, part: int) -> None:
    place = place_of(sequence, part)
    ascending = [
        begins_with(place),
        *(number_of(place, check) for check in (0, 1, (1 << 32) - 1)),
        ends_with(place),
        begins_with(place_of(sequence + 1, 0)),
    ]
    assert ascending == sorted(ascending) == sorted(ascending, key=int)
    assert all(21 <= len(written) <= 40 for written in ascending)
    assert [read_sequence_number(written) for written in ascending[:-1]] == [
        (place, check) for check in (None, 0, 1, (1 << 32) - 1, None)
    ]
    older = str(10**21 + place)
    assert read_sequence_number(older) == (place, None)
    assert older < ascending[0]
    for none_of_ours in ("0" * 21, str(int(ascending[0]) + (1 << 33))):
        assert read_sequence_number(none_of_ours).place < 0
    assert read_before(place) == (sequence if part else sequence - 1)


# --- values -------------------------------------------------------------------------------------

DIGITS = "1234567890" * 4
INSTANT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("text", {"S": "text"}),
        ("", {"S": ""}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        (5, {"N": "5"}),
        (Int64(5), {"N": "5"}),
        (Int64(2**62), {"N": str(2**62)}),
        (5.0, {"N": "5"}),
        (0.1, {"N": "0.1"}),
        (-2.5e-7, {"N": "-0.00000025"}),
        (1e125, {"N": "1" + "0" * 125}),
        (1e126, {"S": "1e+126"}),
        (1e-131, {"S": "1e-131"}),
        (-0.0, {"S": "-0.0"}),
        (float("nan"), {"S": "NaN"}),
        (float("-inf"), {"S": "-Infinity"}),
        (Decimal128("1.10"), {"N": "1.1"}),
        (Decimal128("1E+6000"), {"S": "1E+6000"}),
        (Decimal128("NaN"), {"S": "NaN"}),
        (Decimal128("-0"), {"S": "-0"}),
        (b"\x00\xff", {"B": "AP8="}),
        (
            Binary(b"\x01", 4),
            {"M": {"$binary": {"M": {"base64": {"S": "AQ=="}, "subType": {"S": "04"}}}}},
        ),
        (ObjectId("0" * 24), {"M": {"$oid": {"S": "0" * 24}}}),
        (INSTANT, {"M": {"$date": {"S": "2026-01-02T03:04:05.678Z"}}}),
        (DatetimeMS(-1), {"M": {"$date": {"N": "-1"}}}),
        (Timestamp(7, 3), {"M": {"$timestamp": {"M": {"t": {"N": "7"}, "i": {"N": "3"}}}}}),
        (
            Regex("a.c", "i"),
            {"M": {"$regularExpression": {"M": {"pattern": {"S": "a.c"}, "options": {"S": "i"}}}}},
        ),
        (Code("f()"), {"M": {"$code": {"S": "f()"}}}),
        (MinKey(), {"M": {"$minKey": {"N": "1"}}}),
        (MaxKey(), {"M": {"$maxKey": {"N": "1"}}}),
        ([1, "a"], {"L": [{"N": "1"}, {"S": "a"}]}),
        ({"a": {}}, {"M": {"a": {"M": {}}}}),
        ([], {"L": []}),
    ],
    ids=repr,
)
def test_every_kind_of_value_of_mongodb_has_its_attribute_value(
    value: Any, attribute: dict[str, Any]
) -> None:
    raw = bson.encode({"_id": 1, "v": value})
    stored = bytes(BsonEncoder().encode(decode(raw)))
    assert item_of(stored, ["_id"]).attributes["v"] == attribute


def test_a_number_of_more_than_38_digits_is_its_text() -> None:
    told = item_of(bytes(encode({"a": Decimal(DIGITS), "b": Decimal(DIGITS[:38])})), [])
    assert told.attributes == {"a": {"S": DIGITS}, "b": {"N": DIGITS[:38]}}


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), JSONS, max_size=5))
def test_values_and_their_sizes_are_those_of_a_store(document: dict[str, Any]) -> None:
    """What a table of the service would hold of the same attributes, byte for byte."""
    told = item_of(bytes(encode(document)), [])
    item = decode_attributes(told.attributes)
    assert item == document
    assert told.size == encode_item(item).size


# --- keys ---------------------------------------------------------------------------------------

KEYS = (
    st.text()
    | st.sampled_from(['{"$oid":"000000000000000000000000"}', "[true]", "[null]", '"a"', "NaN"])
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.none()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.datetimes(timezones=st.just(UTC))
    | st.uuids()
    | st.dictionaries(st.text("ab", min_size=1), st.integers(0, 3), max_size=2)
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are one key: numbers by value, all else by type too."""
    numbers = [
        isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in (one, other)
    ]
    if all(numbers):
        return bool(one == other) or (isnan(one) and isnan(other))
    return type(one) is type(other) and bool(one == other)


@given(KEYS, KEYS)
def test_two_keys_are_told_apart(one: Any, other: Any) -> None:
    told = [key_of(bytes(encode({"_id": value}))).attributes for value in (one, other)]
    if not same(one, other):
        assert told[0] != told[1]


@given(KEYS)
def test_a_key_is_what_a_table_may_have_and_the_same_in_the_image(value: Any) -> None:
    document = bytes(encode({"_id": value, "n": 1}))
    key = key_of(bytes(encode({"_id": value})))
    ((kind, written),) = key.attributes["_id"].items()
    assert kind in {"S", "N", "B"}
    assert written != ""
    assert item_of(document, ["_id"]).attributes["_id"] == key.attributes["_id"]
    decoded = decode_attributes(key.attributes)
    assert key.size == encode_item(decoded).size


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("a", {"S": "a"}),
        (5.0, {"N": "5"}),
        (0.5, {"S": '{"$numberDouble":"0.5"}'}),
        (True, {"S": "[true]"}),
        (b"\x00", {"B": "AA=="}),
        ("", {"S": '""'}),
        (b"", {"S": '{"$binary":{"base64":"","subType":"00"}}'}),
        ('{"a"', {"S": '"{\\"a\\""'}),
        ({"b": 1, "a": 2}, {"S": '{"b":1,"a":2}'}),
        (UUID(int=1), {"S": '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}'}),
    ],
)
def test_keys_are_written_as_documented(value: Any, attribute: dict[str, Any]) -> None:
    assert key_of(bytes(encode({"_id": value}))).attributes["_id"] == attribute


def test_the_extended_json_of_a_key_is_in_its_text() -> None:
    text = key_of(b'{"_id":{"$oid":"65a0000000000000000000aa"}}').attributes["_id"]["S"]
    assert json.loads(text) == {"$oid": "65a0000000000000000000aa"}
