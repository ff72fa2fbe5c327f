"""Keeps every source captured: retries what passes, stops what does not, and says which.

One task per source. A source that fails, falls silent, is stopped, paused, added or removed holds
up no other (invariant 8). Every retry starts a new pump from the log's own position, so nothing
that happened before it can be lost or appended twice.
"""

import asyncio
import random
import traceback
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import structlog
from msgspec import Struct, structs

from penstock.capture.breaker import Breaker
from penstock.capture.deadletter import dead_letters_of
from penstock.capture.inject import Injector
from penstock.capture.meter import begin_counting
from penstock.capture.notices import notice, notice_at
from penstock.capture.pump import Gate, PumpLimits, PumpProgress, pump
from penstock.capture.rewinding import Rewound, rewound
from penstock.capture.status import SourceStatus, State
from penstock.capture.watch import Gaps
from penstock.errors import LogError, LogFullError, PenstockError, RequestError, SourceSilentError
from penstock.event import Commit
from penstock.ports import ChangeLog, ChangeSource, SourceState
from penstock.telemetry import SOURCE_ERRORS, SOURCE_RECONNECTS

logger = structlog.get_logger(__name__)

LOG_FULL_WAIT_SECONDS = 2.0
"""How soon capture looks again for space; short, because every source waits with it."""

_SILENCE_CHECKS = 4
_AT_REST = frozenset({State.PAUSED, State.STOPPED, State.FINISHED})
"""The states in which nothing of a source is on its way into the log."""


class Clock(Protocol):
    """The time, handed in: tests turn its hands, and no run depends on the machine's."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def steady_seconds(self) -> float:
        """Seconds that never jump, from any start."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Backoff(Struct, frozen=True, kw_only=True):
    """Waits between retries: doubling from the first to the longest, each with half of it random.

    The random half keeps sources that failed together from coming back together.
    """

    first_seconds: float = 0.25
    longest_seconds: float = 30.0
    breaker_failures: int = 5
    """After so many failures in a row the source is left alone for `breaker_seconds`, and then
    tried once at a time, until it moves again."""
    breaker_seconds: float = 30.0

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
    gate: Gate | None = None
    """Where it waits for its share of the log."""


class _Kept:
    """A source, the task that captures it, and what the task must remember between sessions."""

    def __init__(self, supervised: Supervised, breaker: Breaker) -> None:
        self.supervised = supervised
        self.breaker = breaker
        self.task: asyncio.Task[None] | None = None
        self.to_say: str | None = "started"
        """What the log is told with the next commit that becomes durable."""
        self.progress = PumpProgress()
        """Of the session under way, or the last one."""
        self.as_of_ms: int | None = None
        """Up to when everything was durable before that session."""


class Supervisor:
    """Runs a pump for each source, and knows how each one is.

    Sources are paused, resumed, rewound, added, replaced and removed while it runs, one such step
    at a time; none of them touches another source. What it says of a source in the log:
    `penstock.capture.notices`.
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
        paused: frozenset[str] = frozenset(),
        injector: Injector | None = None,
    ) -> None:
        """Sources named in `paused` are not captured until they are resumed."""
        self._injector = injector
        self._log = log
        self._clock = clock
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._limits = limits
        self.gaps = Gaps()
        self._group: asyncio.TaskGroup | None = None
        self._turn = asyncio.Lock()
        self._kept: dict[str, _Kept] = {}
        self._status: dict[str, SourceStatus] = {}
        for supervised in sources:
            self._admit(supervised, paused=supervised.source.name in paused)

    def status(self) -> list[SourceStatus]:
        """How each source is, in the order of the configuration."""
        found: list[SourceStatus] = []
        for name, status in self._status.items():
            kept, state = self._kept[name], status.state
            gate = kept.supervised.gate
            if gate is not None and gate.waiting and state in {State.STARTING, State.RUNNING}:
                state = State.OVER_QUOTA
            found.append(
                structs.replace(
                    status,
                    state=state,
                    circuit=kept.breaker.circuit,
                    as_of_ms=kept.progress.as_of_ms or kept.as_of_ms,
                    dead_letters=dead_letters_of(kept.supervised.source),
                )
            )
        return found

    def sources(self) -> list[ChangeSource]:
        """What is captured, or would be if it were not paused or stopped."""
        return [kept.supervised.source for kept in self._kept.values()]

    async def run(self, *, lasting: bool = False) -> None:
        """Capture every source until each has finished or stopped; if `lasting`, until cancelled,
        so that a source can be resumed or added when all others have ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name, kept in self._kept.items():
                if self._status[name].state is not State.PAUSED:
                    self._start(kept)
            if lasting:
                await asyncio.Event().wait()

    # --- what an operator asks for ----------------------------------------------------------------

    async def pause(self, name: str) -> bool:
        """Stop capturing a source until it is resumed; False if it is paused already.

        What it was appending is durable or dropped as a whole when this returns; its position
        stands. Raises RequestError for a name that is not captured.
        """
        async with self._turn:
            kept = self._known(name)
            if self._status[name].state is State.PAUSED:
                return False
            await self._halt(kept)
            self._enter(name, State.PAUSED)
            await self._say(name, "paused", {})
            return True

    async def resume(self, name: str) -> bool:
        """Capture a source that is paused, stopped or finished, or try now what waits for its next
        retry; False if it is being captured. Raises RequestError for a name that is not captured.
        """
        async with self._turn:
            kept = self._known(name)
            state = self._status[name].state
            if state in {State.RUNNING, State.STARTING}:
                return False
            await self._halt(kept)
            if state is State.PAUSED:
                kept.to_say = "resumed"
            elif state in {State.STOPPED, State.FINISHED}:
                kept.to_say = "started"
            kept.breaker.succeeded()
            self._enter(name, State.STARTING)
            self._start(kept)
            return True

    async def rewind(
        self, name: str, *, to: str | None = None, by_seconds: float | None = None
    ) -> Rewound:
        """Move a source back to a place that it still has, and return where it stands then.

        Everything after that place is captured again, with the eventIds that it had. Exactly one of
        `to`, a position of the source or of one of its events, and `by_seconds`, counted back by
        the source's clock. Raises RequestError for a source that is not paused or stopped, has
        nothing to rewind, or cannot; and what the source says of a place that is gone.
        """
        async with self._turn:
            kept, status = self._known(name), self._status[name]
            if status.state not in _AT_REST:
                raise RequestError(
                    f"{name} is being captured ({status.state}), and a position in use is not "
                    f"moved. Nothing was changed. Run `penstock pause {name}` first."
                )
            said, back = await rewound(
                self._log,
                kept.supervised.source,
                await self._durable(name),
                name=name,
                to=to,
                by_seconds=by_seconds,
                at_ms=self._clock.now_ms(),
            )
            await self._log.abandon(name)
            # One append: the entry is there exactly if the position was moved.
            await self._log.append([said])
            logger.info("source rewound", source=name)
            return back

    @asynccontextmanager
    async def at_rest(self, name: str) -> AsyncGenerator[None]:
        """Inside the block `name` is not captured, and nobody can start it.

        It may be a source that is not configured. Raises RequestError for one that is captured.
        """
        async with self._turn:
            status = self._status.get(name)
            if status is not None and status.state not in _AT_REST:
                raise RequestError(
                    f"{name} is being captured ({status.state}), and a position in use is not "
                    f"moved. Nothing was changed. Run `penstock pause {name}` first."
                )
            yield

    def configure(self, backoff: Backoff) -> None:
        """Wait out failures in this way from now on. Circuits begin closed."""
        self._backoff = backoff
        for kept in self._kept.values():
            kept.breaker = self._breaker()

    async def add(self, supervised: Supervised, *, paused: bool = False) -> None:
        """Capture one source more. Raises RequestError for a name in use."""
        async with self._turn:
            if supervised.source.name in self._kept:
                raise RequestError(f"{supervised.source.name} is captured already.")
            kept = self._admit(supervised, paused=paused)
            if not paused:
                self._start(kept)

    async def replace(self, supervised: Supervised) -> None:
        """Capture a source as it is configured now, from where it stands; paused, it stays so."""
        async with self._turn:
            name = supervised.source.name
            kept, paused = self._known(name), self._status[name].state is State.PAUSED
            await self._halt(kept)
            kept = self._admit(supervised, paused=paused)
            if not paused:
                self._start(kept)

    async def remove(self, name: str) -> None:
        """Capture a source no more. Its position stays in the log, for when it is added again."""
        async with self._turn:
            await self._halt(self._known(name))
            await self._say(name, "removed", {})
            del self._kept[name], self._status[name]

    def _known(self, name: str) -> _Kept:
        kept = self._kept.get(name)
        if kept is None:
            names = ", ".join(self._kept) or "none"
            raise RequestError(
                f"there is no source {name!r}; captured are: {names}. Nothing was changed."
            )
        return kept

    def _admit(self, supervised: Supervised, *, paused: bool) -> _Kept:
        name = supervised.source.name
        begin_counting(name)
        self._kept[name] = _Kept(supervised, self._breaker())
        self._status[name] = SourceStatus(
            source=name,
            state=State.PAUSED if paused else State.STARTING,
            since_ms=self._clock.now_ms(),
        )
        return self._kept[name]

    def _breaker(self) -> Breaker:
        return Breaker(
            steady_seconds=self._clock.steady_seconds,
            failures_max=self._backoff.breaker_failures,
            open_seconds=self._backoff.breaker_seconds,
        )

    def _start(self, kept: _Kept) -> None:
        assert self._group is not None, "sources start once the supervisor runs"
        kept.task = self._group.create_task(self._keep(kept))

    @staticmethod
    async def _halt(kept: _Kept) -> None:
        task, kept.task = kept.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- what the log is told -------------------------------------------------------------------

    async def _durable(self, name: str) -> SourceState | None:
        return next((one for one in await self._log.sources() if one.source == name), None)

    async def _say(self, name: str, operation: str, facts: Mapping[str, object]) -> None:
        """Say it in the log, where the source stands; nothing of a source that never stood there.

        A log that refuses it holds up nothing: the state itself is in `status`, and no change
        depends on what is said of it.
        """
        try:
            # A transaction that is staged would end with our commit; it will be sent again.
            await self._log.abandon(name)
            state = await self._durable(name)
            if state is not None:
                await self._log.append(
                    [notice_at(state, operation, at_ms=self._clock.now_ms(), facts=facts)]
                )
        except LogError as error:
            logger.warning("the log took no notice", source=name, said=operation, code=error.code)

    def _opening(self, operation: str, state: SourceState | None, first: Commit) -> Commit:
        known = 0 if state is None else state.last_timestamp
        return notice(
            first.source,
            operation,
            position=first.position,
            at_ms=self._clock.now_ms(),
            timestamp=first.events[-1].timestamp if first.events else known,
            facts={"first": state is None},
        )

    # --- the task of a source -------------------------------------------------------------------

    async def _keep(self, kept: _Kept) -> None:
        """Capture one source until it ends or fails for good; raises only when cancelled."""
        source = kept.supervised.source
        name = source.name
        try:
            try:
                await self._sessions(kept)
            finally:
                await source.close()
        except PenstockError as error:
            await self._stop(name, error.code, str(error))
        except Exception as error:  # a defect in one adapter stops only that one
            # Where it happened, but not its text, which might quote a document.
            logger.error(  # noqa: TRY400
                "source stopped by a defect",
                source=name,
                error=type(error).__name__,
                where=traceback.format_tb(error.__traceback__),
            )
            await self._stop(
                name,
                "internal",
                f"{name}: capture stopped on a defect ({type(error).__name__}). Nothing was "
                f"skipped and the position stands. Please report it with the log lines above.",
            )
        else:
            self._enter(name, State.FINISHED)

    async def _sessions(self, kept: _Kept) -> None:
        """Run session after session until the source ends. Raises what no retry mends."""
        name, failures = kept.supervised.source.name, 0
        while True:
            while not kept.breaker.admit():
                await self._clock.sleep(kept.breaker.wait_seconds())
            kept.as_of_ms = kept.progress.as_of_ms or kept.as_of_ms
            kept.progress = progress = PumpProgress()
            try:
                await self._session(kept, progress)
                return
            except PenstockError as error:
                if not error.transient:
                    raise
                full = isinstance(error, LogFullError)
                failures = 1 if progress.appended else failures + 1
                wait_seconds = LOG_FULL_WAIT_SECONDS
                if not full:  # no fault of the source's
                    kept.breaker.failed()
                    backoff_seconds = self._backoff.wait_seconds(failures, self._rng)
                    # Those whose circuits opened together come back apart, too.
                    open_seconds = kept.breaker.wait_seconds() * (1 + self._rng.random() / 2)
                    wait_seconds = max(backoff_seconds, open_seconds)
                SOURCE_ERRORS.labels(name, error.code).inc()
                logger.warning(
                    "capture waits for space in the log" if full else "source failed; retrying",
                    source=name,
                    code=error.code,
                    failures=failures,
                    circuit=kept.breaker.circuit,
                    wait_seconds=round(wait_seconds, 3),
                    reason=str(error),
                )
                self._enter(
                    name,
                    State.LOG_FULL if full else State.RETRYING,
                    code=error.code,
                    message=str(error),
                    failures=failures,
                )
                self._set(name, errors=self._status[name].errors + 1)
            finally:
                kept.breaker.undecided()
            await self._clock.sleep(wait_seconds)
            SOURCE_RECONNECTS.labels(name).inc()
            self._set(name, restarts=self._status[name].restarts + 1)

    async def _session(self, kept: _Kept, progress: PumpProgress) -> None:
        """One pump with its two watchers. Raises what the pump raises, or SourceSilentError."""
        source, opening = kept.supervised.source, None
        if kept.to_say is not None:
            state = await self._durable(source.name)
            opening = partial(self._opening, kept.to_say, state)
        pumping = asyncio.ensure_future(
            pump(
                source,
                self._log,
                limits=self._limits,
                progress=progress,
                opening=opening,
                on_notice=self.gaps.take,
                gate=kept.supervised.gate,
                injector=self._injector,
            )
        )
        silence = asyncio.ensure_future(self._silence(kept.supervised, progress))
        recovery = asyncio.ensure_future(self._recovery(kept, progress))
        try:
            await asyncio.wait({pumping, silence}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.cancelled():
                raise RuntimeError("the source cancelled its own session")
            await (pumping if pumping.done() else silence)
        finally:
            for task in (pumping, silence, recovery):
                task.cancel()
            await asyncio.gather(pumping, silence, recovery, return_exceptions=True)
            if progress.opened:
                kept.to_say = None

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

    async def _recovery(self, kept: _Kept, progress: PumpProgress) -> None:
        """Call the source running once it moves: that it connects again proves nothing."""
        name = kept.supervised.source.name
        await progress.moved.wait()
        kept.breaker.succeeded()
        if self._status[name].failures:
            logger.info("source captured again", source=name)
        self._enter(name, State.RUNNING)

    async def _stop(self, name: str, code: str, message: str) -> None:
        SOURCE_ERRORS.labels(name, code).inc()
        logger.error("source stopped; it needs attention", source=name, code=code, reason=message)
        self._enter(name, State.STOPPED, code=code, message=message)
        self._set(name, errors=self._status[name].errors + 1)
        await self._say(name, "stopped", {"code": code})

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
