"""A snapshot and the stream beside it end with what the collections hold."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.client_session import ClientSession
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from penstock.event import ChangeEvent, SystemEvent
from penstock.sources.mongodb import deployment
from penstock.sources.mongodb.documents import OPTIONS, decode
from penstock.sources.mongodb.positions import parse_position
from tests.mongodb.support import (
    Reading,
    before_chunk,
    folded,
    loaded,
    reading,
    source,
    stored_rows,
)
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
COLLECTIONS = ["customers", "orders"]


def completed(read: Reading) -> bool:
    return any(event.operation == "snapshot_completed" for event in read.events)


def copied(read: Reading) -> list[ChangeEvent]:
    return [change for change in read.changes if change.snapshot]


async def test_a_snapshot_is_announced_copied_and_completed_then_the_stream_goes_on(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    for name in COLLECTIONS:
        database[name].insert_many({"_id": n, "name": name} for n in range(5))
    database.create_collection("view", viewOn="orders", pipeline=[])
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        await read.until(completed)
        database["orders"].insert_one({"_id": 5, "name": "orders"})
        await read.until(lambda r: not r.changes[-1].snapshot)

    first, *_ = read.events
    assert isinstance(first, SystemEvent)
    assert first.operation == "snapshot_started"
    assert [(c.collection, c.document_id) for c in copied(read)] == [
        (name, str(n)) for name in COLLECTIONS for n in range(5)
    ]
    assert all(c.full_document_as_of_event and c.operation == "insert" for c in copied(read))
    assert folded(read.events) == stored_rows(database, COLLECTIONS)
    assert len({event.event_id for event in read.events}) == len(read.events)


class Finds(CommandListener):
    """The `find`s that a source sends, and where it stood when it did."""

    def __init__(self) -> None:
        self.read: Reading | None = None
        self.seen: list[tuple[dict[str, Any], str | None]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "find" and self.read is not None:
            self.seen.append((dict(event.command), self.read.position))

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...


async def test_each_chunk_is_read_at_or_after_the_position_before_it(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 9: an older row would follow newer events in the log. A single server never reads
    an older one, so only what is asked of it can tell."""
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": n} for n in range(7))
    finds = Finds()

    def listened(*arguments: Any, event_listeners: Sequence[Any], **options: Any) -> Any:
        return AsyncMongoClient(*arguments, event_listeners=[*event_listeners, finds], **options)

    monkeypatch.setattr(deployment, "AsyncMongoClient", listened)
    # A write before each chunk moves the stream, so that no chunk has the place of the one before.
    before_chunk(monkeypatch, lambda number: orders.insert_one({"_id": f"late {number}"}))
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
    async with source(mongo.uri, database=mongo_database, **options) as opened:
        read = finds.read = Reading(opened)
        await read.until(completed)
        await read.stop()
    chunks = [(command, position) for command, position in finds.seen if "sort" in command]
    assert len(chunks) > 4
    for command, position in chunks:
        assert position is not None
        asked = command["readConcern"]["afterClusterTime"]
        at = parse_position(position).token.time
        assert command["readConcern"]["level"] == "majority"
        assert (asked.time, asked.inc) >= (at.t, at.i)
    assert len({parse_position(position or "").token.time for _, position in chunks}) > 2


def write(client: Client, database: str, rng: random.Random, stop: asyncio.Event) -> None:
    """Every kind of write to few documents, so that rows and events meet."""

    def one(session: ClientSession | None = None) -> None:
        rows = client[database][rng.choice(COLLECTIONS)]
        key = rng.choice([rng.randrange(60), f"k{rng.randrange(60)}"])
        match rng.randrange(4):
            case 0:
                rows.update_one({"_id": key}, {"$inc": {"n": 1}}, upsert=True, session=session)
            case 1:
                rows.replace_one({"_id": key}, {"n": 0, "r": 1}, upsert=True, session=session)
            case 2:
                rows.update_one({"_id": key}, {"$unset": {"r": 1}}, session=session)
            case _:
                rows.delete_one({"_id": key}, session=session)

    def several(session: ClientSession) -> None:
        for _ in range(rng.randint(2, 5)):
            one(session)

    while not stop.is_set():
        if rng.random() < 0.3:
            with client.start_session() as session:
                session.with_transaction(several)
        else:
            one()
    client[database]["orders"].insert_one({"_id": "last"})


@pytest.mark.parametrize("seed", range(3))
async def test_under_concurrent_writers_and_restarts_the_fold_equals_the_collections(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, seed: int
) -> None:
    """Invariant 9: nothing lost, nothing stale at the end, no row and no event twice."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    database = mongo_client[mongo_database]
    for name in COLLECTIONS:
        keys = [*range(40), *(f"k{n}" for n in range(40))]
        database[name].insert_many({"_id": key, "n": -1} for key in keys)
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 7}
    stop = asyncio.Event()
    async with source(mongo.uri, database=mongo_database, **options) as opened:
        read = Reading(opened)
        await read.next()
        writing = asyncio.create_task(
            asyncio.to_thread(write, mongo_client, mongo_database, random.Random(seed), stop)
        )
        while not completed(read):
            await read.next()
            if rng.random() < 0.05:
                await read.stop()
        stop.set()
        await writing
        await read.until(lambda r: r.changes[-1].document_id == "last")
        await read.stop()
    assert len(copied(read)) >= 100
    assert folded(read.events) == stored_rows(database, COLLECTIONS)
    assert len({event.event_id for event in read.events}) == len(read.events)


KEYS: list[Any] = [
    None,
    *(-1, 1, 2.5, Int64(3), Decimal128("4.5"), float("inf")),
    *("", "a", "a\0b", "ü"),
    *({}, {"a": 1}, {"a": "1"}, {"b": 0}),
    *(Binary(b"\0", 0), b"\1", Binary(b"\0" * 16, 4)),
    *(ObjectId("0" * 24), ObjectId("f" * 24)),
    *(False, True, datetime(2026, 1, 1, tzinfo=UTC), bson.Timestamp(1, 1)),
    *(bson.MinKey(), bson.MaxKey()),
]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"collation": {"locale": "en", "strength": 2}}, {"clusteredIndex": True}],
    ids=["plain", "collation", "clustered"],
)
async def test_chunks_hold_every_key_once_whatever_its_type(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    options: dict[str, Any],
    limit: int,
) -> None:
    if options.get("clusteredIndex"):
        options = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}
    # A collection with a collation orders an embedded or binary key by other rules, not a time.
    rows = mongo_client[mongo_database].create_collection("keys", codec_options=OPTIONS, **options)
    rows.insert_many({"_id": key} for key in KEYS)
    seen: list[bytes] = []
    async with source(mongo.uri, database=mongo_database) as opened:
        after: bytes | None = None
        while True:
            chunk = await opened.read_chunk("keys", after_key=after, limit=limit)
            assert len(chunk.documents) <= limit
            seen += chunk.documents
            after = chunk.after
            if chunk.last:
                break
    assert len(set(seen)) == len(seen) == len(KEYS)
    in_order = [bson.encode(row, codec_options=OPTIONS) for row in rows.find().sort("_id", 1)]
    assert seen == in_order


async def test_documents_that_fill_a_reply_do_not_end_a_collection(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    rows = mongo_client[mongo_database]["large"]
    for n in range(4):
        rows.insert_one({"_id": n, "body": "x" * (15 << 20)})
    rows.insert_one({"_id": 4})
    keys: list[int] = []
    async with source(mongo.uri, database=mongo_database) as opened:
        after: bytes | None = None
        last = False
        while not last:
            chunk = await opened.read_chunk("large", after_key=after, limit=100)
            keys += [decode(row)["_id"] for row in chunk.documents]
            after, last = chunk.after, chunk.last
    assert keys == list(range(5))


async def test_a_collection_renamed_while_it_is_copied_is_copied_under_its_new_name(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    database["a"].insert_many({"_id": n} for n in range(9))
    options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 4}
    async with reading(mongo.uri, database=mongo_database, **options) as read:
        await read.until(lambda r: bool(copied(r)))
        database["a"].rename("b")
        await read.stop()
        await read.until(completed)
    rows = folded(read.events)
    assert [rows[f'b/{{"_id":{n}}}'] for n in range(9)] == [{"_id": n} for n in range(9)]
    assert len({event.event_id for event in read.events}) == len(read.events)


async def test_a_rename_into_a_captured_collection_brings_its_documents(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    """So does $out, which writes elsewhere and renames; no event tells of those documents."""
    database = mongo_client[mongo_database]
    async with reading(mongo.uri, database=mongo_database, include=("orders",)) as read:
        database["staging"].insert_many({"_id": n} for n in range(3))
        database["staging"].rename("orders")
        await read.until(completed)
        database["orders"].insert_one({"_id": 3})
        await read.until(lambda r: not r.changes[-1].snapshot)
    assert [loaded(c.full_document) for c in read.changes] == [{"_id": n} for n in range(4)]


async def test_a_snapshot_of_nothing_completes(mongo: MongoReplicaSet, mongo_database: str) -> None:
    async with reading(mongo.uri, database=mongo_database, start="snapshot") as read:
        await read.until(completed)
    assert [event.operation for event in read.events] == ["snapshot_started", "snapshot_completed"]
