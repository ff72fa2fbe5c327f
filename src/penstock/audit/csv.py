"""Records as CSV, RFC 4180, in the columns of the trail's design. Pure.

    Event_ID, Timestamp_UTC, Timestamp_IST, Operation, Database, Table, Primary_Key, Binlog_File,
    Binlog_Position, and for each column that changed anywhere, sorted, <col>_FROM and <col>_TO

`Timestamp_IST` is `Timestamp_Local` where the trail's time zone is another. Where a schema change
or a gap is among the records, a last column `Said` has what the source said of it.

A cell is text, and CSV keeps no types. What is no text begins with a backslash, so that no text can
be taken for it:

    (empty)     the column is not in this record
    \\N          NULL
    \\E          the empty text
    \\x4142      the bytes 0x41 0x42
    \\T3         an array was cut to 3 elements
    \\M          the value changed, and is masked
    \\X          erased
    \\\\a         the text \\a

A text that a spreadsheet would take for a formula (it begins with = + - @ or their wide forms, a
tab or an end of line, and is no number) gets an apostrophe in front, and so does one that begins
with an apostrophe. `read_cell` undoes all of this.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from penstock.audit.records import INDIA
from penstock.audit.shown import binary, json_text, local, local_iso, plain_text, source_of, utc
from penstock.errors import AuditError

_FIRST: Final = ("Event_ID", "Timestamp_UTC")
_REST: Final = ("Operation", "Database", "Table", "Primary_Key", "Binlog_File", "Binlog_Position")
SAID: Final = "Said"
COLUMNS_MAX: Final = 10_000
_FORMULA: Final = frozenset("=+-@\t\r\n＝＋－＠'")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


class Kind(Enum):
    """What a cell says."""

    TEXT = "text"
    ABSENT = ""
    NULL = "\\N"
    ERASED = "\\X"
    BYTES = "\\x"
    CUT = "\\T"
    MASKED = "\\M"


class Cell(NamedTuple):
    """A cell that was read: of BYTES the hex digits, of CUT the number."""

    kind: Kind
    text: str = ""


def text_cell(text: str) -> str:
    """How text is written."""
    if not text:
        return "\\E"
    if text[0] == "\\":
        return f"\\{text}"
    if text[0] in _FORMULA and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def value_cell(value: Any) -> str:
    """How a value is written."""
    if value is None:
        return Kind.NULL.value
    data = binary(value)
    if data is not None:
        return f"\\x{data.hex()}"
    text = plain_text(value)
    return text_cell(json_text(value) if text is None else text)


def read_cell(cell: str) -> Cell:
    """What was written. Raises ValueError for what we do not write."""
    if cell in ("", "\\N", "\\X", "\\M"):
        return Cell(Kind(cell))
    if cell[0] == "'":
        return Cell(Kind.TEXT, cell[1:])
    if cell[0] != "\\":
        return Cell(Kind.TEXT, cell)
    if cell == "\\E":
        return Cell(Kind.TEXT, "")
    if cell[1:2] == "\\":
        return Cell(Kind.TEXT, cell[1:])
    return Cell(Kind(cell[:2]), cell[2:])


def header_of(columns: Iterable[str], *, tz: str, said: bool) -> list[str]:
    """The first line, for records that say something of these columns."""
    there = "Timestamp_IST" if tz == INDIA else "Timestamp_Local"
    sides = [f"{name}_{side}" for name in sorted(columns) for side in ("FROM", "TO")]
    return [*_FIRST, there, *_REST, *map(text_cell, sides), *([SAID] if said else [])]


def rows_of(
    records: Iterable[Mapping[str, Any]], *, columns: Sequence[str], tz: str, said: bool
) -> Iterator[list[str]]:
    """A line for each record, decoded and whole.

    Raises AuditError for a record that says something of a column that is not among `columns`.
    """
    names = sorted(columns)
    known = frozenset(names)
    for record in records:
        changes: Mapping[str, Any] = record.get("chg") or {}
        masked = record.get("masked") or ()
        if not known.issuperset({*changes, *masked}) or ("said" in record and not said):
            raise AuditError(
                f"record {record['at']} was written anew while it was exported, and has columns "
                f"that it had not before. What was exported is incomplete. Export again."
            )
        line = _head(record, tz)
        for name in names:
            line += (
                (Kind.MASKED.value, Kind.MASKED.value)
                if name in masked
                else _sides(changes.get(name) or {})
            )
        if said:
            line.append(text_cell(json_text(record["said"])) if "said" in record else "")
        yield line


def _head(record: Mapping[str, Any], tz: str) -> list[str]:
    meta: Mapping[str, Any] = record["meta"]
    binlog: Mapping[str, Any] = source_of(record).get("binlog") or {}
    key = meta.get("pk_text")
    ts = record["ts"]
    return [
        text_cell(str(record["_id"])),
        utc(ts),
        local(ts, tz) if tz == INDIA else local_iso(ts, tz),
        record["op"],
        text_cell(meta["db"]) if meta.get("db") else "",
        text_cell(meta["tbl"]) if meta.get("tbl") else "",
        Kind.ERASED.value if "erased" in record else "" if key is None else text_cell(key),
        text_cell(binlog["file"]) if binlog else "",
        str(binlog["pos"]) if binlog else "",
    ]


def _sides(change: Mapping[str, Any]) -> tuple[str, str]:
    before = value_cell(change["f"]) if "f" in change else ""
    if "size" in change:
        return before, f"\\T{change['size']}"
    return before, value_cell(change["t"]) if "t" in change else ""
