"""What a change of shape does to a shard's tables. Pure.

| its source says         | of a whole source                        | that is configured         |
|-------------------------|------------------------------------------|----------------------------|
| created                 | begins with its first row                | the same                   |
| dropped                 | `drop-table`                             | `truncate`                 |
| truncated               | `truncate`                               | `truncate`                 |
| renamed                 | `rename-table`, replacing another        | `truncate`                 |
| renamed into it         | from outside the tables: a reset         | a reset                    |
| a SQL column is renamed | `update-column` if the statement is told | a reset, of a declared one |
| columns of SQL, as told | `add-column`, `drop-column`              | the same, of inferred ones |
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from penstock.errors import ResetError
from penstock.mysql_sql.alterations import Alteration, alteration
from penstock.wire import Stream
from penstock.wire.shown import is_hidden
from penstock.zero.inferring import column_name
from penstock.zero.mapping import Mapping, Place, place_of
from penstock.zero.messages import (
    AddColumn,
    DropColumn,
    DropTable,
    RenameTable,
    TableId,
    UpdateColumn,
)
from penstock.zero.rows import Rows, change
from penstock.zero.tables import Column, Draft, Table


class Shaping:
    """The tables of a shard while one change of shape is told."""

    def __init__(self, tables: Sequence[Table], mapping: Mapping | None) -> None:
        self.tables = list(tables)
        self.changed = False
        """Whether `tables` are others now."""
        self._mapping = mapping

    def told(self, stream: Stream, operation: str, description: bytes) -> list[bytes]:
        """The messages of a change of shape, and `tables` behind it. Raises ResetError."""
        facts: dict[str, Any] = msgspec.json.decode(description)
        place = place_of(stream)
        match operation:
            case "drop":
                return self._dropped(self._at(place), truncated="truncated" in facts)
            case "dropDatabase":
                of = [one for one in self.tables if (one.source, one.database) == place[:2]]
                return self._dropped(of, truncated=False)
            case "rename":
                to = facts["to"]
                captured = facts.get("targetCaptured", True)
                return self._renamed(place, (place[0], to["db"], to["coll"]), captured=captured)
            case "modify":
                return self._modified(stream, facts)
            case _:
                return []

    def _at(self, place: Place) -> list[Table]:
        return [
            one
            for one in self.tables
            if one.source
            and (one.source, one.collection) == (place[0], place[2])
            and one.database in {"", place[1]}
        ]

    def _dropped(self, tables: Sequence[Table], *, truncated: bool) -> list[bytes]:
        said: list[bytes] = []
        for table in tables:
            if table.whole and not truncated:
                said.append(change(DropTable(id=table.id)))
                self.tables.remove(table)
                self.changed = True
            else:
                said.append(Rows(table).truncation)
        return said

    # --- renamed ----------------------------------------------------------------------------------

    def _renamed(self, place: Place, to: Place, *, captured: bool) -> list[bytes]:
        tables, drafts = self._at(place), self._drafts(to) if captured else ()
        if any(not one.whole for one in drafts):
            raise ResetError(
                f"{place[2]} was renamed to {to[2]}, which a table of Zero is made of: the log "
                f"does not say which rows it has now. Its shards begin anew."
            )
        was_followed = any(one.whole for one in self._drafts(place))
        if drafts and not (was_followed or any(one.whole for one in tables)):
            raise ResetError(
                f"{place[2]} was renamed to {to[2]}, and its rows were in no table under that "
                f"name: the log does not say which rows it has now. Its shards begin anew."
            )
        said = self._dropped([one for one in self._at(to) if one.whole], truncated=False)
        for table in tables:
            if not table.whole or not drafts:
                said += self._dropped([table], truncated=False)
                continue
            name = drafts[0].name
            if name != table.name:
                new = TableId(table.schema, name)
                said.append(change(RenameTable(old=table.id, new=new)))
            self._replace(
                table, structs.replace(table, name=name, database=to[1], collection=to[2])
            )
        return said

    def _drafts(self, place: Place) -> Sequence[Draft]:
        return () if self._mapping is None else self._mapping.drafts_of(place)

    def _replace(self, table: Table, by: Table) -> None:
        self.tables[self.tables.index(table)] = by
        self.changed = True

    # --- columns of SQL ---------------------------------------------------------------------------

    def _modified(self, stream: Stream, facts: dict[str, Any]) -> list[bytes]:
        place = place_of(stream)
        said: list[bytes] = []
        statement, sql_mode = str(facts.get("statement", "")), str(facts.get("sqlMode", ""))
        altered = alteration(statement, sql_mode)
        for table in self._at(place):
            said += self._altered(table, altered)
        columns = facts.get("columns")
        if columns:
            hidden = frozenset[str]() if self._mapping is None else self._mapping.hidden(stream)
            columns = [one for one in columns if not is_hidden(str(one["name"]), hidden)]
            for table in self._at(place):
                said += self._as_described(table, columns)
        return said

    def _altered(self, table: Table, altered: Alteration) -> list[bytes]:
        """What an ALTER says of columns, all of it of the table as it was before. The server tells
        their names apart without their capitals."""
        renames = _renames(table, altered)
        comes = {new.casefold() for new in renames.values()}
        goes = {name.casefold() for name in altered.dropped} | comes
        said: list[bytes] = []
        kept: list[Column] = []
        moved: dict[Column, str] = {}
        for column in table.columns:
            path = column.path.casefold()
            new = renames.get(path, column.path)
            if new != column.path:
                if column.declared:
                    raise _declared_renamed(table, column, new)
                moved[column] = new
            elif path in comes - renames.keys() and (column.declared or column.key):
                raise _replaced(table, column)
            elif path in goes - renames.keys() and not (column.declared or column.key):
                said.append(change(DropColumn(table=table.id, column=column.name)))
                continue
            kept.append(column)
        taken = {one.name.casefold() for one in kept if one not in moved}
        named = {
            one: structs.replace(one, name=column_name(new, taken), path=new)
            for one, new in moved.items()
        }
        said += _renamed_in_turn(table.id, kept, named)
        after = structs.replace(table, columns=tuple(named.get(one, one) for one in kept))
        if after != table:
            self._replace(table, after)
        return said

    def _as_described(self, table: Table, described: Sequence[dict[str, Any]]) -> list[bytes]:
        """What a table has to be for its collection to have these columns."""
        if not table.whole and all(one.declared for one in table.columns if one.path):
            return []
        names = {str(one["name"]) for one in described}
        said: list[bytes] = []
        kept: list[Column] = []
        for column in table.columns:
            gone = column.path and column.path.split(".", 1)[0] not in names
            if gone and not (column.declared or column.key or column.path in names):
                said.append(change(DropColumn(table=table.id, column=column.name)))
            else:
                kept.append(column)
        after = structs.replace(table, columns=tuple(kept))
        if table.new_fields == "add":
            taken = {one.name.casefold() for one in table.columns}
            for one in described:
                name = str(one["name"])
                kind = sql_type(str(one["type"]))
                if name not in after.consumed and kind is not None:
                    after = after.grown(column_name(name, taken), name, kind)
                    named = after.columns[-1].named
                    said.append(change(AddColumn(table=table.id, column=named)))
        if after != table:
            self._replace(table, after)
        return said


def _renames(table: Table, altered: Alteration) -> dict[str, str]:
    """The new names of columns by their old ones, in lower case. Raises ResetError where it is not
    known whether a column is renamed."""
    there = {one.path.casefold() for one in table.columns}
    olds = {one.old.casefold() for one in altered.renamed}
    staying = there - olds - {name.casefold() for name in altered.dropped}
    found: dict[str, str] = {}
    for one in altered.renamed:
        old = one.old.casefold()
        if one.if_exists and old not in there:
            continue
        if one.if_exists and one.new.casefold() in staying:
            raise ResetError(
                f"of {table.collection}, the column {one.old} was renamed to {one.new} if there "
                f"was one, and table {table.name} of Zero has both: it is not known which of them "
                f"was there. Its shards begin anew."
            )
        found[old] = one.new
    return found


def _renamed_in_turn(
    table: TableId, columns: Sequence[Column], named: dict[Column, Column]
) -> list[bytes]:
    """The messages that give columns their names, such that no two have one at any moment."""
    said: list[bytes] = []
    taken = {one.name.casefold() for one in columns}
    wanted = {new.name.casefold() for new in named.values()}
    left = [(old, new) for old, new in named.items() if old.name != new.name]
    while left:
        free = (
            at
            for at, (old, new) in enumerate(left)
            if new.name.casefold() not in taken - {old.name.casefold()}
        )
        at = next(free, None)
        old, new = left.pop(at or 0)
        if at is None:
            # Each waits for the name of another: one of them steps aside.
            aside = structs.replace(old, name=column_name(new.name, taken | wanted))
            left.append((aside, new))
            new = aside
        said.append(change(UpdateColumn(table=table, old=old.named, new=new.named)))
        taken = taken - {old.name.casefold()} | {new.name.casefold()}
    return said


def _declared_renamed(table: Table, column: Column, new: str) -> ResetError:
    return ResetError(
        f"the column {column.path} of {table.collection} was renamed to {new}, and table "
        f"{table.name} of Zero has it as {column.name} by configuration. Write "
        f"{column.name} = {{ from = '{new}', ... }} there; its shards begin anew."
    )


def _replaced(table: Table, column: Column) -> ResetError:
    why = "is a part of its key" if column.key else "is there by configuration"
    return ResetError(
        f"another column of {table.collection} was renamed to {column.path}, which in table "
        f"{table.name} of Zero {why}: nothing says the values that its rows have there now. Its "
        f"shards begin anew."
    )


_SQL_TYPES: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), "int"),
    **dict.fromkeys(("float", "double"), "double"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("binary", "varbinary", "vector"), "binary"),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), "binary"),
    **dict.fromkeys(("date", "time", "datetime"), "text"),
    "timestamp": "timestamp",
    "decimal": "decimal",
    "enum": "text",
    "set": "json",
    "json": "json",
    "geometry": "json",
}
"""As rows would show it: a column is the same whether its type or its first value came first."""


def sql_type(told: str) -> str | None:
    """The type of the column of Zero for one of SQL; None where only its values can say it."""
    return _SQL_TYPES.get(told.partition("(")[0])
