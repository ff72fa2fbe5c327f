"""What a transaction has done so far, and its rejects as rows of `_penstock_rejects`. Pure."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Stream
from penstock.spark.replica.steps import EntriesAt
from penstock.spark.table.rejects import STEP_COLUMNS, Reject, rejects_table

Row = dict[str, Any]


class Written:
    """What a transaction has done so far."""

    def __init__(self, known: Known) -> None:
        """`known` is a copy of its own: it is changed."""
        self.known = known
        self.rows = 0
        self.rejects: list[tuple[str, Reject]] = []
        """The destination's own, each with its table ("" for none)."""
        self.refused: pa.Table | None = None
        """Those of the steps before it (REJECTS_SCHEMA)."""

    def move(self, old: str, new: str) -> None:
        """What rows lack goes with them to another table."""
        self.known.stale[new] = self.known.stale.pop(old, {})
        self.rejects = [(new if name == old else name, one) for name, one in self.rejects]

    def rejected(
        self,
        pipeline: str,
        *,
        name_of: Callable[[Stream], str],
        entries_at: EntriesAt,
        until: int,
    ) -> list[Row]:
        """The rows for the rejects: each change once, by whoever rejected it first.

        One whose row lacks nothing at the transaction's end is `healed` at `until`.
        """
        told = [] if self.refused is None else [_told(row) for row in self.refused.to_pylist()]
        listed = {row["sequence"] for row in told}
        tables = {reject.sequence: name for name, reject in self.rejects}
        own = {one.sequence: one for _, one in self.rejects if one.sequence not in listed}
        rows = told
        if own:
            entries = entries_at(list(own))
            fresh = rejects_table(pipeline, list(own.values()), entries, captured=True)
            rows = [*told, *fresh.to_pylist()]
        for row in rows:
            stream = Stream(row["database"], row["collection"])
            name = tables[row["sequence"]] if row["sequence"] in tables else name_of(stream)
            lacks = not name or row["key"] in self.known.stale.get(name, {})
            row |= {"table": name or None, "healed": None if lacks else until}
            for column in STEP_COLUMNS:
                del row[column]
        return sorted(rows, key=lambda row: int(row["sequence"]))


def brief(row: Row, *, bytes_max: int) -> Row:
    """A reject without what its change says, where that is longer; the log has it."""
    texts = [row["full_document"] or "", row["update_description"] or ""]
    if sum(len(one.encode()) for one in texts) <= bytes_max:
        return row
    reason = f"{row['reason']}; what it says is too long to be here, and is in the log"
    return {**row, "full_document": None, "update_description": None, "reason": reason}


def _told(row: Row) -> Row:
    """These tables have no column for the step: it is part of the reason."""
    return {**row, "reason": f"{row['step']}: {row['reason']}"}
