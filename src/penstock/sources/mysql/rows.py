"""Rows: the events that hold them, and the tables whose rows can be read. Pure.

Sources: the MariaDB documentation, "ROWS_EVENT_V1/V2"; the MySQL source documentation,
mysql::binlog::event::Rows_event.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, structs

from penstock import extjson
from penstock.sources.mysql.binlog import EventType, MalformedEventError, lenenc, uncompressed
from penstock.sources.mysql.columns import ColumnRules, ForbiddenRuleError, TableRules
from penstock.sources.mysql.keyed import keyed, mapped
from penstock.sources.mysql.row_readers import (
    Document,
    RowReader,
    UnreadableTableError,
    row_reader,
)
from penstock.sources.mysql.shapes import described, varying, version_of
from penstock.sources.mysql.tables import Table


class CompiledTable(Struct, frozen=True):
    """A table, and how to read its rows."""

    table: Table
    name: tuple[str, str]
    """Its database and name."""
    read: RowReader
    """Reads a row that has all columns, as they are; what is told of it the rules say."""
    rules: TableRules | None
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
    keyed: str
    """Another where the same rows have another key."""
    varying: Mapping[str, str] = {}
    """The told columns whose values differ in shape, with their types, as events say them."""
    heads: Mapping[int, bytes] = {}
    """What most events begin with whose rows have all columns, by their type."""


Change = tuple[Document | None, Document | None]
"""One row: before, after, or both."""


class Changes(Struct, frozen=True):
    """The rows of one event.

    Where binlog_row_image is not FULL, all of them may lack columns, and what is after has what of
    it the image before says.
    """

    rows: list[Change]
    sent: tuple[str, ...] | None = None
    """Where what is after lacked columns: those that it had."""
    absent: tuple[str, ...] = ()
    """Columns of what is after that neither image has."""
    before_lacks: bool = False
    """Whether what is before lacks columns."""
    masked: Sequence[tuple[str, ...]] = ()
    """Of each row of an update: the columns that changed and are told alike (`TableRules.masked`).
    Empty where no row has one."""

    @property
    def lack(self) -> bool:
        """Whether anything lacks columns."""
        return self.before_lacks or self.sent is not None


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


_POST_HEADER_BYTES: Final = 8
"""The table's number, and flags."""


def _heads(columns: int) -> dict[int, bytes]:
    """As `CompiledTable.heads`: nothing beside the rows, how many columns, and that all are there.

    An event that says it otherwise, or is compressed, is taken apart.
    """
    count = bytes([columns]) if columns < 0xFB else b"\xfc" + columns.to_bytes(2, "little")
    all_there = b"\xff" * ((columns + 7) // 8)
    return {
        kind: (b"\x02\x00" if kind in _SECOND_VERSION else b"")
        + count
        + all_there * (2 if kind in UPDATES else 1)
        for kind in ROWS - _COMPRESSED
    }


def changes(kind: int, body: bytes, compiled: CompiledTable) -> Changes:
    """The rows of a ROWS event, in order. `compiled` is the table that the event refers to.

    Raises MalformedEventError for what does not fit the table, and UnreadableTableError for rows
    that lack columns by which they are known.
    """
    head = compiled.heads.get(kind)
    if head is not None and body.startswith(head, _POST_HEADER_BYTES):
        at = _POST_HEADER_BYTES + len(head)
        rows, masked = told_by_rules(_rows(kind, body, at, compiled.read, compiled.read), compiled)
        return Changes(rows, masked=masked)
    at = _POST_HEADER_BYTES
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
    readers = [compiled.read if image == whole else compiled.read_some(image) for image in images]
    found = _rows(kind, body, at, readers[0], readers[-1])
    rows, masked = told_by_rules(found, compiled)
    return structs.replace(_of_images(kind, rows, images, compiled), masked=masked)


def told_by_rules(
    rows: list[Change], compiled: CompiledTable
) -> tuple[list[Change], Sequence[tuple[str, ...]]]:
    """Rows as the rules of columns have them told, and `Changes.masked` of them."""
    rules = compiled.rules
    if rules is None:
        return rows, ()
    masked = [
        rules.masked(before, after) if before is not None and after is not None else ()
        for before, after in rows
    ]
    told: list[Change] = [
        (
            None if before is None else rules.apply(before),
            None if after is None else rules.apply(after),
        )
        for before, after in rows
    ]
    return told, masked if any(masked) else ()


def _rows(kind: int, body: bytes, at: int, read: RowReader, read_after: RowReader) -> list[Change]:
    found: list[Change] = []
    end = len(body)
    try:
        if kind in WRITES:
            while at < end:
                row, at = read(body, at)
                found.append((None, row))
        elif kind in UPDATES:
            while at < end:
                before, at = read(body, at)
                after, at = read_after(body, at)
                found.append((before, after))
        else:
            while at < end:
                row, at = read(body, at)
                found.append((row, None))
    except (struct.error, IndexError, OverflowError) as error:
        raise MalformedEventError("rows that end too early") from error
    if at != end:
        raise MalformedEventError("rows that end too early")
    return found


def _of_images(
    kind: int, rows: list[Change], images: list[int], compiled: CompiledTable
) -> Changes:
    """The rows of images that lack columns, with all that is known of each."""
    lacking = [
        frozenset(name for i, name in compiled.told.items() if not image >> i & 1)
        for image in images
    ]
    if not any(lacking):
        return Changes(rows)  # what they lack is not told anyway
    unsaid = lacking[0].intersection(compiled.key)
    if unsaid or not compiled.key:
        raise UnreadableTableError(
            f"rows of {compiled.table.database}.{compiled.table.name} that lack columns of the key "
            f"by which they are known, or have none: binlog_row_image is not FULL"
        )
    if kind in DELETES:
        return Changes(rows, before_lacks=True)
    lacks = lacking[-1]
    before_lacks = bool(kind in UPDATES and lacking[0])
    absent = lacks & lacking[0] if kind in UPDATES else lacks
    names = compiled.told.values()
    missing = tuple(name for name in names if name in absent)
    found: list[Change] = []
    sent: tuple[str, ...] | None = None
    for before, after in rows:
        assert after is not None
        known = after if before is None else {**before, **after}
        found.append((before, {name: known[name] for name in names if name not in absent}))
        if lacks and sent is None:
            sent = tuple(after)
    return Changes(found, sent, missing, before_lacks)


def refers_to(body: bytes) -> int:
    """The number of the table that a ROWS event is of."""
    return int.from_bytes(body[:6], "little")


# --- tables ---------------------------------------------------------------------------------------


def compile_table(
    table: Table,
    charsets: Mapping[int, str],
    *,
    without: frozenset[str] = frozenset(),
    rules: ColumnRules | None = None,
    computed: Mapping[str, str] | None = None,
) -> CompiledTable:
    """Make the function that reads rows of `table`, of which `rules` say what is told.

    `charsets` names the character set of each collation; the columns `without` are read over;
    `computed` is as of `ColumnRules.of`.
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
        ruled = rules.of((table.database, table.name), names, key, computed) if rules else None
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
        return row_reader(table, charsets, told, image)

    as_they_are = {name for name in told.values() if ruled is None or not ruled.changes((name,))}
    varies = varying(
        (name, table.columns[i].type) for i, name in told.items() if name in as_they_are
    )
    shape = {
        "schemaVersion": version,
        **described(table, charsets, told.values(), as_they_are=as_they_are),
    }
    if varying((name, table.columns[i].type) for i, name in told.items()):
        # Also where rules change them all, for then their declared types say nothing of values.
        shape["varying"] = varies
    whole = (1 << len(table.columns)) - 1
    return CompiledTable(
        *(table, (table.database, table.name), reader(whole), ruled, key, told, reader),
        version=version,
        shape=shape,
        varying=varies,
        keyed=keyed(*([mapped(table.columns[i]) for i in which] for which in (table.key, told))),
        heads=_heads(len(table.columns)),
    )
