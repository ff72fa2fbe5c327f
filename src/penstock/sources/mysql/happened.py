"""What a logged statement did on its server. Pure.

A server logs a statement that did nothing, for its IF [NOT] EXISTS, like any other one, and its
tables are afterwards as if it had been done. Newer servers say with it that they changed something
(`Query.changed`). Where none does, neither the text nor the server tells, but only what was known
of the tables before (`Shapes`): that one is there. What that does not decide is told as rows that
may have changed; nothing is taken for done, or for not done, by the text alone.
"""

from collections.abc import Sequence

from penstock.sources.mysql.shapes import Shapes
from penstock.sources.mysql.statements import (
    Altered,
    Cascading,
    Created,
    Dropped,
    Effect,
    Ensured,
    Renamed,
    RowsChanged,
)


def happened(said: Effect | Ensured, shapes: Shapes, *, changed: bool = False) -> Sequence[Effect]:
    """What the server did, of what a statement says; `shapes` are as of before it. `changed`: it
    says that it changed something.

    They forget what is not known any more behind it.
    """
    if isinstance(said, Ensured) and changed:
        made = Created(said.table)
        return (made, Cascading(said.table)) if said.cascading else (made,)
    if isinstance(said, Ensured):
        return () if said.table in shapes else _ensured(said)
    if isinstance(said, Renamed):
        return _renamed(said, shapes)
    return (said,)


def _ensured(said: Ensured) -> Sequence[Effect]:
    """Of a table that may have been there."""
    altered = Altered(said.table)
    return (altered, Cascading(said.table)) if said.cascading else (altered,)


def _renamed(said: Renamed, shapes: Shapes) -> Sequence[Effect]:
    """A server puts no table in the place of another one."""
    how = "RENAME TABLE IF EXISTS" if said.if_exists else "RENAME TABLE"
    may_be_absent = said.if_exists and said.table not in shapes
    if said.to not in shapes:
        if not may_be_absent:
            return (said,)
        # Either way it is not there now, and the other one may have its rows.
        return Dropped(said.table), RowsChanged(said.to, how)
    if may_be_absent:
        return ()
    # It was a temporary table, which MariaDB logs alike; or what is known is not so.
    for table in (said.table, said.to):
        shapes.forget(table)
    return RowsChanged(said.table, how), RowsChanged(said.to, how)
