"""What happens to a collection while it is copied: renamed, dropped, or its database dropped."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient

from tests.mongodb.support import Reading, before_chunk, folded, reading, stored_rows
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]


def completed(read: Reading) -> bool:
    return any(event.operation == "snapshot_completed" for event in read.events)


async def test_a_rename_that_is_the_first_write_after_the_stream_was_opened_is_not_missed(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets the very time at which the stream already stands; its documents are still copied."""
    database = mongo_client[mongo_database]
    for attempt in range(4):
        # A no-op of the server's own may come in between, seldom: hence more than one attempt.
        database["b"].drop()
        database["c"].drop()
        database["b"].insert_many({"_id": n, "attempt": attempt} for n in range(3))

        def rename(number: int) -> None:
            if number == 0:
                database["b"].rename("c")

        before_chunk(monkeypatch, rename)
        async with reading(mongo.uri, database=mongo_database, start="snapshot") as read:
            await read.until(completed)
        assert "rename" in [event.operation for event in read.events]
        assert folded(read.events) == stored_rows(database, ["b", "c"])


async def test_a_restart_does_not_forget_how_far_the_stream_must_be_read(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rename is several replies behind the position that the last chunk left."""
    database = mongo_client[mongo_database]
    database["b"].insert_many({"_id": n} for n in range(3))

    def rename(number: int) -> None:
        if number == 0:
            for n in range(6):
                database["b"].update_one({"_id": 0}, {"$set": {"n": n}})
            database["b"].rename("c")

    before_chunk(monkeypatch, rename)
    options: dict[str, Any] = {"start": "snapshot", "batch_events_max": 1}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        await read.until(lambda r: bool(r.events))
        await read.next()
        await read.stop()
        await read.until(completed)
    assert folded(read.events) == stored_rows(database, ["c"])


async def test_a_collection_dropped_and_made_again_while_it_is_copied_ends_as_it_is(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P6: rows of the new one are copied before the drop is told, and told again after it."""
    database = mongo_client[mongo_database]
    database["a"].insert_many({"_id": n} for n in range(9))

    def drop(number: int) -> None:
        if number == 1:
            database["a"].drop()
            database["a"].insert_many({"_id": n, "new": True} for n in (1, 5, 7, 20))

    before_chunk(monkeypatch, drop)
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 3}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        await read.until(completed)
    assert "drop" in [event.operation for event in read.events]
    assert folded(read.events) == stored_rows(database, ["a"])
    assert len({event.event_id for event in read.events}) == len(read.events)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_database_dropped_while_it_is_copied_ends_as_it_is(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
    restarted: bool,
) -> None:
    """P6, S10: the stream ends with invalidate and is opened after it; the copying goes on."""
    database = mongo_client[mongo_database]
    for name in ("a", "b"):
        database[name].insert_many({"_id": n} for n in range(9))

    def drop(number: int) -> None:
        if number == 1:
            mongo_client.drop_database(mongo_database)
            database["b"].insert_many({"_id": n, "new": True} for n in (1, 20))

    before_chunk(monkeypatch, drop)
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 3}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        while not completed(read):
            await read.next()
            if restarted:
                await read.stop()
    operations = [event.operation for event in read.events]
    assert operations.index("dropDatabase") < operations.index("invalidate")
    assert operations[-1] == "snapshot_completed"
    assert folded(read.events) == stored_rows(database, ["a", "b"])
    assert len({event.event_id for event in read.events}) == len(read.events)


@pytest.mark.parametrize("kind", ["view", "timeseries"])
@pytest.mark.parametrize("chunk", [1, 2])
async def test_what_takes_the_name_of_a_collection_that_is_to_be_copied_is_not_copied_for_it(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    kind: str,
) -> None:
    """Before its first chunk, and in the middle: no stream would ever tell of these rows again.

    The rename is told before that chunk is read, so it takes none of them away either.
    """
    database = mongo_client[mongo_database]
    database["a"].insert_one({"_id": 1})
    database["orders"].insert_many({"_id": n} for n in range(9))

    def replace(number: int) -> None:
        if number != chunk - 1:
            return
        database["orders"].rename("orders_v2")
        if kind == "view":
            database.create_collection("orders", viewOn="orders_v2", pipeline=[])
        else:
            database.create_collection("orders", timeseries={"timeField": "at"})
            database["orders"].insert_one({"_id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC)})

    before_chunk(monkeypatch, replace)
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 3}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        await read.until(completed)
        database["orders_v2"].update_one({"_id": 1}, {"$set": {"n": 1}})
        await read.until(lambda r: r.events[-1].operation == "update")
    assert folded(read.events) == stored_rows(database, ["a", "orders_v2"])
