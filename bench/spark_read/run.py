"""Spark reads the log over Flight, beside Spark reading the same rows from local files.

    PYTHONPATH=. .venv/bin/python bench/spark_read/run.py

Events are of about 1 KB, in commits of ten, in a durable log that another process serves. A figure
is the best of several rounds, because a busy machine only ever adds time. The peers read what Spark
itself wrote to local disk: Parquet is columns without a network, JSON lines are what most change
streams land as. Target: at least 300 k events/s into Spark's noop sink.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.events import fill
from penstock.client.flight import LogClient, ReadRequest
from penstock.log import LmdbLogReader
from penstock.serve.flight import FlightServer
from penstock.spark.session import local_session


def serve(path: Path, pipe: Connection) -> None:
    """Serve the log until the pipe says stop."""
    reader = LmdbLogReader(path)
    server = FlightServer(reader)
    server.start()
    pipe.send(server.address)
    pipe.recv()
    server.stop()
    asyncio.run(reader.close())


def best(rounds: int, events: int, run: Callable[[], Any]) -> float:
    """Events a second of the fastest round."""
    seconds: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return events / min(seconds)


def flight(endpoint: str, streams: int) -> None:
    """Read the whole log over Flight, split into so many streams."""
    with LogClient(endpoint) as client:
        bounds = client.bounds()
    edges = [bounds.head * part // streams for part in range(streams + 1)]

    def drain(low: int, high: int) -> None:
        request = ReadRequest(log_id=bounds.log_id, after=low, until=high)
        with LogClient(endpoint) as client:
            assert sum(batch.num_rows for batch in client.read(request)) == high - low

    threads = [threading.Thread(target=drain, args=edge) for edge in pairwise(edges)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def spark_figures(endpoint: str, folder: Path, events: int, rounds: int) -> dict[str, float]:
    """Events a second into the noop sink, by what is read."""
    spark = local_session(
        app_name="bench",
        master="local[2]",
        settings={"spark.log.level": "ERROR", "spark.local.dir": str(folder)},
    )
    options = {"endpoint": endpoint, "startingOffsets": "earliest"}
    source = spark.read.format("penstock").options(**options)
    everything = source.load()
    everything.write.parquet(str(folder / "parquet"))
    everything.write.json(str(folder / "json"))
    json_rows = spark.read.schema(everything.schema).json(str(folder / "json"))
    columns = "sequence BIGINT, operation_type STRING, key STRING, full_document STRING"

    def drain(rows: Any) -> Callable[[], None]:
        return lambda: rows.write.format("noop").mode("overwrite").save()

    def stream() -> None:
        rows = spark.readStream.format("penstock").options(**options).load()
        with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
            query = (
                rows.writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    narrow = source.schema(columns).load()
    figures = {
        "Spark batch read, all columns": best(rounds, events, drain(everything)),
        "Spark batch read, four columns": best(rounds, events, drain(narrow)),
        "Spark stream, availableNow, start to stop": best(rounds, events, stream),
        "peer: Spark, local Parquet": best(
            rounds, events, drain(spark.read.parquet(str(folder / "parquet")))
        ),
        "peer: Spark, local JSON lines": best(rounds, events, drain(json_rows)),
    }
    spark.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    events = arguments.events
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        asyncio.run(fill(folder / "log", events))
        ours, theirs = processes.Pipe()
        service = processes.Process(target=serve, args=(folder / "log", theirs))
        service.start()
        try:
            endpoint = ours.recv()
            figures = {
                f"Flight, {streams} stream{'s'[: streams - 1]}": best(
                    arguments.rounds, events, partial(flight, endpoint, streams)
                )
                for streams in (1, 2)
            }
            figures |= spark_figures(endpoint, folder, events, arguments.rounds)
        finally:
            ours.send("stop")
            service.join()
    table = Table("what", "events/s", "of Parquet", title=f"{events:,} events of about 1 KB")
    for what, rate in figures.items():
        ratio = rate / figures["peer: Spark, local Parquet"]
        table.add_row(what, f"{rate:,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
