"""What an operator may do to one source while the others go on, and what the log is told of it."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.capture import Backoff, PumpLimits, Supervised, Supervisor
from penstock.capture.status import State
from penstock.errors import LogFullError, RequestError, SourceUnavailableError, UndecodableError
from penstock.event import Commit, Fragment
from penstock.log import MemoryLog
from penstock.ports import ChangeLog, ChangeSource
from tests.capture.doubles import (
    ListSource,
    ManualClock,
    TellingLog,
    captured,
    commit,
    entries,
    fragment,
    said,
)


class Live(ListSource):
    """A source whose story may grow while it is captured, and which can go back in it."""

    def __init__(
        self,
        story: list[Commit | Fragment],
        *,
        name: str = "shop",
        before: Callable[[int], object] = lambda _: None,
    ) -> None:
        super().__init__(story, name=name, before=before)
        self.more = asyncio.Event()

    def tell(self, *items: Commit | Fragment) -> None:
        self.story = [*self.story, *items]
        self.more.set()

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        self.sessions.append(position)
        index = self._index_after(position)
        while True:
            self.more.clear()
            while index < len(self.story):
                self._before(index)
                yield self.story[index]
                index += 1
            await self.more.wait()

    async def rewound(self, position: str, *, to: str | None, by_seconds: float | None) -> str:
        if to is None:
            to = str(int(position) - int(by_seconds or 0))
        if int(to) > int(position):
            raise RequestError(f"{to} is not before {position}")
        return to

    def told_at(self, position: str) -> int:
        return int(position) * 1000


@asynccontextmanager
async def running(
    log: ChangeLog, *sources: ChangeSource, clock: ManualClock, paused: frozenset[str] = frozenset()
) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(
        log,
        [Supervised(source=source, silence_seconds_max=1e9) for source in sources],
        clock=clock,
        rng=random.Random(1),
        backoff=Backoff(first_seconds=1.0, longest_seconds=8.0),
        limits=PumpLimits(batch_events_max=1),
        paused=paused,
    )
    task = asyncio.ensure_future(supervisor.run(lasting=True))
    try:
        yield supervisor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def in_state(supervisor: Supervisor, state: State, name: str = "shop") -> Callable[[], bool]:
    return lambda: {one.source: one.state for one in supervisor.status()}.get(name) is state


async def positions(log: ChangeLog, source: str = "shop") -> list[str]:
    """Of everything captured of a source, in order."""
    return [one.event.position for one in await captured(log) if one.event.source == source]


async def test_a_paused_source_is_not_captured_and_goes_on_where_it_was_when_resumed() -> None:
    """Invariant 2; another source does not notice (invariant 8)."""
    clock, log = ManualClock(), MemoryLog()
    source, other = Live([commit(1)]), Live([commit(1, source="other")], name="other")
    async with running(log, source, other, clock=clock) as supervisor:
        await clock.until(lambda: source.acknowledged == ["1"] and other.acknowledged == ["1"])
        assert await supervisor.pause("shop")
        assert not await supervisor.pause("shop")
        source.tell(commit(2), commit(3))
        other.tell(commit(2, source="other"))
        await clock.until(lambda: other.acknowledged[-1] == "2")
        assert in_state(supervisor, State.PAUSED)()
        assert source.closed
        assert await positions(log) == ["1"]
        assert await log.position("shop") == "1"
        assert await supervisor.resume("shop")
        await clock.until(lambda: source.acknowledged[-1] == "3")
        assert not await supervisor.resume("shop")
    assert source.sessions == [None, "1"]
    assert other.sessions == [None]
    assert await positions(log) == ["1", "2", "3"]
    assert [one for one in await said(log) if one[0] == "shop"] == [
        ("shop", "started"),
        ("shop", "paused"),
        ("shop", "resumed"),
    ]


async def test_what_capture_says_stands_in_its_place_and_moves_no_position() -> None:
    clock, log = ManualClock(), MemoryLog()
    source = Live([commit(1, rows=0), commit(2)])
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: source.acknowledged[-1:] == ["2"])
        await supervisor.pause("shop")
        assert await log.position("shop") == "2"
        (state,) = await log.sources()
        assert state.last_timestamp == 2_000  # a notice has no time of the source's own
    kinds = [
        (one.event.position, getattr(one.event, "operation", "")) for one in await entries(log)
    ]
    assert kinds == [("1", "started"), ("2", "insert"), ("2", "paused")]
    assert [one.commit for one in await entries(log)] == [1, 2, 3]


async def test_a_transaction_that_a_pause_cuts_off_is_never_seen_in_part() -> None:
    """Invariant 3: what was staged goes, the notice does not end it, and it comes again whole."""
    clock, log = ManualClock(), TellingLog()
    source = Live([commit(1), fragment(2, rows=2)])
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: len(log.batches) == 2 and log.told[-1] == "durable")
        assert isinstance(log.batches[-1][-1], Fragment)
        await supervisor.pause("shop")
        assert await positions(log) == ["1"]
        source.tell(Commit(source="shop", position="2", events=commit(2, rows=3).events[2:]))
        await supervisor.resume("shop")
        await clock.until(lambda: source.acknowledged[-1] == "2")
    assert await positions(log) == ["1", "2", "2", "2"]


async def test_a_stopped_source_says_why_in_the_log_and_starts_again_when_resumed() -> None:
    mended = False

    def before(index: int) -> None:
        if index == 1 and not mended:
            raise UndecodableError(source="shop", what="a type", position="2")

    clock, log = ManualClock(), MemoryLog()
    source = Live([commit(1), commit(2)], before=before)
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.STOPPED))
        last = (await entries(log))[-1].event
        assert b'"code":"source.undecodable"' in bytes(getattr(last, "description", b""))
        mended = True
        await supervisor.resume("shop")
        await clock.until(lambda: source.acknowledged[-1] == "2")
    assert await said(log) == [("shop", "started"), ("shop", "stopped"), ("shop", "started")]
    assert await positions(log) == ["1", "2"]


async def test_resuming_a_source_that_waits_for_its_next_retry_tries_at_once() -> None:
    left = [9]

    def before(_: int) -> None:
        if left[0]:
            left[0] -= 1
            raise SourceUnavailableError("shop: nobody answers")

    clock, log = ManualClock(), MemoryLog()
    source = Live([commit(1)], before=before)
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: left[0] == 2)
        await clock.until(in_state(supervisor, State.RETRYING))
        left[0], seconds = 0, clock.seconds
        assert await supervisor.resume("shop")
        await clock.until(in_state(supervisor, State.RUNNING))
        assert clock.seconds == seconds
    assert await said(log) == [("shop", "started")]


async def test_a_rewound_source_tells_again_what_follows_with_the_same_event_ids() -> None:
    clock, log = ManualClock(), MemoryLog()
    source = Live([commit(n) for n in range(1, 5)])
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: source.acknowledged[-1:] == ["4"])
        with pytest.raises(RequestError, match="pause shop"):
            await supervisor.rewind("shop", to="2")
        await supervisor.pause("shop")
        with pytest.raises(RequestError, match="not before"):
            await supervisor.rewind("shop", to="5")
        back = await supervisor.rewind("shop", to="2")
        assert (back.position, back.renames) == ("2", ())
        assert await log.position("shop") == "2"
        assert in_state(supervisor, State.PAUSED)()
        await supervisor.resume("shop")
        await clock.until(lambda: source.acknowledged == ["1", "2", "3", "4", "3", "4"])
    assert await positions(log) == ["1", "2", "3", "4", "3", "4"]
    ids = [one.event.event_id for one in await captured(log)]
    assert ids[4:] == ids[2:4]
    assert ("shop", "rewound") in await said(log)


async def test_a_source_paused_before_the_start_stays_so_until_it_is_resumed() -> None:
    clock, log = ManualClock(), MemoryLog()
    source, other = Live([commit(1)]), Live([commit(1, source="other")], name="other")
    async with running(log, source, other, clock=clock, paused=frozenset({"shop"})) as supervisor:
        await clock.until(lambda: other.acknowledged == ["1"])
        assert source.sessions == []
        await supervisor.resume("shop")
        await clock.until(lambda: source.acknowledged == ["1"])


async def test_sources_come_and_go_without_the_others_noticing() -> None:
    """Invariant 8, P14: a source added later has its own start, a removed one keeps its place."""
    clock, log = ManualClock(), MemoryLog()
    first = Live([commit(1)])
    async with running(log, first, clock=clock) as supervisor:
        await clock.until(lambda: first.acknowledged == ["1"])
        second = Live([commit(7, source="second")], name="second")
        await supervisor.add(Supervised(source=second, silence_seconds_max=1e9))
        with pytest.raises(RequestError, match="captured already"):
            await supervisor.add(Supervised(source=second, silence_seconds_max=1e9))
        await clock.until(lambda: second.acknowledged == ["7"])
        await supervisor.remove("second")
        assert [one.source for one in supervisor.status()] == ["shop"]
        with pytest.raises(RequestError, match="captured are: shop"):
            await supervisor.pause("second")
        first.tell(commit(2))
        await clock.until(lambda: first.acknowledged[-1] == "2")
        assert first.sessions == [None]
        assert await log.position("second") == "7"
        again = Live([commit(7, source="second"), commit(8, source="second")], name="second")
        await supervisor.add(Supervised(source=again, silence_seconds_max=1e9))
        await clock.until(lambda: again.acknowledged == ["8"])
        assert again.sessions == ["7"]


async def test_a_source_configured_anew_goes_on_from_where_it_stood() -> None:
    clock, log = ManualClock(), MemoryLog()
    before, after = Live([commit(1)]), Live([commit(1), commit(2)])
    async with running(log, before, clock=clock) as supervisor:
        await clock.until(lambda: before.acknowledged == ["1"])
        await supervisor.replace(Supervised(source=after, silence_seconds_max=1e9))
        await clock.until(lambda: after.acknowledged == ["2"])
        assert before.closed
        assert after.sessions == ["1"]
        await supervisor.pause("shop")
        third = Live([])
        await supervisor.replace(Supervised(source=third, silence_seconds_max=1e9))
        assert in_state(supervisor, State.PAUSED)()
        assert third.sessions == []


async def test_a_log_that_takes_no_notice_keeps_nobody_from_pausing() -> None:
    full = False

    def refuse(_: int) -> None:
        if full:
            raise LogFullError("the log has no space left")

    clock, log = ManualClock(), TellingLog(on_append=refuse)
    source = Live([commit(1)])
    async with running(log, source, clock=clock) as supervisor:
        await clock.until(lambda: source.acknowledged == ["1"])
        full = True
        assert await supervisor.pause("shop")
        assert in_state(supervisor, State.PAUSED)()
        assert await log.position("shop") == "1"
