"""A pipeline applies what the service has, goes on after its service was away, and stops clean."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.query import StreamingQuery

from penstock.client.flight import LogClient, PipelineReport
from penstock.errors import (
    BatchTooLargeError,
    ChangesLostError,
    ConfigError,
    HistoryTrimmedError,
    PipelineError,
    ServiceUnavailableError,
    StreamChangedError,
    TrimmedError,
    WorkersUnavailableError,
)
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark.destinations import config_class, known_destinations
from penstock.spark.overtaken import way_back
from penstock.spark.plan import plan_of
from penstock.spark.progress import PipelineProgress
from penstock.spark.raised import own_error
from penstock.spark.resetting import reset_place
from penstock.spark.run import (
    _Runner,  # pyright: ignore[reportPrivateUsage]
    run_pipeline,
)
from penstock.spark.table.delta import Table
from penstock.spark.table.standing import StandingTable
from penstock.spark.tables import merge_staged
from penstock.spark.telling import ServiceTeller
from tests.flight.blocks import BlockLog, gap
from tests.spark.histories import history
from tests.spark.tables import change, pipeline, put, rejects_of, rows_of, schema_event
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def reports() -> list[PipelineReport]:
    return []


@pytest.fixture
def endpoint(log: BlockLog, reports: list[PipelineReport]) -> Iterator[str]:
    server = FlightServer(log, on_report=lambda said, _: reports.append(said))
    server.start()
    yield server.address
    server.stop()


def test_a_pipeline_applies_what_there_is_batch_by_batch(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([put(number % 7, n=number)] for number in range(50))
    log.append([[put(1, n=100), change(2, "delete"), put(3, n=300)]])
    seen: list[PipelineProgress] = []
    config = pipeline(tmp_path / "t", max_events_per_batch=20)
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    rows = {key: row["n"] for (_, key), row in rows_of(tmp_path / "t").items()}
    assert rows == {
        '{"_id":0}': 49,
        '{"_id":1}': 100,
        '{"_id":3}': 300,
        '{"_id":4}': 46,
        '{"_id":5}': 47,
        '{"_id":6}': 48,
    }
    assert [one.entries for one in seen] == [20, 20, 13]
    assert seen[-1].sequence == log.head


def test_a_pipeline_goes_on_where_it_stood(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = pipeline(tmp_path / "t")
    log.append([[put(1, n=1)], [put(2, n=2)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    log.append([[put(2, n=3)]])
    seen: list[PipelineProgress] = []
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert [(one.entries, one.rows) for one in seen] == [(1, 1)]
    assert {row["n"] for row in rows_of(tmp_path / "t").values()} == {1, 3}


@pytest.mark.parametrize("on_gap", ["halt", "record"])
def test_what_retention_took_while_a_pipeline_was_down_is_not_stepped_over(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, on_gap: str
) -> None:
    """P7: starting at the oldest entry would leave a hole that nobody sees; the second collection,
    which never had a change, is no reason to. `on_gap` is of gaps that a source has told."""
    config = pipeline(tmp_path / "t", "orders", "refunds", on_gap=on_gap)
    log.append([[put(1, n=1)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    log.append([put(number, n=2) for number in range(10)] for _ in range(2))
    log.trim(8)
    with pytest.raises(TrimmedError) as raised:
        run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert raised.value.oldest == str(Progress(log.log_id, 8, log.trimmed_check))
    assert "reset p --to oldest" in str(raised.value)
    assert len(rows_of(tmp_path / "t" / "orders")) == 1
    with LogClient(endpoint) as client:
        with pytest.raises(TrimmedError, match="reset p --to oldest"):
            plan_of("p", config, client)
        bounds = client.bounds()
        StandingTable(config, "p").reset(reset_place(client, "oldest", bounds), bounds)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t" / "orders")) == 10


def test_versions_are_not_continued_behind_what_retention_took(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)]])
    config = history(tmp_path / "h", on_gap="record")
    run_pipeline("h", config, endpoint, spark=spark, once=True)
    log.append([[put(1, n=number)] for number in range(9)])
    log.trim(6)
    with pytest.raises(TrimmedError, match="a new name and a new place"):
        run_pipeline("h", config, endpoint, spark=spark, once=True)
    assert DeltaTable(str(tmp_path / "h")).to_pyarrow_table().num_rows == 1


def test_a_gap_in_the_middle_of_a_transaction_stops_a_pipeline_before_all_of_that(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)], [put(1, n=2), put(2), gap(), put(3)], [put(4)]])
    for config, rows in ((pipeline(tmp_path / "t"), 4), (history(tmp_path / "h"), 5)):
        for _ in range(2):
            with pytest.raises(ChangesLostError, match="sequence 4"):
                run_pipeline("p", config, endpoint, spark=spark, once=True)
            assert DeltaTable(config.path).to_pyarrow_table()["n"].to_pylist() == [1]
        going_on = config.model_copy(update={"on_gap": "record"})
        run_pipeline("p", going_on, endpoint, spark=spark, once=True)
        assert DeltaTable(config.path).to_pyarrow_table().num_rows == rows


@pytest.mark.parametrize("on_gap", ["halt", "record"])
def test_only_what_keeps_every_change_goes_on_behind_what_retention_took(on_gap: str) -> None:
    """There a gap is a row like any other; elsewhere rows would be wrong, and nobody would see."""
    places = {
        "audit": {"uri": "mongodb://x"},
        "replicate": {"uri": "mongodb://x/shop"},
        "view": {"path": "v", "query": "SELECT count(*) AS n FROM orders"},
    }
    for to in known_destinations():
        kind = config_class(to)
        said = {"to": to, "source": "shop", "on_gap": on_gap, **places.get(to, {"path": "t"})}
        config = kind.model_validate(said)
        keeps = to in {"audit", "changelog"}
        assert config.outlives_retention == (keeps and on_gap == "record")
        assert ("on_gap = 'record'" in way_back("p", config)) == keeps
        assert ("penstock snapshot shop" in way_back("p", config)) != keeps
    loaded = pipeline(Path("t"), first_load="source")
    assert "penstock pipeline backfill p" in way_back("p", loaded)


def test_a_new_pipeline_does_not_begin_in_the_middle_of_a_history_without_being_told(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """Invariant 4: what retention took before a pipeline was made is missing from it too."""
    log.append([put(number, n=2) for number in range(10)] for _ in range(2))
    log.trim(8)
    with pytest.raises(HistoryTrimmedError, match="start = 'oldest'"):
        run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    knowingly = pipeline(tmp_path / "t", start="oldest")
    run_pipeline("p", knowingly, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t")) == 10


def test_a_crash_between_the_tables_of_a_batch_skips_no_table(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = pipeline(tmp_path / "lake").model_copy(update={"collections": ()})
    log.append([[put(1, n=1), change(1, "insert", {"x": 1}, collection="lines")]])
    merge, merged = Table.merge, 0

    def crash(self: Table, *rest: Any) -> None:
        nonlocal merged
        merged += 1
        if merged == 2:
            raise OSError("the driver dies here")
        merge(self, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "merge", crash)
        with pytest.raises(PipelineError):
            run_pipeline("p", config, endpoint, spark=spark, once=True)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "lake" / "orders")) == 1
    assert len(rows_of(tmp_path / "lake" / "lines")) == 1


def test_a_pipeline_of_which_nothing_changes_moves_on_with_the_log(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """Invariant 5: it needs nothing of what retention took, and is not stopped for it."""
    config = pipeline(tmp_path / "t", "shop/line items/2")
    log.append([[put(1, n=1), change(1, "insert", {"x": 1}, collection="line items/2")]])
    log.append([put(number, n=2) for number in range(10)] for _ in range(2))
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    log.trim(20)
    log.append([[change(2, "insert", {"x": 2}, collection="line items/2")]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t")) == 2
    log.append([[gap()]])
    with pytest.raises(ChangesLostError):
        run_pipeline("p", config, endpoint, spark=spark, once=True)


def test_whoever_is_told_of_progress_can_neither_fail_nor_delay_a_batch(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.spark.progress._TOLD_SECONDS_MAX", 0.01)
    log.append([put(1, n=number)] for number in range(3))
    config = pipeline(tmp_path / "t", max_events_per_batch=1)
    release, told = threading.Event(), threading.Semaphore(0)

    def fail_or_hang(progress: PipelineProgress) -> None:
        told.release()
        if progress.sequence == 2:
            release.wait()
        raise OSError("nobody listens")

    try:
        run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=fail_or_hang)
        assert [row["n"] for row in rows_of(tmp_path / "t").values()] == [2]
        assert told.acquire(timeout=PATIENCE_SECONDS)
        assert told.acquire(timeout=PATIENCE_SECONDS)
    finally:
        release.set()


class WaitedFor:
    """A lock that says when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.contended = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.contended.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_batch_that_begins_while_the_query_is_stopped_is_left_out_without_an_error(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's stop waits for the batch, so the batch must not wait for whoever stops."""
    log.append([put(1, n=number)] for number in range(200))  # more than are read
    config = pipeline(tmp_path / "t", max_events_per_batch=1, trigger=0.0)
    stop, lock = threading.Event(), WaitedFor()
    made, failed = _Runner.__init__, StreamingQuery.exception
    stopped: list[StreamingQuery] = []

    def make(runner: Any, *given: Any) -> None:
        made(runner, *given)
        runner._writing = lock

    def merge(*given: Any, **named: Any) -> Any:
        stop.set()
        lock.contended.wait(PATIENCE_SECONDS)  # by whoever stops
        lock.contended.clear()
        return merge_staged(*given, **named)

    def exception(query: StreamingQuery) -> None:
        stopped.append(query)
        lock.contended.wait(PATIENCE_SECONDS)  # by the next batch

    monkeypatch.setattr("penstock.spark.run._Runner.__init__", make)
    monkeypatch.setattr("penstock.spark.tables.merge_staged", merge)
    monkeypatch.setattr(StreamingQuery, "exception", exception)
    running = threading.Thread(
        target=run_pipeline,
        args=("p", config, endpoint),
        kwargs={"spark": spark, "stop": stop},
        daemon=True,
    )
    running.start()
    running.join(PATIENCE_SECONDS)
    assert not running.is_alive()
    assert [row["n"] for row in rows_of(tmp_path / "t").values()] == [0]
    assert failed(stopped[0]) is None


def test_a_service_that_is_away_for_days_is_waited_for() -> None:
    """A pause that doubles without end is no number any more, some thousand failures on."""
    pauses: list[float] = []

    def query(*, once: bool) -> None:
        if len(pauses) < 1100:
            raise ServiceUnavailableError("it is away")

    def said(*_: object) -> None:
        """Whoever is told."""

    def act(one: Callable[[], None]) -> None:
        one()

    stopping = SimpleNamespace(is_set=lambda: False, wait=pauses.append)
    runner: Any = SimpleNamespace(
        _name="p",
        _stage=None,
        _batches=0,
        _query=query,
        _in_our_words=act,
        _service=SimpleNamespace(waits=said),
        _facts=SimpleNamespace(tell=said),
        _stopping=stopping,
    )
    _Runner.run(runner, once=False)
    assert len(pauses) == 1100
    assert all(0.5 <= pause <= 10 for pause in pauses)


def test_a_batch_beyond_what_the_driver_may_hold_is_refused_by_name(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)]])
    with pytest.raises(BatchTooLargeError, match="max_bytes_per_batch"):
        run_pipeline(
            "p", pipeline(tmp_path / "t", max_bytes_per_batch=1), endpoint, spark=spark, once=True
        )
    run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t")) == 1


def test_what_a_place_raises_before_the_first_batch_is_named_too(
    spark: "SparkSession", endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise ValueError("a path with its secret")

    monkeypatch.setattr("penstock.spark.tables.TableTarget.start", start)
    with pytest.raises(PipelineError, match="ValueError") as raised:
        run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    assert "secret" not in str(raised.value)


class PanicException(BaseException):
    """What delta-rs raises where it panics is no Exception."""


@pytest.mark.parametrize("step", ["start", "apply", "save"])
def test_a_panic_ends_the_pipeline_with_an_error_that_names_it(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """In a batch it had no answer, and Spark waited for one: neither error nor signal ended it."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException("the secret of a document")

    told: list[tuple[Any, ...]] = []
    close = ServiceTeller.close

    def closed(teller: ServiceTeller, *said: Any) -> None:
        told.append(said)
        close(teller, *said)

    monkeypatch.setattr("penstock.spark.telling.ServiceTeller.close", closed)
    monkeypatch.setattr(f"penstock.spark.tables.TableTarget.{step}", panic)
    log.append([[put(1, n=1)]])
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark)
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join(PATIENCE_SECONDS)
    assert not running.is_alive()
    (failure,) = failures
    assert isinstance(failure, PipelineError)
    assert "PanicException, which is no error" in str(failure)
    assert "secret" not in str(failure)
    assert told[0] == ("failed", "pipeline")


@pytest.mark.parametrize("against", ["log", "source"])
def test_a_comparison_that_has_nowhere_to_write_is_refused_before_anything_is_read(
    spark: "SparkSession",
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    against: str,
) -> None:
    """On a cluster: it would fail each time, and nobody would know why."""

    def on_a_cluster(_: object) -> bool:
        return False

    monkeypatch.setattr("penstock.spark.run.on_this_machine", on_a_cluster)
    config = pipeline(tmp_path / "t", verify_every="6h", verify_against=against)
    said = {"log": "verify p --scratch", "source": "verify p --against source --scratch"}
    with pytest.raises(ConfigError, match=said[against]):
        run_pipeline("p", config, endpoint, spark=spark, once=True)


def test_a_strange_error_is_named_and_its_text_which_may_quote_a_document_is_not_repeated() -> None:
    said = own_error(ValueError("cannot store 'secret of a customer'"), pipeline="p")
    assert isinstance(said, PipelineError)
    assert "ValueError" in str(said)
    assert "secret" not in str(said)
    text = "Traceback\n  File 'x'\npyarrow.lib.ArrowInvalid: secret\nKeyError: 'secret'\n"
    said = own_error(RuntimeError(text), pipeline="p")
    assert "RuntimeError (KeyError)" in str(said)
    assert "secret" not in str(said)


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] ... terminated with exception: Python worker failed to connect back.",
        "[CANNOT_OPEN_SOCKET] Can not open socket: [\"tried to connect to ('127.0.0.1', 1)\"]",
    ],
)
def test_a_worker_that_a_busy_machine_could_not_start_in_time_is_tried_again(text: str) -> None:
    said = own_error(RuntimeError(text), pipeline="p")
    assert isinstance(said, WorkersUnavailableError)
    assert said.transient


def test_a_service_that_is_away_for_a_while_is_waited_for(
    spark: "SparkSession", log: BlockLog, tmp_path: Path
) -> None:
    server = FlightServer(log)
    server.start()
    address = server.address
    log.append([[put(1, n=1)]])
    stop, applied = threading.Event(), threading.Semaphore(0)
    config = pipeline(tmp_path / "t", trigger=0.05)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_pipeline(
                "p",
                config,
                address,
                spark=spark,
                on_progress=lambda _: applied.release(),
                stop=stop,
            )
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        assert applied.acquire(timeout=PATIENCE_SECONDS)
        server.stop()
        log.append([[put(2, n=2)]])
        server = FlightServer(log, address=address)
        server.start()
        assert applied.acquire(timeout=PATIENCE_SECONDS)
    finally:
        stop.set()
        running.join(PATIENCE_SECONDS)
        server.stop()
    assert not running.is_alive()
    assert failures == []
    assert {row["n"] for row in rows_of(tmp_path / "t").values()} == {1, 2}


def test_an_error_of_the_tables_or_the_log_comes_as_its_own_class(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1)], [gap()], [put(2, n=2)]])
    with pytest.raises(ChangesLostError, match="at sequence 2"):
        run_pipeline("p", pipeline(tmp_path / "t"), endpoint, spark=spark, once=True)
    lenient = pipeline(tmp_path / "t", on_gap="record")
    run_pipeline("p", lenient, endpoint, spark=spark, once=True)
    assert len(rows_of(tmp_path / "t")) == 2
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2]
    log.log_id += 1
    with pytest.raises(StreamChangedError):
        run_pipeline("p", lenient, endpoint, spark=spark, once=True)


def test_all_collections_of_a_source_become_a_table_each(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    log.append([[put(1, n=1), change(1, "insert", {"x": "y"}, collection="line items/2")]])
    log.append([[schema_event("drop")], [put(5, n=5)]])
    config = pipeline(tmp_path / "lake").model_copy(update={"collections": ()})
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert list(rows_of(tmp_path / "lake" / "orders")) == [("db", '{"_id":5}')]
    assert DeltaTable(str(tmp_path / "lake" / "line~20items~2f2")).to_pyarrow_table().num_rows == 1
