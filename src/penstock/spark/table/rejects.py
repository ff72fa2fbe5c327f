"""The rows of the rejects table: every change that a table could not take, whole, and why. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.spark.table.arrow import arrow

REJECTS_SCHEMA: Final = arrow.schema(
    [
        arrow.field("pipeline", pa.string(), nullable=False),
        arrow.field("sequence", pa.int64(), nullable=False),
        arrow.field("source", pa.string()),
        arrow.field("database", pa.string()),
        arrow.field("collection", pa.string()),
        arrow.field("key", pa.string()),
        arrow.field("operation_type", pa.string()),
        arrow.field("field", pa.string()),
        arrow.field("reason", pa.string(), nullable=False),
        arrow.field("full_document", pa.string()),
        arrow.field("update_description", pa.string()),
        arrow.field("step", pa.string()),
        arrow.field("expectation", pa.string()),
        arrow.field("captured", pa.bool_()),
        arrow.field("state", pa.string()),
    ]
)
"""One row per rejected change. `field` is null where the change as a whole was the reason; the
documents are Extended JSON, and `captured` says whether they are as they were captured. `step` is
the transform that refused it, null where the table did. `state` is null until it is replayed:
REPLAYED or SUPERSEDED."""

STEP_COLUMNS: Final = ("step", "expectation", "captured", "state")
"""Those of REJECTS_SCHEMA that only pipelines with steps have something for."""

REPLAYED: Final = "replayed"
"""It is in its table now."""
SUPERSEDED: Final = "superseded"
"""A later change of its row is in the table, or was rejected after it."""

LOADED: Final = "load"
"""The operation of a row that no entry told: it came with a first load, and no replay finds it. Its
next change that fits makes it right, and supersedes it."""

GAP: Final = "gap: "
"""The reason of an event that lost changes begins with it."""

VIEW_STEP: Final = "view"
"""The step of a row that its table has and that a view's query cannot be computed with."""

ENTRY_COLUMNS: Final = (
    "sequence",
    "source",
    "database",
    "collection",
    "key",
    "operation_type",
    "full_document",
    "update_description",
)
"""What a reject tells of its entry."""


_IDENTIFYING: Final = ("sequence", "key", "operation_type", "step", "state")
"""The last two are not in tables of before."""


class Reject(Struct, frozen=True, kw_only=True):
    """A change that a table could not take."""

    sequence: int
    reason: str
    field: str | None = None
    key: str | None = None
    document: dict[str, Any] | None = None
    """Key and document of a row that an event about its whole collection moved."""
    step: str | None = None
    expectation: str | None = None
    told: tuple[str | None, str | None] | None = None
    """Document and update as far as they may be told; None: as the entry has them."""

    @property
    def identity(self) -> tuple[int, str | None]:
        """What tells it from all others: a moved row shares its sequence with the others moved."""
        return self.sequence, self.key

    def overrides(self) -> dict[str, Any]:
        """What it says itself instead of its entry."""
        if self.told is not None:
            return {"full_document": self.told[0], "update_description": self.told[1]}
        if self.document is None:
            return {}
        return {"key": self.key, "full_document": msgspec.json.encode(self.document).decode()}


def between(pipeline: str, first: int, last: int) -> str:
    """The SQL condition for a pipeline's rejects from `first` to `last`."""
    name = pipeline.replace("'", "''")
    return f"pipeline = '{name}' AND sequence >= {first} AND sequence <= {last}"


def known_rejects(
    batches: Iterable[pa.RecordBatch], rejects: Iterable[Reject]
) -> set[tuple[int, str | None]]:
    """Which of `rejects` are among rows of a rejects table, as their identities.

    What was settled is told anew: whoever rejects it has read the log again for a table that has
    lost it, and if that has it, or a later change, the next replay says so. Nor does the row of a
    view or of a first load stand for a change that its table refuses.
    """
    sequences: set[int] = set()
    keys: set[tuple[int, str | None]] = set()
    for batch in batches:
        named = [name for name in _IDENTIFYING if name in batch.schema.names]
        for row in batch.select(named).to_pylist():
            if row.get("state") is None and not _is_of_others(row):
                sequences.add(row["sequence"])
                keys.add((row["sequence"], row["key"]))
    return {
        reject.identity
        for reject in rejects
        if (reject.sequence in sequences if reject.key is None else reject.identity in keys)
    }


def _is_of_others(row: Mapping[str, Any]) -> bool:
    return row.get("step") == VIEW_STEP or row["operation_type"] == LOADED


def rejects_table(
    pipeline: str, rejects: list[Reject], entries: pa.Table, *, captured: bool
) -> pa.Table:
    """REJECTS_SCHEMA rows, by sequence. `entries` (ENTRY_COLUMNS) holds what was rejected.

    `captured`: its documents are as they were captured.
    """
    by_sequence: dict[int, dict[str, Any]] = {
        row["sequence"]: row for row in entries.select(ENTRY_COLUMNS).to_pylist()
    }
    rows = [
        {
            **by_sequence.get(reject.sequence, {}),
            **reject.overrides(),
            "pipeline": pipeline,
            "sequence": reject.sequence,
            "field": reject.field,
            "reason": reject.reason,
            "step": reject.step,
            "expectation": reject.expectation,
            "captured": captured and not reject.overrides(),
        }
        for reject in sorted(rejects, key=lambda reject: reject.sequence)
    ]
    return arrow.Table.from_pylist(rows, schema=REJECTS_SCHEMA)
