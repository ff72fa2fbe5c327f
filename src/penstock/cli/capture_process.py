"""The capture process: sources, pump and retention; the only writer of the log."""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from penstock.capture import Backoff, Supervised, Supervisor
from penstock.capture.config import CaptureConfig
from penstock.capture.publish import Publisher
from penstock.capture.supervise import Clock
from penstock.cli import publishing, snapshot
from penstock.cli.alerts import Sender
from penstock.cli.archiving import Archiving, CapturedLog
from penstock.cli.config import Settings
from penstock.cli.control import Control
from penstock.cli.last_states import LastStates
from penstock.cli.letters import LetterRequests
from penstock.cli.live import Reloads
from penstock.cli.logs import set_level
from penstock.cli.metrics import metrics
from penstock.cli.observer import Observer
from penstock.cli.operations import Operations
from penstock.cli.paused import PausedSources
from penstock.cli.quotas import share_of
from penstock.cli.reload import Plan, Reloader
from penstock.cli.remembered import AlertMemory
from penstock.cli.snapshot import SnapshotRequests
from penstock.log.config import LogConfig
from penstock.ports import ChangeLog, Hold
from penstock.serve.consumers import consumers_path
from penstock.serve.pipelines import PipelineHolds
from penstock.serve.zero.holding import ShardHolds
from penstock.state.holding import Holds
from penstock.state.reconcile import Reconciler

logger = structlog.get_logger(__name__)


class CaptureLog(CapturedLog, ChangeLog, Protocol):
    """The log of a writing process: it also passes on what others ask of the writer."""

    def on_request(
        self, handler: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> None: ...

    def retain(self, config: LogConfig) -> None: ...

    def held_by(self, look: Callable[[int], Hold | None]) -> None: ...

    def begin_trimming(self) -> None: ...

    def earliest_ms(self) -> int: ...

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


def relax_collector() -> None:
    """Look for cyclic garbage less often: capture makes millions of objects, and no cycles.

    The default looks after every 700 new objects, which costs 12 % of a capture at full speed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def supervised(settings: Settings, name: str, *, clock: Clock) -> Supervised:
    """A source as configured, opened; it connects only when it is captured."""
    source = settings.sources[name]
    return Supervised(
        source=source.open(),
        silence_seconds_max=source.silence_seconds_max,
        gate=share_of(settings, name, clock=clock),
    )


def backoff_of(config: CaptureConfig) -> Backoff:
    """How the configuration says that failures are waited out."""
    return Backoff(
        first_seconds=config.retry_delay,
        longest_seconds=config.retry_delay_max,
        breaker_failures=config.breaker_failures,
        breaker_seconds=config.breaker_pause,
    )


class Capturing:
    """All sources of a configuration, captured into a log, with all that is told of them."""

    def __init__(
        self,
        settings: Settings,
        log: CaptureLog,
        *,
        publisher: Publisher | None = None,
        reloads: Reloads | None = None,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._reloads = reloads
        self._publishes_at_end = settings.checkpoint.on_shutdown
        self._clock = SystemClock()
        self._paused = PausedSources(settings.log.path)
        self._holds = Holds(settings.log.path, wall_ms=log.earliest_ms)
        self._shards = ShardHolds(settings.log.path, wall_ms=log.earliest_ms)
        self._pipelines = PipelineHolds(consumers_path(settings.log.path), wall_ms=log.earliest_ms)
        self._reconciler: Reconciler | None = None
        if settings.state.enabled:
            self._reconciler = Reconciler(log, settings.log.path)
            log.held_by(self._holds)
        if settings.serve.zero is not None:
            log.held_by(self._shards)
        log.held_by(self._pipelines)
        self._supervisor = Supervisor(
            log,
            [supervised(settings, name, clock=self._clock) for name in settings.sources],
            clock=self._clock,
            rng=random.Random(),
            backoff=backoff_of(settings.capture),
            paused=self._paused.read(),
            injector=self._reconciler,
        )
        self._archiving = Archiving(log, settings.archive, settings.log)
        log.begin_trimming()
        self._sender = Sender(settings.alerts)
        self._observer = Observer(
            log,
            self._supervisor,
            settings.capture,
            self._clock,
            alert=self._sender.offer,
            memory=AlertMemory(settings.log.path),
            last=LastStates(settings.log.path),
            archive=self._archiving.status,
        )
        self._sender.on_delivered = self._observer.delivered
        self._reloader = Reloader(settings, self._apply)
        log.on_request(self._control(settings).answer)

    def _control(self, settings: Settings) -> Control:
        """What may be asked of it."""
        control = Control()
        control.register("metrics", metrics)
        control.register("status", self._observer.status)
        control.register("reload", self._reloader.answer)
        Operations(self._log, self._supervisor, self._paused).register(control)
        copies = SnapshotRequests(
            settings.log.path, self._supervisor.sources, keeps_state=settings.state.enabled
        )
        control.register(snapshot.REQUEST, copies.answer)
        LetterRequests(self._supervisor).register(control)
        publishing.register(control, self._log, self._supervisor, self._publisher)
        return control

    async def _apply(self, after: Settings, found: Plan) -> None:
        # Opened before anything is changed: what cannot be opened changes nothing.
        begun = [*found.added, *found.changed]
        opened = {name: supervised(after, name, clock=self._clock) for name in begun}
        self._log.retain(after.log)
        self._archiving.retain(after.log)
        self._supervisor.configure(backoff_of(after.capture))
        self._observer.config = after.capture
        self._sender.configure(after.alerts)
        set_level(after.logging.level)
        if self._publisher is not None:
            self._publisher.configure(publishing.limits_of(after.checkpoint))
        self._publishes_at_end = after.checkpoint.on_shutdown
        if self._reloads is not None:
            self._reloads.take(after)
        kept = self._paused.read()
        for name in found.removed:
            await self._supervisor.remove(name)
        for name in found.changed:
            await self._supervisor.replace(opened[name])
        for name in found.added:
            await self._supervisor.add(opened[name], paused=name in kept)

    async def run(self, *, stop: asyncio.Event, hangup: asyncio.Event | None = None) -> None:
        """Until `stop` is set; reload at `hangup`."""
        observing = asyncio.create_task(self._observer.run())
        tasks = [
            asyncio.create_task(self._supervisor.run(lasting=True)),
            observing,
            asyncio.create_task(self._observer.ask_sources()),
            asyncio.create_task(self._observer.read_gaps()),
            asyncio.create_task(self._sender.run()),
            asyncio.create_task(self._archiving.run()),
            asyncio.create_task(self._reloader.on_hangup(hangup or asyncio.Event())),
        ]
        if self._publisher is not None:
            tasks.append(asyncio.create_task(self._publisher.run()))
        stopping = asyncio.create_task(stop.wait())
        try:
            # All sources may have finished or stopped before we are told to: the service goes on,
            # and says so to whoever asks.
            waiting: set[asyncio.Task[Any]] = {stopping, *tasks}
            while not stopping.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            # The observer keeps states too: one file is not written by both.
            observing.cancel()
            await asyncio.gather(observing, return_exceptions=True)
            # As they are before we end them.
            await self._observer.keep_states()
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            await self._archiving.close()
            await asyncio.to_thread(self._holds.close)
            await asyncio.to_thread(self._shards.close)
            await asyncio.to_thread(self._pipelines.close)
            if self._reconciler is not None:
                await self._reconciler.close()
        if self._publisher is not None and self._publishes_at_end:
            await self._publisher.finish()


async def capture(
    settings: Settings,
    log: CaptureLog,
    *,
    stop: asyncio.Event,
    publisher: Publisher | None = None,
    hangup: asyncio.Event | None = None,
    reloads: Reloads | None = None,
) -> None:
    """Capture all sources of `settings` into `log` until `stop` is set; reload at `hangup`, and
    tell `reloads`.

    A source that fails for good does not end this: its state is told to whoever asks. Raises what
    the supervisor or the observer fails with: the process ends, and its parent starts it again;
    and SupersededError once another machine publishes as this instance.
    """
    capturing = Capturing(settings, log, publisher=publisher, reloads=reloads)
    await capturing.run(stop=stop, hangup=hangup)
