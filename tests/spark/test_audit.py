"""`to = "audit"`: Spark brings every change of the log into a trail, once and in order."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient
from structlog.testing import capture_logs

from penstock.errors import (
    ChangesLostError,
    HistoryTrimmedError,
    IncompleteCommitError,
    StreamChangedError,
    TrailTakenError,
    TrimmedError,
)
from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.subscribe.criteria import Criteria, Selection, select
from penstock.wire import Block
from tests.flight.blocks import BlockLog, gap, insert
from tests.growing import batches, growth
from tests.spark.overtaking import OvertakingLog
from tests.waiting import PATIENCE_SECONDS
from tests_support.servers import MongoReplicaSet

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


@pytest.fixture
def config(mongo: MongoReplicaSet, mongo_database: str) -> AuditPipelineConfig:
    return audit(mongo.uri, mongo_database)


def audit(uri: str, database: str, **said: Any) -> AuditPipelineConfig:
    return AuditPipelineConfig.model_validate(
        {"to": "audit", "source": "shop", "uri": uri, "database": database, **said}
    )


def records(config: AuditPipelineConfig) -> list[dict[str, Any]]:
    with MongoClient[dict[str, Any]](config.uri.get_secret_value()) as client:
        return list(client[config.database][config.records].find().sort("at", 1))


def orders(*numbers: int) -> list[AnyEvent]:
    return [insert(number) for number in numbers]


def test_every_change_is_in_the_trail_once_and_in_order(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    log.append([orders(number) for number in range(30)])
    log.append([orders(*range(100, 350)), [gap()], orders(1)])
    seen: list[PipelineProgress] = []
    small = config.model_copy(update={"max_events_per_batch": 50})
    run_pipeline("t", small, endpoint, spark=spark, once=True, on_progress=seen.append)
    found = records(config)
    assert [record["at"] for record in found] == list(range(1, 283))
    keys = [record["meta"].get("pk", {}).get("_id") for record in found]
    assert keys == [*range(30), *range(100, 350), None, 1]
    assert [record["op"] for record in found] == ["i"] * 280 + ["gap", "i"]
    assert sum(one.rows for one in seen) == 282
    log.append([orders(2, 3)])
    run_pipeline("t", small, endpoint, spark=spark, once=True)
    assert [record["at"] for record in records(config)] == list(range(1, 285))


def test_a_log_that_was_rebuilt_is_read_again_without_repeating_a_record(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    """A1: the same change has the same id in every log, and the order is the source's."""
    events = orders(*range(20))
    log.append([[one] for one in events[:15]])
    run_pipeline("t", config, endpoint, spark=spark, once=True)
    again = BlockLog(log_id=0x9999)
    again.append([[one] for one in events])
    server = FlightServer(again)
    server.start()
    try:
        with pytest.raises(StreamChangedError, match="start = 'oldest'"):
            run_pipeline("t", config, server.address, spark=spark, once=True)
        knowingly = config.model_copy(update={"start": "oldest"})
        run_pipeline("t", knowingly, server.address, spark=spark, once=True)
    finally:
        server.stop()
    assert [record["meta"]["pk"]["_id"] for record in records(config)] == list(range(20))


def test_a_trail_does_not_begin_in_the_middle_without_being_told(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    log.append([orders(number) for number in range(20)])
    log.trim(8)
    with pytest.raises(HistoryTrimmedError):
        run_pipeline("t", config, endpoint, spark=spark, once=True)
    knowingly = config.model_copy(update={"start": "oldest"})
    run_pipeline("t", knowingly, endpoint, spark=spark, once=True)
    assert len(records(config)) == 20 - log.trimmed


def test_what_retention_took_is_a_record_in_the_trail_and_an_error_in_the_log(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    """P7, A9: or it stops the pipeline, as the trail's on_gap says."""
    log.append([orders(1)])
    run_pipeline("t", config, endpoint, spark=spark, once=True)
    log.append([orders(number) for number in range(2, 10)])
    log.trim(6)
    strict = config.model_copy(update={"on_gap": "halt"})
    with pytest.raises(TrimmedError, match="on_gap = 'record'"):
        run_pipeline("t", strict, endpoint, spark=spark, once=True)
    assert len(records(config)) == 1
    seen: list[PipelineProgress] = []
    with capture_logs() as logged:
        run_pipeline("t", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    (said,) = [one for one in logged if one["log_level"] == "error"]
    assert (said["first"], said["last"]) == (2, 6)
    assert [one.lost for one in seen] == [5]
    assert [record["op"] for record in records(config)] == ["i", "gap", "i", "i", "i"]


@pytest.mark.parametrize("before", [True, False], ids=["before it is read", "while it is written"])
def test_retention_that_passes_the_end_of_a_batch_does_not_stop_its_trail(
    spark: "SparkSession", config: AuditPipelineConfig, before: bool
) -> None:
    """P7, A9: what was read is written, and what was not is a gap."""
    log = OvertakingLog()
    server = FlightServer(log)
    server.start()
    few = config.model_copy(update={"transaction_events": 3, "batch_events": 3})
    try:
        log.append([orders(1)])
        run_pipeline("t", few, server.address, spark=spark, once=True)
        log.append([*(orders(number) for number in range(2, 12)), [insert(1, source="other")]])
        until = log.marker(log.head)
        # The workers read it once, and then the driver, for what of each commit is to come.
        log.overtake(reads=1 if before else 2, before=before)
        run_pipeline("t", few, server.address, spark=spark, once=True)
        ops = [record["op"] for record in records(config)]
        assert ops == ["i", "gap"] if before else ["i"] * 11
        with MongoClient[dict[str, Any]](config.uri.get_secret_value()) as client:
            (head,) = client[config.database][config.offsets].find()
        assert head["progress"] == str(until)
    finally:
        server.stop()


def test_a_trail_of_some_collections_is_not_given_more(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    log.append([[insert(1), insert(2, collection="lines")], orders(3)])
    some = config.model_copy(update={"collections": ("orders",)})
    run_pipeline("t", some, endpoint, spark=spark, once=True)
    assert [record["meta"]["pk"]["_id"] for record in records(config)] == [1, 3]
    with pytest.raises(TrailTakenError, match="the pipeline has more"):
        run_pipeline("t", config, endpoint, spark=spark, once=True)


@pytest.mark.parametrize("lost", [{3}, {2, 3}], ids=["an entry", "all of a commit"])
def test_an_entry_that_is_lost_on_its_way_is_missed_although_a_filter_drops_others(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    config: AuditPipelineConfig,
    lost: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A5: what a filter leaves out is no excuse."""
    log.append([orders(1), [insert(2), insert(3), insert(4, collection="lines")], orders(5)])
    some = config.model_copy(update={"collections": ("orders",)})

    def losing(criteria: Criteria, block: Block) -> Selection:
        found = select(criteria, block)
        if not criteria.collections:
            return found
        kept = [one for one in found.entries if block.first_sequence + one not in lost]
        return found._replace(entries=kept)

    with monkeypatch.context() as patched:
        patched.setattr("penstock.serve.flight.select", losing)
        with pytest.raises(IncompleteCommitError):
            run_pipeline("t", some, endpoint, spark=spark, once=True)
    assert records(config) == []
    run_pipeline("t", some, endpoint, spark=spark, once=True)
    assert [record["meta"]["pk"]["_id"] for record in records(config)] == [1, 2, 3, 5]


def test_a_pipeline_may_stop_at_a_gap_with_everything_before_it_written(
    spark: "SparkSession", log: BlockLog, endpoint: str, config: AuditPipelineConfig
) -> None:
    """A9: by default a gap is a record; who wants to look first is stopped before it."""
    log.append([orders(1), orders(2, 3), [gap()], orders(4)])
    strict = config.model_copy(update={"on_gap": "halt"})
    with pytest.raises(ChangesLostError, match="sequence 4"):
        run_pipeline("t", strict, endpoint, spark=spark, once=True)
    assert [record["meta"]["pk"]["_id"] for record in records(config)] == [1, 2, 3]
    run_pipeline("t", config, endpoint, spark=spark, once=True)
    assert [record["op"] for record in records(config)] == ["i", "i", "i", "gap", "i"]


def test_a_mongodb_that_is_away_costs_nothing_but_time(
    spark: "SparkSession", log: BlockLog, endpoint: str, start_mongo: Any
) -> None:
    """A6, A7: the log is the queue; the driver waits, and goes on without a restart."""
    mongo: MongoReplicaSet = start_mongo()
    config = audit(
        mongo.uri,
        "trail",
        trigger=0.1,
        retry_attempts=1,
        retry_first="50ms",
        circuit_seconds=0.5,
        answer_seconds=1,
    )
    stop = threading.Event()
    rows: list[int] = []
    arrived = threading.Event()

    def tell(progress: PipelineProgress) -> None:
        rows.append(progress.rows)
        if sum(rows) >= 10:
            arrived.set()
        if sum(rows) >= 30:
            stop.set()

    log.append([orders(number) for number in range(10)])
    running = threading.Thread(
        target=run_pipeline,
        args=("t", config, endpoint),
        kwargs={"spark": spark, "on_progress": tell, "stop": stop},
    )
    running.start()
    assert arrived.wait(PATIENCE_SECONDS)
    mongo.kill(0)
    log.append([orders(number) for number in range(10, 30)])
    try:
        assert not stop.wait(4)
        mongo.restart(0)
        assert stop.wait(PATIENCE_SECONDS)
    finally:
        stop.set()
        running.join()
    assert [record["meta"]["pk"]["_id"] for record in records(config)] == list(range(30))


@batches(short=9)
def test_a_trail_has_as_much_of_each_batch_and_its_driver_stays_as_it_is(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    config: AuditPipelineConfig,
    mongo_client: MongoClient[dict[str, Any]],
    batches: int,
) -> None:
    """Its record, and what chains it; nothing else stays, however many there were."""
    log.append([orders(number) for number in range(batches)])
    database = mongo_client[config.database]

    def counted() -> dict[str, int]:
        # The run goes on meanwhile: what proves records is counted before they are.
        proofs = database[f"{config.records}_batches"].count_documents({})
        names = database.list_collection_names()
        kept = {f"{config.records}_batches", config.records}
        others = {one: database[one].count_documents({}) for one in names if one not in kept}
        made = database[config.records].count_documents({})
        return {**others, "collections": len(names), "proofs of a record": -(-proofs // made)}

    with growth(batches) as found:
        few = config.model_copy(update={"max_events_per_batch": 1})
        run_pipeline(
            *("t", few, endpoint),
            spark=spark,
            once=True,
            on_progress=lambda _: found.note(counted()),
        )
