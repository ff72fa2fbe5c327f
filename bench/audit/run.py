"""Changes into an audit trail in MongoDB, beside writing the same documents with nothing proved.

    PYTHONPATH=. .venv/bin/python bench/audit/run.py

Events are replaces of about 1 KB with both images, of which one column differs, in commits of ten.
A durable log that another process serves holds them; MongoDB is a replica set of one on this
machine, with w: majority and j: true.

The peer is `insert_many` of the very same records, without transactions, places, leaves or a head,
by as many records at once and with the same write concern: what MongoDB takes at best
from one writer, without the indexes of the trail and with them. Beside it is its writer alone,
on records that are ready, and all of it, from the log through Spark in a warm session. Then
events come at a steady rate, and each event's lag is from its commit until the head shows it: an
event between two heads is taken to have come evenly between them.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Raw, structs
from rich.console import Console
from rich.table import Table

from bench.events import change, fill
from bench.serving import serving
from penstock.audit.entries import made_ready
from penstock.audit.outages import Patience
from penstock.audit.packing import Entry, Whole
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.event import ChangeEvent, Commit, Operation
from penstock.log import LmdbLog, LogConfig
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from tests_support.servers import MongoReplicaSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEXT = b"0123456789abcdef" * 55


def replaced(number: int, keys: int = 10_000) -> ChangeEvent:
    """A replace that changes one column of a row of about 1 KB."""
    key = number % keys
    before, after = (
        b'{"_id":%d,"customer":%d,"n":%d,"text":"%s"}' % (key, key % 97, value, _TEXT)
        for value in (number, number + 1)
    )
    event = change(number, key=key, operation=Operation.REPLACE, document=after)
    return structs.replace(
        event,
        full_document_before_change=Raw(before),
        full_document_as_of_event=True,
        transaction=f"0-1-{number // 10}",
    )


def config_of(
    mongo: MongoReplicaSet, database: str, batch: int, **said: Any
) -> AuditPipelineConfig:
    return AuditPipelineConfig.model_validate(
        {
            "to": "audit",
            "source": "shop",
            "uri": mongo.uri,
            "database": database,
            "batch_events": batch,
            **said,
        }
    )


def into_trail(
    spark: "SparkSession", endpoint: str, mongo: MongoReplicaSet, batch: int, *, database: str
) -> tuple[float, float]:
    """Seconds from start to stop, and of them inside batches."""
    inside: list[PipelineProgress] = []
    started = time.perf_counter()
    run_pipeline(
        "bench",
        config_of(mongo, database, batch),
        endpoint,
        spark=spark,
        once=True,
        on_progress=inside.append,
    )
    return time.perf_counter() - started, sum(one.seconds for one in inside)


def bare(mongo: MongoReplicaSet, batch: int, *, indexes: bool) -> float:
    """Seconds that MongoDB takes for the records alone."""
    with closing(trail_of(mongo, f"bare_{batch}_{indexes}", batch)) as trail:
        if indexes:
            trail.create_indexes()
        with closing(trail_of(mongo, f"trail_{batch}", batch)) as written:
            records = list(written.raw_records.find().sort("at", 1))
        started = time.perf_counter()
        for at in range(0, len(records), batch):
            trail.raw_records.insert_many(records[at : at + batch])
        return time.perf_counter() - started


def alone(mongo: MongoReplicaSet, batch: int) -> float:
    """Seconds that the trail's writer takes for the same records, when they are ready."""
    entries: list[Entry] = []
    with closing(trail_of(mongo, f"trail_{batch}", batch)) as written:
        records = written.raw_records.find().sort("at", 1)
        for number, record in enumerate(records, 1):
            ready = made_ready(
                {name: value for name, value in record.items() if name != "at"}, bytes_max=1 << 23
            )
            entries.append(Entry(number, 0, number, 1, 0, str(record["_id"]), **ready))
    steps = [Whole(entries[at : at + batch], at) for at in range(0, len(entries), batch)]
    with closing(trail_of(mongo, f"alone_{batch}", batch)) as trail:
        patience = Patience(trail.source, trail.config, stopping=threading.Event())
        writer = Writer(trail, "bench", patience=patience)
        writer.open()
        started = time.perf_counter()
        writer.write(steps, marker=str)
        return time.perf_counter() - started


def trail_of(mongo: MongoReplicaSet, database: str, batch: int) -> Trail:
    return Trail("shop", config_of(mongo, database, batch))


def feed(path: Path, rate: int, seconds: float, stopped: Any) -> None:
    """Append events at a steady rate, each with the time at which it was."""

    async def run() -> None:
        log = LmdbLog(LogConfig(path=path, free_bytes_min=0))
        number, started = 10_000_000, time.monotonic()
        while (passed := time.monotonic() - started) < seconds:
            due = 10_000_000 + int(passed * rate)
            if due > number:
                now = time.time_ns() // 1_000_000
                events = [
                    structs.replace(replaced(one), timestamp=now) for one in range(number, due)
                ]
                await log.append([Commit(source="shop", position=str(due), events=tuple(events))])
                number = due
            await asyncio.sleep(0.01)
        await log.close()

    asyncio.run(run())
    stopped.set()


def lags(
    spark: "SparkSession",
    endpoint: str,
    mongo: MongoReplicaSet,
    path: Path,
    rate: int,
    seconds: float,
) -> list[float]:
    """Seconds from commit to the trail, of events that come at `rate`."""
    processes = multiprocessing.get_context("spawn")
    stopped, stop = processes.Event(), threading.Event()
    found: list[float] = []
    last = 0

    def note(progress: PipelineProgress) -> None:
        nonlocal last
        now = time.time() * 1000
        if progress.timestamp > now - 3_600_000:
            if last:
                times = np.linspace(last, progress.timestamp, max(progress.rows, 1))
                found.extend(((now - times) / 1000).tolist())
            last = progress.timestamp
        if stopped.is_set():
            stop.set()

    feeder = processes.Process(target=feed, args=(path, rate, seconds, stopped))
    config = config_of(mongo, "live", 1000, trigger=0.1, start="oldest")
    feeder.start()
    run_pipeline("bench", config, endpoint, spark=spark, on_progress=note, stop=stop)
    feeder.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=40)
    arguments = parser.parse_args()
    table = Table("what", "events/s", "of the peer", title=f"{arguments.events:,} events of 1 KB")
    with tempfile.TemporaryDirectory() as scratch, MongoReplicaSet() as mongo:
        folder = Path(scratch)
        asyncio.run(fill(folder / "log", arguments.events, make=replaced))
        with serving(folder / "log") as endpoint:
            spark = local_session(
                app_name="bench",
                master="local[2]",
                settings={"spark.log.level": "ERROR", "spark.local.dir": scratch},
            )
            into_trail(spark, endpoint, mongo, 100, database="warm")
            for batch in (100, 1000):
                whole, inside = into_trail(spark, endpoint, mongo, batch, database=f"trail_{batch}")
                peer = bare(mongo, batch, indexes=False)
                for what, seconds in (
                    ("peer", peer),
                    ("peer, with the trail's indexes", bare(mongo, batch, indexes=True)),
                    ("the trail's writer alone", alone(mongo, batch)),
                    ("through Spark, inside batches", inside),
                    ("through Spark, start to stop", whole),
                ):
                    rate = arguments.events / seconds
                    name = f"{batch:,} at once: {what}"
                    table.add_row(name, f"{rate:,.0f}", f"{peer / seconds:.2f}")
            found = lags(
                *(spark, endpoint, mongo, folder / "log"), arguments.rate, arguments.seconds
            )
            spark.stop()
    Console().print(table)
    p50, p99 = np.percentile(found, [50, 99])
    print(f"lag at {arguments.rate:,} events/s: p50 {p50:.2f} s, p99 {p99:.2f} s")


if __name__ == "__main__":
    main()
