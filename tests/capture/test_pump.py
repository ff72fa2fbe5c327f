"""What the pump promises: durable before acknowledged, in order, bounded, whole."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture import PumpLimits, ending, pump
from penstock.capture.pump import last_position, weight
from penstock.errors import LogFullError, SourceUnavailableError, UndecodableError
from penstock.event import Commit, Fragment
from penstock.log import MemoryLog
from tests.capture.doubles import (
    SOURCE,
    ListSource,
    TellingLog,
    changes,
    commit,
    entries,
    fragment,
)
from tests.waiting import turns


class PowerCutError(Exception):
    """The machine is gone in the middle of an append."""


class TellingGate:
    """Lets everything through, and tells the log's story that it did."""

    waiting = False

    def __init__(self, log: TellingLog) -> None:
        self._log = log

    async def admit(self, size: int) -> None:
        self._log.told.append(f"admitted {size}")


class OneInjector:
    """Adds what it is given, once."""

    def __init__(self, commits: list[Commit]) -> None:
        self._commits: list[Commit] | None = commits

    async def next(self, source: str, position: str) -> list[Commit] | None:
        commits, self._commits = self._commits, None
        return commits

    def asks_again(self, source: str) -> float | None:
        return None


class AcknowledgingSource(ListSource):
    """Tells a log's story when it is acknowledged."""

    log: TellingLog

    async def acknowledge(self, position: str) -> None:
        self.log.told.append(f"acknowledge {position}")
        await super().acknowledge(position)


async def test_a_position_is_acknowledged_only_after_the_log_has_said_that_it_is_durable() -> None:
    """Invariant 1, by the order of the calls."""
    source, log = AcknowledgingSource([commit(1), commit(2)]), TellingLog()
    source.log = log
    await pump(source, log, limits=PumpLimits(batch_events_max=1))
    assert log.told == [
        *("abandon", "position"),
        *("append", "durable", "acknowledge 1"),
        *("append", "durable", "acknowledge 2"),
    ]


async def test_what_is_added_behind_a_source_waits_at_its_gate_too() -> None:
    """Deletes that a copy proved take their share of the log as every change does."""
    source, log = ListSource([commit(1)]), TellingLog()
    added = [commit(1, rows=3), commit(1, rows=2)]
    await pump(source, log, injector=OneInjector(added), gate=TellingGate(log))
    assert log.told == [
        *("abandon", "position"),
        *(f"admitted {weight(commit(1))}", "append", "durable"),
        *(f"admitted {sum(map(weight, added))}", "append", "durable"),
    ]


async def test_nothing_is_acknowledged_when_the_log_dies_in_an_append() -> None:
    """Invariant 1."""

    def cut(number: int) -> None:
        raise PowerCutError

    source = ListSource([commit(1)])
    with pytest.raises(PowerCutError):
        await pump(source, TellingLog(on_append=cut))
    assert source.acknowledged == []


async def test_inside_a_transaction_there_is_nothing_to_acknowledge() -> None:
    """Invariant 1: a fragment has no position of its own."""
    source, log = ListSource([fragment(1), commit(1)]), TellingLog()
    await pump(source, log, limits=PumpLimits(batch_events_max=1))
    assert len(log.batches) == 2
    assert source.acknowledged == ["1"]
    assert last_position([fragment(1)]) is None


async def test_what_an_earlier_session_left_unfinished_is_dropped_before_the_source_is_asked() -> (
    None
):
    """The source sends that transaction again from its start: half of it twice would be a lie."""
    log = MemoryLog()
    story: list[Commit | Fragment] = [fragment(1), fragment(1, start=1), commit(1)]
    story[2] = Commit(source=SOURCE, position="1", events=changes(1, 1, start=2))

    def fail_once(index: int) -> None:
        if index == 2 and len(source.sessions) == 1:
            raise SourceUnavailableError("the connection broke off")

    source = ListSource(story, before=fail_once)
    with pytest.raises(SourceUnavailableError):
        await pump(source, log)
    assert await entries(log) == []
    await pump(source, log)
    assert [entry.event.event_id for entry in await entries(log)] == [
        event.event_id for item in story for event in item.events
    ]


@given(seed=st.integers(0, 2**32), commits=st.integers(1, 30))
async def test_however_often_it_breaks_the_log_holds_every_commit_once_and_in_order(
    seed: int, commits: int
) -> None:
    """Invariants 2 and 3: a restart resumes exactly after the last append."""
    rng = random.Random(seed)
    story: list[Commit | Fragment] = []
    for n in range(1, commits + 1):
        cuts = rng.randrange(3)
        story.extend(fragment(n, start=part) for part in range(cuts))
        last = Commit(source=SOURCE, position=str(n), events=changes(n, 1, start=cuts))
        story.append(last if rng.random() < 0.8 else commit(n, rows=0) if not cuts else last)

    def break_off(_: int) -> None:
        if rng.random() < 0.1:
            raise SourceUnavailableError("the connection broke off")

    def run_full(_: int) -> None:
        if rng.random() < 0.1:
            raise LogFullError("no space")

    source, log = ListSource(story, before=break_off), TellingLog(on_append=run_full)
    limits = PumpLimits(batch_events_max=rng.randrange(1, 6))
    for _ in range(10_000):
        try:
            await pump(source, log, limits=limits)
            break
        except (SourceUnavailableError, LogFullError):
            continue
    assert [entry.event.event_id for entry in await entries(log)] == [
        event.event_id for item in story for event in item.events
    ]
    held = await entries(log)
    assert [entry.sequence for entry in held] == list(range(1, len(held) + 1))


@pytest.mark.parametrize("error", [SourceUnavailableError("gone"), ValueError("a defect")])
async def test_what_came_before_an_error_is_durable_before_the_error_is_raised(
    error: Exception,
) -> None:
    """Invariant 10: an undecodable change stops capture, and loses nothing before it."""

    def fail(index: int) -> None:
        if index == 3:
            raise error

    source, log = ListSource([commit(n) for n in range(1, 9)], before=fail), MemoryLog()
    with pytest.raises(type(error)):
        await pump(source, log)
    assert await log.position(SOURCE) == "3"
    assert source.acknowledged[-1] == "3"


async def test_an_undecodable_change_is_raised_as_it_was() -> None:
    """Invariant 10: its type and position reach whoever must act."""

    def fail(index: int) -> None:
        raise UndecodableError(source=SOURCE, what="BSON type 0x99", position="1")

    with pytest.raises(UndecodableError, match="0x99 at position 1"):
        await pump(ListSource([commit(1)], before=fail), MemoryLog())


async def test_a_quiet_source_moves_its_position_in_the_log() -> None:
    """P21, invariant 5: empty commits are appended, and leave no entry."""
    source, log = ListSource([commit(1), commit(2, rows=0), commit(3, rows=0)]), MemoryLog()
    await pump(source, log)
    assert await log.position(SOURCE) == "3"
    assert len(await entries(log)) == 1


async def test_a_position_is_in_the_log_before_the_first_event() -> None:
    """P21."""
    source, log = ListSource([commit(0, rows=0)]), MemoryLog()
    await pump(source, log)
    assert await log.position(SOURCE) == "0"


async def test_while_the_log_is_slow_the_pump_holds_no_more_than_its_bounds() -> None:
    """Invariant 6: the hand-over and one batch, each one item over its bound at most."""
    yielded = 0
    release = asyncio.Event()

    def count(_: int) -> None:
        nonlocal yielded
        yielded += 1

    async def wait(_: int) -> None:
        await release.wait()

    source = ListSource([commit(n, rows=3) for n in range(1, 100)], before=count)
    log = TellingLog(on_append=wait)
    running = asyncio.ensure_future(pump(source, log, limits=PumpLimits(batch_events_max=10)))
    await turns(200)
    # Two times four commits of three rows: one batch under way, and one handed over.
    assert yielded <= 9
    assert len(log.batches) == 1
    release.set()
    await running
    assert await log.position(SOURCE) == "99"


async def test_a_transaction_larger_than_memory_passes_in_bounded_pieces() -> None:
    """S14: bytes bound the hand-over as well as events do."""
    size = weight(fragment(1))
    story: Sequence[Commit | Fragment] = [
        *(fragment(1, start=part) for part in range(500)),
        Commit(source=SOURCE, position="1"),
    ]
    log = TellingLog()
    await pump(ListSource(story), log, limits=PumpLimits(batch_bytes_max=10 * size))
    assert max(sum(map(weight, batch)) for batch in log.batches) <= 11 * size
    held = await entries(log)
    assert len(held) == 500
    assert {entry.commit_rows for entry in held} == {500}


async def test_the_source_is_asked_for_more_while_an_append_is_under_way() -> None:
    yielded = 0
    seen_during_append: list[int] = []

    def count(_: int) -> None:
        nonlocal yielded
        yielded += 1

    async def look(number: int) -> None:
        await turns(50)
        seen_during_append.append(yielded)

    log = TellingLog(on_append=look)
    source = ListSource([commit(n) for n in range(1, 7)], before=count)
    await pump(source, log, limits=PumpLimits(batch_events_max=2))
    assert seen_during_append[0] > len(log.batches[0])


async def test_a_cancelled_pump_leaves_only_once_the_log_has_answered() -> None:
    """Invariant 2: otherwise the next session could read its position too early."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def hang(_: int) -> None:
        begun.set()
        await release.wait()

    source, log = ListSource([commit(1)]), TellingLog(on_append=hang)
    running = asyncio.ensure_future(pump(source, log))
    await begun.wait()
    running.cancel()
    await turns(20)
    assert not running.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await log.position(SOURCE) == "1"


async def test_a_session_of_the_source_is_closed_whatever_ends_the_pump() -> None:
    closed: list[str] = []

    class ClosingSource(ListSource):
        async def changes(self, *, position: str | None):  # type: ignore[no-untyped-def] # noqa: ANN202
            try:
                async for item in super().changes(position=position):
                    yield item
            finally:
                closed.append("closed")

    def full(_: int) -> None:
        raise LogFullError("no space")

    with pytest.raises(LogFullError):
        await pump(
            ClosingSource([commit(n) for n in range(1, 9)]),
            TellingLog(on_append=full),
            limits=PumpLimits(batch_events_max=1),
        )
    assert closed == ["closed"]


class Deaf(ListSource):
    """A source that does not hear of its end the first time, as `wait_for` does until Python 3.12.

    It goes on with its story then, until nobody takes it any more.
    """

    def __init__(self) -> None:
        super().__init__([commit(n) for n in range(1, 100)])
        self.asked = asyncio.Event()

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        yield self.story[0]
        self.asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        for item in self.story[1:]:
            yield item


@pytest.mark.parametrize("events_max", [1, 2, 1000])
async def test_a_source_that_loses_a_cancellation_does_not_keep_the_pump_from_ending(
    monkeypatch: pytest.MonkeyPatch, events_max: int
) -> None:
    """Else pausing it, or starting it anew after a silence, would wait for ever."""
    monkeypatch.setattr(ending, "_AGAIN_SECONDS", 0.01)
    source, log = Deaf(), MemoryLog()
    limits = PumpLimits(batch_events_max=events_max)
    pumping = asyncio.create_task(pump(source, log, limits=limits))
    await source.asked.wait()
    pumping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pumping
    again = ListSource(source.story)
    await pump(again, log)
    told = [entry.event.position for entry in await entries(log)]
    assert told == [str(n) for n in range(1, 100)]
