"""What the server's own tool reads in its binlogs, and whether what was told is the same.

The tool is mariadb-binlog (mysqlbinlog), which takes rows apart with the server's own code: an
oracle that shares none of ours.
"""

import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.event import AnyEvent, ChangeEvent, Operation
from penstock.sources.mysql.charsets import CODECS, LATIN1_TABLE


class Row(list[tuple[str, bytes]]):
    """By column: its type and its value, as the tool prints them."""

    __slots__ = ()


class Logged(NamedTuple):
    """A change, or a statement that changes tables."""

    gtid: str
    what: str
    """insert, update, delete; of a statement, ddl."""
    table: str
    """Of a statement, its text."""
    before: Any = None
    after: Any = None
    statement: str | None = None
    """The text before the first row of a statement."""


_GTID = re.compile(rb"#\d{6} .*\tGTID (\d+-\d+-\d+)")
_ROWS = re.compile(rb"### (INSERT INTO|UPDATE|DELETE FROM) `(\w+)`\.`(\w+)`$")
_VALUE = re.compile(
    rb"###   @\d+=('[^']*'|b'[01]*'|NULL|[^ ]+(?: \(\d+\))?) +/\* ([A-Z/]+[^*]*?) meta=.*\*/$"
)
_WORDS = {b"INSERT INTO": "insert", b"UPDATE": "update", b"DELETE FROM": "delete"}
_DDL = re.compile(rb"(?:CREATE|ALTER|DROP|RENAME|TRUNCATE) (?!DATABASE|TABLE elsewhere).*")


def dumped(files: Iterable[Path], *, tool: Sequence[str]) -> bytes:
    """What the tool prints of binlogs."""
    command = [*tool, "--no-defaults", "-vv", "--base64-output=decode-rows", *map(str, files)]
    return subprocess.run(command, capture_output=True, check=True).stdout


def logged(text: bytes, *, database: str) -> Iterator[Logged]:
    """What was committed, in order. What was rolled back is in a binlog, too, and is left out."""
    gtid, held, savepoints = "", list[Logged](), dict[bytes, int]()
    statement: list[str] = []
    row, before, after = Row(), Row(), Row()
    for line in text.split(b"\n"):
        if found := _GTID.match(line):
            gtid, held, savepoints = found[1].decode(), [], {}
        elif found := _ROWS.match(line):
            what, before, after = _WORDS[found[1]], Row(), Row()
            said = "\n".join(statement) if statement else None
            statement = []
            if found[2].decode() == database:
                held.append(Logged(gtid, what, found[3].decode(), before, after, said))
        elif line == b"### SET":
            row = after
        elif line == b"### WHERE":
            row = before
        elif line.startswith(b"###   @"):
            value = _VALUE.match(line)
            assert value is not None, line
            row.append((value[2].decode(), value[1]))
        elif line.startswith(b"#Q> "):
            statement.append(line[4:].decode(errors="replace"))
        elif line.startswith(b"SAVEPOINT "):
            savepoints[line[10:]] = len(held)
        elif line.startswith(b"ROLLBACK TO "):
            del held[savepoints[line[12:]] :]
        elif line.startswith(b"ROLLBACK"):
            held = []
        elif line.startswith(b"COMMIT"):
            yield from held
            held = []
        elif _DDL.fullmatch(line):
            yield Logged(gtid, "ddl", line.decode())


def told(events: Iterable[AnyEvent]) -> Iterator[Logged]:
    """The same, of what was told."""
    gone: ChangeEvent | None = None
    for event in events:
        origin = msgspec.json.decode(event.origin or b"{}")
        assert event.transaction is not None
        if not isinstance(event, ChangeEvent):
            # Else of the same statement, or of none: what a table's columns are now.
            if "statement" in origin:
                yield Logged(event.transaction, "ddl", origin["statement"])
            continue
        before = _values(event.full_document_before_change)
        after = _values(event.full_document)
        what = {Operation.REPLACE: "update"}.get(event.operation, event.operation.value)
        statement = origin.get("statement")
        if "movedTo" in origin:
            assert gone is None
            gone = event
            continue
        if "movedFrom" in origin:
            assert gone is not None
            assert origin["movedFrom"] == msgspec.json.decode(gone.key)
            first = msgspec.json.decode(gone.origin or b"")
            assert first["movedTo"] == msgspec.json.decode(event.key)
            what, before, gone = "update", _values(gone.full_document_before_change), None
            statement = first.get("statement")
        assert gone is None, "the two halves of a moved row are next to each other"
        yield Logged(event.transaction, what, event.collection, before, after, statement)


def _values(document: bytes | None) -> list[Any]:
    return [] if document is None else list(msgspec.json.decode(document).values())


# --- values ---------------------------------------------------------------------------------------

Lists = dict[str, list[list[str]]]
"""By table and column: the values of an ENUM or SET."""


def differs(ours: Logged, theirs: Logged, lists: Lists) -> str | None:
    """Where a change that was told is not the one that the tool reads; None where it is."""
    if ours[:3] != theirs[:3]:
        return f"told {ours[:3]}, logged {theirs[:3]}"
    if theirs.statement is not None and ours.statement != theirs.statement:
        return f"told of {ours.statement!r}, logged of {theirs.statement!r}"
    for mine, logs in ((ours.before, theirs.before), (ours.after, theirs.after)):
        if len(mine or []) != len(logs or []):
            return f"{ours.table}: told {len(mine)} columns, logged {len(logs)}"
        for number, (value, (kind, text)) in enumerate(zip(mine or [], logs or [], strict=True)):
            known = lists.get(ours.table)
            if not _equal(value, kind, text, known[number] if known else []):
                return f"{ours.table} @{number + 1} ({kind}): told {value!r}, logged {text!r}"
    return None


def _equal(value: Any, kind: str, text: bytes, members: list[str]) -> bool:
    if text == b"NULL":
        return value is None
    name = re.match(r"[A-Z/]+", kind)
    assert name is not None
    match name[0]:
        case "TINYINT" | "SHORTINT" | "MEDIUMINT" | "INT" | "LONGINT":
            return value in {int(one) for one in re.findall(rb"-?\d+", text)}
        case "BIT":
            return bool(value == int(text[2:-1], 2))
        case "YEAR":
            return bool(value == int(text) % 1900 or value == int(text))
        case "DECIMAL":
            return bool(value == {"$numberDecimal": text.decode()})
        case "FLOAT":
            return f"{value:g}" == text.decode()
        case "DOUBLE":
            return isinstance(value, float) and f"{value:.20g}" == text.decode()
        case "DATE":
            return bool(value == text[1:-1].decode().replace(":", "-"))
        case "TIME" | "DATETIME":
            return bool(value == text[1:-1].decode())
        case "TIMESTAMP":
            return _instant(value) == float(text)
        case "ENUM":
            return bool(value == ["", *members][int(text)])
        case "SET":
            # Its bytes are printed from the lowest on, and their bits from the highest on.
            each = [int(text[at : at + 8], 2) for at in range(2, len(text) - 1, 8)]
            bits = int.from_bytes(bytes(each), "little")
            return bool(value == [one for i, one in enumerate(members) if bits >> i & 1])
        case _:
            return _same_bytes(value, _unquoted(text), compressed="COMPRESSED" in kind)


def _instant(value: Any) -> float:
    if isinstance(value, str):
        assert value.startswith("0000-00-00 00:00:00")
        return 0.0
    return datetime.fromisoformat(value["$date"]).timestamp()


def _unquoted(text: bytes) -> bytes:
    assert text[:1] == text[-1:] == b"'"
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text[1:-1])


_CODECS = ["utf-8", *sorted({*CODECS.values()} - {CODECS["latin1"], "utf-8"})]


def _same_bytes(value: Any, data: bytes, *, compressed: bool) -> bool:
    """Whether they are the same; of text, in one of the character sets that are captured, whose
    characters another test compares with the server's. Zeros at the end of BINARY are not logged.
    """
    if compressed and data:
        raw = -zlib.MAX_WBITS if data[0] & 0x08 else zlib.MAX_WBITS
        data = zlib.decompress(data[1 + (data[0] & 7) :], raw) if data[0] >> 4 else data[1:]
    if isinstance(value, str):
        if any(value.encode(codec, "ignore") == data for codec in _CODECS):
            return True
        return value == "".join(LATIN1_TABLE[byte] for byte in data)
    if "wkb" in value:
        inner = msgspec.convert(value["wkb"]["$binary"]["base64"], bytes)
        return bool(value["srid"].to_bytes(4, "little") + inner == data)
    ours = msgspec.convert(value["$binary"]["base64"], bytes)
    return ours == data or (ours.startswith(data) and not ours[len(data) :].strip(b"\0"))
