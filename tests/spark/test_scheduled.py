"""What a pipeline keeps is compared with the log when it is due, and what differs is told."""

import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark import run
from penstock.spark.config import PipelineConfig, ViewPipelineConfig
from penstock.spark.run import run_pipeline
from penstock.spark.scheduled import Verification, Verify, VerifySchedule, first_seconds
from penstock.spark.table.comparing import Compared
from penstock.spark.table.delta import Table
from penstock.spark.table.plan import KEY
from penstock.spark.telling import ServiceTeller
from penstock.spark.verifying import Verified
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import changelog
from tests.spark.histories import history
from tests.spark.tables import LOG_ID, pipeline, put, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@given(st.floats(1, 1_000_000), st.integers(1, 10_000_000), st.integers(0, 10_000_000))
def test_a_run_waits_for_what_is_left_since_the_last_comparison(
    every: float, done: int, later: int
) -> None:
    left = first_seconds(every, done_ms=done, now_ms=done + later)
    assert left == pytest.approx(max(0.0, every - later / 1000))


@given(st.floats(1, 1_000_000), st.integers(0, 10_000_000), st.integers(1, 10_000_000))
def test_a_mark_that_is_still_to_come_makes_nobody_wait(every: float, now: int, ahead: int) -> None:
    assert first_seconds(every, done_ms=now + ahead, now_ms=now) == 0


def test_one_that_never_was_is_due_soon_however_seldom_it_is_wanted() -> None:
    """Else a pipeline that is started anew each night is never compared."""
    assert first_seconds(86_400, done_ms=0, now_ms=1) == 60
    assert first_seconds(5, done_ms=0, now_ms=1) == 5


def test_tables_that_steps_have_made_are_compared_with_the_log_alone(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"verify_every": "6h", "transform": [{"drop": ["a"]}]}
    assert pipeline(tmp_path / "t", **steps).verify_every
    with pytest.raises(ValidationError, match="leave verify_against out"):
        pipeline(tmp_path / "t", **steps, verify_against="source")


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


class NoJobs:
    """A session of which nothing is asked but where its threads belong."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - as Spark calls it
        return self

    def getLocalProperty(self, _: str) -> None:  # noqa: N802
        return None

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802
        pass

    def setJobGroup(self, *_: object, **__: object) -> None:  # noqa: N802
        pass

    def cancelJobGroup(self, _: str) -> None:  # noqa: N802
        pass


def schedule(
    folder: Path, told: list[Verification], verify: Verify, *, every: str = "1h"
) -> VerifySchedule:
    session: Any = NoJobs()
    config = pipeline(folder, verify_every=every)
    return VerifySchedule("p", config, session, verify=verify, tell=told.append)


def found(differences: int, *, rejected: int = 0) -> Verified:
    """What a comparison comes to."""
    table = Compared(
        collection="orders",
        rows=5,
        found=5,
        ranges=1,
        ranges_differing=1,
        differences=differences,
        rejected=rejected,
    )
    return Verified(pipeline="p", progress=str(Progress(LOG_ID, 5, 0)), tables=(table,))


def test_differences_are_told_where_the_row_beside_the_tables_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Table, "replace", full)
    told: list[Verification] = []
    with capture_logs() as lines:
        schedule(tmp_path, told, lambda: found(3)).compare_if_due(threading.Event())
    assert [(one.differences, bool(one.code)) for one in told] == [(3, False), (3, True)]
    assert [line["log_level"] for line in lines] == ["error", "warning"]


@pytest.mark.parametrize("panics", ["comparing", "writing"])
def test_a_panic_is_told_like_any_error_and_ends_no_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panics: str
) -> None:
    """It ended the thread that compares, and nobody knew."""

    class PanicException(BaseException):
        """As delta-rs raises it."""

    def panic(*_: object) -> Verified:
        raise PanicException

    told: list[Verification] = []
    if panics == "writing":
        monkeypatch.setattr(Table, "replace", panic)
    verify = panic if panics == "comparing" else lambda: found(3)
    schedule(tmp_path, told, verify).compare_if_due(threading.Event())
    assert told[-1].code == "pipeline"


def test_rows_that_were_not_judged_are_said_and_are_no_differences(tmp_path: Path) -> None:
    told: list[Verification] = []
    with capture_logs() as lines:
        schedule(tmp_path, told, lambda: found(0, rejected=2)).compare_if_due(threading.Event())
    assert [(line["log_level"], line["rejected"]) for line in lines] == [("warning", 2)]
    assert [(one.differences, one.code) for one in told] == [(0, "")]


def test_a_mark_of_a_clock_that_went_wrong_is_replaced_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of tomorrow held comparisons up until then."""
    now = time.time_ns()

    def run(at_ns: int) -> list[int]:
        """When tables were compared, as a run tells that is looked after once."""
        monkeypatch.setattr(time, "time_ns", lambda: at_ns)
        told: list[Verification] = []
        schedule(tmp_path, told, lambda: found(0)).compare_if_due(threading.Event())
        return [(at_ns - one.at_ms * 10**6) // 10**9 for one in told]

    assert run(now + 86_400 * 10**9) == [0]
    assert run(now) == [0, 0], "what is known is told, and that it was compared again"
    assert run(now + 60 * 10**9) == [60], "not due"


def test_a_clock_that_is_set_back_within_a_run_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = itertools.count()
    began, enough = time.time_ns(), threading.Event()
    back = 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: began - next(hours) * back)
    told: list[Verification] = []

    def verify() -> Verified:
        if len(told) == 3:
            enough.set()
        return found(0)

    work = schedule(tmp_path, told, verify, every="1ms")
    work.start()
    enough.wait()
    work.close()
    assert [one.differences for one in told[:3]] == [0, 0, 0]


def test_what_differs_is_told_and_left_as_it_is(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, told: Told
) -> None:
    """Behind the last batch of a run that ends, not before it is due, and beside the batches, with
    steps that name a view of theirs meanwhile."""
    step = {"sql": "SELECT _id, n FROM documents", "document_schema": "_id INT, n INT"}
    log.append([[put(number, n=number) for number in range(20)]])
    config = pipeline(tmp_path / "t", verify_every="6h", transform=[step])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert [(one.differences, one.code, one.at_ms > 0) for one in told.found] == [(0, "", True)]
    DeltaTable(config.path).delete(f"`{KEY}` = '{{\"_id\":3}}'")
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert told.found[1:] == told.found[:1], "it is not due, and what is known is told"
    often = pipeline(tmp_path / "t", verify_every="1ms", trigger=0.1, transform=[step])
    told.end_at = len(told.found) + 2  # what is known, and what is found
    log.append([[put(99, n=1)]])
    with capture_logs() as lines:
        run_pipeline("p", often, endpoint, spark=spark, stop=told.end)
    assert [one.differences for one in told.found[2:4]] == [0, 1]
    (line, *_) = (one for one in lines if "DIFFER" in one["event"])
    assert (line["log_level"], line["differences"]) == ("error", 1)
    assert '{"_id":3}' not in {key for _, key in rows_of(config.path)}


def view(path: Path, **more: Any) -> ViewPipelineConfig:
    """How many there are of each number."""
    query = "SELECT n, count(*) AS many FROM orders GROUP BY n"
    settings = {"to": "view", "source": "shop", "path": str(path), "query": query, **more}
    return ViewPipelineConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("keeps", "lost"),
    [(history, f"`{KEY}` = '{{\"_id\":3}}'"), (changelog, "sequence = 4"), (view, "n = 3")],
    ids=["history", "changelog", "view"],
)
def test_what_is_no_table_of_current_rows_is_compared_too(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    told: Told,
    keeps: Callable[..., PipelineConfig],
    lost: str,
) -> None:
    """Behind the last batch of a run that ends, and beside the batches of one that goes on."""
    log.append([[put(number, n=number) for number in range(20)]])
    config = keeps(tmp_path / "t", verify_every="6h")
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert [(one.differences, one.code, one.at_ms > 0) for one in told.found] == [(0, "", True)]
    DeltaTable(str(tmp_path / "t")).delete(lost)
    often = keeps(tmp_path / "t", verify_every="1ms", trigger=0.1)
    told.end_at = len(told.found) + 2  # what is known, and what is found
    log.append([[put(99, n=99)]])
    with capture_logs() as lines:
        run_pipeline("p", often, endpoint, spark=spark, stop=told.end)
    assert [(one.differences, one.code) for one in told.found[1:3]] == [(0, ""), (1, "")]
    assert any("DIFFERS FROM THE LOG" in line["event"] for line in lines)
