"""A collection of more rows than memory holds is renamed in several commits, and is then what it
is after one; a driver that is killed between any two of them changes nothing of that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.history.delta import VersionTable
from penstock.spark.table import slices
from penstock.spark.table.delta import Table
from penstock.spark.table.plan import KEY
from penstock.spark.table.slices import castable, in_slices, whole_keys
from tests.spark.elements import exploding
from tests.spark.histories import history
from tests.spark.tables import LOG_ID, Entries, apply, change, pipeline, put, schema_event

Config = TablePipelineConfig | HistoryPipelineConfig
COLLECTIONS: Final = ("orders", "archive")
COMMITS: Final = {
    Table: ("merge", "insert", "rewrite", "append", "empty", "relabel"),
    VersionTable: ("put", "put_wider"),
}


class PowerCutError(BaseException):
    """No error handling sees it coming."""


class Commits:
    """Counts what is committed to tables of collections, and dies behind one of those commits."""

    def __init__(self, patched: pytest.MonkeyPatch, *, dies_at: int = 0) -> None:
        self.count = 0
        self.slices = 0
        """How many brought rows into `archive`."""
        self._dies_at = dies_at
        self._within = False
        for kind, names in COMMITS.items():
            for name in names:
                patched.setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, act: Callable[..., None]) -> Callable[..., None]:
        def acts(table: Table, *given: Any, **named: Any) -> None:
            if self._within or Path(table.path).name not in COLLECTIONS:
                act(table, *given, **named)
                return
            before, self._within = table.version, True
            try:
                act(table, *given, **named)
            finally:
                self._within = False
            if table.version == before:
                return
            self.count += 1
            is_one = act.__name__ not in {"empty", "relabel"}
            self.slices += is_one and Path(table.path).name == "archive"
            if self.count == self._dies_at:
                raise PowerCutError

        return acts


def elements(path: Path, *collections: str) -> TablePipelineConfig:
    return exploding(path, *collections)


MAKERS: Final = [pipeline, history, elements]


def a_rename(*, to: dict[str, str]) -> tuple[Entries, int]:
    """A log whose last commits rename `orders`, and change rows behind that; and how long it was
    before.

    Of its rows one is of another database, one is stale, one does not fit where it comes to, and
    one makes a column there wider.
    """
    entries = Entries()
    there: dict[str, Any] = {"database": to["db"], "collection": to["coll"]}
    entries.commit(
        change(9, "insert", {"_id": 9, "n": 9, "note": 1, "items": [0]}, **there),
        change(1, "insert", {"_id": 1, "n": 9, "note": 1, "items": [0]}, **there),
    )
    elsewhere: dict[str, Any] = {"database": "other", "collection": to["coll"]}
    entries.commit(change(1, "insert", {"_id": 1, "n": 5, "items": [5]}, **elsewhere))
    entries.commit(put(1, n=1, items=[1, 2]), put(2, n=2, items=[3, 4]))
    entries.commit(put(5, n=1 << 40, items=[7], more="x"), put(6, n=6, note="text", items=[8]))
    entries.commit(change(7, "insert", {"_id": 7, "n": 7, "items": [7]}, database="other"))
    entries.commit(put(2, n="text", items=[1]))
    before = entries.head
    entries.commit(schema_event("rename", to=to))
    entries.commit(put(1, n=3, items=[3]), change(9, "insert", {"_id": 9, "items": [4]}, **there))
    return entries, before


def applied(entries: Entries, config: Config, before: int) -> None:
    """Up to the rename; the last change, which does not fit, comes when its row is there."""
    apply(entries.table(0, before - 1), config)
    apply(entries.table(before - 1, before), config)


def stored(path: Path) -> dict[str, list[str]]:
    """All that the tables of these collections have, and the rejects: of each row the columns that
    it has something in."""
    found: dict[str, list[str]] = {}
    for name in (*COLLECTIONS, "_penstock_rejects"):
        if not DeltaTable.is_deltatable(str(path / name)):
            continue
        table = DeltaTable(str(path / name))
        rows = [
            {column: value for column, value in row.items() if value is not None}
            for row in table.to_pyarrow_table().to_pylist()
        ]
        types = sorted((one.name, str(one.type)) for one in table.schema().fields)
        found[name] = sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)
        found[f"types of {name}"] = list(map(str, types))
    return found


def of_a_row_each(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(slices, "SLICE_BYTES_MAX", 1)


def test_a_slice_is_of_the_bytes_that_it_may_have_or_of_one_row() -> None:
    rows = pa.table(
        {"key": [f"{at:03}" for at in range(100)], "text": ["x" * 90] * 99 + ["x" * 5000]}
    )
    for size in (1, 1000, 3000, 1 << 20):
        found = list(in_slices(rows.to_batches(7), nothing=rows.slice(0, 0), bytes_max=size))
        assert [is_last for _, is_last in found] == [False] * (len(found) - 1) + [True]
        assert all(one.nbytes <= size or one.num_rows == 1 for one, _ in found)
        assert pa.concat_tables([one for one, _ in found]).equals(rows)
        assert len(found) < 2 * -(-rows.nbytes // size) + 2
    assert list(in_slices([], nothing=rows.slice(0, 0), bytes_max=1)) == [(rows.slice(0, 0), True)]


@pytest.mark.parametrize("size", [1, 400, 2000, 1 << 20])
def test_the_rows_of_a_key_are_in_one_slice_wherever_they_are(size: int) -> None:
    keys = [f"key {at % 10}" for at in range(100)]
    rows: Any = pa.table({KEY: keys, "element": [at // 10 for at in range(100)]})
    nothing = rows.slice(0, 0)
    found: list[Any] = list(whole_keys(lambda: rows.to_batches(3), nothing=nothing, bytes_max=size))
    assert [is_last for _, is_last in found] == [False] * (len(found) - 1) + [True]
    keys_of: list[set[str]] = [{*one[KEY].to_pylist()} for one, _ in found]
    assert sorted(key for some in keys_of for key in some) == sorted({*keys})
    order: Any = [(KEY, "ascending"), ("element", "ascending")]
    joined: Any = pa.concat_tables([one for one, _ in found])
    assert joined.sort_by(order).equals(rows.sort_by(order))
    assert len(found) == min(100, -(-rows.nbytes // size))
    assert list(whole_keys(list, nothing=nothing, bytes_max=1)) == [(nothing, True)]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_cast_in_pieces_of_less_text_than_an_array_can_have(kind: pa.DataType) -> None:
    """Cast whole, 8192 texts of 300 kB are a broken array."""
    texts = ["x" * (at % 7 * 10) if at % 5 else None for at in range(50)]
    views: Any = pa.array(texts, pa.string()).cast(kind)
    rows = pa.record_batch({"n": list(range(50)), "text": views}).slice(3, 40)
    for most in (1, 50, 300, 1 << 20):
        pieces = list(castable(rows, bytes_max=most))
        assert pa.Table.from_batches(pieces).to_pylist() == rows.to_pylist()
        piece: Any
        for piece in pieces:
            told: list[Any] = piece["text"].to_pylist()
            assert sum(len(one or "") for one in told) <= most or piece.num_rows == 1
    assert len(list(castable(rows))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("to", [{"db": "db", "coll": "archive"}, {"db": "x", "coll": "orders"}])
def test_a_rename_in_many_commits_ends_as_one_in_a_single_commit(
    tmp_path: Path, make: Any, to: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, before = a_rename(to=to)
    configs: dict[str, Config] = {}
    counts: dict[str, int] = {}
    for name in ("one", "many"):
        configs[name] = make(tmp_path / name, *COLLECTIONS)
        applied(entries, configs[name], before)
        with monkeypatch.context() as patched:
            if name == "many":
                of_a_row_each(patched)
            commits = Commits(patched)
            apply(entries.table(before, before + 1), configs[name])
            counts[name] = commits.slices if to["coll"] == "archive" else commits.count
        apply(entries.table(before + 1), configs[name])
    assert stored(tmp_path / "many") == stored(tmp_path / "one")
    if to["coll"] == "archive" or make is history:
        assert counts["one"] == 1
        assert counts["many"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("to", [{"db": "db", "coll": "archive"}, {"db": "x", "coll": "orders"}])
def test_a_rename_that_is_torn_behind_any_commit_of_many_comes_again_whole(
    tmp_path: Path, make: Any, to: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, before = a_rename(to=to)
    applied(entries, whole := make(tmp_path / "whole", *COLLECTIONS), before)
    apply(entries.table(before), whole)
    wanted, dies_at, torn = stored(tmp_path / "whole"), 0, True
    while torn:
        dies_at += 1
        config = make(tmp_path / f"torn {dies_at}", *COLLECTIONS)
        applied(entries, config, before)
        with monkeypatch.context() as patched:
            of_a_row_each(patched)
            Commits(patched, dies_at=dies_at)
            try:
                apply(entries.table(before), config)
            except PowerCutError:
                pass
            else:
                torn = False
        with monkeypatch.context() as patched:
            if dies_at % 2:  # else with more memory than before
                of_a_row_each(patched)
            apply(entries.table(before), config)
        assert stored(tmp_path / f"torn {dies_at}") == wanted
    assert dies_at > (5 if to["coll"] == "archive" or make is history else 1)


def test_a_new_table_is_bound_to_its_log_with_the_first_slice_and_is_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    config = pipeline(tmp_path, *COLLECTIONS)
    apply(entries.table(0, 2), config)
    of_a_row_each(monkeypatch)
    with monkeypatch.context() as patched:
        Commits(patched, dies_at=2)
        with pytest.raises(PowerCutError):
            apply(entries.table(2), config)
    delta = DeltaTable(config.table_path("archive"))
    assert delta.to_pyarrow_table().num_rows == 1
    assert Table(config.table_path("archive")).applied("p", log_id=LOG_ID) == 0
    assert delta.transaction_version("penstock/p/log") is not None
    apply(entries.table(2), config)
    assert Table(config.table_path("archive")).applied("p", log_id=LOG_ID) == 3
