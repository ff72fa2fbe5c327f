"""Versions that are not what the log says are found, told, and made right."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import HistoryTrimmedError, PipelineError
from penstock.event import AnyEvent
from penstock.serve.flight import FlightServer
from penstock.spark.history import judging
from penstock.spark.run import run_pipeline
from penstock.spark.table import comparing
from penstock.spark.table.plan import KEY
from penstock.spark.table.standing import StandingTable
from penstock.spark.verifying import verify_tables
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.histories import SPAN, at, history, in_order, rows, versions_of
from tests.spark.tables import apply, change, put, rejects_of, schema_event, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import HistoryPipelineConfig
    from penstock.spark.table.comparing import Compared


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def endpoint(log: BlockLog) -> Iterator[str]:
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


def live(
    folder: Path, log: BlockLog, changes: Sequence[AnyEvent], edges: Sequence[int], **more: Any
) -> "HistoryPipelineConfig":
    """A pipeline whose batches ended at `edges`; each change is a commit of its own."""
    log.append([[at(one, 1000 * number)] for number, one in enumerate(changes, 1)])
    config = history(folder / "t", **more)
    standing = StandingTable(config, "p")
    standing.start(log.bounds_now())
    for number, (after, until) in enumerate(zip((0, *edges), edges, strict=False)):
        blocks = log.read_now(after=after, until=until)
        entries = pa.Table.from_batches([to_arrow((one,)) for one in blocks])
        result = apply(entries, config, batch_id=number, log_id=log.log_id)
        standing.advance(log.marker(until), result.tables, batch_id=number)
    return config


def verified(
    config: "HistoryPipelineConfig", endpoint: str, spark: "SparkSession", **more: Any
) -> "Compared":
    (table,) = verify_tables("p", config, endpoint, spark=spark, ranges=4, **more).tables
    return table


def name_of(key: object) -> str:
    return f'{{"_id":{key}}}' if isinstance(key, int) else f'{{"_id":"{key}"}}'


STORY = [
    put(1, n=1),
    put(2, n=1),
    put(1, n=2),
    put(3, n=1, x=0.5),
    put(1, n=2),
    change(2, "delete"),
    put(2, n=7),
    put(1, n=3),
]


def test_what_somebody_altered_is_found_and_made_right(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = live(tmp_path, log, STORY, [3, 8], max_events_per_batch=2)
    before = in_order(versions_of(config.path))
    table = DeltaTable(config.path)
    table.delete(f"`{KEY}` = '{name_of(1)}' AND _from_sequence = 3")
    table.update({"n": "9"}, predicate=f"`{KEY}` = '{name_of(3)}'")
    table.update({"_to_sequence": "5"}, predicate=f"`{KEY}` = '{name_of(1)}' AND n = 1")
    found = table.to_pyarrow_table()
    (extra,) = (one for one in found.to_pylist() if one["_from_sequence"] == 7)
    (twice,) = (one for one in found.to_pylist() if one["_from_sequence"] == 2)
    more = [{**extra, "_from_sequence": 6}, twice]
    write_deltalake(table, pa.Table.from_pylist(more, schema=found.schema), mode="append")
    version = version_of(config.path)
    told = verified(config, endpoint, spark, repair=True)
    assert [(one.key, one.from_sequence, one.what, one.columns) for one in told.listed] == [
        (name_of(1), 1, "different", ("_to_sequence",)),
        (name_of(1), 3, "missing", ()),
        (name_of(2), 2, "repeated", ()),
        (name_of(2), 6, "extra", ()),
        (name_of(3), 4, "different", ("n",)),
    ]
    assert (told.differences, told.repaired, told.rejected) == (5, 5, 0)
    assert version_of(config.path) == version + 1
    assert in_order(versions_of(config.path)) == before
    # It goes on where it stood, and ignores what it has.
    log.append([[put(2, n=8)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert rows(Path(config.path), *SPAN)[-3:-1] == [(7, 7, 9, False), (8, 9, None, True)]
    sound = verified(config, endpoint, spark)
    assert (sound.rows, sound.found, sound.differences, sound.rejected) == (7, 7, 0, 0)


@pytest.mark.soak
def test_a_history_that_is_gone_is_made_again_and_goes_on(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    lines = [change(1, "insert", {"_id": 1, "n": 1}, collection="lines")]
    log.append([[one] for one in [*STORY, *lines]])
    config = history(tmp_path / "t", "orders", "lines")
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    before = in_order(versions_of(tmp_path / "t" / "orders"))
    (tmp_path / "t" / "orders").rename(tmp_path / "away")
    found = verify_tables("p", config, endpoint, spark=spark, ranges=4, repair=True).tables
    assert [(one.collection, one.rows, one.found, one.repaired) for one in found] == [
        ("orders", 6, 0, 6), ("lines", 1, 1, 0),
    ]  # fmt: skip
    assert in_order(versions_of(tmp_path / "t" / "orders")) == before
    log.append([[put(3, n=2)]])
    run_pipeline("p", config, endpoint, spark=spark, once=True)
    assert verify_tables("p", config, endpoint, spark=spark, ranges=4).sound
    assert len(versions_of(tmp_path / "t" / "orders")) == len(before) + 1


NAN = '{"$numberDecimal":"NaN"}'
APART = [
    put("a", qty=1),
    put("whole", qty=1),
    change("whole", "replace", text='{"_id":"whole","qty":2.0}'),
    put("whole", qty=3),
    change("tenth", "insert", text='{"_id":"tenth","qty":{"$numberDecimal":"0.1"}}'),
    put("early", qty=1),
    change("early", "replace", text=f'{{"_id":"early","note":{NAN}}}'),
    put("early", qty=2),
    put("early", qty=3),
    put("stale", qty=5),
    put("stale", qty="no number"),
    put("lost", note={"b": 1}),
    put("lost", qty=6),
    put("whole", qty=4),
]
"""A double that came to integers, which are decimals now; what no column held, before there was one
of JSON; and what no column ever held."""


@pytest.mark.soak
def test_versions_around_what_one_side_alone_rejected_are_counted_and_left(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    ends = range(1, len(APART) + 1)
    config = live(tmp_path, log, APART, ends, max_events_per_batch=1000)
    assert [one["key"] for one in rejects_of(config.path)] == [name_of("early"), name_of("stale")]
    before = in_order(versions_of(config.path))
    # The log applied anew rejects 3, so that 2 is open until 4, and takes 7, where 6 ends. What is
    # behind is judged, of the same rows too.
    table = DeltaTable(config.path)
    table.delete("_from_sequence IN (9, 10, 13, 14)")
    found = verified(config, endpoint, spark, repair=True)
    assert [(one.key, one.from_sequence, one.what) for one in found.listed] == [
        (name_of("early"), 9, "missing"),
        (name_of("lost"), 13, "missing"),
        (name_of("stale"), 10, "missing"),
        (name_of("whole"), 14, "missing"),
    ]
    assert (found.repaired, found.rejected) == (4, 4)
    assert in_order(versions_of(config.path)) == before


def test_a_row_that_was_moved_while_the_sides_disagreed_is_left(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    """Both have rejected the last change before, and one of them another one before that."""
    story: list[AnyEvent] = [
        put(3, a=0.5),
        change(3, "replace", {"_id": 3, "a": [1]}),
        change(3, "update", update={"updatedFields": {"a": 0.25}}),
        change(3, "replace", {"_id": 3, "a": [2]}),
        schema_event("rename", to={"db": "other", "coll": "orders"}),
        put(4, a=0.5),
    ]
    # Those of one batch make one row, which fits.
    config = live(tmp_path, log, story, [1, 3, 6], max_events_per_batch=1)
    rows_then = {one["a"] for one in DeltaTable(config.path).to_pyarrow_table().to_pylist()}
    assert rows_then == {0.5, 0.25}
    found = verified(config, endpoint, spark, repair=True)
    assert (found.listed, found.repaired) == ((), 0)
    assert found.rejected == 3


VALUES = [
    "1", "2", "2.0", "-0.0", "0.5", "9007199254740993", '{"$numberLong":"4"}', '"text"', "null",
    '{"$numberDecimal":"0.1"}', NAN, '{"b":1}', "[1]", "true",
]  # fmt: skip


def scrawled(dice: random.Random, count: int) -> list[AnyEvent]:
    """Changes with values of all kinds in the same fields; updates build on the row before."""
    changes: list[AnyEvent] = []
    for _ in range(count):
        key, kind = dice.randrange(4), dice.random()
        fields = [
            f'"{name}":{dice.choice(VALUES)}' for name in dice.sample("abc", dice.randint(0, 2))
        ]
        if kind < 0.1:
            changes.append(change(key, "delete"))
        elif kind < 0.35:
            update = {"updatedFields": {dice.choice("abc"): dice.choice([1, 2.0, 0.5, "text"])}}
            changes.append(change(key, "update", update=update))
        elif kind < 0.38:
            to = {"db": "other", "coll": "orders"}
            changes.append(schema_event("rename", to=to))
        else:
            text = f"{{{','.join([f'{chr(34)}_id{chr(34)}:{key}', *fields])}}}"
            changes.append(change(key, "replace", text=text))
    return changes


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_where_batches_ended_is_no_difference_whatever_values_came(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path, number: int
) -> None:
    dice = random.Random(seed_of("verifying-history") + number)
    count = 60
    edges = [*sorted(dice.sample(range(1, count), 12)), count]
    size = dice.choice([1, 7, 1000])
    config = live(tmp_path, log, scrawled(dice, count), edges, max_events_per_batch=size)
    found = verified(config, endpoint, spark)
    assert found.listed == ()


def test_what_cannot_be_compared_is_refused(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PipelineError, match="never run"):
        verified(history(tmp_path / "other"), endpoint, spark)
    config = live(tmp_path, log, STORY, [8])
    table = DeltaTable(config.path)
    table.update({"n": "9"}, predicate=f"`{KEY}` = '{name_of(3)}'")
    before = version_of(config.path)
    differing = comparing.differing_rows

    def meanwhile(*args: Any, **more: Any) -> Any:
        DeltaTable(config.path).update({"n": "10"}, predicate=f"`{KEY}` = '{name_of(3)}'")
        return differing(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(judging, "differing_rows", meanwhile)
        with pytest.raises(PipelineError, match=r"moved on.*Nothing of it was changed"):
            verified(config, endpoint, spark, repair=True)
    assert version_of(config.path) == before + 1
    log.trim(3)
    with pytest.raises(HistoryTrimmedError):
        verified(config, endpoint, spark)
