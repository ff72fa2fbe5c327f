"""What is said of an event that has no exact form: where it is, and what to do. Pure."""

from penstock.errors import SourceUnavailableError, UndecodableError
from penstock.sources.mysql.binlog import EventType
from penstock.sources.mysql.events import Place
from penstock.sources.mysql.row_readers import UnreadableTableError


def undecodable(
    source: str, kind: int, error: ValueError, *, at: Place | None, after: str
) -> UndecodableError:
    """The error to stop with for an event of this type, which raised `error` as it was read: `at` a
    place within a transaction, or between two, behind those of `after`."""
    if isinstance(error, UnreadableTableError):
        what = str(error)
    elif isinstance(error, UnicodeDecodeError):
        what = f"text that is not of its character set, {error.encoding}"
    else:
        name = EventType(kind).name if kind in set(EventType) else "unknown"
        what = f"an event of type {kind} ({name}): {error}"
    return UndecodableError(
        source=source,
        what=what,
        position=f"{at.gtid}:{at.ordinal}" if at else f"after {after}",
        remedy="Nothing is lost while the server keeps its binlogs. If the message names a "
        "setting, correct it and start the source again with a new copy or position; if it "
        "names a table, leaving it out (`exclude`) lets the others go on; else please report "
        "it with the type named here.",
    )


def taken_back(source: str, transaction: str) -> SourceUnavailableError:
    """The error to begin again with where a part was handed on of what was not committed."""
    return SourceUnavailableError(
        f"{source}: a part of the transaction {transaction} was read that the server then took "
        f"back. Nothing of it was kept; capture starts over without it."
    )
