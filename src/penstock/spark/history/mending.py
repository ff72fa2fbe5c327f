"""Rejected changes put where they belong among the versions of their rows. Pure.

Of each row the versions around its rejected changes are told once more, as points in the order of
the log: what the table has, what is tried now, and where the row ended. So the versions come out as
if the changes had never been rejected. A version behind one that is mended may turn out to tell
nothing new: then the one before lasts as long as it did, and it is taken out.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock.spark.history.apply import RENAME, Tracking, prepare_mend
from penstock.spark.history.columns import (
    AS_OF_EVENT,
    FROM_SEQUENCE,
    IDENTITY,
    OPERATION,
    TO_SEQUENCE,
    VALID_FROM,
    VALID_TO,
    VERSION_COLUMNS,
)
from penstock.spark.history.courses import Course
from penstock.spark.history.versions import NEVER
from penstock.spark.table.apply import entries_of, table_cells
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import Chunk, concat_cells, reduce_entries
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE, SOURCE
from penstock.spark.table.reduce import DELETE, PUT, RELATIVE

_NAMED: Final = [KEY, SOURCE, DATABASE, SEQUENCE]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Identity = tuple[str, str, str]
"""(key, source, database) of a row."""


class Mend(Struct, frozen=True, kw_only=True):
    """What a replay does to a table of versions."""

    versions: pa.Table
    """VERSION_COLUMNS and the documents' columns: each version that is new or not as it was."""
    gone: pa.Table
    """Versions of the table that tell nothing new any more."""
    widened: bool
    """An existing column changes its type: the table must be written anew."""
    refused: dict[int, str]
    """Changes that are rejected again, by sequence: why."""


def mend(
    versions: pa.Table,
    entries: pa.Table,
    *,
    courses: Mapping[Identity, Course],
    times: Mapping[int, int],
    schema: pa.Schema,
    tracking: Tracking,
    bytes_max: int,
) -> Mend:
    """Decide where the changes that are tried belong.

    `versions` are all of their rows in the table; `entries` (INPUT_COLUMNS) are those changes, with
    all steps done, of one collection; `times` has the Unix milliseconds of all `ends`, by sequence.
    Raises TooLargeError if it comes to more than `bytes_max`.
    """
    known, marks, closings = _known(versions, courses)
    ends = [
        (own, at, times[at])
        for own, course in courses.items()
        if course.tried
        for at in course.ends
        if at > course.tried[0]
    ]
    changes = reduce_entries(entries, every=True)
    tried = {at for course in courses.values() for at in course.tried}
    collection = entries["collection"][0].as_py()
    begun: list[Any] = known[FROM_SEQUENCE].to_pylist()
    last: list[Any] = known[SEQUENCE].to_pylist()
    told = entries_of(known, role=PUT, collection=collection)
    told = _with(told, "sequence", last)
    told = _with(told, "timestamp", known[VALID_FROM].cast(pa.int64()).to_numpy() // 1000)
    told = _with(told, "operation_type", known[OPERATION].to_pylist())
    told = _with(told, "full_document_as_of_event", known[AS_OF_EVENT].to_pylist())
    # Behind a mark that stays, what builds on the row is not applied to a state that never was.
    stale = [
        (_own(row), max(mark, row[SEQUENCE]), 0)
        for row, mark in zip(known.select(_NAMED).to_pylist(), marks, strict=True)
        if mark != NEVER
    ]
    parts = [
        (_rows([*closings, *ends], role=DELETE, operation="delete", collection=collection), {}),
        (told, table_cells(known, own=VERSION_COLUMNS)),
        (changes.rows, changes.cells),
        (_rows(stale, role=RELATIVE, operation="update", collection=collection), {}),
    ]
    counts = [rows.num_rows for rows, _ in parts]
    first = counts[0]
    chunk = Chunk(
        rows=arrow.concat_tables([rows for rows, _ in parts]).combine_chunks(),
        cells=concat_cells(*((cells, rows.num_rows) for rows, cells in parts)),
        declared=changes.declared,
    )
    since, brought = chunk.sequences.copy(), np.full(sum(counts), NEVER, np.int64)
    since[first : first + len(begun)] = begun
    brought[first : first + len(begun)] = marks
    order = np.argsort(chunk.sequences, kind="stable")
    write = prepare_mend(
        chunk.take(order),
        begun=since[order],
        marks=brought[order],
        schema=schema,
        tracking=tracking,
        bytes_max=bytes_max,
    )
    return Mend(
        versions=_changed(write.versions, known),
        gone=_absent(known, write.versions),
        widened=write.widened,
        refused={one.sequence: one.reason for one in write.rejects if one.sequence in tried},
    )


def _known(
    versions: pa.Table, courses: Mapping[Identity, Course]
) -> tuple[pa.Table, list[int], list[tuple[Identity, int, int]]]:
    """The versions that the changes are tried among; the mark that each keeps; and where and when
    (Unix milliseconds) each ended that nothing tried may last beyond."""
    versions = versions.sort_by([(FROM_SEQUENCE, "ascending")])
    by_row: dict[Identity, list[tuple[int, dict[str, Any]]]] = {}
    for at, row in enumerate(versions.select(VERSION_COLUMNS.names).to_pylist()):
        by_row.setdefault(_own(row), []).append((at, row))
    places: list[int] = []
    closings: list[tuple[Identity, int, int]] = []
    marks: dict[int, int] = {}
    for own, course in courses.items():
        if not course.tried:
            continue
        first = course.tried[0]
        around = [
            (at, row)
            for at, row in by_row.get(own, ())
            if row[TO_SEQUENCE] is None or row[TO_SEQUENCE] >= first
        ]
        open_ended = {
            row[FROM_SEQUENCE]
            for (_, before), (_, row) in pairwise([(-1, {FROM_SEQUENCE: 0}), *around])
            if row[OPERATION] != RENAME
            and any(before[FROM_SEQUENCE] < at < row[FROM_SEQUENCE] for at in course.tried)
        }
        for at, row in around:
            places.append(at)
            mark = row[REJECTED]
            marks[at] = NEVER if mark is None or mark in course.tried else mark
            if row[TO_SEQUENCE] is not None and row[TO_SEQUENCE] not in open_ended:
                closings.append((own, row[TO_SEQUENCE], _millis(row[VALID_TO])))
    known = versions.take(arrow.array(places, pa.int64())).combine_chunks()
    return known, [marks[at] for at in places], closings


def _changed(versions: pa.Table, known: pa.Table) -> pa.Table:
    """Those of the versions that the table does not have just so."""
    there = {tuple(row.values()) for row in known.select(VERSION_COLUMNS.names).to_pylist()}
    rows = versions.select(VERSION_COLUMNS.names).to_pylist()
    fresh = [tuple(row.values()) not in there for row in rows]
    return versions.filter(arrow.array(fresh, pa.bool_()))


def _absent(known: pa.Table, versions: pa.Table) -> pa.Table:
    """Those of `known` of which none of the versions is the same."""
    left = {tuple(row.values()) for row in versions.select(list(IDENTITY)).to_pylist()}
    rows = known.select(list(IDENTITY)).to_pylist()
    return known.filter(arrow.array([tuple(row.values()) not in left for row in rows], pa.bool_()))


def _rows(
    named: Sequence[tuple[Identity, int, int]], *, role: int, operation: str, collection: str
) -> pa.Table:
    """Rows of a chunk (ROW_SCHEMA) that tell nothing but where and when."""
    columns = list(zip(*((*own, at, time) for own, at, time in named), strict=True)) or [()] * 5
    names = (KEY, SOURCE, DATABASE)
    own = arrow.table(
        {name: arrow.array(columns[at], pa.string()) for at, name in enumerate(names)}
    )
    told = entries_of(own, role=role, operation_type=operation, collection=collection)
    return _with(_with(told, "sequence", columns[3]), "timestamp", columns[4])


def _with(rows: pa.Table, name: str, values: Any) -> pa.Table:
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(at)
    return rows.set_column(at, field, arrow.array(values, field.type))


def _own(row: Mapping[str, Any]) -> Identity:
    return row[KEY], row[SOURCE], row[DATABASE]


def _millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
