"""The rows of the rejects table: every change that a table could not take, whole, and why. Pure."""

from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

REJECTS_SCHEMA: Final = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("database", pa.string()),
        pa.field("collection", pa.string()),
        pa.field("key", pa.string()),
        pa.field("operation_type", pa.string()),
        pa.field("field", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("full_document", pa.string()),
        pa.field("update_description", pa.string()),
    ]
)
"""One row per rejected change. `field` is null where the change as a whole was the reason; the
documents are as they were captured, Extended JSON."""

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


class Reject(Struct, frozen=True, kw_only=True):
    """A change that a table could not take."""

    sequence: int
    reason: str
    field: str | None = None
    key: str | None = None
    document: dict[str, Any] | None = None
    """Key and document of a row that an event about its whole collection moved."""

    def overrides(self) -> dict[str, Any]:
        """What it says itself instead of its entry."""
        if self.document is None:
            return {}
        return {"key": self.key, "full_document": msgspec.json.encode(self.document).decode()}


def rejects_table(pipeline: str, rejects: list[Reject], entries: pa.Table) -> pa.Table:
    """REJECTS_SCHEMA rows, by sequence. `entries` (ENTRY_COLUMNS) holds what was rejected."""
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
        }
        for reject in sorted(rejects, key=lambda reject: reject.sequence)
    ]
    return pa.Table.from_pylist(rows, schema=REJECTS_SCHEMA)
