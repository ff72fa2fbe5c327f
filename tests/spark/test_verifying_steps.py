"""Steps make the same of the log again: what they made is compared with it, and made right."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.errors import ConfigError, ExpectationError
from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.run import run_pipeline
from penstock.spark.table.plan import KEY
from penstock.spark.verifying import verify_tables
from penstock.spark.verifying_changelog import verify_changelog
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.changelogs import changelog, files_of, sequences_of
from tests.spark.changelogs import rows_of as entries_of
from tests.spark.histories import history, in_order, versions_of
from tests.spark.tables import (
    change,
    pipeline,
    put,
    rejects_of,
    rows_of,
    schema_event,
    version_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.table.comparing import Compared

SCHEMA = "_id INT, n INT, s STRING"
DECIDING: dict[str, Any] = {
    "transform": [
        {"cast": {"n": "int"}},
        {"mask": ["card"]},
        {"filter": "s IS NULL OR s <> 'gone'", "document_schema": "s STRING"},
        {"function": "tests.spark.steps:poisoned", "document_schema": f"{SCHEMA}, card STRING"},
    ],
    "expect": [
        {
            "name": "small",
            "condition": "n IS NULL OR n < 100 OR n = 666",
            "document_schema": "n INT",
            "action": "drop",
        },
        {"name": "few", "condition": "n < 2", "document_schema": "n INT", "action": "warn"},
    ],
}
"""Steps that refuse documents, leave rows out, hide, and fail on some."""
SOUND: dict[str, Any] = {**DECIDING, "transform": DECIDING["transform"][:-1]}
"""The same, but none fails: to look for the one that does takes long."""
PLAIN: dict[str, Any] = {
    "transform": [{"cast": {"n": "int"}}, {"mask": ["card"]}, {"rename": {"s": "said"}}]
}
"""Steps that follow an update without its document."""
STORY = [
    put(1, n=1, card="4111"),
    put(2, n="no number"),
    put(3, n=3, s="gone"),
    put(4, n=666),
    put(5, n=100),
    put(6, n=6, s="gone"),
    put(1, n="2", card="4112"),
    put(6, n=7),
    put(7, n=7, card="4113"),
    put(7, n=8, s="gone"),
    put(8, n=1),
    put(8, n=777),
    put(9, n=9),
]


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([[one] for one in STORY])
    return log


@pytest.fixture
def endpoint(log: BlockLog, tmp_path: Path) -> Iterator[str]:
    book = PipelineBook(tmp_path / "book", log, hold_seconds=3600.0, hold_bytes=1 << 30)
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()
    book.close()


def verified(config: Any, endpoint: str, spark: "SparkSession", **more: Any) -> "Compared":
    verify = verify_changelog if config.to == "changelog" else verify_tables
    (found,) = verify("p", config, endpoint, spark=spark, ranges=4, **more).tables
    return found


def ran(config: Any, endpoint: str, spark: "SparkSession") -> Any:
    """The configuration, once everything is applied; compared, batches end elsewhere."""
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    return config.model_copy(update={"max_events_per_batch": 1000})


def key(number: int) -> str:
    return f'{{"_id":{number}}}'


def test_a_table_that_steps_made_is_compared_and_made_right(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    """Repaired, it has what the steps make, and not what they hide."""
    config = ran(pipeline(tmp_path / "t", max_events_per_batch=7, **SOUND), endpoint, spark)
    before = rows_of(config.path)
    assert sorted(row for _, row in before) == [key(1), key(4), key(6), key(8), key(9)]
    assert sorted(one["sequence"] for one in rejects_of(config.path)) == [2, 5, 12]
    table = DeltaTable(config.path)
    table.delete(f"`{KEY}` = '{key(1)}'")
    table.update({"n": "5"}, predicate=f"`{KEY}` = '{key(6)}'")
    told = verified(config, endpoint, spark, repair=True)
    assert [(one.key, one.what, one.columns) for one in told.listed] == [
        (key(1), "missing", ()),
        (key(6), "different", ("n",)),
    ]
    # What was rejected of 8 left its row stale; there never was a row of 2 and 5.
    assert (told.rows, told.found, told.repaired, told.rejected) == (4, 3, 2, 1)
    assert rows_of(config.path) == before
    assert before["db", key(1)]["card"] == "****"


@pytest.mark.soak
def test_what_a_step_fails_on_is_none_of_either_side(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    log = BlockLog()
    log.append([[put(1, n=1)], [put(2, n=666)]])
    server = FlightServer(log)
    server.start()
    try:
        steps = DECIDING["transform"][-1:]
        config = ran(pipeline(tmp_path / "t", transform=steps), server.address, spark)
        assert [one["sequence"] for one in rejects_of(config.path)] == [2]
        found = verified(config, server.address, spark)
    finally:
        server.stop()
    assert (found.rows, found.found, found.differences) == (1, 1, 0)


def test_a_history_that_steps_made_is_compared_and_made_right(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    config = ran(history(tmp_path / "t", max_events_per_batch=7, **SOUND), endpoint, spark)
    before = in_order(versions_of(config.path))
    table = DeltaTable(config.path)
    table.delete("_from_sequence = 9")
    table.update({"card": "'4112'"}, predicate="_from_sequence = 7")
    told = verified(config, endpoint, spark, repair=True)
    assert [(one.key, one.from_sequence, one.what, one.columns) for one in told.listed] == [
        (key(1), 7, "different", ("card",)),
        (key(7), 9, "missing", ()),
    ]
    assert (told.rows, told.found, told.repaired, told.rejected) == (7, 6, 2, 0)
    assert in_order(versions_of(config.path)) == before


@pytest.mark.soak
def test_a_changelog_that_steps_made_is_compared_and_gets_what_is_missing(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    made = changelog(tmp_path / "t", max_events_per_batch=4, format="parquet", **SOUND)
    config = ran(made, endpoint, spark)
    before = entries_of(config)
    assert {row["check"] for row in before} == {None}
    file = Path(config.path) / files_of(config)[0]
    gone = sequences_of(file)
    file.unlink()
    told = verified(config, endpoint, spark, repair=True)
    assert [(one.sequence, one.what) for one in told.listed] == [(at, "missing") for at in gone]
    assert (told.rows, told.found) == (13, 13 - len(gone))
    assert (told.repaired, entries_of(config)) == (len(gone), before)


def test_what_other_steps_made_is_different_and_made_as_those_of_now_do(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    step = {"sql": "SELECT _id, card FROM documents", "document_schema": "_id INT, card STRING"}
    config = ran(pipeline(tmp_path / "t", transform=[step]), endpoint, spark)
    masked = pipeline(tmp_path / "t", transform=[step, {"mask": ["card"]}])
    spark.range(7).createOrReplaceTempView("documents")
    told = verified(masked, endpoint, spark, repair=True)
    assert [(one.key, one.what, one.columns) for one in told.listed] == [
        (key(1), "different", ("card",)),
    ]
    # A step names its own so for a moment, in another session.
    assert spark.table("documents").count() == 7
    spark.catalog.dropTempView("documents")
    assert rows_of(config.path)["db", key(1)]["card"] == "****"
    assert verified(masked, endpoint, spark).differences == 0
    stops = {"name": "n", "condition": "n < 9", "document_schema": "n INT", "action": "stop"}
    with pytest.raises(ExpectationError):
        verified(pipeline(tmp_path / "t", expect=[stops]), endpoint, spark)


def test_rows_of_elements_are_compared_and_get_what_is_missing(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    items = [put(20, items=[1, 2, 3]), put(21, items=[]), put(22, items=[4]), change(20, "delete")]
    log.append([[one] for one in items])
    made = changelog(tmp_path / "t", max_events_per_batch=4, transform=[{"explode": "items"}])
    config = ran(made, endpoint, spark)
    before = told_apart(entries_of(config))
    table = DeltaTable(config.path)
    table.delete("sequence = 1 OR (sequence = 14 AND (element IS NULL OR element = 1))")
    table.delete("sequence = 16 AND element = 0")
    told = verified(config, endpoint, spark, repair=True)
    assert [(one.sequence, one.element, one.what) for one in told.listed] == [
        (1, None, "missing"),
        (14, None, "missing"),
        (14, 1, "missing"),
        (16, 0, "missing"),
    ]
    assert (told.rows, told.found, told.repaired, told.left) == (21, 17, 4, "")
    assert told_apart(entries_of(config)) == before
    table = DeltaTable(config.path)
    table.update({"full_document": "'{}'"}, predicate="sequence = 14 AND element = 2")
    (altered,) = verified(config, endpoint, spark).listed
    assert (altered.what, altered.element, altered.columns) == ("different", 2, ("full_document",))


def told_apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In an order."""
    return sorted(
        rows, key=lambda row: (row["sequence"], -1 if row["element"] is None else row["element"])
    )


def test_rows_that_a_rename_brought_once_are_neither_judged_nor_deleted(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """`collections` leaves out since where they came from. Those that were lost to the tables too
    are judged: these have none of them."""
    for number, one, to in ((20, "drafts", "orders"), (21, "notes", "lines")):
        log.append([[change(number, "insert", {"_id": number}, collection=one)]])
        log.append([[schema_event("rename", collection=one, to={"db": "db", "coll": to})]])
    log.append([[change(22, "insert", {"_id": 22}, collection="lines")]])
    path, every = tmp_path / "t", ("orders", "drafts", "lines")
    ran(pipeline(path, *every, on_gap="record"), endpoint, spark)
    assert 17 in {one["sequence"] for one in rejects_of(path)}
    before, version = rows_of(path / "orders"), version_of(path / "orders")
    assert [row for _, row in before] == [key(20)]
    since = pipeline(path, "orders", "lines")
    found = verify_tables("p", since, endpoint, spark=spark, ranges=4, repair=True)
    assert {one.collection: one.judged for one in found.tables} == {"orders": False, "lines": True}
    assert found.sound
    assert (rows_of(path / "orders"), version_of(path / "orders")) == (before, version)


def test_tables_of_elements_are_refused(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    exploded = pipeline(tmp_path / "t", transform=[{"explode": "items"}])
    with pytest.raises(ConfigError, match=r"has explode.*Nothing was compared or changed"):
        verified(exploded, endpoint, spark)


def scrawled(dice: random.Random, count: int) -> list[AnyEvent]:
    """Changes that steps take, refuse or leave out; on one of them they fail."""
    changes: list[AnyEvent] = []
    for _ in range(count):
        number, kind = dice.randrange(5), dice.random()
        n: Any = dice.choice([1, 2, "3", 4.0, "no number", 700, 1.5])
        if kind < 0.1:
            changes.append(change(number, "delete"))
        elif kind < 0.4:
            fields = dice.choice([{"n": n}, {"s": "b"}, {"card": "4111"}])
            changes.append(change(number, "update", update={"updatedFields": fields}))
        else:
            s = dice.choice(["a", "a", "gone"])
            card = {} if dice.random() < 0.5 else {"card": "4111"}
            changes.append(change(number, "replace", {"_id": number, "n": n, "s": s, **card}))
    changes.insert(dice.randrange(count), put(dice.randrange(5), n=666))
    return changes


@pytest.mark.soak
@pytest.mark.parametrize("steps", [DECIDING, PLAIN])
@pytest.mark.parametrize("make", [pipeline, history])
def test_where_batches_ended_is_no_difference_whatever_steps_made_of_changes(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    make: Any,
    steps: Any,
) -> None:
    dice = random.Random(seed_of("verifying-steps"))
    log.append([[one] for one in scrawled(dice, 40)])
    size = dice.choice([5, 7, 12])
    config = ran(make(tmp_path / "t", max_events_per_batch=size, **steps), endpoint, spark)
    found = verified(config, endpoint, spark)
    assert found.rows == found.found > 0
    assert found.listed == ()
