"""P19: what a copy proves to be gone is told as deleted, exactly once, in order with the source."""

# Limits are made small, and decisions asked where they are made.
# pyright: reportPrivateUsage=false

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.capture.pump import pump
from penstock.errors import PenstockError, StateIncompleteError
from penstock.event import AnyEvent, ChangeEvent, Commit, Fragment, Operation, SystemEvent
from penstock.log.memory import MemoryLog
from penstock.state import reconcile
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.state.layout import CollectionFacts, Name
from penstock.state.reconcile import Reconciler
from penstock.subscribe import Criteria
from tests.state.histories import change, copied_whole, system
from tests.waiting import until

STATE = StateConfig(free_bytes_min=0, interval=0)
Item = Commit | Fragment


class FedSource:
    """A source that says what a test feeds it; after a restart, all that is not durable again."""

    name = "shop"

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._fed = asyncio.Event()

    def feed(self, *events: AnyEvent) -> None:
        self.items.append(
            Commit(source=self.name, position=str(len(self.items) + 1), events=events)
        )
        self._fed.set()

    def feed_fragment(self, *events: AnyEvent) -> None:
        self.items.append(Fragment(source=self.name, events=events))
        self._fed.set()

    async def changes(self, *, position: str | None) -> AsyncIterator[Item]:
        at = int(position or 0)
        while True:
            while at < len(self.items):
                yield self.items[at]
                at += 1
            self._fed.clear()
            await self._fed.wait()

    async def acknowledge(self, position: str) -> None:
        pass

    async def close(self) -> None:
        pass


def row(key: int, *, at: int, snapshot: bool = False) -> ChangeEvent:
    return change("shop", "a", key, document={"_id": key, "at": at}, position=at, snapshot=snapshot)


def gone(key: int, *, at: int) -> ChangeEvent:
    return change("shop", "a", key, Operation.DELETE, position=at)


def lost() -> SystemEvent:
    return system("shop", "gap", **{"from": "1", "to": "2", "reason": "lost"})


def said(operation: str, **facts: Any) -> SystemEvent:
    facts = {"snapshot": "second", "collections": ["db.a"], "whole": True} | facts
    return system("shop", operation, **facts)


async def events_of(log: MemoryLog) -> list[AnyEvent]:
    head = (await log.bounds()).head
    blocks = await log.read(after=0, until=head, bytes_max=1 << 30)
    return [entry.event for block in blocks for entry in block.entries()]


def folded(events: list[AnyEvent]) -> dict[int, Any]:
    rows: dict[int, Any] = {}
    for event in events:
        if isinstance(event, ChangeEvent):
            key = msgspec.json.decode(event.key)["_id"]
            if event.operation is Operation.DELETE:
                rows.pop(key, None)
            elif event.full_document is not None:
                rows[key] = msgspec.json.decode(event.full_document).get("at")
    return rows


def feed_loss(source: FedSource, *, rows: int) -> None:
    """So many rows, a loss behind them, and the copy that it has begun."""
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(*(row(key, at=3) for key in range(rows)))
    source.feed(lost())
    source.feed(said("snapshot_started"))


class Running:
    """Capture and state of one log, killed and started at will."""

    def __init__(self, source: FedSource, log: MemoryLog, folder: Path) -> None:
        self.source = source
        self.log = log
        self.folder = folder
        self.keeper = StateKeeper(log, folder, STATE)
        self.keeper.start()
        self._start_pump()

    def _start_pump(self) -> None:
        self.reconciler = Reconciler(self.log, self.folder)
        self._pump = asyncio.create_task(pump(self.source, self.log, injector=self.reconciler))

    async def crash(self) -> None:
        await self.stop()
        self.keeper = StateKeeper(self.log, self.folder, STATE)
        self.keeper.start()
        self._start_pump()

    async def stop(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        await self.reconciler.close()
        await asyncio.to_thread(self.keeper.close)

    async def until(self, operation: str, count: int = 1) -> list[AnyEvent]:
        """Feed heartbeats until the log tells of it."""

        async def told() -> list[AnyEvent] | None:
            events = await events_of(self.log)
            if sum(event.operation == operation for event in events) >= count:
                return events
            self.source.feed()
            return None

        return await until(told, task=self._pump)


@pytest.fixture(autouse=True)
def small_and_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_DELETES_MAX", 3)
    monkeypatch.setattr(reconcile, "_SCAN_MAX", 7)
    monkeypatch.setattr(reconcile, "_IDLE_SECONDS", 0.005)
    monkeypatch.setattr(reconcile, "_BEHIND_SECONDS", 0.001)


@pytest.mark.slow
async def test_what_a_copy_did_not_find_is_told_as_deleted_and_the_gap_is_closed(
    tmp_path: Path,
) -> None:
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    feed_loss(source, rows=20)
    source.feed(*(row(key, at=9, snapshot=True) for key in range(5)))
    source.feed(row(7, at=10))
    before = len(source.items)
    source.feed(said("snapshot_completed"))
    events = await running.until("gap_closed")

    at = [event.operation for event in events].index("gap")
    at = next(n for n, e in enumerate(events) if n > at and e.operation == "snapshot_completed")
    *deletes, reconciled, closed = events[at + 1 :]
    assert {msgspec.json.decode(event.key)["_id"] for event in deletes} == {5, 6, *range(8, 20)}  # type: ignore[union-attr]
    assert len(deletes) == 14, "each once"
    assert all(
        event.operation == "delete" and event.snapshot  # type: ignore[union-attr]
        for event in deletes
    )
    assert [reconciled.operation, closed.operation] == ["snapshot_reconciled", "gap_closed"]
    assert msgspec.json.decode(reconciled.description) == {  # type: ignore[union-attr]
        "source": "shop",
        "snapshot": "second",
        "collections": ["db.a"],
    }
    assert msgspec.json.decode(closed.description)["gaps"] == [  # type: ignore[union-attr]
        {"from": "1", "to": "2", "reason": "lost"}
    ]
    position = await log.position("shop")
    assert position is not None
    assert before < int(position) <= len(source.items), "the position never moves back"
    await until(lambda: running.keeper.applied.sequence == log.bounds_now().head)
    reading = running.keeper.open(Criteria())
    assert len(reading.read(bytes_max=1 << 20)) == 6
    reading.close()
    await running.stop()


async def test_what_a_copy_proved_is_told_though_the_source_says_nothing_any_more(
    tmp_path: Path,
) -> None:
    """A source whose heartbeats are minutes apart: nobody waits for the next one."""
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    feed_loss(source, rows=9)
    source.feed(row(7, at=9, snapshot=True))
    source.feed(said("snapshot_completed"))

    async def closed() -> bool:
        return "gap_closed" in [event.operation for event in await events_of(log)]

    await until(closed)
    assert folded(await events_of(log)).keys() == {7}
    await until(lambda: running.reconciler.asks_again("shop") is None)
    await running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_under_writers_and_crashes_the_fold_of_the_log_is_what_the_source_holds(
    tmp_path: Path, seed: int
) -> None:
    """A key that comes again meanwhile is never deleted, and no delete is told twice."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    keys, clock = range(60), iter(range(10, 1_000_000))
    source.feed(*(row(key, at=3) for key in keys))
    source.feed(lost())
    truth = {key: next(clock) for key in rng.sample(keys, 30)}

    def write() -> None:
        key, at = rng.choice(keys), next(clock)
        if rng.random() < 0.5:
            truth[key] = at
            event = row(key, at=at)
        else:
            truth.pop(key, None)
            event = gone(key, at=at)
        source.feed(event)

    source.feed(said("snapshot_started"))
    for first in range(0, 60, 10):
        chunk = [
            row(key, at=truth[key], snapshot=True)
            for key in range(first, first + 10)
            if key in truth
        ]
        source.feed(*chunk)
        for _ in range(3):
            write()
        await asyncio.sleep(0)
    source.feed(said("snapshot_completed"))
    crashes = 0
    while True:
        events = await events_of(log)
        if any(event.operation == "gap_closed" for event in events):
            break
        if rng.random() < 0.3:
            write()
        if rng.random() < 0.05 and crashes < 5:
            crashes += 1
            await running.crash()
        source.feed()
        await asyncio.sleep(0.002)
    for _ in range(5):
        write()
    await until(lambda: log.sources_now()[0].position == str(len(source.items)))
    events = await events_of(log)
    assert folded(events) == truth
    told = [event.event_id for event in events if isinstance(event, ChangeEvent) and event.snapshot]
    assert len(told) == len(set(told))
    assert any(
        event.operation == "delete" and isinstance(event, ChangeEvent) and event.snapshot
        for event in events
    )
    await running.stop()


async def test_nothing_is_added_inside_a_transaction_that_comes_in_parts(tmp_path: Path) -> None:
    """S14: a commit of ours would end it, in part."""
    source, log = FedSource(), MemoryLog()
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(*(row(key, at=3) for key in range(4)))
    source.feed(lost())
    source.feed(said("snapshot_started"))
    source.feed(said("snapshot_completed"))
    source.feed_fragment(row(1, at=5))
    running = Running(source, log, tmp_path)
    await until(lambda: running.keeper.applied.sequence == 9)
    for _ in range(3):
        source.feed_fragment(row(1, at=5))
        await asyncio.sleep(0.01)
    assert (await log.bounds()).head == 9
    source.feed(row(1, at=6))
    events = await running.until("gap_closed")
    assert folded(events) == {1: 6}
    await running.stop()


@pytest.mark.slow
async def test_a_gap_stays_open_until_all_of_the_source_was_copied_again(tmp_path: Path) -> None:
    """A copy of one collection makes that one whole, and says nothing of the others."""
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(row(1, at=3), change("shop", "b", 1, document={"_id": 1}, position=3))
    source.feed(lost())
    source.feed(said("snapshot_started", whole=False))
    source.feed(said("snapshot_completed", whole=False))
    await running.until("snapshot_reconciled")
    await until(lambda: any(known.complete for known in running.keeper.facts.collections.values()))
    running.keeper.open(Criteria(collections=frozenset({"shop/a"}))).close()
    with pytest.raises(StateIncompleteError, match=r"shop/db\.b"):
        running.keeper.open(Criteria(collections=frozenset({"shop/b"})))
    assert not any(event.operation == "gap_closed" for event in await events_of(log))
    source.feed(said("snapshot_started", snapshot="third"))
    source.feed(said("snapshot_completed", snapshot="third", collections=["db.a", "db.b"]))
    events = await running.until("gap_closed")
    assert folded(events) == {}
    await running.stop()


@pytest.mark.slow
async def test_the_gap_of_one_collection_is_closed_by_a_copy_of_that_one(tmp_path: Path) -> None:
    """And the others are as complete as they were."""
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(row(1, at=3), change("shop", "b", 1, document={"_id": 1}, position=3))
    source.feed(msgspec.structs.replace(lost(), collection="a"))
    b_alone = Criteria(collections=frozenset({"shop/b"}))
    await until(lambda: bool(running.keeper.facts.source("shop").gaps))
    running.keeper.open(b_alone).close()
    with pytest.raises(StateIncompleteError, match=r"shop/db\.a"):
        running.keeper.open(Criteria(collections=frozenset({"shop/a"})))
    source.feed(said("snapshot_started", whole=False))
    source.feed(row(2, at=9, snapshot=True))
    source.feed(said("snapshot_completed", whole=False))
    events = await running.until("gap_closed")
    assert folded([event for event in events if event.collection == "a"]) == {2: 9}
    (closed,) = [event for event in events if event.operation == "gap_closed"]
    assert msgspec.json.decode(closed.description)["gaps"] == [  # type: ignore[union-attr]
        {"from": "1", "to": "2", "reason": "lost", "collection": "db.a"}
    ]
    await running.stop()


async def test_the_gap_of_a_collection_that_was_left_out_is_of_that_collection_alone(
    tmp_path: Path,
) -> None:
    """Even one that was gone already, so that the change of scope could not name it."""
    log = MemoryLog()
    other = change("shop", "b", 1, document={"_id": 1}, position=3)
    events = (row(1, at=2), other)
    await log.append([*copied_whole("shop"), Commit(source="shop", position="3", events=events)])
    left = msgspec.structs.replace(system("shop", "gap", reason="scope"), collection="a")
    await log.append([Commit(source="shop", position="4", events=(left,))])
    keeper = StateKeeper(log, tmp_path, STATE)
    while keeper.step():
        pass
    keeper.open(Criteria(collections=frozenset({"b"}))).close()
    with pytest.raises(StateIncompleteError, match=r"shop/db\.a"):
        keeper.open(Criteria(collections=frozenset({"a"})))
    keeper.close()


@pytest.mark.slow
async def test_what_was_deleted_while_a_collection_was_left_out_is_told_once_it_is_copied(
    tmp_path: Path,
) -> None:
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(row(1, at=2), row(2, at=2))
    left = msgspec.structs.replace(system("shop", "gap", reason="scope"), collection="a")
    source.feed(system("shop", "scope_changed", removed=["db.a"], added=[]), left)
    source.feed(system("shop", "scope_changed", removed=[], added=["db.a"]))
    source.feed(said("snapshot_started", whole=False))
    source.feed(row(2, at=9, snapshot=True))
    source.feed(said("snapshot_completed", whole=False))
    events = await running.until("snapshot_reconciled")
    assert folded(events) == {2: 9}
    await running.stop()


@pytest.mark.parametrize("hindrance", ["behind", "said", "failed", "cancelled"])
async def test_rows_that_could_not_be_judged_yet_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    """P19: else the copy would be called reconciled while rows that are gone are still served."""
    monkeypatch.setattr(reconcile, "_DELETES_MAX", 500)
    log, tail_bytes_max = MemoryLog(), reconcile._TAIL_BYTES_MAX
    events: tuple[AnyEvent, ...] = (
        *(row(key, at=3) for key in range(5)),
        lost(),
        said("snapshot_started"),
        row(0, at=9, snapshot=True),
        said("snapshot_completed"),
    )
    await log.append([*copied_whole("shop"), Commit(source="shop", position="3", events=events)])
    keeper, told = StateKeeper(log, tmp_path, STATE), list[AnyEvent]()
    while keeper.step():
        pass
    reconciler = Reconciler(log, tmp_path, clock=iter(range(1_000)).__next__)
    newer = Reconciler._newer

    async def hinders(*args: Any) -> None:
        if hindrance == "cancelled":
            raise asyncio.CancelledError
        raise PenstockError("a page of the log cannot be read")

    if hindrance == "said":
        resumed = Commit(source="shop", position="4", events=(system("shop", "resumed"),))
        await log.append([resumed])
    elif hindrance == "behind":
        monkeypatch.setattr(reconcile, "_TAIL_BYTES_MAX", 0)
        for at in (10, 11):
            await log.append([Commit(source="shop", position="4", events=(row(0, at=at),))])
    else:
        monkeypatch.setattr(Reconciler, "_newer", hinders)
    try:
        assert await reconciler.next("shop", "4") is None
    except asyncio.CancelledError:
        assert hindrance == "cancelled"
    monkeypatch.setattr(reconcile, "_TAIL_BYTES_MAX", tail_bytes_max)
    monkeypatch.setattr(Reconciler, "_newer", newer)
    for _ in range(6):
        while keeper.step():
            pass
        commits = await reconciler.next("shop", "4") or []
        told += [event for commit in commits for event in commit.events]
        await log.append(commits)
    await reconciler.close()
    keeper.close()
    assert [event.operation for event in told] == [
        *["delete"] * 4,
        "snapshot_reconciled",
        "gap_closed",
    ]


def test_letters_that_an_older_version_took_for_copied_are_not_due() -> None:
    """Nothing else of that copy is, and capture must not stumble over it."""
    letters = CollectionFacts(number=1, since=1, snapshot="second", copied=True, copied_since=2)
    copied = msgspec.structs.replace(letters, number=2)
    due = {Name("shop", "db", "penstock_dead_letters"): letters}
    assert reconcile._due(due) is None
    found = reconcile._due({**due, Name("shop", "db", "a"): copied})
    assert found is not None
    assert set(found.collections) == {Name("shop", "db", "a")}


def letter_without_a_key(*, at: int) -> ChangeEvent:
    """What a document that is copied or changed comes as when not even its key can be decoded."""
    document = {"_id": "l", "database": "db", "collection": "a", "tenant": "db", "key": None}
    return change("shop", "penstock_dead_letters", "l", document=document, position=at)


@pytest.mark.slow
async def test_a_copy_with_an_undecodable_key_closes_the_gap_but_does_not_make_its_rows_whole(
    tmp_path: Path,
) -> None:
    """P6, P19: what was lost is made good; the letter's document is missing till it is replayed."""
    source, log = FedSource(), MemoryLog()
    running = Running(source, log, tmp_path)
    for commit in copied_whole("shop"):
        source.feed(*commit.events)
    source.feed(row(1, at=3), row(2, at=3))
    source.feed(lost())
    source.feed(said("snapshot_started"))
    source.feed(row(2, at=9, snapshot=True), letter_without_a_key(at=9))
    source.feed(said("snapshot_completed"))
    assert folded(await running.until("gap_closed"))[2] == 9

    async def opened() -> list[str]:
        await until(lambda: running.keeper.applied.sequence == log.bounds_now().head)
        reading = running.keeper.open(Criteria(collections=frozenset({"shop/a"})))
        rows = reading.read(bytes_max=1 << 20)
        reading.close()
        return sorted(one.document_id for one in rows)

    for _ in range(2):
        with pytest.raises(StateIncompleteError, match="dead letter does not say which row"):
            await opened()
        await running.crash()
    replayed = structs.replace(
        system("shop", "dead_letter_replayed", deadLetter="l"), collection="a"
    )
    source.feed(row(7, at=20), replayed)
    await running.until("dead_letter_replayed")
    assert await opened() == ["2", "7"]
    await running.stop()
