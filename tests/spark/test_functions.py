"""Functions from entries to what destinations make: equal to these, complete, or an error."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import (
    ChangesLostError,
    IncompleteCommitError,
    PipelineError,
)
from penstock.spark.functions.batches import events_of
from penstock.spark.functions.survey import SURVEYED, report
from penstock.spark.rows import gap_row
from penstock.spark.transform.replay import signed
from penstock.wire import ARROW_SCHEMA
from tests.spark.kept import as_rows, in_tables, own_of
from tests.spark.stories import (
    Row,
    built_of,
    current_of,
    latest_of,
    rejected_of,
    scattered,
    story,
    surveyed,
)
from tests.spark.tables import LOG_ID, Entries, change, dotted, gap, put, schema_event


class Kept:
    """Rows that somebody keeps, and what they do in `foreachBatch`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Row] = {}

    def apply(self, entries: pa.Table) -> None:
        for event in events_of(surveyed(entries)):
            self._do(event)
        for row in built_of(latest_of(entries), lambda row: self.rows.get(own_of(row))):
            own = own_of(row)
            if row["operation"] == "upsert":
                self.rows[own] = row
            elif row["operation"] == "delete":
                self.rows.pop(own, None)
            elif own in self.rows:
                assert row["operation"] == "stale"
                marked = {**self.rows[own], "rejected_sequence": row["rejected_sequence"]}
                self.rows[own] = marked

    def _do(self, event: Row) -> None:
        place = (event["collection"], event["database"])
        older = [own for own, row in self.rows.items() if row["sequence"] < event["sequence"]]
        if event["operation"] == "drop":
            for own in older:
                if own[1] == place[1] and place[0] in {None, own[0]}:
                    del self.rows[own]
            return
        to = (event["to_collection"], event["to_database"])
        for own in [own for own in older if own[:2] == to]:
            del self.rows[own]
        for own in [own for own in older if own[:2] == place]:
            named = {"collection": to[0], "database": to[1]}
            self.rows[(*to, own[2])] = {**self.rows.pop(own), **named}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_current_rows_are_those_of_tables(tmp_path: Path, seed: int) -> None:
    """Whatever was dropped and renamed, in any order of the entries, and where some come twice."""
    entries = story(seed).table()
    assert as_rows(current_of(scattered(entries, seed))) == in_tables(tmp_path, entries)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_current_rows_of_some_collections_are_those_of_their_tables(
    tmp_path: Path, seed: int
) -> None:
    story_ = story(seed, events=())
    story_.commit(schema_event("rename", database="a", to={"db": "b", "coll": "elsewhere"}))
    story_.commit(schema_event("rename", database="b", to={"db": "a", "coll": "carts"}))
    entries, some = story_.table(), ("orders", "carts")
    rows = current_of(scattered(entries, seed), collections=some)
    assert as_rows(rows) == in_tables(tmp_path, entries, collections=some)


@pytest.mark.parametrize("seed", range(200, 240))
def test_changes_of_batches_one_after_the_other_make_the_current_rows(seed: int) -> None:
    """P25: an update without its document builds on rows that the batch does not tell."""
    entries, dice, kept = story(seed).table(), random.Random(seed), Kept()
    ends = [row["sequence"] for row in entries.to_pylist() if row["ends_commit"]]
    after = 0
    for end in ends:
        if end != ends[-1] and dice.random() < 0.6:
            continue
        batch = signed(entries.slice(after, end - after))
        kept.apply(batch)
        if not surveyed(batch).events:
            kept.apply(batch)  # a driver that died before it noted the batch comes again
        after = end
    expected = as_rows(current_of(signed(entries)))
    assert {own: row[0] for own, row in as_rows(list(kept.rows.values())).items()} == {
        own: row[0] for own, row in expected.items()
    }
    marks = {own: row["rejected_sequence"] for own, row in kept.rows.items()}
    assert marks == {own: row[2] for own, row in expected.items()}


def test_a_gap_is_named_by_an_error_or_told_as_an_event() -> None:
    """P19, and P7 where retention was faster: nothing is silent about what is missing."""
    entries = Entries()
    entries.commit(put(1))
    entries.commit(gap())
    batch = signed(entries.table())
    with pytest.raises(ChangesLostError, match=r"at sequence 2 the log says .*oplog"):
        surveyed(batch)
    (event,) = events_of(surveyed(batch, halts=False))
    assert (event["operation"], event["sequence"]) == ("gap", 2)
    assert json.loads(event["description"]) == {"reason": "oplog"}


def test_what_retention_removed_unread_is_a_gap_too() -> None:
    """P7: whoever reads with failOnDataLoss = "false" gets a row of no source and no commit."""
    entries = Entries()
    entries.commit(put(1), put(2), put(3))
    entries.commit(put(4))
    removed = gap_row(log_id=LOG_ID, after=0, until=3, check=0, columns=ARROW_SCHEMA.names)
    left = [pa.Table.from_batches([removed]), entries.table(after=3)]
    batch = signed(pa.concat_tables(left))
    with pytest.raises(ChangesLostError, match=r"at sequence 3 .*removed by retention"):
        surveyed(batch)
    known = surveyed(batch, halts=False)
    assert [event["operation"] for event in events_of(known)] == ["gap"]
    assert (known.first, known.last) == (3, 4)


def test_a_rename_from_a_collection_that_is_not_there_is_a_gap_for_its_target() -> None:
    entries = Entries()
    entries.commit(put(1))
    to = {"db": "db", "coll": "orders"}
    entries.commit(schema_event("rename", collection="staging", to=to))
    batch = signed(entries.table())
    with pytest.raises(ChangesLostError, match=r"at sequence 2 .*staging.* was renamed"):
        surveyed(batch, collections=["orders"])
    events = events_of(surveyed(batch, collections=["orders"], halts=False))
    assert [event["operation"] for event in events] == ["gap", "drop"]


def test_events_of_collections_that_are_not_asked_for_are_none() -> None:
    entries = Entries()
    entries.commit(schema_event("drop", collection="staging"), put(1))
    assert events_of(surveyed(signed(entries.table()), collections=["orders"])) == []


def test_an_event_that_is_not_known_is_never_passed_over() -> None:
    entries = Entries()
    entries.commit(put(1), schema_event("evaporate"))
    with pytest.raises(PipelineError, match=r"at sequence 2 .*'evaporate' of db.orders"):
        surveyed(signed(entries.table()))


@pytest.mark.parametrize("collections", [(), ("orders",)])
def test_commits_that_are_not_whole_or_were_altered_are_an_error(
    collections: Sequence[str],
) -> None:
    entries = Entries()
    for number in range(9):
        entries.commit(*(put(number * 10 + key) for key in range(7)))
    whole = signed(entries.table())
    assert surveyed(scattered(entries.table()), collections=collections).last == 63
    part = whole.filter(pa.array([number != 40 for number in range(63)]))
    if collections:
        assert surveyed(part, collections=collections).last == 63
    else:
        with pytest.raises(IncompleteCommitError, match=r"commit 6 .*7 entries .* but 6 arrived"):
            surveyed(part)
    checks: list[Any] = whole["check"].to_pylist()
    checks[40] += 1
    at = whole.schema.get_field_index("check")
    altered = whole.set_column(at, "check", pa.chunked_array([pa.array(checks, pa.int64())]))
    with pytest.raises(IncompleteCommitError, match="commit 6 "):
        surveyed(altered, collections=collections)


def test_a_document_is_told_as_it_was_captured() -> None:
    text = '{"_id":1,"long":{"$numberLong":"5"},"d":1.50,"none":null,"z":1,"a":[1,{"b":2.0}]}'
    entries = Entries()
    entries.commit(change(1, "insert", text=text))
    (row,) = latest_of(signed(entries.table()))
    assert row["document"] == text
    entries.commit(change(1, "update", update={"updatedFields": {"z": 2}}))
    (row,) = latest_of(signed(entries.table()))
    assert row["document"] == text.replace('"z":1', '"z":2').replace("1.50", "1.5")


def test_an_update_whose_row_is_not_told_is_no_row_but_what_is_to_be_done_to_one() -> None:
    """P25."""
    entries = Entries()
    entries.commit(change(1, "update", update={"updatedFields": {"n": 2}}))
    entries.commit(change(1, "update", {"_id": 1, "n": 3}, unchanged=["name"]))
    entries.commit(change(2, "update", update={"updatedFields": {"n": 2}}), change(2, "delete"))
    one, two = sorted(latest_of(signed(entries.table())), key=lambda row: row["key"])
    assert (one["operation"], one["document"], one["sequence"]) == ("update", None, 2)
    assert [told["sequence"] for told in one["changes"]] == [1, 2]
    assert (two["operation"], two["changes"], two["sequence"]) == ("delete", None, 4)
    assert current_of(signed(entries.table())) == []


def test_an_entry_that_comes_twice_counts_once() -> None:
    entries = Entries()
    entries.commit(*(change(1, "update", update={"updatedFields": {"n": n}}) for n in range(3)))
    twice = signed(pa.concat_tables([entries.table(), entries.table()]))
    (row,) = latest_of(twice)
    assert [told["sequence"] for told in row["changes"]] == [1, 2, 3]
    assert [row["sequence"] for row in rejected_of(twice)] == [1, 2, 3]


def test_a_field_whose_own_name_has_a_dot_is_none_of_an_object() -> None:
    entries = Entries()
    entries.commit(put(1, a={"c": 2}), dotted(1), dotted(2))
    kept = {"document": '{"_id":2,"a":{}}', "sequence": 0, "rejected_sequence": None}
    made = built_of(latest_of(signed(entries.table())), lambda _: kept)
    one, two = sorted(made, key=lambda row: row["key"])
    assert one["document"] == '{"_id":1,"a":{"c":2},"a.b":1}'
    assert two["document"] == '{"_id":2,"a":{},"a.b":1}'


def test_what_a_row_has_already_is_not_applied_to_it_again() -> None:
    """A batch that comes again behind later ones must not take its row back."""
    entries = Entries()
    entries.commit(change(1, "update", update={"updatedFields": {"n": 1}}))
    kept = {"document": '{"_id":1,"n":9}', "sequence": 5, "rejected_sequence": None}
    (row,) = built_of(latest_of(signed(entries.table())), lambda _: kept)
    assert row["operation"] == "upsert"
    assert {name: row[name] for name in kept} == kept
    (row,) = built_of(latest_of(signed(entries.table())), lambda _: {**kept, "sequence": 0})
    assert (row["document"], row["sequence"]) == ('{"_id":1,"n":1}', 1)


def test_a_change_that_is_not_exact_leaves_its_row_and_says_so() -> None:
    entries = Entries()
    entries.commit(change(1, "update", update={"updatedFields": {"a.b": 1}}))
    kept = {"document": '{"_id":1}', "sequence": 0, "rejected_sequence": None}
    changes = latest_of(signed(entries.table()))
    for (row,) in (built_of(changes, lambda _: kept), built_of(changes, lambda _: None)):
        assert (row["operation"], row["document"], row["rejected_sequence"]) == ("stale", None, 1)


def test_a_batch_of_nothing_but_repeats_ends_no_commit() -> None:
    entries = Entries()
    entries.commit(put(1), put(2))
    told = signed(entries.table()).select(list(SURVEYED)).combine_chunks()
    first, second = (told.slice(at, 1).to_batches()[0] for at in (0, 1))
    rows = [row for part in report([first, first, second], whole=True) for row in part.to_pylist()]
    assert [row["wrong"] for row in rows] == [None]
    assert (rows[0]["first"], rows[0]["last"]) == (1, 2)


def test_entries_without_what_proves_them_are_read_all_the_same() -> None:
    """As a token gets them that is not shown every column."""
    entries = Entries()
    entries.commit(put(1), put(2))
    told: Any = signed(entries.table()).select(list(SURVEYED)).combine_chunks()
    for name in ("check", "commit_rows", "commit_digest"):
        at = told.schema.get_field_index(name)
        told = told.set_column(at, name, pa.nulls(told.num_rows, told.schema.field(name).type))
    (row,) = [one for part in report(told.to_batches(), whole=True) for one in part.to_pylist()]
    assert (row["first"], row["last"], row["wrong"]) == (1, 2, None)
