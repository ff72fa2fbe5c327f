"""Entries as rows of a changelog, and the folders they belong in. Pure.

A row is the entry as `format("penstock")` gives it: every column, unaltered, in Spark's types (64
unsigned bits are read as signed). What an entry has no value for is null. Data, schema, system and
gap entries are rows alike.

The folders are columns too. They are not the entry's own: `collection` stays in the file, since a
folder can hold neither every name nor an empty one, and readers take a folder's `007` for a number.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from penstock.spark.config import folder_of, shortened
from penstock.spark.table.arrow import Field, arrow, compute
from penstock.wire import ARROW_SCHEMA

DATE: Final = "date"
FOLDER: Final = "collection_folder"
_PARTITION_FIELDS: Final = {
    "date": arrow.field(DATE, pa.date32()),
    "collection": arrow.field(FOLDER, pa.string()),
}
_SIGNED: Final = {pa.uint64(): pa.int64()}

ENTRY_SCHEMA: Final = arrow.schema(
    [
        arrow.field(
            field.name,
            pa.list_(pa.string())
            if arrow.types.is_list(field.type)
            else _SIGNED.get(field.type, field.type),
        )
        for field in ARROW_SCHEMA
    ]
)
"""The columns of a row, which are those of a file."""

PROOFS: Final = ("check", "commit_digest")
"""The columns by which a guess of the whole captured event can be tested."""

TELLING: Final = ("sequence", "operation_type", "full_document", "update_description")
"""The columns that say whether a row tells anything."""

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""What every reader of such folders takes for null."""
NO_COLLECTION: Final = "@"
"""The folder of what is about a whole database or source. No collection has it."""
_WRITTEN: Final = str.maketrans("~", NO_COLLECTION)
"""How `folder_of` writes other characters, and earlier changelogs their folders' names. No folder
is called so any more: delta-rs writes `~` otherwise when it joins files, and does not find them."""
_FOLDER_MAX: Final = 200
"""File systems allow a name 255 bytes."""
_EPOCH: Final = date(1970, 1, 1)
_DAY_MS: Final = 86_400_000
_DAYS_MAX: Final = (date.max - _EPOCH).days


class Partition(Struct, frozen=True):
    """The values of the partition columns, as they are in a folder's name; None is null."""

    values: tuple[tuple[str, str | None], ...]

    @property
    def folder(self) -> str:
        """Where its files lie, with a "/" at the end unless there are no partitions."""
        return "".join(f"{name}={value or NULL_FOLDER}/" for name, value in self.values)


def partition_fields(partition_by: Sequence[str]) -> list[Field]:
    """The columns that come of the folders."""
    return [_PARTITION_FIELDS[name] for name in partition_by]


def day_of(timestamp_ms: int | None, ingested_at_ms: int | None) -> date | None:
    """The day of a commit in UTC; where the source did not say when, of its way into the log."""
    for stated in (timestamp_ms, ingested_at_ms):
        if stated is not None and 0 < stated // _DAY_MS <= _DAYS_MAX:
            return _EPOCH + timedelta(days=stated // _DAY_MS)
    return None


def collection_folder(collection: str | None) -> str:
    """The folder of a collection. Names that differ stay different, but for case."""
    if not collection:
        return NO_COLLECTION
    written = shortened(folder_of(collection), collection, length_max=_FOLDER_MAX)
    return written.translate(_WRITTEN)


def as_rows(entries: pa.Table, schema: pa.Schema = ENTRY_SCHEMA) -> pa.Table:
    """The entries in `schema`: no value changes, only what its type is called."""
    columns: list[Any] = []
    for field in schema:
        column = entries[field.name]
        if column.type == pa.uint64():
            column = arrow.chunked_array(
                [chunk.view(pa.int64()) for chunk in column.chunks], pa.int64()
            )
        columns.append(column.cast(field.type))
    return arrow.table(columns, schema=schema)


def telling(rows: pa.Table | pa.RecordBatch) -> list[int]:
    """The sequences of those rows (TELLING) that are no update of which nothing is told: so the
    steps leave a change that they refuse."""
    tells = compute.or_(
        compute.not_equal(rows["operation_type"], "update"),
        compute.or_(
            compute.is_valid(rows["full_document"]), compute.is_valid(rows["update_description"])
        ),
    )
    sequences: list[Any] = rows["sequence"].filter(tells).to_pylist()
    return sequences


def without(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The same rows, with nothing in these columns."""
    for name in names:
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(name)
        rows = rows.set_column(at, field, arrow.nulls(rows.num_rows, field.type))
    return rows


def partitioned(
    rows: pa.Table, partition_by: Sequence[str]
) -> Iterator[tuple[Partition, pa.Table]]:
    """The rows of each partition, in the order that they have."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in partition_by:
        own = _days(rows) if name == "date" else _codes(rows["collection"])
        codes = codes * (int(own.max(initial=0)) + 1) + own
        codes = np.unique(codes, return_inverse=True)[1]
    for code in np.unique(codes).tolist():
        places = np.flatnonzero(codes == code)
        part = rows if len(places) == rows.num_rows else rows.take(arrow.array(places))
        yield _partition(part, partition_by), part


def _partition(part: pa.Table, partition_by: Sequence[str]) -> Partition:
    """Of rows that all have the same."""

    def first(column: str) -> Any:
        return part[column][0].as_py()

    values: list[tuple[str, str | None]] = []
    for name in partition_by:
        if name == "date":
            day = day_of(first("timestamp"), first("ingested_at"))
            values.append((DATE, None if day is None else day.isoformat()))
        else:
            values.append((FOLDER, collection_folder(first("collection"))))
    return Partition(tuple(values))


def _days(rows: pa.Table) -> NDArray[np.int64]:
    """The number of each row's day; 0 where it has none."""
    found = np.zeros(rows.num_rows, np.int64)
    for name in ("ingested_at", "timestamp"):
        days = compute.fill_null(rows[name], 0).to_numpy() // _DAY_MS
        found = np.where((days > 0) & (days <= _DAYS_MAX), days, found)
    return found


def _codes(column: Any) -> NDArray[np.int64]:
    """One number per row, equal where the text is; null is empty text."""
    encoded = compute.fill_null(column, "").combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
