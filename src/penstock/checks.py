"""What a doctor says of one thing it looked at, and why something cannot be reached."""

import difflib
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but somebody should decide whether it may stay so."""
    ERROR = "error"
    """It does not work, or loses changes."""


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    level: Level
    detail: str
    fix: str = ""
    """What to run or change; empty when there is nothing to do, or `detail` says it."""

    def __post_init__(self) -> None:
        if self.level is Level.OK and self.fix:
            raise ValueError(f"{self.name} is ok and has something to be done")

    @classmethod
    def failed(cls, name: str, error: Exception) -> "Check":
        """The check that `error` ended; its sentence says what to do."""
        return cls(name=name, level=Level.ERROR, detail=str(error))

    @property
    def ok(self) -> bool:
        """Whether there is nothing to do."""
        return self.level is Level.OK

    @classmethod
    def names(cls, unmatched: Collection[str]) -> list["Check"]:
        """A warning for settings that name what is not there; none where there is no such."""
        if not unmatched:
            return []
        fix = "correct the name; what is created later is matched from then on"
        detail = "; ".join(unmatched)
        return [cls(name="names", level=Level.WARNING, detail=detail, fix=fix)]


def unmatched(
    settings: Iterable[tuple[str, str]],
    there: Collection[str],
    matches: Callable[[str], bool],
    *,
    what: str = "that is there",
) -> list[str]:
    """A sentence for each (setting, pattern) that matches nothing, with the nearest names that are
    `there`; `what` says of these what they are."""
    told: list[str] = []
    for setting, pattern in settings:
        if not matches(pattern):
            near = difflib.get_close_matches(pattern, sorted(there), n=3, cutoff=0.6)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            told.append(f"{setting} {pattern!r} matches nothing {what}{hint}")
    return told
