"""`to = "replicate"`, through Spark: from the service's log into a real database."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.archive.opening import log_client
from penstock.errors import ChangesLostError, IncompleteCommitError
from penstock.serve.flight import FlightServer
from penstock.spark.progress import PipelineProgress
from penstock.spark.replicate import ReplicaTarget
from penstock.spark.run import run_pipeline
from penstock.spark.transform.replay import signed
from penstock.spark.within import place_within
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog, gap, insert
from tests.spark.replica.support import MongoReplica, PostgresReplica, Replica, database
from tests.spark.tables import change
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def test_a_replica_in_postgres_equals_the_log_run_after_run(
    spark: "SparkSession", log: BlockLog, endpoint: str, postgres: Any
) -> None:
    _equals(spark, log, endpoint, PostgresReplica(postgres.create(database())))


def test_a_replica_in_mongodb_equals_the_log_run_after_run(
    spark: "SparkSession", log: BlockLog, endpoint: str, mongo: Any
) -> None:
    replica = MongoReplica(mongo.uri, database())
    try:
        _equals(spark, log, endpoint, replica)
    finally:
        replica.close()


def _equals(spark: "SparkSession", log: BlockLog, endpoint: str, replica: Replica) -> None:
    config = replica.config("orders", max_events_per_batch=100, on_gap="record")
    seen: list[PipelineProgress] = []
    log.append([[insert(number), insert(number, collection="lines")] for number in range(50)])
    log.append([[insert(number) for number in range(100, 300)], [gap()], [change(7, "delete")]])
    run_pipeline("r", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    there = {*range(50), *range(100, 300)} - {7}
    assert set(replica.rows("orders")) == there
    assert replica.rows("orders")[3]["total"] == 6
    assert replica.rows("lines") == {}
    assert [row["tab"] for row in replica.rejects()] == [None]
    assert len(seen) > 1
    log.append([[change(8, "update", update={"updatedFields": {"total": 5}})]])
    run_pipeline("r", config, endpoint, spark=spark, once=True)
    assert replica.rows("orders")[8]["total"] == 5
    assert set(replica.rows("orders")) == there


def test_a_gap_in_the_middle_of_a_transaction_stops_it_before_all_of_that_until_it_is_recorded(
    spark: "SparkSession", log: BlockLog, endpoint: str, postgres: Any
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    log.append([[insert(1)], [change(1, "delete"), insert(2), gap(), insert(3)], [insert(4)]])
    for _ in range(2):
        with pytest.raises(ChangesLostError, match="sequence 4"):
            run_pipeline("r", replica.config(), endpoint, spark=spark, once=True)
        assert set(replica.rows("orders")) == {1}
    run_pipeline("r", replica.config(on_gap="record"), endpoint, spark=spark, once=True)
    assert set(replica.rows("orders")) == {2, 3, 4}
    assert [row["sequence"] for row in replica.rejects()] == [4]


def test_what_stops_a_replica_is_told_though_retention_has_passed_what_is_before_it(
    spark: "SparkSession", log: BlockLog, endpoint: str, postgres: Any
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    log.append([[insert(1)], [gap()], [insert(2)]])
    until = log.marker(3)
    batch = spark.createDataFrame(
        signed(pa.Table.from_batches([to_arrow((block,)) for block in log.blocks]))
    )
    with log_client(endpoint) as client:
        within = partial(place_within, client)
        target = ReplicaTarget("r", replica.config(), stopping=threading.Event(), within=within)
        target.start(log.bounds_now())
        log.trim(3)
        with pytest.raises(ChangesLostError, match="sequence 2"):
            target.apply(batch, 0, until=until)
        target.close()


def test_a_replica_that_an_earlier_penstock_left_inside_of_a_transaction_goes_on(
    spark: "SparkSession", log: BlockLog, endpoint: str, postgres: Any
) -> None:
    """It stopped right before a gap in the midst of one. What is lost behind that is missed."""
    replica = PostgresReplica(postgres.create(database()))
    config = replica.config(on_gap="record")
    log.append([[insert(1)], [insert(2)]])
    run_pipeline("r", config, endpoint, spark=spark, once=True)
    log.append([[insert(3), gap(), insert(4)], [insert(5), insert(6)]])
    replica.ask(f"UPDATE _penstock_pipelines SET progress = '{log.marker(3)}', sequence = 3")
    client = log_client(endpoint)
    within = partial(place_within, client)
    target = ReplicaTarget("r", config, stopping=threading.Event(), within=within)
    target.start(log.bounds_now())
    entries = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    for broken in (entries.slice(3, 1), entries.slice(4)):
        batch = spark.createDataFrame(signed(broken))
        with pytest.raises(IncompleteCommitError):
            target.apply(batch, 0, until=log.marker(7))
    target.close()
    client.close()
    run_pipeline("r", config, endpoint, spark=spark, once=True)
    assert set(replica.rows("orders")) == {1, 2, 4, 5, 6}
    assert [row["sequence"] for row in replica.rejects()] == [4]


def test_a_destination_that_is_away_costs_nothing_but_time(
    spark: "SparkSession", log: BlockLog, endpoint: str, start_postgres: Any
) -> None:
    """A6: the log is the queue; the driver waits, and goes on without a restart."""
    server = start_postgres()
    replica = PostgresReplica(server.create(database()))
    config = replica.config(trigger=0.1, retry_attempts=1)
    stop, arrived = threading.Event(), threading.Event()
    rows: list[int] = []

    def tell(progress: PipelineProgress) -> None:
        rows.append(progress.rows)
        arrived.set()
        if sum(rows) >= 30:
            stop.set()

    log.append([[insert(number)] for number in range(10)])
    running = threading.Thread(
        target=run_pipeline,
        args=("r", config, endpoint),
        kwargs={"spark": spark, "on_progress": tell, "stop": stop},
    )
    running.start()
    try:
        assert arrived.wait(PATIENCE_SECONDS)
        server.kill()
        log.append([[insert(number)] for number in range(10, 30)])
        assert not stop.wait(2)
        server.restart()
        assert stop.wait(PATIENCE_SECONDS)
    finally:
        stop.set()
        running.join()
    assert set(replica.rows("orders")) == set(range(30))
