"""What is known of entries before rows are made of them: that they are whole, and their events.

Entries are read once for it, without their documents: workers prove the commits and pass on events,
which are few. Whoever asks gets an error at once, and not when rows are used.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from penstock.client.flight import from_wire, to_wire
from penstock.errors import ChangesLostError, IncompleteCommitError, PipelineError
from penstock.event import Kind
from penstock.spark.functions.lives import Lives, Turn
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import Control, control_of
from penstock.spark.table.events import Effect, effect_of
from penstock.spark.table.reduce import sum_commits, verify_commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS: Final = (
    "sequence",
    "commit",
    "commit_rows",
    "commit_digest",
    "check",
    "kind",
    "operation_type",
    "source",
    "database",
    "collection",
    "timestamp",
)
SURVEYED: Final = (*_COLUMNS, "full_document")

_REPORT: Final = arrow.schema(
    [
        ("sequence", pa.int64()),
        ("kind", pa.int8()),
        ("operation_type", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("collection", pa.string()),
        ("timestamp", pa.int64()),
        ("full_document", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("wrong", pa.binary()),
    ]
)
_REPORT_DDL: Final = (
    "sequence long, kind byte, operation_type string, source string, database string, "
    "collection string, timestamp long, full_document string, first long, last long, wrong binary"
)


class Survey(Struct, frozen=True, kw_only=True):
    """What entries say beside the changes of rows."""

    first: int
    last: int
    """0 where there is no entry."""
    events: list[tuple[Control, Effect]]
    """Those that are not harmless, in order."""

    @property
    def lives(self) -> Lives:
        """Of the collections."""
        return Lives(
            [
                Turn(
                    sequence=control.sequence,
                    timestamp=control.timestamp,
                    source=control.source,
                    effect=effect,
                )
                for control, effect in self.events
                if effect.ends or effect.moves
            ]
        )


def survey(
    entries: "DataFrame", *, collections: Sequence[str], halts: bool, of_rows: bool = True
) -> Survey:
    """Read `entries` once; `collections` are those that they are of, none of them means all.

    Raises IncompleteCommitError, ChangesLostError at a gap if it `halts`, and PipelineError for
    entries of two logs that are seen to be, and for an event of which it is not known what it does,
    where it is asked `of_rows`.
    """
    # The documents of changes need not be sorted along.
    said = f"CASE WHEN kind <> {int(Kind.DATA)} THEN full_document END AS full_document"
    sorted_ = (
        entries.selectExpr(*(f"`{name}`" for name in _COLUMNS), said)
        .repartition("commit")
        .sortWithinPartitions("commit", "sequence", "check")
    )
    work = partial(report, whole=not collections)
    reports: list[dict[str, Any]] = sorted_.mapInArrow(work, _REPORT_DDL).toArrow().to_pylist()
    return summed(reports, collections=collections, halts=halts, of_rows=of_rows)


def summed(
    rows: Sequence[dict[str, Any]],
    *,
    collections: Sequence[str],
    halts: bool,
    of_rows: bool = True,
) -> Survey:
    """What all partitions reported (`report`), as one; raises as `survey`."""
    for row in rows:
        if row["wrong"] is not None:
            raise from_wire(row["wrong"]) or PipelineError("a commit is not whole.")
    ends = [row for row in rows if row["first"] is not None]
    # Imported late: it brings what writes tables, of which workers need nothing.
    from penstock.spark.table.writing import changes_no_row

    controls = [control_of(row) for row in rows if row["sequence"] is not None]
    controls.sort(key=lambda control: control.sequence)
    events = [
        (control, _effect(control, collections, halts=halts, of_rows=of_rows))
        for control in controls
        if not changes_no_row(control)
    ]
    return Survey(
        first=min((row["first"] for row in ends), default=0),
        last=max((row["last"] for row in ends), default=0),
        events=events,
    )


def is_named(source: str, collection: str, names: Sequence[str]) -> bool:
    """Whether it is one of `names`: collections, or source/collection."""
    return collection in names or f"{source}/{collection}" in names


def _effect(control: Control, collections: Sequence[str], *, halts: bool, of_rows: bool) -> Effect:
    def follows(name: str) -> bool:
        return bool(name) and (not collections or is_named(control.source, name, collections))

    effect = effect_of(control, follows=follows)
    if not effect.known and of_rows:
        raise PipelineError(
            f"at sequence {control.sequence} the source says {control.operation!r} of "
            f"{control.database}.{control.collection}, and what that does to its rows is not known "
            f"here. Nothing was made of the entries. Use a Penstock that knows it, or copy the "
            f"collection again (penstock snapshot) and take the entries behind it."
        )
    if effect.lost and halts and (of_rows or control.kind is Kind.GAP):
        raise ChangesLostError(sequence=control.sequence, description=effect.lost)
    ends = tuple(place for place in effect.ends if not place[1] or follows(place[1]))
    return structs.replace(effect, ends=ends)


def report(batches: Iterable[pa.RecordBatch], *, whole: bool) -> Iterator[pa.RecordBatch]:
    """Rows of _REPORT of a partition of entries, sorted by commit and sequence: its events, a
    commit that is not whole, and its first and last sequence. Each entry counts once."""
    first, last, before, check = 0, 0, 0, np.int64(0)
    rest: list[pa.Table] = []
    for batch in batches:
        sequences = batch["sequence"].to_numpy()
        if not len(sequences):
            continue
        entries = arrow.Table.from_batches([batch])
        # Who is not shown all of an entry is not shown what proves it.
        checks = compute.fill_null(batch["check"], 0).to_numpy()
        again = np.diff(sequences, prepend=before) == 0
        if (again & (np.diff(checks, prepend=check) != 0)).any():
            yield _row(wrong=to_wire(_two_logs()))
            return
        entries = entries.filter(arrow.array(~again))
        before, check = int(sequences[-1]), checks[-1]
        if not entries.num_rows:
            continue
        least, most = int(sequences.min()), int(sequences.max())
        first, last = min(first or least, least), max(last, most)
        rest = [*rest, sum_commits(entries)]
        ended = compute.max(entries["commit"]).as_py()
        try:
            rest = _verified(rest, before=ended, whole=whole)
        except IncompleteCommitError as error:
            yield _row(wrong=to_wire(error))
            return
        yield from _events(entries)
    try:
        _verified(rest, before=None, whole=whole)
    except IncompleteCommitError as error:
        yield _row(wrong=to_wire(error))
    if last:
        yield _row(first=first, last=last)


def _two_logs() -> PipelineError:
    return PipelineError(
        "two entries of one sequence are not the same: these are entries of more than one log. "
        "Nothing was made of them. Ask for the rows of each log by itself."
    )


def _verified(rest: list[pa.Table], *, before: int | None, whole: bool) -> list[pa.Table]:
    """Check the commits before one of which more may come; what is left of it."""
    if not rest:
        return []
    sums = arrow.concat_tables(rest)
    if before is None:
        verify_commits(sums, whole=whole)
        return []
    behind = compute.greater_equal(sums["commit"], before)
    verify_commits(sums.filter(compute.invert(behind)), whole=whole)
    return [sums.filter(behind)]


def _events(entries: pa.Table) -> Iterator[pa.RecordBatch]:
    kinds = arrow.array([int(Kind.GAP), int(Kind.SCHEMA)], entries["kind"].type)
    for row in entries.filter(compute.is_in(entries["kind"], kinds)).to_pylist():
        yield _row(**{name: row[name] for name in row if name in _REPORT.names})


def _row(**said: Any) -> pa.RecordBatch:
    row: pa.RecordBatch = arrow.RecordBatch.from_pylist(
        [dict.fromkeys(_REPORT.names) | said], schema=_REPORT
    )
    return row
