"""What a destination's folder holds does not grow with the number of its batches."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.spark.changelog.entries import partition_fields
from penstock.spark.changelog.formats import format_of
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import Table
from penstock.spark.table.lake import Folders, KeptTable
from penstock.spark.table.upkeep import keep_up, tidy
from penstock.spark.views import tables_of
from tests.growing import batches, growth
from tests.spark.changelogs import add, changelog, expected, rows_of, started
from tests.spark.histories import history
from tests.spark.newest import NewestEntries
from tests.spark.tables import (
    Entries,
    apply,
    as_of_days_ago,
    change,
    gap,
    pipeline,
    put,
)
from tests.spark.viewed import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("", "orders", "or ders", "é", "_x", "x" * 300)
"""Collections, the first of them none: what is about the whole source."""
FILES_MAX = 40
LOG_ENTRIES = 250
"""A checkpoint comes with every hundredth, and those before it go when upkeep is due."""


@batches()
@pytest.mark.parametrize("to", ["table", "history"])
def test_a_tables_files_stay_few(to: str, batches: int, tmp_path: Path) -> None:
    made: Callable[..., Any] = pipeline if to == "table" else history
    config = made(tmp_path / "t", compact_every=8, vacuum_every=8, history="1h")
    entries = NewestEntries()
    with growth(batches) as found:
        for number in range(batches):
            entries.commit(put(number % 7, n=number))
            apply(entries.table(number), config, batch_id=number)
            as_of_days_ago(tmp_path / "t", 40)
            table: KeptTable = Folders(config, "p").table("orders")
            keep_up("p", config, [_with_last_commit(table)])
            assert len(DeltaTable(str(tmp_path / "t")).file_uris()) < FILES_MAX
            # Later, checkpoints say when a file was replaced, which nothing here makes older.
            assert number > 24 or len([*(tmp_path / "t").rglob("*.parquet")]) < FILES_MAX
            found.note({"log": _log_entries(tmp_path / "t")})


def _log_entries(path: Path) -> int:
    """How many a table's log has; or, if fewer, as many as there may be between two checkpoints."""
    return max(LOG_ENTRIES, len([*(path / "_delta_log").iterdir()]))


def _with_last_commit(table: KeptTable) -> KeptTable:
    """The table, as if its last commit was made through it."""
    assert isinstance(table, Table)
    table._opened = table.version - 1  # pyright: ignore[reportPrivateUsage]
    return table


@batches()
def test_a_changelogs_files_are_joined_whatever_its_folders_are_called(
    batches: int, tmp_path: Path
) -> None:
    """Again and again: what was joined is joined with what comes behind it."""
    config = changelog(tmp_path / "c", compact_every=8, on_gap="record")
    entries, target = Entries(), started(config)
    for number in range(batches):
        entries.commit(
            *(
                change(number, "insert", {"_id": number}, collection=name) if name else gap()
                for name in NAMES
            )
        )
        add(target, entries.table(entries.head - len(NAMES)))
    found = tidy("p", config, format_of("p", config).table)
    assert found.failed == ""
    assert len(DeltaTable(config.path).file_uris()) == len(NAMES)
    assert rows_of(config) == expected(entries.table())


def test_folders_that_an_earlier_version_called_otherwise_keep_no_others_from_being_joined(
    tmp_path: Path,
) -> None:
    config, entries = changelog(tmp_path / "c", partition_by=["collection"]), Entries()
    for number in range(3):
        entries.commit(put(number, n=1))
        add(started(config), entries.table(number))
    table = DeltaTable(config.path)
    old = table.to_pyarrow_table()
    at = old.schema.get_field_index("collection_folder")
    (field,) = partition_fields(["collection"])
    old = old.set_column(at, field, arrow.array(["or~20ders"] * 3))
    for row in range(3):
        write_deltalake(table, old.slice(row, 1), mode="append", partition_by=[field.name])
    found = tidy("p", config, format_of("p", config).table)
    assert (found.failed, found.joined, found.into) == ("", 3, 1)
    assert len(DeltaTable(config.path).file_uris()) == 4


@batches(short=12)
def test_a_views_files_and_its_driver_stay_as_they_are(
    spark: "SparkSession", batches: int, tmp_path: Path
) -> None:
    """Of many batches, some bring a row that its query cannot compute."""
    query = "SELECT name, count(*) AS orders, sum(8 / n) AS parts FROM orders GROUP BY name"
    lake = Lake(spark, tmp_path, query, compact_every=3, vacuum_every=3, history="1h")
    lake.entries, tables = NewestEntries(), tables_of(lake.config)
    with growth(batches) as found:
        for number in range(batches):
            n = 0 if number % 50 == 40 else 1 + number % 9
            lake.batch(put(number % 7, name=f"name {number % 3}", n=n))
            folders = [log.parent for log in tmp_path.rglob("_delta_log")]
            for one in folders:
                as_of_days_ago(one, 40)
            keep_up("p", tables, [_with_last_commit(Folders(tables, "p").table("orders"))])
            files = {one.name: max(8, len([*one.glob("*.parquet")])) for one in folders}
            logs = {f"log of {one.name}": _log_entries(one) for one in folders}
            found.note(files | logs)
