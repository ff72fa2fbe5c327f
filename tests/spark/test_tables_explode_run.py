"""Tables of elements on Spark, from the service's log: steps, rejects and replays."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings

from penstock.errors import ConfigError
from penstock.serve.flight import FlightServer
from penstock.spark.replaying import replay_rejects
from penstock.spark.run import run_pipeline
from penstock.spark.table.plan import REJECTED
from penstock.spark.verifying import verify_tables
from tests.flight.blocks import BlockLog
from tests.seeds import cases
from tests.spark.elements import (
    ITEMS,
    History,
    exploding,
    histories,
    items_of,
    key_of,
    rows_in,
)
from tests.spark.tables import change, pipeline, put, rejects_of

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


@pytest.mark.soak
@given(history=histories(drops=True))
@settings(
    max_examples=cases(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_a_pipeline_keeps_the_elements_of_the_current_documents(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    log = BlockLog()
    half = len(history.commits) // 2
    config = exploding(tmp_path_factory.mktemp("t") / "orders", max_events_per_batch=5)
    server = FlightServer(log)
    server.start()
    try:
        for commits in (history.commits[:half], history.commits[half:]):
            log.append(commits)
            run_pipeline("p", config, server.address, spark=spark, once=True)
    finally:
        server.stop()
    assert rows_in(Path(config.path)) == history.current()
    assert not DeltaTable.is_deltatable(config.rejects_path)


def test_a_pipeline_keeps_elements_and_replays_what_is_refused_with_what_it_builds_on(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """Of a document without elements no row says what it was; the log does."""
    config = exploding(tmp_path / "t")
    log.append([[put(1, n=1, items=[5, 6]), put(2, n=2, items=[]), put(3, n=3, items=[])]])
    log.append([[put(4, n=4, items=[1, 2, 3]), put(5, n=5, items=[1])]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    items = {1: [5, 6], 4: [1, 2, 3], 5: [1]}
    assert items_of(Path(config.path)) == {key_of(key): array for key, array in items.items()}
    log.append([[change(2, "update", update={"updatedFields": {"items": [7]}})]])
    log.append([[put(1, n="8", items=[9]), put(6, n=6, items="none")]])
    log.append([[change(3, "update", update={"updatedFields": {"n": 5}})]])
    log.append([[put(4, n=4, items=[2, 3]), change(5, "delete")]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    items = {1: [5, 6], 4: [2, 3]}
    assert items_of(Path(config.path)) == {key_of(key): array for key, array in items.items()}
    reasons = {row["sequence"]: (row["step"], row["reason"]) for row in rejects_of(config.path)}
    builds = (None, "it builds on a row that this table does not have")
    assert reasons == {
        6: builds,
        7: (None, "the field n holds a value of kind string, and its column is int32"),
        8: ("transform 1 (explode)", "the field items is no array"),
        9: builds,
    }
    steps: list[dict[str, Any]] = [{"cast": {"n": "int"}}, *ITEMS]
    mended = pipeline(tmp_path / "t", transform=steps)
    outcomes = replay_rejects("p", mended, endpoint, spark=spark)
    states = {one.sequence: one.state for one in outcomes}
    assert states == {6: "replayed", 7: "replayed", 8: "left", 9: "replayed"}
    items |= {1: [9], 2: [7]}
    assert items_of(Path(config.path)) == {key_of(key): array for key, array in items.items()}
    assert DeltaTable(config.path).to_pyarrow_table()[REJECTED].null_count == 4
    with pytest.raises(ConfigError, match="has explode"):
        verify_tables("p", config, endpoint, spark=spark)
