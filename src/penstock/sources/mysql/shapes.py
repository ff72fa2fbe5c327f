"""What is known of tables that their TABLE_MAP does not say, at one place in the binlog. Pure.

Which columns are virtual is followed through the statements (record 0022). It is kept in the
position, with which tables have a new shape that nobody was told yet, and by which key the rows of
each were told last (`keyed`): what a row is known by then is nothing that a TABLE_MAP says.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import xxhash
from msgspec import Raw, Struct, json, msgpack, structs

from penstock.sources.mysql import statements
from penstock.sources.mysql.charsets import CODECS, member
from penstock.sources.mysql.definitions import Virtual
from penstock.sources.mysql.statements import Effect, Name
from penstock.sources.mysql.tables import BINARY_COLLATION, Column, ColumnType, Table

KEPT_MAX: Final = 256
"""Tables that a position has; others are forgotten by the next session, which asks for them."""


class Shape(Struct, frozen=True, omit_defaults=True, array_like=True):
    """What is known of one table."""

    database: str
    name: str
    virtual: tuple[str, ...] | None = None
    """Its virtual columns, folded; None where that is not known."""
    untold: bool = False
    """Whether it was created or altered, and its columns were told to nobody since."""
    key: str = ""
    """What its rows were told by last, as `keyed` says it; empty where that is not known."""
    computed: Mapping[str, str] = {}
    """The expressions of columns that the server computes, where columns have rules."""


class Kept(tuple[Shape, ...]):  # noqa: SLOT001 - a tuple has no slot for `encoded`
    """What positions have of tables, of at least one, while one after another has the same.

    Every commit has a position, and few change anything here.
    """

    @cached_property
    def encoded(self) -> Raw:
        """As JSON; made once."""
        return Raw(json.encode(self))


class Shapes:
    """The tables of a server, as its binlog goes on."""

    def __init__(self, kept: Iterable[Shape] = ()) -> None:
        self._known: dict[Name, Shape] = {}
        self._keys: dict[Name, str] = {}
        """By what the rows of a table were told last."""
        self._keying: dict[Name, tuple[int, str]] = {}
        """Tables whose rows have another key in the open transaction than they had before, or
        that was not known: the number of their first row in it, and the key."""
        self._computed: dict[Name, Mapping[str, str]] = {}
        """By table: the expressions of its computed columns, as far as they were met."""
        self._plain: set[Name] = set()
        """Tables that were asked for, and have no virtual column: no position keeps them."""
        self._telling: dict[Name, int] = {}
        """Tables that the open transaction tells of: the number of their first row in it."""
        self._varying: set[Name] = set()
        """Tables with columns whose values differ in shape (`varying`) that were told since this
        reading began."""
        self._kept: tuple[Shape, ...] | None = None
        for one in kept:
            table = (one.database, one.name)
            if one.key:
                self._keys[table] = one.key
            if one.computed:
                self._computed[table] = one.computed
            if not one.key or one.untold or one.virtual is not None:
                self._known[table] = structs.replace(one, key="", computed={})

    def kept(self) -> tuple[Shape, ...]:
        """What a position has of it: the same object until something of it is another."""
        if self._kept is None:
            shapes = {table: Shape(*table) for table in (*self._keys, *self._computed)}
            shapes = {
                table: one for table, one in shapes.items() if table not in self._known
            } | self._known
            found = [
                structs.replace(
                    one, key=self._keys.get(table, ""), computed=self._computed.get(table, {})
                )
                for table, one in shapes.items()
            ]
            if len(found) > KEPT_MAX:
                # Of those without virtual columns, asking mostly says the same.
                found.sort(key=lambda one: bool(one.virtual or one.untold or one.computed))
            self._kept = Kept(found[-KEPT_MAX:]) if found else ()
        return self._kept

    def __contains__(self, table: Name) -> bool:
        """Whether a table is known to be there; of others, that is not known."""
        return table in self._known or table in self._plain or table in self._keys

    def forget(self, table: Name) -> None:
        """It is not known any more whether a table is there, nor what its rows are."""
        self._drop(table)
        self._varying.discard(table)
        self._computed.pop(table, None)
        self.unkeyed(table)

    def computes(self, table: Name, now: Mapping[str, str], *, certain: bool) -> Mapping[str, str]:
        """The server computes columns of a table by these expressions now: all that it computes at
        this place, as far as is known. Unless it is `certain` that the table is now as it was here,
        also what was known before, for its columns may be gone, or have other names."""
        known = self._computed.get(table, {})
        here = now if certain else {**known, **now}
        if here != known:
            self._computed[table], self._kept = here, None
        return here

    def virtual(self, table: Name) -> Virtual | None:
        """A table's virtual columns; None where they are not known."""
        known = self._known.get(table)
        if known is None:
            return frozenset() if table in self._plain else None
        return None if known.virtual is None else frozenset(known.virtual)

    def met(self, table: Name, number: int, *, varying: bool = False) -> bool:
        """A row of a table comes, with this number in the open transaction.

        Whether it is the first since its columns should be told, which `telling` then has it in:
        since it was created or altered, and, of a table that is `varying`, since this reading
        began, for who reads rows must know what they are before he has seen all shapes of them.
        """
        if table in self._telling:
            return False
        if not self._is_untold(table) and not (varying and table not in self._varying):
            return False
        self._telling[table] = number
        return True

    def key(self, table: Name) -> str | None:
        """What the rows of a table were told by last; None where that is not known."""
        return self._keys.get(table)

    def keyed(self, table: Name, key: str) -> None:
        """Rows of a table are told by this key, in no transaction of the stream."""
        if self._keys.get(table) != key:
            self._keys[table], self._kept = key, None

    def keys_anew(self, table: Name, key: str, number: int) -> bool:
        """A row of a table comes by this key, with this number in the open transaction.

        Whether it is the first by a key that is not that of the rows before it.
        """
        known = self._keys.get(table)
        if known == key or table in self._keying:
            return False
        self._keying[table] = number, key
        return known is not None

    def unkeyed(self, table: Name) -> None:
        """None of a table's rows were told, or all that were are told as gone."""
        if self._keys.pop(table, None) is not None:
            self._kept = None

    def telling(self) -> list[Name]:
        """The tables whose columns the open transaction tells."""
        return list(self._telling)

    def undone(self, first: int) -> None:
        """The events of the open transaction from this number on were not committed."""
        if self._telling:
            told = self._telling.items()
            self._telling = {table: number for table, number in told if number < first}
        if self._keying:
            keying = self._keying.items()
            self._keying = {table: one for table, one in keying if one[0] < first}

    def committed(self) -> list[Name]:
        """The open transaction ended, and what it told is told; the tables whose rows it told by
        another key than those before it."""
        if self._telling:
            for table in self._telling:
                if self._is_untold(table):
                    self._put(table, self.virtual(table), untold=False)
            self._varying.update(self._telling)
            self._telling.clear()
        if not self._keying:
            return []
        anew = [table for table in self._keying if table in self._keys]
        self._keys |= {table: key for table, (_, key) in self._keying.items()}
        self._keying.clear()
        self._kept = None
        return anew

    def _is_untold(self, table: Name) -> bool:
        known = self._known.get(table)
        return known is not None and known.untold

    def learned(self, table: Name, virtual: Virtual) -> None:
        """A table's virtual columns were asked for."""
        if table not in self._known and not virtual:
            self._plain.add(table)
            return
        if self.virtual(table) != virtual:
            self._put(table, virtual, untold=self._is_untold(table))

    def alter(self, effect: Effect, after: Mapping[Name, Virtual | None]) -> None:
        """A statement did this; `after` has the virtual columns that it says."""
        match effect:
            case statements.Created(table):
                self._put(table, after.get(table), untold=True)
                self._computed.pop(table, None)
                self.unkeyed(table)
            case statements.Altered(table):
                # Of CREATE INDEX and the like, nothing is said of columns.
                self._put(table, after.get(table, self.virtual(table)), untold=True)
            case statements.Dropped(table):
                self.forget(table)
            case statements.Emptied(table):
                self.unkeyed(table)
            case statements.Renamed(table=table, to=to):
                virtual, untold = self.virtual(table), self._is_untold(table)
                known = table in self._known
                self._drop(table)
                self._drop(to)
                self._varying -= {table, to}  # told by another name, or of another table
                if known:
                    self._put(to, virtual, untold=untold)
                elif virtual is not None:
                    self._plain.add(to)
                computed = self._computed.pop(table, None)
                self._computed.pop(to, None)
                if computed is not None:
                    self._computed[to] = computed
                key = self._keys.pop(table, None)
                self.unkeyed(to)
                if key is not None:
                    self.keyed(to, key)
            case statements.DatabaseDropped(database):
                for table in {*self._known, *self._plain}:
                    if table[0] == database:
                        self._drop(table)
                self._varying = {one for one in self._varying if one[0] != database}
                of_others = self._computed.items()
                self._computed = {one: said for one, said in of_others if one[0] != database}
                for table in [one for one in self._keys if one[0] == database]:
                    self.unkeyed(table)
            case statements.Unclear():
                self._known.clear()
                self._keys.clear()
                self._plain.clear()
                self._varying.clear()
                self._kept = None
            case _:
                pass  # rows only

    def _put(self, table: Name, virtual: Virtual | None, *, untold: bool) -> None:
        self._drop(table)  # the newest come last
        names = None if virtual is None else tuple(sorted(virtual))
        self._known[table] = Shape(*table, names, untold)

    def _drop(self, table: Name) -> None:
        self._known.pop(table, None)
        self._plain.discard(table)
        self._kept = None


def without_keys(shapes: Iterable[Shape], tables: Container[Name]) -> tuple[Shape, ...]:
    """The same, but that nothing is known of how the rows of these tables were told."""
    return tuple(
        structs.replace(one, key="") if (one.database, one.name) in tables else one
        for one in shapes
    )


def chosen(
    names: Sequence[str], known: Virtual | None, now: Mapping[str, bool]
) -> tuple[frozenset[str], bool]:
    """Which of a table's columns are virtual, and whether that is certain.

    `known` are those that its history says, and `now` is which of today's columns are.
    """
    folded = {name.casefold(): name for name in names}
    if known is not None and known <= folded.keys():
        return frozenset(folded[one] for one in known), True
    return frozenset(name for name in names if now.get(name)), list(now) == list(names)


def varying(types: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Of columns by name and ColumnType: those whose values differ in shape, with their type. JSON
    is any value, and the zero TIMESTAMP is a text."""
    return {name: _WORDS[ColumnType(kind)] for name, kind in types if kind in _VARYING}


def version_of(table: Table, virtual: frozenset[str]) -> int:
    """A number of 53 bits for the shape of a table, never 0: equal shapes have equal ones."""
    said = (table.columns, table.key, sorted(virtual))
    return (xxhash.xxh3_64_intdigest(msgpack.encode(said)) >> 11) or 1


_WORDS: Final = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
    ColumnType.FLOAT: "float",
    ColumnType.DOUBLE: "double",
    ColumnType.NEWDECIMAL: "decimal",
    ColumnType.DATE: "date",
    ColumnType.NEWDATE: "date",
    ColumnType.TIME2: "time",
    ColumnType.DATETIME2: "datetime",
    ColumnType.TIMESTAMP2: "timestamp",
    ColumnType.YEAR: "year",
    ColumnType.BIT: "bit",
    ColumnType.ENUM: "enum",
    ColumnType.SET: "set",
    ColumnType.GEOMETRY: "geometry",
    ColumnType.JSON: "json",
    ColumnType.VECTOR: "vector",
}
_VARYING: Final = frozenset({ColumnType.JSON, ColumnType.TIMESTAMP2})
_DIGITS: Final = frozenset({ColumnType.TIME2, ColumnType.DATETIME2, ColumnType.TIMESTAMP2})
_BLOBS: Final = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def described(
    table: Table,
    charsets: Mapping[int, str],
    told: Iterable[str],
    *,
    as_they_are: Container[str],
) -> dict[str, Any]:
    """The columns of a table that are `told`, and its key, as a schema event has them; with the
    values that an ENUM or SET may have where its own are told `as_they_are`."""
    names = set(told)
    return {
        "columns": [
            _column(one, charsets, members=one.name in as_they_are)
            for one in table.columns
            if one.name in names
        ],
        "key": [table.columns[i].name for i in table.key],
    }


def _column(column: Column, charsets: Mapping[int, str], *, members: bool) -> dict[str, Any]:
    charset = charsets.get(column.collation, "")
    said: dict[str, Any] = {"name": column.name, "type": _type(column)}
    if column.unsigned:
        said["unsigned"] = True
    if column.nullable:
        said["nullable"] = True
    if charset and column.collation != BINARY_COLLATION:
        said["charset"] = charset
    if column.values and members:
        said["values"] = [member(one, CODECS.get(charset, "utf-8")) for one in column.values]
    return said


def _type(column: Column) -> str:
    """A column's type in the words of its server; the lengths of texts are in bytes."""
    kind, meta = column.type, column.meta
    text = column.collation != BINARY_COLLATION
    match kind:
        case ColumnType.NEWDECIMAL:
            return f"decimal({meta >> 8},{meta & 0xFF})"
        case ColumnType.BIT:
            return f"bit({meta})"
        case ColumnType.STRING:
            return f"{'char' if text else 'binary'}({meta})"
        case ColumnType.VARCHAR | ColumnType.VAR_STRING | ColumnType.VARCHAR_COMPRESSED:
            return f"{'varchar' if text else 'varbinary'}({meta})"
        case ColumnType.BLOB | ColumnType.BLOB_COMPRESSED:
            return f"{_BLOBS.get(meta, '')}{'text' if text else 'blob'}"
        case _ if kind in _DIGITS and meta:
            return f"{_WORDS[ColumnType(kind)]}({meta})"
        case _ if kind in _WORDS:
            return _WORDS[ColumnType(kind)]
        case _:
            return f"type {kind}"
