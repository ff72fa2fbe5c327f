"""A pipeline's tables are compared with the log when it is due, and what differs is told."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from penstock.serve.flight import FlightServer
from penstock.spark import run
from penstock.spark.run import run_pipeline
from penstock.spark.scheduled import Verification, due_seconds
from penstock.spark.table.plan import KEY
from penstock.spark.telling import ServiceTeller
from tests.flight.blocks import BlockLog
from tests.spark.tables import pipeline, put, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = st.integers(0, 10_000_000)


@given(st.floats(1, 10_000), TIMES, TIMES, TIMES, TIMES)
def test_it_is_due_so_long_after_the_last_and_waits_no_longer_than_that(
    every: float, done: int, tried: int, began: int, now: int
) -> None:
    """Whatever a clock does: one that was set back makes nobody wait for ever."""
    left = due_seconds(every, done_ms=done, tried_ms=tried, began_ms=began, now_ms=now)
    assert 0 <= left <= every
    since = max(done or began, tried)
    if now >= since:
        assert (left == 0) == (now - since >= every * 1000)


def test_tables_that_steps_have_made_cannot_be_compared_on_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="leave verify_every out"):
        pipeline(tmp_path / "t", verify_every="6h", transform=[{"drop": ["a"]}])


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


class Told:
    """What the service was told of comparisons."""

    def __init__(self) -> None:
        self.found: list[Verification] = []
        self.end_at = -1
        self.end = threading.Event()
        """Set when so many were told."""

    def add(self, found: Verification) -> None:
        self.found.append(found)
        if len(self.found) == self.end_at:
            self.end.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()

    class Telling(ServiceTeller):
        def verified(self, found: Verification) -> None:
            super().verified(found)
            told.add(found)

    monkeypatch.setattr(run, "ServiceTeller", Telling)
    return told


def test_what_differs_is_told_and_left_as_it_is(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, told: Told
) -> None:
    """Behind the last batch of a run that ends, not before it is due, and beside the batches."""
    log.append([[put(number, n=number) for number in range(20)]])
    config = pipeline(tmp_path / "t", verify_every="6h")
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert [(one.differences, one.code, one.at_ms > 0) for one in told.found] == [(0, "", True)]
    DeltaTable(config.path).delete(f"`{KEY}` = '{{\"_id\":3}}'")
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert told.found[1:] == told.found[:1], "it is not due, and what is known is told"
    often = pipeline(tmp_path / "t", verify_every="1ms", trigger=0.1)
    told.end_at = len(told.found) + 2  # what is known, and what is found
    log.append([[put(99, n=1)]])
    with capture_logs() as lines:
        run_pipeline("p", often, endpoint, spark=spark, stop=told.end)
    assert [one.differences for one in told.found[2:4]] == [0, 1]
    (line, *_) = (one for one in lines if "DIFFER" in one["event"])
    assert (line["log_level"], line["differences"]) == ("error", 1)
    assert '{"_id":3}' not in {key for _, key in rows_of(config.path)}
