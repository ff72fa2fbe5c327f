"""What a bar says of work that takes long. Pure: no clock and no terminal.

Times are seconds of a clock that only goes on.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.cli import output

PACE_SECONDS: Final = 30.0
"""A pace is that of the last so many seconds, or of the last few steps if these took longer."""
_STEPS_MIN: Final = 3
_APART_SECONDS: Final = 0.25
_FIRST_SECONDS: Final = 1.0
"""Of less than that no pace is told."""


class Line(Struct, frozen=True, kw_only=True):
    """One bar, with what is said beside it."""

    label: str
    done: int
    total: int | None
    """What `done` will be at the end, as far as is known now; None: nobody knows."""
    count: str = ""
    """What is done, or left to do."""
    rate: str = ""
    left: str = ""
    """How long it will take still."""
    said: tuple[tuple[str, str], ...] = ()
    """Words, each with the style that it is written in."""
    moves: bool = True
    """Whether it may still come on."""

    @property
    def percent(self) -> str:
        """How much of it is done; nothing where no end is known. 100 % is all of it."""
        if self.total is None:
            return ""
        return "100%" if not self.total else f"{100 * self.done // self.total}%"


def line(
    label: str,
    *,
    done: int,
    total: int | None,
    count: str = "",
    rate: str = "",
    left: str = "",
    said: tuple[tuple[str, str], ...] = (),
    moves: bool = True,
) -> Line:
    """A bar that neither goes over its end nor below nothing: an end that was passed was wrong."""
    done = max(0, done)
    return Line(
        label=label,
        done=done,
        total=None if total is None else max(done, total),
        count=count,
        rate=rate,
        left=left,
        said=said,
        moves=moves,
    )


class Step(Struct, frozen=True, kw_only=True):
    """How much was done, and how much was left, at one moment."""

    at: float
    done: int
    behind: int = 0


def stepped(steps: Sequence[Step], step: Step) -> tuple[Step, ...]:
    """`steps` and one more, without those that no pace needs any more."""
    # Who tells of each block would have a hundred thousand.
    dense = len(steps) > 1 and step.at - steps[-2].at < _APART_SECONDS
    kept = [*(steps[:-1] if dense else steps), step]
    while len(kept) > _STEPS_MIN and kept[1].at <= step.at - PACE_SECONDS:
        del kept[0]
    return tuple(kept)


def rate_per_second(steps: Sequence[Step], now: float) -> float | None:
    """What was done each second of late; None where that is not known yet."""
    seconds = _seconds(steps, now)
    return None if seconds is None else max(0, steps[-1].done - steps[0].done) / seconds


def seconds_left(steps: Sequence[Step], now: float, *, behind: int) -> float | None:
    """How long until nothing is left, if what is left shrinks as it did of late; None where it does
    not shrink, or that is not known yet."""
    if behind <= 0:
        return 0.0
    seconds = _seconds(steps, now)
    if seconds is None:
        return None
    shrunk = steps[0].behind - behind
    return behind * seconds / shrunk if shrunk > 0 else None


def _seconds(steps: Sequence[Step], now: float) -> float | None:
    """How long the pace is looked at; None before there is one."""
    if len(steps) < 2:
        return None
    seconds = max(now, steps[-1].at) - steps[0].at
    return seconds if seconds >= _FIRST_SECONDS else None


def left_words(seconds: float | None) -> str:
    """How long it will take, for people."""
    return "" if seconds is None or seconds <= 0 else f"{output.duration(seconds)} left"
