"""SCD type 2: all versions of rows in a Delta table, with what opened and what closed each."""

from typing import Final

import numpy as np

from bench.spark.stage import Figure, Given, agree, columns_of, piped

WHAT: Final = "history (SCD2)"


def measure(given: Given) -> list[Figure]:
    path = given.folder / "orders"
    figure = piped(given, WHAT, to="history", collections=("orders",), path=str(path))
    versions = columns_of(path, "_from_sequence", "_to_sequence", "_current")
    expected = given.orders.versions(figure.changes)
    closed = np.nan_to_num(versions["_to_sequence"].astype(float), nan=0).astype(np.int64) - 1
    agree("what opened the versions", versions["_from_sequence"], expected.opened + 1)
    agree("what closed the versions", closed, expected.closed)
    agree("the versions' current flags", versions["_current"], expected.closed < 0)
    return [figure]
