"""A pipeline's steps and expectations, from a real log to real tables."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock.errors import ExpectationError
from penstock.serve.flight import FlightServer
from penstock.spark.progress import PipelineProgress
from penstock.spark.replaying import pending_rejects, replay_rejects
from penstock.spark.run import run_pipeline
from tests.flight.blocks import BlockLog
from tests.spark.histories import history, rows
from tests.spark.lakes import Lake, key
from tests.spark.tables import change, pipeline, put, rejects_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

N = "n INT"


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def lake(spark: "SparkSession", log: BlockLog, tmp_path: Path) -> Lake:
    return Lake(spark, log, tmp_path / "t")


def test_a_running_pipeline_does_its_steps_in_order_and_commits_stay_whole(
    spark: "SparkSession", log: BlockLog, endpoint: str, lake: Lake
) -> None:
    """The target counts and proves each commit: rows that are filtered out are still there."""
    log.append(
        [
            [put(1, n=1, card={"no": "4111", "cvc": "9"}, x=1), put(2, n=-2), put(3, n=13)],
            [put(4, n=4, card={"no": "4222"}), change(1, "delete")],
            [put(5, n=5, card={"no": None})],
            [put(6, n="not an int", card={})],
        ]
    )
    config = pipeline(
        lake.path,
        transform=[
            {"drop": ["card.cvc", "x"]},
            {"mask": ["card.no"]},
            {"flatten": True},
            {"rename": {"card_no": "card"}},
            {"filter": "n > 0", "document_schema": N},
            {
                "sql": "SELECT _id, n, card FROM documents WHERE n < 10",
                "document_schema": "_id INT, n INT, card STRING",
            },
            {"cast": {"n": "string"}},
        ],
        expect=[{"name": "few", "condition": "n <> '5'", "document_schema": "n STRING"}],
    )
    seen: list[PipelineProgress] = []
    run_pipeline("p", config, endpoint, spark=spark, once=True, on_progress=seen.append)
    assert lake.rows == {
        key(4): {"_id": 4, "n": "4", "card": "****"},
        key(5): {"_id": 5, "n": "5"},
    }
    assert [row["sequence"] for row in rejects_of(lake.path)] == [7]
    assert [(one.entries, one.rejected, one.unmet) for one in seen] == [(7, 1, {"few": 1})]


def test_what_is_marked_as_deleted_is_deleted(log: BlockLog, lake: Lake) -> None:
    """As it is at the source, before all steps; what is neither marked nor unmarked stays."""
    settings: dict[str, Any] = {
        "apply_as_deletes": "deleted OR state = 'gone'",
        "document_schema": "deleted BOOLEAN, state STRING",
        "transform": [{"drop": ["deleted"]}, {"cast": {"n": "int"}}],
    }
    log.append([[put(at, n=at, deleted=False) for at in range(1, 6)]])
    lake.apply(**settings)
    log.append(
        [
            [put(1, n=10, deleted=True), put(2, n=20), put(3, n=30, state="gone")],
            [put(4, n=40, deleted="yes"), change(5, "delete"), put(6, n=60, deleted=None)],
            [put(7, n="seven"), change(2, "update", update={"updatedFields": {"n": 21}})],
        ]
    )
    lake.apply(**settings)
    assert lake.rows == {
        key(2): {"_id": 2, "n": 20},
        key(4): {"_id": 4, "n": 4},
        key(6): {"_id": 6, "n": 60},
    }
    assert [(row["sequence"], row["step"]) for row in rejects_of(lake.path)] == [
        (9, "apply_as_deletes"),
        (12, "transform 2 (cast)"),
        (13, "apply_as_deletes"),
    ]
    log.append([[put(1, n=11, deleted=False)]])
    lake.apply(**settings)
    assert lake.rows[key(1)] == {"_id": 1, "n": 11}


def test_a_value_that_is_no_document_is_rejected_and_not_filtered_out(
    log: BlockLog, lake: Lake
) -> None:
    """Each is an object in Extended JSON; as a document without the field it would be deleted."""
    values: list[Any] = [Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), b"visa"]
    step = {"filter": "card.kind <> 'test'", "document_schema": "card STRUCT<kind STRING>"}
    log.append([[put(at, card={"kind": "visa"}) for at in range(4)]])
    lake.apply(transform=[step])
    before = lake.rows
    log.append(
        [
            [put(at, card=value) for at, value in enumerate(values)],
            [put(3, card={"kind": "test"})],
        ]
    )
    lake.apply(transform=[step])
    assert lake.rows == {key(at): before[key(at)] for at in range(3)}
    assert lake.stale == {key(at): 5 + at for at in range(3)}
    assert [(row["sequence"], row["reason"]) for row in rejects_of(lake.path)] == [
        (5, "the field card: a $numberDecimal is no document"),
        (6, "the field card: a $date is no document"),
        (7, "the field card: a $binary is no document"),
    ]


def test_expectations_count_or_reject_and_a_later_good_change_heals(
    log: BlockLog, lake: Lake
) -> None:
    """A row whose change is rejected stays as it was and says so; what builds on it is rejected."""
    settings: dict[str, Any] = {
        "transform": [{"cast": {"n": "int"}}],
        "expect": [
            {"name": "small", "condition": "n < 100", "document_schema": N},
            {
                "name": "positive",
                "condition": "n > 0",
                "document_schema": N,
                "action": "expect_or_drop",
            },
        ],
    }
    log.append([[put(1, n=1), put(2, n=2), put(3, n=3), put(4, n=4)]])
    lake.apply(**settings)
    log.append(
        [
            [put(1, n=-1)],  # 5: not met
            [put(2, n="two")],  # 6: no int
            [put(3, n=300), put(5, n=-5)],  # 7: counted; 8: never in the table
            [change(1, "update", update={"updatedFields": {"x": 1}})],  # 9
            [put(4, n=-4)],  # 10: healed in the same batch
            [put(4, n=44)],
            [change(6, "delete")],
        ]
    )
    result, staged = lake.apply(**settings)
    assert lake.rows == {
        key(1): {"_id": 1, "n": 1},
        key(2): {"_id": 2, "n": 2},
        key(3): {"_id": 3, "n": 300},
        key(4): {"_id": 4, "n": 44},
    }
    assert lake.stale == {key(1): 9, key(2): 6}
    rejects = rejects_of(lake.path)
    assert [(row["sequence"], row["expectation"], row["step"]) for row in rejects] == [
        (5, "positive", "positive"),
        (6, None, "transform 1 (cast)"),
        (8, "positive", "positive"),
        (9, None, "positive"),
        (10, "positive", "positive"),
    ]
    assert [row["full_document"] for row in rejects][:2] == [
        '{"_id":1,"n":-1}',
        '{"_id":2,"n":"two"}',
    ]
    assert {row["pipeline"] for row in rejects} == {"p"}
    assert all(row["captured"] for row in rejects)
    assert staged.unmet == {"small": 1, "positive": 3}
    # That which builds on a rejected one is seen as an expectation that cannot be told, so all five
    # are the stage's, and the table says none of them twice.
    assert (staged.rejected, result.rejected) == (5, 0)
    log.append([[put(1, n=7), put(2, n=8)]])
    lake.apply(**settings)
    assert lake.stale == {}
    settings["expect"][1]["action"] = "stop"
    before = lake.rows
    log.append([[put(1, n=9)], [put(2, n=-2, name="secret")]])
    with pytest.raises(ExpectationError, match="positive") as stopped:
        lake.apply(**settings)
    assert f"sequence {log.head}" in str(stopped.value)
    assert "secret" not in str(stopped.value)
    assert lake.rows == before


SECRET = "4111-2222-3333"


def test_what_is_masked_is_nowhere_at_the_destination(log: BlockLog, lake: Lake) -> None:
    """In every file, in every way that a change tells a value or is refused."""
    log.append(
        [
            [put(1, card={"no": SECRET}, mail=SECRET, n=1), put(2, card=[{"no": SECRET}], n=2)],
            [change(1, "update", update={"updatedFields": {"card.no": SECRET, "mail": SECRET}})],
            [change(2, "update", update={"updatedFields": {"card.0.no": SECRET, "n": 3}})],
            [put(3, card={"no": SECRET}, n="no number")],  # refused before the mask
            [put(4, card={"no": SECRET}, n=4, m="no number")],  # refused after it
            [put(5, card={"no": SECRET}, n=-5)],  # not as expected
            [put(6, card={"no": SECRET}, n=6, typed=1)],
            [put(6, card={"no": SECRET}, n=7, typed="no number")],  # refused by the table
            [change(9, "update", update={"updatedFields": {"mail.x": SECRET}})],
            [
                change(
                    1,
                    "update",
                    {"_id": 1, "n": 10},
                    update={"updatedFields": {"n": 10}},
                    unchanged=["mail"],
                )
            ],
        ]
    )
    lake.apply(
        transform=[
            {"cast": {"n": "long"}},
            {"mask": ["card.no"]},
            {"hash": ["mail"], "salt": "0123456789abcdef"},
            {"cast": {"m": "long"}},
        ],
        expect=[
            {"name": "n", "condition": "n > 0", "document_schema": "n BIGINT", "action": "drop"}
        ],
    )
    assert set(lake.rows) == {key(1), key(2), key(6)}
    rejects = {row["sequence"]: row for row in rejects_of(lake.path)}
    assert [rejects[at]["full_document"] is None for at in (5, 6, 7)] == [True, False, False]
    assert not any(row["captured"] for row in rejects.values())
    for folder in (lake.path, Path(f"{lake.path}_rejects")):
        told = repr(DeltaTable(str(folder)).to_pyarrow_table().to_pylist())
        assert SECRET not in told
        for file in folder.rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_the_steps_are_done_by_whoever_applies_a_batch(log: BlockLog, lake: Lake) -> None:
    log.append([[put(1, n="1"), put(2, n="x"), put(3, n="-3")]])
    result = lake.merge(
        transform=[{"cast": {"n": "int"}}, {"filter": "n > 0", "document_schema": N}]
    )
    assert lake.rows == {key(1): {"_id": 1, "n": 1}}
    assert (result.entries, result.rejected) == (3, 1)


def test_rejected_changes_are_replayed_once(
    spark: "SparkSession", log: BlockLog, endpoint: str, lake: Lake
) -> None:
    strict: dict[str, Any] = {"transform": [{"cast": {"n": "int"}}]}
    mended: dict[str, Any] = {"transform": [{"cast": {"n": "double"}}]}
    log.append([[put(1, n=1), put(2, n=2), put(3, n=3), put(4, n=4)]])
    lake.apply(**strict)
    log.append(
        [
            [put(1, n="1.5")],  # 5: fits now
            [put(2, n="two")],  # 6: does not
            [put(3, n="3.5")],  # 7, and
            [change(3, "update", update={"updatedFields": {"x": 1}})],  # 8: what builds on it
            [put(5, n="5.5")],  # 9: never in the table
            [put(6, n="6.5")],  # 10: deleted since
            [change(6, "delete")],
            [put(4, n="4.5")],  # 12: healed since
        ]
    )
    lake.apply(**strict)
    log.append([[put(4, n=4)]])
    lake.apply(**strict)
    config = pipeline(lake.path, **mended)
    outcomes = {
        one.sequence: one.state for one in replay_rejects("p", config, endpoint, spark=spark)
    }
    assert outcomes == {
        5: "replayed",
        6: "left",
        7: "superseded",
        8: "replayed",
        9: "replayed",
        10: "superseded",
        12: "superseded",
    }
    assert lake.rows == {
        key(1): {"_id": 1, "n": 1.5},
        key(2): {"_id": 2, "n": 2},
        key(3): {"_id": 3, "n": 3.5, "x": 1},
        key(4): {"_id": 4, "n": 4},
        key(5): {"_id": 5, "n": 5.5},
    }
    assert lake.stale == {key(2): 6}
    assert [row["sequence"] for row in pending_rejects("p", config)] == [6]
    version = DeltaTable(str(lake.path)).version()
    (left,) = replay_rejects("p", config, endpoint, spark=spark)
    assert (left.sequence, left.state) == (6, "left")
    assert "no number" in left.reason
    assert DeltaTable(str(lake.path)).version() == version
    # The pipeline goes on where it stood.
    log.append([[put(7, n=7)]])
    result, _ = lake.apply(**mended)
    assert (result.entries, result.rows) == (1, 1)


def test_versions_are_of_what_the_steps_made(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """A row that is filtered out ends its version; a change that is refused makes none."""
    path = tmp_path / "h"
    log.append(
        [
            [put(1, n=1, card=SECRET), put(2, n=2, card=None)],
            [put(1, n="one", card=SECRET), put(2, n=-2)],  # 3: no int; 4: filtered out
            [put(1, n=3, card=SECRET), put(3, n=300)],  # 6: not expected
        ]
    )
    config = history(
        path,
        transform=[
            {"cast": {"n": "int"}},
            {"mask": ["card"]},
            {"filter": "n > 0", "document_schema": N},
        ],
        expect=[{"name": "small", "condition": "n < 100", "document_schema": N, "action": "drop"}],
    )
    run_pipeline("h", config, endpoint, spark=spark, once=True)
    assert rows(path, "_key", "_from_sequence", "_to_sequence", "n", "card") == [
        (key(1), 1, 5, 1, "****"),
        (key(1), 5, None, 3, "****"),
        (key(2), 2, 4, 2, None),
    ]
    assert [(row["sequence"], row["expectation"]) for row in rejects_of(path)] == [
        (3, None),
        (6, "small"),
    ]
    assert SECRET not in repr(rejects_of(path))
