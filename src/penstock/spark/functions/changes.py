"""Entries as a changelog has them. Pure."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from penstock.spark.changelog.entries import (
    DATE,
    ENTRY_SCHEMA,
    FOLDER,
    as_rows,
    collection_folder,
    day_of,
)
from penstock.spark.table.arrow import arrow

CHANGELOG_SCHEMA: Final = arrow.schema(
    [*ENTRY_SCHEMA, arrow.field(DATE, pa.date32()), arrow.field(FOLDER, pa.string())]
)


def logged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """CHANGELOG_SCHEMA of the same entries."""
    for batch in batches:
        rows = as_rows(arrow.Table.from_batches([batch]))
        said: list[list[Any]] = [rows[name].to_pylist() for name in ("timestamp", "ingested_at")]
        names: list[Any] = rows["collection"].to_pylist()
        folders = {name: collection_folder(name) for name in set(names)}
        days = [day_of(*stated) for stated in zip(*said, strict=True)]
        rows = rows.append_column(CHANGELOG_SCHEMA.field(DATE), arrow.array(days, pa.date32()))
        told = arrow.array([folders[name] for name in names], pa.string())
        yield from rows.append_column(CHANGELOG_SCHEMA.field(FOLDER), told).to_batches()
