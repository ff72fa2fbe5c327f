"""Entries of a changelog that are not what the log says are found and told; missing ones added."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from penstock.client.pipelines import PipelineTold
from penstock.errors import PipelineError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark import verifying_changelog
from penstock.spark.changelog.comparing import values_of
from penstock.spark.raised import known_error
from penstock.spark.run import run_pipeline
from penstock.spark.table import comparing
from penstock.spark.verifying import pinned
from penstock.spark.verifying_changelog import verify_changelog
from penstock.subscribe.scope import EVERYTHING
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import (
    changelog,
    counted,
    expected,
    files_of,
    rows_of,
    sequences_of,
)
from tests.spark.tables import change, gap, put, schema_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import ChangelogPipelineConfig
    from penstock.spark.table.comparing import Compared

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([[put(number, n=number), put(-number, n=0.5)] for number in range(1, 9)])
    log.append([[gap()], [schema_event("create", collection="lines")], [change(3, "delete")]])
    log.append([[change(1, "insert", {"_id": 1}, collection="lines")]])
    return log


@pytest.fixture
def book(log: BlockLog, tmp_path: Path) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path / "book", log, hold_seconds=3600.0, hold_bytes=1 << 30)
    yield book
    book.close()


@pytest.fixture
def endpoint(log: BlockLog, book: PipelineBook) -> Iterator[str]:
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()


def made(
    path: Path, endpoint: str, spark: "SparkSession", *collections: str, **more: Any
) -> "ChangelogPipelineConfig":
    """A changelog that has everything."""
    config = changelog(path, *collections, max_events_per_batch=6, **more)
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    return config


def verified(
    config: "ChangelogPipelineConfig", endpoint: str, spark: "SparkSession", **more: Any
) -> "Compared":
    (found,) = verify_changelog("c", config, endpoint, spark=spark, ranges=5, **more).tables
    return found


def told(found: "Compared") -> list[tuple[int | None, str, tuple[str, ...]]]:
    return [(one.sequence, one.what, one.columns) for one in found.listed]


def entries_of(log: BlockLog) -> pa.Table:
    return pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])


def test_entries_of_a_delta_table_that_somebody_altered_are_told_and_missing_ones_added(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = made(tmp_path / "c", endpoint, spark)
    table = DeltaTable(config.path)
    # An earlier version called it so.
    renamed = table.update({"collection_folder": "'~'"}, predicate="collection_folder = '@'")
    assert renamed["num_updated_rows"] > 0
    table.delete("sequence IN (3, 4, 17)")
    missing = verified(config, endpoint, spark, repair=True)
    assert told(missing) == [(3, "missing", ()), (4, "missing", ()), (17, "missing", ())]
    assert [(one.key, one.source) for one in missing.listed][:2] == [
        ('{"_id":2}', "shop"), ('{"_id":-2}', "shop"),
    ]  # fmt: skip
    assert missing.repaired == 3
    assert rows_of(config) == expected(entries_of(log))
    # It goes on where it stood, and ignores what it has.
    log.append([[put(1, n=2)]])
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert rows_of(config) == expected(entries_of(log))
    table = DeltaTable(config.path)
    table.update({"full_document": "'{}'"}, predicate="sequence = 5")
    rows = table.to_pyarrow_table()
    (row,) = (one for one in rows.to_pylist() if one["sequence"] == 7)
    more = pa.Table.from_pylist([row, {**row, "sequence": 99}], schema=rows.schema)
    write_deltalake(table, more, mode="append")
    table.delete("sequence = 21")
    found = verified(config, endpoint, spark, repair=True)
    assert told(found) == [
        (5, "different", ("full_document",)),
        (7, "repeated", ()),
        (21, "missing", ()),
        (99, "extra", ()),
    ]
    assert (found.repaired, found.rows, found.found) == (1, 21, 22)
    assert "left as they are" in found.left
    assert len(rows_of(config)) == 23


@pytest.mark.soak
def test_plain_files_are_compared_as_a_reader_of_the_folder_sees_them(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, book: PipelineBook
) -> None:
    config = made(tmp_path / "c", endpoint, spark, format="parquet")
    assert verified(config, endpoint, spark).differences == 0
    files = [Path(config.path) / name for name in files_of(config)]
    gone: list[int] = []
    for file in {max(files, key=sequences_of), files[0]}:
        gone += sequences_of(file)
        file.unlink()
    found = verified(config, endpoint, spark)
    assert told(found) == [(sequence, "missing", ()) for sequence in sorted(gone)]
    run = PipelineTold(
        pipeline="c", run="x", source="shop", to="changelog", place=log.marker(log.head)
    )
    book.tell(run, EVERYTHING)
    with pytest.raises(PipelineError, match="is running, and entries come into a folder of plain"):
        verified(config, endpoint, spark, repair=True)
    book.tell(structs.replace(run, state="ended"), EVERYTHING)
    assert verified(config, endpoint, spark, repair=True).repaired == len(gone)
    assert rows_of(config) == expected(entries_of(log))
    assert counted(config) == files_of(config)
    # A start looks for the files of its last commit.
    log.append([[put(1, n=2)]])
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert rows_of(config) == expected(entries_of(log))
    # No manifest lists it, and a reader of the folder sees its entries twice.
    file = Path(config.path) / files_of(config)[0]
    twice = sequences_of(file)
    shutil.copy(file, file.with_name("copy.parquet"))
    shutil.copy(file, file.with_name(".hidden.parquet"))
    found = verified(config, endpoint, spark, repair=True)
    assert told(found) == [(sequence, "repeated", ()) for sequence in sorted(twice)]
    assert (found.repaired, "left as they are" in found.left) == (0, True)
    # In another folder it is of another day, to whoever asks for that.
    file.with_name("copy.parquet").unlink()
    other = file.parent.parent.with_name("date=2001-01-01") / file.parent.name
    other.mkdir(parents=True)
    file.rename(other / file.name)
    assert told(verified(config, endpoint, spark)) == [
        (sequence, "different", ("date",)) for sequence in sorted(twice)
    ]
    (other / file.name).write_bytes(b"not a file of Penstock's")
    with pytest.raises(Exception, match=r"cannot be read as one of Penstock's. Nothing was") as no:
        verified(config, endpoint, spark)
    assert isinstance(known_error(no.value, pipeline="c"), PipelineError)


def test_the_columns_of_folders_are_read_from_their_names() -> None:
    day = values_of("date=2026-11-22/collection_folder=007/x.parquet")
    assert (str(day["date"]), day["collection_folder"]) == ("2026-11-22", "007")
    assert values_of("date=__HIVE_DEFAULT_PARTITION__/x.parquet") == {"date": None}
    assert values_of("x.parquet") == {}


@pytest.mark.soak
def test_one_that_is_gone_is_told_and_left_to_its_pipeline(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = made(tmp_path / "c", endpoint, spark, standing=str(tmp_path / "standing"))
    shutil.rmtree(config.path)
    found = verified(config, endpoint, spark, repair=True)
    assert (found.rows, found.differences, found.repaired) == (20, 20, 0)
    assert "start = 'oldest'" in found.left
    again = config.model_copy(update={"start": "oldest"})
    run_pipeline("c", again, endpoint, spark=spark, once=True)
    assert rows_of(config) == expected(entries_of(log))


@FORMATS
def test_what_the_log_has_no_more_is_counted_and_not_judged(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, form: str
) -> None:
    every = ("lines", "notes", "orders")
    log.append([[schema_event("rename", to={"db": "db", "coll": "lines"})]])
    config = made(tmp_path / "c", endpoint, spark, *every, format=form, partition_by=[])
    log.trim(17)
    # Nor are the entries of a collection that was taken out, but for a rename into another one.
    fewer = config.model_copy(update={"collections": every[:2]})
    found = verified(fewer, endpoint, spark)
    assert (found.rows, found.found, found.untold, found.differences) == (3, 3, 18, 0)


@FORMATS
def test_what_its_pipeline_adds_meanwhile_is_no_difference(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    config = made(tmp_path / "c", endpoint, spark, format=form, partition_by=[])

    def and_then(*args: Any) -> Any:
        found = pinned(*args)
        log.append([[put(1, n=2)]])
        run_pipeline("c", config, endpoint, spark=spark, once=True)
        return found

    monkeypatch.setattr(verifying_changelog, "pinned", and_then)
    found = verified(config, endpoint, spark)
    assert (found.rows, found.found, found.differences, found.ranges_differing) == (20, 20, 0, 0)
    assert len(rows_of(config)) == 21


def test_what_cannot_be_compared_or_repaired_is_refused(
    spark: "SparkSession",
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PipelineError, match="never run"):
        verified(changelog(tmp_path / "c"), endpoint, spark)
    config = made(tmp_path / "c", endpoint, spark)
    DeltaTable(config.path).delete("sequence = 3")
    differing = comparing.differing_rows

    def meanwhile(*args: Any, **more: Any) -> Any:
        DeltaTable(config.path).delete("sequence = 4")
        return differing(*args, **more)

    monkeypatch.setattr(verifying_changelog, "differing_rows", meanwhile)
    with pytest.raises(PipelineError, match=r"moved on.*Nothing of it was changed"):
        verified(config, endpoint, spark, repair=True)
    assert len(rows_of(config)) == 18
