"""What the log raises: appending to it, opening it, reading it."""

from penstock.errors.base import PenstockError


class LogError(PenstockError):
    """The log failed. What it acknowledged before is safe."""

    code = "log"
    exit_code = 4


class LogFullError(LogError):
    """No space for an append; nothing of the append was kept (P5)."""

    code = "log.full"
    transient = True


class LogLockedError(LogError):
    """Another process writes this log."""

    code = "log.locked"


class LogFormatError(LogError):
    """The log is of a format that this Penstock does not read; nothing was changed."""

    code = "log.format"


class OutdatedFormatError(LogError):
    """The log is of an older format; `penstock run` upgrades it when it starts."""

    code = "log.outdated_format"


class LogCorruptError(LogError):
    """The log does not say what it must."""

    code = "log.corrupt"
