"""Wherever a session ends, the next one goes on exactly there."""

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from penstock.errors import SourceChangedError, SourceUnavailableError
from penstock.event import Commit, Fragment
from penstock.sources.mongodb import assemble
from penstock.sources.mongodb.positions import parse_position
from tests.children import standing_still
from tests.mongodb.support import Reading, loaded, reading, source
from tests.waiting import patience
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
pytestmark = pytest.mark.server
StartMongo = Callable[..., MongoReplicaSet]


def write_some(client: Client, database: str, rng: random.Random, *, writes: int) -> None:
    """Single writes and transactions, some of them on the same documents."""
    orders = client[database]["orders"]

    def write(session: ClientSession | None) -> None:
        key = rng.randrange(5)
        match rng.randrange(3):
            case 0:
                orders.update_one({"_id": key}, {"$inc": {"n": 1}}, upsert=True, session=session)
            case 1:
                orders.replace_one({"_id": key}, {"n": 0}, upsert=True, session=session)
            case _:
                orders.delete_one({"_id": key}, session=session)

    def several(session: ClientSession) -> None:
        for _ in range(rng.randint(1, 5)):
            write(session)

    orders.insert_one({"_id": "first"})
    for _ in range(writes):
        if rng.random() < 0.4:
            with client.start_session() as session:
                session.with_transaction(several)
        else:
            write(None)
    orders.insert_one({"_id": "last"})


def at_the_end(read: Reading) -> bool:
    return bool(read.changes) and read.changes[-1].document_id == "last"


@pytest.mark.parametrize("seed", range(3))
async def test_a_restart_at_every_commit_repeats_and_loses_nothing(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, seed: int
) -> None:
    """P3, invariant 2; replies of two events cut transactions."""
    print(f"seed {seed}")
    options: dict[str, Any] = {"database": mongo_database, "batch_events_max": 2}
    async with reading(mongo.uri, **options) as whole:
        start = whole.position
        write_some(mongo_client, mongo_database, random.Random(seed), writes=25)
        await whole.until(at_the_end)
    assert len({event.event_id for event in whole.events}) == len(whole.events)

    async with source(mongo.uri, **options) as opened:
        read = Reading(opened, position=start)
        while not at_the_end(read):
            await read.next()
            await read.stop()
    assert read.commits == whole.commits


async def test_a_crash_within_a_transaction_sends_it_again_whole(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S5, S14: fragments carry no position, so what was staged is sent again from its start."""
    monkeypatch.setattr(assemble, "FRAGMENT_BYTES", 2000)
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": -1})
    async with source(mongo.uri, database=mongo_database, batch_events_max=4) as opened:
        read = Reading(opened)
        await read.next()
        start = read.position
        with mongo_client.start_session() as session, session.start_transaction():
            for n in range(40):
                orders.insert_one({"_id": n, "pad": "x" * 300}, session=session)

        items = opened.changes(position=start)
        fragments = 0
        async for item in items:
            assert isinstance(item, Fragment) or not item.events, "no end before the end"
            fragments += isinstance(item, Fragment)
            if fragments == 2:
                break
        await items.aclose()  # type: ignore[attr-defined]

        await read.until(lambda r: bool(r.commits))
        (commit,) = read.commits
        assert [loaded(c.full_document)["_id"] for c in read.changes] == list(range(40))
        assert isinstance(commit, Commit)


async def test_no_answer_for_the_deadline_is_unavailable_and_the_next_wait_is_longer(
    start_mongo: StartMongo,
) -> None:
    """S15: a stopped server is noticed; once it runs again nothing is missing."""
    mongo = start_mongo()
    options: dict[str, Any] = {
        "database": "shop",
        "heartbeat_seconds": 0.2,
        "heartbeat_deadline_seconds": 0.4,
    }
    with Client(mongo.uri) as client:
        async with source(mongo.uri, **options) as opened:
            read = Reading(opened)
            await read.next()
            client["shop"]["orders"].insert_one({"_id": 1})
            await read.until(lambda r: len(r.changes) == 1)
            with standing_still(mongo.members[0]._process.pid):  # pyright: ignore[reportPrivateUsage]
                items = opened.changes(position=read.position)
                with pytest.raises(SourceUnavailableError, match="Nothing was skipped"):
                    await anext(items)
            client["shop"]["orders"].insert_one({"_id": 2})
            await read.until(lambda r: len(r.changes) == 2)
        assert [change.document_id for change in read.changes] == ["1", "2"]
        assert any(isinstance(error, SourceUnavailableError) for error in read.failures)
    gc.collect()


@pytest.mark.slow
async def test_a_search_that_outlasts_the_deadline_is_waited_for_longer_each_time(
    mongo_with_fail_points: MongoReplicaSet,
) -> None:
    """S15: the stream opens at once, and that says nothing of how long a search takes."""
    mongo = mongo_with_fail_points
    options: dict[str, Any] = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 0.3}
    slow = {
        "failCommands": ["getMore"],
        "appName": "penstock",
        "blockConnection": True,
        "blockTimeMS": 800,
    }
    with Client(mongo.uri) as client:
        async with source(mongo.uri, database="patience", **options) as opened:
            read = Reading(opened)
            await read.next()
            await read.stop()
            client["patience"]["orders"].insert_one({"_id": 1})
            client.admin.command(
                {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": slow}
            )
            try:
                async with patience():
                    await read.until(lambda r: len(r.changes) == 1)
            finally:
                client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
    # Where a machine stalls, a connection may not be made in 0.3 seconds: that is another failure.
    said = [str(failure) for failure in read.failures if "sent nothing" in str(failure)]
    assert "nothing for 0.3 seconds" in said[0]
    assert "nothing for 0.6 seconds" in said[1]


@pytest.mark.parametrize(
    "error",
    [
        {"errorCode": 91, "errorLabels": ["ResumableChangeStreamError"]},
        {"errorCode": 43},
        {"errorCode": 11602},
        {"closeConnection": True},
    ],
)
async def test_what_a_driver_would_resume_from_loses_nothing(
    mongo_with_fail_points: MongoReplicaSet, error: dict[str, Any]
) -> None:
    # No server state changes, so only the driver's next look tells it that the server is well.
    uri = f"{mongo_with_fail_points.uri}&heartbeatFrequencyMS=500"
    with Client(uri) as client:
        orders = client["shop"]["orders"]
        orders.delete_many({})
        async with reading(uri, database="shop", heartbeat_seconds=0.1) as read:
            for n in range(30):
                if n % 10 == 5:
                    client.admin.command(
                        {
                            "configureFailPoint": "failCommand",
                            "mode": {"times": 1},
                            "data": {"failCommands": ["getMore"], "appName": "penstock", **error},
                        }
                    )
                orders.insert_one({"_id": n})
                await read.until(lambda r, n=n: len(r.changes) == n + 1)  # type: ignore[misc]
        assert [loaded(c.full_document)["_id"] for c in read.changes] == list(range(30))
        assert read.failures


async def test_another_server_under_the_same_name_is_refused(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, start_mongo: StartMongo
) -> None:
    """S6: both sets are called rs0."""
    async with reading(mongo.uri, database=mongo_database) as read:
        position = read.position
    other = start_mongo()
    assert position is not None
    assert parse_position(position).server.id is not None
    async with source(other.uri, database=mongo_database) as opened:
        with pytest.raises(SourceChangedError, match="source name of its own"):
            await anext(opened.changes(position=position))


async def test_killing_the_primary_under_load_loses_and_repeats_nothing(
    start_mongo: StartMongo,
) -> None:
    """S10, invariant 2: on the new primary too, and no transaction is seen in part."""
    mongo = start_mongo(members=3)
    with Client(mongo.uri, w="majority", retryWrites=True) as client:
        orders = client["shop"]["orders"]
        orders.insert_one({"_id": "first"})
        async with reading(mongo.uri, database="shop", heartbeat_seconds=0.3) as read:
            stop = asyncio.Event()

            def write() -> int:
                count = 0
                while not stop.is_set() or count < 200:
                    with client.start_session() as session:
                        session.with_transaction(
                            lambda s, at=count: [  # type: ignore[misc]
                                orders.insert_one({"_id": at + n}, session=s) for n in range(2)
                            ]
                        )
                    orders.insert_one({"_id": count + 2})
                    count += 3
                return count

            writing = asyncio.create_task(asyncio.to_thread(write))
            await read.until(lambda r: len(r.changes) > 50)
            position = parse_position(read.position or "")
            killed = mongo.primary_index()
            await asyncio.to_thread(mongo.kill, killed)
            seen = len(read.changes)
            await read.until(lambda r: len(r.changes) > seen + 50)
            stop.set()
            written = await writing
            await read.until(lambda r: len(r.changes) >= written)
        assert [loaded(c.full_document)["_id"] for c in read.changes] == list(range(written))
        assert len({event.event_id for event in read.events}) == len(read.events)
        assert {len(commit.events) for commit in read.commits} <= {1, 2}
        assert read.failures, "the primary that was read from is gone"
        assert parse_position(read.position or "").server == position.server
