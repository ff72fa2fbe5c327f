"""A pipeline applies what the service has, goes on after its service was away, and stops clean."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.flight.blocks import BlockLog, gap
from tests.spark.tables import change, pipeline, put, rejects_of, rows_of, schema_event

from penstock.client.flight import PipelineReport
from penstock.errors import ChangesLostError, StreamChangedError, TrimmedError
from penstock.serve.flight import FlightServer
from penstock.spark.run import PipelineProgress, run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def reports() -> list[PipelineReport]:
    return []


@pytest.fixture
def endpoint(log: BlockLog, reports: list[PipelineReport]) -> Iterator[str]:
    server = FlightServer(log, on_report=reports.append)
    server.start()
    yield server.address
    server.stop()


def test_a_pipeline_applies_what_there_is_batch_by_batch(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([put(number % 7, n=number)] for number in range(50))
    log.append([[put(1, n=100), change(2, "delete"), put(3, n=300)]])
    seen: list[PipelineProgress] = []
    config = pipeline(tmp_path / "t", max_events_per_batch=20)
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    rows = {key: row["n"] for (_, key), row in rows_of(tmp_path / "t").items()}
    assert rows == {
        '{"_id":0}': 49,
        '{"_id":1}': 100,
        '{"_id":3}': 300,
        '{"_id":4}': 46,
        '{"_id":5}': 47,
        '{"_id":6}': 48,
    }
    assert [one.entries for one in seen] == [20, 20, 13]
    assert seen[-1].sequence == log.head


def test_a_lost_checkpoint_neither_skips_nor_repeats(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = pipeline(tmp_path / "t")
    log.append([[put(1, n=1)], [put(2, n=2)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    shutil.rmtree(config.checkpoint_path)
    log.append([[put(2, n=3)]])
    seen: list[PipelineProgress] = []
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert [(one.entries, one.rows) for one in seen] == [(1, 1)]
    assert {row["n"] for row in rows_of(tmp_path / "t").values()} == {1, 3}


def test_a_lost_checkpoint_does_not_hide_what_retention_took_meanwhile(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """P7: starting at the oldest entry would leave a hole that nobody sees."""
    config = pipeline(tmp_path / "t")
    log.append([[put(1, n=1)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    shutil.rmtree(config.checkpoint_path)
    log.append([put(number, n=2) for number in range(10)] for _ in range(2))
    log.trim(8)
    with pytest.raises(TrimmedError):
        run_pipeline("p", config, endpoint, spark=spark, once=True)


def test_a_service_that_is_away_for_a_while_is_waited_for(
    spark: "SparkSession", log: BlockLog, tmp_path: Path
) -> None:
    server = FlightServer(log)
    server.start()
    address = server.address
    log.append([[put(1, n=1)]])
    stop, applied = threading.Event(), threading.Semaphore(0)
    config = pipeline(tmp_path / "t", trigger=0.05)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_pipeline(
                "p",
                config,
                address,
                spark=spark,
                on_progress=lambda _: applied.release(),
                stop=stop,
            )
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        assert applied.acquire(timeout=120)
        server.stop()
        log.append([[put(2, n=2)]])
        server = FlightServer(log, address=address)
        server.start()
        assert applied.acquire(timeout=120)
    finally:
        stop.set()
        running.join(120)
        server.stop()
    assert not running.is_alive()
    assert failures == []
    assert {row["n"] for row in rows_of(tmp_path / "t").values()} == {1, 2}


def test_an_error_of_the_tables_or_the_log_comes_as_its_own_class(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)], [gap()], [put(2, n=2)]])
    with pytest.raises(ChangesLostError, match="at sequence 2"):
        run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    lenient = pipeline(tmp_path / "t", on_gap="record")
    run_pipeline("p", lenient, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t")) == 2
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2]
    log.log_id += 1
    with pytest.raises(StreamChangedError):
        run_pipeline("p", lenient, endpoint, spark=spark, once=True)


def test_all_collections_of_a_source_become_a_table_each(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1), change(1, "insert", {"x": "y"}, collection="line items/2")]])
    log.append([[schema_event("drop")], [put(5, n=5)]])
    config = pipeline(tmp_path / "lake").model_copy(update={"collections": ()})
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    shutil.rmtree(config.checkpoint_path)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert list(rows_of(tmp_path / "lake" / "orders")) == [("db", '{"_id":5}')]
    assert DeltaTable(str(tmp_path / "lake" / "line~20items~2f2")).to_pyarrow_table().num_rows == 1
