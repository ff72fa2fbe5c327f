"""Readers that know nothing of Penstock read changelogs and tables right, as the how-to says."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.spark.changelogs import Row, add, changelog, expected, started
from tests.spark.tables import Entries, apply, change, gap, pipeline, put, schema_event

# The stubs of pyarrow and pyspark leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDERS = {"date", "collection_folder"}


def entries_of_everything() -> Entries:
    """Names that a folder would turn into something else, and what has no collection."""
    entries = Entries()
    entries.commit(put(1, n=-(2**63)), change(2, "insert", {"_id": 2}, collection="007"))
    entries.commit(gap())
    entries.commit(change(1, "update", update={"updatedFields": {"n": 1}}, unchanged=["a", "b"]))
    entries.commit(schema_event("drop", collection="a/b"))
    entries.commit(
        change(3, "insert", text='{"price":{"$numberDecimal":"1.10"},"ü":"\\u0000"}'),
        change(4, "delete", collection="a/b"),
    )
    return entries


def own(rows: list[Row]) -> list[Row]:
    """The entries by sequence, without the columns of their folders."""
    rows = [{name: row[name] for name in row if name not in _FOLDERS} for row in rows]
    return sorted(rows, key=lambda row: row["sequence"])


def by_duckdb(query: str, **tables: Any) -> list[Row]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.sql(query)
        assert found is not None
        rows: list[Row] = found.to_arrow_table().to_pylist()
    return rows


def written(path: Path, form: str) -> list[Row]:
    """A changelog in two batches, beside what a batch leaves that is being written."""
    entries, config = entries_of_everything(), changelog(path, format=form)
    target = started(config)
    add(target, entries.table(0, 3))
    add(target, entries.table(3))
    (path / "date=2023-11-14" / ".changes-1-1.parquet.inprogress").write_text("torn")
    return expected(entries.table())


@pytest.mark.slow
def test_plain_files_are_read_by_duckdb_polars_and_arrow(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    rows = written(path, "parquet")
    files = f"{path}/**/*.parquet"
    query = f"SELECT * FROM read_parquet('{files}', hive_partitioning = true)"
    assert own(by_duckdb(query)) == rows
    only = by_duckdb(f"SELECT sequence FROM ({query}) WHERE collection = '007'")
    assert only == [{"sequence": 2}]
    assert own(pl.scan_parquet(files, hive_partitioning=True).collect().to_dicts()) == rows
    assert own(ds.dataset(path, partitioning="hive").to_table().to_pylist()) == rows


def test_plain_files_are_read_by_spark(spark: "SparkSession", tmp_path: Path) -> None:
    rows = written(tmp_path / "changes", "parquet")
    found = spark.read.parquet(str(tmp_path / "changes"))
    assert own([row.asDict() for row in found.collect()]) == [
        {
            name: bytearray(value) if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    assert [row["sequence"] for row in found.where("collection = '007'").collect()] == [2]


def test_a_delta_changelog_is_read_by_duckdb_polars_and_arrow(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    rows = written(path, "delta")
    changes = DeltaTable(path).to_pyarrow_dataset()
    assert own(changes.to_table().to_pylist()) == rows
    assert own(by_duckdb("SELECT * FROM changes", changes=changes)) == rows
    assert own(pl.scan_delta(str(path)).collect().to_dicts()) == rows
    found = pl.scan_delta(str(path)).filter(pl.col("collection_folder") == "007").collect()
    assert found["sequence"].to_list() == [2]


def test_a_table_is_read_by_duckdb_polars_and_arrow(tmp_path: Path) -> None:
    entries, config = Entries(), pipeline(tmp_path / "orders")
    entries.commit(put(1, n=1, name="a"), put(2, n=2), put(3, n=3))
    apply(entries.table(), config)
    entries.commit(put(1, n=2**40, name="ü"), change(2, "delete"), put(4, n=4))
    apply(entries.table(3), config)
    orders = DeltaTable(config.path).to_pyarrow_dataset()
    found: dict[str, list[dict[str, Any]]] = {
        "arrow": orders.to_table().to_pylist(),
        "duckdb": by_duckdb("SELECT * FROM orders", orders=orders),
        "polars": pl.scan_delta(config.path).collect().to_dicts(),
    }
    for reader, rows in found.items():
        said = {json.loads(row["_key"])["_id"]: (row["n"], row["name"]) for row in rows}
        assert said == {1: (2**40, "ü"), 3: (3, None), 4: (4, None)}, reader
        assert len(rows) == 3
