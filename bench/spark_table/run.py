"""Changes into a Delta table, beside the usual foreachBatch and beside reading alone.

    PYTHONPATH=. .venv/bin/python bench/spark_table/run.py

Events are of about 1 KB and twelve fields, in commits of ten, over fewer keys than events; one in
twenty is a delete. A durable log that another process serves holds them. Figures are events/s from
the query's start to its stop, and for the pipeline also inside its batches, which is what a running
pipeline does. The best of several rounds, because a busy machine only ever adds time.

The peer is what is usually written by hand: from_json with a schema that is known beforehand,
row_number for the newest per key, and one MERGE through delta-rs. It knows no type conflicts, no
repeated batches and no new fields. Target: at least 80 k events/s merged.
"""

import argparse
import asyncio
import multiprocessing
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, write_deltalake
from rich.console import Console
from rich.table import Table

from bench.events import change, fill
from bench.spark_read.run import serve
from penstock.event import ChangeEvent, Operation
from penstock.spark.config import TablePipelineConfig
from penstock.spark.run import PipelineProgress, run_pipeline
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEED = 7
_COLUMNS = "sequence BIGINT, operation_type STRING, key STRING, full_document STRING"
_DOCUMENT = (
    "_id BIGINT, customer INT, name STRING, status STRING, quantity INT, price DOUBLE, "
    "total STRING, paid BOOLEAN, at STRING, tags STRING, address STRING, text STRING"
)
_TEXT = "".join(random.Random(_SEED).choices("abcdefghijklmnop qrstuvwxyz", k=20_000))


def priced(number: int, keys: int, dice: random.Random) -> ChangeEvent:
    """A replace of one of `keys` documents, or one time in twenty a delete."""
    key = dice.randrange(keys)
    delete = dice.random() < 0.05
    cut = dice.randrange(19_000)
    document = (
        f'{{"_id":{key},"customer":{key % 97},"name":"name {key}","status":"open",'
        f'"quantity":{dice.randrange(100)},"price":{dice.random() * 100!r},'
        f'"total":{{"$numberDecimal":"{dice.randrange(10_000) / 100}"}},"paid":true,'
        f'"at":{{"$date":"2026-01-02T03:04:05.{number % 1000:03d}Z"}},"tags":["a","b"],'
        f'"address":{{"street":"{_TEXT[cut : cut + 40]}","zip":"12345"}},'
        f'"text":"{_TEXT[cut : cut + 640]}"}}'
    )
    operation = Operation.DELETE if delete else Operation.REPLACE
    return change(number, key=key, operation=operation, document=document.encode())


def pipeline(spark: "SparkSession", endpoint: str, path: Path, batch: int) -> float:
    """Run ours to the end of the log; seconds inside batches."""
    inside: list[PipelineProgress] = []
    config = TablePipelineConfig(
        source="shop", collections=("orders",), path=str(path), max_events_per_batch=batch
    )
    run_pipeline("bench", config, endpoint, spark=spark, once=True, on_progress=inside.append)
    return sum(one.seconds for one in inside)


def by_hand(spark: "SparkSession", endpoint: str, path: Path, batch: int) -> None:
    """The usual foreachBatch, to the end of the log."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    newest = Window.partitionBy("key").orderBy(sql.col("sequence").desc())

    def merge(rows: "DataFrame", _batch_id: int) -> None:
        changes = (
            rows.withColumn("rank", sql.row_number().over(newest))
            .where("rank = 1")
            .select(
                "key",
                "operation_type",
                sql.from_json("full_document", _DOCUMENT).alias("document"),
            )
            .select("key", "operation_type", "document.*")
            .toArrow()
        )
        if not DeltaTable.is_deltatable(str(path)):
            write_deltalake(str(path), changes.drop_columns("operation_type").slice(0, 0))
        columns = {name: f"s.{name}" for name in changes.column_names if name != "operation_type"}
        (
            DeltaTable(str(path))
            .merge(changes, "t.key = s.key", source_alias="s", target_alias="t")
            .when_matched_delete("s.operation_type = 'delete'")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, predicate="s.operation_type != 'delete'")
            .execute()
        )

    _stream(spark, endpoint, path, batch).foreachBatch(merge).start().awaitTermination()


def noop(spark: "SparkSession", endpoint: str, path: Path, batch: int) -> None:
    """Read only."""
    _stream(spark, endpoint, path, batch).format("noop").start().awaitTermination()


def _stream(spark: "SparkSession", endpoint: str, path: Path, batch: int) -> Any:
    options = {"endpoint": endpoint, "startingOffsets": "earliest"}
    rows = spark.readStream.format("penstock").schema(_COLUMNS).options(**options)
    return (
        rows.option("maxOffsetsPerTrigger", str(batch))
        .load()
        .writeStream.option("checkpointLocation", f"{path}_checkpoint")
        .trigger(availableNow=True)
    )


def measure(endpoint: str, folder: Path, events: int, batch: int, rounds: int) -> dict[str, float]:
    """Events a second, by what is run."""
    spark = local_session(
        app_name="bench",
        master="local[2]",
        settings={"spark.log.level": "ERROR", "spark.local.dir": str(folder)},
    )
    best: dict[str, float] = {}

    def note(what: str, seconds: float) -> None:
        best[what] = max(best.get(what, 0.0), events / seconds)

    for _ in range(rounds):
        for what, run in (
            ("read to noop, start to stop", noop),
            ("pipeline into Delta, start to stop", pipeline),
            ("peer: foreachBatch by hand, start to stop", by_hand),
        ):
            path = folder / "table"
            started = time.perf_counter()
            inside = run(spark, endpoint, path, batch)
            note(what, time.perf_counter() - started)
            if inside is not None:
                note("pipeline into Delta, inside batches", inside)
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(f"{path}_checkpoint", ignore_errors=True)
    spark.stop()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=150_000)
    parser.add_argument("--batch", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    events = arguments.events
    dice = random.Random(_SEED)
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        asyncio.run(
            fill(folder / "log", events, make=lambda number: priced(number, arguments.keys, dice))
        )
        ours, theirs = processes.Pipe()
        service = processes.Process(target=serve, args=(folder / "log", theirs))
        service.start()
        try:
            endpoint = ours.recv()
            figures = measure(endpoint, folder, events, arguments.batch, arguments.rounds)
        finally:
            ours.send("stop")
            service.join()
    title = f"{events:,} events of about 1 KB over {arguments.keys:,} keys"
    table = Table("what", "events/s", "of the peer", title=title)
    for what, rate in figures.items():
        ratio = rate / figures["peer: foreachBatch by hand, start to stop"]
        table.add_row(what, f"{rate:,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
