"""The statements that keep a view give what its query gives, whatever changed: against DuckDB.

They are Spark's; what they say is shown on DuckDB, which runs thousands of cases in no time.
"""

import functools
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import duckdb
import pytest
import sqlglot
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark.view.changes import Sides, difference, signed
from penstock.spark.view.query import ViewQuery, parse_query
from penstock.spark.view.sql import (
    AGAIN,
    GROUP,
    ROWS,
    Types,
    deltas,
    finished,
    merged,
    partials,
    rows,
    typed,
)
from tests.seeds import cases

pytestmark = pytest.mark.slow

_COLUMNS = {
    "orders": "_id VARCHAR, customer VARCHAR, status VARCHAR, n INTEGER, total DECIMAL(38, 18), "
    "weight DOUBLE",
    "customers": "_id VARCHAR, region VARCHAR, land VARCHAR, score INTEGER",
    "lands": "_id VARCHAR, name VARCHAR",
}
_TYPES = {
    "VARCHAR": "string",
    "INTEGER": "int",
    "DOUBLE": "double",
    "DECIMAL(38,18)": "decimal(38,18)",
    "BOOLEAN": "boolean",
    "BIGINT": "bigint",
}
QUERIES = [
    (
        "SELECT status, count(*) AS orders, count(n) AS known, sum(n) AS total, min(n) AS least, "
        "max(n) AS most, avg(n) AS mean "
        "FROM orders GROUP BY status"
    ),
    (
        "SELECT count(*) AS orders, sum(total) AS revenue, max(weight) AS heaviest FROM orders "
        "WHERE status <> 'void'"
    ),
    (
        "SELECT c.region, count(*) AS orders, sum(o.total) AS revenue, min(o.n) AS least, "
        "sum(o.weight) AS weight FROM orders o JOIN customers c ON o.customer = c._id "
        "WHERE o.status <> 'void' GROUP BY c.region"
    ),
    (
        "SELECT c.region AS place, o.status, count(*) AS orders, count(c._id) AS known, "
        "max(c.score) AS best, sum(o.n) + count(*) AS mixed FROM orders o "
        "LEFT JOIN customers c ON o.customer = c._id GROUP BY c.region, o.status"
    ),
    (
        "SELECT l.name, count(*) AS orders, count(l._id) AS known, min(o.n) AS least "
        "FROM orders o LEFT JOIN customers c ON o.customer = c._id "
        "LEFT JOIN lands l ON c.land = l._id AND o.n >= 0 GROUP BY l.name"
    ),
    (
        "SELECT l.name, sum(o.n) AS total FROM orders o "
        "LEFT JOIN customers c ON o.customer = c._id JOIN lands l ON c.land = l._id "
        "WHERE c.score > 0 OR o.status = 'new' GROUP BY l.name"
    ),
    (
        "SELECT c.region, l.name, count(*) AS orders FROM orders o "
        "LEFT JOIN customers c ON o.customer = c._id LEFT JOIN lands l ON o.customer = l._id "
        "GROUP BY c.region, l.name"
    ),
    (
        "SELECT o.n > 0 AS positive, max(o.total) AS most, avg(o.weight) AS mean FROM orders o "
        "JOIN customers c ON o.n = c.score GROUP BY o.n > 0"
    ),
]

Row = tuple[Any, ...]
Change = tuple[str, str, Row | None]
"""Collection, key, and values; None: the row goes."""
Rows = dict[str, dict[str, tuple[int, Row]]]
"""By collection and key: sequence and values."""

_keys = st.sampled_from(["a", "b", "c"])
_small = st.one_of(st.none(), st.integers(-2, 2))
_values = {
    "orders": st.tuples(
        st.one_of(st.none(), _keys),
        st.sampled_from(["new", "paid", "void", None]),
        _small,
        st.one_of(st.none(), st.integers(-200, 200).map(lambda cents: Decimal(cents) / 100)),
        # Sums of eighths are exact, in whatever order.
        st.one_of(st.none(), st.integers(-16, 16).map(lambda eighths: eighths / 8)),
    ),
    "customers": st.tuples(
        st.sampled_from(["n", "s", None]), st.sampled_from(["a", "b", None]), _small
    ),
    "lands": st.tuples(st.sampled_from(["X", "Y", None])),
}
_changes = st.one_of(
    [
        st.tuples(st.just(name), _keys, st.one_of(st.none(), _values[name]))
        for name in ("orders", "orders", "customers", "lands")
    ]
)


def applied(state: Rows, changes: list[Change], first: int, *, keeping: bool = False) -> Rows:
    """The rows after changes; with `keeping` those that are there keep their sequence."""
    after: Rows = {name: dict(state.get(name, {})) for name in _COLUMNS}
    for sequence, (name, key, values) in enumerate(changes, first):
        if values is None:
            after[name].pop(key, None)
        else:
            was = after[name].get(key)
            after[name][key] = (was[0] if keeping and was else sequence, (key, *values))
    return after


class Duck:
    """A database with some versions of the rows."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})

    def load(self, prefix: str, state: Rows) -> dict[str, str]:
        for name, columns in _COLUMNS.items():
            own = "_key VARCHAR, _source VARCHAR, _database VARCHAR, _sequence BIGINT"
            self.connection.execute(f"CREATE TABLE {prefix}_{name} ({own}, {columns})")
            found = [
                (key, "shop", "db", sequence, *values)
                for key, (sequence, values) in state[name].items()
            ]
            if found:
                marks = f"({', '.join('?' * len(found[0]))})"
                self.connection.execute(
                    f"INSERT INTO {prefix}_{name} VALUES {', '.join([marks] * len(found))}",
                    [value for row in found for value in row],
                )
        return {name: f"{prefix}_{name}" for name in _COLUMNS}

    def run(self, statement: str) -> list[dict[str, Any]]:
        relation = self.connection.execute(translated(statement))
        names = [column[0] for column in relation.description or ()]
        return [dict(zip(names, row, strict=True)) for row in relation.fetchall()]

    def keep(self, name: str, statement: str) -> str:
        self.connection.execute(f"CREATE TABLE {name} AS {translated(statement)}")
        return name

    def columns(self, relation: str) -> dict[str, str]:
        described = self.connection.execute(f"DESCRIBE {relation}").fetchall()
        return {name: _TYPES[type_] for name, type_, *_ in described}

    def types(self, query: ViewQuery, names: Mapping[str, str]) -> Types:
        described = self.connection.execute(f"DESCRIBE {translated(rows(query, names))}").fetchall()
        known = {name: _TYPES[type_] for name, type_, *_ in described}
        return Types(
            groups=tuple(known[f"_g{at}"] for at in range(len(query.groups))),
            arguments=tuple(known[f"_x{at}"] for at in range(len(query.arguments))),
        )


@functools.cache
def translated(statement: str) -> str:
    return sqlglot.transpile(statement, read="spark", write="duckdb")[0]


def table_of(found: list[dict[str, Any]], names: list[str]) -> list[Row]:
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


_BEFORE: Final[list[Change]] = [
    ("orders", "a", ("a", "new", 1, Decimal(1), 0.5)),
    ("orders", "b", ("a", "new", 2, Decimal(2), 1.5)),
    ("orders", "c", ("b", "new", None, None, None)),
    ("customers", "a", ("n", "a", 1)),
    ("lands", "a", ("X",)),
]


@pytest.mark.parametrize("text", QUERIES)
@example(before=_BEFORE, after=[("customers", "a", None)], keeping=False)
@example(before=_BEFORE, after=[("lands", "a", None)], keeping=False)
@example(before=_BEFORE, after=[("customers", "b", ("s", "a", 2))], keeping=False)
@example(before=_BEFORE, after=[("lands", "b", ("Y",))], keeping=False)
@example(before=_BEFORE, after=[("orders", "a", None)], keeping=False)
@example(
    before=_BEFORE, after=[("orders", "b", None), ("orders", "d", _BEFORE[2][2])], keeping=False
)
@example(before=_BEFORE, after=[("orders", "a", None), ("orders", "b", None)], keeping=False)
@example(before=_BEFORE, after=[("orders", "a", _BEFORE[1][2])], keeping=True)
@settings(max_examples=cases(25), deadline=None)
@given(
    before=st.lists(_changes, max_size=14),
    after=st.lists(_changes, max_size=6),
    keeping=st.booleans(),
)
def test_what_changed_makes_the_view_that_all_rows_make(
    text: str,
    before: list[Change],
    after: list[Change],
    keeping: bool,
) -> None:
    query, duck = parse_query(text), Duck()
    old = applied({}, before, 1)
    new = applied(old, after, 100, keeping=keeping)
    now, then = duck.load("now", new), duck.load("then", old)
    types = duck.types(query, now)
    view = duck.keep(
        "kept", finished(query, types, partials(query, types, typed(types, rows(query, then))))
    )
    came: dict[str, str] = {}
    gone: dict[str, str] = {}
    for name in query.collections:
        if new[name] != old[name]:
            came[name], gone[name] = difference(now[name], then[name], duck.columns(now[name]))
    changed = signed(query, types, Sides(now=now, then=then, came=came, gone=gone))
    delta = duck.keep("delta", deltas(query, types, changed))
    whole = f"{ROWS} > 0 AND NOT {AGAIN}" if query.groups else f"NOT {AGAIN}"
    found = duck.run(
        finished(query, types, merged(query, types, delta=delta, view=view), whole=whole)
    )
    again = {row[GROUP] for row in found if row[AGAIN] and (row[ROWS] or not query.groups)}
    everything = typed(types, rows(query, now))
    anew = [
        row
        for row in duck.run(finished(query, types, partials(query, types, everything)))
        if row[GROUP] in again
    ]
    told = {row[GROUP]: row for row in duck.run(f"SELECT * FROM {view}")}
    for row in found:
        told.pop(row[GROUP], None)
        if row[GROUP] not in again and (row[ROWS] or not query.groups):
            told[row[GROUP]] = row
    told |= {row[GROUP]: row for row in anew}
    names = [name for name, _ in query.outputs]
    original = text
    for name in sorted(query.collections, key=len, reverse=True):
        original = original.replace(f"FROM {name}", f"FROM now_{name}")
        original = original.replace(f"JOIN {name}", f"JOIN now_{name}")
    assert table_of(list(told.values()), names) == table_of(duck.run(original), names)
    assert all(row[ROWS] >= 0 for row in told.values())
