"""Functions from entries to what destinations make: equal to these, complete, or an error."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import (
    ChangesLostError,
    ConfigError,
    IncompleteCommitError,
    PipelineError,
)
from penstock.spark.functions import (
    build_on,
    collection_events,
    current_rows,
    latest_changes,
    rejected_changes,
)
from penstock.spark.functions.api import events_of
from penstock.spark.table.apply import table_states
from penstock.spark.transform.replay import signed
from tests.spark.stories import (
    COLLECTIONS,
    Row,
    built_of,
    current_of,
    latest_of,
    scattered,
    story,
    surveyed,
)
from tests.spark.tables import Entries, apply, change, gap, pipeline, put, schema_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = dict[tuple[str, str, str], tuple[Row, int, int | None]]


def in_tables(path: Path, entries: pa.Table, *, collections: Sequence[str] = COLLECTIONS) -> Rows:
    """What `to = "table"` has of the entries, by (collection, database, key)."""
    config = pipeline(path, *collections)
    apply(entries, config)
    found: Rows = {}
    for collection in collections:
        if not DeltaTable.is_deltatable(config.table_path(collection)):
            continue
        table = DeltaTable(config.table_path(collection)).to_pyarrow_table()
        for (key, _, database), state in table_states(table).items():
            own = (state.document or {}, state.sequence, state.rejected_sequence)
            found[collection, database, key] = own
    return found


def as_rows(rows: Sequence[Row]) -> Rows:
    """The same of what a function gave; each row once."""
    found = {
        (row["collection"], row["database"], row["key"]): (
            json.loads(row["document"]),
            row["sequence"],
            row["rejected_sequence"],
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


class Kept:
    """Rows that somebody keeps, and what they do in `foreachBatch`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Row] = {}

    def apply(self, entries: pa.Table) -> None:
        for event in events_of(surveyed(entries)):
            self._do(event)
        for row in built_of(latest_of(entries), lambda row: self.rows.get(_own(row))):
            own = _own(row)
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


def _own(row: Row) -> tuple[str, str, str]:
    return row["collection"], row["database"], row["key"]


# --- decided purely -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_current_rows_are_those_of_tables(tmp_path: Path, seed: int) -> None:
    """Whatever was dropped and renamed, in any order of the entries, and where some come twice."""
    entries = story(seed).table()
    assert as_rows(current_of(scattered(entries, seed))) == in_tables(tmp_path, entries)


@pytest.mark.parametrize("seed", range(100, 110))
def test_current_rows_of_some_collections_are_those_of_their_tables(
    tmp_path: Path, seed: int
) -> None:
    story_ = story(seed, events=False)
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


# --- with Spark -----------------------------------------------------------------------------------


def frame_of(spark: "SparkSession", entries: pa.Table, *, seed: int = 0) -> "DataFrame":
    """The entries in several partitions, in any order, and some twice."""
    return spark.createDataFrame(scattered(entries, seed)).repartition(3)


def found(frame: "DataFrame") -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [18, 47])
def test_spark_has_the_rows_of_tables(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    entries = story(seed, commits=40).table()
    frame = frame_of(spark, entries, seed=seed)
    expected = in_tables(tmp_path, entries)
    assert expected
    rows = frame.transform(current_rows)
    assert as_rows(found(rows)) == expected
    assert as_rows(found(rows.where("collection = 'orders'"))) == {
        own: row for own, row in expected.items() if own[0] == "orders"
    }


@pytest.mark.slow
def test_spark_has_the_latest_changes(spark: "SparkSession", tmp_path: Path) -> None:
    entries = story(47, commits=40).table()
    frame = frame_of(spark, entries)
    with pytest.raises(PipelineError, match="on_event"):
        latest_changes(frame)
    changes = latest_changes(frame, on_event="apart")
    expected = {_own(row): row for row in latest_of(signed(entries))}
    assert {_own(row): row for row in found(changes)} == expected
    assert {row["operation"] for row in expected.values()} == {"upsert", "delete", "update"}
    nothing = current_rows(frame.limit(0))
    built = {_own(row): row for row in found(changes.transform(build_on, nothing))}
    assert built == {_own(row): row for row in built_of(list(expected.values()), lambda _: None)}
    events = found(collection_events(frame).orderBy("sequence"))
    assert events == events_of(surveyed(signed(entries)))
    sequences = {row["sequence"] for row in found(rejected_changes(frame))}
    marked = {row["rejected_sequence"] for row in found(current_rows(frame))} - {None}
    assert marked
    assert marked <= sequences


@pytest.mark.slow
def test_nothing_comes_of_nothing(spark: "SparkSession") -> None:
    entries = Entries()
    entries.commit(put(1))
    frame = spark.createDataFrame(signed(entries.table())).limit(0)
    for made in (current_rows(frame), latest_changes(frame), collection_events(frame)):
        assert made.collect() == []
    assert current_rows(frame, schema="_id INT").collect() == []


@pytest.mark.slow
def test_documents_with_a_schema_are_exact_or_refused_with_their_place(
    spark: "SparkSession",
) -> None:
    entries, decimal = Entries(), '{"_id":1,"total":{"$numberDecimal":"1.10"}}'
    entries.commit(change(1, "insert", text=decimal), put(2, total=5))
    entries.commit(change(1, "update", update={"updatedFields": {"name": "x"}}))
    frame = spark.createDataFrame(signed(entries.table()))
    rows = current_rows(frame, schema="_id INT, name STRING, total DECIMAL(10, 2)")
    assert [str(row.document.total) for row in rows.orderBy("key").collect()] == ["1.10", "5.00"]
    assert rows.where("document.name = 'x'").count() == 1
    narrow = "_id INT, total INT"
    with pytest.raises(Exception, match=r"sequence 3 does not fit schema: document\.total: a dec"):
        current_rows(frame, schema=narrow).collect()
    kept = latest_changes(frame, schema=narrow, on_misfit="record").orderBy("key").collect()
    assert [row.document and row.document.total for row in kept] == [None, 5]
    said = json.loads(kept[0].rejected)
    assert (said["path"], kept[1].rejected) == ("total", None)
    assert said["document"]["name"] == "x"


@pytest.mark.slow
def test_what_is_no_batch_of_whole_entries_is_refused_with_what_to_do(
    spark: "SparkSession",
) -> None:
    entries = Entries()
    entries.commit(put(1), change(2, "insert", {"_id": 2}, collection="carts"))
    entries.commit(put(3))
    frame = spark.createDataFrame(signed(entries.table()))
    stream = spark.readStream.format("rate").load()
    cases: list[tuple[Any, str]] = [
        (lambda: latest_changes(stream), "inside foreachBatch"),
        (lambda: current_rows(frame.select("sequence")), "needs the columns"),
        (lambda: current_rows(frame, collections="orders"), "a list of names"),
        (lambda: build_on(frame, frame), "latest_changes without schema"),
    ]
    for refused, said in cases:
        with pytest.raises(ConfigError, match=said):
            refused()
    with pytest.raises(IncompleteCommitError, match="commit 1 "):
        current_rows(frame.where("collection = 'orders'"))
    some = current_rows(frame.where("collection = 'orders'"), collections=["orders"])
    assert some.count() == 2
    with pytest.raises(PipelineError, match="begin at sequence 3"):
        current_rows(frame.where("sequence > 2"))
    assert current_rows(frame.where("sequence > 2"), start="oldest").count() == 1
