"""Rows of a PARTIAL_UPDATE_ROWS event: after the change, a JSON column may only say what changed.

Pure. Source: the MySQL source documentation, "Partial_update_rows_event" (rows_event.h).
"""

import struct
from collections.abc import Callable

from msgspec import structs

from penstock.sources.mysql.binlog import MalformedEventError, lenenc
from penstock.sources.mysql.json_diffs import JSON_DIFFS, JsonDiffs
from penstock.sources.mysql.row_readers import Document, RowReader, UnreadableTableError
from penstock.sources.mysql.rows import Change, Changes, CompiledTable, told_by_rules
from penstock.sources.mysql.tables import ColumnType, Table

_PARTIAL_JSON = 0x01


def partial_changes(
    body: bytes, compiled: CompiledTable, compile_table: Callable[[Table], CompiledTable]
) -> Changes:
    """The rows of the event, in order, with whole values.

    Raises MalformedEventError for what does not fit the table, and UnreadableTableError for rows
    that lack columns.
    """
    columns = compiled.table.columns
    at = 8 + int.from_bytes(body[8:10], "little")
    count, at = lenenc(body, at)
    if count != len(columns):
        raise MalformedEventError(
            f"rows of {count} columns for a table of {len(columns)}: its TABLE_MAP is another's"
        )
    size, whole = (count + 7) // 8, (1 << count) - 1
    for _ in range(2):
        if int.from_bytes(body[at : at + size], "little") & whole != whole:
            table = f"{compiled.table.database}.{compiled.table.name}"
            raise UnreadableTableError(
                f"rows of {table} that lack columns, and of JSON say only what changed: "
                f"binlog_row_image is not FULL, and binlog_row_value_options is PARTIAL_JSON"
            )
        at += size
    # Of rules for columns, what they make of whole values: a change is of the value as it was.
    readers: dict[int, RowReader] = {0: compiled.read}
    flags_bytes = (sum(column.type == ColumnType.JSON for column in columns) + 7) // 8
    found: list[Change] = []
    try:
        while at < len(body):
            before, at = compiled.read(body, at)
            options, at = lenenc(body, at)
            flags = 0
            if options & _PARTIAL_JSON:
                flags = int.from_bytes(body[at : at + flags_bytes], "little")
                at += flags_bytes
            elif options:
                raise MalformedEventError(f"rows with the unknown options {options}")
            if flags not in readers:
                readers[flags] = compile_table(_with_changes(compiled.table, flags)).read
            after, at = readers[flags](body, at)
            if flags:
                after = _applied(before, after)
            found.append((before, after))
    except (struct.error, IndexError, OverflowError) as error:
        raise MalformedEventError("rows that end too early") from error
    if at != len(body):
        raise MalformedEventError("rows that end too early")
    rows, masked = told_by_rules(found, compiled)
    return Changes(rows, masked=masked)


def _with_changes(table: Table, flags: int) -> Table:
    """The table, with the JSON columns changed to those that only say what changed: by the bits of
    `flags`, one for each JSON column."""
    columns = list(table.columns)
    jsons = [i for i, column in enumerate(columns) if column.type == ColumnType.JSON]
    if flags >> len(jsons):
        raise MalformedEventError("rows with changes of JSON columns that there are not")
    for bit, i in enumerate(jsons):
        if flags >> bit & 1:
            columns[i] = structs.replace(columns[i], type=JSON_DIFFS)
    return structs.replace(table, columns=tuple(columns))


def _applied(before: Document, after: Document) -> Document:
    return {
        name: value.applied(before[name]) if isinstance(value, JsonDiffs) else value
        for name, value in after.items()
    }
