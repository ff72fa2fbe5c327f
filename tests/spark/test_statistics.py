"""What a table's log says of its files never keeps a reader from a row."""

# The stubs of pyarrow and DuckDB leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import decimal
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import bson
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock.audit.fold import Row
from penstock.audit.fold import Table as FoldedTable
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.history.columns import INSTANT, VERSION_COLUMNS
from penstock.spark.history.delta import VersionTable
from penstock.spark.restored import write_state
from penstock.spark.table.arrow import Column, compute
from penstock.spark.table.delta import Table
from penstock.spark.table.plan import OPERATION, OWN_COLUMNS
from penstock.spark.table.reduce import PUT
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.statistics import STATISTICS, statistics_of
from penstock.spark.view.stored import Made, ViewTable

BEYOND = decimal.Decimal("12345678901234567890.123456789012345678")
DECIMAL = pa.decimal128(38, 18)


def stamp(until: int) -> Stamp:
    return Stamp(pipeline="p", log_id=1, after=0, until=until, batch=0)


def rows_of(**columns: Column) -> pa.Table:
    """Rows of a table with these columns of documents; their keys are 1, 2, ..."""
    count = len(next(iter(columns.values())))
    own = [
        {"_key": str(n), "_source": "shop", "_database": "db", "_sequence": n}
        for n in range(1, count + 1)
    ]
    table = pa.Table.from_pylist(own, schema=OWN_COLUMNS)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def changes_of(**columns: Column) -> pa.Table:
    rows = rows_of(**columns)
    return rows.append_column(OPERATION, pa.array([PUT] * rows.num_rows, pa.int8()))


def of_arrow(path: Path, condition: str) -> list[Any]:
    """By what DuckDB gives to the dataset that delta-rs makes."""
    changes = DeltaTable(path).to_pyarrow_dataset()
    assert changes is not None
    found = duckdb.sql(f"SELECT _key FROM changes WHERE {condition} ORDER BY 1")
    assert found is not None
    return found.fetchall()


def of_delta_rs(path: Path, condition: str) -> list[Any]:
    query = f"SELECT _key FROM t WHERE {condition} ORDER BY 1"
    found = QueryBuilder().register("t", DeltaTable(path)).execute(query)
    return [(one["_key"],) for one in pa.table(found).to_pylist()]


def of_polars(path: Path, condition: str) -> list[Any]:
    found = pl.scan_delta(str(path)).filter(pl.sql_expr(condition)).select("_key").collect()
    return sorted(found.rows())


READERS = [of_arrow, of_delta_rs, of_polars]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("values", "condition", "keys"),
    [
        (pa.array([7.5, math.inf, -math.inf]), "v < 8", "13"),
        (pa.array([7.5, math.inf, -math.inf]), "v > 8", "2"),
        (pa.array([7.5, math.nan]), "v > 5 AND v < 100", "1"),
        (pa.array([-0.0]), "v = 0", "1"),
        (pa.array([BEYOND], DECIMAL), f"v = {BEYOND}", "1"),
        (pa.array([BEYOND], DECIMAL), f"v >= {BEYOND}", "1"),
        (pa.array([True, False]), "v", "1"),
        (pa.array(["x" * 100]), f"v = '{'x' * 100}'", "1"),
        (pa.array(["\U0010ffff" * 40]), "v > 'a'", "1"),
        (pa.array([2**63 - 1]), f"v = {2**63 - 1}", "1"),
    ],
)
def test_every_reader_finds_every_value(
    read: Callable[[Path, str], list[Any]],
    values: Column,
    condition: str,
    keys: str,
    tmp_path: Path,
) -> None:
    if pa.types.is_decimal(values.type) and read is not of_arrow:
        condition = condition.replace(str(BEYOND), f"CAST('{BEYOND}' AS DECIMAL(38, 18))")
    Table(str(tmp_path)).merge(changes_of(v=values), stamp(1))
    assert read(tmp_path, condition) == [(key,) for key in keys]


def test_a_part_of_a_millisecond_is_found(tmp_path: Path) -> None:
    instants = [datetime(year, 1, 2, 3, 4, 5, 123456, UTC) for year in (1960, 2024)]
    Table(str(tmp_path)).merge(changes_of(v=pa.array(instants, INSTANT)), stamp(1))
    for key, instant in enumerate(instants, start=1):
        assert of_arrow(tmp_path, f"v = '{instant}'") == [(str(key),)]
        found = pl.scan_delta(str(tmp_path)).filter(pl.col("v") == instant).collect()
        assert found["_key"].to_list() == [str(key)]


def matching(path: Path, condition: Any) -> list[dict[str, Any]]:
    """The rows that delta-rs's dataset finds."""
    dataset: Any = DeltaTable(path).to_pyarrow_dataset()
    rows: list[dict[str, Any]] = dataset.to_table(filter=condition).to_pylist()
    return rows


def said(path: Path) -> list[dict[str, Any]]:
    """What the newest version says of each file: its columns with a least value."""
    actions: list[dict[str, Any]] = pa.table(DeltaTable(path).get_add_actions()).to_pylist()
    return [
        {name: value for name, value in (one.get("min") or {}).items() if value is not None}
        for one in actions
    ]


def test_files_are_still_passed_over_by_other_columns(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    table.merge(changes_of(n=pa.array([5]), v=pa.array([math.inf])), stamp(1))
    table.merge(changes_of(n=pa.array([5]), v=pa.array([0.5]), new=pa.array(["a"])), stamp(2))
    (one,) = said(tmp_path)
    assert one["n"] == 5
    assert one["new"] == "a"
    assert one["_sequence"] == 1
    assert "v" not in one
    assert table.version == 3, "made, written, the new column said, written"


@pytest.mark.parametrize("wide", [pa.array([math.inf]), pa.array([BEYOND], DECIMAL)])
def test_a_column_that_widens_is_left_out_before_it_has_such_a_value(
    wide: Column, tmp_path: Path
) -> None:
    table = Table(str(tmp_path))
    table.merge(changes_of(v=pa.array([5])), stamp(1))
    assert said(tmp_path)[0]["v"] == 5
    table.rewrite(changes_of(v=wide), stamp(2))
    assert "v" not in said(tmp_path)[0]
    assert len(matching(tmp_path, compute.field("v") == wide[0])) == 1


def old_table(path: Path, *, partition_by: str | None = None) -> list[dict[str, Any]]:
    """One of a table that never said of which columns its log tells."""
    rows = rows_of(
        v=pa.array([7.5, math.inf]),
        n=pa.array([5, 6]),
        at=pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 2, INSTANT),
        b=pa.array([True, True]),
    )
    write_deltalake(path, rows, partition_by=partition_by)
    assert matching(path, compute.field("v") < 8) == []
    listed: list[dict[str, Any]] = rows.to_pylist()
    return listed


@pytest.mark.parametrize("partition_by", [None, "b"])
def test_a_table_from_before_is_put_right_without_writing_its_files_anew(
    partition_by: str | None, tmp_path: Path
) -> None:
    rows = old_table(tmp_path, partition_by=partition_by)
    before = DeltaTable(tmp_path)
    assert Table(str(tmp_path)).compact() == (0, 0)
    after = DeltaTable(tmp_path)
    assert len(matching(tmp_path, compute.field("v") < 8)) == 1
    assert after.file_uris() == before.file_uris()
    assert sorted(after.to_pyarrow_table().to_pylist(), key=itemgetter("_key")) == rows
    (one,) = said(tmp_path)
    assert (one["n"], one["at"].year) == (5, 2024)
    version = after.version()
    Table(str(tmp_path)).compact()
    assert DeltaTable(tmp_path).version() == version, "it is done once"


WRITES: list[Callable[[Table], None]] = [
    lambda table: table.append(table_rows(), stamp(2)),
    lambda table: table.merge(changes_of(v=pa.array([9.5])), stamp(2)),
    lambda table: table.empty("`_key` = '9'", stamp(2)),
    lambda table: table.relabel("`_key` = '9'", {"n": "1"}, stamp(2)),
]


@pytest.mark.parametrize("write", WRITES)
def test_any_commit_puts_it_right(write: Callable[[Table], None], tmp_path: Path) -> None:
    old_table(tmp_path)
    write(Table(str(tmp_path)))
    assert matching(tmp_path, compute.field("v") > 9)
    assert "v" not in set[str]().union(*said(tmp_path))


def table_rows() -> pa.Table:
    return rows_of(v=pa.array([9.5]))


def test_what_another_wrote_meanwhile_is_seen_before_a_table_is_put_right(tmp_path: Path) -> None:
    """Behind it, the commit that follows would be made without having seen that."""
    old_table(tmp_path)
    first, second = Table(str(tmp_path)), Table(str(tmp_path))
    write_deltalake(tmp_path, table_rows(), mode="append", schema_mode="merge")
    with pytest.raises(CommitFailedError):
        second.append(table_rows(), stamp(2))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 3
    assert DeltaTable(tmp_path).metadata().configuration == {}
    # What joins files is in nobody's way, and a file that it has replaced stays replaced.
    first.reload()
    assert DeltaTable(tmp_path).optimize.compact()["numFilesRemoved"] == 2
    first.append(table_rows(), stamp(2))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 4


def test_views_histories_and_restored_tables_say_it_too(tmp_path: Path) -> None:
    config = ViewPipelineConfig.model_validate(
        {"to": "view", "source": "s", "path": "v", "query": "SELECT sum(v) AS v FROM orders"}
    )
    view = ViewTable(str(tmp_path / "view"), "p", config=config)
    for number in (5, 5.5):
        view.replace(pa.table({"v": pa.array([number])}), Made(query=1, marks={}))
    history = VersionTable(str(tmp_path / "history"))
    values: dict[Any, Any] = {pa.int64(): 1, pa.bool_(): True, INSTANT: 0}
    version = {one.name: values.get(one.type, "a") for one in VERSION_COLUMNS}
    versions = pa.Table.from_pylist([version], schema=VERSION_COLUMNS)
    history.put(versions.append_column("v", pa.array([math.inf])), stamp(1))
    restored = FoldedTable(name=("shop", "orders"), began="created", at=1, ts=1)
    row = bson.encode({"_id": 1, "v": math.inf})
    restored.rows[bson.encode({"_id": 1})] = Row(data=row, whole=True, shape=0)
    write_state(str(tmp_path / "restored"), "s", [restored], at=1)
    for name in ("view", "history", "restored"):
        assert len(matching(tmp_path / name, compute.field("v") > 5)) == 1
        assert "v" not in said(tmp_path / name)[0]
    assert DeltaTable(tmp_path / "history").version() == 1, "no commit more than were needed"
    assert said(tmp_path / "history")[0]["_operation"] == "a"


def test_the_property_names_columns_as_sql_does() -> None:
    columns: dict[str, pa.DataType] = {
        "a b": pa.int64(),
        "x.y": pa.string(),
        "f`g": pa.date32(),
        "d": pa.float64(),
        "part": pa.string(),
        "s": pa.struct([pa.field("n", pa.int64())]),
    }
    schema = pa.schema(columns)
    assert statistics_of(schema, ["part"]) == "`a b`,`x.y`,`f``g`"
    many = pa.schema([(f"c{n}", pa.int64()) for n in range(40)])
    assert statistics_of(many).count(",") == 31


def test_names_that_need_quotes_are_those_of_no_other_column(tmp_path: Path) -> None:
    """delta-rs tells of all columns where it cannot read the names."""
    odd = ["x.y", "é", "select", "a'b", 'a"b', "1", "--", "d\\e"]
    columns = {name: pa.array([1]) for name in odd}
    Table(str(tmp_path)).merge(changes_of(**columns, v=pa.array([math.inf])), stamp(1))
    assert set(said(tmp_path)[0]) == {*odd, "_key", "_source", "_database", "_sequence"}
    configuration = DeltaTable(tmp_path).metadata().configuration
    assert json.dumps("v") not in configuration[STATISTICS]
