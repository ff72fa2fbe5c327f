"""What retention removes. Pure: the log says what stands at its old end, this says what goes."""

import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from penstock.log.config import LogConfig
from penstock.ports import Hold
from penstock.wire import Block

_APART_SECONDS_MAX: Final = 60.0
_AGREED_SECONDS_MIN: Final = 3600.0
_AWAY_SECONDS_MAX: Final = 3600.0


class Clock(Protocol):
    """Where the log takes its time from."""

    def wall_ms(self) -> int:
        """Unix milliseconds; may jump."""
        ...

    def steady_seconds(self) -> float:
        """Seconds that never jump, from any start; they count while the machine sleeps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_seconds(self) -> float:
        # CLOCK_MONOTONIC stops while a laptop sleeps, and waking is no reason to distrust the time.
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)


class Trust:
    """Whether the wall clock still agrees with the steady one.

    A clock that was set is not believed at once, for it may be wrong, and everything would be too
    old. Once both have gone on together for an hour, whoever set it meant it.

    Nor is a clock believed at the start that is before `newest_ms`, when the log was last written,
    or more than an hour after it: a machine that comes up with a wrong clock has nothing else to
    tell it by, and a log that was closed for days keeps what is too old for an hour more.
    """

    def __init__(self, clock: Clock, *, newest_ms: int | None = None) -> None:
        self._clock = clock
        wall, steady = clock.wall_ms() / 1000, clock.steady_seconds()
        away = 0.0 if newest_ms is None else wall - newest_ms / 1000
        fits = -_APART_SECONDS_MAX <= away <= _AWAY_SECONDS_MAX
        self._believed = wall - steady if fits else None
        self._parted = None if fits else (wall - steady, steady)
        """How far apart they are now, and since when, in steady seconds."""

    def trusted(self) -> bool:
        """False from when they part by more than a minute until they agree again, or have gone on
        together for an hour as they are now. Only moments at which it is asked are looked at."""
        steady = self._clock.steady_seconds()
        apart = self._clock.wall_ms() / 1000 - steady
        if self._believed is not None and abs(apart - self._believed) <= _APART_SECONDS_MAX:
            self._parted = None
            return True
        if self._parted is None or abs(apart - self._parted[0]) > _APART_SECONDS_MAX:
            self._parted = apart, steady
            return False
        if steady - self._parted[1] < _AGREED_SECONDS_MIN:
            return False
        self._believed, self._parted = apart, None
        return True


def within_disk(config: LogConfig, total: int) -> LogConfig:
    """`config` for a disk of `total` bytes: what it can never hold, retention must not promise.

    The disk's size counts and not what is free of it: another's files make capture wait, and never
    push out what readers have not seen. A quarter is left for staging and for pages in transit.
    """
    above_floor = total - config.free_bytes_min
    if config.retention_bytes is None or above_floor <= 0:
        return config
    kept = min(config.retention_bytes, above_floor // 4 * 3)
    return config.model_copy(update={"retention_bytes": kept})


class Old(NamedTuple):
    """A commit's end near the log's old end, and what trimming up to it would take."""

    sequence: int
    check: int
    ingested_at: int
    """Of the newest entry that would go."""
    bytes: int
    """Of all blocks that would go wholly."""


class Holdings(NamedTuple):
    """What the log holds now."""

    head: int
    bytes: int
    """Of the pages in use; what was trimmed but not yet removed is not counted."""


def ends(block: Block, *, trimmed: int, gone: int, bytes_: int) -> Iterator[Old]:
    """The commit ends of `block` beyond the watermark, oldest first.

    The block takes up `bytes_`, and goes only with its last entry; those before it `gone`.
    """
    for i in np.flatnonzero(block.places["ends"]).tolist():
        sequence = block.first_sequence + i
        if sequence > trimmed:
            whole = bytes_ if sequence == block.last_sequence else 0
            yield Old(sequence, block.check(i) & 0xFFFFFFFF, block.ingested_at, gone + whole)


def due(
    candidates: Iterable[Old],
    *,
    config: LogConfig,
    held: Holdings,
    now: int | None,
    hold: Hold | None = None,
) -> Old | None:
    """The newest candidate (oldest first) up to which retention may trim now; None for none.

    By ingest time (never the source's, P22), bytes and count, whichever comes first. `now` None
    pauses the first. The newest entries stay, and so does what `hold` says, which is still valid.
    """
    chosen: Old | None = None
    gone = 0
    held_bytes_max = 0.0 if hold is None else _held_bytes_max(hold, config)
    for old in candidates:
        left = held.bytes - gone
        over_bytes = (
            config.retention_bytes is not None
            and left > config.retention_bytes
            and old.sequence < held.head
        )
        over_count = (
            config.retention_events is not None
            and held.head - old.sequence >= config.retention_events
        )
        over_age = (
            now is not None
            and config.retention is not None
            and now - old.ingested_at > config.retention * 1000
        )
        if not (over_bytes or over_count or over_age):
            break
        if hold is not None and old.sequence > hold.sequence and left <= held_bytes_max:
            break
        chosen, gone = old, old.bytes
    return chosen


def _held_bytes_max(hold: Hold, config: LogConfig) -> float:
    """Up to what size of the log what is held may stay."""
    if config.retention_bytes is None:
        return float("inf")
    # `within_disk` left a third as much again, and not for readers alone.
    return config.retention_bytes + min(hold.bytes_max, config.retention_bytes // 4)
