"""What is published, when, and by whom: a published copy lags the log and never leads it."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.capture.breaker import Breaker, Circuit
from penstock.capture.lineage import above
from penstock.capture.publish import Publisher, PublishLimits
from penstock.errors import (
    CheckpointUnavailableError,
    ForeignCheckpointError,
    OutdatedLogError,
    SupersededError,
)
from penstock.event import Commit
from penstock.log import MemoryLog
from penstock.ports import Bounds, Checkpoint, SourceState
from penstock.telemetry import REGISTRY
from penstock.testing.contracts import CheckpointStoreContract
from penstock.testing.contracts.entries import changes, read_all
from tests.checkpoints.doubles import MemoryStore, ScaledClock
from tests.waiting import patience, turns, until


class TestMemoryStore(CheckpointStoreContract):
    """The double keeps the contract that the real ones keep."""

    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self._shared = MemoryStore()

    def open_store(self) -> MemoryStore:
        return self._shared


def publisher(
    log: Any,
    store: MemoryStore,
    *,
    writer: str = "w",
    clock: ScaledClock | None = None,
    **limits: Any,
) -> Publisher:
    clock = clock or ScaledClock()
    return Publisher(
        log,
        store,
        instance="shop",
        writer=writer,
        clock=clock,
        breaker=Breaker(steady_seconds=clock.steady_seconds),
        limits=PublishLimits(**limits),
    )


async def append(log: MemoryLog, source: str, position: str, events: int) -> None:
    await log.append(
        [Commit(source=source, position=position, events=changes(source, position, events))]
    )


@asynccontextmanager
async def running(publisher: Publisher) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.ensure_future(publisher.run())
    try:
        async with patience():
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(name: str) -> float:
    """What a counter says of source a."""
    return REGISTRY.get_sample_value(name, {"source": "a"}) or 0.0


async def test_a_copy_says_where_the_log_and_every_source_stand() -> None:
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "7", 3)
    await log.append([Commit(source="quiet", position="0")])
    copy = await publisher(log, store).publish()
    bounds = await log.bounds()
    assert (copy.log_id, copy.sequence, copy.commit) == (bounds.log_id, 3, 1)
    assert copy.check == bounds.head_check
    assert {one.source: one.position for one in copy.sources} == {"a": "7", "quiet": "0"}


async def test_the_position_of_a_source_that_never_said_anything_is_published_too() -> None:
    """P21: opening a stream is a position; a restart after an idle time loses nothing."""
    log, store = MemoryLog(), MemoryStore()
    await log.append([Commit(source="a", position="opened")])
    async with running(publisher(log, store, interval_seconds=0.001)):
        await store.wrote.wait()
        store.wrote.clear()
        await log.append([Commit(source="a", position="a heartbeat later")])
        await store.wrote.wait()
    assert store.history[-1].sources[0].position == "a heartbeat later"
    assert store.history[-1].sequence == 0


class SlowReads:
    """A log whose two answers are far apart: everything may happen in between."""

    def __init__(self, log: MemoryLog, random_: random.Random) -> None:
        self._log = log
        self._random = random_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def sources(self) -> list[SourceState]:
        await self._others_run()
        return await self._log.sources()

    async def bounds(self) -> Bounds:
        await self._others_run()
        return await self._log.bounds()

    async def _others_run(self) -> None:
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)


@given(st.randoms(use_true_random=False))
async def test_no_copy_is_ever_ahead_of_the_log(random_: random.Random) -> None:
    """P33: whatever happens while it is made, its positions need no entry after its sequence, and
    its sequence and check are those of an entry that was there."""
    log, store = MemoryLog(), MemoryStore()
    ends: dict[tuple[str, str], int] = {}

    async def write(source: str) -> None:
        for number in range(6):
            for _ in range(random_.randrange(3)):
                await asyncio.sleep(0)
            await append(log, source, str(number), random_.randrange(3))
            ends[source, str(number)] = (await log.bounds()).head

    publishing = publisher(SlowReads(log, random_), store)

    async def publish() -> None:
        for _ in range(8):
            await publishing.publish()

    await asyncio.gather(write("a"), write("b"), publish())
    final = await read_all(log)
    for copy in store.history:
        assert copy.sequence <= len(final)
        assert copy.check == await log.check_at(copy.sequence)
        for state in copy.sources:
            own = [
                entry.sequence
                for entry in final
                if entry.event.source == state.source
                and int(entry.event.position) <= int(state.position)
            ]
            assert max(own, default=0) <= copy.sequence, "the position needs a later entry"
    sequences = [copy.sequence for copy in store.history]
    assert sequences == sorted(sequences), "a copy went back"


async def test_many_events_are_published_before_the_interval_is_over() -> None:
    log, store = MemoryLog(), MemoryStore()
    async with running(publisher(log, store, interval_seconds=3600, event_count=10)):
        await store.wrote.wait()
        store.wrote.clear()
        await append(log, "a", "1", 9)
        await turns(50)
        assert not store.wrote.is_set(), "nine are not ten"
        await append(log, "a", "2", 1)
        await store.wrote.wait()
    assert store.history[-1].sequence == 10


async def test_an_unchanged_log_is_published_again_only_to_show_that_we_are_there() -> None:
    log, store, clock = MemoryLog(), MemoryStore(), ScaledClock()
    await append(log, "a", "1", 1)
    began = clock.now_ms()

    async def waited(*, after: int, timeout_seconds: float | None = None) -> bool:
        clock.passed += timeout_seconds or 0
        await asyncio.sleep(0)
        return False

    log.wait = waited  # type: ignore[method-assign]
    async with running(publisher(log, store, clock=clock)):
        await until(lambda: len(store.history) >= 4)
    seconds = (clock.now_ms() - began) / 1000
    assert seconds >= 30, "three times the time in which a copy is renewed"
    assert len({copy.sequence for copy in store.history}) == 1


async def test_a_store_that_is_down_stops_nothing_and_is_left_alone_for_a_while() -> None:
    """Five failures open the circuit for half a minute; then one try closes it."""
    log, store, clock = MemoryLog(), MemoryStore(), ScaledClock()
    await append(log, "a", "1", 2)
    saved = counted("penstock_checkpoints_saved_total")
    errors = counted("penstock_checkpoint_errors_total")
    store.down = True
    publishing = publisher(log, store, clock=clock, interval_seconds=0.001)
    async with running(publishing):
        await until(lambda: publishing.status().circuit is Circuit.OPEN)
        assert (publishing.status().failures, store.calls) == (5, 5)
        assert publishing.status().code == "checkpoint.unavailable"
        assert counted("penstock_checkpoint_errors_total") == errors + 5
        assert REGISTRY.get_sample_value("penstock_checkpoint_failures") == 5
        await append(log, "a", "2", 2)
        store.down = False
        await store.wrote.wait()
        await until(lambda: publishing.status().failures == 0)
    assert max(clock.waits) == pytest.approx(30, abs=1)
    assert publishing.status().circuit is Circuit.CLOSED
    assert publishing.status().code == ""
    assert store.history[-1].sequence == 4
    assert counted("penstock_checkpoints_saved_total") >= saved + 1
    assert REGISTRY.get_sample_value("penstock_checkpoint_failures") == 0


async def test_a_trial_that_was_cut_off_by_the_end_does_not_prevent_the_last_copy() -> None:
    """Cancelled while the store is asked, it told nothing; `finish` may try."""

    class SlowStore(MemoryStore):
        slow = False

        async def _answer(self) -> None:
            await super()._answer()
            if self.slow:
                await asyncio.Event().wait()

    log, store, clock = MemoryLog(), SlowStore(), ScaledClock()
    await append(log, "a", "1", 2)
    store.down = True
    publishing = publisher(log, store, clock=clock, interval_seconds=0.001)
    async with running(publishing):
        await until(lambda: publishing.status().circuit is Circuit.OPEN)
        store.down, store.slow = False, True
        await until(lambda: publishing.status().circuit is Circuit.HALF_OPEN)
    store.slow = False
    await publishing.finish()
    assert publishing.status().circuit is Circuit.CLOSED
    assert store.history[-1].sequence == 2


async def test_a_write_that_was_kept_but_not_answered_is_known_for_our_own() -> None:
    """Not taken for another machine's: nobody is superseded by himself."""
    log, store = MemoryLog(), MemoryStore()
    publishing = publisher(log, store)
    await append(log, "a", "1", 1)
    store.answers_lost = 1
    with pytest.raises(CheckpointUnavailableError):
        await publishing.publish()
    await publishing.publish()
    await append(log, "a", "2", 1)
    store.answers_lost = 1
    with pytest.raises(CheckpointUnavailableError):
        await publishing.publish()
    await append(log, "a", "3", 1)
    assert (await publishing.publish()).sequence == 3


async def test_the_last_copy_is_published_when_capture_has_ended() -> None:
    log, store = MemoryLog(), MemoryStore()
    publishing = publisher(log, store)
    await publishing.publish()
    await append(log, "a", "1", 5)
    await publishing.finish()
    assert store.history[-1].sequence == 5
    calls = store.calls
    await publishing.finish()
    assert store.calls == calls, "nothing has changed since"


async def test_a_store_that_is_down_at_the_end_does_not_keep_the_service_from_stopping() -> None:
    log, store = MemoryLog(), MemoryStore()
    publishing = publisher(log, store)
    store.down = True
    await publishing.finish()
    assert publishing.status().failures == 1


async def test_a_copy_that_an_operator_cleared_is_published_anew() -> None:
    log, store = MemoryLog(), MemoryStore()
    publishing = publisher(log, store)
    await publishing.publish()
    await store.clear("shop")
    await append(log, "a", "1", 1)
    assert (await publishing.publish()).sequence == 1


# --- two machines under one name ----------------------------------------------------------------


async def lost(store: MemoryStore, writer: str = "new") -> tuple[MemoryLog, Publisher]:
    """A new machine's log, above what the lost one published."""
    kept = await store.read("shop")
    assert kept is not None
    claimed = structs.replace(kept.checkpoint, writer=writer)
    await store.write(claimed, replacing=kept.revision)
    log = MemoryLog(above=above(claimed, configured=["a"]))
    return log, publisher(log, store, writer=writer)


async def test_the_machine_that_was_replaced_ends_at_its_next_copy() -> None:
    """P33: the older one stops with an error that says by whom; it never publishes again."""
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    old = publisher(log, store, writer="old", interval_seconds=0.001)
    async with running(old) as task:
        await store.wrote.wait()
        new_log, new = await lost(store)
        await append(log, "a", "2", 5)
        with pytest.raises(SupersededError):
            await task
        copy = await new.publish()
    assert copy.log_id == (await new_log.bounds()).log_id
    assert [one.log_id for one in store.history if one.writer == "old"] == [
        (await log.bounds()).log_id
    ] * sum(one.writer == "old" for one in store.history)
    assert store.history[-1].writer == "new"


async def test_an_idle_machine_notices_too_that_it_was_replaced() -> None:
    log, store, clock = MemoryLog(), MemoryStore(), ScaledClock()
    await append(log, "a", "1", 5)

    async def waited(*, after: int, timeout_seconds: float | None = None) -> bool:
        clock.passed += timeout_seconds or 0
        await asyncio.sleep(0)
        return False

    log.wait = waited  # type: ignore[method-assign]
    async with running(publisher(log, store, writer="old", clock=clock)) as task:
        await store.wrote.wait()
        await lost(store)
        with pytest.raises(SupersededError):
            await task


async def test_a_machine_that_was_replaced_while_it_was_down_does_not_start_again() -> None:
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    await publisher(log, store, writer="old").publish()
    _, new = await lost(store)
    await new.publish()
    with pytest.raises(SupersededError, match="taken over by log"):
        await publisher(log, store, writer="old again").publish()
    assert store.history[-1].writer == "new"


async def test_a_copy_of_the_disk_that_runs_beside_the_original_is_noticed() -> None:
    """Both write under one log id; only the writer's name tells them apart."""
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    first = publisher(log, store, writer="one")
    await first.publish()
    await publisher(log, store, writer="other").publish()
    with pytest.raises(SupersededError, match="a copy of it"):
        await first.publish()


async def test_a_stranger_may_not_take_a_name_that_is_in_use() -> None:
    store = MemoryStore()
    await publisher(MemoryLog(), store).publish()
    before = store.history[-1]
    with pytest.raises(ForeignCheckpointError, match="instance name of its own"):
        await publisher(MemoryLog(), store, writer="stranger").publish()
    assert store.history[-1] == before


async def test_a_log_that_is_an_older_copy_of_the_published_one_may_not_go_on_as_it_is() -> None:
    """The store was down when it was opened: it is told at the first answer."""
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    copy = await publisher(log, store).publish()
    ahead: Checkpoint = structs.replace(copy, sequence=9, commit=4)
    await store.write(ahead, replacing=store.kept["shop"][1])
    with pytest.raises(OutdatedLogError):
        await publisher(log, store, writer="later").publish()
    other = structs.replace(copy, check=copy.check ^ 1)
    await store.write(other, replacing=store.kept["shop"][1])
    with pytest.raises(OutdatedLogError):
        await publisher(log, store, writer="later").publish()


async def test_the_same_log_goes_on_publishing_after_a_restart() -> None:
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    await publisher(log, store, writer="first").publish()
    await append(log, "a", "2", 5)
    assert (await publisher(log, store, writer="second").publish()).sequence == 10


async def test_a_source_that_was_cleared_is_still_told_of_by_a_log_that_begins_above() -> None:
    """Invariant 4: its readers have markers in the log that is gone, as all others have."""
    log, store = MemoryLog(), MemoryStore()
    await append(log, "a", "1", 5)
    await append(log, "former", "1", 5)
    publishing = publisher(log, store)
    await publishing.publish()
    await log.set_position("former", None)
    copy = await publishing.publish()
    assert copy.past_sources == ("former",)
    assert (await publishing.publish()).past_sources == ("former",)
    new, _ = await lost(store)
    entries = await read_all(new, after=10)
    assert [entry.event.source for entry in entries] == ["a", "former"]
