"""What a MongoDB commits is what the source yields, in order, whole, each event once."""

import uuid
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from penstock.errors import UndecodableError
from penstock.event import Operation, SchemaEvent, event_id
from tests.mongodb.support import loaded, reading
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]


async def test_every_operation_becomes_an_event(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    async with reading(mongo.uri, database=mongo_database) as read:
        orders.insert_one({"_id": 1, "n": 1})
        orders.update_one({"_id": 1}, {"$set": {"n": 2}, "$unset": {"gone": 1}})
        await read.until(lambda r: len(r.changes) == 2)
        orders.replace_one({"_id": 1}, {"n": 3})
        orders.delete_one({"_id": 1})
        await read.until(lambda r: len(r.changes) == 4)

    insert, update, replace, delete = read.changes
    assert [change.operation for change in read.changes] == list(Operation)[:4]
    assert loaded(insert.full_document) == {"_id": 1, "n": 1}
    assert insert.full_document_as_of_event
    assert loaded(update.full_document) == {"_id": 1, "n": 2}
    assert not update.full_document_as_of_event, "P25: a look-up may be newer than its event"
    assert loaded(update.update_description)["updatedFields"] == {"n": 2}
    assert loaded(replace.full_document) == {"_id": 1, "n": 3}
    assert replace.full_document_as_of_event
    assert delete.full_document is None
    for change in read.changes:
        assert (change.source, change.database, change.collection) == (
            "shop",
            mongo_database,
            "orders",
        )
        assert change.tenant == mongo_database, "P24: a delete's tenant is not empty either"
        assert (change.document_id, bytes(change.key)) == ("1", b'{"_id":1}')
        assert change.txn_number is None
        assert change.event_id == event_id("shop", change.position, 0)


async def test_an_event_keeps_its_time_and_its_id_on_every_capture(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P26, P2: both come from the source, not from the moment of capture."""
    async with reading(mongo.uri, database=mongo_database) as read:
        start = read.position
        mongo_client[mongo_database]["orders"].insert_many([{"_id": n} for n in range(5)])
        await read.until(lambda r: len(r.changes) == 5)
    async with reading(mongo.uri, database=mongo_database, position=start) as again:
        await again.until(lambda r: len(r.changes) == 5)
    assert again.events == read.events
    for change in read.changes:
        assert abs(change.timestamp // 1000 - change.cluster_time.t) <= 1

    async with reading(mongo.uri, name="two", database=mongo_database, position=start) as other:
        await other.until(lambda r: len(r.changes) == 5)
    ids = {change.event_id for change in read.changes}
    assert ids.isdisjoint(change.event_id for change in other.changes)


async def test_the_writes_of_a_transaction_are_one_commit_in_order_with_ids_of_their_own(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P1, P2, P3, S10: N writes are N events, even to one document."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": 0})

    def write(session: ClientSession) -> None:
        orders.insert_one({"_id": 1, "n": 0}, session=session)
        orders.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
        orders.update_one({"_id": 1}, {"$set": {"n": 2}}, session=session)
        orders.update_one({"_id": 0}, {"$set": {"n": 9}}, session=session)
        orders.delete_one({"_id": 1}, session=session)

    async with reading(mongo.uri, database=mongo_database) as read:
        with mongo_client.start_session() as session:
            session.with_transaction(write)
        await read.until(lambda r: bool(r.commits))

    (commit,) = read.commits
    assert [(c.operation.value, c.document_id) for c in read.changes] == [
        ("insert", "1"),
        ("update", "1"),
        ("update", "1"),
        ("update", "0"),
        ("delete", "1"),
    ]
    assert len({event.event_id for event in commit.events}) == 5
    assert len({event.position for event in commit.events}) == 5
    assert len({event.cluster_time for event in commit.events}) == 1
    (transaction,) = {event.transaction for event in commit.events}
    (number,) = {change.txn_number for change in read.changes}
    assert transaction is not None
    assert transaction.endswith(f":{number}")
    assert read.changes[1].full_document is None, "P25: gone when it was looked up"


async def test_a_transaction_over_many_replies_is_one_commit(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """Its end is known without a later write, whether or not the last reply is full."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": -1})
    for count in (6, 7):
        async with reading(
            mongo.uri, database=mongo_database, batch_events_max=3, heartbeat_seconds=30
        ) as read:
            with mongo_client.start_session() as session, session.start_transaction():
                for n in range(count):
                    orders.insert_one({"n": n}, session=session)
            await read.until(lambda r: bool(r.commits))
        assert [loaded(change.full_document)["n"] for change in read.changes] == list(range(count))
        assert len(read.commits) == 1


async def test_an_aborted_transaction_yields_nothing(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": 0})
    async with reading(mongo.uri, database=mongo_database) as read:
        with mongo_client.start_session() as session:
            session.start_transaction()
            orders.insert_one({"_id": 1}, session=session)
            session.abort_transaction()
        orders.insert_one({"_id": 2})
        await read.until(lambda r: bool(r.commits))
    assert [change.document_id for change in read.changes] == ["2"]


@pytest.mark.parametrize(
    ("key", "text", "stored"),
    [
        (ObjectId("0" * 24), "0" * 24, '{"$oid":"000000000000000000000000"}'),
        ("a/b", "a/b", '"a/b"'),
        (5, "5", "5"),
        (Int64(5), "5", '{"$numberLong":"5"}'),
        (5.0, "5.0", "5.0"),
        (True, "true", "true"),
        (None, "null", "null"),
        (Decimal128("5.0"), '{"$numberDecimal":"5.0"}', '{"$numberDecimal":"5.0"}'),
        (
            Binary(uuid.UUID(int=1).bytes, 4),
            '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}',
            '{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAQ==","subType":"04"}}',
        ),
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            '{"$date":"2026-01-01T00:00:00.000Z"}',
            '{"$date":"2026-01-01T00:00:00.000Z"}',
        ),
        ({"b": 1, "a": "x"}, '{"b":1,"a":"x"}', '{"b":1,"a":"x"}'),
    ],
)
async def test_a_key_of_any_type_is_kept_and_resumed_from(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    key: Any,
    text: str,
    stored: str,
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    async with reading(mongo.uri, database=mongo_database) as read:
        orders.insert_one({"_id": key})
        await read.until(lambda r: len(r.changes) == 1)
        orders.delete_one({"_id": key})
    # The position is that of the insert, whose token may carry the type of its key.
    async with reading(mongo.uri, database=mongo_database, position=read.position) as resumed:
        await resumed.until(lambda r: len(r.changes) == 1)
    for change in (*read.changes, *resumed.changes):
        assert change.document_id == text
        assert bytes(change.key).decode() == f'{{"_id":{stored}}}'
    assert [c.operation for c in resumed.changes] == [Operation.DELETE]


async def test_pre_and_post_images_are_those_of_the_event(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    orders = database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    async with reading(mongo.uri, database=mongo_database, full_document="whenAvailable") as read:
        orders.insert_one({"_id": 1, "n": 1})
        for n in (2, 3):
            orders.update_one({"_id": 1}, {"$set": {"n": n}})
        orders.delete_one({"_id": 1})
        await read.until(lambda r: len(r.changes) == 4)
    before = [loaded(change.full_document_before_change) for change in read.changes]
    after = [loaded(change.full_document) for change in read.changes]
    assert before == [None, {"_id": 1, "n": 1}, {"_id": 1, "n": 2}, {"_id": 1, "n": 3}]
    assert after == [{"_id": 1, "n": 1}, {"_id": 1, "n": 2}, {"_id": 1, "n": 3}, None]
    assert [change.full_document_as_of_event for change in read.changes] == [
        True,
        True,
        True,
        False,
    ]


async def test_changes_of_shape_stand_among_the_data_and_the_stream_goes_on(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6, S10: create, index, rename, drop, dropDatabase and invalidate are events."""
    database = mongo_client[mongo_database]
    async with reading(mongo.uri, database=mongo_database) as read:
        orders = database.create_collection("orders")
        orders.insert_one({"_id": 1, "n": 1})
        orders.create_index("n")
        database.command({"collMod": "orders", "validationLevel": "moderate"})
        orders.drop_index("n_1")
        orders.rename("bills")
        database["bills"].drop()
        database["more"].insert_one({"_id": 2})
        mongo_client.drop_database(mongo_database)
        mongo_client[mongo_database]["again"].insert_one({"_id": 3})
        await read.until(lambda r: len(r.changes) == 3)

    assert [f"{event.operation} {event.collection}".strip() for event in read.events] == [
        "create orders",
        "insert orders",
        "createIndexes orders",
        "modify orders",
        "dropIndexes orders",
        "rename orders",
        "drop bills",
        "create more",
        "insert more",
        "drop more",
        "dropDatabase",
        "invalidate",
        "create again",
        "insert again",
    ]
    assert len({event.event_id for event in read.events}) == len(read.events)
    (rename,) = [event for event in read.events if event.operation == "rename"]
    assert isinstance(rename, SchemaEvent)
    assert loaded(rename.description)["to"] == {"db": mongo_database, "coll": "bills"}
    (index,) = [event for event in read.events if event.operation == "createIndexes"]
    assert isinstance(index, SchemaEvent)
    assert loaded(index.description)["operationDescription"]["indexes"][0]["name"] == "n_1"


async def test_the_server_filters_collections(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    choices: list[tuple[dict[str, Any], list[str]]] = [
        ({"include": ("orders", "order_*")}, ["orders", "order_lines"]),
        ({"include": (f"{mongo_database}.fs.files",)}, ["fs.files"]),
        ({"exclude": ("order*", "fs.?iles")}, ["customers"]),
    ]
    for options, wanted in choices:
        async with reading(mongo.uri, database=mongo_database, **options) as read:
            for name in ("orders", "order_lines", "fs.files", "customers", "orders"):
                database[name].insert_one({})
            database["end"].drop()
            await read.until(lambda r, wanted=wanted: len(r.changes) >= len(wanted))  # type: ignore[misc]
            await read.until(lambda r: r.heartbeats > 3)
        assert sorted({change.collection for change in read.changes}) == sorted(wanted)


async def test_a_cluster_source_captures_every_database(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    async with reading(mongo.uri, include=(f"{mongo_database}.*",), tenant="acme") as read:
        mongo_client[mongo_database]["orders"].insert_one({"_id": 1})
        mongo_client[f"{mongo_database}_two"]["orders"].insert_one({"_id": 2})
        mongo_client[mongo_database]["orders"].insert_one({"_id": 3})
        mongo_client.drop_database(f"{mongo_database}_two")
        mongo_client.drop_database(mongo_database)
        await read.until(lambda r: "dropDatabase" in {one.operation for one in r.events})
    assert [change.document_id for change in read.changes] == ["1", "3"]
    # Neither is told that the other database is gone.
    assert {(event.database, event.tenant) for event in read.events} == {(mongo_database, "acme")}


async def test_a_quiet_source_tells_newer_positions_and_loses_nothing_over_a_restart(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P21, invariant 5: foreign writes move the position of a filtered source too."""
    database = mongo_client[mongo_database]
    async with reading(mongo.uri, database=mongo_database, include=("orders",)) as read:
        first = read.position
        assert first is not None, "the position is told on opening, before any event"
        database["noise"].insert_one({})
        await read.until(lambda r: r.position != first)
        assert read.commits == []
    database["orders"].insert_one({"_id": 1})
    async with reading(
        mongo.uri, database=mongo_database, include=("orders",), position=read.position
    ) as resumed:
        await resumed.until(lambda r: len(r.changes) == 1)
    assert resumed.changes[0].document_id == "1"


async def test_deprecated_types_are_captured_and_what_mimics_a_type_stops_with_its_place(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """P6, invariant 10: nothing is skipped; what came before is yielded."""
    symbol = bson.encode({"_id": 1, "v": "sym"}).replace(b"\x02v\0", b"\x0ev\0")
    orders = mongo_client[mongo_database]["orders"]
    async with reading(mongo.uri, database=mongo_database) as read:
        orders.insert_one(RawBSONDocument(symbol))
        orders.insert_one({"_id": 2, "a": {"b": {"$oid": "no id"}}})
        with pytest.raises(UndecodableError, match=r"insert of .*\.orders.*field a\.b.*\$oid") as e:
            await read.until(lambda r: len(r.changes) == 2)
    assert [bytes(c.full_document or b"") for c in read.changes] == [
        b'{"_id":1,"v":{"$symbol":"sym"}}'
    ]
    assert "no id" not in str(e.value)

    async with reading(mongo.uri, database=mongo_database, position=read.position) as again:
        with pytest.raises(UndecodableError):
            await again.next()


async def test_a_field_that_occurs_twice_stops_with_its_path(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    twice = bson.encode({"_id": 1, "a": 1, "b": 2}).replace(b"b\0", b"a\0")
    async with reading(mongo.uri, database=mongo_database) as read:
        mongo_client[mongo_database]["orders"].insert_one(RawBSONDocument(twice))
        with pytest.raises(UndecodableError, match=r"fullDocument\.a, which occurs twice"):
            await read.until(lambda r: bool(r.changes))
