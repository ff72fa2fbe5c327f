"""Clocks, and whether to believe them: nothing may be thrown away because a clock was set."""

import time
from typing import Final, Protocol

_APART_SECONDS_MAX: Final = 60.0
_AGREED_SECONDS_MIN: Final = 3600.0
_AWAY_SECONDS_MAX: Final = 3600.0


class Clock(Protocol):
    """Where a part takes its time from."""

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
        self._fitting = wall - steady if newest_ms is None else newest_ms / 1000 - steady
        """How far apart they would be had no time gone by since the log was last written."""
        self._parted = None if fits else (wall - steady, steady)
        """How far apart they are now, and since when, in steady seconds."""

    def came_ms(self) -> int:
        """When what comes now comes, in Unix milliseconds: by the wall clock, or, while that has
        gone back from where it was believed, by the steady one. Earlier would be too old too soon.
        """
        self.trusted()
        wall_ms = self._clock.wall_ms()
        if self._believed is None:
            return wall_ms
        expected_ms = int((self._clock.steady_seconds() + self._believed) * 1000)
        return expected_ms if expected_ms - wall_ms > _APART_SECONDS_MAX * 1000 else wall_ms

    def earliest_ms(self) -> int:
        """For what must not end too soon, in Unix milliseconds: the wall clock's time, or, while
        that is not believed, the earlier one of it and what it would be had it gone on steadily.
        """
        trusted, wall_ms = self.trusted(), self._clock.wall_ms()
        if trusted:
            return wall_ms
        apart = self._fitting if self._believed is None else self._believed
        return min(wall_ms, int((self._clock.steady_seconds() + apart) * 1000))

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
