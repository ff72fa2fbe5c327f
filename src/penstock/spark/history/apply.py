"""From a chunk to what is written: versions, columns and rejects of one table. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.history.columns import (
    AS_OF_EVENT,
    CURRENT,
    FROM_SEQUENCE,
    INSTANT,
    OPERATION,
    TO_SEQUENCE,
    VALID_FROM,
    VALID_TO,
    VERSION_COLUMNS,
    VERSION_NAMING,
)
from penstock.spark.history.resolve import Resolved, as_of_event, resolve
from penstock.spark.history.versions import NEVER, OPEN, REJECT, Places, Points, Versions, decide
from penstock.spark.table.apply import entries_of, table_cells
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.chunk import Chunk, concat_cells
from penstock.spark.table.constrained import NO_CONSTRAINTS, unmet_by
from penstock.spark.table.declared import with_declared
from penstock.spark.table.decode import Cells, documents_of
from penstock.spark.table.delta import as_wide
from penstock.spark.table.kinds import document_field
from penstock.spark.table.placing import place
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE, SOURCE, Placement
from penstock.spark.table.reduce import DELETE, PUT, codes_of
from penstock.spark.table.rejects import Reject

SNAPSHOT: Final = "snapshot"
RENAME: Final = "rename"


class Tracking(Struct, frozen=True, kw_only=True):
    """Which fields make a new version when they change; as Spark's AUTO CDC names them."""

    columns: frozenset[str] = frozenset()
    """Only these; empty for all."""
    except_columns: frozenset[str] = frozenset()

    def tracks(self, field: str) -> bool:
        """Whether a change of the document's `field` makes a new version."""
        return field in self.columns if self.columns else field not in self.except_columns

    def parts(self, before: Any, after: Any) -> Any:
        """Whether two changes that tell the same are of two versions, because the one surely has
        its values right after it (True) and the other not; of single ones or by place.

        With columns that are not tracked, one that was looked up may be of these alone. It is of
        the version then, which is not sure any more; what is told for sure begins another.
        """
        return before < after if self.columns or self.except_columns else before != after


class HistoryWrite(Struct, frozen=True, kw_only=True):
    """What one batch does to one table."""

    versions: pa.Table
    """VERSION_COLUMNS and the documents' columns: each version that is new or not as it was."""
    fresh: bool
    """None of them is in the table."""
    widened: bool
    """An existing column changes its type: the table must be written anew."""
    rejects: list[Reject]


def prepare(
    chunk: Chunk,
    *,
    schema: pa.Schema,
    base: pa.Table,
    tracking: Tracking,
    bytes_max: int,
    constraints: Mapping[str, str] = NO_CONSTRAINTS,
) -> HistoryWrite:
    """Decide what `chunk`, entries of one collection, does to its table.

    `schema` are the documents' columns of the table now; `base` its open versions of all keys of
    the chunk. A change by which a row does not meet one of `constraints` is rejected. Raises
    TooLargeError as `resolve` does.
    """
    resolved = resolve(chunk, base, bytes_max=bytes_max)
    marks = np.zeros(chunk.rows.num_rows, np.int64)
    write, _ = _prepare(
        chunk,
        resolved,
        marks,
        schema=schema,
        base=base,
        tracking=tracking,
        constraints=constraints,
    )
    return write


def prepare_move(
    moved: pa.Table,
    replaced: pa.Table,
    *,
    schema: pa.Schema,
    database: str,
    sequence: int,
    timestamp: int,
) -> HistoryWrite:
    """Decide how open versions `moved` of one table begin anew in another, or in the same.

    `replaced` are open versions of the table they come to, and end with the same event. Versions
    that were unsure stay so. A row that does not fit is in the rejects with all it had.
    """
    said = {"sequence": sequence, "timestamp": timestamp, "operation_type": RENAME}
    ended = entries_of(replaced, **said, role=DELETE)
    begun = entries_of(moved, **said, role=PUT, database=database)
    nothing: Cells = {}
    cells = table_cells(moved, own=VERSION_COLUMNS)
    count, rows = ended.num_rows, ended.num_rows + begun.num_rows
    chunk = Chunk(
        rows=arrow.concat_tables([ended, begun]).combine_chunks(),
        cells=concat_cells((nothing, count), (cells, begun.num_rows)),
    )
    documents = np.where(chunk.roles == PUT, np.arange(rows), -1)
    sure = np.append(np.zeros(count, bool), as_of_event(moved[AS_OF_EVENT]))
    resolved = Resolved(
        cells=chunk.cells, count=rows, documents=documents, as_of_event=sure, rejects=[]
    )
    marks = np.append(np.zeros(count, np.int64), _integers(moved[REJECTED]))
    write, misfits = _prepare(
        chunk, resolved, marks, schema=schema, base=replaced, tracking=Tracking()
    )
    lost = documents_of(chunk.cells, misfits)
    rejects = [
        structs.replace(reject, key=chunk.rows["key"][row].as_py(), document=document)
        for reject, row, document in zip(write.rejects, misfits, lost, strict=True)
    ]
    return structs.replace(write, rejects=rejects)


def prepare_mend(
    chunk: Chunk,
    *,
    begun: NDArray[np.int64],
    marks: NDArray[np.int64],
    schema: pa.Schema,
    tracking: Tracking,
    bytes_max: int,
) -> HistoryWrite:
    """Decide anew which versions there are, where `chunk` has some of the table among its changes.

    By row of the chunk: `begun` is the sequence at which such a version began, and that of a
    change; `marks` is the rejected change that a version brings along. Raises TooLargeError.
    """
    nothing = VERSION_COLUMNS.empty_table()
    resolved = resolve(chunk, nothing, bytes_max=bytes_max)
    write, _ = _prepare(
        chunk, resolved, marks, schema=schema, base=nothing, tracking=tracking, begun=begun
    )
    return write


def _prepare(
    chunk: Chunk,
    resolved: Resolved,
    marks: NDArray[np.int64],
    *,
    schema: pa.Schema,
    base: pa.Table,
    tracking: Tracking,
    begun: NDArray[np.int64] | None = None,
    constraints: Mapping[str, str] = NO_CONSTRAINTS,
) -> tuple[HistoryWrite, list[int]]:
    """What is written, and the rows of the chunk that fit no column.

    `marks` are rejected changes that the chunk's PUTs bring along. `begun` is where those began
    that are versions already; without it, none is.
    """
    if begun is None:
        begun = chunk.sequences
    documented = np.flatnonzero(resolved.documents >= 0)
    row_of = np.zeros(resolved.count, np.int64)
    row_of[resolved.documents[documented]] = documented
    existing = with_declared(schema, chunk.declared, VERSION_NAMING)
    placement = place(
        existing,
        resolved.cells,
        chunk.sequences[row_of],
        naming=VERSION_NAMING,
        others=unmet_by(constraints, resolved.documents[documented].astype(np.intp)),
    )
    misfits = {int(row_of[at]): why for at, why in placement.misfits.items()}
    rejects = resolved.rejects + [
        Reject(sequence=int(chunk.sequences[row]), reason=why.reason, field=why.field)
        for row, why in sorted(misfits.items())
    ]
    roles = np.where(resolved.documents >= 0, PUT, REJECT).astype(np.int8)
    roles[chunk.roles == DELETE] = DELETE
    roles[list(misfits)] = REJECT
    points = Points(
        codes=_codes(base, chunk),
        sequences=np.append(_integers(base[SEQUENCE]), chunk.sequences),
        roles=np.append(np.full(base.num_rows, OPEN, np.int8), roles),
        marks=np.append(_integers(base[REJECTED]), marks),
    )
    sure = np.append(as_of_event(base[AS_OF_EVENT]), resolved.as_of_event)
    # A version that was set since it began tells that, whatever its values are by now.
    was_set = np.append(np.zeros(base.num_rows, bool), begun != chunk.sequences)
    values = _Values(base, placement, resolved, sure, tracking, was_set)
    versions = decide(points, values.differ)
    write = HistoryWrite(
        versions=_table(versions, base, chunk, points, values, begun),
        fresh=bool((versions.first >= base.num_rows).all()),
        widened=placement.widened,
        rejects=rejects,
    )
    return write, sorted(misfits)


class _Values:
    """The documents' columns of all points, and how they differ."""

    def __init__(
        self,
        base: pa.Table,
        placement: Placement,
        resolved: Resolved,
        sure: NDArray[np.bool_],
        tracking: Tracking,
        was_set: NDArray[np.bool_],
    ) -> None:
        self.schema = placement.schema
        self._was_set = was_set
        self.sure = sure
        """By point: whether its values are surely as of its change."""
        self._at = np.append(np.arange(base.num_rows), base.num_rows + resolved.documents)
        self._columns: list[Column] = []
        for field, column in zip(placement.schema, placement.columns, strict=True):
            known = (
                as_wide(base[field.name].combine_chunks(), field.type)
                if field.name in base.column_names
                else arrow.nulls(base.num_rows, field.type)
            )
            self._columns.append(arrow.concat_arrays([known, column]) if len(known) else column)
        self._parts = tracking.parts
        self._tracked = [tracking.tracks(document_field(field)) for field in placement.schema]
        sizes = [column.nbytes for column in self._columns]
        # Those that decide first, and of them the small ones.
        self._order = sorted(range(len(sizes)), key=lambda at: (not self._tracked[at], sizes[at]))

    def take(self, points: Places) -> list[Column]:
        """The columns of some points that have values."""
        indices = arrow.array(self._at[points])
        return [column.take(indices) for column in self._columns]

    def differ(self, before: Places, after: Places) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """As `versions.Differ`."""
        tracked = self._parts(self.sure[before], self.sure[after])
        anything = (self.sure[before] != self.sure[after]) | self._was_set[after]
        left = np.flatnonzero(~tracked)
        for number in self._order:
            if not len(left):
                break
            column = self._columns[number]
            one, other = (arrow.array(self._at[points[left]]) for points in (before, after))
            differs = _differs(column.take(one), column.take(other))
            anything[left] |= differs
            if self._tracked[number]:
                # What is a version of its own is one, whatever the other columns say.
                tracked[left] = differs
                left = left[~differs]
        return tracked, anything


def _differs(one: Column, other: Column) -> NDArray[np.bool_]:
    """Where two columns differ, bit by bit: 0.0 is not -0.0, and NaN is NaN."""
    if arrow.types.is_float64(one.type):
        one, other = one.view(pa.int64()), other.view(pa.int64())
    equal = compute.fill_null(compute.equal(one, other), False)
    neither = compute.and_(compute.is_null(one), compute.is_null(other))
    differs: NDArray[np.bool_] = compute.invert(compute.or_(equal, neither)).to_numpy(
        zero_copy_only=False
    )
    return differs


def _table(
    versions: Versions,
    base: pa.Table,
    chunk: Chunk,
    points: Points,
    values: _Values,
    begun: NDArray[np.int64],
) -> pa.Table:
    rows = chunk.rows
    instants = rows["timestamp"].combine_chunks().cast(pa.timestamp("ms", "UTC")).cast(INSTANT)
    copied = compute.fill_null(rows["snapshot"].combine_chunks(), False)
    operations = compute.if_else(copied, SNAPSHOT, rows["operation_type"].combine_chunks())

    def of_both(own: str, column: Column) -> Column:
        joined: Column = arrow.concat_arrays([base[own].combine_chunks(), column])
        return joined

    first = arrow.array(versions.first)
    is_open = versions.end < 0
    end = arrow.array(versions.end, mask=is_open)
    opened = of_both(FROM_SEQUENCE, arrow.array(begun))
    times = of_both(VALID_FROM, instants)
    columns: dict[str, Any] = {
        KEY: of_both(KEY, rows["key"].combine_chunks()).take(first),
        SOURCE: of_both(SOURCE, rows["source"].combine_chunks()).take(first),
        DATABASE: of_both(DATABASE, rows["database"].combine_chunks()).take(first),
        OPERATION: of_both(OPERATION, operations).take(first),
        VALID_FROM: times.take(first),
        VALID_TO: times.take(end),
        FROM_SEQUENCE: opened.take(first),
        TO_SEQUENCE: opened.take(end),
        CURRENT: arrow.array(is_open),
        SEQUENCE: arrow.array(points.sequences[versions.last]),
        AS_OF_EVENT: arrow.array(values.sure[versions.last]),
        REJECTED: arrow.array(versions.rejected, mask=versions.rejected == NEVER),
    }
    return arrow.Table.from_arrays(
        [*(columns[name] for name in VERSION_COLUMNS.names), *values.take(versions.last)],
        schema=arrow.schema([*VERSION_COLUMNS, *values.schema]),
    )


def _codes(base: pa.Table, chunk: Chunk) -> NDArray[np.int64]:
    """One number per point, equal exactly for the same row; `collection` is the table's."""
    names = {"source": SOURCE, "database": DATABASE, "key": KEY}
    known = arrow.table({name: base[own].cast(pa.string()) for name, own in names.items()})
    both = arrow.concat_tables([known, chunk.rows.select(list(names))])
    nothing = arrow.nulls(both.num_rows, pa.string())
    return codes_of(both.append_column("collection", nothing))


def _integers(column: Any) -> NDArray[np.int64]:
    integers: NDArray[np.int64] = compute.fill_null(column, NEVER).to_numpy()
    return integers.astype(np.int64)
