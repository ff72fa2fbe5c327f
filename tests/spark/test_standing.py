"""A pipeline goes on where its tables stand, or says why it does not; it never leaves a hole."""

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from msgspec import structs

from penstock.errors import HistoryTrimmedError, PipelineChangedError, StreamChangedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import (
    ChangelogPipelineConfig,
    HistoryPipelineConfig,
    LakePipelineConfig,
    TablePipelineConfig,
    ViewPipelineConfig,
)
from penstock.spark.destinations import config_class
from penstock.spark.overtaken import way_back
from penstock.spark.plan import begins
from penstock.spark.table.lake import Folders
from penstock.spark.table.standing import (
    Standing,
    StandingTable,
    decide_start,
)
from penstock.spark.views import tables_of
from tests.spark.changelogs import add, changelog, started
from tests.spark.histories import history
from tests.spark.tables import Entries, apply, pipeline, put, version_of

LOG = 0xFEDC_BA98_7654_3210


def bounds(trimmed: int = 0, log_id: int = LOG) -> Bounds:
    return Bounds(
        log_id=log_id,
        trimmed=trimmed,
        trimmed_check=7 if trimmed else 0,
        head=1000,
        head_commit=1000,
        head_check=9,
        ancestors=(),
    )


def config(
    *collections: str, start: str = "beginning", source: str = "shop"
) -> TablePipelineConfig:
    return TablePipelineConfig.model_validate(
        {"source": source, "collections": collections, "path": "lake", "start": start}
    )


STANDING = Standing(
    pipeline="p",
    source="shop",
    collections=("orders", "lines"),
    progress=Progress(LOG, 500, 5),
    tables={"orders": 500, "lines": 400},
)


def start(
    config: LakePipelineConfig,
    *,
    standing: Standing | None = STANDING,
    at: Bounds | None = None,
    name: str = "p",
    has: dict[str, int] | None = None,
) -> int:
    applied = {"orders": 500, "lines": 400} if has is None else has
    return decide_start(
        config,
        name,
        standing=standing,
        bounds=at or bounds(),
        applied=lambda collection: applied.get(collection, 0),
    ).after.sequence


def test_a_pipeline_goes_on_where_it_stood_even_if_retention_has_passed_it() -> None:
    """P7: what is gone is for the log to say, not for us to step over."""
    assert start(config("orders", "lines")) == 500
    assert start(config("lines", "orders", start="oldest")) == 500
    assert start(config("orders", "lines", start="oldest"), at=bounds(800)) == 500


def test_a_new_pipeline_has_everything_or_is_told_that_it_cannot() -> None:
    assert start(config("orders"), standing=None) == 0
    with pytest.raises(HistoryTrimmedError, match="first 800 entries"):
        start(config("orders"), standing=None, at=bounds(800))
    assert start(config("orders", start="oldest"), standing=None, at=bounds(800)) == 800


@pytest.mark.parametrize("collections", [("orders", "lines", "refunds"), ()])
def test_a_collection_that_was_added_is_not_begun_in_the_middle(collections: Any) -> None:
    with pytest.raises(PipelineChangedError, match="added"):
        start(config(*collections))
    assert start(config(*collections, start="oldest")) == 0


def test_collections_may_be_left_out_and_are_then_new_again() -> None:
    three = structs.replace(STANDING, collections=("orders", "lines", "refunds"))
    assert start(config("orders", "lines"), standing=three) == 500
    assert start(config("orders", "lines"), standing=structs.replace(STANDING, collections=())) == (
        500
    )


@pytest.mark.parametrize("has", [{"orders": 500}, {"orders": 500, "lines": 399}])
def test_a_table_that_is_gone_or_older_than_it_was_is_not_filled_from_the_middle(
    has: dict[str, int],
) -> None:
    with pytest.raises(PipelineChangedError, match="the table of lines"):
        start(config("orders", "lines"), has=has)
    assert start(config("orders", "lines", start="oldest"), has=has) == 0
    assert start(config("orders", "lines", start="oldest"), has=has, at=bounds(300)) == 300


@pytest.mark.parametrize("begin", ["beginning", "oldest"])
@pytest.mark.parametrize(
    ("collections", "has"),
    [(("orders", "lines", "refunds"), None), (("orders", "lines"), {"orders": 500})],
    ids=["added", "gone"],
)
def test_what_retention_took_from_a_table_is_not_stepped_over_for_another(
    collections: tuple[str, ...], has: dict[str, int] | None, begin: str
) -> None:
    """What is between 500 and 800 is in no table: reading from 500 stops with TRIMMED."""
    assert start(config(*collections, start=begin), has=has, at=bounds(800)) == 500


@pytest.mark.parametrize("begin", ["beginning", "oldest"])
def test_other_rows_never_go_into_the_same_tables(begin: str) -> None:
    one = structs.replace(STANDING, collections=("orders",), tables={"orders": 500})
    with pytest.raises(PipelineChangedError, match="those of pipeline p"):
        start(config("orders", "lines", start=begin), name="renamed")
    with pytest.raises(PipelineChangedError, match="source"):
        start(config("orders", "lines", start=begin, source="crm"))
    for collections in [("orders", "lines"), ("lines",), ()]:
        with pytest.raises(PipelineChangedError, match="collections"):
            start(config(*collections, start=begin), standing=one)
    with pytest.raises(PipelineChangedError, match="collections"):
        start(config("orders", start=begin))
    with pytest.raises(StreamChangedError):
        start(config("orders", "lines", start=begin), at=bounds(log_id=7))


Kept = TablePipelineConfig | HistoryPipelineConfig | ChangelogPipelineConfig


def kept(to: str, path: Path, *collections: str, **more: Any) -> Kept:
    """A pipeline to `path` that says where it stands in one place, whatever it makes."""
    said = {"to": to, "source": "shop", "path": str(path), "standing": str(path / "_stands")}
    if to == "view":
        view = {**said, "query": "SELECT status, count(*) AS n FROM orders GROUP BY status"}
        return tables_of(ViewPipelineConfig.model_validate(view))
    config = config_class(to).model_validate({**said, "collections": collections, **more})
    assert isinstance(config, Kept)
    return config


def stands(config: Kept) -> None:
    """The pipeline has come somewhere."""
    row = StandingTable(config, "p")
    row.start(bounds())
    row.advance(Progress(LOG, 5, 5), {}, batch_id=0)
    row.save(batch_id=0)


KINDS = ("table", "history", "changelog", "view")


@pytest.mark.parametrize("begin", ["beginning", "oldest"])
@pytest.mark.parametrize("now", KINDS)
@pytest.mark.parametrize("was", KINDS)
def test_what_was_made_of_the_changes_is_not_taken_for_anything_else(
    tmp_path: Path, was: str, now: str, begin: str
) -> None:
    """A table does not have what a changelog, at the same path, is past."""
    stands(kept(was, tmp_path, "orders"))
    again = StandingTable(kept(now, tmp_path, "orders", start=begin), "p")
    if was == now:
        assert again.start(bounds()).after.sequence == 5
    else:
        with pytest.raises(PipelineChangedError, match=f"with to = '{was}', and now it says"):
            again.start(bounds())


def test_a_changelog_of_one_format_is_not_gone_on_with_in_the_other(tmp_path: Path) -> None:
    stands(kept("changelog", tmp_path))
    other = StandingTable(kept("changelog", tmp_path, format="parquet"), "p")
    with pytest.raises(PipelineChangedError, match="'delta', and now it says format = 'parquet'"):
        other.start(bounds())


def test_a_changelog_that_never_said_what_it_is_is_known_by_its_one_table() -> None:
    """As the row was until it said so."""
    before = structs.replace(STANDING, collections=(), tables={"": 500})
    with pytest.raises(PipelineChangedError, match="is a changelog, and now it says to = 'table'"):
        start(config(), standing=before, has={"": 500})
    as_before = kept("changelog", Path("lake"))
    assert start(as_before, standing=before, has={"": 500}) == 500
    assert start(config(), standing=structs.replace(STANDING, collections=())) == 500


def test_a_table_of_anything_else_is_not_written_over_by_where_a_pipeline_stands(
    tmp_path: Path,
) -> None:
    chosen = kept("table", tmp_path, "orders")
    write_deltalake(chosen.standing_path, pa.table({"mine": [1]}))
    with pytest.raises(PipelineChangedError, match="is not its standing"):
        StandingTable(chosen, "p")
    assert DeltaTable(chosen.standing_path).to_pyarrow_table().to_pylist() == [{"mine": 1}]


@pytest.mark.parametrize("was", ["history", "changelog"])
def test_a_table_of_versions_or_of_entries_is_not_opened_as_one_of_rows(
    tmp_path: Path, was: str
) -> None:
    """Also where nothing says what the pipeline was."""
    there, entries = tmp_path / "t", Entries()
    entries.commit(put(1, n=1))
    if was == "history":
        apply(entries.table(), history(there, "orders"))
    else:
        add(started(changelog(there, "orders")), entries.table())
    with pytest.raises(PipelineChangedError, match="so it is none of current rows"):
        Folders(pipeline(there), "p").table("orders")


def test_the_place_is_kept_with_the_tables_and_only_moves_with_them(tmp_path: Path) -> None:
    chosen = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1))
    standing = StandingTable(chosen, "p")
    assert standing.start(bounds()).after == Progress(LOG, 0, 0)
    result = apply(entries.table(), chosen)
    standing.advance(Progress(LOG, 1, 3), result.tables, batch_id=0)
    again = StandingTable(chosen, "p").start(bounds(trimmed=900))
    assert (again.after, again.tables) == (Progress(LOG, 1, 3), {"orders": 1})
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    with pytest.raises(PipelineChangedError, match="the table of orders"):
        StandingTable(chosen, "p").start(bounds())


def test_a_row_that_another_driver_made_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    chosen = pipeline(tmp_path / "t")
    first, second = StandingTable(chosen, "p"), StandingTable(chosen, "p")
    first.start(bounds())
    second.start(bounds())
    for sequence in (4, 8):
        first.advance(Progress(LOG, sequence, 1), {"orders": 0}, batch_id=0)
    with pytest.raises(CommitFailedError):
        second.advance(Progress(LOG, 4, 1), {"orders": 0}, batch_id=0)
    assert StandingTable(chosen, "p").start(bounds()).after.sequence == 8


def test_a_pipeline_that_has_nothing_to_apply_moves_on_without_a_write_per_batch(
    tmp_path: Path,
) -> None:
    chosen = pipeline(tmp_path / "t")
    standing = StandingTable(chosen, "p")
    standing.start(bounds())
    for sequence in range(1, 50):
        standing.advance(Progress(LOG, sequence, 1), {}, batch_id=sequence)
    standing.save(batch_id=50)
    assert StandingTable(chosen, "p").start(bounds()).after.sequence == 49
    assert version_of(chosen.standing_path) <= 2


@pytest.mark.parametrize("to", ["table", "history"])
def test_a_plan_begins_where_a_run_would_even_if_retention_has_passed_it(
    tmp_path: Path, to: str
) -> None:
    """And whether or not the service knows the pipeline."""
    said = {"to": to, "source": "shop", "collections": ["orders"], "path": str(tmp_path / "t")}
    config = config_class(to).model_validate(said)
    assert isinstance(config, TablePipelineConfig | HistoryPipelineConfig)
    row = StandingTable(config, "p")
    row.start(bounds())
    row.advance(Progress(LOG, 5, 5), {}, batch_id=0)
    row.save(batch_id=0)
    assert begins("p", config, bounds(trimmed=9))[0].sequence == 5


@pytest.mark.slow
def test_many_batches_leave_one_row(tmp_path: Path) -> None:
    chosen = pipeline(tmp_path / "t", history=0.001)
    standing = StandingTable(chosen, "p")
    standing.start(bounds())
    dice = random.Random(1)
    for sequence in range(1, 120):
        standing.advance(
            Progress(LOG, sequence, dice.randrange(9)), {"orders": 0}, batch_id=sequence
        )
    assert StandingTable(chosen, "p").start(bounds()).after.sequence == 119


def test_a_table_that_goes_while_the_pipeline_runs_is_noticed(tmp_path: Path) -> None:
    chosen = pipeline(tmp_path / "t")
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    tables = apply(entries.table(0, 1), chosen).tables
    assert tables == {"orders": 1}
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(PipelineChangedError, match="the table of orders"):
        apply(entries.table(1), chosen, tables=tables)
    assert not (tmp_path / "t").exists()


def test_a_new_pipeline_that_loads_from_the_source_begins_at_the_head_and_says_so_at_once(
    tmp_path: Path,
) -> None:
    """What the log told before is in the source; what it tells from there on must be read, though
    the driver dies before the first batch."""
    loads = config("orders").model_copy(update={"first_load": "source"})
    assert start(loads, standing=None, at=bounds(800), has={}) == 1000
    assert start(loads, standing=structs.replace(STANDING, collections=("orders",))) == 500
    there = pipeline(tmp_path / "t", first_load="source")
    standing = StandingTable(there, "p")
    standing.start(bounds(800))
    assert StandingTable(there, "p").read() is None
    standing.settle()
    kept = StandingTable(there, "p").read()
    assert kept is not None
    assert kept.progress == standing.progress == Progress(LOG, 1000, 9)
    later = StandingTable(there, "p")
    assert later.start(structs.replace(bounds(800), head=2000)).after.sequence == 1000
    version = version_of(Path(there.standing_path))
    later.settle()
    assert version_of(Path(there.standing_path)) == version


def test_who_keeps_tables_in_a_catalog_is_told_of_another_catalog_and_of_no_path() -> None:
    """Its configuration would refuse a path."""
    in_catalog = TablePipelineConfig.model_validate(
        {"source": "shop", "collections": ["orders", "lines"], "catalog": "main.sales"}
    )
    one = in_catalog.model_copy(update={"collections": ("orders",)})
    cases: list[tuple[TablePipelineConfig, dict[str, Any]]] = [
        (in_catalog.model_copy(update={"source": "other"}), {}),
        (in_catalog, {"name": "q"}),
        (in_catalog, {"at": bounds(log_id=1)}),
        (in_catalog, {"has": {"orders": 500}}),
        (in_catalog.model_copy(update={"collections": ("orders", "lines", "more")}), {}),
        (one, {}),
        *((in_catalog, {"standing": structs.replace(STANDING, to=to)}) for to in ("view", "audit")),
        (in_catalog, {"standing": structs.replace(STANDING, tables={"": 500})}),
    ]
    for config, more in cases:
        with pytest.raises((PipelineChangedError, StreamChangedError)) as refused:
            start(config, **more)
        assert "path" not in str(refused.value), more
        assert re.search("(a new|another) catalog", str(refused.value)), more
    assert "a new catalog" in way_back("p", in_catalog)
    assert "path" not in way_back("p", in_catalog)
    for config, more in cases:
        in_folders = config.model_copy(update={"catalog": None, "path": "lake"})
        with pytest.raises((PipelineChangedError, StreamChangedError)) as refused:
            start(in_folders, **more)
        assert re.search("(a new|another) path", str(refused.value)), more
    assert "a new path" in way_back("p", pipeline(Path("lake")))
