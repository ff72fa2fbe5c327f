"""What is lopsided, giant, empty or larger than memory passes whole, or stops by name."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec import structs
from py4j.protocol import Py4JNetworkError

from penstock.errors import FieldTooLargeError
from penstock.event import ChangeEvent, event_id
from penstock.serve.flight import FlightServer
from penstock.spark.config import (
    AuditPipelineConfig,
    PipelineConfig,
    ReplicatePipelineConfig,
    ViewPipelineConfig,
)
from penstock.spark.many import run_pipelines
from penstock.spark.progress import PipelineProgress
from penstock.spark.raised import own_error
from penstock.spark.table.chunk import concat_cells
from penstock.spark.table.kinds import Kind
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark import changelogs, histories
from tests.spark.cluster import ROOT
from tests.spark.replica.support import MongoReplica, PostgresReplica, database
from tests.spark.small_driver import HEAP_BYTES
from tests.spark.tables import Document, change, fold, pipeline, put, rejects_of, rows_of
from tests.spark.test_audit import audit, records
from tests_support.servers import MongoReplicaSet, PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIANT_BYTES = (16 << 20) - 1000
"""A little less than a document of MongoDB may have."""
_LARGE_EVENTS, _LARGE_BYTES = 60, 12_000_000


@pytest.fixture
def mongodb(mongo: MongoReplicaSet) -> Iterator[MongoReplica]:
    replica = MongoReplica(mongo.uri, database())
    yield replica
    replica.close()


def own(event: ChangeEvent, number: int) -> ChangeEvent:
    """The same with an id of its own."""
    return structs.replace(event, event_id=event_id("shop", str(number), 1))


def view(path: Path, **more: Any) -> ViewPipelineConfig:
    query = "SELECT n, count(*) AS documents FROM orders GROUP BY n"
    said = {"to": "view", "source": "shop", "path": str(path), "query": query}
    return ViewPipelineConfig.model_validate({**said, **more})


EVERYWHERE = ("table", "history", "changelog", "audit", "mongodb", "postgres", "view")


@pytest.mark.parametrize(
    ("one_key", "names"),
    [
        pytest.param(5_000, ("table", "mongodb"), id="some"),
        pytest.param(40_000, EVERYWHERE, id="all", marks=pytest.mark.soak),
    ],
)
def test_one_key_a_giant_document_and_batches_without_a_change_pass_whole(
    spark: "SparkSession",
    mongodb: MongoReplica,
    mongo: MongoReplicaSet,
    mongo_database: str,
    postgres: PostgresServer,
    tmp_path: Path,
    one_key: int,
    names: Sequence[str],
) -> None:
    log = BlockLog(block_events=100)
    log.append([[own(put(1, n=number), number) for number in range(one_key)]])
    log.append([[own(put(2, n=2, text="x" * _GIANT_BYTES), -1)]])
    log.append([[own(change(1, "delete"), -2), own(put(1, n=1), -3)]])
    # No column of numbers takes the one; MongoDB, which keeps milliseconds, not the other.
    micros = '{"_id":4,"n":1,"at":{"$date":"2026-01-01T00:00:00.000001Z"}}'
    log.append([[own(put(3, n="no number"), -4)], [own(change(4, "insert", text=micros), -5)]])
    log.append([change(number, "insert", {"x": 1}, collection="lines")] for number in range(40))
    small: dict[str, Any] = {"max_events_per_batch": 30}
    replica = PostgresReplica(postgres.create(database()))
    changelog = changelogs.changelog(tmp_path / "changelog", "orders", **small)
    trail = audit(mongo.uri, mongo_database, collections=["orders"], **small)
    pipelines: dict[str, PipelineConfig] = {
        "table": pipeline(tmp_path / "table", **small),
        "history": histories.history(tmp_path / "history", **small),
        "changelog": changelog,
        "audit": trail,
        "mongodb": mongodb.config("orders", **small),
        "postgres": replica.config("orders", **small),
        "view": view(tmp_path / "view", **small),
    }
    told: list[PipelineProgress] = []
    server = FlightServer(log)
    server.start()
    try:
        errors = run_pipelines(
            {name: pipelines[name] for name in names},
            server.address,
            spark=spark,
            stop=threading.Event(),
            once=True,
            on_progress=told.append,
        )
    finally:
        server.stop()
    assert errors == {}

    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    orders = whole.slice(0, one_key + 5)
    text, instant = one_key + 4, one_key + 5
    rows = by_id(fold(orders))
    numbers = {key: row for key, row in rows.items() if key != 3}
    millis = {key: row for key, row in rows.items() if key != 4}
    but_text = pa.concat_tables([orders.slice(0, text - 1), orders.slice(text)])
    expected: dict[str, object] = {
        "table": (numbers, [text]),
        "history": (histories.in_order(histories.Model().take(but_text).versions), [text]),
        "changelog": changelogs.expected(orders),
        "audit": orders["event_id"].to_pylist(),
        "mongodb": ({key: mongodb.expected(row) for key, row in millis.items()}, [instant]),
        "postgres": ({key: replica.expected(row) for key, row in numbers.items()}, [text]),
        "view": ({1: 2, 2: 1}, [text]),
    }

    def found(name: str) -> object:
        path = tmp_path / name
        match name:
            case "table":
                return by_id(rows_of(path)), sequences(rejects_of(path))
            case "history":
                return histories.in_order(histories.versions_of(path)), sequences(rejects_of(path))
            case "changelog":
                return changelogs.rows_of(changelog)
            case "audit":
                return [one["_id"] for one in records(trail)]
            case "mongodb":
                return mongodb.rows("orders"), sequences(mongodb.rejects())
            case "postgres":
                return replica.rows("orders"), sequences(replica.rejects())
            case _:
                counted = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
                return {row["n"]: row["documents"] for row in counted}, sequences(rejects_of(path))

    for name in names:
        batches = [one.entries for one in told if one.pipeline == name]
        assert (max(batches), batches[-1]) == (one_key, 0), name
        assert found(name) == expected[name], name


def by_id(rows: dict[tuple[str, str], Document]) -> dict[int, Document]:
    """Rows by their key alone."""
    return {json.loads(key)["_id"]: row for (_, key), row in rows.items()}


def sequences(rejects: list[Document]) -> list[int]:
    """Which changes were rejected."""
    return [one["sequence"] for one in rejects]


@pytest.fixture
def batch() -> Iterator[str]:
    """The address of a log with one commit that is larger than a small driver's heap."""
    log = BlockLog(block_events=1)
    text = "x" * _LARGE_BYTES
    assert _LARGE_EVENTS * _LARGE_BYTES > HEAP_BYTES
    log.append([[own(put(key, n=key, text=text), key) for key in range(_LARGE_EVENTS)]])
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def driven(endpoint: str, config: PipelineConfig, *more: str) -> subprocess.CompletedProcess[str]:
    """A small driver that has run the pipeline."""
    said = config.model_dump(mode="json", by_alias=True)
    if isinstance(config, AuditPipelineConfig | ReplicatePipelineConfig):
        said["uri"] = config.uri.get_secret_value()
    command = [sys.executable, "-m", "tests.spark.small_driver"]
    command += [endpoint, json.dumps(said), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("form", [name for name in EVERYWHERE if name != "mongodb"])
def test_a_batch_larger_than_the_memory_of_spark_passes(
    batch: str,
    form: str,
    mongo: MongoReplicaSet,
    mongo_database: str,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    """The transaction of a MongoDB needs a cache for it: see tests/spark/replica/test_attempts."""
    replica = PostgresReplica(postgres.create(database()))
    trail = audit(mongo.uri, mongo_database)
    configs: dict[str, PipelineConfig] = {
        "table": pipeline(tmp_path / "t"),
        "history": histories.history(tmp_path / "t"),
        "changelog": changelogs.changelog(tmp_path / "t"),
        "audit": trail,
        "postgres": replica.config(),
        "view": view(tmp_path / "t"),
    }
    done = driven(batch, configs[form])
    assert done.returncode == 0, done.stderr
    if form == "postgres":
        found = replica.rows("orders")
        numbers: list[Any] = [
            row["n"] for row in found.values() if len(row["text"]) == _LARGE_BYTES
        ]
    elif form == "audit":
        numbers = [one["meta"]["pk"]["_id"] for one in records(trail)]
    else:
        column = "key" if form == "changelog" else "n"
        table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table(columns=[column])
        numbers = table[column].to_pylist()
        if form == "changelog":
            numbers = [json.loads(key)["_id"] for key in numbers]
    assert sorted(numbers) == list(range(_LARGE_EVENTS))


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("form", ["table", "history", "view"])
def test_a_batch_larger_than_the_driver_may_hold_stops_by_name(
    batch: str, form: str, tmp_path: Path
) -> None:
    configs: dict[str, PipelineConfig] = {
        "table": pipeline(tmp_path / "t", max_bytes_per_batch=HEAP_BYTES),
        "history": histories.history(tmp_path / "t", max_bytes_per_batch=HEAP_BYTES),
        "view": view(tmp_path / "t", max_bytes_per_batch=HEAP_BYTES),
    }
    done = driven(batch, configs[form])
    assert "BatchTooLargeError: pipeline p: a batch of 60 entries" in done.stderr


@pytest.mark.soak
@pytest.mark.spark
def test_a_batch_that_comes_whole_through_a_driver_without_the_memory_is_named(
    batch: str, tmp_path: Path
) -> None:
    """From other machines, a table's batch comes through the driver's JVM, which ends."""
    done = driven(batch, pipeline(tmp_path / "t"), "apart")
    assert done.returncode == 1
    *_, last = done.stderr.strip().splitlines()
    assert "SparkMemoryError: pipeline p: Spark" in last
    assert not (tmp_path / "t" / "_delta_log").exists()


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        RuntimeError("... java.lang.OutOfMemoryError: Java heap space"),
        RuntimeError("... is bigger than spark.driver.maxResultSize (1024.0 MiB)"),
    ],
)
def test_memory_that_ran_out_is_told_with_the_settings_that_give_more(error: Exception) -> None:
    assert "driver.memory" in str(own_error(error, pipeline="p"))


def test_a_field_of_more_text_than_a_column_can_have_is_told_with_what_to_do() -> None:
    """No setting makes room for it, so none is advised."""
    size = 1200 << 20
    offsets: Any = np.array([0, size], np.int32)
    zeros: Any = np.zeros(size, np.uint8)
    texts: Any = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(zeros)]
    )
    cells = {"text": {Kind.STRING: texts}}
    with pytest.raises(pa.ArrowInvalid) as refused:
        concat_cells((cells, 1), (cells, 1))
    for error in (refused.value, RuntimeError(f"Traceback ...\n{refused.value}\n at java")):
        said = own_error(error, pipeline="p")
        assert isinstance(said, FieldTooLargeError)
        assert "Lower max_events_per_batch" in str(said)
        assert "max_bytes_per_batch" not in str(said)
