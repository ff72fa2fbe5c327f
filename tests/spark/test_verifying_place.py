"""What verifying begins with, and which tables it looks at. No Spark is started."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from penstock.client.flight import LogClient
from penstock.errors import (
    ChangesLostError,
    HistoryTrimmedError,
    PipelineChangedError,
    PipelineError,
)
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark import verifying
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table import slices
from penstock.spark.table.comparing import REPAIRED_MAX, Compared, repair_rows, too_many
from penstock.spark.table.delta import Table
from penstock.spark.table.judging import begin_as
from penstock.spark.table.kinds import kind_of_column
from penstock.spark.table.standing import StandingTable
from tests.spark.histories import history
from tests.spark.tables import LOG_ID, Entries, apply, change, gap, pipeline, put, schema_event
from tests.spark.test_renames_in_slices import Commits, PowerCutError


def bounds(*, trimmed: int = 0) -> Bounds:
    return Bounds(
        log_id=LOG_ID,
        trimmed=trimmed,
        trimmed_check=0,
        head=2,
        head_commit=2,
        head_check=1,
        ancestors=(),
    )


def made(config: TablePipelineConfig) -> None:
    """Its tables, with everything that there is: a row of each of two collections."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    standing = StandingTable(config, "p")
    standing.start(bounds())
    result = apply(entries.table(), config)
    standing.advance(Progress(LOG_ID, 2, 1), {**result.tables, "lines": 2}, batch_id=0)


def verified(
    config: TablePipelineConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trimmed: int = 0,
    anew: Sequence[str] = (),
    emptied: bool = False,
) -> list[str]:
    """The collections that are compared, of a log that has nothing to apply; as if applied anew it
    had those of `anew`; or `emptied` by somebody on the way."""
    seen: list[str] = []

    class Client(LogClient):
        def __init__(self) -> None: ...

        def bounds(self) -> Bounds:
            return bounds(trimmed=trimmed)

    @contextmanager
    def client(*_: Any, **__: Any) -> Generator[LogClient]:
        yield Client()

    def compared(_: Any, name: str, collection: str, *__: Any, **___: Any) -> Compared:
        seen.append(collection)
        return Compared(
            collection=collection, rows=0, found=0, ranges=1, ranges_differing=0, differences=0
        )

    def collections(*_: Any) -> list[str]:
        return list(anew)

    def no_entries(*_: Any) -> Iterator[Progress]:
        if emptied:
            shutil.rmtree(scratch)
        return iter(())

    def registered(_: Any) -> None:
        pass

    spark: Any = None
    monkeypatch.setattr(verifying, "register", registered)
    monkeypatch.setattr(verifying, "log_client", client)
    monkeypatch.setattr(verifying, "ends_of", no_entries)
    monkeypatch.setattr(verifying, "judged_by_log", compared)
    monkeypatch.setattr(verifying, "judged_versions", compared)
    if anew:
        monkeypatch.setattr(StandingTable, "collections", collections)
    scratch = f"{config.path}_scratch"
    verifying.verify_tables("p", config, "nowhere", spark=spark, repair=True, scratch=scratch)
    return seen


@pytest.mark.parametrize("start", ["beginning", "oldest"])
def test_rows_that_the_log_no_longer_tells_are_not_taken_for_extra_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """A repair would delete them, whatever the pipeline itself begins with."""
    config = pipeline(tmp_path / "t", "orders", "lines", start=start)
    made(config)
    with pytest.raises(HistoryTrimmedError):
        verified(config, monkeypatch, trimmed=1)
    assert verified(config, monkeypatch) == ["orders", "lines"]


def test_a_table_whose_collection_was_left_out_since_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the collections that are left has none of its rows, and a repair deletes those."""
    made(pipeline(tmp_path / "t", "orders", "lines", "others"))
    fewer = pipeline(tmp_path / "t", "orders", "others")
    assert verified(fewer, monkeypatch) == ["orders"]


def test_tables_of_another_pipeline_or_place_are_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(pipeline(tmp_path / "t", "orders", "lines"))
    with pytest.raises(PipelineChangedError):
        verified(pipeline(tmp_path / "t", "orders"), monkeypatch)


def test_a_run_that_halts_at_a_gap_is_not_sent_round_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is before the gap is in the tables, and their place is still before that batch."""
    monkeypatch.setattr(verifying, "_PAUSE_SECONDS", 0)
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    entries.commit(gap())
    standing = StandingTable(config, "p")
    standing.start(bounds())
    standing.advance(Progress(LOG_ID, 1, 1), apply(entries.table(0, 1), config).tables, batch_id=0)
    for _ in range(2):
        with pytest.raises(ChangesLostError, match="on_gap = 'record'"):
            apply(entries.table(1), config, batch_id=1)
        with pytest.raises(PipelineError, match=r"at a gap \(pipeline.changes_lost\).*on_gap"):
            verified(config, monkeypatch)
    records = config.model_copy(update={"on_gap": "record"})
    passed = apply(entries.table(1), records, batch_id=1)
    standing.advance(Progress(LOG_ID, 3, 1), passed.tables, batch_id=1)
    assert verified(config, monkeypatch) == ["orders"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [pipeline, history])
def test_tables_in_the_midst_of_a_rename_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """They are neither what they were before it, nor what they are after it."""
    config, entries = make(tmp_path, "orders", "archive"), Entries()
    entries.commit(change(9, "insert", {"_id": 9, "n": 9}, collection="archive"))
    entries.commit(put(1, n=1), put(2, n=2))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    standing = StandingTable(config, "p")
    standing.start(bounds())
    tables = apply(entries.table(0, 3), config).tables
    standing.advance(Progress(LOG_ID, 3, 2), tables, batch_id=0)
    assert verified(config, monkeypatch) == ["archive", "orders"]
    with monkeypatch.context() as patched:
        patched.setattr(slices, "SLICE_BYTES_MAX", 1)
        Commits(patched, dies_at=2)
        with pytest.raises(PowerCutError):
            apply(entries.table(3), config)
    with pytest.raises(PipelineError, match="a rename that takes several commits"):
        verified(config, monkeypatch)
    tables = apply(entries.table(3), config, batch_id=1).tables
    standing.advance(Progress(LOG_ID, 4, 3), tables, batch_id=1)
    assert verified(config, monkeypatch) == ["archive", "orders"]


@pytest.mark.slow
def test_a_run_that_ended_in_the_midst_of_a_batch_is_told_from_one_that_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables stay ahead of what is said of them, however often somebody looks."""
    monkeypatch.setattr(verifying, "_PAUSE_SECONDS", 0)
    config = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    standing = StandingTable(config, "p")
    standing.start(bounds())
    standing.advance(Progress(LOG_ID, 1, 1), apply(entries.table(0, 1), config).tables, batch_id=0)
    later = apply(entries.table(1, 2), config, batch_id=1)  # killed before it says so
    with pytest.raises(PipelineError, match="penstock pipeline run p --once") as ended:
        verified(config, monkeypatch)
    assert "midst of a batch" in str(ended.value)
    standing.advance(Progress(LOG_ID, 2, 1), later.tables, batch_id=1)
    assert verified(config, monkeypatch) == ["orders"]


def test_tables_that_move_on_all_the_time_are_looked_at_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_PAUSE_SECONDS", 0)
    config = pipeline(tmp_path / "t", "orders", "lines")
    made(config)
    places = iter(range(3, 1000))
    read = StandingTable.read

    def moved(table: StandingTable) -> Any:
        standing = read(table)
        assert standing is not None
        return structs.replace(standing, progress=Progress(LOG_ID, next(places), 1))

    monkeypatch.setattr(StandingTable, "read", moved)
    with pytest.raises(PipelineError, match="move on faster"):
        verified(config, monkeypatch)


def test_a_collection_that_was_added_and_never_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared without it, the tables would be called sound."""
    made(pipeline(tmp_path / "t", "orders", "lines"))
    more = pipeline(tmp_path / "t", "orders", "lines", "refunds")
    with pytest.raises(PipelineError, match="never read: refunds"):
        verified(more, monkeypatch)
    everything = more.model_copy(update={"collections": ()})
    with pytest.raises(PipelineError, match="all of the source"):
        verified(everything, monkeypatch)


def test_a_table_that_the_log_makes_and_that_is_not_there_is_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline(tmp_path / "t", "orders", "lines", "refunds")
    made(config)
    compared = verified(config, monkeypatch, anew=["lines", "orders", "refunds"])
    assert compared == ["orders", "lines", "refunds"]


def test_what_vanished_before_it_was_compared_makes_no_row_an_extra_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair would delete them all."""
    config = pipeline(tmp_path / "t", "orders", "lines")
    made(config)
    with pytest.raises(PipelineError, match=r"t_scratch/.* any more. Nothing was changed"):
        verified(config, monkeypatch, emptied=True)
    assert verified(config, monkeypatch) == ["orders", "lines"]


def test_the_log_is_applied_anew_to_the_columns_that_the_table_has_and_says_are_its_own(
    tmp_path: Path,
) -> None:
    """Applied to none, it would widen them as its own batches end; applied to one that somebody
    has made, it would be refused."""
    entries = Entries()
    entries.commit(put(1, n=1, note={"a": 1}))
    entries.commit(put(2, n=1.5))
    config = pipeline(tmp_path / "t")
    apply(entries.table(), config)
    table = Table(config.path)
    rows = pa.Table.from_batches(table.scan()).append_column("mine", pa.array(["x", "y"]))
    write_deltalake(config.path, rows, mode="overwrite", schema_mode="overwrite")
    table.reload()
    beside = Table(str(tmp_path / "beside"))
    begin_as(beside, table, "p")
    columns: list[Any] = list(beside.schema)
    assert [(one.name, str(kind_of_column(one))) for one in columns] == [
        ("_id", "int32"), ("n", "double"), ("note", "json"),
    ]  # fmt: skip
    assert (beside.applied("p", log_id=None), [*beside.scan()]) == (0, [])
    begin_as(gone := Table(str(tmp_path / "other")), Table(str(tmp_path / "nothing")), "p")
    assert gone.version == -1


def test_more_rows_than_a_driver_holds_are_not_repaired_and_it_says_so() -> None:
    """They would be computed again, and then not fit."""
    unread: Any = None
    many = Compared(
        collection="orders", rows=0, found=0, ranges=1, ranges_differing=1,
        differences=REPAIRED_MAX + 1,
    )  # fmt: skip
    told = repair_rows(
        "p", many, unread, unread, unread, unread, fields={}, until=Progress(1, 0, 0), ranges=1
    )
    assert (told.repaired, told.differences) == (0, many.differences)
    assert "1,000,000 rows differ" in told.left
    assert too_many(structs.replace(many, differences=REPAIRED_MAX)) is None


def test_a_table_that_was_found_right_after_a_restore_is_gone_on_with(tmp_path: Path) -> None:
    """Where nothing is missing a repair writes nothing, and a run would be refused for ever."""
    config, entries = pipeline(tmp_path / "t"), Entries()
    for number in range(2):
        entries.commit(put(number, n=number))
        apply(entries.table(number), config)
    DeltaTable(config.path).restore(DeltaTable(config.path).version() - 1)
    table = Table(config.path)
    assert table.is_taken_back()
    verifying.vouch("p", table)
    assert not Table(config.path).is_taken_back()
    assert Table(config.path).applied("p", log_id=LOG_ID) == 2
    version = Table(config.path).version
    verifying.vouch("p", Table(config.path))
    assert Table(config.path).version == version
