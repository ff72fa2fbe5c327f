"""What is kept of a row is equal where the row is, and nowhere else."""

import struct
from decimal import Decimal
from math import isnan, nan
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.int64 import Int64
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica import beside
from penstock.spark.replica.anew_mongodb import MongoAnew
from penstock.spark.replica.beside import Found, Wanted, rows_in
from penstock.spark.replica.cells import (
    UNREADABLE,
    cells_of,
    column_of,
    differing_columns,
    key_bytes,
    read_cells,
    row_bytes,
    row_cells,
)
from penstock.spark.replicate import dialect_of
from penstock.spark.table.kinds import ARROW_TYPES, Kind

_doubles = st.one_of(
    st.floats(),
    st.integers(-(1 << 54), 1 << 54).map(float),
    st.sampled_from([0.0, -0.0, 1e22, float(1 << 53), float((1 << 53) + 2)]),
)
_decimals = st.decimals(
    min_value=-(10**19), max_value=10**19, allow_nan=False, allow_infinity=False, places=18
)


def cells(kind: Kind, *values: Any) -> list[Any]:
    column: Any = pa.array(values, ARROW_TYPES[kind])
    return cells_of(kind, column)


@example(one=nan, other=-nan)
@given(one=_doubles, other=_doubles)
def test_doubles_are_one_cell_where_they_are_one_value(one: float, other: float) -> None:
    """NaN is itself, and -0.0 is not 0.0."""
    alike = struct.pack(">d", one) == struct.pack(">d", other) or (isnan(one) and isnan(other))
    wanted, found = (row_bytes({"n": cell}) for cell in cells(Kind.DOUBLE, one, other))
    assert (wanted == found) == alike
    assert differing_columns(wanted, found) == (() if alike else ("n",))


@given(value=st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_whole_number_is_one_cell_in_every_column_that_holds_it(value: int) -> None:
    kinds = (Kind.INT32, Kind.INT64, Kind.DOUBLE)
    found = {row_bytes({"n": cells(kind, value)[0]}) for kind in kinds}
    assert found == {row_bytes({"n": cells(Kind.DECIMAL, Decimal(value))[0]})}


@given(one=_decimals, other=_decimals)
def test_decimals_are_one_cell_where_they_are_equal(one: Decimal, other: Decimal) -> None:
    wanted, found = (row_bytes({"n": cell}) for cell in cells(Kind.DECIMAL, one, other))
    assert (wanted == found) == (one == other)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Kind.BOOL, [True, False, None]),
        (Kind.INT64, [1 << 62, -1, None]),
        (Kind.DOUBLE, [0.1, -0.0, 7.0, float("inf"), 1e300, None]),
        (Kind.DECIMAL, [Decimal("1.1"), Decimal(10) ** 19, Decimal("0.1").scaleb(-17), None]),
        (Kind.STRING, ["", "a\0b", "\U0001f600", None]),
        (Kind.BINARY, [b"", b"\0\xff", None]),
        (Kind.TIMESTAMP, [0, -62_135_596_800_000_000, 253_402_300_799_999_999, None]),
        (Kind.JSON, ['{"a": 1}', None]),
    ],
)
def test_a_cell_is_its_value_again(kind: Kind, values: list[Any]) -> None:
    if kind is Kind.TIMESTAMP:
        column: Any = pa.array(values, pa.int64()).cast(ARROW_TYPES[kind])
    else:
        column = pa.array(values, ARROW_TYPES[kind])
    kept = [row_cells(row_bytes({"v": cell})).get("v") for cell in cells_of(kind, column)]
    assert column_of(kind, kept).equals(column)


def test_zero_is_one_key_with_its_sign_or_without() -> None:
    both: Any = pa.array([0.0, -0.0], pa.float64())
    zero, less = cells_of(Kind.DOUBLE, both, key=True)
    assert key_bytes([zero]) == key_bytes([less])


def test_a_folder_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ("PRAGMA max_page_count = 20", *vars(beside)["_TABLES"])
    monkeypatch.setattr(beside, "_TABLES", tables)
    many = (Wanted(b"%d" % n, f"{n}", n, b"x" * 100) for n in range(10_000))
    with (
        pytest.raises(PipelineError, match=r"pipeline p: .*full.*TMPDIR"),
        rows_in(str(tmp_path), pipeline="p") as rows,
    ):
        rows.put("orders", many)


def test_what_a_key_of_another_type_has_left_goes_before_its_row_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To MongoDB it is the same key: the row that had just come would go again."""
    monkeypatch.setattr(beside, "_SLICE", 1)
    old, new = (bson.encode({"_id": one}) for one in (Int64(1), 1))
    config = ReplicatePipelineConfig.model_validate(
        {"to": "replicate", "source": "shop", "uri": "mongodb://nowhere/x"}
    )
    with rows_in(str(tmp_path), pipeline="p") as rows:
        anew = MongoAnew("p", config, rows)
        rows.put("orders", [Wanted(new, '{"_id":1}', 2, new)])
        rows.begin_judging("orders", ())
        rows.judge("orders", [Found(old, old)], anew)
        rows.end_judging("orders")
        repairs = [(one.own, held) for part in rows.repairs("orders") for one, held in part]
        assert repairs == [(old, None), (new, new)]


@pytest.mark.parametrize("server", ["mysql", "postgresql"])
def test_a_truth_that_is_neither_is_told_from_one(server: str) -> None:
    """MySQL takes 7 for true; nobody who writes it there is the pipeline."""
    config = ReplicatePipelineConfig.model_validate(
        {"to": "replicate", "source": "shop", "uri": f"{server}://nowhere/x"}
    )
    read = dialect_of("p", config).read
    values = [0, 1, None, 7, -1] if server == "mysql" else [False, True, None]
    found = read_cells(read, Kind.BOOL, values, key=False)
    assert found == [False, True, None, UNREADABLE, UNREADABLE][: len(values)]
