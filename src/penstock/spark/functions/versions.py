"""Every version of every row: what is told of a row, and of its collection, as points. Pure."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from penstock.spark.functions.folding import Row
from penstock.spark.functions.lives import Lives, Turn
from penstock.spark.functions.points import Name, Pieces, Point, Version
from penstock.spark.functions.told import Entry, Told, as_batches, rows_in
from penstock.spark.history.apply import RENAME, SNAPSHOT, Tracking
from penstock.spark.history.columns import (
    AS_OF_EVENT,
    CURRENT,
    FROM_SEQUENCE,
    OPERATION,
    TO_SEQUENCE,
    VALID_FROM,
    VALID_TO,
    VERSION_COLUMNS,
)
from penstock.spark.history.resolve import sure_after
from penstock.spark.history.versions import NEVER, REJECT
from penstock.spark.table.arrow import arrow
from penstock.spark.table.events import Place
from penstock.spark.table.patch import State
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE, SOURCE
from penstock.spark.table.reduce import DELETE, PUT

VERSION_SCHEMA: Final = arrow.schema(
    [("collection", pa.string()), *VERSION_COLUMNS, ("document", pa.string())]
)
_NO_PLACE: Final = ("", "")


def versions(
    batches: Iterable[pa.RecordBatch], *, lives: Lives, tracking: Tracking
) -> Iterator[pa.RecordBatch]:
    """VERSION_SCHEMA of all that is told of rows, from the beginning."""
    rows = map(_as_row, _versions(batches, lives, tracking))
    yield from as_batches(rows, VERSION_SCHEMA, size=lambda row: len(row["document"]))


def _versions(
    batches: Iterable[pa.RecordBatch], lives: Lives, tracking: Tracking
) -> Iterator[Version]:
    pieces = Pieces(tracking)
    for told in rows_in(batches):
        for point in _Timeline(told, lives).points():
            yield from pieces.add(point)
    yield from pieces.decided()


class _Timeline:
    """All points of one row."""

    def __init__(self, told: Told, lives: Lives) -> None:
        self._told = told
        self._lives = lives
        self._row = Row(State(document=None))
        self._sure = True
        self._mark = NEVER
        """The first change since the row was known that was rejected."""

    def points(self) -> Iterator[Point]:
        """In order of the log."""
        place, after = _NO_PLACE, 0
        for entry in self._told.entries:
            if after:
                yield from self._events(place, after, entry["sequence"])
            place, after = (entry["database"], entry["collection"]), entry["sequence"]
            yield self._change(entry, place)
        yield from self._events(place, after, None)

    def _change(self, entry: Entry, place: Place) -> Point:
        refused = self._row.take(entry)
        self._sure = sure_after(
            role=entry["role"],
            as_of_event=bool(entry["full_document_as_of_event"]),
            documented=entry["full_document"] is not None,
            before=self._sure,
        )
        if refused:
            self._mark = self._mark or entry["sequence"]
        else:
            self._mark = NEVER
        document = None if refused else self._row.document
        return Point(
            name=self._name(place),
            role=REJECT if refused else DELETE if document is None else PUT,
            sequence=entry["sequence"],
            timestamp=entry["timestamp"],
            operation=SNAPSHOT if entry["snapshot"] else entry["operation_type"],
            text=document or "",
            sure=self._sure,
        )

    def _events(self, place: Place, after: int, until: int | None) -> Iterator[Point]:
        """What the events in (after, until) do to the row that is at `place`."""
        if not self._row.there:
            return
        steps = self._lives.steps(self._told.source, place, since=after, until=until)
        for turn, left, come in steps:
            yield self._point(turn, left, role=DELETE)
            if come is not None:
                yield self._point(turn, come, role=PUT)

    def _point(self, turn: Turn, place: Place, *, role: int) -> Point:
        return Point(
            name=self._name(place),
            role=role,
            sequence=turn.sequence,
            timestamp=turn.timestamp,
            operation=RENAME,
            text=self._row.document or "" if role == PUT else "",
            sure=self._sure,
            mark=self._mark if role == PUT else NEVER,
        )

    def _name(self, place: Place) -> Name:
        return Name(self._told.source, *place, self._told.key, self._told.life)


def _as_row(version: Version) -> dict[str, Any]:
    until = version.until
    return {
        "collection": version.name.collection,
        KEY: version.name.key,
        SOURCE: version.name.source,
        DATABASE: version.name.database,
        OPERATION: version.operation,
        VALID_FROM: version.since[1] * 1000,
        VALID_TO: None if until is None else until[1] * 1000,
        FROM_SEQUENCE: version.since[0],
        TO_SEQUENCE: None if until is None else until[0],
        CURRENT: until is None,
        SEQUENCE: version.sequence,
        AS_OF_EVENT: version.sure,
        REJECTED: version.rejected or None,
        "document": version.text,
    }
