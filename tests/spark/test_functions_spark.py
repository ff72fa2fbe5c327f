"""The functions as Spark runs them: in any partitioning, and refused where nothing can be known."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from penstock.errors import (
    ChangesLostError,
    ConfigError,
    IncompleteCommitError,
    PipelineError,
)
from penstock.serve.flight import FlightServer
from penstock.spark.functions import (
    build_on,
    changelog,
    collection_events,
    current_rows,
    latest_changes,
    rejected_changes,
    row_versions,
)
from penstock.spark.functions.batches import events_of
from penstock.spark.functions.survey import survey
from penstock.spark.functions.told import told_of
from penstock.spark.transform.replay import signed
from tests.flight.blocks import BlockLog
from tests.spark import changelogs
from tests.spark.stories import (
    Row,
    built_of,
    latest_of,
    scattered,
    story,
    surveyed,
)
from tests.spark.tables import Entries, change, gap, put, schema_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from tests.spark.kept import as_rows, comparable, in_histories, in_tables, own_of


@contextmanager
def flight(log: BlockLog) -> Generator[str]:
    server = FlightServer(log)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def frame_of(spark: "SparkSession", entries: pa.Table, *, seed: int = 0) -> "DataFrame":
    """The entries in several partitions, in any order, and some twice."""
    return spark.createDataFrame(scattered(entries, seed)).repartition(3)


def found(frame: "DataFrame") -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [16, 35])
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
    entries = story(16, commits=40).table()
    frame = frame_of(spark, entries)
    with pytest.raises(PipelineError, match="on_event"):
        latest_changes(frame)
    changes = latest_changes(frame, on_event="apart")
    expected = {own_of(row): row for row in latest_of(signed(entries))}
    assert {own_of(row): row for row in found(changes)} == expected
    assert {row["operation"] for row in expected.values()} == {"upsert", "delete", "update"}
    nothing = current_rows(frame.limit(0), start="oldest")
    built = {own_of(row): row for row in found(changes.transform(build_on, nothing))}
    assert built == {own_of(row): row for row in built_of(list(expected.values()), lambda _: None)}
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
    rows = current_rows(frame, start="oldest")
    for made in (rows, latest_changes(frame), collection_events(frame), changelog(frame)):
        assert made.collect() == []
    assert current_rows(frame, start="oldest", schema="_id INT").collect() == []


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


@pytest.mark.slow
def test_spark_has_the_versions_of_histories(spark: "SparkSession", tmp_path: Path) -> None:
    entries = story(16, commits=40).table()
    frame = frame_of(spark, entries)
    made = row_versions(frame, None, ["n"])
    rows = made.toArrow().to_pylist()
    but = {"track_history_except_column_list": ["n"]}
    assert comparable(rows) == in_histories(tmp_path, entries, **but)
    typed = row_versions(frame, schema="n INT").where("collection = 'orders' AND _current")
    assert {row.document.n for row in typed.collect()} <= {None, *range(10)}
    with pytest.raises(ConfigError, match="not both"):
        row_versions(frame, ["n"], ["name"])


@pytest.mark.slow
def test_spark_has_the_rows_of_a_changelog(spark: "SparkSession", tmp_path: Path) -> None:
    """Whatever happened: events and gaps are rows, and one that nobody knows too."""
    log = story(16)
    log.commit(gap())
    log.commit(schema_event("evaporate", collection="Ört/1"))
    entries = log.table()
    config = changelogs.changelog(tmp_path)
    changelogs.add(changelogs.started(config), entries)
    table = DeltaTable(config.path).to_pyarrow_table()
    expected = sorted(table.to_pylist(), key=lambda row: row["sequence"])
    assert [row["collection_folder"] for row in expected[-2:]] != [None, None]
    frame = frame_of(spark, entries)
    rows = changelog(frame).orderBy("sequence").toArrow().to_pylist()
    assert rows == expected
    with pytest.raises(ChangesLostError, match=f"at sequence {log.head - 1} "):
        changelog(frame, on_gap="halt")
    with pytest.raises(IncompleteCommitError):
        changelog(frame.where("sequence <> 1"))


@pytest.mark.slow
def test_nothing_is_made_of_what_came_after_the_survey(spark: "SparkSession") -> None:
    """A drop that nobody surveyed must not be half of what is made."""
    entries = Entries()
    entries.commit(put(1), put(2))
    known = survey(spark.createDataFrame(signed(entries.table())), collections=(), halts=True)
    entries.commit(schema_event("drop"))
    entries.commit(put(3), change(1, "delete"))
    grown = spark.createDataFrame(signed(entries.table()))
    told = told_of(grown, known, collections=(), ended=False)
    assert sorted(row.sequence for row in told.collect()) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("on_loss", "said"), [("true", "TRIMMED"), ("false", "are gone")])
def test_rows_whose_entries_are_gone_when_they_are_read_are_an_error(
    spark: "SparkSession", on_loss: str, said: str
) -> None:
    """What retention has removed since the call would not be missed."""
    log = BlockLog(block_events=2)
    log.append([[put(1), put(2)], [put(3), put(4)]])
    with flight(log) as endpoint:
        read = spark.read.format("penstock").option("endpoint", endpoint)
        entries = read.options(startingOffsets="earliest", failOnDataLoss=on_loss).load()
        made = [entries.transform(one) for one in (current_rows, row_versions)]
        assert [one.count() for one in made] == [4, 4]
        log.trim(2)
        for one in made:
            with pytest.raises(PySparkException, match=said):
                one.toArrow()


def test_entries_of_two_logs_are_an_error_and_not_one_for_the_other(spark: "SparkSession") -> None:
    one, other = Entries(), Entries()
    one.commit(put(7))
    one.commit(put(8))
    other.commit(put(9))
    other.commit(schema_event("drop"))
    frames = [spark.createDataFrame(signed(each.table())) for each in (one, other)]
    for both in (frames[0].union(frames[1]), frames[1].union(frames[0])):
        with pytest.raises(PipelineError, match="more than one log"):
            current_rows(both)


def test_no_entries_at_all_are_no_log_from_its_beginning(spark: "SparkSession") -> None:
    entries = Entries()
    entries.commit(put(1))
    nothing = spark.createDataFrame(signed(entries.table())).limit(0)
    with pytest.raises(PipelineError, match="are none"):
        current_rows(nothing)
    assert current_rows(nothing, start="oldest").count() == 0


def test_a_collection_may_be_named_with_its_source(spark: "SparkSession") -> None:
    entries = Entries()
    entries.commit(put(1), put(2))
    entries.commit(schema_event("drop"))
    entries.commit(put(3))
    frame = spark.createDataFrame(signed(entries.table()))
    plain = current_rows(frame, collections=["orders"])
    named = current_rows(frame, collections=["shop/orders"])
    assert comparable(found(named)) == comparable(found(plain)) != []
    assert current_rows(frame, collections=["other/orders"]).count() == 0
