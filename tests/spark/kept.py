"""What tables and histories have of a story, to compare functions with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark.config import TablePipelineConfig
from penstock.spark.history.columns import VERSION_COLUMNS
from penstock.spark.table.apply import table_cells, table_states
from penstock.spark.table.decode import documents_of
from tests.spark.histories import history
from tests.spark.stories import (
    COLLECTIONS,
    Row,
)
from tests.spark.tables import apply, pipeline

Rows = dict[tuple[str, str, str], tuple[Row, int, int | None]]


def in_tables(path: Path, entries: pa.Table, *, collections: Sequence[str] = COLLECTIONS) -> Rows:
    """What `to = "table"` has of the entries, by (collection, database, key)."""
    config = pipeline(path, *collections)
    apply(entries, config)
    return kept_in(config)


def kept_in(config: TablePipelineConfig) -> Rows:
    """The rows of a pipeline's tables."""
    found: Rows = {}
    for collection in config.collections:
        if not DeltaTable.is_deltatable(config.table_path(collection)):
            continue
        table = DeltaTable(config.table_path(collection)).to_pyarrow_table()
        for (key, _, database), state in table_states(table).items():
            own = (state.document or {}, state.sequence, state.rejected_sequence)
            found[collection, database, key] = own
    return found


def as_rows(rows: Sequence[Row]) -> Rows:
    """The same of what a function gave; each row once."""
    found = {
        (row["collection"], row["database"], row["key"]): (
            json.loads(row["document"]),
            row["sequence"],
            row["rejected_sequence"],
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def in_histories(path: Path, entries: pa.Table, **more: Any) -> list[str]:
    """What `to = "history"` has of the entries."""
    config = history(path, *COLLECTIONS, **more)
    apply(entries, config)
    found: list[Row] = []
    for collection in COLLECTIONS:
        if DeltaTable.is_deltatable(config.table_path(collection)):
            table = DeltaTable(config.table_path(collection)).to_pyarrow_table()
            cells = table_cells(table, own=VERSION_COLUMNS)
            documents = documents_of(cells, range(table.num_rows))
            own = table.select(VERSION_COLUMNS.names).to_pylist()
            for row, document in zip(own, documents, strict=True):
                found.append({**row, "collection": collection, "document": document})
    return comparable(found)


def comparable(rows: Sequence[Row]) -> list[str]:
    """Versions as text, in one order; null is absent."""
    texts: list[str] = []
    for row in rows:
        document = row["document"]
        fields = json.loads(document) if isinstance(document, str) else document
        told = {name: value for name, value in fields.items() if value is not None}
        texts.append(json.dumps({**row, "document": told}, sort_keys=True, default=str))
    return sorted(texts)


def own_of(row: Row) -> tuple[str, str, str]:
    """Which row it is."""
    return row["collection"], row["database"], row["key"]
