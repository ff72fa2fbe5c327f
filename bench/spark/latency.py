"""From a commit's append to the noop sink, in continuous micro-batches.

A process appends a commit of ten changes every 20 ms to a live log that another serves; Spark takes
micro-batches as fast as it can, and writes each to noop, once as the stream's own sink and once
inside foreachBatch. The clock of a commit starts before its append, so making it durable is in it,
and ends when the batch that it is in is through. The first seconds, in which Spark warms up, do not
count.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.events import change
from bench.serving import serving
from bench.spark.reading import NARROW
from bench.spark.stage import Figure, Given, agree, session
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.spark import register
from penstock.spark.options import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Through = list[tuple[int, int]]
"""The last sequence of each batch, and when it was through, in nanoseconds since the epoch."""
Query = tuple["StreamingQuery", Callable[[], Through]]
"""A query that runs, and what asks for the batches that are through."""

WHAT: Final = "latency: commit to noop"
IN_FOREACH_BATCH: Final = "latency: commit to noop in foreachBatch"

_COMMIT_CHANGES: Final = 10
_COMMIT_SECONDS: Final = 0.02
_WARM_SECONDS: Final = 15.0


def to_noop(given: Given) -> list[Figure]:
    """The stream's own sink. A batch is through when Spark has written down that it is."""
    return _measured(given, WHAT, _into_noop)


def in_foreach_batch(given: Given) -> list[Figure]:
    """The sink that pipelines have, with a query of its own in each batch."""
    return _measured(given, IN_FOREACH_BATCH, _into_foreach_batch)


def _measured(given: Given, what: str, start: "Callable[[DataFrame, Path], Query]") -> list[Figure]:
    processes = multiprocessing.get_context("spawn")
    commits = int((_WARM_SECONDS + (given.seconds or 30.0)) / _COMMIT_SECONDS)
    ours, theirs = processes.Pipe()
    log, checkpoint = given.folder / "live", given.folder / "checkpoint"
    feeder = processes.Process(target=_feed, args=(log, commits, theirs))
    feeder.start()
    ours.recv()
    with serving(log) as endpoint:
        spark = session(given)
        register(spark)
        changes = (
            spark.readStream.format("penstock")
            .schema(NARROW)
            .options(endpoint=endpoint, startingOffsets="earliest")
            .load()
        )
        query, looked = start(changes, checkpoint)
        ours.send("begin")
        # Spark keeps the files of a hundred batches, of some seconds.
        through: Through = []
        while query.isActive and not ours.poll(1):
            through = looked()
        appended: list[int] = ours.recv()
        while query.isActive and (not through or through[-1][0] < commits * _COMMIT_CHANGES):
            query.awaitTermination(1)
            through = looked()
        query.stop()
        spark.stop()
    feeder.join()
    ends = np.array([sequence for sequence, _ in through])
    agree("the last change that came through", ends[-1], commits * _COMMIT_CHANGES)
    mine = np.searchsorted(ends, np.arange(1, commits + 1) * _COMMIT_CHANGES)
    lags = (np.array([at for _, at in through])[mine] - np.array(appended)) / 1e6
    counted = lags[int(_WARM_SECONDS / _COMMIT_SECONDS) :]
    p50, p95, p99 = np.percentile(counted, [50, 95, 99])
    cadence = np.median(np.diff([at for _, at in through])) / 1e6
    said = f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms; a batch every {cadence:.0f} ms"
    return [Figure(what, said=said)]


def _into_noop(changes: "DataFrame", checkpoint: Path) -> Query:
    found: dict[int, tuple[int, int]] = {}

    def looked() -> Through:
        for commit in (checkpoint / "commits").glob("[0-9]*"):
            if (batch := int(commit.name)) not in found:
                found[batch] = (_end_of(checkpoint, batch), commit.stat().st_mtime_ns)
        return [found[batch] for batch in sorted(found)]

    return _started(changes.writeStream.format("noop"), checkpoint), looked


def _into_foreach_batch(changes: "DataFrame", checkpoint: Path) -> Query:
    through: Through = []

    def sink(batch: "DataFrame", batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        now = time.time_ns()
        through.append((_end_of(checkpoint, batch_id), now))

    return _started(changes.writeStream.foreachBatch(sink), checkpoint), lambda: through


def _started(writer: "DataStreamWriter", checkpoint: Path) -> "StreamingQuery":
    return (
        writer.option("checkpointLocation", checkpoint.as_uri())
        .trigger(processingTime="0 seconds")
        .start()
    )


def _end_of(checkpoint: Path, batch: int) -> int:
    """The last sequence of a batch. Spark writes its offsets before it runs it."""
    *_, offset = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return place_of(json.loads(offset)).sequence


def _feed(log: Path, commits: int, pipe: Connection) -> None:
    """Append commits on schedule; tell when each was begun."""

    async def run() -> list[int]:
        begun: list[int] = []
        async with LmdbLog(LogConfig(path=log)) as live:
            pipe.send("there")
            pipe.recv()
            started = time.monotonic()
            for number in range(commits):
                wait = started + number * _COMMIT_SECONDS - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                first = number * _COMMIT_CHANGES
                events = tuple(change(one) for one in range(first, first + _COMMIT_CHANGES))
                begun.append(time.time_ns())
                await live.append([Commit(source="shop", position=str(first), events=events)])
        return begun

    pipe.send(asyncio.run(run()))
