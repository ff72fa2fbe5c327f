"""A pipeline that rejects more than it may stops, and one that rejects all says so."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PipelineError, RejectsError
from penstock.serve.flight import FlightServer
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.rejected import Counted, too_many, with_rejected
from penstock.spark.run import run_pipeline
from tests.flight.blocks import BlockLog
from tests.spark.tables import pipeline, put, rejects_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stops(rejected: int, rows: int, *, before: int = 0, **settings: Any) -> str:
    """What a run is ended with behind such a batch; empty where it goes on."""
    config = pipeline(Path("t"), **settings)
    found = too_many("p", config, rejected=rejected, rows=rows, before=before)
    return str(found or "")


def test_a_number_is_of_the_run_and_a_share_of_the_batch() -> None:
    assert stops(10, 0, before=10**6) == "", "without settings it goes on"
    assert stops(1, 5, before=2, max_rejects=3) == ""
    assert "has rejected 4 changes, and max_rejects allows 3" in stops(
        2, 5, before=2, max_rejects=3
    )
    assert stops(0, 5, before=9, max_rejects=3) == "", "nothing new was rejected"
    assert "max_rejects allows 0" in stops(1, 5, max_rejects=0)
    assert stops(1, 9, max_rejects_share=0.1) == ""
    assert "2 changes of 10" in stops(2, 8, max_rejects_share=0.1)
    assert stops(2, 98, before=10**6, max_rejects_share=0.1) == ""


def test_what_has_no_rejects_of_its_own_goes_on() -> None:
    config = AuditPipelineConfig.model_validate(
        {"to": "audit", "source": "shop", "uri": "mongodb://h/?replicaSet=r", "database": "d"}
    )
    assert too_many("p", config, rejected=5, rows=0, before=0) is None


def test_a_run_of_which_nothing_was_written_says_so_and_one_without_changes_does_not() -> None:
    runs = {name: Counted() for name in ("idle", "some", "all", "failed")}
    for name, rejected, rows in (
        ("some", 3, 0),
        ("some", 0, 1),
        ("all", 1000, 0),
        ("all", 200, 0),
        ("failed", 5, 0),
    ):
        runs[name].count(
            PipelineProgress(
                pipeline=name,
                batch_id=0,
                entries=rejected + rows,
                rows=rows,
                rejected=rejected,
                sequence=1,
                seconds=1.0,
            )
        )
    failed = PipelineError("why")
    found = with_rejected({"failed": failed}, runs)
    assert {*found} == {"all", "failed"}
    assert found["failed"] is failed, "what stopped it counts"
    assert found["all"].exit_code == 7
    assert "rejected 1,200 changes: all that came" in str(found["all"])


def test_a_run_stops_behind_the_batch_and_goes_on_there_when_it_is_started_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    log = BlockLog()
    log.append([[put(1, n=1)], [put(2, n="x")], [put(3, n=3)]])
    server = FlightServer(log)
    server.start()
    config = pipeline(tmp_path / "t", max_rejects=0)
    try:
        with pytest.raises(RejectsError, match="max_rejects allows 0"):
            run_pipeline("p", config, server.address, spark=spark, once=True)
        assert len(rows_of(tmp_path / "t")) == 2, "what fits is written"
        log.append([[put(4, n=4)]])
        run_pipeline("p", config, server.address, spark=spark, once=True)
    finally:
        server.stop()
    assert len(rows_of(tmp_path / "t")) == 3
    assert len(rejects_of(tmp_path / "t")) == 1
