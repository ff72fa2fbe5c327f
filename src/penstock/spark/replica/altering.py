"""How a table of an SQL database is changed before rows are written: decided once, done elsewhere.

The replica's writer makes statements of it (`statements_of`); a comparison makes a table as it
would be behind them (`altered`).
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from penstock.spark.replica.dialect import TEXTS, Dialect, SqlColumn, SqlTable
from penstock.spark.table.kinds import Kind


class Created(Struct, frozen=True, kw_only=True):
    """There is a table."""

    columns: tuple[tuple[str, Kind], ...]
    key: tuple[str, ...]


class Added(Struct, frozen=True, kw_only=True):
    """It has a column more."""

    name: str
    kind: Kind


class Widened(Struct, frozen=True, kw_only=True):
    """A column is of a wider kind."""

    name: str
    kind: Kind
    key: bool
    """It is one of the key's."""


TableChange = Created | Added | Widened


def statements_of(change: TableChange, table: str, dialect: Dialect) -> Sequence[str]:
    """What does it on the server."""
    match change:
        case Created():
            return (dialect.create(table, change.columns, change.key),)
        case Added():
            return dialect.add(table, change.name, change.kind)
        case Widened():
            return (dialect.widen(table, change.name, change.kind, key=change.key),)


def altered(table: SqlTable | None, change: TableChange, dialect: Dialect) -> SqlTable:
    """The table behind it, as the server would describe it."""
    if isinstance(change, Created):
        limit = dialect.key_limit(len(change.key))
        columns = tuple(
            _column(name, kind, limit if name in change.key else None)
            for name, kind in change.columns
        )
        return SqlTable(columns=columns, unique=(frozenset(change.key),))
    assert table is not None
    if isinstance(change, Added):
        added = _column(change.name, change.kind, None)
        return structs.replace(table, columns=(*table.columns, added))
    columns = tuple(
        _column(one.name, change.kind, one.limit) if one.name == change.name else one
        for one in table.columns
    )
    return structs.replace(table, columns=columns)


def _column(name: str, kind: Kind, limit: int | None) -> SqlColumn:
    limited = kind in TEXTS or kind is Kind.BINARY
    # No column says of its text that it was an ObjectId.
    held = Kind.STRING if kind is Kind.OBJECT_ID else kind
    return SqlColumn(name=name, kind=held, declared=held, limit=limit if limited else None)
