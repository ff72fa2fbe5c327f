"""Steps before views, changelogs and replicas, from a real log through Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.serve.flight import FlightServer
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.replaying import pending_rejects, replay_rejects
from penstock.spark.run import run_pipeline
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import changelog, rows_of
from tests.spark.histories import SPAN, history, rows
from tests.spark.replica.support import PostgresReplica, database
from tests.spark.tables import change, put, rejects_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: dict[str, Any] = {
    "transform": [
        {"cast": {"n": "int"}},
        {"filter": "n >= 0", "document_schema": "n INT"},
    ],
    "expect": [
        {"name": "small", "condition": "n < 100", "document_schema": "n INT", "action": "drop"}
    ],
}
MENDED: dict[str, Any] = {"transform": [{"cast": {"n": "double"}}]}


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def commits(log: BlockLog) -> None:
    log.append(
        [
            [put(1, n=1), put(2, n=2), put(3, n=-3)],  # 3: filtered out
            [put(1, n=1.5), put(4, n=400)],  # 4: no int; 5: not expected
            [put(2, n=-2)],  # 6: filtered out from now on
            [change(9, "delete")],
        ]
    )


def test_a_view_is_of_what_the_steps_made_and_follows_a_replay(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    def view(**steps: Any) -> ViewPipelineConfig:
        return ViewPipelineConfig.model_validate(
            {
                "to": "view",
                "source": "shop",
                "path": str(tmp_path / "v"),
                "query": "SELECT count(*) AS rows, sum(n) AS n FROM orders",
                **steps,
            }
        )

    commits(log)
    run_pipeline("v", view(**STEPS), endpoint, spark=spark, once=True)
    seen = DeltaTable(str(tmp_path / "v")).to_pyarrow_table().select(["rows", "n"]).to_pylist()
    assert seen == [{"rows": 1, "n": 1}]
    assert [row["sequence"] for row in rejects_of(tmp_path / "v")] == [4, 5]
    outcomes = replay_rejects("v", view(**MENDED), endpoint, spark=spark)
    assert [(one.sequence, one.state) for one in outcomes] == [(4, "replayed"), (5, "replayed")]
    seen = DeltaTable(str(tmp_path / "v")).to_pyarrow_table().select(["rows", "n"]).to_pylist()
    assert seen == [{"rows": 2, "n": 401.5}]


def test_a_history_is_of_what_the_steps_made_and_follows_a_replay(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    commits(log)
    config = history(tmp_path / "h", **STEPS)
    run_pipeline("h", config, endpoint, spark=spark, once=True)
    assert rows(tmp_path / "h", *SPAN) == [(1, 1, None, True), (2, 2, 6, False)]
    assert [row["sequence"] for row in pending_rejects("h", config)] == [4, 5]
    mended = history(tmp_path / "h", **MENDED)
    outcomes = replay_rejects("h", mended, endpoint, spark=spark)
    assert [(one.sequence, one.state) for one in outcomes] == [(4, "replayed"), (5, "replayed")]
    assert pending_rejects("h", mended) == []
    assert rows(tmp_path / "h", *SPAN) == [
        (1, 1, 4, False),
        (1.5, 4, None, True),
        (2, 2, 6, False),
        (400, 5, None, True),
    ]


def test_a_changelog_keeps_every_entry_of_a_commit_that_steps_change(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = changelog(tmp_path / "c", "orders", **STEPS)
    commits(log)
    told: list[PipelineProgress] = []
    run_pipeline("c", config, endpoint, spark=spark, once=True, on_progress=told.append)
    assert [(row["operation_type"], row["full_document"]) for row in rows_of(config)] == [
        ("insert", '{"_id":1,"n":1}'),
        ("insert", '{"_id":2,"n":2}'),
        ("delete", None),
        ("update", None),
        ("update", None),
        ("delete", None),
        ("delete", None),
    ]
    assert sum(one.rejected for one in told) == 2
    pending = pending_rejects("c", config)
    assert [(row["sequence"], row["full_document"]) for row in pending] == [
        (4, '{"_id":1,"n":1.5}'),
        (5, '{"_id":4,"n":400}'),
    ]
    still = replay_rejects("c", config, endpoint, spark=spark)
    assert [(one.sequence, one.state, one.reason) for one in still] == [
        (row["sequence"], "left", row["reason"]) for row in pending
    ]
    mended = changelog(tmp_path / "c", "orders", **MENDED)
    outcomes = replay_rejects("c", mended, endpoint, spark=spark)
    assert [(one.sequence, one.state) for one in outcomes] == [(4, "replayed"), (5, "replayed")]
    assert pending_rejects("c", mended) == []
    found = rows_of(mended)
    assert [row["sequence"] for row in found] == [1, 2, 3, 4, 4, 5, 5, 6, 7]
    again = [row for row in found if row["sequence"] in {4, 5} and row["full_document"]]
    assert [(row["operation_type"], row["full_document"]) for row in again] == [
        ("insert", '{"_id":1,"n":1.5}'),
        ("insert", '{"_id":4,"n":400.0}'),
    ]
    log_rows = changelog(tmp_path / "whole", "orders")
    run_pipeline("whole", log_rows, endpoint, spark=spark, once=True)
    captured = {row["sequence"]: row for row in rows_of(log_rows)}
    for row in again:
        assert row == {**captured[row["sequence"]], "full_document": row["full_document"]}


def test_a_replica_has_what_the_steps_made_and_follows_a_replay(
    spark: "SparkSession", log: BlockLog, endpoint: str, postgres: Any
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    commits(log)
    run_pipeline("r", replica.config(**STEPS), endpoint, spark=spark, once=True)
    assert replica.rows("orders") == {1: {"_id": 1, "n": 1}}
    assert [(row["sequence"], row["reason"]) for row in replica.rejects()] == [
        (4, "transform 1 (cast): the field n as int: the number is not whole"),
        (5, "small: it does not meet the expectation small"),
    ]
    outcomes = replay_rejects("r", replica.config(**MENDED), endpoint, spark=spark)
    assert [(one.sequence, one.state) for one in outcomes] == [(4, "replayed"), (5, "replayed")]
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {1: 1.5, 4: 400}
    assert pending_rejects("r", replica.config(**MENDED)) == []
