"""Copies beside the stream, asked for or after a loss: what is gone is told too (P19, P20)."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.capture.pump import pump
from penstock.errors import RequestError
from penstock.event import AnyEvent, ChangeEvent, SystemEvent
from penstock.log.memory import MemoryLog
from penstock.sources.mongodb import MongoSource
from penstock.sources.mongodb.positions import parse_position
from penstock.state import reconcile
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.state.reconcile import Reconciler
from penstock.subscribe import Criteria
from tests.conftest import started
from tests.mongodb.histories import roll_over
from tests.mongodb.support import config, folded, stored_rows
from tests.waiting import until
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
COLLECTIONS = ["customers", "orders"]
CRASHES_MAX = 8
STATE = StateConfig(free_bytes_min=0, interval=0)


class Capturing:
    """A source that is captured into a log with its state, stopped and started at will."""

    def __init__(self, log: MemoryLog, folder: Path, uri: str, **options: Any) -> None:
        self.log = log
        self.source = MongoSource("shop", config(uri, **options))
        self._keeper = StateKeeper(log, folder, STATE)
        self._keeper.start()
        self._reconciler = Reconciler(log, folder)
        self._pump = asyncio.create_task(pump(self.source, log, injector=self._reconciler))

    async def stop(self) -> None:
        """As a crash: what was not appended is gone."""
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        await self.source.close()
        await self._reconciler.close()
        await asyncio.to_thread(self._keeper.close)

    def events(self) -> list[AnyEvent]:
        blocks = self.log.read_now(after=self.log.bounds_now().trimmed, bytes_max=1 << 40)
        return [entry.event for block in blocks for entry in block.entries()]

    def require_capturing(self) -> None:
        """Raise what ended the capture, if it has ended."""
        if self._pump.done():
            self._pump.result()

    async def until(self, true: Callable[[list[AnyEvent]], bool]) -> list[AnyEvent]:
        """The events of the log, once that is true of them."""
        # In a tuple: there may be none.
        (found,) = await until(
            lambda: (events,) if true(events := self.events()) else None, task=self._pump
        )
        return found

    async def until_said(self, operation: str, times: int = 1) -> list[AnyEvent]:
        return await self.until(
            lambda events: sum(event.operation == operation for event in events) >= times
        )

    async def rows(self) -> dict[str, set[str]]:
        """The current rows by collection, as a consumer that rebuilds gets them."""
        await until(lambda: self._keeper.applied.sequence >= self.log.bounds_now().head)
        reading = self._keeper.open(Criteria())
        found: dict[str, set[str]] = {}
        while rows := reading.read(bytes_max=1000):
            for row in rows:
                found.setdefault(row.collection, set()).add(row.document_id)
        reading.close()
        return found


@asynccontextmanager
async def capturing(
    log: MemoryLog, folder: Path, uri: str, **options: Any
) -> AsyncGenerator[Capturing]:
    running = Capturing(log, folder, uri, **options)
    try:
        yield running
    finally:
        await running.stop()


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "_DELETES_MAX", 7)


def told_deletes(events: list[AnyEvent]) -> list[ChangeEvent]:
    return [
        event
        for event in events
        if isinstance(event, ChangeEvent) and event.operation == "delete" and event.snapshot
    ]


@pytest.mark.server
async def test_after_a_loss_a_snapshot_tells_deletes_too_and_closes_the_gap(tmp_path: Path) -> None:
    """P19, P20: nothing stays in a consumer's table that is gone from the database."""
    mongo = MongoReplicaSet(oplog_mb=16, extra_args=("--syncdelay", "1"))
    log = MemoryLog()
    with ExitStack() as stack:
        started(stack, mongo)
        client = stack.enter_context(Client(mongo.uri, w="majority"))
        shop = client["shop"]
        for name in (*COLLECTIONS, "dropped"):
            shop[name].insert_many({"_id": n} for n in range(50))
        options: dict[str, Any] = {"database": "shop", "start": "snapshot"}
        async with capturing(log, tmp_path, mongo.uri, **options) as running:
            await running.until_said("snapshot_completed")
            assert await running.rows() == {
                name: {str(n) for n in range(50)} for name in (*COLLECTIONS, "dropped")
            }
        position = await log.position("shop")
        assert position is not None
        shop["orders"].delete_many({"_id": {"$lt": 30}})
        shop["orders"].insert_one({"_id": "new"})
        shop["dropped"].drop()
        roll_over(client, parse_position(position).token.time)
        options |= {"on_position_lost": "snapshot", "snapshot_chunk_documents": 7}
        async with capturing(log, tmp_path, mongo.uri, **options) as running:
            events = await running.until_said("gap_closed")
            assert len(told_deletes(events)) == 30 + 50
            assert folded(events) == stored_rows(shop, COLLECTIONS)
            assert await running.rows() == {
                "customers": {str(n) for n in range(50)},
                "orders": {"new", *(str(n) for n in range(30, 50))},
            }
        operations = [event.operation for event in events if isinstance(event, SystemEvent)]
        assert operations[2:] == [
            "gap",
            "snapshot_started",
            "snapshot_completed",
            "snapshot_reconciled",
            "gap_closed",
        ]


def write(client: Client, database: str, rng: random.Random, stop: asyncio.Event) -> None:
    while not stop.is_set():
        rows = client[database][rng.choice(COLLECTIONS)]
        key = rng.randrange(150)
        match rng.randrange(4):
            case 0:
                rows.update_one({"_id": key}, {"$inc": {"n": 1}}, upsert=True)
            case 1:
                rows.replace_one({"_id": key}, {"n": 0}, upsert=True)
            case _:
                rows.delete_one({"_id": key})
    client[database]["orders"].insert_one({"_id": "last"})


@pytest.mark.server
@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=pytest.mark.soak if n else pytest.mark.slow) for n in range(10)],
)
async def test_a_copy_that_is_asked_for_under_writers_and_crashes_ends_with_what_is_there(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path, seed: int
) -> None:
    """Rows that went while they were not captured are told as deleted; no other ever is."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    database = mongo_client[mongo_database]
    log = MemoryLog()
    for name in COLLECTIONS:
        database[name].insert_many({"_id": n} for n in range(200))
    # A server that is slow to answer on a busy machine is no crash of those that are meant here.
    everything: dict[str, Any] = {
        "database": mongo_database,
        "start": "snapshot",
        "heartbeat_seconds": 5.0,
    }
    async with capturing(log, tmp_path, mongo.uri, **everything) as running:
        await running.until_said("snapshot_completed")
    narrow = {**everything, "start": "now", "exclude": COLLECTIONS}
    async with capturing(log, tmp_path, mongo.uri, **narrow) as running:
        await running.until_said("scope_changed")
        for name in COLLECTIONS:
            database[name].delete_many({"_id": {"$gte": 100}})
        database["other"].insert_one({"_id": "behind the deletes"})
        await running.until(lambda events: getattr(events[-1], "collection", "") == "other")
    wide = {**everything, "start": "now", "snapshot_chunk_documents": 9}
    running = Capturing(log, tmp_path, mongo.uri, **wide)
    stop = asyncio.Event()
    try:
        await running.until_said("scope_changed", 2)
        writing = asyncio.create_task(
            asyncio.to_thread(write, mongo_client, mongo_database, random.Random(seed), stop)
        )
        names = [] if seed == 0 else COLLECTIONS
        copied = await running.source.copy(names, known=set())
        assert copied == [f"{mongo_database}.{name}" for name in names or (*COLLECTIONS, "other")]
        # Whatever happens from here on: the copy was promised. A bound on the crashes, for where
        # each costs more than what lies between two of them, the copy would never come to its end.
        crashes = 0
        while not any(e.operation == "snapshot_reconciled" for e in running.events()):
            running.require_capturing()
            await log.wait(after=log.bounds_now().head, timeout_seconds=1)
            if crashes < CRASHES_MAX and rng.random() < 0.05:
                crashes += 1
                await running.stop()
                running = Capturing(log, tmp_path, mongo.uri, **wide)
        stop.set()
        await writing
        events = await running.until(
            lambda events: any(getattr(event, "document_id", "") == "last" for event in events)
        )
        assert folded(events) == stored_rows(database, [*COLLECTIONS, "other"])
        deletes = told_deletes(events)
        assert len({event.event_id for event in deletes}) == len(deletes) >= 100
        rows = await running.rows()
        assert rows == {
            name: {str(row["_id"]) for row in database[name].find()}
            for name in (*COLLECTIONS, "other")
        }
    finally:
        stop.set()
        await running.stop()


async def test_a_copy_that_is_asked_for_twice_or_while_another_runs_is_made_once(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    database = mongo_client[mongo_database]
    for name in COLLECTIONS:
        database[name].insert_many({"_id": n} for n in range(20))
    log = MemoryLog()
    options: dict[str, Any] = {"database": mongo_database, "snapshot_chunk_documents": 3}
    async with capturing(log, tmp_path, mongo.uri, **options) as running:
        await running.until(lambda _: bool(log.sources_now()))
        await asyncio.gather(
            running.source.copy(["orders"], known=set()),
            running.source.copy(["orders", "customers"], known=set()),
            running.source.copy(["gone"], known={(mongo_database, "gone")}),
        )
        events = await running.until_said("snapshot_completed")
        copied = [event for event in events if isinstance(event, ChangeEvent)]
        assert len(copied) == 40
        assert all(event.snapshot for event in copied)
        with pytest.raises(RequestError, match="no collection 'ordres'"):
            await running.source.copy(["ordres"], known=set())


async def test_a_rename_out_of_what_is_captured_says_so(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path
) -> None:
    """Nobody follows the collection under its new name: no current rows of it are kept."""
    database = mongo_client[mongo_database]
    log = MemoryLog()
    options: dict[str, Any] = {
        "database": mongo_database,
        "include": ["orders"],
        "start": "snapshot",
    }
    database["orders"].insert_one({"_id": 1})
    async with capturing(log, tmp_path, mongo.uri, **options) as running:
        await running.until_said("snapshot_completed")
        database["orders"].rename("archive")
        await running.until_said("rename")
        assert await running.rows() == {}
        database["orders"].insert_one({"_id": 2})
        await running.until_said("insert", 2)
        assert await running.rows() == {"orders": {"2"}}
