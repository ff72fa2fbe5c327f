"""An aggregate that is kept: five functions by customer, over the current rows."""

from typing import Final

import numpy as np

from bench.spark.orders import CUSTOMERS, cents, customer, quantity
from bench.spark.stage import Figure, Given, agree, columns_of, piped

SUMS: Final = "view: count, sum, avg"
EXTREMES: Final = "view: min and max as well"

_QUERY: Final = "SELECT customer, count(*) AS orders, sum(total) AS total, avg(quantity) AS average"
_EXTREMES: Final = ", min(quantity) AS least, max(number) AS newest"
_GROUPS: Final = " FROM orders GROUP BY customer"


def sums(given: Given) -> list[Figure]:
    return [_measured(given, SUMS, _QUERY + _GROUPS)]


def extremes(given: Given) -> list[Figure]:
    return [_measured(given, EXTREMES, _QUERY + _EXTREMES + _GROUPS)]


MEASURES = (sums, extremes)


def _measured(given: Given, what: str, query: str) -> Figure:
    path = given.folder / "view"
    figure = piped(given, what, to="view", path=str(path), query=query)
    rows = given.orders.fold(figure.changes)
    groups = customer(rows.keys)
    counts = np.bincount(groups, minlength=CUSTOMERS)
    there = np.flatnonzero(counts)
    quantities = np.bincount(groups, weights=quantity(rows.last), minlength=CUSTOMERS)
    totals = np.bincount(groups, weights=cents(rows.last), minlength=CUSTOMERS)
    found = columns_of(path, "customer", "orders", "total", "average")
    agree("the view's groups", found["customer"], there)
    agree("its counts", found["orders"], counts[there])
    agree("its sums", np.array([int(one * 100) for one in found["total"]]), totals[there])
    agree("its averages", found["average"], quantities[there] / counts[there])
    if what == EXTREMES:
        newest = np.full(CUSTOMERS, -1)
        np.maximum.at(newest, groups, rows.last)
        least = np.full(CUSTOMERS, 100)
        np.minimum.at(least, groups, quantity(rows.last))
        found = columns_of(path, "customer", "least", "newest")
        agree("its least", found["least"], least[there])
        agree("its greatest", found["newest"], newest[there])
    return figure
