"""A BSON reader that is slow and faithful, for what the fast decoder would change.

Source: the BSON specification, version 1.1 (bsonspec.org).
"""

import struct
from typing import Any

from bson import (
    Binary,
    Code,
    DatetimeMS,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Timestamp,
)


class InexactError(ValueError):
    """A value without an exact mapping; says what it is and where."""


class Symbol:
    """BSON's deprecated symbol."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Undefined:
    """BSON's deprecated undefined."""

    __slots__ = ()


class DBPointer:
    """BSON's deprecated pointer to a document."""

    __slots__ = ("id", "namespace")

    def __init__(self, namespace: str, object_id: ObjectId) -> None:
        self.namespace = namespace
        self.id = object_id


class Expression:
    """A regular expression with its options as they were written."""

    __slots__ = ("options", "pattern")

    def __init__(self, pattern: str, options: str) -> None:
        self.pattern = pattern
        self.options = options


def read_document(raw: bytes) -> dict[str, Any]:
    """The document of BSON bytes. Raises InexactError for what has no exact mapping."""
    try:
        return _Reader(bytes(raw)).document(())
    except (struct.error, IndexError) as error:
        raise InexactError("a document that is cut short") from error


def _where(path: tuple[str, ...]) -> str:
    return f"the field {'.'.join(path)}" if path else "the document"


class _Reader:
    """A place in BSON bytes. Each method reads one thing and moves past it."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def document(self, path: tuple[str, ...]) -> dict[str, Any]:
        """An embedded document, its fields in order."""
        found: dict[str, Any] = {}
        for name, value in self._elements(path):
            if name in found:
                raise InexactError(f"{_where((*path, name))}, which occurs twice in its document")
            found[name] = value
        return found

    def _array(self, path: tuple[str, ...]) -> list[Any]:
        return [value for _, value in self._elements(path)]

    def _elements(self, path: tuple[str, ...]) -> list[tuple[str, Any]]:
        end = self._at + self._number("<i") - 1
        found: list[tuple[str, Any]] = []
        while (kind := self._bytes(1)[0]) != 0:
            name = self._name(path)
            here = (*path, name)
            found.append((name, self._value(kind, here)))
        if self._at != end + 1:
            raise InexactError(f"{_where(path)}, whose length is not what it says")
        return found

    def _value(self, kind: int, path: tuple[str, ...]) -> Any:
        read = {
            0x02: self._string,
            0x03: self.document,
            0x04: self._array,
            0x05: self._binary,
            0x08: self._boolean,
            0x0B: self._expression,
            0x0C: self._pointer,
            0x0F: self._scoped,
            0x11: self._timestamp,
        }.get(kind)
        if read is not None:
            return read(path)
        match kind:
            case 0x01:
                return self._number("<d")
            case 0x06:
                return Undefined()
            case 0x07:
                return ObjectId(self._bytes(12))
            case 0x09:
                return DatetimeMS(self._number("<q"))
            case 0x0A:
                return None
            case 0x0D:
                return Code(self._string(path))
            case 0x0E:
                return Symbol(self._string(path))
            case 0x10:
                return self._number("<i")
            case 0x12:
                return Int64(self._number("<q"))
            case 0x13:
                return Decimal128.from_bid(self._bytes(16))
            case 0x7F:
                return MaxKey()
            case 0xFF:
                return MinKey()
            case _:
                raise InexactError(f"{_where(path)} of the unknown BSON type 0x{kind:02x}")

    def _bytes(self, length: int) -> bytes:
        data = self._raw[self._at : self._at + length]
        if length < 0 or len(data) != length:
            raise IndexError
        self._at += length
        return data

    def _number(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self._bytes(struct.calcsize(layout)))
        return value

    def _name(self, path: tuple[str, ...]) -> str:
        end = self._raw.find(0, self._at)
        if end < 0:
            raise IndexError
        data = self._bytes(end - self._at)
        self._at += 1
        return _text(data, path)

    def _string(self, path: tuple[str, ...]) -> str:
        data = self._bytes(self._number("<i"))
        return _text(data[:-1], path)

    def _binary(self, _: tuple[str, ...]) -> Binary:
        length, subtype = self._number("<i"), self._bytes(1)[0]
        data = self._bytes(length)
        # The old binary repeats its length inside.
        return Binary(data[4:] if subtype == 2 else data, subtype)

    def _boolean(self, path: tuple[str, ...]) -> bool:
        value = self._bytes(1)[0]
        if value > 1:
            raise InexactError(f"{_where(path)}, a boolean that is {value}")
        return bool(value)

    def _timestamp(self, _: tuple[str, ...]) -> Timestamp:
        increment, seconds = self._number("<I"), self._number("<I")
        return Timestamp(seconds, increment)

    def _scoped(self, path: tuple[str, ...]) -> Code:
        self._number("<i")
        text = self._string(path)
        return Code(text, self.document(path))

    def _pointer(self, path: tuple[str, ...]) -> DBPointer:
        namespace = self._string(path)
        return DBPointer(namespace, ObjectId(self._bytes(12)))

    def _expression(self, path: tuple[str, ...]) -> Expression:
        pattern = self._name(path)
        return Expression(pattern, self._name(path))


def _text(data: bytes, path: tuple[str, ...]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InexactError(f"{_where(path)}, whose text is not UTF-8") from None
