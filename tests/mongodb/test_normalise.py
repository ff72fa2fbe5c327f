"""What a raw event becomes, for events that the test servers do not send."""

from typing import Any

import bson
import pytest
from bson import Binary, DatetimeMS, Int64, ObjectId, Timestamp

from penstock.errors import UndecodableError
from penstock.event import AnyEvent, ChangeEvent, ClusterTime, SchemaEvent
from penstock.sources.mongodb.documents import OPTIONS
from penstock.sources.mongodb.normalise import SCHEMA_OPERATIONS, Normaliser

TOKEN = "826B00207E00000014" + "AB" * 30


def raw(operation: str, **fields: Any) -> bytes:
    event = {
        "_id": {"_data": TOKEN},
        "operationType": operation,
        "clusterTime": Timestamp(1_700_000_000, 7),
        "ns": {"db": "shop", "coll": "orders"},
        **fields,
    }
    return bson.encode(event, codec_options=OPTIONS)


def normalised(data: bytes, **options: Any) -> AnyEvent:
    options = {"database": None, "tenant": None, "post_images": False, **options}
    change = Normaliser("shop", **options).change(data)
    assert change is not None
    assert change.token.data == TOKEN
    return change.event


def test_an_operation_that_is_not_known_stops_with_its_name_and_position() -> None:
    """P6, invariant 10."""
    with pytest.raises(UndecodableError, match=f"'resizeUniverse'.* at position {TOKEN}"):
        normalised(raw("resizeUniverse"))


@pytest.mark.parametrize("operation", sorted(SCHEMA_OPERATIONS))
def test_every_change_of_shape_is_a_schema_event(operation: str) -> None:
    event = normalised(raw(operation, operationDescription={"n": Int64(1)}), tenant="acme")
    assert isinstance(event, SchemaEvent)
    assert (event.operation, event.tenant) == (operation, "acme")
    assert b'{"n":{"$numberLong":"1"}}' in bytes(event.description)


def test_an_event_without_a_wall_time_has_the_second_of_its_cluster_time() -> None:
    """P26: servers before 6.0 send no wallTime."""
    event = normalised(raw("delete", documentKey={"_id": 1}))
    assert (event.timestamp, event.cluster_time) == (
        1_700_000_000_000,
        ClusterTime(1_700_000_000, 7),
    )
    later = normalised(
        raw("delete", documentKey={"_id": 1}, wallTime=DatetimeMS(1_700_000_000_123))
    )
    assert later.timestamp == 1_700_000_000_123


def test_the_key_of_a_sharded_collection_is_refused() -> None:
    """A copied row would have another identity than its changes. A shard may be reached directly,
    and then nothing but its events tells that it is one."""
    with pytest.raises(
        UndecodableError, match=r"delete of shop\.orders: a sharded collection's key"
    ):
        normalised(raw("delete", documentKey={"region": "eu", "_id": ObjectId("0" * 24)}))


def test_disambiguated_paths_are_kept_beside_the_update() -> None:
    """Servers since 6.1 tell a field named 0 from the first element of an array."""
    update: dict[str, Any] = {
        "updatedFields": {"a.0": 1},
        "removedFields": [],
        "truncatedArrays": [],
    }
    event = normalised(
        raw(
            "update",
            documentKey={"_id": 1},
            updateDescription={**update, "disambiguatedPaths": {"a.0": ["a", "0"]}},
        )
    )
    assert isinstance(event, ChangeEvent)
    assert bytes(event.disambiguated_paths or b"") == b'{"a.0":["a","0"]}'
    assert b"disambiguated" not in bytes(event.update_description or b"")
    assert event.full_document is None


def test_a_transaction_is_named_by_its_session_and_number() -> None:
    session = {"id": Binary(bytes(range(16)), 4), "uid": b""}
    event = normalised(raw("delete", documentKey={"_id": 1}, lsid=session, txnNumber=Int64(9)))
    assert isinstance(event, ChangeEvent)
    assert event.transaction == "000102030405060708090a0b0c0d0e0f:9"
    assert event.txn_number == 9


def test_fields_that_we_do_not_know_are_no_reason_to_stop() -> None:
    event = normalised(raw("insert", documentKey={"_id": 1}, fullDocument={"_id": 1}, nsType="x"))
    assert isinstance(event, ChangeEvent)
    assert event.full_document_as_of_event
