"""What makes a version, and what columns, rejects and events of collections do to a history."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs
from pydantic import ValidationError

from penstock.errors import ChangesLostError, PipelineChangedError, PipelineError
from penstock.spark.config import HistoryPipelineConfig
from penstock.spark.history.delta import VersionTable
from tests.spark.histories import SPAN, at, history, in_order, rows, versions_of
from tests.spark.tables import (
    Entries,
    apply,
    change,
    gap,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
    version_of,
)

# --- what makes a version -----------------------------------------------------------------------


def test_versions_of_one_instant_stay_apart_and_as_of_finds_one_row(tmp_path: Path) -> None:
    """A18: the order is the log's. A time tells which version was the last of its instant."""
    entries = Entries()
    entries.commit(at(put(1, n=1), 1000), at(put(1, n=2), 1000))
    entries.commit(at(put(1, n=3), 1000))
    entries.commit(at(put(1, n=4), 5000))
    entries.commit(at(change(1, "delete"), 7000))
    path = tmp_path / "t"
    apply(entries.table(), history(path))
    assert rows(path, *SPAN) == [
        (1, 1, 2, False),
        (2, 2, 3, False),
        (3, 3, 4, False),
        (4, 4, 5, False),
    ]
    table = DeltaTable(str(path)).to_pyarrow_table().to_pylist()

    def as_of(millis: int) -> list[int]:
        moment = pa.scalar(millis * 1000, pa.timestamp("us", "UTC")).as_py()
        return [
            row["n"]
            for row in table
            if row["_valid_from"] <= moment
            and (row["_valid_to"] is None or moment < row["_valid_to"])
        ]

    assert [as_of(time) for time in (999, 1000, 4999, 5000, 6999, 7000)] == [
        [],
        [3],
        [3],
        [4],
        [4],
        [],
    ]


def test_a_change_of_the_key_ends_the_row_of_the_old_one(tmp_path: Path) -> None:
    """A13: sources tell it as a delete and an insert of one commit."""
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(change(1, "delete"), put(2, n=1))
    apply(entries.table(), history(tmp_path / "t"))
    assert rows(tmp_path / "t", "_key", *SPAN) == [
        ('{"_id":1}', 1, 1, 2, False),
        ('{"_id":2}', 1, 3, None, True),
    ]


def test_a_copy_makes_versions_of_what_it_found_changed_or_gone_alone(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=2), put(3, n=3))
    copied = [put(1, n=1), put(2, n=20), change(3, "delete"), put(4, n=4)]
    entries.commit(*(structs.replace(event, snapshot=True) for event in copied))
    for name, edges in (("together", [0, 7]), ("apart", [0, 3, 7])):
        for after, until in itertools.pairwise(edges):
            apply(entries.table(after, until), history(tmp_path / name))
        assert rows(tmp_path / name, "_operation", *SPAN) == [
            ("insert", 1, 1, None, True),
            ("insert", 2, 2, 5, False),
            ("snapshot", 20, 5, None, True),
            ("insert", 3, 3, 6, False),
            ("snapshot", 4, 7, None, True),
        ]


def test_what_is_not_tracked_is_set_in_the_open_version(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1, seen=1))
    entries.commit(put(1, n=1, seen=2))
    entries.commit(put(1, n=2, seen=3), put(1, n=2, seen=4))
    for name, lists in (
        ("only", {"track_history_column_list": ["n"]}),
        ("except", {"track_history_except_column_list": ["seen"]}),
    ):
        config = history(tmp_path / name, **lists)
        for after, until in ((0, 1), (1, 2), (2, 4)):
            apply(entries.table(after, until), config)
        assert rows(tmp_path / name, "seen", "_sequence", *SPAN) == [
            (2, 2, 1, 1, 3, False),
            (4, 4, 2, 3, None, True),
        ]


def test_a_value_differs_where_its_bits_do(tmp_path: Path) -> None:
    """And NaN is the same as NaN; a null and no value at all are the same, too."""
    nan = float("nan")
    entries = Entries()
    for x in (0.0, -0.0, -0.0, nan, nan, None):
        entries.commit(put(1, n=1, x=x))
    entries.commit(put(1, n=1))
    for name, edges in (("together", [0, 7]), ("apart", range(8))):
        for after, until in itertools.pairwise(edges):
            apply(entries.table(after, until), history(tmp_path / name))
        found = rows(tmp_path / name, "_from_sequence", "x")
        assert str(found) == "[(1, 0.0), (2, -0.0), (4, nan), (6, None)]"


def test_what_was_looked_up_later_says_so(tmp_path: Path) -> None:
    """P25: capture was behind, so the second update's value is told by the first one too."""
    entries = Entries()
    entries.commit(structs.replace(put(1, n=1), full_document_as_of_event=True))
    for _ in range(2):
        entries.commit(change(1, "update", {"_id": 1, "n": 3}, update={"updatedFields": {"n": 2}}))
    exact = structs.replace(change(1, "update", {"_id": 1, "n": 3}), full_document_as_of_event=True)
    entries.commit(exact)
    for name, edges in (("together", [0, 4]), ("apart", range(5))):
        for after, until in itertools.pairwise(edges):
            apply(entries.table(after, until), history(tmp_path / name))
        assert rows(tmp_path / name, "_as_of_event", "_sequence", *SPAN) == [
            (True, 1, 1, 1, 2, False),
            (False, 2, 3, 2, 4, False),
            (True, 4, 3, 4, None, True),
        ]


@pytest.mark.parametrize("looked_up", [True, False])
def test_a_change_of_untracked_fields_alone_is_of_the_open_version(
    tmp_path: Path, looked_up: bool
) -> None:
    """However the row comes: as it was looked up, or as what changed of it."""
    entries = Entries()
    entries.commit(structs.replace(put(1, n=1, seen=0), full_document_as_of_event=True))
    for seen in (1, 2):
        row = {"_id": 1, "n": 1, "seen": seen} if looked_up else None
        entries.commit(change(1, "update", row, update={"updatedFields": {"seen": seen}}))
    exact = structs.replace(put(1, n=1, seen=3), full_document_as_of_event=True)
    entries.commit(exact)
    untracked = {"track_history_except_column_list": ["seen"]}
    for name, edges in (("together", [0, 4]), ("apart", range(5))):
        for after, until in itertools.pairwise(edges[:-1]):
            apply(entries.table(after, until), history(tmp_path / name, **untracked))
        if name == "apart":
            assert rows(tmp_path / name, "_as_of_event", "_sequence", "seen", *SPAN) == [
                (not looked_up, 3, 2, 1, 1, None, True)
            ]
        apply(entries.table(edges[-2], 4), history(tmp_path / name, **untracked))
        found = rows(tmp_path / name, "_as_of_event", "_sequence", "seen", *SPAN)
        assert found == (
            # What is told for sure is not the version of which that is not known.
            [(False, 3, 2, 1, 1, 4, False), (True, 4, 3, 1, 4, None, True)]
            if looked_up
            else [(True, 4, 3, 1, 1, None, True)]
        )


def test_a_table_of_versions_that_does_not_say_so_is_refused_by_name(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(1, n=2))
    apply(entries.table(0, 1), history(tmp_path / "t"))
    old = DeltaTable(str(tmp_path / "t"))
    older = old.to_pyarrow_table().drop_columns(["_as_of_event"])
    write_deltalake(old, older, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PipelineChangedError, match="new path"):
        apply(entries.table(1, 2), history(tmp_path / "t"))
    assert rows(tmp_path / "t", *SPAN) == [(1, 1, None, True)]


def test_columns_are_either_listed_or_excepted() -> None:
    with pytest.raises(ValidationError, match="not both"):
        HistoryPipelineConfig.model_validate(
            {
                "to": "history",
                "source": "shop",
                "path": "t",
                "track_history_column_list": ["a"],
                "track_history_except_column_list": ["b"],
            }
        )


def test_open_versions_are_the_rows_of_the_table_of_current_rows(tmp_path: Path) -> None:
    entries = Entries()
    for number in range(30):
        entries.commit(put(number % 7, n=number, name=f"name {number}"))
    entries.commit(change(3, "delete"), change(4, "update", update={"updatedFields": {"n": -1}}))
    apply(entries.table(), history(tmp_path / "history"))
    apply(entries.table(), pipeline(tmp_path / "table"))
    current = {
        (one["database"], one["key"]): one["document"]
        for one in versions_of(tmp_path / "history")
        if one["to"] is None
    }
    assert current == rows_of(tmp_path / "table")


# --- columns and rejects ------------------------------------------------------------------------


def test_a_column_widens_for_closed_versions_too(tmp_path: Path) -> None:
    """Created, appended to, rewritten for a wider type and merged with again; nothing is lost."""
    entries = Entries()
    for n in (1, 2, 1 << 40, 0):
        entries.commit(put(1, n=n), put(n, other=n))
    for after in range(0, 8, 2):
        apply(entries.table(after, after + 2), history(tmp_path / "t"))
    apply(entries.table(), history(tmp_path / "t"))
    assert rows(tmp_path / "t", "_key", "_current", "n", "other") == [
        ('{"_id":0}', True, None, 0),
        ('{"_id":1099511627776}', True, None, 1 << 40),
        ('{"_id":1}', False, 1, None),
        ('{"_id":1}', False, None, 1),
        ('{"_id":1}', False, 2, None),
        ('{"_id":1}', False, 1 << 40, None),
        ('{"_id":1}', True, 0, None),
        ('{"_id":2}', True, None, 2),
    ]


@pytest.mark.parametrize("ends", [[6], [1, 2, 3, 4, 5, 6], [2, 6], [3, 6]])
def test_a_version_says_from_which_rejected_change_on_the_row_was_another(
    tmp_path: Path, ends: list[int]
) -> None:
    """P6: a change that fits again opens a version, even one that tells what was known before."""
    path = tmp_path / "t"
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(1, n="text"))
    entries.commit(put(1, n="more"))
    entries.commit(put(1, n=1))
    entries.commit(put(1, n="text"))
    entries.commit(change(1, "delete"))
    for after, until in itertools.pairwise([0, *ends]):
        apply(entries.table(after, until), history(path))
    assert rows(path, "_rejected_sequence", *SPAN) == [(2, 1, 1, 4, False), (5, 1, 4, 6, False)]
    assert [row["sequence"] for row in rejects_of(path)] == [2, 3, 5]


def test_an_update_that_cannot_be_applied_makes_no_version(tmp_path: Path) -> None:
    """P25: nothing is guessed, and what builds on what is not known is not applied either."""
    path = tmp_path / "t"
    entries = Entries()
    entries.commit(put(1, n=1), change(2, "update", update={"updatedFields": {"n": 2}}))
    entries.commit(change(1, "update", update={"updatedFields": {"no.such": 2}}))
    entries.commit(change(1, "update", update={"updatedFields": {"n": 3}}))
    entries.commit(put(1, n=4))
    for after, until in ((0, 3), (3, 4), (4, 5)):
        apply(entries.table(after, until), history(path))
    assert rows(path, "_rejected_sequence", *SPAN) == [
        (3, 1, 1, 5, False),
        (None, 4, 5, None, True),
    ]
    assert [row["sequence"] for row in rejects_of(path)] == [2, 3, 4]


def test_fields_with_the_names_of_our_columns_are_rejected(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), put(2, _valid_to="never"), put(3, _Current=True))
    apply(entries.table(), history(tmp_path / "t"))
    assert rows(tmp_path / "t", "_key") == [('{"_id":1}',)]
    assert [row["field"] for row in rejects_of(tmp_path / "t")] == ["_valid_to", "_Current"]


# --- events about whole collections -------------------------------------------------------------


def test_a_dropped_database_ends_its_own_versions(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), change(1, "insert", {"_id": 1, "n": 2}, database="other"))
    entries.commit(at(schema_event("dropDatabase", collection=""), 1_800_000_000_000))
    entries.commit(put(1, n=1))
    apply(entries.table(), history(tmp_path / "t"))
    assert in_order(versions_of(tmp_path / "t"))[0].count("1800000000000") == 1
    assert rows(tmp_path / "t", "_database", *SPAN) == [
        ("db", 1, 1, 3, False),
        ("other", 2, 2, None, True),
        ("db", 1, 4, None, True),
    ]


@pytest.mark.parametrize("ends", [[6], [4, 5, 6]])
def test_a_renamed_collection_goes_on_in_its_new_table(
    tmp_path: Path, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two tables, too: the new name comes first, and is not told twice."""
    entries = Entries()
    entries.commit(put(1, n=1), put(2, n=1))
    archived = ((1, 8), (9, 9))
    entries.commit(
        *(change(key, "insert", {"_id": key, "n": n}, collection="archive") for key, n in archived)
    )
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    entries.commit(put(1, n=3))
    config = history(tmp_path, "orders", "archive")

    def power_cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for after, until in itertools.pairwise([0, *ends]):
        with monkeypatch.context() as patched:
            patched.setattr(VersionTable, "close", power_cut)
            if after < 5 <= until:
                with pytest.raises(KeyboardInterrupt):
                    apply(entries.table(after, until), config)
        apply(entries.table(after, until), config)
    apply(entries.table(), config)
    assert rows(tmp_path / "orders", "_operation", *SPAN) == [
        ("insert", 1, 1, 5, False),
        ("insert", 3, 6, None, True),
        ("insert", 1, 2, 5, False),
    ]
    assert rows(tmp_path / "archive", "_operation", *SPAN) == [
        ("insert", 8, 3, 5, False),
        ("rename", 1, 5, None, True),
        ("rename", 1, 5, None, True),
        ("insert", 9, 4, 5, False),
    ]


def test_rows_of_a_rename_that_fit_no_column_are_in_the_rejects(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(change(9, "insert", {"_id": 9, "n": "text"}, collection="archive"))
    entries.commit(put(1, n=1), put(2, n="fits"), put(3, m=3))
    entries.commit(schema_event("rename", to={"db": "db", "coll": "archive"}))
    config = history(tmp_path, "orders", "archive")
    apply(entries.table(), config)
    apply(entries.table(), config)
    assert [(row["key"], row["sequence"]) for row in rejects_of(tmp_path)] == [
        ('{"_id":2}', 3),
        ('{"_id":1}', 5),
    ]
    assert rows(tmp_path / "archive", "_key", "_current") == [
        ('{"_id":3}', True),
        ('{"_id":9}', False),
    ]


GONE = pytest.mark.parametrize(
    "event",
    [
        schema_event("rename", to={"db": "db", "coll": "elsewhere"}),
        schema_event("rename", to={"db": "x", "coll": "orders"}, targetCaptured=False),
        schema_event("drop"),
    ],
    ids=["renamed away", "renamed to where nobody follows", "dropped"],
)


@GONE
def test_a_collection_that_goes_without_an_open_version_moves_its_table_on(
    tmp_path: Path, event: Any
) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(change(1, "delete"))
    entries.commit(event)
    config = history(tmp_path / "t")
    apply(entries.table(0, 2), config)
    before = version_of(config.path)
    for _ in range(2):
        assert apply(entries.table(2), config, batch_id=1).tables == {"orders": 3}
    assert version_of(config.path) == before + 1
    assert rows(tmp_path / "t", *SPAN) == [(1, 1, 2, False)]


@GONE
def test_versions_of_a_collection_that_is_gone_end(tmp_path: Path, event: Any) -> None:
    """And those that ended before keep their ends."""
    entries = Entries()
    entries.commit(put(1, n=1), put(1, n=2))
    entries.commit(event)
    for _ in range(2):
        apply(entries.table(), history(tmp_path / "t"))
    assert rows(tmp_path / "t", *SPAN) == [(1, 1, 2, False), (2, 2, 3, False)]


@pytest.mark.parametrize(
    "event",
    [gap(), schema_event("rename", collection="unknown", to={"db": "db", "coll": "orders"})],
    ids=["gap", "rename from a collection that is not followed"],
)
def test_what_was_lost_stops_the_history_or_is_noted(tmp_path: Path, event: Any) -> None:
    """P19."""
    path = tmp_path / "t"
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(event)
    entries.commit(put(2, n=2))
    with pytest.raises(ChangesLostError, match="at sequence 2"):
        apply(entries.table(), history(path))
    assert rows(path, "n") == [(1,)]
    apply(entries.table(), history(path, on_gap="record"))
    assert rows(path, "n") == [(1,), (2,)]
    assert [row["sequence"] for row in rejects_of(path)] == [2]


def test_a_gap_in_the_middle_of_a_transaction_stops_the_history_before_all_of_that(
    tmp_path: Path,
) -> None:
    path, entries = tmp_path / "t", Entries()
    entries.commit(put(1, n=1))
    entries.commit(put(1, n=2), gap(), put(2, n=3))
    with pytest.raises(ChangesLostError, match="at sequence 3"):
        apply(entries.table(), history(path))
    assert rows(path, *SPAN) == [(1, 1, None, True)]
    apply(entries.table(), history(path, on_gap="record"))
    assert rows(path, "n") == [(1,), (2,), (3,)]


def test_an_event_that_is_not_understood_stops_the_history_before_it(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    entries.commit(schema_event("somethingNew"))
    entries.commit(put(1, n=2))
    with pytest.raises(PipelineError, match="at sequence 2 the source says 'somethingNew'"):
        apply(entries.table(), history(tmp_path / "t"))
    assert rows(tmp_path / "t", *SPAN) == [(1, 1, None, True)]
