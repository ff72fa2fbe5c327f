"""The capture process: sources, pump and retention; the only writer of the log."""

import asyncio
import gc
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from penstock.capture import Backoff, Supervised, Supervisor, health_of
from penstock.capture.config import CaptureConfig
from penstock.capture.publish import Publisher
from penstock.cli import publishing
from penstock.cli.config import Settings, SourceSettings
from penstock.cli.control import Control
from penstock.cli.operations import Operations
from penstock.cli.page import metrics
from penstock.cli.paused import PausedSources
from penstock.ports import ChangeLog, SourceState
from penstock.telemetry import LOG_HEAD_SEQUENCE, LOG_TRIMMED_SEQUENCE, SOURCE_LAG_SECONDS

logger = structlog.get_logger(__name__)

OBSERVE_SECONDS = 1.0
RATE_SECONDS = 10
"""A source's rate is its mean over about so many seconds."""


class CaptureLog(ChangeLog, Protocol):
    """The log of a writing process: it also passes on what others ask of the writer."""

    def on_request(
        self, handler: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> None: ...

    @property
    def age_retention_paused(self) -> bool: ...


class SystemClock:
    """The machine's clock, for the engine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Observer:
    """What capture says of itself: gauges, and the answer to `penstock status`."""

    def __init__(self, log: CaptureLog, supervisor: Supervisor, config: CaptureConfig) -> None:
        self._log = log
        self._config = config
        self._supervisor = supervisor
        self._events: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATE_SECONDS + 1)

    async def run(self) -> None:
        """Look at the log once a second, for as long as capture runs."""
        while True:
            await self.observe()
            await asyncio.sleep(OBSERVE_SECONDS)

    async def observe(self) -> None:
        sources = await self._log.sources()
        bounds = await self._log.bounds()
        self._events.append((time.monotonic(), {state.source: state.events for state in sources}))
        LOG_HEAD_SEQUENCE.set(bounds.head)
        LOG_TRIMMED_SEQUENCE.set(bounds.trimmed)
        for state in sources:
            if state.last_timestamp:
                SOURCE_LAG_SECONDS.labels(state.source).set(lag_seconds(state))

    async def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """The answer to the request `status`: this process, and every source's capture."""
        return {
            "pid": os.getpid(),
            "ageRetentionPaused": self._log.age_retention_paused,
            "sources": [
                {
                    "source": status.source,
                    "state": status.state.value,
                    "sinceMs": status.since_ms,
                    "code": status.code,
                    "message": status.message,
                    "failures": status.failures,
                    "restarts": status.restarts,
                    "circuit": status.circuit.value,
                    "health": health_of(status, failures_max=self._config.unhealthy_failures).value,
                    "eventsPerSecond": self._rate(status.source),
                }
                for status in self._supervisor.status()
            ],
        }

    def _rate(self, source: str) -> float:
        if len(self._events) < 2:
            return 0.0
        (since, before), (now, after) = self._events[0], self._events[-1]
        return (after.get(source, 0) - before.get(source, 0)) / (now - since)


def relax_collector() -> None:
    """Look for cyclic garbage less often: capture makes millions of objects, and no cycles.

    The default looks after every 700 new objects, which costs 12 % of a capture at full speed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def supervised(source: SourceSettings) -> Supervised:
    """A source as configured, opened; it connects only when it is captured."""
    return Supervised(source=source.open(), silence_seconds_max=source.silence_seconds_max)


def backoff_of(config: CaptureConfig) -> Backoff:
    """How the configuration says that failures are waited out."""
    return Backoff(
        first_seconds=config.retry_delay,
        longest_seconds=config.retry_delay_max,
        breaker_failures=config.breaker_failures,
        breaker_seconds=config.breaker_pause,
    )


def lag_seconds(state: SourceState) -> float:
    """How far the source's last captured event lies back, by the source's clock and ours."""
    return max(0.0, time.time() - state.last_timestamp / 1000)


async def capture(
    settings: Settings,
    log: CaptureLog,
    *,
    stop: asyncio.Event,
    publisher: Publisher | None = None,
) -> None:
    """Capture all sources of `settings` into `log` until `stop` is set.

    A source that fails for good does not end this: its state is told to whoever asks. Raises what
    the supervisor or the observer fails with: the process ends, and its parent starts it again;
    and SupersededError once another machine publishes as this instance.
    """
    paused = PausedSources(settings.log.path)
    supervisor = Supervisor(
        log,
        [supervised(source) for source in settings.sources.values()],
        clock=SystemClock(),
        rng=random.Random(),
        backoff=backoff_of(settings.capture),
        paused=paused.read(),
    )
    observer = Observer(log, supervisor, settings.capture)
    control = Control()
    control.register("metrics", metrics)
    control.register("status", observer.status)
    Operations(log, supervisor, paused).register(control)
    publishing.register(control, log, supervisor, publisher)
    log.on_request(control.answer)
    tasks = [
        asyncio.create_task(supervisor.run(lasting=True)),
        asyncio.create_task(observer.run()),
    ]
    if publisher is not None:
        tasks.append(asyncio.create_task(publisher.run()))
    stopping = asyncio.create_task(stop.wait())
    try:
        # All sources may have finished or stopped before we are told to: the service goes on, and
        # says so to whoever asks.
        waiting: set[asyncio.Task[Any]] = {stopping, *tasks}
        while not stopping.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
    if publisher is not None and settings.checkpoint.on_shutdown:
        await publisher.finish()
