"""A pipeline applies what the service has, goes on after its service was away, and stops clean."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.flight.blocks import BlockLog
from tests.spark.tables import change, pipeline, put, rows_of

from penstock.client.flight import PipelineReport
from penstock.errors import TrimmedError
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
