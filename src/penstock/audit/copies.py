"""Copies of a source's tables, as a trail tells them: which is under way, what one makes certain.
Pure.

A copy that is complete tells every row that its tables have, whatever was lost before it began: a
row of which nothing was told since then is gone. That holds only where the trail has the copy
whole, from its beginning, with nothing lost meanwhile. So its rows are counted against what the
source says that it told: a trail into which a log was read again has the words of a copy, and its
rows elsewhere.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from penstock.capture.deadletter import COLLECTION as DEAD_LETTERS

Name = tuple[str, str]
"""A database and a table."""
COPY: Final = "copy"
"""The `op` of what is told of a copy; `said` has its `operation`."""
STARTED: Final = "snapshot_started"
COMPLETED: Final = "snapshot_completed"
COUNTED: Final = "counted"
"""What whoever reads a trail adds to the record of a copy that is complete: how many rows of copies
the trail has between its beginning and its end."""


class _UnderWay(Struct):
    snapshot: str
    since: dict[Name, int]
    """By table: the record with which its copy began."""


class Copies:
    """Follows the copies of one trail, in its order."""

    def __init__(self) -> None:
        self._copy: _UnderWay | None = None

    def lost(self) -> None:
        """Changes of all tables were lost: what is copied now proves nothing of before."""
        self._copy = None

    def copies(self, name: Name) -> bool:
        """Whether a table is being copied."""
        return self._copy is not None and name in self._copy.since

    def take(self, record: Mapping[str, Any]) -> dict[Name, int]:
        """What is told of a copy: when one is complete, its tables, each with the record since
        which all of its rows were told; else nothing."""
        said: Mapping[str, Any] = record.get("said") or {}
        under_way, snapshot = self._copy, said.get("snapshot")
        same = under_way is not None and under_way.snapshot == snapshot
        if said.get("operation") == STARTED:
            if under_way is None or not same:
                # One that goes on after a loss, or whose beginning is not here, proves nothing.
                known = None if said.get("again") else _UnderWay(snapshot=str(snapshot), since={})
                under_way = self._copy = known
            if under_way is not None:
                for name in names_of(said):
                    under_way.since.setdefault(name, int(record["at"]))
            return {}
        self._copy = None
        if under_way is None or not same or not _is_here(record, said):
            return {}
        covered = set(names_of(said))
        return {name: since for name, since in under_way.since.items() if name in covered}


def names_of(said: Mapping[str, Any]) -> Iterator[Name]:
    """The tables of a copy, but for names that may be read in two ways. Letters are ours, and no
    table of the source."""
    for one in said.get("collections") or ():
        database, _, table = str(one).partition(".")
        if database and table and "." not in table and table != DEAD_LETTERS:
            yield database, table


def _is_here(record: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
    """Whether the trail has every row that a copy told. One without rows proves nothing: nobody
    can tell where in the trail it belongs."""
    told = said.get("documents")
    return isinstance(told, int) and told > 0 and record.get(COUNTED) == told
