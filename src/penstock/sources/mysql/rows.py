"""Rows: the functions that read a table's rows, made for each table, and the events that hold them.

A table is read by a function that is written and compiled for its columns: it knows each column's
type, so that a row costs no decision that all of the table's rows share (decision 0009). Pure.
Sources: the MariaDB documentation, "ROWS_EVENT_V1/V2"; the MySQL source documentation,
mysql::binlog::event::Rows_event.
"""

import codecs
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct as Layout
from typing import Any, Final, NamedTuple

from msgspec import structs

from penstock import extjson
from penstock.sources.mysql.binary_json import json_value
from penstock.sources.mysql.binlog import EventType, MalformedEventError, lenenc, uncompressed
from penstock.sources.mysql.charsets import CODECS, latin1
from penstock.sources.mysql.columns import ColumnRules, ForbiddenRuleError, TableRules
from penstock.sources.mysql.json_diffs import JSON_DIFFS, JsonDiffs
from penstock.sources.mysql.shapes import described, version_of
from penstock.sources.mysql.tables import BINARY_COLLATION, Column, ColumnType, Table
from penstock.sources.mysql.values import (
    date_text,
    datetime_lines,
    decimal_lines,
    fraction_bytes,
    geometry,
    set_reader,
    time_reader,
    timestamp_reader,
    uncompressed_column,
)

Document = dict[str, Any]
RowReader = Callable[[bytes, int], tuple[Document, int]]
"""Reads the row that begins at a place: its document, and where the next one begins."""


class UnreadableTableError(ValueError):
    """A table has a column that has no exact form; the message names it and its type."""


class CompiledTable(NamedTuple):
    """A table, and how to read its rows."""

    table: Table
    read: RowReader
    """Reads a row that has all columns."""
    read_bare: RowReader
    """As `read`, but before the rules of columns are applied."""
    ruled: Callable[[Document], Document]
    """What the rules make of a row that was read so."""
    key: tuple[str, ...]
    """The names of the key's columns; empty without a primary key."""
    told: Mapping[int, str]
    """The columns that a row's document has, by their number."""
    read_some: Callable[[int], RowReader]
    """What reads a row that has some columns: a bit for each of all."""
    version: int
    """Of its shape, as events say it."""
    shape: Mapping[str, Any]
    """Its columns and its key, as a schema event says them."""


class Change(NamedTuple):
    """One row of an event: before, after, or both.

    Where binlog_row_image is not FULL, they may lack columns, and `after` has what of it the image
    before says.
    """

    before: Document | None
    after: Document | None
    sent: tuple[str, ...] | None = None
    """Where `after` lacked columns: those that it had."""
    absent: tuple[str, ...] = ()
    """Columns of `after` that neither image has."""
    before_lacks: bool = False
    """Whether `before` lacks columns."""


WRITES: Final = frozenset(
    {
        EventType.WRITE_ROWS_V1,
        EventType.WRITE_ROWS,
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.WRITE_ROWS_COMPRESSED,
    }
)
UPDATES: Final = frozenset(
    {
        EventType.UPDATE_ROWS_V1,
        EventType.UPDATE_ROWS,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED,
    }
)
DELETES: Final = frozenset(
    {
        EventType.DELETE_ROWS_V1,
        EventType.DELETE_ROWS,
        EventType.DELETE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)
ROWS: Final = WRITES | UPDATES | DELETES
_SECOND_VERSION: Final = frozenset(
    {
        EventType.WRITE_ROWS,
        EventType.UPDATE_ROWS,
        EventType.DELETE_ROWS,
        EventType.WRITE_ROWS_COMPRESSED,
        EventType.UPDATE_ROWS_COMPRESSED,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)
_COMPRESSED: Final = frozenset(
    {
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED_V1,
        EventType.WRITE_ROWS_COMPRESSED,
        EventType.UPDATE_ROWS_COMPRESSED,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)


def changes(kind: int, body: bytes, compiled: CompiledTable) -> list[Change]:
    """The rows of a ROWS event, in order. `compiled` is the table that the event refers to.

    Raises MalformedEventError for what does not fit the table, and UnreadableTableError for rows
    that lack columns by which they are known.
    """
    at = 8
    if kind in _SECOND_VERSION:
        at += int.from_bytes(body[8:10], "little")
    columns = compiled.table.columns
    count, at = lenenc(body, at)
    if count != len(columns):
        raise MalformedEventError(
            f"rows of {count} columns for a table of {len(columns)}: its TABLE_MAP is another's"
        )
    size = (count + 7) // 8
    whole = (1 << count) - 1
    images: list[int] = []
    for _ in range(2 if kind in UPDATES else 1):
        images.append(int.from_bytes(body[at : at + size], "little") & whole)
        at += size
    if kind in _COMPRESSED:
        body, at = uncompressed(body[at:]), 0
    if not any(images) and at < len(body):
        # They would take no bytes, and so never end.
        raise MalformedEventError("rows that have no columns")
    try:
        if all(image == whole for image in images):
            return _rows(kind, body, at, compiled.read, compiled.read)
        readers = [
            compiled.read if image == whole else compiled.read_some(image) for image in images
        ]
        found = _rows(kind, body, at, readers[0], readers[-1])
    except (struct.error, IndexError, OverflowError) as error:
        raise MalformedEventError("rows that end too early") from error
    return _of_images(kind, found, images, compiled)


def _rows(kind: int, body: bytes, at: int, read: RowReader, read_after: RowReader) -> list[Change]:
    found: list[Change] = []
    end = len(body)
    if kind in UPDATES:
        while at < end:
            before, at = read(body, at)
            after, at = read_after(body, at)
            found.append(Change(before, after))
    elif kind in WRITES:
        while at < end:
            row, at = read(body, at)
            found.append(Change(None, row))
    else:
        while at < end:
            row, at = read(body, at)
            found.append(Change(row, None))
    if at != end:
        raise MalformedEventError("rows that end too early")
    return found


def _of_images(
    kind: int, rows: list[Change], images: list[int], compiled: CompiledTable
) -> list[Change]:
    """The rows of images that lack columns, with all that is known of each."""
    lacking = [
        frozenset(name for i, name in compiled.told.items() if not image >> i & 1)
        for image in images
    ]
    if not any(lacking):
        return rows  # what they lack is not told anyway
    unsaid = lacking[0].intersection(compiled.key)
    if unsaid or not compiled.key:
        raise UnreadableTableError(
            f"rows of {compiled.table.database}.{compiled.table.name} that lack columns of the key "
            f"by which they are known, or have none: binlog_row_image is not FULL"
        )
    if kind in DELETES:
        return [row._replace(before_lacks=True) for row in rows]
    lacks = lacking[-1]
    before_lacks = bool(kind in UPDATES and lacking[0])
    absent = lacks & lacking[0] if kind in UPDATES else lacks
    names = compiled.told.values()
    missing = tuple(name for name in names if name in absent)
    found: list[Change] = []
    for before, after, *_ in rows:
        assert after is not None
        known = after if before is None else {**before, **after}
        document = {name: known[name] for name in names if name not in absent}
        sent = tuple(after) if lacks else None
        found.append(Change(before, document, sent, missing, before_lacks))
    return found


def refers_to(body: bytes) -> int:
    """The number of the table that a ROWS event is of."""
    return int.from_bytes(body[:6], "little")


# --- making the functions -------------------------------------------------------------------------

_FIXED: Final[dict[tuple[int, bool], tuple[str, int]]] = {
    (ColumnType.TINY, False): ("b", 1),
    (ColumnType.TINY, True): ("B", 1),
    (ColumnType.SHORT, False): ("h", 2),
    (ColumnType.SHORT, True): ("H", 2),
    (ColumnType.LONG, False): ("i", 4),
    (ColumnType.LONG, True): ("I", 4),
    (ColumnType.LONGLONG, False): ("q", 8),
    (ColumnType.LONGLONG, True): ("Q", 8),
    (ColumnType.FLOAT, False): ("f", 4),
    (ColumnType.FLOAT, True): ("f", 4),
    (ColumnType.DOUBLE, False): ("d", 8),
    (ColumnType.DOUBLE, True): ("d", 8),
}


_OF_MYSQL: Final[dict[int, Callable[[bytes], Any]]] = {
    ColumnType.JSON: json_value,
    JSON_DIFFS: JsonDiffs,
    ColumnType.VECTOR: extjson.binary,
}
_WITH_LENGTH: Final = frozenset(
    {ColumnType.BLOB, ColumnType.GEOMETRY, ColumnType.BLOB_COMPRESSED, *_OF_MYSQL}
)
"""Those whose values say their length, in so many bytes as their table says."""


class _Writer:
    """Writes the source of one table's function, and keeps the objects that it uses."""

    def __init__(self, table: Table, charsets: Mapping[int, str]) -> None:
        self.table = table
        self.charsets = charsets
        self.names: dict[str, Any] = {"int_": int.from_bytes, "str_": str}
        self.lines: list[str] = []

    def name(self, value: Any) -> str:
        """A name by which the function finds `value`."""
        name = f"o{len(self.names)}"
        self.names[name] = value
        return name

    def expression(self, column: Column, index: int) -> list[str]:
        """Lines that put the value of a column that is not NULL into its variable."""
        kind, meta, into = column.type, column.meta, f"c{index}"
        fixed = _FIXED.get((kind, column.unsigned))
        if fixed is not None:
            layout = self.name(Layout(f"<{fixed[0]}").unpack_from)
            lines = [f"{into}, = {layout}(b, p)", f"p += {fixed[1]}"]
            if kind in {ColumnType.FLOAT, ColumnType.DOUBLE}:
                # No server takes what is no number today, and JSON would make a null of it.
                lines.append(f"if {into} - {into}: {into} = {self.name(extjson.exact)}({into})")
            return lines
        match kind:
            case ColumnType.INT24:
                signed = "" if column.unsigned else ", signed=True"
                return self._sized(f"{into} = int_(b[p:p + 3], 'little'{signed})", 3)
            case ColumnType.YEAR:
                return [f"{into} = b[p] and b[p] + 1900", "p += 1"]
            case ColumnType.BIT:
                size = (meta + 7) // 8
                return self._sized(f"{into} = int_(b[p:p + {size}], 'big')", size)
            case ColumnType.NEWDECIMAL:
                return decimal_lines(into, meta >> 8, meta & 0xFF)
            case ColumnType.DATE | ColumnType.NEWDATE:
                return self._sized(
                    f"{into} = {self.name(date_text)}(int_(b[p:p + 3], 'little'))", 3
                )
            case ColumnType.TIME2:
                size = 3 + fraction_bytes(meta)
                return self._sized(f"{into} = {self.name(time_reader(meta))}(b, p)", size)
            case ColumnType.DATETIME2:
                return datetime_lines(into, meta, self.name)
            case ColumnType.TIMESTAMP2:
                size = 4 + fraction_bytes(meta)
                return self._sized(f"{into} = {self.name(timestamp_reader(meta))}(b, p)", size)
            case ColumnType.ENUM:
                texts = self.name(("", *self._texts(column)))
                value = "b[p]" if meta == 1 else "int_(b[p:p + 2], 'little')"
                return self._sized(f"{into} = {texts}[{value}]", meta)
            case ColumnType.SET:
                read = self.name(set_reader(meta, self._texts(column)))
                return self._sized(f"{into} = {read}(b, p)", meta)
            case _:
                return self._variable(column, into)

    def _variable(self, column: Column, into: str) -> list[str]:
        """The lines for a value that says its own length."""
        kind, meta = column.type, column.meta
        if kind in _WITH_LENGTH:
            prefix = meta
        elif kind in {
            ColumnType.STRING,
            ColumnType.VARCHAR,
            ColumnType.VAR_STRING,
            ColumnType.VARCHAR_COMPRESSED,
        }:
            prefix = 2 if meta > 0xFF else 1
        else:
            raise self._unreadable(column, _known_type(kind))
        length = "b[p]" if prefix == 1 else f"int_(b[p:p + {prefix}], 'little')"
        lines = [f"q = p + {prefix}", f"p = q + {length}"]
        value = "b[q:p]"
        if kind in {ColumnType.BLOB_COMPRESSED, ColumnType.VARCHAR_COMPRESSED}:
            value = f"{self.name(uncompressed_column)}({value})"
        own = _OF_MYSQL.get(kind)
        if own is not None:
            return [*lines, f"{into} = {self.name(own)}({value})"]
        if kind == ColumnType.GEOMETRY:
            return [*lines, f"{into} = {self.name(geometry)}({value})"]
        if column.collation == BINARY_COLLATION:
            if kind == ColumnType.STRING:
                # Zeros at the end are not sent, and are part of the value.
                value = f"{value}.ljust({meta}, b'\\0')"
            return [*lines, f"{into} = {self.name(extjson.binary)}({value})"]
        return [*lines, f"{into} = {self._text(column, value)}"]

    def _text(self, column: Column, value: str) -> str:
        codec = self._codec(column)
        if codec == CODECS["latin1"]:
            return f"{self.name(latin1)}({value})"
        if codec == "utf-8":
            return f"str_({value}, 'utf-8')"
        return f"{self.name(codecs.lookup(codec).decode)}({value})[0]"

    def _texts(self, column: Column) -> tuple[str, ...]:
        """The values of an ENUM or SET."""
        codec = self._codec(column)
        if codec == CODECS["latin1"]:
            return tuple(latin1(one) for one in column.values)
        return tuple(str(one, codec) for one in column.values)

    def _codec(self, column: Column) -> str:
        charset = self.charsets.get(
            column.collation, f"of the unknown collation {column.collation}"
        )
        if column.collation == BINARY_COLLATION:
            charset = "ascii" if column.values else "binary"
        codec = CODECS.get(charset)
        if codec is None:
            raise self._unreadable(column, f"text in the character set {charset}")
        return codec

    def _sized(self, line: str, size: int) -> list[str]:
        return [line, f"p += {size}"]

    def _unreadable(self, column: Column, what: str) -> UnreadableTableError:
        table = self.table
        return UnreadableTableError(
            f"the column {column.name!r} of {table.database}.{table.name}, which is {what}"
        )


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


def compile_table(
    table: Table,
    charsets: Mapping[int, str],
    *,
    without: frozenset[str] = frozenset(),
    rules: ColumnRules | None = None,
) -> CompiledTable:
    """Make the function that reads rows of `table`, as `rules` have them told.

    `charsets` names the character set of each collation; the columns `without` are read over.
    Raises UnreadableTableError for a column that has no exact form, or that `rules` cannot be of.
    """
    if not table.full:
        raise UnreadableTableError(
            f"{table.database}.{table.name}, whose columns have no names: binlog_row_metadata is "
            f"not FULL"
        )
    key = tuple(table.columns[i].name for i in table.key)
    names = [column.name for column in table.columns]
    try:
        ruled = rules.of((table.database, table.name), names, key) if rules else None
    except ForbiddenRuleError as error:
        raise UnreadableTableError(str(error)) from error
    version = version_of(table, without)
    if ruled is not None:
        without |= ruled.left_out
    told = {i: one.name for i, one in enumerate(table.columns) if one.name not in without}
    try:
        extjson.refuse_mimic(dict.fromkeys(told.values()))
        extjson.refuse_mimic(dict.fromkeys(key))
    except extjson.AmbiguousDocumentError as error:
        raise UnreadableTableError(f"{table.database}.{table.name}: {error}") from error

    @lru_cache(maxsize=64)
    def reader(image: int) -> RowReader:
        read = _reader(table, charsets, told, image)
        return read if ruled is None else _ruled(read, ruled)

    whole = (1 << len(table.columns)) - 1
    if ruled is None:
        bare, apply = reader(whole), as_it_is
    else:
        bare, apply = _reader(table, charsets, told, whole), ruled.apply
    return CompiledTable(
        *(table, reader(whole), bare, apply, key, told, reader),
        version=version,
        shape={"schemaVersion": version, **described(table, charsets, told.values())},
    )


def as_it_is(row: Document) -> Document:
    """What no rule is of."""
    return row


def _reader(
    table: Table, charsets: Mapping[int, str], told: Mapping[int, str], image: int
) -> RowReader:
    """Write and compile what reads rows of which the columns of `image` are there."""
    writer = _Writer(table, charsets)
    there = [(i, column) for i, column in enumerate(table.columns) if image >> i & 1]
    size = (len(there) + 7) // 8
    lines = [f"n = int_(b[p:p + {size}], 'little')", f"p += {size}"]
    for bit, (index, column) in enumerate(there):
        value = writer.expression(column if index in told else _unread(column), index)
        if column.nullable:
            lines += [f"if n & {1 << bit}:", f"    c{index} = None", "else:"]
            lines += [f"    {line}" for line in value]
        else:
            lines += value
    items = ", ".join(f"{told[i]!r}: c{i}" for i, _ in there if i in told)
    body = "\n    ".join([*lines, f"return {{{items}}}, p"])
    # Names of columns stand in it as literals of Python only, which `repr` makes of any text.
    source = f"def read(b, p):\n    {body}\n"
    space = writer.names
    exec(compile(source, f"<rows of {table.database}.{table.name}>", "exec"), space)  # noqa: S102
    read: RowReader = space["read"]
    return read


def _ruled(read: RowReader, rules: TableRules) -> RowReader:
    def read_by_rules(data: bytes, at: int) -> tuple[Document, int]:
        row, at = read(data, at)
        return rules.apply(row), at

    return read_by_rules


def _unread(column: Column) -> Column:
    """The column as bytes of the same length: what is not told needs no character set."""
    if column.type in {ColumnType.ENUM, ColumnType.SET}:
        return structs.replace(column, type=ColumnType.BIT, meta=8 * column.meta)
    if column.type in _WITH_LENGTH:
        return structs.replace(column, type=ColumnType.BLOB, collation=BINARY_COLLATION)
    return structs.replace(column, collation=BINARY_COLLATION)
