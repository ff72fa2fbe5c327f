"""Documents that a server puts into capped collections, which no stream tells, are copied."""

import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import bson
import pytest
import structlog
from pymongo import AsyncMongoClient, MongoClient

from penstock.errors import SourceUnavailableError
from penstock.event import SystemEvent
from penstock.ports import KeyRange
from penstock.sources.mongodb import snapshot
from penstock.sources.mongodb.snapshot import read_chunk
from tests.mongodb.support import Reading, folded, reading, source, stored_rows
from tests.mongodb.test_ranges import read_all
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
pytestmark = pytest.mark.server


@pytest.fixture(params=["mongo", "mongo6027"])
def server(request: pytest.FixtureRequest) -> MongoReplicaSet:
    found: MongoReplicaSet = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(server: MongoReplicaSet) -> Iterator[Client]:
    with MongoClient[dict[str, Any]](server.uri) as client:
        yield client


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    client.drop_database(name)


def copies(read: Reading) -> int:
    """How many copies are complete."""
    return sum(
        isinstance(event, SystemEvent) and event.operation == "snapshot_completed"
        for event in read.events
    )


@contextmanager
def being_filled(database: Any) -> Generator[tuple[threading.Thread, int]]:
    """The server fills `b` meanwhile: who does it, and how many rows it will have."""
    rows = 60_000
    database["a"].insert_many({"_id": n, "text": "x" * 200} for n in range(rows))
    command = {"cloneCollectionAsCapped": "a", "toCollection": "b", "size": 1 << 26}
    clones = threading.Thread(target=database.command, args=(command,))
    clones.start()
    try:
        wait_until(database["b"].estimated_document_count)
        yield clones, rows
    finally:
        clones.join()


@pytest.mark.parametrize("start", ["snapshot", "now"])
async def test_a_collection_that_is_made_capped_keeps_the_rows_that_it_has_then(
    server: MongoReplicaSet, client: Client, name: str, start: str
) -> None:
    """P6: it is another one that gets its name, and too small for all documents."""
    database = client[name]
    database["a"].insert_many({"_id": n, "text": "x" * 100} for n in range(50))
    database["b"].insert_one({"_id": 1})
    before = 1 if start == "snapshot" else 0
    async with reading(server.uri, database=name, start=start) as read:
        await read.until(lambda r: copies(r) == before and r.position is not None)
        database.command({"convertToCapped": "a", "size": 4096})
        await read.until(lambda r: copies(r) == before + 1)
        database["a"].insert_one({"_id": "later"})
        await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "later")
    wanted = stored_rows(database, ["a", "b"] if before else ["a"])
    assert 1 < len(wanted) < 50
    assert folded(read.events) == wanted


async def test_a_collection_that_is_cloned_as_a_capped_one_has_all_of_its_rows(
    server: MongoReplicaSet, client: Client, name: str
) -> None:
    """P6: the stream tells that it was made, and nothing of what is in it."""
    database = client[name]
    database["a"].insert_many({"_id": n} for n in range(9))
    async with reading(server.uri, database=name, start="snapshot", exclude=("a",)) as read:
        await read.until(lambda r: copies(r) == 1)
        database.command({"cloneCollectionAsCapped": "a", "toCollection": "b", "size": 4096})
        await read.until(lambda r: copies(r) == 2)
    assert folded(read.events) == stored_rows(database, ["b"])


async def test_a_capped_collection_is_read_once_the_server_has_filled_it(
    server: MongoReplicaSet, client: Client, name: str
) -> None:
    """P6: a copy that begins while it is filled, by a write of which no stream tells."""
    async with AsyncMongoClient[dict[str, Any]](server.uri) as reader:
        await reader.admin.command("ping")
        with being_filled(client[name]) as (clones, rows):
            assert clones.is_alive()
            chunk = await read_chunk(reader, (name, "b"), after=None, limit=rows)
            while not chunk.last:
                chunk = await read_chunk(reader, (name, "b"), after=None, limit=rows)
            assert len(chunk.documents) == rows


async def test_a_range_of_one_that_is_being_filled_begins_at_its_own_key(
    server: MongoReplicaSet, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading gives up waiting for a moment, and goes on where it was: at no key."""
    monkeypatch.setattr(snapshot, "_LOCK_MS", 20)
    async with reading(server.uri, database=name) as read, source(server.uri, database=name) as one:
        assert read.position is not None
        with being_filled(client[name]) as (clones, rows):
            assert clones.is_alive()
            half = bson.encode({"_id": rows // 2})
            part = KeyRange(database=name, collection="b", start=half)
            found = await read_all(one, part, read.position)
    assert [int(row.document_id) for row in found] == list(range(rows // 2, rows))


async def test_the_copy_of_a_capped_collection_waits_for_the_primary_and_keeps_nothing_else_waiting(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    """P6: only the primary knows whether a command still fills it."""
    mongo, name = start_mongo(members=2), "shop"
    with Client(mongo.uri, w=2) as client:
        client[name].create_collection("a", capped=True, size=4096)
        client[name]["a"].insert_one({"_id": 1})
        client[name]["b"].insert_one({"_id": 1})
        assert client.primary is not None
        primary = f"{client.primary[0]}:{client.primary[1]}"
        (secondary,) = (address for address in mongo.addresses if address != primary)
        at = "mongodb://{}/?directConnection=true"
        with structlog.testing.capture_logs() as logs:
            async with reading(at.format(secondary), database=name, start="snapshot") as read:
                await read.until(lambda r: {"b"} <= {one.collection for one in r.changes})
                client[name]["b"].insert_one({"_id": "later"})
                await read.until(lambda r: r.changes[-1].document_id == "later")
                position = read.position or ""
                assert copies(read) == 0
                assert not read.failures
        (told,) = [one for one in logs if one["event"] == "copy of a collection waits"]
        assert "its copy waits for the primary" in told["why"]
        async with source(at.format(secondary), database=name) as one:
            with pytest.raises(SourceUnavailableError, match="waits for the primary"):
                await read_all(one, KeyRange(database=name, collection="a"), position)
        async with reading(at.format(primary), database=name, position=position) as read:
            await read.until(lambda r: copies(r) == 1)
        assert [(one.collection, one.document_id) for one in read.changes] == [("a", "1")]
