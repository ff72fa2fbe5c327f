"""SCD type 1: current rows in a Delta table, through delta-rs."""

from pathlib import Path
from typing import Final

from bench.spark.orders import quantity
from bench.spark.stage import Figure, Given, agree, columns_of, piped

WHAT: Final = "table (SCD1)"


def measure(given: Given) -> list[Figure]:
    path = given.folder / "orders"
    figure = piped(given, WHAT, to="table", collections=("orders",), path=str(path))
    check(given, path, figure.changes)
    return [figure]


def check(given: Given, path: Path, changes: int) -> None:
    """The table is the fold of the first `changes`."""
    rows, expected = columns_of(path, "_id", "_sequence", "quantity"), given.orders.fold(changes)
    agree("the table's keys", rows["_id"], expected.keys)
    agree("the table's sequences", rows["_sequence"], expected.last + 1)
    agree("a column of the table", rows["quantity"], quantity(expected.last))
