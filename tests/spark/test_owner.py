"""A table in a folder is of one pipeline: another one neither adds to it nor starts there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from penstock.errors import PipelineChangedError
from penstock.spark.changelogs import ChangelogTarget
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.table.delta import Table
from penstock.spark.table.owner import Commit, is_short
from penstock.spark.table.plan import OWN_COLUMNS
from penstock.spark.table.stamp import Stamp
from penstock.spark.tables import TableTarget
from tests.spark.changelogs import add, bounds, changelog, expected, rows_of, started
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, change, pipeline, put, version_of

KINDS = pytest.mark.parametrize("kind", [pipeline, history])


@pytest.fixture
def entries() -> Entries:
    made = Entries()
    made.commit(put(1, n=1), change(1, "insert", {"n": 2}, collection="lines"))
    made.commit(put(1, n=2))
    return made


def aside(config: Any, path: Path) -> Any:
    """The same, with what says where it stands elsewhere: so it is new."""
    return config.model_copy(update={"standing": str(path / "standing")})


def committed(*pipelines: str, path: Path) -> Table:
    table = Table(str(path))
    for name in pipelines:
        table.append(
            OWN_COLUMNS.empty_table(), Stamp(pipeline=name, log_id=1, after=0, until=1, batch=0)
        )
    return table


@KINDS
def test_a_table_of_another_pipeline_is_refused_by_its_name_before_anything_is_written(
    tmp_path: Path, entries: Entries, kind: Callable[..., Any]
) -> None:
    config = kind(tmp_path / "t", "orders", "lines")
    apply(entries.table(), config)
    versions = [version_of(config.table_path(one)) for one in config.collections]
    with pytest.raises(
        PipelineChangedError,
        match=r"orders is of pipeline p, .* Nothing was written.* a new path, or its name back",
    ):
        TableTarget("q", aside(config, tmp_path)).start(bounds(9))
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        apply(entries.table(), config, name="q")
    assert [version_of(config.table_path(one)) for one in config.collections] == versions
    assert not (tmp_path / "standing").exists()


@KINDS
def test_a_path_below_that_of_another_pipeline_is_its_table(
    tmp_path: Path, entries: Entries, kind: Callable[..., Any]
) -> None:
    apply(entries.table(), kind(tmp_path / "shop", "orders", "lines"))
    below = kind(tmp_path / "shop" / "orders", "orders")
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        TableTarget("q", below).start(bounds(9))


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_changelog_is_added_to_by_its_own_pipeline(
    tmp_path: Path, entries: Entries, form: str
) -> None:
    config = changelog(tmp_path / "c", format=form)
    add(started(config), entries.table(0, 2))
    other = ChangelogTarget("q", aside(config, tmp_path))
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        other.start(bounds(9))
    add(started(aside(config, tmp_path)), entries.table())
    assert rows_of(config) == expected(entries.table())


@KINDS
def test_the_same_name_goes_on_wherever_it_is_kept_that_it_stands(
    tmp_path: Path, entries: Entries, kind: Callable[..., Any]
) -> None:
    config: TablePipelineConfig | HistoryPipelineConfig = kind(tmp_path / "t", "orders", "lines")
    apply(entries.table(), config)
    moved = aside(config, tmp_path)
    assert TableTarget("p", moved).start(bounds(9)).sequence == 0
    assert apply(entries.table(), moved).rows == 0


def test_a_table_that_users_made_is_taken_and_not_that_of_whoever_wrote_there_first(
    tmp_path: Path,
) -> None:
    write_deltalake(tmp_path / "t", OWN_COLUMNS.empty_table())
    stamp = Stamp(pipeline="p", log_id=1, after=0, until=1, batch=0)
    Table(str(tmp_path / "t"), pipeline="p").append(OWN_COLUMNS.empty_table(), stamp)
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        Table(str(tmp_path / "t"), pipeline="q")


def test_pipelines_that_share_a_table_already_go_on(tmp_path: Path) -> None:
    committed("p", "q", path=tmp_path)
    assert Table(str(tmp_path), pipeline="p").applied("p", log_id=1) == 1
    assert Table(str(tmp_path), pipeline="q").applied("q", log_id=1) == 1
    with pytest.raises(PipelineChangedError, match="is of pipeline p, q"):
        Table(str(tmp_path), pipeline="r")


def test_a_table_that_another_pipeline_makes_meanwhile_is_refused_too(tmp_path: Path) -> None:
    late = Table(str(tmp_path), pipeline="q")
    version = committed("p", path=tmp_path).version
    stamp = Stamp(pipeline="q", log_id=1, after=0, until=1, batch=0)
    for _ in range(2):
        with pytest.raises(PipelineChangedError, match="is of pipeline p"):
            late.append(OWN_COLUMNS.empty_table(), stamp)
    assert version_of(tmp_path) == version


def test_whose_a_table_is_outlasts_its_commits(tmp_path: Path) -> None:
    """Delta cleans them up behind a checkpoint, which has their app transactions."""
    committed("a/b", path=tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        commit.unlink()
    assert DeltaTable(tmp_path).history() == []
    with pytest.raises(PipelineChangedError, match="is of pipeline a/b, as"):
        Table(str(tmp_path), pipeline="q")
    assert Table(str(tmp_path), pipeline="a/b").applied("a/b", log_id=1) == 1


def test_a_first_load_is_not_taken_for_that_of_another_pipeline(tmp_path: Path) -> None:
    config = pipeline(tmp_path / "t", first_load="source")
    committed("p", path=Path(config.load_path))
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        StoredPlan("q", config)


def commit(version: int, said: str) -> Commit:
    """By a pipeline (`ours`), by somebody else, or a RESTORE: to a version, or to a moment."""
    kind, _, to = said.partition(" ")
    name = "datetime" if kind == "moment" else "version"
    return Commit(
        version=version,
        at_ms=version * 10,
        operation="RESTORE" if to else "WRITE",
        parameters={name: to} if to else {},
        is_ours=kind == "ours",
    )


@pytest.mark.parametrize(
    ("commits", "short"),
    [
        ([], False),
        (["other"], False),
        (["ours", "ours"], False),
        (["ours", "ours", "restore 0"], True),
        (["ours", "ours", "restore 0", "other"], True),
        (["ours", "ours", "restore 0", "ours"], False),
        (["ours", "other", "restore 0"], False),
        (["ours", "ours", "restore 0", "restore 1"], False),
        (["ours", "ours", "restore 0", "restore 2"], True),
        (["ours", "ours", "moment 15"], False),
        (["ours", "ours", "moment 9"], True),
        (["ours", "unknown ?"], True),
    ],
)
def test_a_table_lacks_what_a_restore_took_and_nothing_wrote_again(
    commits: list[str], short: bool
) -> None:
    """A RESTORE to where a pipeline wrote last, as after somebody's mistake, takes nothing."""
    told = [commit(version, said) for version, said in enumerate(commits)]
    if commits and commits[-1] == "unknown ?":
        told[-1] = structs.replace(told[-1], operation="RESTORE", parameters={"timestamp": "?"})
    assert is_short(told[::-1]) is short
