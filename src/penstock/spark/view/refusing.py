"""What a view's query cannot be computed with, in the rejects: each once, and settled by a replay.

The change is in the current rows, which are right; it is the view that lacks it. So it is never
applied again: it is settled when the view has the row, or a later change of it.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from penstock.spark.table.arrow import arrow
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.rejects import (
    REJECTS_SCHEMA,
    REPLAYED,
    SUPERSEDED,
    VIEW_STEP,
    between,
)
from penstock.spark.transform.fate import LEFT, Replayed
from penstock.spark.transform.settled import mark, outcome, unmoved
from penstock.spark.view.apart import ApartRow


class Refused(Struct, frozen=True, kw_only=True):
    """A row, or a group, that the query cannot compute."""

    collection: str
    key: str
    """A group's values, where it is one."""
    reason: str
    sequence: int | None = None
    """None for a group: it is as of where the rows are."""
    source: str | None = None
    database: str | None = None
    document: str | None = None


def note_refused(rejects: KeptTable, pipeline: str, refused: Sequence[Refused], *, at: int) -> None:
    """Append those that do not wait in the table already; `at` is where the current rows are."""
    rows = [_row(pipeline, one, at) for one in refused]
    sequences = [row["sequence"] for row in rows]
    here = between(pipeline, min(sequences), max(sequences))
    known = {
        _identity(row)
        for batch in rejects.scan(here)
        for row in batch.to_pylist()
        if row.get("step") == VIEW_STEP and row.get("state") is None
    }
    fresh = [row for row in rows if _identity(row) not in known]
    if fresh:
        there = rejects.applied(pipeline, log_id=None)
        stamp = unmoved(pipeline, log_id=None, at=there)
        rejects.append(arrow.Table.from_pylist(fresh, schema=REJECTS_SCHEMA), stamp)


def settle_refused(
    rejects: KeptTable,
    pipeline: str,
    pending: Sequence[Mapping[str, Any]],
    *,
    apart: Collection[ApartRow],
    failed: Collection[str],
    standing: Mapping[tuple[Any, ...], int],
) -> list[Replayed]:
    """Settle those `pending` that the view has by now, or a later change of.

    `apart` are the rows that it lacks, `failed` the groups of which it lacks columns, and
    `standing` the sequences of current rows, by collection, key, source and database.
    """
    lacking = {(row.collection, *row.identity): row for row in apart}
    settled: list[Replayed] = []
    for one in pending:
        own = (one["collection"], one["key"], one["source"], one["database"])
        is_group = one["source"] is None
        state, reason = SUPERSEDED, ""
        if (is_group and one["key"] in failed) or (
            not is_group and own in lacking and lacking[own].sequence == one["sequence"]
        ):
            state, reason = LEFT, one["reason"]
        elif is_group or (own not in lacking and standing.get(own) == one["sequence"]):
            state = REPLAYED
        settled.append(outcome(one, state, reason))
    mark(rejects, settled, pipeline=pipeline, log_id=None, of_view=True)
    return settled


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("sequence", "collection", "key", "source", "database"))


def _row(pipeline: str, one: Refused, at: int) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "sequence": at if one.sequence is None else one.sequence,
        "source": one.source,
        "database": one.database,
        "collection": one.collection,
        "key": one.key,
        "reason": one.reason,
        "full_document": one.document,
        "step": VIEW_STEP,
        "captured": False,
    }
