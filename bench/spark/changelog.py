"""An append-only archive of all changes in a Delta table, by day and collection."""

import numpy as np

from bench.spark.stage import Figure, Given, agree, columns_of, piped


def measure(given: Given) -> list[Figure]:
    path = given.folder / "changes"
    figure = piped(given, "changelog", to="changelog", path=str(path))
    found = columns_of(path, "sequence", "operation_type")
    agree("the changelog's sequences", found["sequence"], np.arange(1, figure.changes + 1))
    kinds = [int((found["operation_type"] == one).sum()) for one in ("insert", "replace", "delete")]
    agree("its operations", kinds, given.orders.counts(figure.changes))
    return [figure]
