"""What the supervisor promises: what passes is retried, what does not is stopped, each alone."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest
import structlog

from penstock.capture import Backoff, PumpLimits, Supervised, Supervisor
from penstock.capture.breaker import Circuit
from penstock.capture.status import Health, SourceStatus, State, health_of
from penstock.errors import (
    LogCorruptError,
    LogFullError,
    PositionLostError,
    SourceUnavailableError,
)
from penstock.event import Commit
from penstock.log import MemoryLog
from penstock.ports import ChangeLog, ChangeSource
from penstock.telemetry import REGISTRY
from tests.capture.doubles import ListSource, ManualClock, TellingLog, captured, commit, said


@contextlib.asynccontextmanager
async def supervised(
    log: ChangeLog, *sources: ChangeSource, clock: ManualClock, seed: int = 1
) -> AsyncGenerator[Supervisor]:
    supervisor = Supervisor(
        log,
        [Supervised(source=source, silence_seconds_max=60.0) for source in sources],
        clock=clock,
        rng=random.Random(seed),
        backoff=Backoff(first_seconds=1.0, longest_seconds=8.0),
        limits=PumpLimits(batch_events_max=1),
    )
    running = asyncio.ensure_future(supervisor.run())
    try:
        yield supervisor
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def status(supervisor: Supervisor, name: str = "shop") -> SourceStatus:
    return next(one for one in supervisor.status() if one.source == name)


def in_state(supervisor: Supervisor, state: State, name: str = "shop") -> Callable[[], bool]:
    return lambda: status(supervisor, name).state is state


class QuietSource(ListSource):
    """Never ends, and says nothing once its story is told."""

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit]:
        async for item in super().changes(position=position):
            assert isinstance(item, Commit)
            yield item
        await asyncio.Event().wait()


def failing(times: int, error: Callable[[], Exception]) -> Callable[[int], None]:
    left = [times]

    def before(_: int) -> None:
        if left[0]:
            left[0] -= 1
            raise error()

    return before


def reconnects() -> float:
    name = "penstock_source_reconnects_total"
    return REGISTRY.get_sample_value(name, {"source": "shop"}) or 0.0


def unavailable() -> Exception:
    return SourceUnavailableError("shop: nobody answers")


async def test_a_transient_error_is_retried_with_growing_waits_until_it_passes() -> None:
    clock, log = ManualClock(), MemoryLog()
    source = ListSource([commit(1)], before=failing(6, unavailable))
    async with supervised(log, source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.RETRYING))
        assert status(supervisor).code == "source.unavailable"
        assert status(supervisor).message == "shop: nobody answers"
        await clock.until(in_state(supervisor, State.FINISHED))
        assert status(supervisor).restarts == 6
        assert status(supervisor).code == ""
    assert len(await captured(log)) == 1
    # Silence is looked for every 15 s; the rest are the waits between the sessions.
    waits = [slept for slept in clock.slept if slept != 15.0]
    for wait, whole in zip(waits[:4], [1, 2, 4, 8], strict=True):
        assert whole / 2 <= wait <= whole


async def test_a_source_that_failed_five_times_in_a_row_is_left_alone_for_half_a_minute() -> None:
    """P18: the circuit breaker is wired; one trial at a time, until the source moves."""
    clock = ManualClock()
    source = QuietSource([commit(1)], before=failing(6, unavailable))
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        opened: list[float] = []
        for trial in (5, 6):
            await clock.until(lambda: len(source.sessions) == trial)  # noqa: B023
            await clock.until(lambda: status(supervisor).circuit is Circuit.OPEN)
            opened.append(clock.seconds)
        assert opened[1] - opened[0] > 29.9
        await clock.until(in_state(supervisor, State.RUNNING))
        assert clock.seconds - opened[1] > 29.9
        assert status(supervisor).circuit is Circuit.CLOSED
        assert status(supervisor).failures == 0


async def test_sources_whose_circuits_opened_together_come_back_apart() -> None:
    clock = ManualClock()
    source = ListSource([commit(1)], before=failing(8, unavailable))
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.FINISHED))
    waits = [slept for slept in clock.slept if slept > 29.9]
    assert all(wait <= 45 for wait in waits)
    assert len(set(waits)) == len(waits) >= 3, "each is drawn anew"


async def test_a_source_that_fails_for_long_is_retried_for_ever_and_called_unhealthy() -> None:
    """P34: to stop trying would be an outage too; one change made durable ends it."""
    clock = ManualClock()
    source = QuietSource([commit(1)], before=failing(25, unavailable))
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        seen: list[Health] = []

        def moved() -> bool:
            health = health_of(status(supervisor), failures_max=10)
            if seen[-1:] != [health]:
                seen.append(health)
            return status(supervisor).state is State.RUNNING

        await clock.until(moved)
    assert seen == [Health.OK, Health.DEGRADED, Health.UNHEALTHY, Health.OK]


async def test_the_waits_are_those_of_the_seed() -> None:
    """A run can be replayed: nothing but the given generator decides."""
    slept: list[list[float]] = []
    for _ in range(2):
        clock = ManualClock()
        source = ListSource([commit(1)], before=failing(5, unavailable))
        async with supervised(MemoryLog(), source, clock=clock, seed=7) as supervisor:
            await clock.until(in_state(supervisor, State.FINISHED))
        slept.append(clock.slept)
    assert slept[0] == slept[1]


async def test_a_source_that_moved_starts_with_the_shortest_wait_again() -> None:
    def every_second_item(index: int) -> None:
        if len(source.sessions) <= index:
            raise SourceUnavailableError("shop: broke off")

    clock, log = ManualClock(), MemoryLog()
    source = ListSource([commit(n) for n in range(1, 6)], before=every_second_item)
    async with supervised(log, source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.FINISHED))
    # A retry is no start: the log is told once.
    assert await said(log) == [("shop", "started")]
    waits = [slept for slept in clock.slept if slept != 15.0]
    assert len(waits) == 4
    assert max(waits) <= 1.0


async def test_a_source_is_running_only_once_it_moves() -> None:
    """That it is connected again proves nothing."""
    clock = ManualClock()
    source = QuietSource([commit(1)], before=failing(1, unavailable))
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        assert status(supervisor).state is State.STARTING
        await clock.until(in_state(supervisor, State.RETRYING))
        since_ms = status(supervisor).since_ms
        await clock.until(in_state(supervisor, State.RUNNING))
        assert status(supervisor).since_ms > since_ms


async def test_a_silent_source_is_restarted_and_counted() -> None:
    """S15: it yields nothing for its deadline, not even an empty commit."""
    clock, log = ManualClock(), MemoryLog()
    source = QuietSource([commit(1), commit(2)])
    before = reconnects()
    async with supervised(log, source, clock=clock) as supervisor:
        await clock.until(lambda: len(source.sessions) == 3)
        assert status(supervisor).restarts == 2
    assert source.sessions == [None, "2", "2"]
    assert reconnects() == before + 2
    assert len(await captured(log)) == 2


async def test_a_quiet_source_that_says_so_is_left_alone() -> None:
    """S15: an empty commit is a sign of life."""
    clock = ManualClock()

    class BeatingSource(ListSource):
        async def changes(self, *, position: str | None) -> AsyncIterator[Commit]:
            self.sessions.append(position)
            while True:
                yield commit(1, rows=0)
                await clock.sleep(50.0)

    source = BeatingSource([])
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        await clock.until(lambda: clock.seconds > 5_000)
        assert status(supervisor).state is State.RUNNING
    assert source.sessions == [None]


async def test_a_source_that_waits_for_the_log_is_not_called_silent() -> None:
    """S15: it cannot speak while it is not asked."""
    clock, release = ManualClock(), asyncio.Event()

    async def hang(number: int) -> None:
        if number == 1:
            await release.wait()

    source = ListSource([commit(n) for n in range(1, 9)])
    async with supervised(TellingLog(on_append=hang), source, clock=clock) as supervisor:
        await clock.until(lambda: clock.seconds > 5_000)
        assert source.sessions == [None]
        release.set()
        await clock.until(in_state(supervisor, State.FINISHED))


async def test_when_the_log_is_full_capture_waits_says_so_and_goes_on_with_nothing_lost() -> None:
    """P5."""
    full = True

    def refuse(number: int) -> None:
        if number >= 2 and full:
            raise LogFullError("the log has no space left")

    clock, log = ManualClock(), TellingLog(on_append=refuse)
    source = ListSource([commit(n) for n in range(1, 6)])
    async with supervised(log, source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.LOG_FULL))
        assert "no space" in status(supervisor).message
        since_ms = status(supervisor).since_ms
        await clock.until(lambda: status(supervisor).restarts >= 5)
        assert status(supervisor).state is State.LOG_FULL
        assert status(supervisor).since_ms == since_ms
        assert source.acknowledged == ["1", "2"]
        full = False
        await clock.until(in_state(supervisor, State.FINISHED))
    held = [entry.event.position for entry in await captured(log)]
    assert held == ["1", "2", "3", "4", "5"]


async def test_a_full_log_in_a_trial_session_does_not_keep_the_source_out_for_ever() -> None:
    """P5, P18: the trial told nothing of the source, so the next session is a trial again."""
    full = True

    def refuse(_: int) -> None:
        if full:
            raise LogFullError("the log has no space left")

    clock, log = ManualClock(), TellingLog(on_append=refuse)
    source = QuietSource([commit(1), commit(2)], before=failing(5, unavailable))
    async with supervised(log, source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.LOG_FULL))
        hours_later = clock.seconds + 10_000
        await clock.until(lambda: len(source.sessions) > 8 or clock.seconds > hours_later)
        assert len(source.sessions) > 8
        assert status(supervisor).state is State.LOG_FULL
        full = False
        await clock.until(in_state(supervisor, State.RUNNING))
        await clock.until(lambda: source.acknowledged[-1:] == ["2"])
        assert status(supervisor).circuit is Circuit.CLOSED
    assert [entry.event.position for entry in await captured(log)] == ["1", "2"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PositionLostError(source="shop", position="1", detail="oplog"), "source.position_lost"),
        (LogCorruptError("the log is broken"), "log.corrupt"),
        (KeyError("swordfish"), "internal"),
        (asyncio.CancelledError(), "internal"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_error_that_no_retry_mends_stops_that_source_only(
    error: BaseException, code: str
) -> None:
    """Invariant 8; the state is kept for whoever asks."""

    def fail(_: int) -> None:
        raise error

    clock, log = ManualClock(), MemoryLog()
    broken = ListSource([commit(1)], before=fail)
    other = QuietSource([commit(n, source="other") for n in range(1, 9)], name="other")
    async with supervised(log, broken, other, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.STOPPED))
        await clock.until(lambda: other.acknowledged[-1:] == ["8"])
        await clock.until(lambda: broken.closed)
        assert status(supervisor).code == code
        assert status(supervisor).message
        assert status(supervisor, "other").state is State.RUNNING
    assert broken.sessions == [None]


async def test_what_is_logged_of_a_defect_quotes_no_document() -> None:
    def fail(_: int) -> None:
        raise ValueError("swordfish")

    clock = ManualClock()
    with structlog.testing.capture_logs() as lines:
        async with supervised(
            MemoryLog(), ListSource([commit(1)], before=fail), clock=clock
        ) as supervisor:
            await clock.until(in_state(supervisor, State.STOPPED))
            assert "swordfish" not in status(supervisor).message
    assert any(line["event"] == "source stopped by a defect" for line in lines)
    assert "ValueError" in str(lines)
    assert "ValueError('swordfish')" not in str(lines)


async def test_a_source_that_cannot_even_be_closed_takes_no_other_down() -> None:
    """Invariant 8."""

    class Stuck(ListSource):
        async def close(self) -> None:
            raise OSError("stuck")

    clock = ManualClock()
    other = ListSource([commit(1, source="other")], name="other")
    async with supervised(MemoryLog(), Stuck([]), other, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.STOPPED))
        await clock.until(in_state(supervisor, State.FINISHED, "other"))


async def test_cancelling_the_supervisor_ends_every_session() -> None:
    clock = ManualClock()
    source = QuietSource([commit(1)])
    async with supervised(MemoryLog(), source, clock=clock) as supervisor:
        await clock.until(in_state(supervisor, State.RUNNING))
    assert source.closed
