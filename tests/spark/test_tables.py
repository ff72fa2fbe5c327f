"""Tables equal the fold of their collection's changes, however batches fall and repeat."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import (
    ChangesLostError,
    IncompleteCommitError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
)
from penstock.event import ChangeEvent
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.rows import gap_row
from penstock.wire import ARROW_SCHEMA
from tests.seeds import cases
from tests.spark.histories import history
from tests.spark.tables import (
    LOG_ID,
    Entries,
    apply,
    change,
    dotted,
    fold,
    gap,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
    version_of,
)

VALUES = st.fixed_dictionaries(
    {"n": st.integers(-(2**31), 2**31 - 1)},
    optional={
        "big": st.integers(2**31, 2**63 - 1),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "name": st.none() | st.text(max_size=5),
        "open": st.booleans(),
        "tags": st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=3),
        "address": st.dictionaries(st.sampled_from(["street", "zip"]), st.text(max_size=3)),
    },
)


@st.composite
def histories(draw: st.DrawFn) -> Entries:
    """Commits over few keys: whole documents, deltas, documents with unchanged fields, deletes,
    drops; as a source that always knows the row would tell them."""
    entries = Entries()
    live: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(draw(st.integers(1, 12))):
        events: list[ChangeEvent] = []
        if draw(st.integers(0, 9)) == 0:
            database = draw(st.sampled_from(["a", "b"]))
            live = {own: row for own, row in live.items() if own[0] != database}
            entries.commit(schema_event("drop", database=database))
            continue
        for _ in range(draw(st.integers(1, 4))):
            own = (draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 4)))
            database, key = own
            kinds = ["put", "delete", "delta", "unchanged"] if own in live else ["put", "delete"]
            kind = draw(st.sampled_from(kinds))
            document = {"_id": key, **draw(VALUES)}
            if kind == "delete":
                live.pop(own, None)
                events.append(change(key, "delete", database=database))
            elif kind == "put":
                live[own] = document
                events.append(change(key, "replace", document, database=database))
            elif kind == "delta":
                removed = [name for name in ("name", "price") if name in live[own]]
                update = {"updatedFields": {"n": document["n"]}, "removedFields": removed}
                live[own] = {**live[own], "n": document["n"]}
                events.append(change(key, "update", update=update, database=database))
            else:
                kept = [name for name in ("name", "tags") if name in live[own]]
                sent = {name: value for name, value in document.items() if name not in kept}
                live[own] = {**sent, **{name: live[own][name] for name in kept}}
                events.append(change(key, "update", sent, unchanged=kept, database=database))
        entries.commit(*events)
    return entries


@pytest.mark.slow
@given(entries=histories(), data=st.data())
@settings(max_examples=cases(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_table_is_the_fold_of_its_history_however_it_falls_into_batches(
    tmp_path_factory: pytest.TempPathFactory, entries: Entries, data: st.DataObject
) -> None:
    """Invariant 7: batches of any size, repeated, overlapping, and old ones delivered again."""
    path = tmp_path_factory.mktemp("table") / "orders"
    config = pipeline(path)
    whole = entries.table()
    ends = [
        row["sequence"]
        for row in whole.select(["sequence", "ends_commit"]).to_pylist()
        if row["ends_commit"]
    ]
    reached = 0
    while reached < entries.head:
        until = data.draw(st.sampled_from([end for end in ends if end > reached]))
        after = data.draw(st.sampled_from([end for end in [0, *ends] if end <= reached]))
        apply(entries.table(after, until), config, parts=data.draw(st.integers(1, 3)))
        reached = until
        if data.draw(st.booleans()):
            again = data.draw(st.sampled_from([end for end in ends if end <= reached]))
            apply(entries.table(0, again), config)
    if version_exists(path):
        assert rows_of(path) == fold(whole)
        assert not version_exists(Path(f"{path}_rejects"))


def version_exists(path: Path) -> bool:
    return DeltaTable.is_deltatable(str(path))


def test_a_field_whose_own_name_has_a_dot_is_none_of_an_object(tmp_path: Path) -> None:
    config, entries = pipeline(tmp_path / "t"), Entries()
    entries.commit(put(1, a={"c": 2}), put(2, a={"c": 3}), dotted(2))
    apply(entries.table(), config)
    entries.commit(dotted(1))
    apply(entries.table(3), config)
    assert rows_of(tmp_path / "t") == {
        ("db", '{"_id":1}'): {"_id": 1, "a": {"c": 2}, "a.b": 1},
        ("db", '{"_id":2}'): {"_id": 2, "a": {"c": 3}, "a.b": 1},
    }
    assert not version_exists(Path(f"{tmp_path / 't'}_rejects"))


def test_a_batch_that_was_applied_is_invisible_when_it_comes_again(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    config = pipeline(tmp_path / "t")
    first = apply(entries.table(), config)
    assert (first.rows, first.sequence) == (2, 2)
    version = version_of(tmp_path / "t")
    again = apply(entries.table(), config, batch_id=99)
    assert (again.rows, again.rejected) == (0, 0)
    assert version_of(tmp_path / "t") == version


def test_a_batch_that_changes_no_row_is_applied_all_the_same(tmp_path: Path) -> None:
    """What is in the past of a row that there is not must not come back with a late batch."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(2, n=2))
    entries.commit(change(2, "delete"))
    apply(entries.table(0, 1), pipeline(path))
    assert apply(entries.table(1), pipeline(path)).tables == {"orders": 3}
    apply(entries.table(1, 2), pipeline(path))
    assert [*rows_of(path).values()] == [{"_id": 1, "n": 1}]


def test_another_pipeline_name_and_another_log_are_refused(tmp_path: Path) -> None:
    """F10: sequences of another log say nothing about this table."""
    entries = Entries()
    entries.commit(put(1, n=1))
    config = pipeline(tmp_path / "t")
    apply(entries.table(), config)
    with pytest.raises(PipelineChangedError, match="is of pipeline p"):
        apply(entries.table(), config, name="q")
    with pytest.raises(StreamChangedError, match="fedcba9876543210"):
        apply(entries.table(), config, log_id=7)


def test_a_commit_that_lacks_a_row_or_was_altered_is_not_written(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    entries.commit(put(3, n=3))
    whole = entries.table()
    config = pipeline(tmp_path / "t")
    with pytest.raises(IncompleteCommitError, match="commit 1 was captured with 2 entries"):
        apply(whole.slice(1), config)
    at = whole.schema.get_field_index("check")
    checks: list[Any] = whole["check"].to_pylist()
    checks[2] ^= 1
    altered = whole.set_column(at, "check", pa.array(checks, pa.uint64()))
    with pytest.raises(IncompleteCommitError, match="commit 2"):
        apply(altered, config, parts=3)
    assert not version_exists(tmp_path / "t")


def test_a_commit_that_retention_overtook_while_it_was_read_is_not_whole_and_no_other_may_be(
    tmp_path: Path,
) -> None:
    """P7: who reads with failOnDataLoss = "false" gets a gap in the place of the rest."""
    entries, config = Entries(), pipeline(tmp_path / "t", on_gap="record")
    entries.commit(put(1))
    entries.commit(put(2), put(3), put(4))
    entries.commit(put(5))
    entries.commit(put(6), put(7))
    removed = gap_row(log_id=LOG_ID, after=2, until=4, check=0, columns=ARROW_SCHEMA.names)
    gap_there = pa.Table.from_batches([removed])
    broken = [entries.table(0, 2), gap_there, entries.table(4, 6)]
    with pytest.raises(IncompleteCommitError, match="commit 4"):
        apply(pa.concat_tables(broken), config)
    left = [entries.table(0, 2), gap_there, entries.table(4)]
    apply(pa.concat_tables(left), config, parts=2)
    assert {key for _, key in rows_of(tmp_path / "t")} == {
        f'{{"_id":{n}}}' for n in (1, 2, 5, 6, 7)
    }
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [4]


def test_keys_that_differ_only_in_type_or_database_are_different_rows(tmp_path: Path) -> None:
    """P11: 5 is not "5", and a tenant's rows are its own."""
    entries = Entries()
    entries.commit(put(5, n=1), change(5, "insert", {"_id": 5, "n": 2}, database="other"))
    entries.commit(change("5", "insert", {"n": 3}), change({"a": 5}, "insert", {"n": 4}))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert {(at, row["n"]) for at, row in rows_of(tmp_path / "t").items()} == {
        (("db", '{"_id":5}'), 1),
        (("other", '{"_id":5}'), 2),
        (("db", '{"_id":"5"}'), 3),
        (("db", '{"_id":{"a":5}}'), 4),
    }


# --- changes that build on the row --------------------------------------------------------------


def test_an_update_whose_look_up_found_nothing_is_applied_where_it_is_exact(
    tmp_path: Path,
) -> None:
    """P25: the update says what it set; a nested path is found in the row's own JSON."""
    entries = Entries()
    entries.commit(put(1, n=1, name="x", address={"zip": "1", "lines": ["a", "b", "c"]}))
    update = {
        "updatedFields": {"n": 2, "address.zip": "2", "address.lines.0": "z"},
        "removedFields": ["name"],
        "truncatedArrays": [{"field": "address.lines", "newSize": 2}],
    }
    config = pipeline(tmp_path / "t")
    apply(entries.table(), config)
    entries.commit(change(1, "update", update=update))
    apply(entries.table(1), config)
    assert rows_of(tmp_path / "t") == {
        ("db", '{"_id":1}'): {"_id": 1, "n": 2, "address": {"zip": "2", "lines": ["z", "b"]}}
    }


def test_a_row_that_an_update_cannot_reach_keeps_its_state_says_so_and_is_healed(
    tmp_path: Path,
) -> None:
    """P25: nothing is guessed. The later changes of a stale row do not build on it either."""
    path = tmp_path / "t"
    config = pipeline(path)
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(change(1, "update", update={"updatedFields": {"no.such": 2}}))
    apply(entries.table(), config)
    entries.commit(change(1, "update", update={"updatedFields": {"n": 3}}))
    apply(entries.table(2), config)
    table = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert [(row["n"], row["_sequence"], row["_rejected_sequence"]) for row in table] == [(1, 1, 3)]
    assert [row["sequence"] for row in rejects_of(path)] == [2, 3]
    assert "sequence 2, which was rejected" in rejects_of(path)[1]["reason"]
    entries.commit(put(1, n=4))
    apply(entries.table(3), config)
    table = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert [(row["n"], row["_sequence"], row["_rejected_sequence"]) for row in table] == [
        (4, 4, None)
    ]


def test_an_update_of_a_row_that_was_never_seen_is_a_reject_not_a_half_row(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(change(1, "update", update={"updatedFields": {"n": 2}}), put(2, n=1))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert list(rows_of(tmp_path / "t")) == [("db", '{"_id":2}')]
    assert json.loads(rejects_of(tmp_path / "t")[0]["update_description"]) == {
        "updatedFields": {"n": 2}
    }


# --- events about whole collections -------------------------------------------------------------


def test_a_dropped_collection_has_no_rows_but_those_that_came_after(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=1))
    entries.commit(schema_event("drop"))
    entries.commit(put(2, n=2))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert rows_of(tmp_path / "t") == {("db", '{"_id":2}'): {"_id": 2, "n": 2}}


def test_a_dropped_database_takes_only_its_own_rows_along(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), change(1, "insert", {"_id": 1, "n": 2}, database="other"))
    entries.commit(schema_event("dropDatabase", collection=""))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert list(rows_of(tmp_path / "t")) == [("other", '{"_id":1}')]


@pytest.mark.parametrize(
    ("make", "to"), [(TablePipelineConfig, "table"), (HistoryPipelineConfig, "history")]
)
@pytest.mark.parametrize("ends", [[4], [1, 4], [3, 4]])
def test_a_dropped_database_empties_every_table_where_no_collections_are_named(
    tmp_path: Path, make: Any, to: str, ends: list[int]
) -> None:
    """A source need not tell the drop of each table first: those of MySQL do not."""
    config = make(source="shop", path=str(tmp_path), to=to)
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(change(1, "insert", {"_id": 1}, collection="lines"))
    entries.commit(change(1, "insert", {"_id": 1}, collection="lines", database="other"))
    entries.commit(schema_event("dropDatabase", collection=""))
    known: dict[str, int] = {}
    for after, until in itertools.pairwise([0, *ends]):
        known |= apply(entries.table(after, until), config, tables=known).tables

    def current(collection: str) -> list[Any]:
        rows = DeltaTable(str(tmp_path / collection)).to_pyarrow_table().to_pylist()
        return [row["_database"] for row in rows if row.get("_current", True)]

    assert (current("orders"), current("lines")) == ([], ["other"])


def test_a_dropped_database_stops_who_does_not_say_which_tables_there_are(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event("dropDatabase", collection=""))
    config = TablePipelineConfig.model_validate({"source": "shop", "path": str(tmp_path)})
    with pytest.raises(PipelineError, match=r"at sequence 2 the database db is dropped"):
        apply(entries.table(), config)
    assert list(rows_of(tmp_path / "orders")) == [("db", '{"_id":1}')]


@pytest.mark.parametrize("batches", [1, 3])
def test_a_renamed_collection_takes_its_rows_to_its_new_table(tmp_path: Path, batches: int) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=1))
    entries.commit(change(9, "insert", {"_id": 9, "n": 9}, collection="archive"))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    entries.commit(put(1, n=3))
    config = pipeline(tmp_path, "orders", "archive")
    edges = [0, entries.head] if batches == 1 else [0, 3, 4, 5]
    for after, until in itertools.pairwise(edges):
        apply(entries.table(after, until), config)
    apply(entries.table(), config)
    assert rows_of(tmp_path / "orders") == {("db", '{"_id":1}'): {"_id": 1, "n": 3}}
    assert rows_of(tmp_path / "archive") == {
        ("db", '{"_id":1}'): {"_id": 1, "n": 1},
        ("db", '{"_id":2}'): {"_id": 2, "n": 1},
    }


def all_of(path: Path) -> list[str]:
    """All rows of a table, whatever it keeps."""
    return sorted(map(str, DeltaTable(str(path)).to_pyarrow_table().to_pylist()))


@pytest.mark.parametrize("make", [pipeline, history], ids=["table", "history"])
def test_a_table_that_is_lost_is_not_made_again_of_what_another_has_today(
    tmp_path: Path, make: Any
) -> None:
    """Rows 1 and 2 came to it by a rename; row 7 came to the old name behind that. Made again with
    the old name's table, it is as it was."""
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    entries.commit(put(7, n=7))
    entries.commit(change(3, "insert", {"_id": 3, "n": 3}, collection="archive"))
    config = make(tmp_path, "orders", "archive")
    apply(entries.table(), config)
    before = {name: all_of(tmp_path / name) for name in ("orders", "archive")}
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(ChangesLostError, match=r"at sequence 3 .* remove the tables of both"):
        apply(entries.table(), config)
    assert not (tmp_path / "archive").exists()
    shutil.rmtree(tmp_path / "orders")
    apply(entries.table(), config)
    assert {name: all_of(tmp_path / name) for name in before} == before


def test_a_collection_renamed_to_its_own_name_keeps_its_rows(tmp_path: Path) -> None:
    """A log of an earlier version may say so."""
    entries, config = Entries(), pipeline(tmp_path / "t")
    entries.commit(put(1, n=1))
    apply(entries.table(), config)
    entries.commit(schema_event("rename", to={"db": "db", "coll": "orders"}))
    apply(entries.table(1), config)
    assert rows_of(tmp_path / "t") == {("db", '{"_id":1}'): {"_id": 1, "n": 1}}


def test_a_collection_renamed_to_another_database_keeps_its_rows_there(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), change(2, "insert", {"_id": 2, "n": 2}, database="old"))
    entries.commit(schema_event("rename", to={"db": "old", "coll": "orders"}))
    config = pipeline(tmp_path / "t")
    apply(entries.table(), config)
    apply(entries.table(), config)
    assert rows_of(tmp_path / "t") == {("old", '{"_id":1}'): {"_id": 1, "n": 1}}


def test_a_rename_behind_which_the_rows_are_copied_is_no_gap(tmp_path: Path) -> None:
    """As convertToCapped, whose new collection no pipeline follows under its first name."""
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2))
    to = {"db": "db", "coll": "orders"}
    entries.commit(schema_event("rename", collection="tmp", to=to, rowsFollow=True))
    entries.commit(put(2, n=3))
    apply(entries.table(), pipeline(tmp_path / "t", "orders"))
    assert rows_of(tmp_path / "t") == {("db", '{"_id":2}'): {"_id": 2, "n": 3}}


def test_a_collection_renamed_away_is_gone(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "elsewhere"}))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert rows_of(tmp_path / "t") == {}


def test_a_collection_renamed_to_where_the_source_does_not_follow_is_gone(tmp_path: Path) -> None:
    """Of the new name nothing comes any more: rows handed over would stay as they are for ever."""
    entries = Entries()
    entries.commit(put(1, n=1), change(2, "insert", {"_id": 2, "n": 2}, database="other"))
    to = {"db": "other", "coll": "orders"}
    entries.commit(schema_event("rename", to=to, targetCaptured=False))
    apply(entries.table(), pipeline(tmp_path / "t"))
    assert list(rows_of(tmp_path / "t")) == [("other", '{"_id":2}')]


def test_a_copied_delete_takes_its_row_and_a_retyped_id_leaves_one_row(tmp_path: Path) -> None:
    """Each in the commit that holds the new row, and in a batch with the old one or behind it."""
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2), put(3, n=3))
    copied = [change(1, "delete"), put(2, n=20)]
    entries.commit(*(structs.replace(event, snapshot=True) for event in copied))
    entries.commit(change(3, "delete"), put(3.0, n=4))
    for name, edges in (("together", [0, 7]), ("apart", [0, 3, 5, 7])):
        for after, until in itertools.pairwise(edges):
            apply(entries.table(after, until), pipeline(tmp_path / name))
        assert {key: row["n"] for (_, key), row in rows_of(tmp_path / name).items()} == {
            '{"_id":2}': 20,
            '{"_id":3.0}': 4,
        }


@pytest.mark.parametrize(
    "event",
    [
        gap(),
        schema_event("rename", collection="unknown", to={"db": "db", "coll": "orders"}),
    ],
    ids=["gap", "rename from a collection that is not followed"],
)
def test_what_was_lost_stops_the_pipeline_or_is_noted(tmp_path: Path, event: Any) -> None:
    """P19: never a silence, and everything before the loss is applied."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(event)
    entries.commit(put(2, n=2))
    with pytest.raises(ChangesLostError, match="at sequence 2"):
        apply(entries.table(), pipeline(tmp_path / "t"))
    assert list(rows_of(tmp_path / "t")) == [("db", '{"_id":1}')]
    apply(entries.table(), pipeline(tmp_path / "t", on_gap="record"))
    assert ("db", '{"_id":2}') in rows_of(tmp_path / "t")
    assert [row["sequence"] for row in rejects_of(tmp_path / "t")] == [2]


def test_a_gap_in_the_middle_of_a_transaction_stops_the_pipeline_before_all_of_that(
    tmp_path: Path,
) -> None:
    """As that of a dead letter is; the rows are as of the transaction before."""
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, n=1))
    entries.commit(change(1, "replace", {"_id": 1, "n": 2}), put(2), gap(), put(3))
    for parts in (1, 2):
        with pytest.raises(ChangesLostError, match="at sequence 4"):
            apply(entries.table(), pipeline(path), parts=parts)
        assert rows_of(path) == {("db", '{"_id":1}'): {"_id": 1, "n": 1}}
    apply(entries.table(), pipeline(path, on_gap="record"))
    assert [row.get("n") for _, row in sorted(rows_of(path).items())] == [2, None, None]


def test_a_gap_in_the_first_transaction_of_a_batch_stops_the_pipeline_with_nothing_written(
    tmp_path: Path,
) -> None:
    entries = Entries()
    entries.commit(put(1), gap(), put(2))
    with pytest.raises(ChangesLostError, match="at sequence 2"):
        apply(entries.table(), pipeline(tmp_path / "t"))
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))
    apply(entries.table(), pipeline(tmp_path / "t", on_gap="record"))
    assert len(rows_of(tmp_path / "t")) == 2
