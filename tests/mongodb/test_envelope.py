"""What is read around an event's documents is what decoding the whole event gives."""

import math
from typing import Any

import bson
import pytest
from bson import Binary, DatetimeMS, Int64, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pymongo import MongoClient

from penstock.errors import UndecodableError
from penstock.sources.mongodb.documents import OPTIONS, decode, decode_together
from penstock.sources.mongodb.envelope import opened
from penstock.sources.mongodb.normalise import Change, Normaliser
from tests.mongodb.support import reading
from tests.mongodb.test_documents import DOCUMENTS, INT64, SCALARS
from tests_support.servers import MongoReplicaSet

NUMBER = st.integers(0, (1 << 32) - 1)
NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
UUIDS = st.binary(min_size=16, max_size=16).map(lambda data: Binary(data, 4))
OBJECT_IDS = st.binary(min_size=12, max_size=12).map(ObjectId)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """Events as servers send them: the fields in their order, each that may be missing or not."""
    event: dict[str, Any] = {}
    if draw(st.booleans()):
        session = {"id": draw(UUIDS), "uid": b"\xe3" * 32}
        event |= {"txnNumber": Int64(draw(INT64)), "lsid": session}
    time = Timestamp(draw(NUMBER), draw(NUMBER))
    bits: dict[str, Any] = {"_typeBits": b"\x80"} if draw(st.integers(0, 4)) == 4 else {}
    event["_id"] = {"_data": f"82{time.time:08X}{time.inc:08X}2B042C0100296E5A1004", **bits}
    event["operationType"] = draw(st.sampled_from(["insert", "update", "replace", "delete"]))
    event["clusterTime"] = time
    if draw(st.booleans()):
        event["collectionUUID"] = draw(UUIDS)
    if draw(st.booleans()):
        event["wallTime"] = DatetimeMS(draw(INT64))
    identity = draw(st.one_of(OBJECT_IDS, SCALARS))
    if event["operationType"] != "delete" and draw(st.booleans()):
        event["fullDocument"] = {"_id": identity, **draw(DOCUMENTS)}
    event["ns"] = {"db": draw(NAME), "coll": draw(NAME)}
    event["documentKey"] = {"_id": identity}
    if event["operationType"] == "update":
        event["updateDescription"] = {"updatedFields": draw(DOCUMENTS), "removedFields": ["a"]}
    if draw(st.booleans()):
        event["fullDocumentBeforeChange"] = draw(DOCUMENTS)
    if draw(st.integers(0, 9)) == 9:
        event["nsType"] = "of a later server"
    return event


def raw_of(event: dict[str, Any]) -> bytes:
    # Nested, because the encoder moves the `_id` of an outermost document to its front.
    return bson.encode({"": event}, codec_options=OPTIONS)[6:-1]


def change(raw: bytes, document: dict[str, Any] | None) -> Change | str | None:
    normaliser = Normaliser("shop", database=None, tenant=None, post_images=False)
    try:
        return normaliser.change(raw, document)
    except (UndecodableError, KeyError, TypeError, AttributeError) as error:
        return str(error)  # the others: a damaged token or time


@pytest.mark.slow
@given(st.lists(events(), min_size=1, max_size=4))
def test_events_read_together_are_those_that_are_decoded_one_by_one(
    given_events: list[dict[str, Any]],
) -> None:
    raws = [raw_of(event) for event in given_events]
    together = decode_together(raws)
    assert [change(raw, one) for raw, one in zip(raws, together, strict=True)] == [
        change(raw, None) for raw in raws
    ]


@given(events(), st.data())
def test_an_event_that_is_damaged_is_never_read_as_another(
    event: dict[str, Any], data: st.DataObject
) -> None:
    """What decoding as a whole refuses may be read by its envelope, but then as it was sent."""
    raw = bytearray(raw_of(event))
    raw[data.draw(st.integers(4, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(raw)
    expected, found = change(damaged, None), change(damaged, decode_together([damaged])[0])
    if isinstance(expected, Change):
        assert found == expected


REPLACED: dict[str, Any] = {
    "_id": {"_data": "826B00207E00000014"},
    "operationType": "replace",
    "clusterTime": Timestamp(7, 8),
    "fullDocument": {"_id": 1},
    "ns": {"db": "shop", "coll": "orders"},
    "documentKey": {"_id": 1},
    "fullDocumentBeforeChange": {"_id": 1},
}
"""Without a byte that is looked for."""


def test_the_events_that_servers_send_most_need_no_decoding_around_their_documents() -> None:
    event = {
        "_id": {"_data": "826B00207E00000014"},
        "operationType": "update",
        "clusterTime": Timestamp(7, 8),
        "collectionUUID": Binary(bytes(16), 4),
        "wallTime": DatetimeMS(-9),
        "fullDocument": {"_id": 1, "n": 2},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": 1},
        "rawUpdateDescription": {"$v": 2, "diff": {"u": {"n": 2}}},
        "fullDocumentBeforeChange": {"_id": 1},
    }
    envelope = opened(raw_of(event))
    assert envelope is not None
    assert envelope.facts["wallTime"] == -9
    assert {name: decode(raw) for name, raw in envelope.documents.items()} == {
        name: event[name]
        for name in (
            "fullDocument",
            "documentKey",
            "rawUpdateDescription",
            "fullDocumentBeforeChange",
        )
    }


@given(events())
def test_an_event_that_is_cut_short_has_no_envelope(event: dict[str, Any]) -> None:
    raw = raw_of(event)
    assert all(opened(raw[:length]) is None for length in range(0, len(raw), 7))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, '{"$numberDouble":"NaN"}'),
        (-math.nan, '{"$numberDouble":"NaN"}'),
        (math.inf, '{"$numberDouble":"Infinity"}'),
        (-math.inf, '{"$numberDouble":"-Infinity"}'),
    ],
)
@pytest.mark.parametrize("field", ["fullDocument", "fullDocumentBeforeChange"])
def test_a_double_that_is_no_number_is_noticed_in_each_document_of_an_event(
    field: str, value: float, written: str
) -> None:
    """Invariant 9: what is looked for in a document's BSON first does not change what is stored."""
    raw = raw_of({**REPLACED, field: {"_id": 1, "n": value}})
    found = change(raw, decode_together([raw])[0])
    assert isinstance(found, Change)
    stored = structs.asdict(found.event)
    name = {"fullDocument": "full_document"}.get(field, "full_document_before_change")
    assert bytes(stored[name]).decode() == f'{{"_id":1,"n":{written}}}'


@pytest.mark.parametrize("field", ["fullDocument", "fullDocumentBeforeChange"])
def test_a_mimicked_wrapper_is_noticed_in_each_document_of_an_event(field: str) -> None:
    """Invariant 10."""
    raw = raw_of({**REPLACED, field: {"_id": 1, "x": {"$oid": "x"}}})
    assert "reserves" in str(change(raw, decode_together([raw])[0]))


async def test_a_large_document_that_cannot_be_decoded_is_named(mongo: MongoReplicaSet) -> None:
    """Invariant 10: the driver gives a document of 4 KiB or more as a view of its reply."""
    twice = bson.encode({"_id": 1, "body": "x" * 5000, "ab": 1, "ac": 2}).replace(
        b"\x10ac", b"\x10ab"
    )
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        async with reading(mongo.uri, database="large_damaged") as read:
            client["large_damaged"]["orders"].insert_one(RawBSONDocument(twice))
            with pytest.raises(
                UndecodableError, match=r"field fullDocument\.ab, which occurs twice"
            ):
                await read.until(lambda r: bool(r.changes))


def test_a_part_of_a_split_event_has_no_envelope_of_its_own() -> None:
    """S9."""
    part = {"fragment": 1, "of": 2}
    assert opened(raw_of(REPLACED)) is not None
    assert opened(raw_of({**REPLACED, "splitEvent": part})) is None


def test_what_needs_a_closer_look_is_noticed_in_every_part_of_a_split_event() -> None:
    """S9, invariant 9."""
    first = {**REPLACED, "splitEvent": {"fragment": 1, "of": 2}}
    first["fullDocument"] = {"_id": 1, "n": math.nan}
    image = first.pop("fullDocumentBeforeChange")
    last = {
        "_id": REPLACED["_id"],
        "splitEvent": {"fragment": 2, "of": 2},
        "fullDocumentBeforeChange": image,
    }
    normaliser = Normaliser("shop", database=None, tenant=None, post_images=False)
    raws = [raw_of(first), raw_of(last)]
    none, found = (
        normaliser.change(raw, one) for raw, one in zip(raws, decode_together(raws), strict=True)
    )
    assert none is None
    assert isinstance(found, Change)
    stored = structs.asdict(found.event)["full_document"]
    assert bytes(stored) == b'{"_id":1,"n":{"$numberDouble":"NaN"}}'
