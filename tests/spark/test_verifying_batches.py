"""Where batches ended is no difference between a table and its log, and no repair undoes it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.event import ChangeEvent
from penstock.serve.flight import FlightServer
from penstock.spark.table.comparing import IDENTITY, UNFIT
from penstock.spark.table.judging import alike
from penstock.spark.table.plan import KEY, REJECTED
from penstock.spark.table.standing import StandingTable
from penstock.spark.verifying import verify_tables
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.tables import apply, change, pipeline, put, rejects_of, rows_of, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import TablePipelineConfig
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
    folder: Path, log: BlockLog, changes: Sequence[ChangeEvent], edges: Sequence[int], **more: Any
) -> "TablePipelineConfig":
    """A pipeline whose batches ended at `edges`; each change is a commit of its own."""
    log.append([[one] for one in changes])
    config = pipeline(folder / "t", **more)
    standing = StandingTable(config, "p")
    standing.start(log.bounds_now())
    for number, (after, until) in enumerate(zip((0, *edges), edges, strict=False)):
        blocks = log.read_now(after=after, until=until)
        entries = pa.Table.from_batches([to_arrow((one,)) for one in blocks])
        result = apply(entries, config, batch_id=number, log_id=log.log_id)
        standing.advance(log.marker(until), result.tables, batch_id=number)
    return config


def verified(
    config: "TablePipelineConfig", endpoint: str, spark: "SparkSession", *, repair: bool = True
) -> "Compared":
    (table,) = verify_tables("p", config, endpoint, spark=spark, ranges=4, repair=repair).tables
    return table


def key(name: str) -> str:
    return f'{{"_id":"{name}"}}'


def is_double(path: str, column: str) -> bool:
    schema: Any = DeltaTable(path).to_pyarrow_table().schema
    return bool(pa.types.is_floating(schema.field(column).type))


WIDENS = [
    put("a", qty=1),
    put("b", qty=1 << 40),
    change("b", "replace", {"_id": "b", "qty": 2}),
    put("c", qty=1.5),
]
"""Alone, the second makes the column int64, which excludes the last; together, the last double."""


@pytest.mark.parametrize(
    ("edges", "events_max", "widens"),
    [((1, 3, 4), 2, True), ((1, 2, 3, 4), 1000, False)],
)
def test_a_column_that_widened_as_its_batches_ended_is_right_and_nothing_is_repaired(
    spark: "SparkSession",
    log: BlockLog,
    endpoint: str,
    tmp_path: Path,
    edges: tuple[int, ...],
    events_max: int,
    widens: bool,
) -> None:
    """A repair deleted the row that the log, cut elsewhere, would have rejected."""
    config = live(tmp_path, log, WIDENS, edges, max_events_per_batch=events_max)
    assert is_double(config.path, "qty") is widens
    before, version = rows_of(config.path), version_of(config.path)
    assert (("db", key("c")) in before) is widens
    found = verified(config, endpoint, spark)
    assert (found.differences, found.listed, found.repaired) == (0, (), 0)
    assert (found.rows, found.found, found.rejected) == (len(before), len(before), 0)
    assert (rows_of(config.path), version_of(config.path)) == (before, version)


NAN = '{"$numberDecimal":"NaN"}'
APART = [
    put("a", qty=1),
    change("whole", "insert", text='{"_id":"whole","qty":2.0}'),
    change("tenth", "insert", text='{"_id":"tenth","qty":{"$numberDecimal":"0.1"}}'),
    change("early", "insert", text=f'{{"_id":"early","note":{NAN}}}'),
    change("healed", "insert", text=f'{{"_id":"healed","note":{NAN}}}'),
    put("healed", note={"b": 1}),
    put("stale", qty=5),
    put("stale", qty="no number"),
    put("lost", qty=6),
]
"""A double that came to integers, which are decimals now; and what no column held, before there was
one of JSON."""


def test_what_one_side_alone_rejected_is_counted_and_neither_deleted_nor_brought_back(
    spark: "SparkSession", log: BlockLog, endpoint: str, tmp_path: Path
) -> None:
    config = live(tmp_path, log, APART, range(1, len(APART) + 1), max_events_per_batch=1000)
    assert [one["key"] for one in rejects_of(config.path)] == [
        key("early"), key("healed"), key("stale"),
    ]  # fmt: skip
    before = rows_of(config.path)
    assert ("db", key("whole")) in before
    # Rejected once says nothing of a row that had a change since.
    table = DeltaTable(config.path)
    for name in ("lost", "healed"):
        table.delete(f"`{KEY}` = '{key(name)}'")
    rows = table.to_pyarrow_table().drop_columns(["note"])
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    found = verified(config, endpoint, spark)
    assert [(one.key, one.what) for one in found.listed] == [
        (key("healed"), "missing"),
        (key("lost"), "missing"),
    ]
    # The log applied anew rejects `whole` and takes `early`; `stale` is stale, or not there.
    assert (found.rows, found.found) == (4, 2)
    assert (found.repaired, found.rejected) == (2, 3)
    # With the column that was gone, which says again that it is JSON.
    assert rows_of(config.path) == before


def test_a_value_is_compared_as_the_column_that_the_table_has(spark: "SparkSession") -> None:
    def rows(values: str, of: str) -> Any:
        session: Any = spark
        frame = session.sql(f"SELECT * FROM VALUES {values} AS t (_key, n)")
        return frame.selectExpr(
            "_key", "'s' AS _source", "'d' AS _database", f"CAST(n AS {of}) AS n",
            "CAST(null AS BIGINT) AS _rejected_sequence",
        )  # fmt: skip

    def held(value: str, of: str, other: str) -> tuple[Any, list[str]]:
        wanted, there = alike(rows(f"('a', {value})", of), rows("('a', null)", other))
        assert wanted.columns == there.columns == [*IDENTITY, "n", REJECTED, UNFIT]
        (row,) = wanted.collect()
        return row["n"], row[UNFIT]

    assert held("7", "bigint", "double") == (7.0, [])
    assert held("'0.1'", "decimal(38,18)", "double")[1] == ["n"]
    assert held("9223372036854775807", "bigint", "double") == (None, ["n"])
    assert held("2147483648", "bigint", "int") == (None, ["n"])
    assert held("'-0.0'", "double", "bigint") == (None, ["n"])
    assert held("'12'", "decimal(38,18)", "double") == (12.0, [])
    assert held("'12'", "decimal(38,18)", "int") == (12, [])
    assert held("'1.5'", "decimal(38,18)", "bigint") == (None, ["n"])
    assert held("1.5", "double", "float") == (1.5, [])
    assert held("0.1", "double", "float") == (None, ["n"])
    assert held("null", "string", "bigint") == (None, [])
    assert held("'7'", "string", "bigint") == (None, ["n"])
