"""`format("penstock")` with `archive`: archive and log are one source, from the first change on."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.archive import writing
from penstock.errors import ArchiveError, HistoryTrimmedError
from penstock.event import Commit
from penstock.log import LmdbLog
from penstock.serve.flight import FlightServer
from penstock.spark.datasource import PenstockStreamReader
from penstock.spark.options import parse_options
from penstock.spark.replaying import replay_rejects
from penstock.spark.rows import ENTRY_SCHEMA
from penstock.spark.run import run_pipeline
from tests.archive.logs import archiver, fill, live_rows, log_config, opened
from tests.spark.tables import apply, change, pipeline, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Served(NamedTuple):
    log: LmdbLog
    folder: Path
    endpoint: str

    @property
    def archive(self) -> str:
        return str(self.folder / "archive")


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Served]:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 9_000)
    async with LmdbLog(log_config(tmp_path)) as log:
        server = FlightServer(log)
        server.start()
        yield Served(log, tmp_path, server.address)
        server.stop()


def rows_of(log: LmdbLog, until: int) -> list[dict[str, Any]]:
    """What Spark must say of the entries up to `until`."""
    rows: list[dict[str, Any]] = live_rows(log, 0, until).to_pylist()
    for row in rows:
        for name in ("check", "commit_digest", "key_hash"):
            # 64 bits, read as signed.
            row[name] -= (row[name] >> 63) << 64
    return rows


async def test_archive_and_log_are_read_as_the_log_that_kept_all(
    spark: "SparkSession", served: Served
) -> None:
    log = served.log
    work = archiver(log, served.folder)
    for seed in range(2):
        await fill(log, seed=seed, commits=15)
        work.step()
    await fill(log, seed=2, commits=15)
    head = log.bounds_now().head
    expected = rows_of(log, head)
    ends = {row["sequence"] for row in expected if row["ends_commit"]}
    await log.trim(sorted(ends)[len(ends) // 2])
    assert log.bounds_now().trimmed > 0

    def reader(**options: str) -> Any:
        found = spark.read.format("penstock").option("endpoint", served.endpoint)
        return found.option("archive", served.archive).options(**options)

    found = reader(partitions="4").load().orderBy("sequence").collect()
    assert [row.asDict() for row in found] == expected
    some = reader(collections="a/orders").schema("sequence LONG").load().collect()
    assert sorted(row.sequence for row in some) == [
        row["sequence"] for row in expected if _concerns(row)
    ]

    batches: list[list[int]] = []

    def keep(rows: "DataFrame", _: int) -> None:
        batches.append(sorted(row.sequence for row in rows.select("sequence").collect()))

    query = (
        spark.readStream.format("penstock")
        .option("endpoint", served.endpoint)
        .option("archive", served.archive)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "120")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(served.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [one for batch in batches for one in batch] == list(range(1, head + 1))
    assert all(batch[-1] in ends for batch in batches if batch)
    assert all(len(batch) <= 120 for batch in batches)


def _concerns(row: dict[str, Any]) -> bool:
    if row["kind"] == 0:
        return bool(row["source"] == "a" and row["collection"] == "orders")
    named = row["source"] == "a" and row["collection"] in {"orders", ""}
    return named or (
        row["kind"] == 3 and row["operation_type"] == "rename" and row["source"] == "a"
    )


@pytest.mark.slow
async def test_a_stream_passes_from_the_archive_to_the_log_while_retention_moves(
    served: Served,
) -> None:
    """The planner and the readers as Spark calls them, one micro-batch after the other."""
    log = served.log
    work = archiver(log, served.folder)
    for seed in range(2):
        await fill(log, seed=seed, commits=15)
        work.step()
    await fill(log, seed=2, commits=15)
    head = log.bounds_now().head
    expected = live_rows(log, 0, head)
    ends: list[int] = expected.filter(expected["ends_commit"])["sequence"].to_numpy().tolist()
    archived = opened(served.folder).manifest.until
    trims = iter([one for one in ends if one < archived][10::4])
    given = {"endpoint": served.endpoint, "archive": served.archive, "partitions": "3"}
    options = parse_options(given | {"startingOffsets": "earliest"}, starting_default="latest")
    reader = PenstockStreamReader(options, ENTRY_SCHEMA)
    await log.trim(next(trims))
    start = reader.initialOffset()
    found: list[int] = []
    checks: list[int] = []
    while start["sequence"] < head:
        end = reader.latestOffset(start, ReadMaxRows(70))
        assert end["sequence"] in ends
        parts = reader.partitions(start, end)
        for part in parts:
            # Retention is quicker than the tasks.
            if (until := next(trims, None)) is not None:
                await log.trim(until)
            for batch in reader.read(part):
                found += batch.column("sequence").to_numpy().tolist()
                checks += batch.column("check").to_numpy().view("uint64").tolist()
        start = end
    reader.stop()
    assert found == list(range(1, head + 1))
    assert checks == expected["check"].to_pylist()
    assert next(trims, None) is None


async def test_a_new_pipeline_begins_with_the_first_change_ever_captured(
    spark: "SparkSession", served: Served
) -> None:
    log = served.log
    for number in range(60):
        event = put(number, n=number)
        await log.append([Commit(source="shop", position=str(number), events=(event,))])
        if number == 30:
            archiver(log, served.folder).step()
    archiver(log, served.folder).step()
    await log.append([Commit(source="shop", position="60", events=(put(60, n=60),))])
    await log.trim(45)
    config = pipeline(served.folder / "table", "orders", max_events_per_batch=25)
    with pytest.raises(HistoryTrimmedError):
        run_pipeline("p", config, served.endpoint, spark=spark, once=True)
    run_pipeline("p", config, served.endpoint, spark=spark, once=True, archive=served.archive)
    table: Any = DeltaTable(config.path).to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(61))


@pytest.mark.parametrize("archive", ["away", "behind"])
async def test_a_pipeline_that_stands_in_the_log_needs_no_archive_to_go_on(
    spark: "SparkSession", served: Served, archive: str
) -> None:
    """And a new one does not begin in the midst of what the two hold, whatever its `start` says."""
    log = served.log
    for number in range(20):
        await log.append(
            [Commit(source="shop", position=str(number), events=(put(number, n=number),))]
        )
        if number == 5:
            archiver(log, served.folder).step()
    config = pipeline(served.folder / "table", "orders")
    run_pipeline("p", config, served.endpoint, spark=spark, once=True, archive=served.archive)
    await log.trim(5 if archive == "away" else 10)
    if archive == "away":
        (served.folder / "archive").rename(served.folder / "elsewhere")
    await log.append([Commit(source="shop", position="20", events=(put(20, n=20),))])
    run_pipeline("p", config, served.endpoint, spark=spark, once=True, archive=served.archive)
    table: Any = DeltaTable(config.path).to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(21))
    new = pipeline(served.folder / "new", "orders", start="oldest")
    with pytest.raises(ArchiveError):
        run_pipeline("p", new, served.endpoint, spark=spark, once=True, archive=served.archive)


async def test_a_replay_reads_changes_that_only_the_archive_has_left(served: Served) -> None:
    log = served.log
    events = [put(1, n=1), change(1, "update", {"_id": 1, "n": "x"})]
    for number, event in enumerate([*events, *(put(number, n=1) for number in range(2, 60))]):
        await log.append([Commit(source="shop", position=str(number), events=(event,))])
    config = pipeline(served.folder / "table", "orders")
    rows = live_rows(log, 0, log.bounds_now().head)
    log_id = log.bounds_now().log_id
    apply(rows.slice(0, 1), config, log_id=log_id)
    apply(rows.slice(1), config, batch_id=1, log_id=log_id)
    archiver(log, served.folder).step()
    await log.trim(45)
    for archive, why in (("", "no longer"), (served.archive, "kind string")):
        (one,) = replay_rejects("p", config, served.endpoint, archive=archive)
        assert (one.sequence, one.state) == (2, "left")
        assert why in one.reason


def test_a_folder_means_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, meant in (("lake", str(tmp_path / "lake")), ("s3://b/x", "s3://b/x"), ("", "")):
        assert parse_options({"archive": given}, starting_default="earliest").archive == meant
