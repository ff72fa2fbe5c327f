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
from penstock.cli.config import Settings
from penstock.cli.control import Control
from penstock.cli.letters import LetterRequests
from penstock.cli.live import Reloads
from penstock.cli.logs import set_level
from penstock.cli.observer import Observer
from penstock.cli.operations import Operations
from penstock.cli.page import metrics
from penstock.cli.paused import PausedSources
from penstock.cli.quotas import share_of
from penstock.cli.reload import Plan, Reloader
from penstock.cli.remembered import AlertMemory
from penstock.cli.snapshot import SnapshotRequests
from penstock.log.config import LogConfig
from penstock.ports import ChangeLog, Hold
from penstock.state.holding import Holds
from penstock.state.reconcile import Reconciler

logger = structlog.get_logger(__name__)


class CaptureLog(ChangeLog, Protocol):
    """The log of a writing process: it also passes on what others ask of the writer."""

    def on_request(
        self, handler: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> None: ...

    def retain(self, config: LogConfig) -> None: ...

    def held_by(self, look: Callable[[], Hold | None]) -> None: ...

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
    clock, paused = SystemClock(), PausedSources(settings.log.path)
    reconciler = Reconciler(log, settings.log.path) if settings.state.enabled else None
    holds = Holds(settings.log.path)
    if settings.state.enabled:
        log.held_by(holds)
    supervisor = Supervisor(
        log,
        [supervised(settings, name, clock=clock) for name in settings.sources],
        clock=clock,
        rng=random.Random(),
        backoff=backoff_of(settings.capture),
        paused=paused.read(),
        injector=reconciler,
    )
    sender = Sender(settings.alerts)
    observer = Observer(
        log,
        supervisor,
        settings.capture,
        clock,
        alert=sender.offer,
        memory=AlertMemory(settings.log.path),
    )
    sender.on_delivered = observer.delivered
    control = Control()
    control.register("metrics", metrics)
    control.register("status", observer.status)
    Operations(log, supervisor, paused).register(control)
    copies = SnapshotRequests(
        settings.log.path, supervisor.sources, keeps_state=settings.state.enabled
    )
    control.register(snapshot.REQUEST, copies.answer)
    LetterRequests(supervisor).register(control)
    publishing.register(control, log, supervisor, publisher)

    on_shutdown = settings.checkpoint.on_shutdown

    async def apply(after: Settings, found: Plan) -> None:
        # Opened before anything is changed: what cannot be opened changes nothing.
        begun = [*found.added, *found.changed]
        opened = {name: supervised(after, name, clock=clock) for name in begun}
        log.retain(after.log)
        supervisor.configure(backoff_of(after.capture))
        observer.config = after.capture
        sender.configure(after.alerts)
        set_level(after.logging.level)
        if publisher is not None:
            publisher.configure(publishing.limits_of(after.checkpoint))
        nonlocal on_shutdown
        on_shutdown = after.checkpoint.on_shutdown
        if reloads is not None:
            reloads.take(after)
        kept = paused.read()
        for name in found.removed:
            await supervisor.remove(name)
        for name in found.changed:
            await supervisor.replace(opened[name])
        for name in found.added:
            await supervisor.add(opened[name], paused=name in kept)

    reloader = Reloader(settings, apply)
    control.register("reload", reloader.answer)
    log.on_request(control.answer)
    tasks = [
        asyncio.create_task(supervisor.run(lasting=True)),
        asyncio.create_task(observer.run()),
        asyncio.create_task(observer.ask_sources()),
        asyncio.create_task(observer.read_gaps()),
        asyncio.create_task(sender.run()),
        asyncio.create_task(reloader.on_hangup(hangup or asyncio.Event())),
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
        await asyncio.to_thread(holds.close)
        if reconciler is not None:
            await reconciler.close()
    if publisher is not None and on_shutdown:
        await publisher.finish()
