"""The log into Spark's noop sink, and what that is beside local files of the same changes.

The stream is what a pipeline reads. Beside it, over the first changes alone: Flight without Spark,
a batch read, and Spark's own files: Parquet is columns without a network, JSON lines are what most
change streams land as. JSON's documents are read as text, as ours are.
"""

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from bench.spark.stage import Figure, Given, agree, session
from penstock.client.flight import LogClient, ReadRequest
from penstock.progress import Progress
from penstock.spark import register
from penstock.spark.table.chunk import INPUT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM: Final = "read: stream, four columns"
_PARQUET: Final = "peer: Spark reads Parquet"
_LINES: Final = "peer: Spark reads JSON lines"
PEERS: Final = {_PARQUET: "Parquet", _LINES: "JSON lines"}

NARROW: Final = "sequence BIGINT, operation_type STRING, key STRING, full_document STRING"
_JSON: Final = "sequence BIGINT, op STRING, id BIGINT, document STRING"


def measure(given: Given) -> list[Figure]:
    spark = session(given, **{"spark.sql.streaming.numRecentProgressUpdates": "10000"})
    register(spark)
    some = given.json_changes
    source = spark.read.format("penstock").options(**_options(given))
    with LogClient(given.endpoint) as client:
        bounds = client.bounds()
        oldest = Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
        until = client.plan(after=oldest, events_max=some).to
    first = source.option("endingOffsets", str(until)).load()
    table_columns = first.select(*INPUT_COLUMNS).schema
    first.write.parquet(str(given.folder / "parquet"))
    parquet = spark.read.parquet(str(given.folder / "parquet"))
    agree("the rows of Parquet", parquet.count(), some)
    figures = [
        _streamed(given, spark, STREAM, NARROW),
        _streamed(given, spark, "read: stream, the columns of a table", table_columns),
        _streamed(given, spark, "read: stream, all columns", first.schema),
        _drained("read: batch, all columns", some, first),
    ]
    figures += [_flight(given.endpoint, until, streams) for streams in (1, 2)]
    json = spark.read.schema(_JSON).json(str(given.json))
    figures += [
        _drained(_PARQUET, some, parquet),
        _drained(_LINES, some, json),
    ]
    spark.stop()
    return figures


def _options(given: Given) -> dict[str, str]:
    return {"endpoint": given.endpoint, "startingOffsets": "earliest"}


def _streamed(given: Given, spark: "SparkSession", what: str, columns: Any) -> Figure:
    """All that is there, batch by batch; the time of the batches, without the query's start."""
    rows = spark.readStream.format("penstock").schema(columns).options(**_options(given))
    query = (
        rows.option("maxOffsetsPerTrigger", str(4 * given.batch))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(given.folder / what.replace(" ", "_")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    curve, done, seconds = [], 0, 0.0
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            done += progress["numInputRows"]
            seconds += progress["durationMs"]["triggerExecution"] / 1000
            curve.append((done, seconds))
    agree(f"the rows of {what}", done, given.changes)
    return Figure(what, curve)


def _drained(what: str, changes: int, rows: Any) -> Figure:
    return _timed(what, changes, rows.write.format("noop").mode("overwrite").save)


def _timed(what: str, changes: int, work: Callable[[], None]) -> Figure:
    started = time.monotonic()
    work()
    return Figure(what, [(changes, time.monotonic() - started)])


def _flight(endpoint: str, until: Progress, streams: int) -> Figure:
    """Read without Spark, split into so many streams."""
    edges = [until.sequence * part // streams for part in range(streams + 1)]
    read: list[int] = []

    def drain(low: int, high: int) -> None:
        request = ReadRequest(log_id=until.log_id, after=low, until=high)
        with LogClient(endpoint) as client:
            read.append(sum(batch.num_rows for batch in client.read(request)))

    def work() -> None:
        threads = [threading.Thread(target=drain, args=edge) for edge in pairwise(edges)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    what = f"read: Flight alone, {streams} stream{'s' if streams > 1 else ''}"
    figure = _timed(what, until.sequence, work)
    agree(f"the rows of {what}", sum(read), until.sequence)
    return figure
