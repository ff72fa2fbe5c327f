"""A replica that is not what the log says is found, told, and made right."""

import itertools
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import (
    ConfigError,
    HistoryTrimmedError,
    PipelineChangedError,
    PipelineError,
)
from penstock.spark.progress import PipelineProgress
from penstock.spark.replica.beside import Rows
from penstock.spark.replica.mongodb_looking import MongoSide
from penstock.spark.replica.verifying import verify_replica
from penstock.spark.run import run_pipeline
from tests.cli.service import SHOP, configure, spawn
from tests.flight.blocks import BlockLog
from tests.spark.replica.support import MongoReplica, PostgresReplica, database
from tests.spark.replica.verified import Pipeline, ask, meddled
from tests.spark.tables import change, put, schema_event
from tests.waiting import PATIENCE_SECONDS
from tests_support.servers import MongoReplicaSet, PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TWO = [pytest.param(name, marks=pytest.mark.server) for name in ("postgres", "mongo")]
"""What no server does in its own way is seen with one that speaks SQL and one that does not."""


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append(
        [put(number % 50, n=number, x=number / 2 if number % 3 else None)] for number in range(300)
    )
    log.append([[change(7, "delete"), put(8, n=800, name="eight")]])
    return log


def test_what_somebody_altered_is_found_and_made_right(pipeline: Pipeline) -> None:
    pipeline.run()
    before = pipeline.replica.rows("orders")
    meddled(pipeline.replica)
    (table,) = pipeline.verify(repair=True).tables
    assert (table.rows, table.found, table.differences, table.repaired) == (49, 49, 4, 4)
    assert [(one.key, one.what, one.columns, one.sequence) for one in table.listed] == [
        ('{"_id":3}', "missing", (), 254),
        ('{"_id":4}', "different", ("n",), 255),
        ('{"_id":8}', "different", ("name",), 302),
        (table.listed[3].key, "extra", (), None),
    ]
    assert json.loads(table.listed[3].key) == {"_id": 999}
    assert pipeline.replica.rows("orders") == before
    sound = pipeline.verify()
    (table,) = sound.tables
    assert sound.sound
    assert (table.collection, table.rows, table.found) == ("orders", 49, 49)
    assert (table.differences, table.ranges_differing) == (0, 0)


def test_a_row_whose_last_change_was_rejected_is_not_judged(
    pipeline: Pipeline, log: BlockLog
) -> None:
    text = '{"_id":1,"n":{"$symbol":"old"},"x":"text"}'
    log.append(
        [[change(1, "replace", text=text)], [change(2, "replace", text=text.replace("1", "2"))]]
    )
    pipeline.run()
    if isinstance(pipeline.replica, MongoReplica):
        pipeline.replica.database["orders"].update_one({"_id": 1}, {"$set": {"n": -7}})
        pipeline.replica.database["orders"].delete_one({"_id": 2})
    else:
        ask(pipeline.replica, "UPDATE orders SET n = -7 WHERE _id = 1")
        ask(pipeline.replica, "DELETE FROM orders WHERE _id = 2")
    (table,) = pipeline.verify(repair=True).tables
    assert (table.rows, table.found, table.rejected, table.repaired) == (47, 47, 2, 0)
    log.append([[put(1, n=5)]])
    pipeline.run()
    (table,) = pipeline.verify().tables
    assert (table.rows, table.rejected, table.differences) == (48, 1, 0)


STEPS: dict[str, Any] = {
    "transform": [
        {"cast": {"n": "int"}},
        {"mask": ["name"]},
        {"rename": {"x": "half"}},
        {"filter": "n % 50 <> 13", "document_schema": "n INT"},
    ],
    "expect": [
        {"name": "few", "condition": "n < 700", "document_schema": "n INT", "action": "drop"}
    ],
}


@pytest.mark.parametrize("any_replica", TWO, indirect=True)
def test_what_steps_make_is_what_must_be_there(pipeline: Pipeline) -> None:
    """Not the row that they leave out, and what the one is that they refuse nobody says."""
    pipeline.run(**STEPS)
    before = pipeline.replica.rows("orders")
    if isinstance(pipeline.replica, MongoReplica):
        orders = pipeline.replica.database["orders"]
        orders.delete_one({"_id": 3})
        orders.update_many({"_id": {"$in": [4, 8]}}, {"$inc": {"n": 1}})
        orders.insert_one({"_id": 13, "n": 263})
    else:
        ask(
            pipeline.replica,
            "DELETE FROM orders WHERE _id = 3",
            "UPDATE orders SET n = n + 1 WHERE _id IN (4, 8)",
            "INSERT INTO orders (_id, n) VALUES (13, 263)",
        )
    (table,) = pipeline.verify(repair=True, **STEPS).tables
    assert {one.what for one in table.listed} == {"missing", "different", "extra"}
    assert (table.rows, table.found, table.rejected) == (47, 47, 1)
    assert (table.differences, table.repaired) == (3, 3)
    after = pipeline.replica.rows("orders")
    assert {key: row for key, row in after.items() if key != 8} == {
        key: row for key, row in before.items() if key != 8
    }
    (table,) = pipeline.verify(transform=STEPS["transform"][:2]).tables
    assert {column for one in table.listed for column in one.columns} >= {"x", "half"}


@pytest.mark.parametrize("any_replica", TWO, indirect=True)
def test_a_replica_is_compared_while_its_pipeline_runs_and_not_repaired(
    spark: "SparkSession", pipeline: Pipeline, log: BlockLog
) -> None:
    """As of one moment: what is written while rows are read is no difference."""
    pipeline.run()
    stop, moved = threading.Event(), threading.Event()
    seen: list[int] = []

    def tell(progress: PipelineProgress) -> None:
        seen.append(progress.rows)
        moved.set()

    def write() -> None:
        for number in itertools.count():
            if stop.wait(0.02):
                return
            both = [put(key, n=number, **{f"more{number // 50}": 1}) for key in (0, 1000 + number)]
            log.append([[*both, change(1000 + number - 5, "delete")]])

    running = threading.Thread(
        target=run_pipeline,
        args=("p", pipeline.config(trigger=0.1), pipeline.endpoint),
        kwargs={"spark": spark, "on_progress": tell, "stop": stop},
    )
    writing = threading.Thread(target=write)
    running.start()
    writing.start()
    try:
        assert moved.wait(PATIENCE_SECONDS)
        before = len(seen)
        found = pipeline.verify()
        assert found.sound, found.tables
        assert len(seen) > before
        with pytest.raises(PipelineError, match="is running, and rows of a replica"):
            pipeline.verify(repair=True)
    finally:
        stop.set()
        writing.join()
        running.join()


def test_a_replica_that_moves_on_is_not_repaired(
    pipeline: Pipeline, log: BlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be taken back."""
    pipeline.run()
    meddled(pipeline.replica)
    judge = Rows.end_judging

    def late(rows: Rows, name: str) -> Any:
        log.append([[put(4, n=-4)]])
        pipeline.run()
        return judge(rows, name)

    monkeypatch.setattr(Rows, "end_judging", late)
    with pytest.raises(PipelineError, match="has moved on since"):
        pipeline.verify(repair=True)
    assert pipeline.replica.rows("orders")[4]["n"] == -4
    assert 3 not in pipeline.replica.rows("orders")


def test_what_cannot_be_compared_is_refused(
    spark: "SparkSession", endpoint: str, log: BlockLog, postgres: PostgresServer
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    pipeline = Pipeline(spark, endpoint, replica)
    with pytest.raises(PipelineError, match="never run"):
        pipeline.verify()
    assert replica.names() == set()
    pipeline.run()
    with pytest.raises(ConfigError, match="--scratch"):
        verify_replica("p", pipeline.config(), endpoint, spark=spark, scratch="/tmp/x")
    replica.ask("ALTER TABLE orders ALTER COLUMN n TYPE smallint")
    with pytest.raises(PipelineError, match="n of table orders has the type smallint"):
        pipeline.verify()
    replica.ask("DROP TABLE orders")
    with pytest.raises(PipelineChangedError, match="its table orders is gone"):
        pipeline.verify()
    log.trim(10)
    with pytest.raises(PipelineChangedError):
        pipeline.verify()


def test_rows_that_a_rename_brought_before_there_were_steps_are_neither_judged_nor_deleted(
    spark: "SparkSession", endpoint: str, log: BlockLog, postgres: PostgresServer
) -> None:
    """Those that were lost to the replica too are judged: it has none of them."""
    for key, one, to in ((20, "drafts", "orders"), (21, "notes", "lines")):
        log.append([[change(key, "insert", {"_id": key}, collection=one)]])
        log.append([[schema_event("rename", collection=one, to={"db": "db", "coll": to})]])
    log.append([[change(22, "insert", {"_id": 22}, collection="lines")]])
    pipeline = Pipeline(spark, endpoint, PostgresReplica(postgres.create(database())))
    steps = [{"mask": ["card"], "collections": [one]} for one in ("lines", "orders")]
    pipeline.run(on_gap="record", transform=steps[:1])
    assert [*pipeline.replica.rows("orders")] == [20]
    found = pipeline.verify(repair=True, transform=steps).tables
    told = {one.collection: (one.judged, one.found, one.differences) for one in found}
    assert told["orders"] == (False, 0, 0)
    assert told["lines"] == (True, 1, 0)
    assert [*pipeline.replica.rows("orders")] == [20]


def test_a_log_without_its_beginning_says_nothing_of_older_rows(
    spark: "SparkSession", endpoint: str, log: BlockLog, postgres: PostgresServer
) -> None:
    pipeline = Pipeline(spark, endpoint, PostgresReplica(postgres.create(database())))
    pipeline.run()
    log.trim(10)
    with pytest.raises(HistoryTrimmedError):
        pipeline.verify(start="oldest")


@pytest.mark.slow
def test_the_command_says_by_its_exit_code_whether_a_replica_is_right(
    spark: "SparkSession", endpoint: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    Pipeline(spark, endpoint, replica).run()
    meddled(replica)
    text = SHOP.format(rate=1) + '[pipelines.p]\nto = "replicate"\nsource = "shop"\n'
    written = configure(tmp_path, f'{text}uri = "{replica.uri}"\n')
    command = ("pipeline", "verify", "p", "--config", str(written), "--endpoint", endpoint)
    done = spawn(*command, "--json")
    assert done.code == 7, done.err
    found = json.loads(done.out)
    assert not found["sound"]
    assert [one["what"] for one in found["tables"][0]["listed"]] == [
        "missing", "different", "different", "extra",
    ]  # fmt: skip
    done = spawn(*command, "--repair")
    assert done.code == 0, done.err
    assert "│ orders" in done.out
    done = spawn(*command, "--against", "source")
    assert done.code != 0
    assert "tables of current rows alone" in done.err


@pytest.mark.slow
def test_a_mongodb_that_keeps_no_moment_is_compared_where_its_pipeline_stands(
    spark: "SparkSession", endpoint: str, start_mongo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: MongoReplicaSet = start_mongo(parameters={"minSnapshotHistoryWindowInSeconds": "0"})
    replica = MongoReplica(server.uri, database())
    pipeline = Pipeline(spark, endpoint, replica)
    pipeline.run()
    looks: list[bool] = []
    look = MongoSide.look

    def looking(side: MongoSide, *, pinned: bool) -> Any:
        looks.append(pinned)
        return look(side, pinned=pinned)

    begin = Rows.begin_judging

    def late(rows: Rows, name: str, apart: Any) -> None:
        for number in range(20):
            replica.database["other"].insert_one({"n": number})
            time.sleep(0.1)
        begin(rows, name, apart)

    monkeypatch.setattr(MongoSide, "look", looking)
    monkeypatch.setattr(Rows, "begin_judging", late)
    try:
        assert pipeline.verify().sound
        assert looks == [True, True, True, True, False]
        meddled(replica)
        (table,) = pipeline.verify().tables
        assert table.differences == 4
    finally:
        replica.close()
