"""MySQL's JSON columns: their binary form, as values that a JSON library writes. Pure.

An object's keys keep the server's order: shorter ones first, those of one length by their bytes.
What JSON itself has no type for is written as a column of that type is (`values`):

| in a document          | written as                                             |
|------------------------|--------------------------------------------------------|
| integers               | a number                                               |
| doubles                | a double                                               |
| DECIMAL                | `{"$numberDecimal":"1.10"}`                            |
| DATE                   | text, `"2026-01-31"`                                   |
| TIME, DATETIME         | text, with six digits of a second: no zone             |
| BLOB, BIT, ... : bytes | `{"$binary":{"base64":"...","subType":"00"}}`          |

Sources: the MySQL source documentation, json_binary.h ("The binary serialization format").
"""

import struct
from typing import Any, Final

from penstock import extjson
from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.tables import ColumnType
from penstock.sources.mysql.values import date_text, decimal_bytes, decimal_reader

DEPTH_MAX: Final = 100
"""As deep as the server lets a document be."""

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_STRING, _OPAQUE = 0x0C, 0x0F
_INTEGERS: Final[dict[int, tuple[int, bool]]] = {
    0x05: (2, True),
    0x06: (2, False),
    0x07: (4, True),
    0x08: (4, False),
    0x09: (8, True),
    0x0A: (8, False),
}
"""By type: bytes, and whether there is a sign."""
_DOUBLE = 0x0B
_LITERALS: Final = {0: None, 1: True, 2: False}


def json_value(data: bytes) -> Any:
    """What a JSON column has. Raises MalformedEventError, and ValueError for an object that would
    be read as one of our own wrappers."""
    if not data:
        return None  # as the server reads it: of a column that was added to rows that were there
    try:
        return _Reader(data).value(data[0], 1, 0)
    except (IndexError, struct.error, KeyError) as error:
        raise MalformedEventError("a JSON document that is broken") from error


class _Reader:
    """Reads one document."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # Each value has an entry of three bytes or more: so nothing of it is read twice.
        self._left = len(data) // 3 + 1

    def value(self, kind: int, at: int, depth: int) -> Any:
        """The value of this type at a place."""
        data = self._data
        if kind <= _LARGE_ARRAY:
            return self._container(kind, at, depth)
        integer = _INTEGERS.get(kind)
        if integer is not None:
            size, signed = integer
            self._require(at, size)
            return int.from_bytes(data[at : at + size], "little", signed=signed)
        if kind == _STRING:
            size, at = self._length(at)
            self._require(at, size)
            return data[at : at + size].decode()
        if kind == _LITERAL:
            return _LITERALS[data[at]]
        if kind == _DOUBLE:
            return extjson.exact(struct.unpack_from("<d", data, at)[0])
        if kind == _OPAQUE:
            column = data[at]
            size, at = self._length(at + 1)
            self._require(at, size)
            return _opaque(column, data[at : at + size])
        raise MalformedEventError(f"a JSON document with a value of the type {kind}")

    def _require(self, at: int, size: int) -> None:
        if at + size > len(self._data):
            raise MalformedEventError("a JSON document that is too short")

    def _length(self, at: int) -> tuple[int, int]:
        """A length in groups of seven bits, the lowest first, and where it ends."""
        length = 0
        for shift in range(0, 35, 7):
            byte = self._data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return length, at
        raise MalformedEventError("a JSON document with a length that does not end")

    def _container(self, kind: int, start: int, depth: int) -> Any:
        if depth >= DEPTH_MAX:
            raise MalformedEventError(f"a JSON document that is deeper than {DEPTH_MAX}")
        width = 4 if kind in {_LARGE_OBJECT, _LARGE_ARRAY} else 2
        is_object = kind in {_SMALL_OBJECT, _LARGE_OBJECT}
        count = self._number(start, width)
        keys_at = start + 2 * width
        values_at = keys_at + (count * (width + 2) if is_object else 0)
        self._left -= count
        if self._left < 0:
            raise MalformedEventError("a JSON document that goes in circles")
        values: list[Any] = []
        for entry in range(values_at, values_at + count * (1 + width), 1 + width):
            inner = self._data[entry]
            inlined = inner == _LITERAL or (inner in _INTEGERS and _INTEGERS[inner][0] <= width)
            at = entry + 1 if inlined else start + self._number(entry + 1, width)
            values.append(self.value(inner, at, depth + 1))
        if not is_object:
            return values
        names: list[str] = []
        for entry in range(keys_at, values_at, width + 2):
            at, size = start + self._number(entry, width), self._number(entry + width, 2)
            self._require(at, size)
            names.append(self._data[at : at + size].decode())
        document = dict(zip(names, values, strict=True))
        extjson.refuse_mimic(document)
        return document

    def _number(self, at: int, width: int) -> int:
        self._require(at, width)
        return int.from_bytes(self._data[at : at + width], "little")


_TIMES: Final = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.TIME})


def _opaque(column: int, data: bytes) -> Any:
    """A value of a column's type."""
    if column == ColumnType.NEWDECIMAL:
        precision, scale = data[0], data[1]
        if len(data) - 2 != decimal_bytes(precision, scale):
            raise MalformedEventError("a JSON document with a DECIMAL that is broken")
        return decimal_reader(precision, scale)(data, 2)
    if column == ColumnType.DATE or column in _TIMES:
        (packed,) = struct.unpack("<q", data)
        return _clock(column, packed)
    return extjson.binary(data)


def _clock(column: int, packed: int) -> str:
    """The server's packed form: the parts, and 24 bits of microseconds."""
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    micros, whole = packed & 0xFFFFFF, packed >> 24
    clock = f"{whole >> 12 & 0x1F:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{micros:06d}"
    if column == ColumnType.TIME:
        return f"{sign}{whole >> 12 & 0x3FF:02d}{clock[2:]}"
    months, day = whole >> 22, whole >> 17 & 31
    date = date_text((months // 13) << 9 | (months % 13) << 5 | day)
    return date if column == ColumnType.DATE else f"{date} {clock}"
