"""Groups of a view that are not as they should be, by hand."""

import math
from decimal import Decimal
from typing import Any

import pytest

from penstock.spark.table.arrow import arrow
from penstock.spark.view.comparing import compare_groups
from penstock.spark.view.sql import GROUP

_ROWS: list[dict[str, Any]] = [
    {GROUP: '["a"]', "n": 1, "mean": 0.5, "total": Decimal("1.50")},
    {GROUP: '["b"]', "n": 2, "mean": math.nan, "total": None},
    {GROUP: '["c"]', "n": None, "mean": None, "total": Decimal("2.50")},
]


def table(rows: list[dict[str, Any]]) -> Any:
    return arrow.Table.from_pylist(rows)


def told(there: list[dict[str, Any]], **more: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    found = compare_groups(table(_ROWS), table(there), listed_max=more.get("listed_max", 9))
    assert (found.rows, found.found, found.collection) == (3, len(there), "")
    assert found.ranges_differing == (1 if found.differences else 0)
    if "listed_max" not in more:
        assert found.differences == len(found.listed)
    return [(row.key, row.what, row.columns) for row in found.listed]


def test_equal_rows_are_equal_in_whatever_order_and_columns() -> None:
    assert told(_ROWS) == []
    assert told([dict(reversed(row.items())) for row in reversed(_ROWS)]) == []


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, "n", 2), (0, "mean", None), (1, "mean", 0.5), (2, "n", 0), (1, "total", Decimal("0.00"))],
)
def test_a_value_that_differs_is_told_by_group_and_column(
    row: int, column: str, value: Any
) -> None:
    there = [dict(one) for one in _ROWS]
    there[row][column] = value
    assert told(there) == [(_ROWS[row][GROUP], "different", (column,))]


def test_rows_that_are_missing_or_extra_or_there_twice_are_told() -> None:
    extra = {**_ROWS[0], GROUP: '["d"]'}
    assert told([_ROWS[0], _ROWS[1], _ROWS[1], extra]) == [
        ('["b"]', "repeated", ()),
        ('["c"]', "missing", ()),
        ('["d"]', "extra", ()),
    ]
    assert len(told([extra], listed_max=2)) == 2
    nothing = compare_groups(table(_ROWS), table(_ROWS).slice(0, 0), listed_max=0)
    assert (nothing.differences, nothing.listed) == (3, ())


def test_a_column_that_is_gone_or_of_another_type_differs_where_it_has_a_value() -> None:
    without = [{name: row[name] for name in row if name != "n"} for row in _ROWS]
    assert told(without) == [('["a"]', "different", ("n",)), ('["b"]', "different", ("n",))]
    other = [{**row, "mean": "0.5"} for row in _ROWS]
    assert [names for _, _, names in told(other)] == [("mean",)] * 3
