"""Keeps every source captured: retries what passes, stops what does not, and says which.

One task per source. A source that fails, falls silent or is stopped holds up no other
(invariant 8). Every retry starts a new pump from the log's own position, so nothing that happened
before it can be lost or appended twice.
"""

import asyncio
import random
import traceback
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import structlog
from msgspec import Struct, structs

from penstock.capture.pump import PumpLimits, PumpProgress, pump
from penstock.errors import LogFullError, PenstockError, SourceSilentError
from penstock.ports import ChangeLog, ChangeSource
from penstock.telemetry import SOURCE_ERRORS, SOURCE_RECONNECTS

logger = structlog.get_logger(__name__)

LOG_FULL_WAIT_SECONDS = 2.0
"""How soon capture looks again for space; short, because every source waits with it."""

_SILENCE_CHECKS = 4


class Clock(Protocol):
    """The time, handed in: tests turn its hands, and no run depends on the machine's."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class State(StrEnum):
    """What the capture of a source is doing."""

    STARTING = "starting"
    """Nothing has been made durable yet, and nothing has failed."""
    RUNNING = "running"
    RETRYING = "retrying"
    """A transient error; it goes on by itself."""
    LOG_FULL = "log_full"
    """The log has no space; it goes on by itself once there is some (P5)."""
    STOPPED = "stopped"
    """An error that no retry mends; somebody must act. The position stands."""
    FINISHED = "finished"
    """The source has said that it has nothing more to say."""


class SourceStatus(Struct, frozen=True, kw_only=True):
    """The state of a source's capture, for `status`, health and metrics."""

    source: str
    state: State
    since_ms: int
    """Unix milliseconds when this state was entered."""
    code: str = ""
    """The code of the error that led here; empty if none did."""
    message: str = ""
    """That error's sentence."""
    failures: int = 0
    """Failures in a row since something was last made durable."""
    restarts: int = 0
    """Sessions started after the first one."""


class Backoff(Struct, frozen=True, kw_only=True):
    """Waits between retries: doubling from the first to the longest, each with half of it random.

    The random half keeps sources that failed together from coming back together.
    """

    first_seconds: float = 0.25
    longest_seconds: float = 30.0

    def wait_seconds(self, failures: int, rng: random.Random) -> float:
        """How long to wait after the `failures`-th failure in a row (1 is the first)."""
        # 2.0**64 is beyond every sensible limit, and more would overflow a float.
        whole = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 64))
        return whole * (0.5 + rng.random() / 2)


class Supervised(Struct, frozen=True, kw_only=True):
    """A source, and how long it may be silent."""

    source: ChangeSource
    silence_seconds_max: float
    """A source that yields nothing for so long, not even an empty commit, is restarted (S15)."""


class Supervisor:
    """Runs a pump for each source, and knows how each one is.

    `run` returns once every source has finished or stopped; cancel it to stop capture.
    """

    def __init__(
        self,
        log: ChangeLog,
        sources: Sequence[Supervised],
        *,
        clock: Clock,
        rng: random.Random,
        backoff: Backoff | None = None,
        limits: PumpLimits | None = None,
    ) -> None:
        self._log = log
        self._sources = sources
        self._clock = clock
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._limits = limits
        self._status = {
            name: SourceStatus(source=name, state=State.STARTING, since_ms=clock.now_ms())
            for name in (supervised.source.name for supervised in sources)
        }

    def status(self) -> list[SourceStatus]:
        """How each source is, in the order of the configuration."""
        return list(self._status.values())

    async def run(self) -> None:
        """Capture every source until each has finished or stopped."""
        async with asyncio.TaskGroup() as group:
            for supervised in self._sources:
                group.create_task(self._keep(supervised))

    async def _keep(self, supervised: Supervised) -> None:
        """Capture one source until it ends or fails for good; raises only when cancelled."""
        name = supervised.source.name
        try:
            try:
                await self._sessions(supervised)
            finally:
                await supervised.source.close()
        except PenstockError as error:
            self._stop(name, error.code, str(error))
        except Exception as error:  # a defect in one adapter stops only that one
            # Where it happened, but not its text, which might quote a document.
            logger.error(  # noqa: TRY400
                "source stopped by a defect",
                source=name,
                error=type(error).__name__,
                where=traceback.format_tb(error.__traceback__),
            )
            self._stop(
                name,
                "internal",
                f"{name}: capture stopped on a defect ({type(error).__name__}). Nothing was "
                f"skipped and the position stands. Please report it with the log lines above.",
            )
        else:
            self._enter(name, State.FINISHED)

    async def _sessions(self, supervised: Supervised) -> None:
        """Run session after session until the source ends. Raises what no retry mends."""
        name = supervised.source.name
        failures = 0
        while True:
            progress = PumpProgress()
            try:
                await self._session(supervised, progress)
                return
            except PenstockError as error:
                if not error.transient:
                    raise
                failures = 1 if progress.appended else failures + 1
                full = isinstance(error, LogFullError)
                wait_seconds = (
                    LOG_FULL_WAIT_SECONDS
                    if full
                    else self._backoff.wait_seconds(failures, self._rng)
                )
                SOURCE_ERRORS.labels(name, error.code).inc()
                logger.warning(
                    "capture waits for space in the log" if full else "source failed; retrying",
                    source=name,
                    code=error.code,
                    failures=failures,
                    wait_seconds=round(wait_seconds, 3),
                )
                self._enter(
                    name,
                    State.LOG_FULL if full else State.RETRYING,
                    code=error.code,
                    message=str(error),
                    failures=failures,
                )
            await self._clock.sleep(wait_seconds)
            SOURCE_RECONNECTS.labels(name).inc()
            self._set(name, restarts=self._status[name].restarts + 1)

    async def _session(self, supervised: Supervised, progress: PumpProgress) -> None:
        """One pump with its two watchers. Raises what the pump raises, or SourceSilentError."""
        source = supervised.source
        pumping = asyncio.ensure_future(
            pump(source, self._log, limits=self._limits, progress=progress)
        )
        silence = asyncio.ensure_future(self._silence(supervised, progress))
        recovery = asyncio.ensure_future(self._recovery(source.name, progress))
        try:
            await asyncio.wait({pumping, silence}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.cancelled():
                raise RuntimeError("the source cancelled its own session")
            await (pumping if pumping.done() else silence)
        finally:
            for task in (pumping, silence, recovery):
                task.cancel()
            await asyncio.gather(pumping, silence, recovery, return_exceptions=True)

    async def _silence(self, supervised: Supervised, progress: PumpProgress) -> None:
        """Raise SourceSilentError once the source was asked and said nothing for its deadline."""
        quiet_checks, received = 0, progress.received
        while quiet_checks < _SILENCE_CHECKS:
            await self._clock.sleep(supervised.silence_seconds_max / _SILENCE_CHECKS)
            heard = progress.waits_for_log or progress.received != received
            quiet_checks = 0 if heard else quiet_checks + 1
            received = progress.received
        raise SourceSilentError(
            source=supervised.source.name, silence_seconds_max=supervised.silence_seconds_max
        )

    async def _recovery(self, name: str, progress: PumpProgress) -> None:
        """Call the source running once it moves: that it connects again proves nothing."""
        await progress.moved.wait()
        if self._status[name].failures:
            logger.info("source captured again", source=name)
        self._enter(name, State.RUNNING)

    def _stop(self, name: str, code: str, message: str) -> None:
        SOURCE_ERRORS.labels(name, code).inc()
        logger.error("source stopped; it needs attention", source=name, code=code)
        self._enter(name, State.STOPPED, code=code, message=message)

    def _enter(
        self, name: str, state: State, *, code: str = "", message: str = "", failures: int = 0
    ) -> None:
        before = self._status[name]
        since_ms = before.since_ms if before.state is state else self._clock.now_ms()
        self._set(
            name, state=state, since_ms=since_ms, code=code, message=message, failures=failures
        )

    def _set(self, name: str, **facts: Any) -> None:
        self._status[name] = structs.replace(self._status[name], **facts)
