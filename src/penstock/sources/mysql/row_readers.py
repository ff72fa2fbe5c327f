"""Functions that read a table's rows, each written and compiled for the table's columns.

A function knows each column's type, so that a row costs no decision that all of the table's rows
share (decision 0009). What has a fixed size is unpacked with its neighbours by one call; a row
without a NULL, as most are, has the most neighbours, and is read by lines of its own. So reads a
row of `id BIGINT NOT NULL, kind ENUM('a', 'b'), note VARCHAR(9)`:

    def read(b, p):
        n = b[p]
        p += 1
        if n & 6:
            ...                      # as below, but by itself what may be NULL
        else:
            c0, r1, s, = o2(b, p)    # o2 unpacks "<qBB"
            p += 10
            c1 = o3[r1]              # o3 is ("", "a", "b")
            q = p
            p += s
            c2 = str_(b[q:p], 'utf-8')
        return {'id': c0, 'kind': c1, 'note': c2}, p

Pure. Sources: the MariaDB documentation, "ROWS_EVENT_V1/V2"; the MySQL source documentation,
"Binary log: row values".
"""

import codecs
from collections.abc import Callable, Mapping
from struct import Struct as Layout
from typing import Any, Final

from msgspec import structs

from penstock import extjson
from penstock.sources.mysql.binary_json import json_value
from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.charsets import CODECS, latin1, member
from penstock.sources.mysql.json_diffs import JSON_DIFFS, JsonDiffs
from penstock.sources.mysql.tables import BINARY_COLLATION, Column, ColumnType, Table
from penstock.sources.mysql.values import (
    date_text,
    datetime_lines,
    decimal_bytes,
    decimal_lines,
    fraction_bytes,
    geometry,
    set_reader,
    time_reader,
    timestamp_lines,
    uncompressed_column,
)

Document = dict[str, Any]
RowReader = Callable[[bytes, int], tuple[Document, int]]
"""Reads the row that begins at a place: its document, and where the next one begins."""


class UnreadableTableError(ValueError):
    """A table has a column that has no exact form; the message names it and its type."""


_FIXED: Final[dict[tuple[int, bool], str]] = {
    (ColumnType.TINY, False): "b",
    (ColumnType.TINY, True): "B",
    (ColumnType.SHORT, False): "h",
    (ColumnType.SHORT, True): "H",
    (ColumnType.LONG, False): "i",
    (ColumnType.LONG, True): "I",
    (ColumnType.LONGLONG, False): "q",
    (ColumnType.LONGLONG, True): "Q",
    (ColumnType.FLOAT, False): "f",
    (ColumnType.FLOAT, True): "f",
    (ColumnType.DOUBLE, False): "d",
    (ColumnType.DOUBLE, True): "d",
}
"""How `struct` has those that are values as they are."""
_OF_MYSQL: Final[dict[int, Callable[[bytes], Any]]] = {
    ColumnType.JSON: json_value,
    JSON_DIFFS: JsonDiffs,
    ColumnType.VECTOR: extjson.binary,
}
_WITH_LENGTH: Final = frozenset(
    {ColumnType.BLOB, ColumnType.GEOMETRY, ColumnType.BLOB_COMPRESSED, *_OF_MYSQL}
)
"""Those whose values say their length, in so many bytes as their table says."""
_TEXTS: Final = frozenset(
    {
        ColumnType.STRING,
        ColumnType.VARCHAR,
        ColumnType.VAR_STRING,
        ColumnType.VARCHAR_COMPRESSED,
    }
)
"""Those whose values say their length in one byte, or in two where it may be more than 255."""
_UNSIGNED: Final = {1: "B", 2: "H", 4: "I"}


def row_reader(
    table: Table, charsets: Mapping[int, str], told: Mapping[int, str], image: int
) -> RowReader:
    """Write and compile what reads rows of which the columns of `image` are there.

    `charsets` names the character set of each collation; a row's document has the columns `told`,
    by their number. Raises UnreadableTableError, and MalformedEventError for a table that there
    cannot be.
    """
    writer = _Writer(table, charsets)
    there = [(i, column) for i, column in enumerate(table.columns) if image >> i & 1]
    read = [(i, column if i in told else _unread(column)) for i, column in there]
    lines = writer.row(read)
    items = ", ".join(f"{told[i]!r}: c{i}" for i, _ in there if i in told)
    body = "\n    ".join([*lines, f"return {{{items}}}, p"])
    # Names of columns stand in it as literals of Python only, which `repr` makes of any text.
    source = f"def read(b, p):\n    {body}\n"
    space = writer.names
    exec(compile(source, f"<rows of {table.database}.{table.name}>", "exec"), space)  # noqa: S102
    reader: RowReader = space["read"]
    return reader


def _unread(column: Column) -> Column:
    """The column as bytes of the same length: what is not told needs no character set."""
    if column.type in {ColumnType.ENUM, ColumnType.SET}:
        return structs.replace(column, type=ColumnType.BIT, meta=8 * column.meta)
    if column.type in _WITH_LENGTH:
        return structs.replace(column, type=ColumnType.BLOB, collation=BINARY_COLLATION)
    return structs.replace(column, collation=BINARY_COLLATION)


class _Lines:
    """Lines that read some columns from the bytes `b` at `p`, and go on behind them."""

    def __init__(self, name: Callable[[Any], str]) -> None:
        self._name = name
        self._written: list[str] = []
        self._codes: list[str] = []
        self._into: list[str] = []
        self._order = ""
        self._then: list[str] = []

    def take(self, code: str, into: str, *, order: str = "") -> None:
        """Unpack what comes next: `code` is of `struct`, and so is `order`; no order is any."""
        if order and self._order and order != self._order:
            self.unpack()
        self._order = self._order or order
        self._codes.append(code)
        self._into.append(into)

    def then(self, *lines: str) -> None:
        """What is done with what was taken, as soon as it is unpacked."""
        self._then += lines

    def unpack(self) -> None:
        """Write what was taken, so that `p` is behind it."""
        if self._codes:
            layout = Layout((self._order or "<") + "".join(self._codes))
            self._written.append(
                f"{', '.join(self._into)}, = {self._name(layout.unpack_from)}(b, p)"
            )
            self._written.append(f"p += {layout.size}")
            self._written += self._then
        self._codes, self._into, self._order, self._then = [], [], "", []

    def add(self, *lines: str) -> None:
        """Write lines that follow."""
        self.unpack()
        self._written += lines

    def all(self) -> list[str]:
        """What was written."""
        self.unpack()
        return self._written


class _Writer:
    """Writes the source of one table's function, and keeps the objects that it uses."""

    def __init__(self, table: Table, charsets: Mapping[int, str]) -> None:
        self.table = table
        self.charsets = charsets
        self.names: dict[str, Any] = {"int_": int.from_bytes, "str_": str}

    def name(self, value: Any) -> str:
        """A name by which the function finds `value`."""
        name = f"o{len(self.names)}"
        self.names[name] = value
        return name

    def row(self, columns: list[tuple[int, Column]]) -> list[str]:
        """Lines that put the value of each of these columns, of a row, into its variable."""
        size = (len(columns) + 7) // 8
        whole = _Lines(self.name)
        for index, column in columns:
            self._column(whole, column, index)
        nullable = sum(column.nullable << bit for bit, (_, column) in enumerate(columns))
        if not nullable:
            return [f"p += {size}", *whole.all()]
        return [
            "n = b[p]" if size == 1 else f"n = int_(b[p:p + {size}], 'little')",
            f"p += {size}",
            f"if n & {nullable}:",
            *_indented(self._with_nulls(columns)),
            "else:",
            *_indented(whole.all()),
        ]

    def _with_nulls(self, columns: list[tuple[int, Column]]) -> list[str]:
        lines = _Lines(self.name)
        for bit, (index, column) in enumerate(columns):
            if not column.nullable:
                self._column(lines, column, index)
                continue
            one = _Lines(self.name)
            self._column(one, column, index)
            lines.add(f"if n & {1 << bit}:", f"    c{index} = None", "else:")
            lines.add(*_indented(one.all()))
        return lines.all()

    def _column(self, lines: _Lines, column: Column, index: int) -> None:
        """Put the value of a column that is not NULL into its variable."""
        kind, meta, into, raw = column.type, column.meta, f"c{index}", f"r{index}"
        fixed = _FIXED.get((kind, column.unsigned))
        if fixed is not None:
            lines.take(fixed, into, order="<")
            if kind in {ColumnType.FLOAT, ColumnType.DOUBLE}:
                # No server takes what is no number today, and JSON would make a null of it.
                lines.then(f"if {into} - {into}: {into} = {self.name(extjson.exact)}({into})")
            return
        match kind:
            case ColumnType.INT24:
                signed = "" if column.unsigned else ", signed=True"
                lines.take("3s", raw)
                lines.then(f"{into} = int_({raw}, 'little'{signed})")
            case ColumnType.YEAR:
                lines.take("B", raw)
                lines.then(f"{into} = {raw} and {raw} + 1900")
            case ColumnType.BIT:
                lines.take(f"{(meta + 7) // 8}s", raw)
                lines.then(f"{into} = int_({raw}, 'big')")
            case ColumnType.NEWDECIMAL:
                precision, scale = meta >> 8, meta & 0xFF
                lines.take(f"{decimal_bytes(precision, scale)}s", raw)
                lines.then(*decimal_lines(into, raw, precision, scale, name=self.name))
            case ColumnType.DATE | ColumnType.NEWDATE:
                lines.take("3s", raw)
                lines.then(f"{into} = {self.name(date_text)}(int_({raw}, 'little'))")
            case ColumnType.TIME2:
                lines.take(f"{3 + fraction_bytes(meta)}s", raw)
                lines.then(f"{into} = {self.name(time_reader(meta))}({raw}, 0)")
            case ColumnType.DATETIME2:
                high = f"h{index}"
                lines.take("B", high)
                lines.take("I", raw, order=">")
                part = _fraction(lines, index, meta)
                lines.then(datetime_lines(into, high, raw, part, meta, name=self.name))
            case ColumnType.TIMESTAMP2:
                lines.take("I", raw, order=">")
                part = _fraction(lines, index, meta)
                lines.then(timestamp_lines(into, raw, part, meta, name=self.name))
            case ColumnType.ENUM:
                if meta not in {1, 2}:
                    raise MalformedEventError(f"an ENUM whose values have {meta} bytes")
                lines.take(_UNSIGNED[meta], raw, order="<")
                lines.then(f"{into} = {self.name(('', *self._values(column)))}[{raw}]")
            case ColumnType.SET:
                lines.take(f"{meta}s", raw)
                read = self.name(set_reader(meta, self._values(column)))
                lines.then(f"{into} = {read}({raw}, 0)")
            case _:
                self._variable(lines, column, into)

    def _variable(self, lines: _Lines, column: Column, into: str) -> None:
        """Of a value that says its own length."""
        kind, meta = column.type, column.meta
        if kind in _WITH_LENGTH:
            prefix = meta
        elif kind in _TEXTS:
            prefix = 2 if meta > 0xFF else 1
        else:
            raise self._unreadable(column, _known_type(kind))
        if prefix in _UNSIGNED:
            lines.take(_UNSIGNED[prefix], "s", order="<")
        else:
            lines.take(f"{prefix}s", "s")
            lines.then("s = int_(s, 'little')")
        lines.add("q = p", "p += s", f"{into} = {self._converted(column, 'b[q:p]')}")

    def _converted(self, column: Column, value: str) -> str:
        """What becomes of the bytes of a value."""
        kind = column.type
        if kind in {ColumnType.BLOB_COMPRESSED, ColumnType.VARCHAR_COMPRESSED}:
            value = f"{self.name(uncompressed_column)}({value})"
        own = _OF_MYSQL.get(kind)
        if own is not None:
            return f"{self.name(own)}({value})"
        if kind == ColumnType.GEOMETRY:
            return f"{self.name(geometry)}({value})"
        if column.collation == BINARY_COLLATION:
            if kind == ColumnType.STRING:
                # Zeros at the end are not sent, and are part of the value.
                value = f"{value}.ljust({column.meta}, b'\\0')"
            return f"{self.name(extjson.binary)}({value})"
        codec = self._codec(column)
        if codec == CODECS["latin1"]:
            return f"{self.name(latin1)}({value})"
        if codec == "utf-8":
            return f"str_({value}, 'utf-8')"
        return f"{self.name(codecs.lookup(codec).decode)}({value})[0]"

    def _values(self, column: Column) -> tuple[str, ...]:
        """The values of an ENUM or SET."""
        codec = self._codec(column)
        return tuple(member(one, codec) for one in column.values)

    def _codec(self, column: Column) -> str:
        charset = self.charsets.get(
            column.collation, f"of the unknown collation {column.collation}"
        )
        if column.collation == BINARY_COLLATION:
            charset = "utf8mb4" if column.values else "binary"
        codec = CODECS.get(charset)
        if codec is None:
            raise self._unreadable(column, f"text in the character set {charset}")
        return codec

    def _unreadable(self, column: Column, what: str) -> UnreadableTableError:
        table = self.table
        return UnreadableTableError(
            f"the column {column.name!r} of {table.database}.{table.name}, which is {what}"
        )


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines] or ["    pass"]


def _fraction(lines: _Lines, index: int, digits: int) -> str:
    """Take the fraction of a second that has so many digits; what has its number."""
    size, into = fraction_bytes(digits), f"f{index}"
    if size == 3:
        lines.take("3s", into)
        return f"int_({into}, 'big')"
    if size:
        lines.take(_UNSIGNED[size], into, order=">")
    return into


def _known_type(kind: int) -> str:
    old = {
        ColumnType.TIMESTAMP: "TIMESTAMP",
        ColumnType.TIME: "TIME",
        ColumnType.DATETIME: "DATETIME",
    }
    if kind in old:
        return (
            f"a {old[ColumnType(kind)]} of the format before MySQL 5.6, which does not say how "
            f"many digits it has (ALTER TABLE ... FORCE with mysql56_temporal_format = ON mends it)"
        )
    name = ColumnType(kind).name if kind in set(ColumnType) else "unknown"
    return f"of type {kind} ({name})"
