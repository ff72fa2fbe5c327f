"""The statements that find what changed between two versions of the current rows. Pure.

Signed rows: for each row of the main collection that changed, or to which a changed row of another
is or was joined, what it comes to now (1) and what it came to then (-1). What a row comes to
depends on it and on what is joined to it, so all others come to the same as before.

A join's other rows matter only up to the first that changed: where what precedes it is the same, a
row that is joined now and was not then, or the other way, is itself a changed one.
"""

# The statements are made here: expressions were parsed, and names are quoted.
# ruff: noqa: S608

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.spark.table.plan import REJECTED
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.sql import IDENTITY, Types, join_clause, main_where, quoted, rows, typed

_SIDE: Final = "`its side`"
"""No column of a table has a space in its name."""


class Sides(Struct, frozen=True, kw_only=True):
    """Relations, by collection."""

    now: Mapping[str, str]
    """All current rows."""
    then: Mapping[str, str]
    """All rows of the version before."""
    came: Mapping[str, str]
    """Rows that `then` has not; of the collections that changed."""
    gone: Mapping[str, str]
    """Rows that `now` has not; of the same collections."""


def difference(new: str, old: str, columns: Mapping[str, str]) -> tuple[str, str]:
    """The rows that came and those that are gone, from the rows of new files and of old ones.

    `columns` are all that both have, each with its type as `simpleString`. Most rows of either are
    in both, copied: what they hold says so, and not their sequence, which a row keeps when a replay
    mends it after a rename. Of those that differ all with the same identity are told on both sides,
    and those that stayed cancel out.
    """
    # No query can read REJECTED; a column that there is not yet is void, and holds nothing.
    compared = {
        name: type_
        for name, type_ in columns.items()
        if type_ != "void" and name not in {*IDENTITY, REJECTED}
    }
    own = ", ".join(IDENTITY)
    same = ", ".join(_exact(name, type_) for name, type_ in compared.items())
    differing = (
        f"SELECT {own} FROM (SELECT *, 1 AS {_SIDE} FROM {new} UNION ALL "
        f"SELECT *, -1 AS {_SIDE} FROM {old}) GROUP BY {own}, {same} HAVING SUM({_SIDE}) <> 0"
    )
    return among(new, differing), among(old, differing)


def _exact(name: str, type_: str) -> str:
    """What is equal only where the values are the same: 0.0 equals -0.0, which has another text."""
    column = quoted(name)
    return f"CAST({column} AS STRING)" if type_ in {"double", "float"} else column


def among(rows_: str, identities: str) -> str:
    """The rows of a relation that have one of the identities that a statement gives."""
    same = " AND ".join(f"t.{name} = m.{name}" for name in IDENTITY)
    return f"(SELECT t.* FROM {rows_} AS t LEFT SEMI JOIN ({identities}) AS m ON {same})"


def signed(query: ViewQuery, types: Types, sides: Sides) -> str:
    """The signed rows."""
    main = query.tables[0].collection
    if sides.came.keys() == {main}:
        came, gone = sides.came[main], sides.gone[main]
    else:
        told = touched(query, sides)
        came, gone = (among(whole[main], told) for whole in (sides.now, sides.then))
    rows_came = rows(query, {**sides.now, main: came})
    rows_gone = rows(query, {**sides.then, main: gone})
    return f"{typed(types, rows_came, sign=1)} UNION ALL {typed(types, rows_gone, sign=-1)}"


def touched(query: ViewQuery, sides: Sides) -> str:
    """The statement for the identities of the main collection's rows that are told."""
    main = query.tables[0].collection
    columns = ", ".join(IDENTITY)
    found = [f"SELECT {columns} FROM {sides.now[main]} WHERE false"]
    for whole, changed in ((sides.now, sides.came), (sides.then, sides.gone)):
        for name, relation in changed.items():
            if name == main:
                found.append(f"SELECT {columns} FROM {relation}")
            else:
                found.append(_joined_to(query, {**whole, name: relation}, name))
    return " UNION ".join(found)


def _joined_to(query: ViewQuery, names: Mapping[str, str], changed: str) -> str:
    """The main collection's rows to which rows of `changed` are joined, but those that `main_where`
    excludes whatever they are joined to; `changed` has its rows alone."""
    main, *others = query.tables
    lines = [
        f"SELECT {', '.join(f'{quoted(main.alias)}.{name}' for name in IDENTITY)}",
        f"FROM {names[main.collection]} AS {quoted(main.alias)}",
    ]
    for table in others:
        is_changed = table.collection == changed
        lines.append(join_clause(table, names, "INNER" if is_changed else table.join))
        if is_changed:
            break
    lines.append(main_where(query))
    return "\n".join(lines)
