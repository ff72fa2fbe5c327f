"""`to = "changelog"` on Spark, from the service's log: entry by entry what the log has."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from penstock.client.flight import LogClient
from penstock.errors import ChangesLostError, PipelineError, TrimmedError
from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.spark.plan import plan_of
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import changelog, counted, expected, files_of, rows_of
from tests.spark.tables import change, gap, put, schema_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


@pytest.fixture
def log() -> BlockLog:
    return BlockLog(block_events=500)


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def entries_of(log: BlockLog) -> pa.Table:
    return pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])


@FORMATS
def test_every_entry_is_in_the_changelog_once_however_many_workers_write(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, form: str
) -> None:
    large = [put(number, n=number, text="x" * 50) for number in range(3_000)]
    log.append([[put(number, n=number)] for number in range(50)])
    log.append([[gap()], [schema_event("rename", to={"db": "db", "coll": "lines"})]])
    log.append([large, [change(5, "delete", collection="lines"), put(5, n=1)]])
    # Of so many entries, two workers each read a part.
    log.append([[put(number, n=1) for number in range(40_000)]])
    config = changelog(tmp_path / "c", format=form, max_events_per_batch=60)
    seen: list[PipelineProgress] = []
    run_pipeline("c", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert rows_of(config) == expected(entries_of(log))
    assert counted(config) == files_of(config)
    assert sum(one.rows for one in seen) == sum(one.entries for one in seen) == log.head
    assert seen[-1].timestamp == 1_700_000_000_000
    large_batch = [name for name in files_of(config) if "orders/" in name][-2:]
    assert len({name.split("-")[-2] for name in large_batch}) == 2
    log.append([[put(1, n=2)]])
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert rows_of(config) == expected(entries_of(log))


@FORMATS
def test_a_changelog_of_some_collections_has_them_and_what_is_said_of_the_source(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, form: str
) -> None:
    lines: list[AnyEvent] = [change(1, "insert", {"_id": 1}, collection="lines")]
    log.append([[put(1, n=1)], lines, [gap()], [*lines, put(2, n=2)], lines])
    config = changelog(tmp_path / "c", "lines", format=form)
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert [row["sequence"] for row in rows_of(config)] == [2, 3, 4, 6]
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert len(rows_of(config)) == 4


def test_what_retention_took_is_a_row_or_stops_the_pipeline(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """P7, P19."""
    config = changelog(tmp_path / "c")
    log.append([[put(1, n=1)]])
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    log.append([[put(number, n=2)] for number in range(9)])
    log.trim(6)
    strict = changelog(tmp_path / "c", on_gap="halt")
    with LogClient(endpoint) as client:
        planned = plan_of("c", config, client)
        with pytest.raises(TrimmedError, match="on_gap = 'record'"):
            plan_of("c", strict, client)
    with pytest.raises(TrimmedError, match="on_gap = 'record'"):
        run_pipeline("c", strict, endpoint, spark=spark, once=True)
    seen: list[PipelineProgress] = []
    with capture_logs() as logged:
        run_pipeline("c", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert (planned.sequence, planned.lost) == (1, 5)
    assert planned.entries == sum(one.entries for one in seen) == 5
    (said,) = [one for one in logged if one["log_level"] == "error"]
    assert (said["first"], said["last"]) == (2, 6)
    assert [one.lost for one in seen] == [5]
    rows = rows_of(config)
    assert [row["sequence"] for row in rows] == [1, 6, 7, 8, 9, 10]
    assert (rows[1]["operation_type"], rows[1]["collection"]) == ("gap", None)
    log.append([[gap()], [put(1, n=3)]])
    with pytest.raises(ChangesLostError, match="sequence 11"):
        run_pipeline("c", strict, endpoint, spark=spark, once=True)
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert [row["sequence"] for row in rows_of(config)][-3:] == [10, 11, 12]


def test_a_worker_that_cannot_write_stops_the_pipeline_and_says_so(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)]])
    config = changelog(tmp_path / "c", partition_by=["date"])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "date=2023-11-14").write_text("no folder")
    with pytest.raises(PipelineError, match=f"{tmp_path}/c .*FileExistsError"):
        run_pipeline("c", config, endpoint, spark=spark, once=True)
    (tmp_path / "c" / "date=2023-11-14").unlink()
    run_pipeline("c", config, endpoint, spark=spark, once=True)
    assert rows_of(config) == expected(entries_of(log))
