"""Many pipelines in one driver: none holds another up, and each is told, stopped and held alone."""

import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyarrow.flight import FlightInternalError
from structlog.testing import capture_logs

from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineOrder, PipelineStatus
from penstock.errors import ChangesLostError, PenstockError, PipelineError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.many import run_pipelines
from penstock.spark.plan import plan_of
from penstock.spark.progress import PipelineProgress
from penstock.spark.resetting import reset
from penstock.spark.run import run_pipeline
from penstock.spark.sharing import POOL
from penstock.spark.table.standing import StandingTable
from penstock.spark.tables import merge_staged
from penstock.subscribe.scope import EVERYTHING
from tests.flight.blocks import BlockLog, gap
from tests.spark.tables import change, pipeline, put, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def book(tmp_path: Path, log: BlockLog) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=3600, hold_bytes=1 << 30)
    yield book
    book.close()


@pytest.fixture
def endpoint(log: BlockLog, book: PipelineBook) -> Iterator[str]:
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()


def known(book: PipelineBook) -> dict[str, PipelineStatus]:
    return {one.pipeline: one for one in book.status(EVERYTHING)}


def test_one_that_cannot_go_on_stops_no_other_and_each_batch_has_a_pool_of_its_own(
    spark: "SparkSession",
    log: BlockLog,
    book: PipelineBook,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log.append([put(number, n=number)] for number in range(30))
    log.append([[gap()], [put(99, n=99)]])
    pools: list[str | None] = []

    def merge(batch: Any, *given: Any, **named: Any) -> Any:
        pools.append(batch.sparkSession.sparkContext.getLocalProperty(POOL))
        return merge_staged(batch, *given, **named)

    monkeypatch.setattr("penstock.spark.tables.merge_staged", merge)
    ended: dict[str, PenstockError | None] = {}
    errors = run_pipelines(
        {
            "halts": pipeline(tmp_path / "halts", max_events_per_batch=10),
            "records": pipeline(tmp_path / "records", on_gap="record", max_events_per_batch=10),
        },
        endpoint,
        spark=spark,
        stop=threading.Event(),
        once=True,
        on_end=ended.__setitem__,
    )
    assert set(errors) == {"halts"}
    assert isinstance(errors["halts"], ChangesLostError)
    assert ended == {"halts": errors["halts"], "records": None}
    assert len(pools) > 4
    assert None not in pools
    assert len(set(pools)) == len(pools)
    assert len(rows_of(tmp_path / "records")) == 31
    said = known(book)
    assert (said["halts"].state, said["halts"].code) == ("failed", errors["halts"].code)
    assert said["halts"].sequence == 30
    assert (said["records"].state, said["records"].sequence) == ("ended", log.head)
    assert (said["records"].batches, said["records"].entries) == (4, 32)


def test_the_service_stops_one_pipeline_and_the_others_go_on(
    spark: "SparkSession", log: BlockLog, book: PipelineBook, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)]])
    applied = {"a": threading.Semaphore(0), "b": threading.Semaphore(0)}
    ended = {"a": threading.Event(), "b": threading.Event()}
    stop = threading.Event()

    def apply(progress: PipelineProgress) -> None:
        applied[progress.pipeline].release()

    def end(name: str, _: PenstockError | None) -> None:
        ended[name].set()

    pipelines = {name: pipeline(tmp_path / name, trigger=0.05) for name in applied}
    running = threading.Thread(
        target=run_pipelines,
        args=(pipelines, endpoint),
        kwargs={"spark": spark, "stop": stop, "on_progress": apply, "on_end": end},
    )
    running.start()
    try:
        for one in applied.values():
            assert one.acquire()
        with LogClient(endpoint) as client:
            client.order(PipelineOrder(pipeline="a", order="stop"))
        assert ended["a"].wait()
        log.append([[put(2, n=2)]])
        assert applied["b"].acquire()
        assert not ended["b"].is_set()
    finally:
        stop.set()
        running.join()
    assert {name: one.state for name, one in known(book).items()} == {"a": "stopped", "b": "ended"}
    assert len(rows_of(tmp_path / "a")) == 1
    assert len(rows_of(tmp_path / "b")) == 2
    assert known(book)["b"].sequence == log.head


def test_the_log_is_not_let_go_before_the_tables_say_where_they_stand(
    spark: "SparkSession",
    log: BlockLog,
    book: PipelineBook,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of which nothing concerns the tables moves them on in memory only."""
    config = pipeline(tmp_path / "t", max_events_per_batch=1)
    log.append([[put(1, n=1)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert known(book)["p"].sequence == 1
    log.append([change(1, "insert", {"x": 1}, collection="lines")] for _ in range(5))
    told: list[PipelineProgress] = []

    def crash(*_: object, **__: object) -> None:
        raise OSError("the disk of the tables is full")

    with monkeypatch.context() as patched:
        patched.setattr(StandingTable, "save", crash)
        patched.setattr("penstock.spark.table.standing._QUIET_SECONDS", 1e9)
        patched.setattr("penstock.spark.run._SETTLE_SECONDS", 1e9)
        with pytest.raises(PipelineError, match="OSError"):
            run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=told.append)
    assert told
    assert known(book)["p"].sequence == 1
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert known(book)["p"].sequence == 6


def test_a_plan_says_what_a_run_would_do_and_writes_nothing(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = pipeline(tmp_path / "lake", max_events_per_batch=4).model_copy(
        update={"collections": ()}
    )
    log.append([put(number, n=number)] for number in range(6))
    log.append([[change(1, "insert", {"x": 1}, collection="lines")], [gap()]])
    with LogClient(endpoint) as client:
        found = plan_of("p", config, client)
        assert not (tmp_path / "lake").exists()
        assert (found.sequence, found.until, found.entries, found.batches) == (0, 8, 8, 2)
        assert found.control_events == 1
        assert found.bytes > 0
        assert {one.collection: one.entries for one in found.collections} == {
            "lines": 1,
            "orders": 6,
        }
        assert found.collections[0].table == str(tmp_path / "lake" / "lines")
        with pytest.raises(PipelineError):
            run_pipeline("p", config, endpoint, spark=spark, once=True)
        found = plan_of("p", config, client)
    # The batch with the gap was refused whole up to it; what came before is in the tables.
    assert found.entries < 8
    assert "row beside them" in found.why


def test_a_collection_that_the_log_does_not_know_is_named(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """A name that is misspelt makes no table, and nothing else would tell."""
    log.append([[put(number, n=number)] for number in range(6)])
    log.append([[change(1, "insert", {"x": 1}, collection="lines")], [gap()]])
    log.append([[put(1, n=number)] for number in range(6)])
    config = pipeline(tmp_path / "t", "orders", "lines", "oders", on_gap="record")
    loaded = pipeline(tmp_path / "u", "oders", first_load="source")
    with LogClient(endpoint) as client:
        assert plan_of("p", config, client).unknown == ["oders"]
        assert plan_of("p", loaded, client).unknown == []
        with capture_logs() as logged:
            run_pipeline("p", config, endpoint, spark=spark, once=True)
        (said,) = [one for one in logged if "collections" in one]
        assert (said["log_level"], said["collections"]) == ("warning", ["oders"])
        log.append([[put(2, n=3)]])
        # Nothing of `lines` is left to read, but the log has told of it.
        assert plan_of("p", config, client).unknown == ["oders"]
        with capture_logs() as logged:
            run_pipeline("p", config, endpoint, spark=spark, once=True)
        assert [one for one in logged if "collections" in one] == []


def test_a_table_that_is_gone_comes_back_by_a_reset_and_nothing_is_applied_twice(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    import shutil

    from penstock.errors import PipelineChangedError

    config = pipeline(tmp_path / "lake", "orders", "lines")
    log.append([put(number, n=number)] for number in range(3))
    log.append([[change(1, "insert", {"x": 1}, collection="lines")]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    shutil.rmtree(tmp_path / "lake" / "lines")
    with pytest.raises(PipelineChangedError):
        run_pipeline("p", config, endpoint, spark=spark, once=True)
    orders = rows_of(tmp_path / "lake" / "orders")
    with LogClient(endpoint) as client:
        before, _ = reset("p", config, client, StandingTable(config, "p"), "beginning")
    assert before.sequence == 4
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert rows_of(tmp_path / "lake" / "orders") == orders
    assert len(rows_of(tmp_path / "lake" / "lines")) == 1


def test_whatever_ends_a_pipeline_is_its_error_and_no_end_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class PanicException(BaseException):
        """As delta-rs raises it."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException

    monkeypatch.setattr("penstock.spark.many.run_pipeline", panic)
    ended: dict[str, PenstockError | None] = {}
    errors = run_pipelines(
        {"p": pipeline(Path("t"))},
        "127.0.0.1:1",
        spark=cast("Any", None),
        stop=threading.Event(),
        on_end=ended.__setitem__,
    )
    assert "PanicException" in str(errors["p"])
    assert ended == errors


@pytest.mark.parametrize("where", ["scratch", "start"])
def test_a_run_that_ends_with_an_error_of_nobodys_has_failed_for_the_service_too(
    spark: "SparkSession",
    log: BlockLog,
    book: PipelineBook,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """A folder for temporary files that is gone or full, and a disk that Spark cannot write."""
    log.append([[put(1, n=1)]])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if where == "scratch":
            patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        else:
            patched.setattr("penstock.spark.run.in_turn", full)
        with pytest.raises(PipelineError, match="missing" if where == "scratch" else "no space"):
            run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    assert (known(book)["p"].state, known(book)["p"].code) == ("failed", "pipeline")
    run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    assert known(book)["p"].state == "ended"


@pytest.mark.parametrize("begun", [False, True])
def test_whatever_a_run_raises_is_an_error_of_ours(
    spark: "SparkSession",
    log: BlockLog,
    book: PipelineBook,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    """The service may break when it is asked, and a comparison when a run is over."""
    log.append([[put(1, n=1)]])

    def broken(*_: object, **__: object) -> None:
        raise FlightInternalError("the text of a stranger")

    what = "scheduled.VerifySchedule.compare_if_due" if begun else "run.log_client"
    monkeypatch.setattr(f"penstock.spark.{what}", broken)
    config = pipeline(tmp_path / "t", verify_every=3600 if begun else 0)
    with pytest.raises(PipelineError, match="FlightInternalError"):
        run_pipeline("p", config, endpoint, spark=spark, once=True)
    states = {name: (one.state, one.code) for name, one in known(book).items()}
    assert states == ({"p": ("failed", "pipeline")} if begun else {})
