"""What capture knows of itself: gauges, the answer to `penstock status`, and whom to alert."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from penstock.capture import Supervisor, health_of
from penstock.capture.alerts import Alert, Episodes, Kind
from penstock.capture.config import CaptureConfig
from penstock.capture.gaps import GapWatch
from penstock.capture.status import SourceStatus, State
from penstock.capture.supervise import Clock
from penstock.capture.watch import (
    ASK_SECONDS,
    LossWatch,
    NamesWatch,
    Silence,
    conditions_of,
    tell_silence,
)
from penstock.cli.last_states import LastStates
from penstock.cli.remembered import AlertMemory, Remembered
from penstock.ports import LogReader, SourceState
from penstock.telemetry import (
    GAPS_OPEN,
    LOG_HEAD_SEQUENCE,
    LOG_TRIMMED_SEQUENCE,
    SOURCE_LAG_SECONDS,
    SOURCE_NEAR_LOSS,
    SOURCE_SINCE_CHANGE_SECONDS,
    SOURCE_STATE,
)

OBSERVE_SECONDS: Final = 1.0
RATE_SECONDS: Final = 10
"""A source's rate is its mean over about so many seconds."""


class ObservedLog(LogReader, Protocol):
    """What is looked at."""

    @property
    def age_retention_paused(self) -> bool: ...


class Observer:
    """Looks at the log and the sources once a second."""

    def __init__(
        self,
        log: ObservedLog,
        supervisor: Supervisor,
        config: CaptureConfig,
        clock: Clock,
        *,
        alert: Callable[[Alert], bool],
        memory: AlertMemory,
        last: LastStates,
        archive: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        """`alert` takes what somebody must be told, or returns False to be offered it again; what
        became of it is said to `delivered`. `memory` keeps over restarts what was told, `last`
        how sources were. `archive` says how the archive is; None without one."""
        self.config = config
        self._log = log
        self._supervisor = supervisor
        self._clock = clock
        self._alert = alert
        self._archive = archive
        self._events: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATE_SECONDS + 1)
        self._lags: dict[str, float] = {}
        self._silence = Silence()
        self._silent: frozenset[str] = frozenset()
        self._loss = LossWatch()
        self._names = NamesWatch()
        self._memory = memory
        self._last = last
        remembered = memory.read()
        self._episodes = Episodes(told=remembered.told)
        # What was told of another log's gaps is no news of this one's, and not over either.
        self.gaps = GapWatch(
            log, remembered.scanned, on_forgotten=lambda: self._episodes.forget(Kind.GAP)
        )
        """Reads the log for gaps, which others may have written."""

    def delivered(self, alert: Alert) -> None:
        """An alert has reached somebody."""
        self._episodes.delivered(alert)

    async def run(self) -> None:
        """Look once a second, for as long as capture runs."""
        while True:
            await self.observe()
            await self._clock.sleep(OBSERVE_SECONDS)

    async def ask_sources(self) -> None:
        """Ask the sources how near they are to loss, and which of their settings name nothing, for
        as long as capture runs."""
        while True:
            await self._loss.ask(self._supervisor.sources(), await self._log.sources())
            await self._names.ask(
                self._supervisor.sources(),
                running={
                    status.source
                    for status in self._supervisor.status()
                    if status.state in {State.STARTING, State.RUNNING}
                },
                steady_seconds=self._clock.steady_seconds(),
            )
            await self._clock.sleep(ASK_SECONDS)

    async def read_gaps(self) -> None:
        """Read the log for gaps, for as long as capture runs."""
        while True:
            await self.gaps.step()
            await self._clock.sleep(OBSERVE_SECONDS)

    async def observe(self) -> None:
        """Look once: set the gauges, and send what must be told."""
        sources = await self._log.sources()
        bounds = await self._log.bounds()
        steady = self._clock.steady_seconds()
        self._events.append((steady, {state.source: state.events for state in sources}))
        LOG_HEAD_SEQUENCE.set(bounds.head)
        LOG_TRIMMED_SEQUENCE.set(bounds.trimmed)
        statuses = self._supervisor.status()
        self._tell_times(sources, statuses)
        self._tell_troubles(statuses)
        captured = {status.source for status in statuses}
        silent = self._silence.observe(
            (state for state in sources if state.source in captured),
            silent_after=self.config.silent_after,
            steady_seconds=steady,
        )
        self._silent = tell_silence(self._silent, silent, captured)
        conditions = conditions_of(
            statuses,
            loss=self._loss.seconds,
            time_to_loss_min=self.config.time_to_loss_min,
            gaps=self.gaps.scanned.gaps.open if self.gaps.complete else {},
        )
        self._episodes.step(
            conditions,
            now_ms=self._clock.now_ms(),
            steady_seconds=steady,
            send=self._alert,
            unknown=() if self.gaps.complete else (Kind.GAP,),
        )
        await self._memory.keep(
            Remembered(scanned=self.gaps.scanned, told=self._episodes.told()),
            steady_seconds=steady,
        )
        await self.keep_states()

    def _tell_times(self, sources: Sequence[SourceState], statuses: Sequence[SourceStatus]) -> None:
        told = {status.source: status for status in statuses}
        for state in sources:
            if state.last_timestamp:
                since = max(0.0, self._clock.now_ms() - state.last_timestamp) / 1000
                SOURCE_SINCE_CHANGE_SECONDS.labels(state.source).set(since)
            if state.source in told:
                lag = lag_seconds(told[state.source], state, now_ms=self._clock.now_ms())
                self._lags[state.source] = lag
                SOURCE_LAG_SECONDS.labels(state.source).set(lag)

    def _tell_troubles(self, statuses: Sequence[SourceStatus]) -> None:
        for gauge in (SOURCE_STATE, SOURCE_NEAR_LOSS, GAPS_OPEN):
            gauge.clear()  # of sources that are captured no more
        for status in statuses:
            name = status.source
            for state in State:
                SOURCE_STATE.labels(name, state.value).set(status.state is state)
            SOURCE_NEAR_LOSS.labels(name).set(self._near_loss(name))
            if self.gaps.complete:
                GAPS_OPEN.labels(name).set(len(self.gaps.scanned.gaps.open.get(name, {})))

    def _near_loss(self, source: str) -> bool:
        to_loss = self._loss.seconds.get(source)
        return to_loss is not None and to_loss < self.config.time_to_loss_min

    async def keep_states(self) -> None:
        """Write down how the sources are, for whoever asks when this process is gone."""
        await self._last.keep(self._supervisor.status())

    async def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """The answer to the request `status`: this process, and every source's capture."""
        return {
            "pid": os.getpid(),
            "ageRetentionPaused": self._log.age_retention_paused,
            "archive": self._archive(),
            "sources": [self._source(status) for status in self._supervisor.status()],
        }

    def _source(self, status: SourceStatus) -> dict[str, Any]:
        name = status.source
        to_loss = self._loss.seconds.get(name)
        health = health_of(
            status,
            failures_max=self.config.unhealthy_failures,
            silent=name in self._silent,
            near_loss=self._near_loss(name),
        )
        return {
            "source": name,
            "state": status.state.value,
            "sinceMs": status.since_ms,
            "code": status.code,
            "message": status.message,
            "failures": status.failures,
            "errors": status.errors,
            "restarts": status.restarts,
            "circuit": status.circuit.value,
            "health": health.value,
            "silent": name in self._silent,
            "secondsToLoss": to_loss,
            "deadLetters": status.dead_letters,
            "gapsDetected": self._supervisor.gaps.detected.get(name, 0),
            "eventsPerSecond": self._rate(name),
            "lagSeconds": self._lags.get(name),
            "unmatched": self._names.unmatched.get(name, []),
        }

    def _rate(self, source: str) -> float:
        if len(self._events) < 2:
            return 0.0
        (since, before), (now, after) = self._events[0], self._events[-1]
        return (after.get(source, 0) - before.get(source, 0)) / (now - since)


def lag_seconds(status: SourceStatus, state: SourceState, *, now_ms: int) -> float:
    """For how long the source may have had what we have not: a quiet source says that it has
    nothing, at least once a heartbeat. Of one that said nothing since we started, since its
    position last moved."""
    if status.state is State.FINISHED:
        return 0.0
    as_of_ms = state.moved_at if status.as_of_ms is None else status.as_of_ms
    return max(0.0, (now_ms - as_of_ms) / 1000)
