"""Names of captured collections in the protocol; each can be read back.

A table is `SOURCE.DATABASE.COLLECTION`. Letters, digits and `_` stand for themselves, and so do the
dots of the collection; `-` is written `--`, every other byte of UTF-8 as `-` and two hex digits.
A name that would be longer than the protocol's 255 characters is cut and ends in `-.` and a hash:
that one is read back by the index alone.

The place of a record is ten times the log's sequence and 1, but 0 for the first of the two records
that a change of a key makes.
"""

import re
from typing import Final, NamedTuple

import xxhash

from penstock.serve.dynamodb.numbers import Number, read_number

_LONGEST: Final = 255
_HASH_CHARS: Final = 32
_UNPROVEN: Final = 10**21
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_ESCAPED: Final = re.compile(r"-(-|[0-9a-f]{2})")
_CUT: Final = re.compile(r"[a-zA-Z0-9_.-]{200,}-\.[0-9a-f]{32}")
PARTS: Final = 10
FIRST_OF_TWO: Final = 0
LAST: Final = 1
"""The part of an entry that its last record is, and nearly always its only one."""


class Name(NamedTuple):
    """Which collection."""

    source: str
    database: str
    collection: str


def table_name(name: Name) -> str:
    """The table that a collection is: 3 to 255 of `[a-zA-Z0-9_.-]`, and no other collection's."""
    parts = (escaped(name.source), escaped(name.database), escaped(name.collection, dots=True))
    whole = ".".join(parts)
    if len(whole) <= _LONGEST:
        return whole
    cut = whole[: _LONGEST - _HASH_CHARS - 2]
    # Not within an escape, whose hyphens come two by two or before two digits.
    while not _is_whole(cut):
        cut = cut[:-1]
    return f"{cut}-.{xxhash.xxh3_128_hexdigest(whole.encode())}"


def read_table_name(table: str) -> Name | None:
    """The collection of a table's name; None for what `table_name` did not write, or cut."""
    parts = table.split(".", 2)
    if len(parts) != 3 or "-." in re.sub(_ESCAPED, "", table):
        return None
    try:
        name = Name(*(_unescaped(part) for part in parts))
    except ValueError:
        return None
    return name if table_name(name) == table else None


def is_table_name(table: str) -> bool:
    """Whether `table_name` may have written it."""
    cut = len(table) <= _LONGEST and re.fullmatch(_CUT, table) is not None
    return cut or read_table_name(table) is not None


def read_sequence_number(given: str) -> Number:
    """A record's place (`place_of`), and the check that the log has there."""
    return read_number(given, unproven=_UNPROVEN, places=place_of((1 << 63) + 1))


def place_of(sequence: int, part: int = LAST) -> int:
    """Where a record stands: the log's sequence, and which of the entry's records it is."""
    return sequence * PARTS + part


def read_before(place: int) -> int:
    """The sequence up to which whoever stands at a place has everything."""
    sequence, part = divmod(place, PARTS)
    return sequence if part >= LAST else sequence - 1


def escaped(part: str, *, dots: bool = False) -> str:
    written = list[str]()
    for byte in part.encode():
        if byte in _PLAIN or (dots and byte == ord(".")):
            written.append(chr(byte))
        else:
            written.append("--" if byte == ord("-") else f"-{byte:02x}")
    return "".join(written)


def _unescaped(part: str) -> str:
    read = bytearray()
    at = 0
    while at < len(part):
        if part[at] != "-":
            read.append(ord(part[at]))
            at += 1
        elif part[at : at + 2] == "--":
            read.append(ord("-"))
            at += 2
        else:
            read += bytes.fromhex(part[at + 1 : at + 3])
            at += 3
    return read.decode()


def _is_whole(cut: str) -> bool:
    return "-" not in re.sub(_ESCAPED, "", cut)
