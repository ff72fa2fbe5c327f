"""A BSON document is stored exactly, or not at all."""

import json
import math
import struct
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
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

from penstock.extjson import AmbiguousDocumentError
from penstock.sources.mongodb.documents import OPTIONS, BsonEncoder, decode
from penstock.sources.mongodb.faithful import InexactError, read_document
from penstock.sources.mongodb.snapshot import key_of
from tests.mongodb.support import loaded

NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["a.b", "$set", "$", "", "_id", "null", "$ne", '{"$', "ключ", "名"]),
).filter(lambda name: not name.startswith("$") or name in {"$", "$set", "$ne"})
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["null", '{"$oid":"x"}', '"', "\\", "\0", "\u2028", "🜁"]),
)
PLAIN_TEXT = st.text("abc.*^$[]()é", max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    INT32,
    INT64.map(Int64),
    st.sampled_from([0, 5, -5, 1 << 31, -(1 << 31) - 1]).map(Int64),
    st.floats(allow_nan=False),
    st.sampled_from([3.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308, 1e16, 0.1]),
    TEXT,
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.tuples(st.binary(max_size=20), st.integers(0, 255)).map(
        lambda parts: Binary(parts[0], parts[1])
    ),
    st.binary(min_size=16, max_size=16).map(lambda data: Binary(data, 4)),
    INT64.map(DatetimeMS),
    st.sampled_from([-1, 0, 253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_001]).map(
        DatetimeMS
    ),
    st.decimals(places=3, min_value=-(10**9), max_value=10**9).map(Decimal128),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1.10", "0E-6176"]).map(Decimal128),
    st.sampled_from(["-0", "9.999999999999999999999999999999999E+6144"]).map(Decimal128),
    st.tuples(PLAIN_TEXT, st.sampled_from(["", "i", "im", "msx", "ilmsux"])).map(
        lambda parts: Regex(parts[0], parts[1])
    ),
    st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)).map(
        lambda parts: Timestamp(*parts)
    ),
    TEXT.map(Code),
    st.just(MinKey()),
    st.just(MaxKey()),
)


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    documents = st.dictionaries(NAMES, values, max_size=5)
    return st.one_of(
        documents,
        st.lists(values, max_size=5),
        st.tuples(TEXT, documents).map(lambda parts: Code(*parts)),
        st.tuples(PLAIN_TEXT, values).map(lambda parts: DBRef(parts[0], parts[1])),
        st.tuples(PLAIN_TEXT, values, PLAIN_TEXT).map(lambda parts: DBRef(*parts)),
    )


DOCUMENTS = st.dictionaries(NAMES, st.recursive(SCALARS, containers, max_leaves=12), max_size=6)


def element(kind: int, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + name + b"\0" + value


def document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def stored(raw: bytes) -> str:
    return bytes(BsonEncoder().encode(decode(raw))).decode()


def as_bson(value: dict[str, Any]) -> bytes:
    return bson.encode({"": value}, codec_options=OPTIONS)


@given(DOCUMENTS)
def test_every_document_comes_back_with_the_same_bytes(original: dict[str, Any]) -> None:
    raw = bson.encode({"": original}, codec_options=OPTIONS)
    assert as_bson(loaded(BsonEncoder().encode(decode(raw)))[""]) == raw


@given(DOCUMENTS)
def test_the_faithful_reader_reads_what_the_fast_one_reads(original: dict[str, Any]) -> None:
    raw = bson.encode({"": original}, codec_options=OPTIONS)
    encoder = BsonEncoder()
    # As JSON: a DBRef is a plain document to the faithful reader.
    assert bytes(encoder.encode(read_document(raw))) == bytes(encoder.encode(decode(raw)))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (5, "5"),
        (Int64(5), '{"$numberLong":"5"}'),
        (Int64(5_000_000_000), "5000000000"),
        (3.0, "3.0"),
        (-0.0, "-0.0"),
        (math.nan, '{"$numberDouble":"NaN"}'),
        (-math.inf, '{"$numberDouble":"-Infinity"}'),
        (None, "null"),
        (Decimal128("sNaN"), '{"$numberDecimal":"NaN"}'),
        (Decimal128("1.10"), '{"$numberDecimal":"1.10"}'),
        (DatetimeMS(0), '{"$date":"1970-01-01T00:00:00.000Z"}'),
        (DatetimeMS(-1), '{"$date":{"$numberLong":"-1"}}'),
        (DatetimeMS(1 << 60), '{"$date":{"$numberLong":"1152921504606846976"}}'),
        (b"\x00\xff", '{"$binary":{"base64":"AP8=","subType":"00"}}'),
        (Binary(b"\x00", 128), '{"$binary":{"base64":"AA==","subType":"80"}}'),
        (ObjectId("0" * 24), '{"$oid":"000000000000000000000000"}'),
        (Timestamp(1, 2), '{"$timestamp":{"t":1,"i":2}}'),
        (Regex("^a", "im"), '{"$regularExpression":{"pattern":"^a","options":"im"}}'),
        (Code("f()"), '{"$code":"f()"}'),
        (Code("f()", {"n": Int64(1)}), '{"$code":"f()","$scope":{"n":{"$numberLong":"1"}}}'),
        (DBRef("c", Int64(1), "d"), '{"$ref":"c","$id":{"$numberLong":"1"},"$db":"d"}'),
        (MinKey(), '{"$minKey":1}'),
        (MaxKey(), '{"$maxKey":1}'),
        ({"a.b": {"$set": 1}}, '{"a.b":{"$set":1}}'),
    ],
)
def test_each_type_has_its_own_form(value: Any, written: str) -> None:
    assert stored(bson.encode({"v": value}, codec_options=OPTIONS)) == f'{{"v":{written}}}'


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        (element(0x06, b"v", b""), '{"$undefined":true}'),
        (element(0x0E, b"v", text(b"sym")), '{"$symbol":"sym"}'),
        (
            element(0x0C, b"v", text(b"shop.a") + b"\0" * 12),
            '{"$dbPointer":{"$ref":"shop.a","$id":{"$oid":"000000000000000000000000"}}}',
        ),
        (
            element(0x0B, b"v", b"a\0zz\0"),
            '{"$regularExpression":{"pattern":"a","options":"zz"}}',
        ),
        (
            element(0x03, b"v", bson.encode({"$id": 1, "$ref": "late"})),
            '{"$id":1,"$ref":"late"}',
        ),
        (element(0x04, b"v", document(element(0x10, b"7", b"\x01\0\0\0"))), "[1]"),
    ],
)
def test_what_the_fast_decoder_would_change_is_read_faithfully(raw: bytes, written: str) -> None:
    assert json.loads(stored(document(raw))) == {"v": json.loads(written)}


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (element(0x10, b"k", b"\1\0\0\0") * 2, "field k, which occurs twice"),
        (
            element(0x03, b"a", document(element(0x0A, b"k", b"") * 2)),
            "field a.k, which occurs twice",
        ),
        (element(0x02, b"k", text(b"\xff")), "field k, whose text is not UTF-8"),
        (element(0x08, b"k", b"\2"), "field k, a boolean that is 2"),
        (element(0x55, b"k", b""), "field k of the unknown BSON type 0x55"),
    ],
)
def test_what_has_no_exact_form_is_refused_with_its_path(raw: bytes, where: str) -> None:
    with pytest.raises(InexactError, match=where):
        decode(document(raw))


@pytest.mark.parametrize(
    "mimic",
    [
        {"$oid": "no object id"},
        {"$numberLong": "5"},
        {"$date": 5, "more": 1},
        [{"a": {"$binary": 1}}],
        Code("f", {"a": {"$oid": "x"}}),
        DBRef("c", {"$numberLong": "5"}),
    ],
)
def test_a_document_that_mimics_a_wrapper_is_refused(mimic: Any) -> None:
    with pytest.raises(AmbiguousDocumentError, match=r"\$(oid|numberLong|date|binary)"):
        stored(bson.encode({"v": mimic}, codec_options=OPTIONS))


@given(SCALARS.filter(lambda value: not isinstance(value, Regex)))
def test_the_key_of_a_document_is_cut_out_with_its_type(value: Any) -> None:
    key = bson.encode({"_id": value}, codec_options=OPTIONS)
    assert key_of(bson.encode({"_id": value, "more": [1]}, codec_options=OPTIONS)) == key
