"""What the tables promise to whoever else works with them, and what a configuration may say."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from msgspec import structs

from penstock.errors import PipelineError, TrimmedError
from penstock.spark.config import TablePipelineConfig
from penstock.spark.destinations import config_class
from penstock.spark.history import delta as history_delta
from penstock.spark.history.columns import INSTANT, VERSION_COLUMNS
from penstock.spark.history.delta import VersionTable
from penstock.spark.raised import own_error
from penstock.spark.table import delta as table_delta
from penstock.spark.table.committing import commit
from penstock.spark.table.delta import Table, create_table
from penstock.spark.table.plan import OPERATION, OWN_COLUMNS
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.upkeep import Tidied, due, keep_up, tidy, untidied
from penstock.spark.tidying import tidy_pipeline
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, as_of_days_ago, pipeline, put, rows_of


def stamp(until: int) -> Stamp:
    return Stamp(pipeline="p", log_id=1, after=0, until=until, batch=0)


def own_rows(*keys: str) -> pa.Table:
    rows = [
        {
            "_key": key,
            "_source": "shop",
            "_database": "db",
            "_sequence": 1,
            "_rejected_sequence": None,
        }
        for key in keys
    ]
    return pa.Table.from_pylist(rows, schema=OWN_COLUMNS)


def stored(path: str) -> list[dict[str, Any]]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def test_two_drivers_that_apply_the_same_batch_cannot_both_commit(tmp_path: Path) -> None:
    Table(str(tmp_path)).append(own_rows("a"), stamp(1))
    first, second = Table(str(tmp_path)), Table(str(tmp_path))
    first.append(own_rows("b"), stamp(2))
    with pytest.raises(CommitFailedError) as refused:
        second.append(own_rows("b"), stamp(2))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2
    assert "one driver per pipeline" in str(own_error(refused.value, pipeline="p"))


def versions(*keys: str) -> pa.Table:
    values: dict[Any, Any] = {pa.int64(): 1, pa.bool_(): True, INSTANT: 0}
    rows = [
        {
            field.name: None if field.nullable else values.get(field.type, key)
            for field in VERSION_COLUMNS
        }
        for key in keys
    ]
    return pa.Table.from_pylist(rows, schema=VERSION_COLUMNS)


def changed(*keys: str) -> pa.Table:
    return own_rows(*keys).append_column(OPERATION, pa.array([PUT] * len(keys), pa.int8()))


@pytest.mark.parametrize(
    ("kind", "rows", "write"),
    [
        (Table, own_rows, Table.append),
        (Table, own_rows, Table.replace),
        (Table, changed, Table.merge),
        (VersionTable, versions, VersionTable.put),
    ],
)
def test_a_driver_that_saw_no_table_writes_nothing_over_what_another_made_meanwhile(
    tmp_path: Path, kind: Any, rows: Any, write: Any
) -> None:
    """Rows were there twice, older ones in place of newer ones, and the table's place went back."""
    first, second = kind(str(tmp_path)), kind(str(tmp_path))
    write(first, rows("a"), stamp(1))
    write(first, rows("b"), stamp(4))
    there = DeltaTable(str(tmp_path)).to_pyarrow_table()
    for _ in range(2):
        with pytest.raises(CommitFailedError) as refused:
            write(second, rows("a"), stamp(2))
        assert "one driver per pipeline" in str(own_error(refused.value, pipeline="p"))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table() == there
    assert kind(str(tmp_path)).applied("p", log_id=1) == 4


def test_pipelines_that_have_their_rejects_in_one_table_may_both_make_it(tmp_path: Path) -> None:
    first, second = Table(str(tmp_path)), Table(str(tmp_path))
    first.append(own_rows("a"), stamp(1))
    second.append(own_rows("b"), structs.replace(stamp(9), pipeline="q"))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2


def test_of_two_who_make_a_table_at_the_same_moment_one_does(tmp_path: Path) -> None:
    """The other's commit came on top, with a schema of its own for the rows that were there."""
    for number in range(8):
        path, both = str(tmp_path / str(number)), threading.Barrier(2)

        def make(path: str = path, both: threading.Barrier = both) -> None:
            both.wait(10)
            create_table(path, OWN_COLUMNS, storage={})

        makers = [threading.Thread(target=make) for _ in range(2)]
        for one in makers:
            one.start()
        for one in makers:
            one.join()
        assert DeltaTable(path).version() == 0


def test_a_commit_says_which_part_of_which_log_it_holds(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(1, n=2))
    entries.commit(put(2, n=1))
    apply(entries.table(), pipeline(tmp_path / "t"), batch_id=7)
    said = DeltaTable(str(tmp_path / "t")).history(1)[0]
    assert {name: said[name] for name in said if name.startswith("penstock.")} == {
        "penstock.pipeline": "p",
        "penstock.after": "0",
        "penstock.until": "3",
        "penstock.batch": "7",
        "penstock.log": "fedcba9876543210",
    }


def test_tidying_keeps_the_rows_the_place_and_what_lies_beside(tmp_path: Path) -> None:
    """P18: without it the files that each batch replaces would fill the disk."""
    config, entries = pipeline(tmp_path / "t"), Entries()
    for number in range(5):
        entries.commit(put(number, n=number), put(0, n=number))
        apply(entries.table(2 * number), config)
    beside = tmp_path / "t" / "_penstock_beside"
    beside.mkdir()
    (beside / "0").write_text("kept")
    rows = rows_of(tmp_path / "t")
    assert tidy("p", config, Table(config.path)).failed == ""
    assert rows_of(tmp_path / "t") == rows
    assert (beside / "0").read_text() == "kept"
    assert Table(config.path).applied("p", log_id=None) == entries.head


def parquet_in(path: Path) -> set[str]:
    """The files of rows, wherever they lie."""
    return {str(one.relative_to(path)) for one in path.rglob("part-*.parquet")}


def test_replaced_files_of_a_table_that_is_written_once_a_night_are_deleted(
    tmp_path: Path,
) -> None:
    """A hundred commits are more nights than the log's checkpoints remember such files."""
    path, config = tmp_path / "t", pipeline(tmp_path / "t")

    def night(until: int, **settings: Any) -> int:
        table = Table(str(path))
        table.replace(own_rows("a"), stamp(until))
        keep_up("p", config.model_copy(update=settings), [table])
        return len(parquet_in(path))

    assert [night(until, vacuum_every=0) for until in (1, 2, 3)] == [1, 2, 3]
    as_of_days_ago(path, 8)
    assert night(4, vacuum_every=0) == 4, "never is never"
    assert night(5) == 3, "of the last hour they are kept for readers"
    as_of_days_ago(path, 8)
    assert night(6) == 4, "it was done today"
    assert len(stored(str(path))) == 1


def test_tidying_by_hand_finds_what_the_log_has_forgotten_and_nothing_of_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    config = pipeline(path, "orders")
    for until in (1, 2, 3):
        Table(str(path)).replace(own_rows("a"), stamp(until))
    forgotten = parquet_in(path) - {Path(one).name for one in DeltaTable(str(path)).file_uris()}
    assert len(forgotten) == 2
    for _ in range(2):
        for below in ("lines", "_penstock_beside"):
            write_deltalake(path / below, own_rows("a"), mode="overwrite")
    name = "part-00000-00000000-0000-0000-0000-00000000000{}-c000.snappy.parquet"
    torn, young = name.format(1), name.format(2)
    others = {f"lines/{torn}", f"_current=true/{torn}", "own.parquet"}
    for one in (torn, *others):
        (path / one).parent.mkdir(exist_ok=True)
        (path / one).write_text("")
    others |= {*parquet_in(path)} - {*forgotten, torn}
    as_of_days_ago(path, 8)
    (path / young).write_text("")
    table = Table(str(path))
    for until in range(4, 120):
        table.append(own_rows(*"b" * (until == 50)), stamp(until))
    assert tidy("p", config, Table(str(path)), compact=False).deleted == 0
    assert forgotten <= parquet_in(path), "they are in no checkpoint"
    assert table.sweep(older_seconds=30 * 86_400) == 0, "nor is what versions of a month used"
    (done,) = tidy_pipeline("p", config)
    assert (done.failed, done.deleted) == ("", 3)
    assert {*forgotten, torn}.isdisjoint(parquet_in(path))
    assert (path / young).exists()
    assert [one for one in others if not (path / one).exists()] == []
    assert len(stored(str(path))) == 2


def test_what_is_forgotten_of_a_history_lies_in_folders_of_its_own(tmp_path: Path) -> None:
    config, entries = history(tmp_path / "t"), Entries()
    for number in range(3):
        entries.commit(put(0, n=number))
        apply(entries.table(number), config)
    torn = "_current=true/part-00000-00000000-0000-0000-0000-000000000001-c000.snappy.parquet"
    (tmp_path / "t" / torn).write_text("")
    rows = stored(config.path)
    as_of_days_ago(tmp_path / "t", 8)
    assert sum(one.deleted for one in tidy_pipeline("p", config)) > 0
    assert not (tmp_path / "t" / torn).exists()
    assert len(stored(config.path)) == len(rows)


TABLES = pytest.mark.parametrize(
    ("made", "kind", "module"),
    [(pipeline, Table, table_delta), (history, VersionTable, history_delta)],
    ids=["table", "history"],
)


@TABLES
def test_files_joined_while_columns_become_wider_leave_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any, kind: type[Table], module: Any
) -> None:
    """The commit that joins them wins, and the batch is written all the same."""
    config, entries = made(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    entries.commit(put(3, n=1.5))
    for until in (1, 2):
        apply(entries.table(until - 1, until), config)
    real, tidied = module.write_deltalake, list[Tidied]()

    def write(*said: Any, **more: Any) -> None:
        if not tidied:
            tidied.append(tidy("p", config, kind(config.path)))
        real(*said, **more)

    monkeypatch.setattr(module, "write_deltalake", write)
    apply(entries.table(2, 3), config)
    assert tidied[0].joined == 2
    assert sorted(row["n"] for row in stored(config.path)) == [1.0, 1.5, 2.0]
    assert kind(config.path).applied("p", log_id=None) == 3


def test_tidying_is_in_the_way_of_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether rows are merged, replaced, deleted or relabelled."""
    path = str(tmp_path / "t")

    def behind_tidying(delta: DeltaTable, act: Any) -> None:
        for key in ("x", "y"):
            write_deltalake(path, own_rows(key), mode="append")
        delta.update_incremental()
        assert Table(path).compact()[0] > 1
        commit(delta, act)

    Table(path).append(own_rows("a"), stamp(1))
    monkeypatch.setattr(table_delta, "commit", behind_tidying)
    changed = own_rows("a", "b").append_column(OPERATION, pa.array([DELETE, PUT], pa.int8()))
    writes: list[tuple[Callable[[Table], None], str]] = [
        (lambda table: table.merge(changed, stamp(2)), "bxy"),
        (lambda table: table.empty("_key = 'x'", stamp(3)), "byy"),
        (lambda table: table.relabel("_key = 'b'", {"_key": "'c'"}, stamp(4)), "cxyyy"),
        (lambda table: table.replace(own_rows("d"), stamp(5)), "d"),
    ]
    for at, (write, keys) in enumerate(writes, 2):
        table = Table(path)
        write(table)
        assert "".join(sorted(row["_key"] for row in stored(path))) == keys
        assert table.applied("p", log_id=None) == at


def test_a_commit_that_changes_rows_is_not_written_over(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    Table(path).append(own_rows("a"), stamp(1))
    late = Table(path)
    write_deltalake(path, own_rows("b"), mode="append")
    with pytest.raises(CommitFailedError):
        late.replace(own_rows("c"), stamp(2))
    assert sorted(row["_key"] for row in stored(path)) == ["a", "b"]


def test_a_row_that_is_kept_alone_goes_on_when_its_table_was_tidied(tmp_path: Path) -> None:
    """By whoever keeps it, or by another: neither commit is one of its own."""
    path = str(tmp_path / "t")
    kept = Table(path)
    for until, other in ((1, kept), (2, kept), (3, Table(path))):
        kept.replace(own_rows("a"), stamp(until))
        other.reload()
        write_deltalake(path, own_rows("b"), mode="append")
        kept.reload()
        assert other.compact()[0] == 2
    kept.replace(own_rows("a"), stamp(4))
    assert len(stored(path)) == 1


def test_tidying_is_due_once_for_each_multiple_that_commits_have_passed() -> None:
    assert [at for at in range(1, 9) if due(range(at, at + 1), 3)] == [3, 6]
    assert due(range(2, 5), 3)
    assert not due(range(4, 6), 3)
    assert not due(range(1, 100), 0)
    assert not due(range(3, 3), 3)


def no_leftovers() -> int:
    raise OSError


def test_tidying_that_fails_is_said_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), config)

    def fail(_: Table) -> None:
        raise OSError

    for until in (2, 3):
        Table(str(tmp_path / "t")).replace(own_rows("a"), stamp(until))
    as_of_days_ago(tmp_path / "t", 8)
    files = parquet_in(tmp_path / "t")
    with monkeypatch.context() as patched:
        patched.setattr(Table, "compact", fail)
        found = tidy("fails", config, Table(config.path), leftovers=lambda: 5)
    assert found.failed == "joining files: OSError"
    assert found.deleted == len(files - parquet_in(tmp_path / "t")) + 5 > 5, "the rest is done"
    assert len(rows_of(tmp_path / "t")) == 1
    assert untidied("fails") == 1
    tidy("fails", config, Table(config.path), compact=False, leftovers=lambda: 0)
    assert untidied("fails") == 1, "what failed was not done yet"
    tidy("fails", config, Table(config.path), leftovers=no_leftovers)
    assert untidied("fails") == 1, "joined by now, and another step failed"
    tidy("fails", config, Table(config.path))
    assert untidied("fails") == 1
    tidy("fails", config, Table(config.path), leftovers=lambda: 0)
    assert untidied("fails") == 0


def test_a_target_that_does_not_exist_is_refused_by_naming_what_does() -> None:
    with pytest.raises(ValueError, match=r"cannot go to 'moon'; what exists is: 'audit', 'c"):
        config_class("moon")


def test_collections_never_share_a_folder_nor_hide_in_one() -> None:
    config = TablePipelineConfig.model_validate({"source": "shop", "path": "lake/"})
    names = ["orders", "a/b", "a~2fb", "_hidden", "..", "ä", "system.views", "a b"]
    folders = [config.table_path(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[:4] == ["lake/orders", "lake/a~2fb", "lake/a~7e2fb", "lake/~5fhidden"]
    assert folders[4] == "lake/~2e."


def test_an_error_that_spark_turned_into_text_is_itself_again() -> None:
    text = "Traceback ...\n  File x\npenstock.errors.TrimmedError: the entries are gone\n at java"
    found = own_error(RuntimeError(text), pipeline="p")
    assert isinstance(found, TrimmedError)
    assert str(found) == "the entries are gone"
    other = own_error(RuntimeError("boom\na document"), pipeline="p")
    assert type(other) is PipelineError
    assert "a document" not in str(other)
