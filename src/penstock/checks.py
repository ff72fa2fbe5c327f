"""What a doctor says of one thing it looked at, and why something cannot be reached."""

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
