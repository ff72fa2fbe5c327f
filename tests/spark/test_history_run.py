"""`to = "history"` in Spark: from a service into Delta, and killed at any moment."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.serve.flight import FlightServer
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.drivers import run_and_kill
from tests.spark.histories import Model, at, history, in_order, versions_of
from tests.spark.tables import change, fold, pipeline, put, rejects_of, rows_of
from tests.spark.test_tables_kill import history as commits_of
from tests.spark.test_tables_kill import of_collection, without

# The stubs of pyspark leave some types open.
# pyright: reportUnknownMemberType=false

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KILLS = 3


@pytest.fixture
def log() -> BlockLog:
    return BlockLog(block_events=11)


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def test_versions_fold_to_the_rows_of_the_table_and_of_the_log(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """Both pipelines read one log, in batches of their own; the history is run again, too."""
    dice = random.Random(3)
    commits = commits_of(dice)
    log.append([at(event, 1000 * number) for event in commits[number]] for number in range(60))
    seen: list[PipelineProgress] = []
    config = history(
        tmp_path / "history", "orders", "lines", max_events_per_batch=40, compact_every=2
    )
    run_pipeline("h", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    log.append([at(event, 60_000) for event in events] for events in commits[60:])
    for _ in range(2):
        run_pipeline("h", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    # Tidied between batches, like any table.
    told = DeltaTable(str(tmp_path / "history" / "orders")).history()
    assert "OPTIMIZE" in {commit["operation"] for commit in told}
    current = pipeline(tmp_path / "table", "orders", "lines")
    run_pipeline("t", current, endpoint, spark=spark, once=True)
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    assert sum(one.entries for one in seen) == whole.num_rows
    for collection in ("orders", "lines"):
        entries = of_collection(whole, collection)
        found = versions_of(tmp_path / "history" / collection)
        assert in_order(found) == in_order(Model().take(entries).versions)
        for until in (whole.num_rows // 2, whole.num_rows):
            valid = [one for one in found if one["from"][0] <= until]
            valid = [one for one in valid if one["to"] is None or until < one["to"][0]]
            assert {(one["database"], one["key"]): one["document"] for one in valid} == fold(
                of_collection(whole.slice(0, until), collection)
            )
        assert fold(entries) == rows_of(tmp_path / "table" / collection)


def test_spark_finds_what_a_row_was_at_a_time(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """By a query of Spark's over the table's files, as docs/how-to/history.md says it."""
    log.append([[at(put(1, n=1), 1000)], [at(put(1, n=2), 2000)], [at(change(1, "delete"), 3000)]])
    run_pipeline("h", history(tmp_path / "t"), endpoint, spark=spark, once=True)
    versions = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    spark.createDataFrame(versions).createOrReplaceTempView("orders_history")
    for millis, expected in ((500, []), (1000, [1]), (1999, [1]), (2000, [2]), (3000, [])):
        found = spark.sql(
            f"SELECT n FROM orders_history WHERE _valid_from <= timestamp_millis({millis}) "
            f"AND (timestamp_millis({millis}) < _valid_to OR _valid_to IS NULL)"
        )
        assert [row["n"] for row in found.collect()] == expected


@pytest.mark.soak
@pytest.mark.spark
def test_a_driver_killed_at_any_moment_neither_loses_nor_repeats_a_version(tmp_path: Path) -> None:
    seed = seed_of("history-run")
    dice = random.Random(seed)
    log = BlockLog(block_events=11)
    log.append(commits_of(dice))
    log.append([[put(1, n="not a number"), put(99, n=1)]])
    server = FlightServer(log)
    server.start()
    lake = tmp_path / "lake"
    command = ("tests.spark.driver", server.address, lake, "history")
    try:
        run_and_kill(*command, dice=dice, kills=_KILLS)
    finally:
        server.stop()
    whole = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    rejected = whole.num_rows - 1
    fitting = without(whole, rejected)
    for collection in ("orders", "lines"):
        model = Model().take(of_collection(fitting, collection))
        assert in_order(versions_of(lake / collection)) == in_order(model.versions)
    assert [row["sequence"] for row in rejects_of(lake)] == [rejected]
