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

from msgspec import Struct

from penstock.spark.table.plan import SEQUENCE
from penstock.spark.view.query import ViewQuery
from penstock.spark.view.sql import IDENTITY, Types, join_clause, quoted, rows, typed


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


def difference(new: str, old: str) -> tuple[str, str]:
    """The rows that came and those that are gone, from the rows of new files and of old ones.

    Most rows of either are in both, copied. A sequence says which rows: those with it are written
    once, and afterwards may only go. So where it is as often in the one as in the other, they were
    copied; where it is not, all with it are told on both sides, and those that stayed cancel out.
    """
    both = (
        f"SELECT {SEQUENCE} FROM (SELECT {SEQUENCE}, 1 AS _sign FROM {new} UNION ALL "
        f"SELECT {SEQUENCE}, -1 AS _sign FROM {old}) GROUP BY {SEQUENCE} HAVING SUM(_sign) <> 0"
    )
    return tuple(f"(SELECT * FROM {one} WHERE {SEQUENCE} IN ({both}))" for one in (new, old))  # type: ignore[return-value]


def signed(query: ViewQuery, types: Types, sides: Sides) -> str:
    """The signed rows."""
    main = query.tables[0].collection
    if sides.came.keys() == {main}:
        came, gone = sides.came[main], sides.gone[main]
    else:
        same = " AND ".join(f"t.{name} = m.{name}" for name in IDENTITY)
        touched = " UNION ".join(_touched(query, sides))
        came, gone = (
            f"(SELECT t.* FROM {whole[main]} AS t LEFT SEMI JOIN ({touched}) AS m ON {same})"
            for whole in (sides.now, sides.then)
        )
    rows_came = rows(query, {**sides.now, main: came})
    rows_gone = rows(query, {**sides.then, main: gone})
    return f"{typed(types, rows_came, sign=1)} UNION ALL {typed(types, rows_gone, sign=-1)}"


def _touched(query: ViewQuery, sides: Sides) -> list[str]:
    """Statements for the identities of the main collection's rows that are told."""
    main = query.tables[0].collection
    columns = ", ".join(IDENTITY)
    found = [f"SELECT {columns} FROM {sides.now[main]} WHERE false"]
    for whole, changed in ((sides.now, sides.came), (sides.then, sides.gone)):
        for name, relation in changed.items():
            if name == main:
                found.append(f"SELECT {columns} FROM {relation}")
            else:
                found.append(_joined_to(query, {**whole, name: relation}, name))
    return found


def _joined_to(query: ViewQuery, names: Mapping[str, str], changed: str) -> str:
    """The main collection's rows to which rows of `changed` are joined; it has those alone."""
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
    return "\n".join(lines)
