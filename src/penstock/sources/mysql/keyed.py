"""What decides how a table's rows are known: the columns of its key, and how each is written. Pure.

A row that was told under one key is changed and ended under that key alone. So where an ALTER has
the same row told with another key, in whatever way, the digest here is another one; and where it
does not (another column, an index, an INT that grows), it is the same. A position has it, so what
is in it must not change from one version of Penstock to the next.

It is made of a TABLE_MAP, or of what the server describes, and is the same of both.
"""

import re
from collections.abc import Sequence
from typing import Final

import xxhash
from msgspec import json

from penstock.sources.mysql.tables import BINARY_COLLATION, Column, ColumnType

Spelled = tuple[str, str]
"""A column's name, and what tells how its values are written."""

_NUMBER: Final = "number"
_SPELLED: Final = {
    ColumnType.TINY: _NUMBER,
    ColumnType.SHORT: _NUMBER,
    ColumnType.INT24: _NUMBER,
    ColumnType.LONG: _NUMBER,
    ColumnType.LONGLONG: _NUMBER,
    ColumnType.YEAR: _NUMBER,
    ColumnType.BIT: _NUMBER,
    ColumnType.FLOAT: "float",
    ColumnType.DOUBLE: "double",
    ColumnType.DATE: "date",
    ColumnType.NEWDATE: "date",
    ColumnType.ENUM: "text",
    ColumnType.SET: "set",
    ColumnType.GEOMETRY: "geometry",
    ColumnType.JSON: "json",
    ColumnType.VECTOR: "bytes",
}
_DIGITS: Final = {
    ColumnType.TIME2: "time",
    ColumnType.DATETIME2: "datetime",
    ColumnType.TIMESTAMP2: "timestamp",
}
_DESCRIBED: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), _NUMBER),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"), "bytes"),
    **{one: one for one in ("float", "double", "date", "set", "json")},
    "enum": "text",
    "uuid": "binary 16",
    "inet6": "binary 16",
    "inet4": "binary 4",
}
_WITH_DIGITS: Final = frozenset({"time", "datetime", "timestamp"})
_LENGTHS: Final = re.compile(r"\((\d+)(?:,(\d+))?\)")


def keyed(key: Sequence[Spelled], told: Sequence[Spelled]) -> str:
    """The digest of a table whose rows are known by the columns of its `key`, in that order.
    Without one they are known by all that is `told` of them."""
    return xxhash.xxh3_64_hexdigest(json.encode((bool(key), key or told)))


def mapped(column: Column) -> Spelled:
    """A column of a TABLE_MAP."""
    kind, meta = column.type, column.meta
    if kind == ColumnType.NEWDECIMAL:
        how = f"decimal {meta & 0xFF}"
    elif kind in _DIGITS:
        how = f"{_DIGITS[ColumnType(kind)]} {meta}"
    elif kind in _SPELLED:
        how = _SPELLED[ColumnType(kind)]
    elif column.collation != BINARY_COLLATION:
        how = "text"
    else:
        # It is filled up to its length.
        how = f"binary {meta}" if kind == ColumnType.STRING else "bytes"
    return column.name, how


def described(name: str, kind: str, whole: str) -> Spelled:
    """A column as the server describes it: its type, alone and with all that belongs to it."""
    found = _LENGTHS.search(whole)
    first, second = found.groups(default="0") if found else ("0", "0")
    if kind == "decimal":
        return name, f"decimal {second}"
    if kind == "binary":
        return name, f"binary {first}"
    if kind in _WITH_DIGITS:
        return name, f"{kind} {first}"
    return name, _DESCRIBED.get(kind, "geometry")
