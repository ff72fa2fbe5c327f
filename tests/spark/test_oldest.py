"""Who begins with the log's oldest entry gets there, however fast retention goes on."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.flight import LogClient
from penstock.errors import ResetRefusedError, TrimmedError
from penstock.ports import Bounds
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook, PipelineHolds
from penstock.spark.resetting import reset
from penstock.spark.run import run_pipeline
from penstock.spark.table.standing import StandingTable
from tests.flight.blocks import BlockLog
from tests.spark.tables import pipeline, put, rows_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS = 500


class Trimmed(BlockLog):
    """Has a commit less each time that somebody looks, unless that is held."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: PipelineHolds | None = None
        """Without them it has all."""

    def bounds_now(self) -> Bounds:
        if self.holds is not None and self.trimmed < self.head:
            hold = self.holds(self.trimmed)
            if hold is None or hold.sequence > self.trimmed:
                self.trim(self.trimmed + 1)
        return super().bounds_now()


@pytest.fixture
def log() -> Trimmed:
    return Trimmed()


@pytest.fixture
def book(log: Trimmed, tmp_path: Path) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path / "book", log, hold_seconds=3600.0, hold_bytes=1 << 30)
    yield book
    book.close()


@pytest.fixture
def endpoint(log: Trimmed, book: PipelineBook) -> Iterator[str]:
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()


@contextmanager
def retention(log: Trimmed, tmp_path: Path) -> Generator[None]:
    """Goes on."""
    log.holds = PipelineHolds(tmp_path / "book")
    try:
        yield
    finally:
        log.holds.close()
        log.holds = None


def moves_on(log: Trimmed) -> None:
    """Wait until retention has removed another entry."""
    before = log.trimmed
    wait_until(lambda: log.bounds_now().trimmed != before)


def test_a_new_pipeline_has_all_that_was_left_when_it_began(
    spark: "SparkSession", log: Trimmed, endpoint: str, tmp_path: Path
) -> None:
    log.append([put(number, n=number)] for number in range(COMMITS))
    log.trim(5)
    with retention(log, tmp_path):
        moves_on(log)
        run_pipeline(
            "p", pipeline(tmp_path / "t", start="oldest"), endpoint, spark=spark, once=True
        )
        found = {row["n"] for row in rows_of(tmp_path / "t").values()}
        assert found == set(range(COMMITS - len(found), COMMITS))
        assert found
        moves_on(log)


def test_a_pipeline_that_was_overtaken_is_reset_and_goes_on(
    spark: "SparkSession", log: Trimmed, endpoint: str, tmp_path: Path
) -> None:
    """What the log had when it was reset is there when it is run, and not held any longer."""
    config = pipeline(tmp_path / "t")
    log.append([[put(1, n=1)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    log.append([put(number, n=number)] for number in range(1, COMMITS))
    log.trim(8)
    with pytest.raises(TrimmedError, match="reset p --to oldest"):
        run_pipeline("p", config, endpoint, spark=spark, once=True)
    standing = StandingTable(config, "p")
    with LogClient(endpoint) as client:
        before = {one.pipeline: one.progress for one in client.pipelines()}
        other = pipeline(tmp_path / "other")
        with pytest.raises(ResetRefusedError):
            reset("p", other, client, StandingTable(other, "p"), "oldest")
        assert {one.pipeline: one.progress for one in client.pipelines()} == before
        with retention(log, tmp_path):
            moves_on(log)
            was, place = reset("p", config, client, standing, "oldest")
            assert (was.sequence, place.sequence) == (1, log.trimmed)
            for _ in range(50):
                log.bounds_now()
            run_pipeline("p", config, endpoint, spark=spark, once=True)
            moves_on(log)
    found = {row["n"] for row in rows_of(tmp_path / "t").values()}
    assert found == {1, *range(place.sequence, COMMITS)}
