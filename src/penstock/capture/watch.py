"""What only time tells of a source: that it is silent, or near to losing what we have not read.

A silent source is no gap (P19): only the source itself can say that changes are missing. It is a
reason to look whether it should be silent.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

import structlog

from penstock.capture.alerts import Condition, Kind
from penstock.capture.gaps import Gap
from penstock.capture.status import SourceStatus, State
from penstock.errors import PenstockError
from penstock.event import Kind as EventKind
from penstock.event import SystemEvent
from penstock.ports import ChangeSource, NamesThings, Retains, SourceState
from penstock.telemetry import GAPS_DETECTED, SOURCE_SILENT, SOURCE_TIME_TO_LOSS_SECONDS

logger = structlog.get_logger(__name__)

ASK_SECONDS: Final = 15.0
"""How often a source is asked how near its position is to loss."""
_ASK_NAMES_SECONDS_MAX: Final = 600.0
"""How often at the least it is asked which of its settings name nothing."""


class Silence:
    """Since when each source has had no change. Pure: it is told the time."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(
        self, states: Iterable[SourceState], *, silent_after: float | None, steady_seconds: float
    ) -> frozenset[str]:
        """The names of those that have had none for `silent_after` seconds of being looked at."""
        silent: set[str] = set()
        for state in states:
            events, since = self._seen.get(state.source, (-1, steady_seconds))
            if events != state.events:
                self._seen[state.source] = state.events, steady_seconds
            elif silent_after is not None and steady_seconds - since >= silent_after:
                silent.add(state.source)
        return frozenset(silent)


class LossWatch:
    """How many seconds each source's position is from loss, as it last said."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By name; nothing for a source that cannot tell, or does not answer."""

    async def ask(self, sources: Sequence[ChangeSource], states: Iterable[SourceState]) -> None:
        """Ask all of them at once: one that does not answer delays nobody's alert but its own."""
        positions = {state.source: state.position for state in states}
        asked = [
            (source, positions[source.name])
            for source in sources
            if isinstance(source, Retains) and source.name in positions
        ]
        answers = await asyncio.gather(*(_ask(source, position) for source, position in asked))
        told = {
            source.name: seconds
            for (source, _), seconds in zip(asked, answers, strict=True)
            if seconds is not None
        }
        for name in self.seconds.keys() - told.keys():
            SOURCE_TIME_TO_LOSS_SECONDS.remove(name)
        for name, seconds in told.items():
            SOURCE_TIME_TO_LOSS_SECONDS.labels(name).set(seconds)
        self.seconds = told


class NamesWatch:
    """Which settings of each source name nothing that is there."""

    def __init__(self) -> None:
        self.unmatched: dict[str, list[str]] = {}
        """By source: a sentence each."""
        self._asked: dict[str, _Asked] = {}

    async def ask(
        self, sources: Sequence[ChangeSource], *, running: Collection[str], steady_seconds: float
    ) -> None:
        """Ask those that run and of which something was not found yet, and log what is news.

        Each is asked ever more rarely: that is a connection and a list of what is there, and a
        pattern may be for what comes some day.
        """
        known = {source.name: source for source in sources}
        for name in [one for one in self.unmatched if one not in known]:
            del self.unmatched[name]
        asked = [
            source
            for source in sources
            if isinstance(source, NamesThings)
            and source.name in running
            and self._is_due(source, steady_seconds)
        ]
        answers = await asyncio.gather(*map(_names, asked))
        for source, answer in zip(asked, answers, strict=True):
            before = self._asked.get(source.name)
            pause = ASK_SECONDS
            if before is not None and before.source is source:
                pause = min(2 * before.pause, _ASK_NAMES_SECONDS_MAX)
            if answer == []:
                pause = inf
            self._asked[source.name] = _Asked(source, steady_seconds, pause)
            if answer is None:
                continue
            for sentence in answer:
                if sentence not in self.unmatched.get(source.name, ()):
                    logger.warning("a setting names nothing", source=source.name, reason=sentence)
            self.unmatched[source.name] = answer

    def _is_due(self, source: ChangeSource, steady_seconds: float) -> bool:
        before = self._asked.get(source.name)
        if before is None or before.source is not source:
            return True
        return steady_seconds - before.at >= before.pause


class _Asked(NamedTuple):
    source: ChangeSource
    at: float
    pause: float
    """Seconds until it is asked again; infinite where all that it names was there."""


async def _names(source: NamesThings) -> list[str] | None:
    try:
        return await source.unmatched()
    except PenstockError:
        return None  # as below


async def _ask(source: Retains, position: str) -> float | None:
    try:
        return await source.seconds_to_loss(position)
    except PenstockError:
        # Its own capture meets the same error, and that one is counted, shown and retried.
        return None


def tell_silence(
    before: frozenset[str], now: frozenset[str], known: Iterable[str]
) -> frozenset[str]:
    """Set the metric, and log what has become silent or speaks again. Returns `now`."""
    for name in known:
        SOURCE_SILENT.labels(name).set(name in now)
    for name in sorted(now - before):
        logger.warning("source has had no change for long; should it be quiet?", source=name)
    for name in sorted(before - now):
        logger.info("source has changes again", source=name)
    return now


def conditions_of(
    statuses: Iterable[SourceStatus],
    *,
    loss: dict[str, float],
    time_to_loss_min: float,
    gaps: Mapping[str, Mapping[str, Gap]],
) -> list[Condition]:
    """What is wrong now, for `Episodes`. `gaps` are those that are open, as in `OpenGaps`."""
    found: list[Condition] = []
    full = False
    for status in statuses:
        name = status.source
        found += [
            Condition(
                kind=Kind.GAP,
                source=name,
                part=part,
                since_ms=gap.since_ms,
                facts={"sequence": gap.sequence},
            )
            for part, gap in gaps.get(name, {}).items()
        ]
        full = full or status.state is State.LOG_FULL
        if status.state is State.STOPPED:
            found.append(Condition(kind=Kind.STOPPED, source=name, code=status.code))
        seconds = loss.get(name)
        if seconds is not None and seconds < time_to_loss_min:
            found.append(
                Condition(
                    kind=Kind.TIME_TO_LOSS,
                    source=name,
                    facts={"secondsToLoss": round(seconds), "state": status.state.value},
                )
            )
    if full:
        found.append(Condition(kind=Kind.LOG_FULL, code="log.full"))
    return found


class Gaps:
    """Gaps that sources have told the log of since this process started."""

    def __init__(self) -> None:
        self.detected: dict[str, int] = {}
        """By source, since the start."""

    def take(self, event: SystemEvent) -> None:
        """What a source said of itself, once it is durable."""
        if event.kind is EventKind.GAP:
            self.detected[event.source] = self.detected.get(event.source, 0) + 1
            GAPS_DETECTED.labels(event.source).inc()
