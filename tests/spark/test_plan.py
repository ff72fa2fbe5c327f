"""A plan begins where a run would: as the destination says, whatever the service knows."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pymongo import MongoClient

from penstock.audit.outages import Patience
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineOrder, PipelineTold
from penstock.errors import (
    HistoryTrimmedError,
    PenstockError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
    TrailTakenError,
    TrailUnavailableError,
    TrimmedError,
)
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.changelogs import ChangelogTarget, Work
from penstock.spark.config import AuditPipelineConfig, ViewPipelineConfig
from penstock.spark.plan import begins, plan_of
from penstock.spark.table.standing import StandingTable
from penstock.spark.tables import TableTarget
from penstock.spark.views import tables_of
from penstock.wire import to_arrow
from tests.audit.support import commit_of, row, steps
from tests.flight.blocks import BlockLog
from tests.spark.changelogs import add, bounds, changelog, started
from tests.spark.tables import LOG_ID, Entries, apply, put
from tests_support.servers import MongoReplicaSet

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet"])


def seen(folder: Path) -> dict[str, int]:
    """Every file and folder, and when it was last written."""
    return {str(one): one.stat().st_mtime_ns for one in folder.rglob("*")}


def refused_alike(
    kind: type[PenstockError], run: Callable[[], object], plan: Callable[[], object]
) -> str:
    """What both raise."""
    with pytest.raises(kind) as stopped:
        run()
    with pytest.raises(kind) as planned:
        plan()
    assert str(planned.value) == str(stopped.value)
    return str(planned.value)


# --- a changelog --------------------------------------------------------------------------------


@FORMATS
def test_a_plan_of_a_pipeline_that_was_forgotten_says_what_a_run_does(
    tmp_path: Path, form: str
) -> None:
    """Forgotten, retention goes on: it takes what the changelog has, and more."""
    log, config = BlockLog(), changelog(tmp_path / "c", format=form)
    log.append([[put(number, n=number)] for number in range(6)])
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=3600, hold_bytes=1 << 30)
    server = FlightServer(log, book=book)
    server.start()
    try:
        with LogClient(server.address) as client:
            place = client.marker(log_id=log.log_id, sequence=4)
            _applied_by_a_run(log, ChangelogTarget("p", config), place)
            told = PipelineTold(
                pipeline="p", run="1", source="shop", to="changelog", place=place, state="ended"
            )
            client.tell(told)
            known = plan_of("p", config, client)
            client.order(PipelineOrder(pipeline="p", order="forget"))
            assert client.pipelines() == []
            found = plan_of("p", config, client)
            assert found == known
            assert (found.sequence, found.entries) == (4, 2)
            assert "as the row beside it says" in found.why
            log.append([[put(number, n=1)] for number in range(4)])
            log.trim(7)
            trimmed = plan_of("p", config, client)
            assert (trimmed.sequence, trimmed.until, trimmed.lost) == (4, 10, 3)
            # The gap, and the three that are left.
            assert (trimmed.entries, trimmed.control_events) == (4, 1)
            with pytest.raises(TrimmedError):
                plan_of("p", changelog(tmp_path / "c", format=form, on_gap="halt"), client)
    finally:
        server.stop()
        book.close()


def _applied_by_a_run(log: BlockLog, target: ChangelogTarget, until: Progress) -> None:
    entries = pa.Table.from_batches([to_arrow((block,)) for block in log.blocks])
    target.start(log.bounds_now())

    def run(work: Work) -> pa.Table:
        return pa.Table.from_batches(work(entries.slice(0, until.sequence).to_batches()))

    target.add(run, 0, until=until)


@FORMATS
def test_a_plan_of_a_changelog_begins_where_a_run_does_and_writes_nothing(
    tmp_path: Path, form: str
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    entries.commit(put(1, n=1), put(2, n=2))
    assert begins("p", config, bounds(9)) == (
        Progress(LOG_ID, 0, 0),
        "it is new: its destination has nothing of it",
    )
    assert not seen(tmp_path)
    add(started(config), entries.table())
    before = seen(tmp_path)
    assert begins("p", config, bounds(9, trimmed=5))[0] == Progress(LOG_ID, 2, 1)
    assert seen(tmp_path) == before
    assert ChangelogTarget("p", config).start(bounds(9, trimmed=5)) == Progress(LOG_ID, 2, 1)


@FORMATS
def test_what_a_run_of_a_changelog_would_stop_with_is_the_error_of_its_plan(
    tmp_path: Path, form: str
) -> None:
    entries, config = Entries(), changelog(tmp_path / "c", format=form)
    target = ChangelogTarget("p", config)
    at = bounds(9, trimmed=5)
    refused_alike(HistoryTrimmedError, lambda: target.start(at), lambda: begins("p", config, at))
    entries.commit(put(1, n=1))
    add(started(config), entries.table())
    elsewhere = bounds(9, log_id=7)
    refused_alike(
        StreamChangedError,
        lambda: target.start(elsewhere),
        lambda: begins("p", config, elsewhere),
    )
    other = changelog(tmp_path / "c", format=form, source="till")
    refused_alike(
        PipelineChangedError,
        lambda: ChangelogTarget("p", other).start(at),
        lambda: begins("p", other, at),
    )
    if form == "delta":
        folders = changelog(tmp_path / "c", partition_by=["date"])
        refused_alike(
            PipelineChangedError,
            lambda: ChangelogTarget("p", folders).start(at),
            lambda: begins("p", folders, at),
        )


def test_a_place_that_cannot_be_read_is_told_with_its_path(tmp_path: Path) -> None:
    entries, config = Entries(), changelog(tmp_path / "c")
    entries.commit(put(1, n=1))
    add(started(config), entries.table())
    for commit in Path(config.standing_path).glob("_delta_log/*.json"):
        commit.write_text("no commit")
    with pytest.raises(PipelineError, match=r"a file is damaged: .*_penstock_standing"):
        begins("p", config, bounds(9))


# --- a view -------------------------------------------------------------------------------------


def view(path: Path) -> ViewPipelineConfig:
    query = "SELECT status, count(*) AS orders FROM orders GROUP BY status"
    return ViewPipelineConfig.model_validate(
        {"to": "view", "source": "shop", "path": str(path), "query": query}
    )


def test_a_plan_of_a_view_begins_where_its_current_rows_stand(tmp_path: Path) -> None:
    config, entries = view(tmp_path / "v"), Entries()
    entries.commit(put(1, status="new"), put(2, status="paid"))
    assert begins("p", config, bounds(9))[0].sequence == 0
    assert not seen(tmp_path)
    rows = TableTarget("p", tables_of(config))
    at = bounds(9, trimmed=5)
    refused_alike(HistoryTrimmedError, lambda: rows.start(at), lambda: begins("p", config, at))
    _moved(config, apply(entries.table(), tables_of(config)).tables)
    before = seen(tmp_path)
    found, why = begins("p", config, at)
    assert found == rows.start(at) == Progress(LOG_ID, 2, 1)
    assert why == "that is how far its current rows have come, as the row beside them says"
    assert seen(tmp_path) == before


def test_a_plan_of_a_view_finds_a_table_in_its_place_as_a_run_would(tmp_path: Path) -> None:
    config = view(tmp_path / "v")
    write_deltalake(config.path, pa.table({"mine": [1]}))
    with pytest.raises(PipelineChangedError, match="is no view of it"):
        begins("p", config, bounds(9))


def _moved(config: ViewPipelineConfig, tables: dict[str, int]) -> None:
    standing = StandingTable(tables_of(config), "p")
    standing.start(bounds(9))
    standing.advance(Progress(LOG_ID, 2, 1), tables, batch_id=0)


# --- an audit trail -----------------------------------------------------------------------------


@pytest.fixture
def config(mongo: MongoReplicaSet, mongo_database: str) -> AuditPipelineConfig:
    return audit(mongo.uri, mongo_database)


@pytest.fixture
def trail(config: AuditPipelineConfig) -> Iterator[Trail]:
    trail = Trail(config.source, config)
    yield trail
    trail.close()


def audit(uri: str, database: str, **said: Any) -> AuditPipelineConfig:
    return AuditPipelineConfig.model_validate(
        {"to": "audit", "source": "shop", "uri": uri, "database": database, **said}
    )


def writer_of(trail: Trail, config: AuditPipelineConfig) -> Writer:
    patience = Patience(trail, stopping=threading.Event())
    return Writer(trail, "p", patience=patience, collections=config.collections)


def marked(sequence: int) -> str:
    return str(Progress(LOG_ID, sequence, 0))


def contents(config: AuditPipelineConfig) -> dict[str, list[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](config.uri.get_secret_value()) as client:
        database = client[config.database]
        return {name: list(database[name].find()) for name in database.list_collection_names()}


def test_a_plan_of_a_trail_begins_where_its_head_is_and_writes_nothing(
    trail: Trail, config: AuditPipelineConfig
) -> None:
    assert begins("p", config, bounds(9))[0].sequence == 0
    with pytest.raises(HistoryTrimmedError):
        begins("p", config, bounds(9, trimmed=5))
    assert contents(config) == {}
    writer = writer_of(trail, config)
    writer.open()
    # A writer that was only opened has nothing yet.
    with pytest.raises(HistoryTrimmedError):
        begins("p", config, bounds(9, trimmed=5))
    writer.write(steps([row(1, after={"id": 1}), row(2, after={"id": 2})]), marker=marked)
    before = contents(config)
    found, why = begins("p", config, bounds(9, trimmed=5))
    assert (found.sequence, why) == (
        2,
        "that is how far its trail has come, as the head of the trail says",
    )
    assert contents(config) == before
    writer.write(steps([row(3, after={"id": 3})]), marker=marked)  # it is still the writer
    again = config.model_copy(update={"start": "oldest"})
    rebuilt = bounds(9, trimmed=5, log_id=7)
    found, why = begins("p", again, rebuilt)
    assert (found, "from another log" in why) == (Progress(7, 5, 0), True)
    with pytest.raises(StreamChangedError, match="start = 'oldest'"):
        begins("p", config, rebuilt)
    with pytest.raises(TrailTakenError, match="written by pipeline p, not q"):
        begins("q", config, bounds(9))
    with pytest.raises(TrailTakenError, match="trail of source shop"):
        begins("p", config.model_copy(update={"source": "till"}), bounds(9))


def test_a_plan_counts_what_a_run_would_bring_into_the_trail_first(
    trail: Trail, config: AuditPipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(trail, config)
    writer.open()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_bring_in", die)
        with pytest.raises(KeyboardInterrupt):
            writer.write(steps(commit_of(1, 6), events_max=2), marker=marked)
    found, _ = begins("p", config, bounds(9))
    assert found.sequence == 6
    assert writer_of(trail, config).open().progress == str(found)


def test_a_trail_that_is_away_is_told_and_what_to_do() -> None:
    away = audit("mongodb://127.0.0.1:1/", "audit", answer_seconds=0.2)
    with pytest.raises(
        TrailUnavailableError, match=r"127.0.0.1:1 refuses connections.* Nothing was changed"
    ):
        begins("p", away, bounds(9))


def test_a_plan_of_tables_refuses_a_first_load_that_was_given_up_as_a_run_does(
    tmp_path: Path,
) -> None:
    from penstock.spark.config import TablePipelineConfig
    from penstock.spark.loading.parts import Part, Plan
    from penstock.spark.loading.stored import StoredPlan

    said = {"source": "shop", "collections": ["orders"], "path": str(tmp_path / "t")}
    config = TablePipelineConfig.model_validate(said)
    part = Part(database="db", collection="orders")
    StoredPlan("p", config).write(Plan(parts=(part,)), log_id=LOG_ID, sequence=0)
    refused_alike(
        PipelineChangedError,
        lambda: TableTarget("p", config).start(bounds(9)),
        lambda: begins("p", config, bounds(9)),
    )
