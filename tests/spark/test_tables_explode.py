"""A table of elements is what exploding the current documents gives, however batches fall."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.errors import BatchTooLargeError, PipelineChangedError
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.arrow import Field, arrow
from penstock.spark.table.chunk import INPUT_COLUMNS, reduce_entries
from penstock.spark.table.elements import Elements, element_columns, prepare_elements
from penstock.spark.table.plan import OPERATION, REJECTED, SEQUENCE, STALE
from penstock.spark.table.reduce import PUT
from tests.seeds import cases
from tests.spark.elements import (
    ITEMS,
    History,
    ends_of,
    exploding,
    histories,
    items_of,
    key_of,
    rows_in,
    rows_of_document,
    said_by,
)
from tests.spark.stepped import stepped
from tests.spark.tables import (
    Document,
    Entries,
    apply,
    change,
    pipeline,
    put,
    rejects_of,
    schema_event,
    version_of,
)

# --- without a table ----------------------------------------------------------------------------


ELEMENTS = Elements(pipeline="p", field="items", bytes_max=1 << 30)


class Memory:
    """A table of elements as a list of rows, and MERGE as its words are."""

    def __init__(self) -> None:
        self.rows: list[Document] = []
        self.schema = arrow.schema([])

    def apply(self, entries: pa.Table) -> list[int]:
        """Apply changes; the sequences of what is rejected."""
        chunk = reduce_entries(entries.select(INPUT_COLUMNS))
        whole = arrow.schema([*element_columns("items"), *self.schema])
        base = pa.Table.from_pylist(self.rows, schema=whole)
        write = prepare_elements(chunk, schema=self.schema, base=base, elements=ELEMENTS)
        names = {*element_columns("items").names, OPERATION}
        fields: list[Field] = list(write.changes.schema)
        self.schema = arrow.schema([one for one in fields if one.name not in names])
        changes: list[Document] = write.changes.to_pylist()
        kept: list[Document] = []
        for row in self.rows:
            said = [one for one in changes if _same(one, row)]
            assert len(said) <= 1
            if not said:
                kept.append(row)
            elif said[0][OPERATION] == STALE:
                kept.append(row | {REJECTED: said[0][REJECTED]})
        new = [one for one in changes if one[OPERATION] == PUT]
        self.rows = kept + [{k: v for k, v in one.items() if k != OPERATION} for one in new]
        return [one.sequence for one in write.rejects]


def _same(change: Document, row: Document) -> bool:
    if any(change[name] != row[name] for name in ("_key", "_database", "_source")):
        return False
    if change[OPERATION] == PUT:
        return bool(change["element"] == row["element"])
    return bool(row["element"] >= change["element"])


def stretches(history: History, data: st.DataObject) -> Iterator[pa.Table]:
    """The history in batches of any size."""
    ends, reached = ends_of(history.entries), 0
    while reached < history.entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        yield history.entries.table(reached, until)
        reached = until


@pytest.mark.slow
@given(histories(), st.data())
@settings(max_examples=cases(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_decided_of_batches_is_the_exploding_of_the_current_documents(
    history: History, data: st.DataObject
) -> None:
    table = Memory()
    for entries in stretches(history, data):
        assert table.apply(entries) == []
    assert said_by(table.rows) == history.current()
    assert all(row[REJECTED] is None for row in table.rows)


@pytest.mark.slow
@given(histories(hard=True), st.data())
@settings(max_examples=cases(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_document_is_what_it_is_or_what_it_was_and_its_last_change_is_in_the_rejects(
    history: History, data: st.DataObject
) -> None:
    """Never some elements of one version and some of another, nor of one that never was."""
    table, rejected = Memory(), set[int]()
    for entries in stretches(history, data):
        rejected.update(table.apply(entries))
    rows = said_by(table.rows)
    marks = {(row["_database"], row["_key"]): row[REJECTED] for row in table.rows}
    for (database, key), states in history.states.items():
        mine = {own: row for own, row in rows.items() if own[:2] == (database, key_of(key))}
        at, last = states[-1]
        if at in rejected:
            assert mine in [{}, *(rows_of_document(database, key, one) for _, one in states)]
            assert marks.get((database, key_of(key))) == (at if mine else None)
        else:
            assert mine == rows_of_document(database, key, last)
            assert marks.get((database, key_of(key))) is None


def test_a_document_is_as_stale_as_the_last_of_its_changes_that_a_batch_rejects() -> None:
    table, entries = Memory(), Entries()
    entries.commit(put(1, items=[1]))
    entries.commit(put(1, items=["x"]), change(1, "update"))
    assert table.apply(entries.table(0, 1)) == []
    assert table.apply(entries.table(1)) == [3, 2]
    assert [row[REJECTED] for row in table.rows] == [3]


# --- in Delta -----------------------------------------------------------------------------------


@pytest.mark.slow
@given(history=histories(drops=True), data=st.data())
@settings(max_examples=cases(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_table_is_the_exploding_of_the_current_documents_however_batches_fall_and_repeat(
    tmp_path_factory: pytest.TempPathFactory, history: History, data: st.DataObject
) -> None:
    """Invariant 7: batches of any size, repeated, overlapping, and old ones delivered again."""
    path = tmp_path_factory.mktemp("table") / "orders"
    config, entries = pipeline(path, transform=ITEMS), history.entries
    ends, reached = ends_of(entries), 0
    while reached < entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        after = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
        apply(entries.table(after, until), config, parts=data.draw(st.integers(1, 3)))
        reached = until
        again = data.draw(st.sampled_from([end for end in ends if end <= reached]))
        since = data.draw(st.sampled_from([end for end in [0, *ends] if end < again]))
        apply(entries.table(since, again), config)
    assert rows_in(path) == history.current()
    assert not DeltaTable.is_deltatable(f"{path}_rejects")


def test_a_document_with_fewer_elements_or_none_loses_the_rows_of_the_others(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[5, 6, 7]), put(2, items=[8]), put(3, items=[9, 9]))
    entries.commit(put(1, items=[6]), put(2, items=[]), put(3, items=None))
    entries.commit(put(1, n=1), put(2, items=[1, 2]))
    entries.commit(change(2, "delete"))
    found = [{'{"_id":1}': [5, 6, 7], '{"_id":2}': [8], '{"_id":3}': [9, 9]}]
    found += [{'{"_id":1}': [6]}, {'{"_id":2}': [1, 2]}, {}]
    for (after, until), rows in zip([(0, 3), (3, 6), (6, 8), (8, 9)], found, strict=True):
        apply(entries.table(after, until), exploding(path))
        assert items_of(path) == rows
        apply(entries.table(0, until), exploding(path))
        assert items_of(path) == rows


def test_the_columns_are_the_documents_with_the_element_in_the_arrays_place(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, n=1.5, items=[{"sku": "a", "count": 2}, None], name="x"))
    apply(entries.table(), exploding(path))
    table = DeltaTable(str(path)).to_pyarrow_table()
    own = ["_key", "_source", "_database", "_sequence", "_rejected_sequence", "element"]
    assert table.schema.names == [*own, "_id", "n", "items", "name"]
    assert rows_in(path) == {
        ("db", '{"_id":1}', 0): {
            "_id": 1,
            "n": 1.5,
            "items": '{"sku":"a","count":2}',
            "name": "x",
        },
        ("db", '{"_id":1}', 1): {"_id": 1, "n": 1.5, "name": "x"},
    }


def test_a_batch_that_changes_no_row_is_applied_all_the_same(tmp_path: Path) -> None:
    """What is in the past of a document without rows must not come back with a late batch."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[1]))
    entries.commit(put(2, items=[2]))
    entries.commit(put(2, items=[]))
    apply(entries.table(0, 1), exploding(path))
    assert apply(entries.table(1), exploding(path)).tables == {"orders": 3}
    apply(entries.table(1, 2), exploding(path))
    assert items_of(path) == {'{"_id":1}': [1]}


def test_documents_without_elements_alone_make_a_table_that_has_their_place(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[]), put(2))
    assert apply(entries.table(), exploding(path)).tables == {"orders": 2}
    entries.commit(put(1, items=[4]))
    apply(entries.table(2), exploding(path))
    assert items_of(path) == {'{"_id":1}': [4]}


def test_an_element_that_fits_no_column_is_named_and_its_document_stays_as_it_was(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[5, 6]))
    entries.commit(put(1, items=[7, "x", "y"]), put(2, items=["z"]), put(3, items=[1]))
    entries.commit(change(1, "update", update={"updatedFields": {"n": 1}}))
    apply(entries.table(0, 1), exploding(path))
    done = apply(entries.table(1, 4), exploding(path))
    assert (done.rows, done.rejected) == (1, 2)
    kept = {'{"_id":1}': [5, 6], '{"_id":3}': [1]}
    assert items_of(path) == kept
    why = "the field items holds a value of kind string, and its column is int32"
    rejects = [(row["sequence"], row["field"], row["reason"]) for row in rejects_of(path)]
    assert rejects == [(2, "items", f"{why} (element 1)"), (3, "items", f"{why} (element 0)")]
    assert marks_of(path) == {(1, 2), (4, None)}
    # Nothing is built on what is known to be old.
    apply(entries.table(4), exploding(path))
    assert (items_of(path), marks_of(path)) == (kept, {(1, 5), (4, None)})
    entries.commit(put(1, items=[8]))
    apply(entries.table(5), exploding(path))
    assert items_of(path) == kept | {'{"_id":1}': [8]}
    assert marks_of(path) == {(6, None), (4, None)}


def marks_of(path: Path) -> set[tuple[int, int | None]]:
    """Of each row: its sequence, and that of a change of it that was rejected."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return {(row[SEQUENCE], row[REJECTED]) for row in rows}


def test_a_field_that_becomes_no_array_is_rejected_where_steps_do_not_see_it(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[5]))
    entries.commit(change(1, "update", update={"updatedFields": {"items": 3}}))
    entries.commit(change(2, "insert", {"_id": 2, "items": {"a": 1}}))
    for at in range(3):
        apply(entries.table(at, at + 1), exploding(path))
    assert items_of(path) == {'{"_id":1}': [5]}
    assert [row["reason"] for row in rejects_of(path)] == ["the field items is no array"] * 2


def test_what_builds_on_a_document_without_elements_is_rejected(tmp_path: Path) -> None:
    """There is no row that says what else it is."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[]))
    entries.commit(change(1, "update", update={"updatedFields": {"items": [1]}}))
    apply(entries.table(0, 1), exploding(path))
    apply(entries.table(1), exploding(path))
    assert items_of(path) == {}
    (reject,) = rejects_of(path)
    assert (reject["sequence"], reject["reason"]) == (
        2,
        "it builds on a row that this table does not have",
    )


def test_columns_become_wider_under_the_rows_of_other_documents(tmp_path: Path) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[1, 2]), put(2, items=[3, 4]), put(3, items=[5]))
    entries.commit(put(1, items=[1 << 40]), put(3, items=["x"]), put(4, new=1, items=[6]))
    apply(entries.table(0, 3), exploding(path))
    apply(entries.table(3), exploding(path))
    items = {'{"_id":1}': [1 << 40], '{"_id":2}': [3, 4], '{"_id":3}': [5], '{"_id":4}': [6]}
    assert items_of(path) == items
    assert marks_of(path) == {(4, None), (2, None), (3, 5), (6, None)}
    config = exploding(path)
    with pytest.raises(PipelineChangedError):
        apply(entries.table(), pipeline(path))
    entries.commit(put(2, items=[7]))
    apply(entries.table(6), config)
    assert items_of(path) == items | {'{"_id":2}': [7]}


@pytest.mark.slow
def test_a_rename_hands_documents_over_and_a_drop_takes_their_rows(tmp_path: Path) -> None:
    config, entries = exploding(tmp_path, "orders", "archive"), Entries()
    old = change(9, "insert", {"_id": 9, "items": [0]}, collection="archive")
    entries.commit(old, put(1, n=1, items=[5, 6]), put(2, items=["x"]), put(3, items=[7]))
    entries.commit(put(4, items=[8]), put(4, items=[1, "x"]))
    apply(entries.table(0, 4), config)
    apply(entries.table(4), config)
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    entries.commit(put(1, items=[3]))
    for _ in range(2):
        apply(entries.table(6), config)
        assert items_of(tmp_path / "archive") == {'{"_id":1}': [5, 6], '{"_id":3}': [7]}
        assert items_of(tmp_path / "orders") == {'{"_id":1}': [3]}
    entries.commit(schema_event("rename", to={"db": "other", "coll": "orders"}))
    entries.commit(schema_event("drop", collection="archive"))
    apply(entries.table(8), config)
    assert rows_in(tmp_path / "orders") == {("other", '{"_id":1}', 0): {"_id": 1, "items": 3}}
    assert rows_in(tmp_path / "archive") == {}


def test_documents_that_a_rename_cannot_hand_over_are_in_the_rejects_and_stale_ones_stay_so(
    tmp_path: Path,
) -> None:
    config, entries = exploding(tmp_path, "orders", "archive"), Entries()
    old = change(9, "insert", {"_id": 9, "items": ["a"]}, collection="archive")
    entries.commit(old, put(1, n=1, items=[5, 6]), put(2, items=[], n=3))
    entries.commit(put(3, items=[None, None], n=4))
    entries.commit(put(3, items=[None], n="x"))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    for at in (3, 4, 5, 6):
        apply(entries.table(0, at), config)
    assert items_of(tmp_path / "archive") == {'{"_id":3}': [None, None]}
    assert marks_of(tmp_path / "archive") == {(6, 5)}
    assert rows_in(tmp_path / "orders") == {}
    (_, moved) = rejects_of(tmp_path)
    assert (moved["sequence"], moved["key"]) == (6, '{"_id":1}')
    assert json.loads(moved["full_document"]) == {"_id": 1, "n": 1, "items": [5, 6]}


def test_a_table_of_documents_or_of_another_array_is_refused(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, items=[1], lines=[2]))
    apply(entries.table(), pipeline(tmp_path / "documents"))
    apply(entries.table(), exploding(tmp_path / "items"))
    lines = pipeline(tmp_path / "items", transform=[{"explode": "lines"}])
    for config, said in (
        (exploding(tmp_path / "documents"), "rows of documents, and its steps make rows of the"),
        (pipeline(tmp_path / "items"), "of items, and its steps make rows of documents"),
        (lines, "elements of items, and its steps make rows of the elements of lines"),
    ):
        version = version_of(config.path)
        with pytest.raises(PipelineChangedError, match=said):
            apply(entries.table(), config)
        assert version_of(config.path) == version


def test_a_field_of_the_columns_name_is_rejected_and_a_step_can_rename_it(tmp_path: Path) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[5], Element="x"))
    apply(entries.table(), exploding(path))
    (reject,) = rejects_of(path)
    assert "another column that is called Element" in reject["reason"]
    steps = [{"rename": {"Element": "what"}}, *ITEMS]
    config = pipeline(tmp_path / "renamed", transform=steps)
    done, _ = stepped(entries.table(), config)
    apply(done, config)
    assert rows_in(tmp_path / "renamed") == {
        ("db", '{"_id":1}', 0): {"_id": 1, "items": 5, "what": "x"}
    }


def test_elements_that_come_to_more_than_memory_stop_the_pipeline_by_name(
    tmp_path: Path,
) -> None:
    """A document of 10 kB with a thousand elements is 10 MB of rows."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, text="x" * 10_000, items=[1] * 1_000))
    with pytest.raises(BatchTooLargeError, match="Nothing of it was written"):
        apply(entries.table(), exploding(path, max_bytes_per_batch=5_000_000))
    assert not DeltaTable.is_deltatable(str(path))
    apply(entries.table(), exploding(path, max_bytes_per_batch=20_000_000))
    assert len(rows_in(path)) == 1_000


@pytest.mark.parametrize("mixed", [[1, 2, 3, "n/a"], ["n/a", 1], [True, 1], ["s", 1, {"a": 1}]])
@pytest.mark.parametrize("apart", [True, False])
def test_an_array_of_many_kinds_that_comes_first_makes_a_column_of_json(
    tmp_path: Path, mixed: list[Any], apart: bool
) -> None:
    """And no column that only it, which is rejected, could have had a value in."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=mixed), put(2, items=[5, 6]))
    entries.commit(put(3, items=[7]))
    for after, until in ((0, 2), (2, 3)) if apart else ((0, 3),):
        apply(entries.table(after, until), exploding(path))
    found = rows_in(path)
    assert {own[2]: json.loads(row["items"]) for own, row in found.items() if "1" in own[1]} == (
        dict(enumerate(mixed))
    )
    assert [json.loads(found["db", key_of(key), 0]["items"]) for key in (2, 3)] == [5, 7]
    assert not DeltaTable.is_deltatable(f"{path}_rejects")


def test_an_array_of_many_kinds_that_comes_later_is_rejected(tmp_path: Path) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, items=[1, 2.5]), put(2, items=[3, "n/a"]), put(3, items=[7]))
    apply(entries.table(), exploding(path))
    assert [row["items"] for _, row in sorted(rows_in(path).items())] == [1.0, 2.5, 7.0]
    assert [row["reason"] for row in rejects_of(path)] == [
        "the field items holds a value of kind string, and its column is double (element 1)"
    ]


def test_a_rename_hands_over_more_than_a_batch_may_hold(tmp_path: Path) -> None:
    """Nothing could make it less: it is one event."""
    path, entries = tmp_path / "lake", Entries()
    config = exploding(path, "orders", "archive", max_bytes_per_batch=30_000)
    for key in range(4):
        entries.commit(put(key, text="x" * 1_000, items=[1] * 20))
        apply(entries.table(key, key + 1), config)
    to = {"db": "db", "coll": "archive"}
    entries.commit(schema_event("rename", to=to))
    apply(entries.table(4, 5), config)
    assert len(rows_in(path / "archive")) == 80


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"transform": [*ITEMS, {"drop": ["n"]}]}, "explode is the last step"),
        ({"transform": ITEMS * 2}, "one field of a collection can be exploded"),
        ({"transform": [{"explode": "Element"}]}, "rename = { element"),
        ({"transform": ITEMS, "path": "", "catalog": "sales"}, "set path instead"),
        ({"transform": ITEMS, "first_load": "source"}, "penstock snapshot"),
        ({"transform": ITEMS, "verify_every": "6h"}, "leave verify_every out"),
    ],
)
def test_what_explode_does_not_go_with_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TablePipelineConfig.model_validate({"source": "shop", "path": "t", **more})
