"""What the tables promise to whoever else works with them, and what a configuration may say."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.errors import PipelineError, TrimmedError
from penstock.spark.config import TablePipelineConfig, config_class
from penstock.spark.raised import own_error
from penstock.spark.table.delta import Stamp, Table
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.table.upkeep import due, tidy
from tests.spark.tables import Entries, apply, pipeline, put, rows_of


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


def test_two_drivers_that_apply_the_same_batch_cannot_both_commit(tmp_path: Path) -> None:
    Table(str(tmp_path)).append(own_rows("a"), stamp(1))
    first, second = Table(str(tmp_path)), Table(str(tmp_path))
    first.append(own_rows("b"), stamp(2))
    with pytest.raises(CommitFailedError) as refused:
        second.append(own_rows("b"), stamp(2))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2
    assert "one driver per pipeline" in str(own_error(refused.value, pipeline="p"))


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


def test_tidying_is_due_once_for_each_multiple_that_commits_have_passed() -> None:
    assert [at for at in range(1, 9) if due(range(at, at + 1), 3)] == [3, 6]
    assert due(range(2, 5), 3)
    assert not due(range(4, 6), 3)
    assert not due(range(1, 100), 0)
    assert not due(range(3, 3), 3)


def test_tidying_that_fails_is_said_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, n=1))
    apply(entries.table(), config)

    def fail(_: Table) -> None:
        raise OSError

    monkeypatch.setattr(Table, "compact", fail)
    assert tidy("p", config, Table(config.path)).failed == "OSError"
    assert len(rows_of(tmp_path / "t")) == 1


def test_a_target_that_does_not_exist_is_refused_by_naming_what_does() -> None:
    with pytest.raises(ValueError, match=r"cannot go to 'moon'; what exists is: 'table', 'a"):
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
