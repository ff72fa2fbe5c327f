"""What is counted of capture, after a workload whose numbers are known."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from msgspec import structs

from penstock.capture import Backoff, PumpLimits, Supervised, Supervisor, meter, pump
from penstock.capture.breaker import Breaker
from penstock.capture.config import CaptureConfig
from penstock.capture.publish import Publisher
from penstock.capture.pump import PumpProgress
from penstock.capture.status import SourceStatus, State
from penstock.cli.last_states import LastStates
from penstock.cli.observer import Observer, lag_seconds
from penstock.cli.remembered import AlertMemory
from penstock.errors import SourceUnavailableError
from penstock.event import Commit, Fragment
from penstock.log import MemoryLog
from penstock.ports import SourceState
from penstock.telemetry import REGISTRY
from tests.capture.doubles import ListSource, ManualClock, TellingLog, changes, commit, fragment
from tests.checkpoints.doubles import MemoryStore
from tests.waiting import until


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def growth(name: str, **labels: str) -> Callable[[], float]:
    """How much a metric has grown since this was called."""
    before = value(name, **labels)
    return lambda: value(name, **labels) - before


async def test_every_append_of_events_is_a_batch_with_its_size_and_its_latency() -> None:
    """P27: positions alone are no batch, and a transaction in parts is counted as one commit."""
    batches = growth("penstock_batch_size_count", source="shop")
    sizes = growth("penstock_batch_size_sum", source="shop")
    single = growth("penstock_batch_size_bucket", source="shop", le="1.0")
    latencies = growth("penstock_ingestion_latency_seconds_count", source="shop")
    seconds = growth("penstock_ingestion_latency_seconds_sum", source="shop")
    events = growth("penstock_events_ingested_total", source="shop")
    commits = growth("penstock_commits_ingested_total", source="shop")
    last = Commit(source="shop", position="3", events=changes(3, 2, start=1))
    story: list[Commit | Fragment] = [commit(1, rows=5), commit(2, rows=0), fragment(3), last]
    began = perf_counter()
    await pump(ListSource(story), MemoryLog(), limits=PumpLimits(batch_events_max=1))
    assert (batches(), sizes(), single(), latencies()) == (3, 8, 1, 3)
    assert (events(), commits()) == (8, 2)
    assert 0 < seconds() <= 3 * (perf_counter() - began)


async def test_the_latency_of_an_append_is_that_of_the_change_that_waited_longest() -> None:
    """From the source's saying it, over its wait for the append before, to its durability."""
    held = asyncio.Event()
    log = TellingLog(on_append=lambda number: held.wait() if number == 0 else None)
    latencies = growth("penstock_ingestion_latency_seconds_count", source="shop")
    short = growth("penstock_ingestion_latency_seconds_bucket", source="shop", le="0.025")
    waited = growth("penstock_backpressure_events_total", source="shop", level="slow")
    running = asyncio.ensure_future(
        pump(
            ListSource([commit(1), commit(2)]),
            log,
            limits=PumpLimits(batch_events_max=1),
        )
    )
    await until(lambda: waited() >= 1)
    held.set()
    await running
    assert (latencies(), short()) == (2, 0)


@pytest.mark.slow
async def test_a_source_that_is_held_up_counts_by_how_long_and_what_waits_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P18: back-pressure is seen. A hand-over that is full is counted each time, and its depth."""
    held = asyncio.Event()
    log = TellingLog(on_append=lambda number: held.wait() if number == 0 else None)
    levels = meter._LEVELS  # pyright: ignore[reportPrivateUsage]

    def before(number: int) -> None:
        # Only the wait for the append that is held counts levels: a busy machine must not add any.
        monkeypatch.setattr(meter, "_LEVELS", levels if number == 1 else ())

    counted = {
        level: growth("penstock_backpressure_events_total", source="shop", level=level)
        for level in ("waited", "slow", "critical")
    }

    def depth(component: str) -> float:
        return value("penstock_queue_depth", source="shop", component=component)

    story = [commit(1, rows=3), commit(2, rows=4), commit(3)]
    running = asyncio.ensure_future(
        pump(ListSource(story, before=before), log, limits=PumpLimits(batch_events_max=3))
    )
    await until(lambda: counted["critical"]() == 1)
    assert (depth("append"), depth("hand_over")) == (3, 4)
    assert (counted["waited"](), counted["slow"]()) == (2, 1)
    held.set()
    await running
    assert (depth("append"), depth("hand_over")) == (0, 0)
    assert (counted["waited"](), counted["slow"](), counted["critical"]()) == (2, 1, 1)


async def test_nothing_waits_any_more_of_a_source_that_was_stopped_in_an_append() -> None:
    held = asyncio.Event()
    log = TellingLog(on_append=lambda _: held.wait())
    running = asyncio.ensure_future(pump(ListSource([commit(1, rows=3)]), log))
    labels = {"source": "shop", "component": "append"}
    await until(lambda: value("penstock_queue_depth", **labels) == 3)
    running.cancel()
    held.set()
    await asyncio.gather(running, return_exceptions=True)
    assert value("penstock_queue_depth", **labels) == 0


class ObservedLog(MemoryLog):
    age_retention_paused = False


def failing_twice() -> Callable[[int], None]:
    left = [2]

    def before(_: int) -> None:
        if left[0]:
            left[0] -= 1
            raise SourceUnavailableError("shop: nobody answers")

    return before


async def test_errors_lag_silence_and_the_ends_of_the_log_are_told(tmp_path: Path) -> None:
    """P27, P34: what an operator is shown is what happened."""
    clock, log = ManualClock(), ObservedLog()
    errors = growth("penstock_source_errors_total", source="shop", code="source.unavailable")
    supervisor = Supervisor(
        log,
        [
            Supervised(
                source=ListSource([commit(1, rows=3)], before=failing_twice()),
                silence_seconds_max=60,
            )
        ],
        clock=clock,
        rng=random.Random(1),
        backoff=Backoff(first_seconds=1.0),
    )
    running = asyncio.ensure_future(supervisor.run())
    await clock.until(running.done)
    assert errors() == 2
    observer = Observer(
        log,
        supervisor,
        CaptureConfig.model_validate({"silent_after": 30}),
        clock,
        alert=lambda _: True,
        memory=AlertMemory(tmp_path),
        last=LastStates(tmp_path),
    )
    await observer.observe()
    head = (await log.bounds()).head
    assert value("penstock_log_head_sequence") == head
    # The double's first transaction was one second after 1970, and it has said all that it has.
    assert value("penstock_source_since_change_seconds", source="shop") >= 0
    assert value("penstock_source_lag_seconds", source="shop") == 0
    assert value("penstock_source_silent", source="shop") == 0
    clock.seconds += 31
    await log.trim(2)
    await observer.observe()
    assert value("penstock_source_silent", source="shop") == 1
    assert value("penstock_log_trimmed_sequence") == 2


def test_a_source_lags_by_what_it_has_and_not_by_how_long_nothing_changed() -> None:
    state = SourceState(
        source="shop", position="p", commits=1, events=1, last_timestamp=1_000, moved_at=90_000
    )
    status = SourceStatus(source="shop", state=State.RUNNING, since_ms=0)

    def lag(**facts: Any) -> float:
        return lag_seconds(structs.replace(status, **facts), state, now_ms=100_000)

    assert lag(as_of_ms=99_000) == 1.0  # quiet: it said so a second ago
    assert lag(as_of_ms=40_000) == 60.0  # its newest change, or what it has read so far, is old
    assert lag() == 10.0  # nothing was heard since we started
    assert lag(as_of_ms=40_000, state=State.FINISHED) == 0.0


async def test_heartbeats_say_up_to_when_everything_is_durable() -> None:
    progress, told = PumpProgress(), commit(1, rows=1)
    beat = Commit(source="shop", position="p")
    await pump(ListSource([told]), MemoryLog(), progress=progress)
    assert progress.as_of_ms == told.events[-1].timestamp
    progress.kept([structs.replace(beat, as_of_ms=7_000), beat])
    assert progress.as_of_ms == 7_000


@pytest.mark.parametrize("fails", [False, True])
async def test_the_time_that_the_store_takes_for_a_copy_is_kept_failures_too(fails: bool) -> None:
    writes = growth("penstock_checkpoint_latency_seconds_count")
    log, store, clock = MemoryLog(), MemoryStore(), ManualClock()
    await log.append([commit(1)])
    store.answers_lost = int(fails)
    publisher = Publisher(
        log,
        store,
        instance="shop",
        writer="w",
        clock=clock,
        breaker=Breaker(steady_seconds=clock.steady_seconds),
    )
    await publisher.finish()
    assert writes() == 1
