"""What is read around an event's documents is what decoding the whole event gives."""

from typing import Any

import bson
from bson import Binary, DatetimeMS, Int64, ObjectId, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mongodb.documents import OPTIONS, decode, decode_together
from penstock.sources.mongodb.envelope import opened
from penstock.sources.mongodb.normalise import Change, Normaliser
from tests.mongodb.test_documents import DOCUMENTS, INT64, SCALARS

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
        "updateDescription": {"updatedFields": {"n": 2}},
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
            "updateDescription",
            "fullDocumentBeforeChange",
        )
    }


@given(events())
def test_an_event_that_is_cut_short_has_no_envelope(event: dict[str, Any]) -> None:
    raw = raw_of(event)
    assert all(opened(raw[:length]) is None for length in range(0, len(raw), 7))


def test_a_dollar_and_a_double_that_is_no_number_are_found_in_any_part_of_an_event() -> None:
    """Invariant 10: how the documents are looked at does not change what is stored."""
    event = {
        "_id": {"_data": "826B00207E00000014"},
        "operationType": "replace",
        "clusterTime": Timestamp(7, 8),
        "fullDocument": {"_id": 1, "n": float("nan"), "i": float("-inf")},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": 1},
        "fullDocumentBeforeChange": {"_id": 1, "n": float("inf")},
    }
    raw = raw_of(event)
    found = change(raw, decode_together([raw])[0])
    assert isinstance(found, Change)
    stored = found.event
    assert isinstance(stored, ChangeEvent)
    assert bytes(stored.full_document or b"") == (
        b'{"_id":1,"n":{"$numberDouble":"NaN"},"i":{"$numberDouble":"-Infinity"}}'
    )
    assert bytes(stored.full_document_before_change or b"") == (
        b'{"_id":1,"n":{"$numberDouble":"Infinity"}}'
    )
    mimic = raw_of({**event, "fullDocument": {"_id": 1, "x": {"$oid": "x"}}})
    assert "reserves" in str(change(mimic, decode_together([mimic])[0]))
