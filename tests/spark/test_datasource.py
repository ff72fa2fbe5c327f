"""`format("penstock")`: batches end at commits, and the same offsets give the same rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.flight.blocks import BlockLog, insert

from penstock.serve.flight import FlightServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


Batches = dict[int, list[Any]]


def run(spark: "SparkSession", endpoint: str, checkpoint: Path, **options: Any) -> Batches:
    """Run a stream over what is there, with `options`; the rows of each batch by its id."""
    batches: Batches = {}

    def keep(rows: "DataFrame", batch_id: int) -> None:
        batches[batch_id] = rows.collect()

    reader = spark.readStream.format("penstock").option("endpoint", endpoint)
    query = (
        reader.options(**({"startingOffsets": "earliest"} | options))
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return batches


def sequences(batches: Batches) -> list[int]:
    return sorted(row.sequence for rows in batches.values() for row in rows)


def test_a_stream_reads_every_row_once(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[insert(n) for n in range(i, i + 3)] for i in range(0, 300, 3)])
    batches = run(spark, endpoint, tmp_path)
    assert sequences(batches) == list(range(1, 301))
