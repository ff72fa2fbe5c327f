"""Whether a Delta table equals a collection: every row, by a checksum of what it says.

Deliberately not the code that wrote the table: rows are read with delta-rs alone, and both sides
are brought to plain values here. A checksum is the sum, modulo 2**64, of a hash of each row, so
neither the order of rows nor of fields matters.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import xxhash
from msgspec import Struct

_SAMPLE_ROWS = 4


class Comparison(Struct, frozen=True, kw_only=True, rename="camel"):
    """A collection and its table."""

    collection: str
    source_rows: int
    table_rows: int
    source_checksum: str
    table_checksum: str
    sample_columns: list[str]
    sample: list[list[str]]
    """A few rows of the table, and whether the source says the same of each."""

    @property
    def equal(self) -> bool:
        counts = self.source_rows == self.table_rows
        return counts and self.source_checksum == self.table_checksum


def compare(
    collection: str,
    rows: Iterable[Mapping[str, Any]],
    path: Path,
    *,
    columns: Sequence[str] = (),
) -> Comparison:
    """Compare a collection's rows, in their store's values or as Extended JSON, with the Delta
    table at `path`.

    `columns` are those of the sample.
    """
    source = [plain(row) for row in rows]
    table = read(path)
    texts = {text(row) for row in source}
    return Comparison(
        collection=collection,
        source_rows=len(source),
        table_rows=len(table),
        source_checksum=checksum(source),
        table_checksum=checksum(table),
        sample_columns=list(columns),
        sample=[
            [*(_shown(row.get(name)) for name in columns), "same" if text(row) in texts else "NO"]
            for row in table[:_SAMPLE_ROWS]
        ],
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table as plain values, without nulls and Penstock's own columns."""
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [
        {
            name: plain(value)
            for name, value in row.items()
            if value is not None and not (name.startswith("_") and name != "_id")
        }
        for row in rows
    ]


def checksum(rows: list[dict[str, Any]]) -> str:
    """16 hex digits that say what all rows say, in any order."""
    total = sum(xxhash.xxh3_64_intdigest(text(row).encode()) for row in rows)
    return f"{total & 0xFFFFFFFFFFFFFFFF:016x}"


def text(row: dict[str, Any]) -> str:
    """What a row says, whatever the order of its fields."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(value: object) -> Any:
    """A value without its wrapping: that of Extended JSON, or of Arrow.

    A number is its digits: a column may have a wider type than one of its values.
    """
    if isinstance(value, dict):
        return _plain_object(cast("Mapping[str, object]", value))
    if isinstance(value, list):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{Decimal(str(value)).normalize():f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, str) and value[:1] in {"{", "["}:
        # An object or array, which the table keeps as Extended JSON text.
        return plain(json.loads(value))
    return value


def _plain_object(value: Mapping[str, object]) -> Any:
    match value:
        case {"$oid": str(oid)}:
            return oid
        case {"$numberDecimal": str(number)}:
            return plain(Decimal(number))
        case {"$date": str(moment)}:
            return plain(datetime.fromisoformat(moment))
        case _:
            return {name: plain(item) for name, item in value.items()}


def _shown(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 26 else f"{shown[:25]}…"
