"""What a TABLE_MAP event says of a table: names, types and all that its rows are read by. Pure.

With `binlog_row_metadata = FULL` it says everything that the rows do not: which integers are
unsigned, the character set of each text, the names of the columns, the values of ENUM and SET, and
the primary key. So a change is decoded with the table as it was at that place of the binlog (S4,
A15), whatever it is now.
Sources: the MariaDB documentation, "TABLE_MAP_EVENT"; the MySQL source documentation,
mysql::binlog::event::Table_map_event.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.sources.mysql.binlog import MalformedEventError, lenenc


class ColumnType(IntEnum):
    """The types of columns in a binlog."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


BINARY_COLLATION: Final = 63
"""The collation of what is bytes and no text."""

_NUMERIC = frozenset(
    {
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
        ColumnType.NEWDECIMAL,
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
        ColumnType.YEAR,
    }
)
"""Those that have a bit in SIGNEDNESS."""
_TEXT = frozenset(
    {
        ColumnType.STRING,
        ColumnType.VAR_STRING,
        ColumnType.VARCHAR,
        ColumnType.BLOB,
        ColumnType.TINY_BLOB,
        ColumnType.MEDIUM_BLOB,
        ColumnType.LONG_BLOB,
        ColumnType.BLOB_COMPRESSED,
        ColumnType.VARCHAR_COMPRESSED,
        ColumnType.GEOMETRY,
    }
)
"""Those that have a character set in DEFAULT_CHARSET and COLUMN_CHARSET, as MariaDB 10.11 does."""
_TEXT_OF_MYSQL = _TEXT - {ColumnType.GEOMETRY} | {ColumnType.VECTOR}
"""And as MySQL 9.7 does."""
_LONG = frozenset(
    {
        ColumnType.BLOB,
        ColumnType.GEOMETRY,
        ColumnType.JSON,
        ColumnType.VECTOR,
        ColumnType.BLOB_COMPRESSED,
    }
)
"""Those whose metadata says how many bytes the length of a value has."""
_AS_STRING = frozenset({ColumnType.STRING, ColumnType.ENUM, ColumnType.SET})

_META_BYTES: dict[int, int] = {
    ColumnType.FLOAT: 1,
    ColumnType.DOUBLE: 1,
    ColumnType.BLOB: 1,
    ColumnType.GEOMETRY: 1,
    ColumnType.JSON: 1,
    ColumnType.VECTOR: 1,
    ColumnType.BLOB_COMPRESSED: 1,
    ColumnType.TIME2: 1,
    ColumnType.DATETIME2: 1,
    ColumnType.TIMESTAMP2: 1,
    ColumnType.VARCHAR: 2,
    ColumnType.VARCHAR_COMPRESSED: 2,
    ColumnType.BIT: 2,
    ColumnType.NEWDECIMAL: 2,
    ColumnType.STRING: 2,
    ColumnType.VAR_STRING: 2,
    ColumnType.ENUM: 2,
    ColumnType.SET: 2,
}


class Column(Struct, frozen=True, kw_only=True):
    """One column."""

    name: str
    type: int
    """A ColumnType, or a number that we do not know."""
    meta: int
    """What the type needs: lengths, precision, digits of a fraction."""
    nullable: bool = True
    unsigned: bool = False
    collation: int = BINARY_COLLATION
    values: tuple[bytes, ...] = ()
    """Of an ENUM or SET, in their order, in its character set."""


class Table(Struct, frozen=True, kw_only=True):
    """One table, as of one place in the binlog."""

    database: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    """The columns of the primary key, in its order; empty without one."""
    full: bool
    """Whether the event had the names of the columns: binlog_row_metadata is FULL."""


class _Meta(IntEnum):
    """The fields of the optional metadata."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_VALUES = 5
    ENUM_VALUES = 6
    GEOMETRY_TYPE = 7
    SIMPLE_KEY = 8
    KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    COLUMN_VISIBILITY = 12


class _Base(NamedTuple):
    type: int
    meta: int


def table_id(body: bytes) -> int:
    """The number by which rows refer to a TABLE_MAP."""
    return int.from_bytes(body[:6], "little")


_SEQUENCE: Final = (
    *("next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment"),
    *("cache_size", "cycle_option", "cycle_count"),
)
"""The columns of a MariaDB sequence, which is a table of one row to its storage engine."""


def is_sequence(table: Table) -> bool:
    """Whether a table is a SEQUENCE, which no statement can write rows to."""
    return not table.key and tuple(column.name for column in table.columns) == _SEQUENCE


def named(body: bytes) -> tuple[str, str]:
    """The database and the table of a TABLE_MAP. Raises MalformedEventError."""
    database, at = _name(body, 8)
    return database, _name(body, at)[0]


def parse_table(body: bytes, *, of_mysql: bool = False) -> Table:
    """What a TABLE_MAP event says; MariaDB's and MySQL's differ. Raises MalformedEventError."""
    try:
        return _parsed(body, _TEXT_OF_MYSQL if of_mysql else _TEXT)
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedEventError("a TABLE_MAP that does not say what it must") from error


def _parsed(body: bytes, texts: frozenset[ColumnType]) -> Table:
    database, at = _name(body, 8)
    name, at = _name(body, at)
    count, at = lenenc(body, at)
    types = body[at : at + count]
    if len(types) != count or not count:
        raise MalformedEventError("a TABLE_MAP that is too short, or has no columns")
    at += count
    size, at = lenenc(body, at)
    bases = _bases(types, body[at : at + size])
    at += size
    nullable = body[at : at + (count + 7) // 8]
    at += (count + 7) // 8
    fields: dict[int, bytes] = {}
    while at < len(body):
        kind = body[at]
        size, at = lenenc(body, at + 1)
        if at + size > len(body) or kind in fields:
            raise MalformedEventError("a TABLE_MAP whose metadata is broken")
        fields[kind] = body[at : at + size]
        at += size
    return Table(
        database=database,
        name=name,
        columns=_columns(bases, nullable, fields, texts),
        key=_key(fields, count),
        full=_Meta.COLUMN_NAME in fields,
    )


def _name(body: bytes, at: int) -> tuple[str, int]:
    size = body[at]
    if at + 1 + size + 1 > len(body) or body[at + 1 + size]:
        raise MalformedEventError("a TABLE_MAP whose names are broken")
    return body[at + 1 : at + 1 + size].decode(), at + size + 2


def _bases(types: bytes, meta: bytes) -> list[_Base]:
    """Types as they are, and what each needs: ENUM and SET come as STRING."""
    bases: list[_Base] = []
    at = 0
    for kind in types:
        size = _META_BYTES.get(kind, 0)
        if at + size > len(meta):
            raise MalformedEventError("a TABLE_MAP whose column metadata is too short")
        said = meta[at : at + size]
        at += size
        if kind == ColumnType.STRING:
            real, length = said[0], said[1]
            if real & 0x30 != 0x30:
                # Two bits of a length over 255 are kept, inverted, in the type.
                length |= ((real & 0x30) ^ 0x30) << 4
                real |= 0x30
            if real not in _AS_STRING:
                raise MalformedEventError(f"a STRING that is of type {real}")
            bases.append(_Base(real, length))
        elif kind == ColumnType.NEWDECIMAL:
            bases.append(_Base(kind, said[0] << 8 | said[1]))
        elif kind == ColumnType.BIT:
            bases.append(_Base(kind, said[1] * 8 + said[0]))
        else:
            number = int.from_bytes(said, "little")
            if kind in _LONG and not 1 <= number <= 4:
                raise MalformedEventError(f"a column whose lengths have {number} bytes")
            bases.append(_Base(kind, number))
    if at != len(meta):
        raise MalformedEventError("a TABLE_MAP whose column metadata is too long")
    return bases


def _columns(
    bases: list[_Base], nullable: bytes, fields: dict[int, bytes], texts: frozenset[ColumnType]
) -> tuple[Column, ...]:
    names = _strings(fields.get(_Meta.COLUMN_NAME, b""))
    if names and len(names) != len(bases):
        raise MalformedEventError("a TABLE_MAP with another number of names than columns")
    numeric = [i for i, base in enumerate(bases) if base.type in _NUMERIC]
    bits = fields.get(_Meta.SIGNEDNESS, b"")
    if len(bits) * 8 < len(numeric) and bits:
        raise MalformedEventError("a TABLE_MAP whose signedness is too short")
    unsigned = {i for n, i in enumerate(numeric) if bits and bits[n // 8] & 0x80 >> n % 8}
    if bits and any(
        base.type == ColumnType.YEAR and i not in unsigned for i, base in enumerate(bases)
    ):
        # It always is, so this server counts other columns than those that we know of.
        raise MalformedEventError("a TABLE_MAP whose signedness is of other columns")
    lists = [i for i, base in enumerate(bases) if base.type in {ColumnType.ENUM, ColumnType.SET}]
    collations = {
        **_collations(
            [i for i, base in enumerate(bases) if base.type in texts],
            fields.get(_Meta.DEFAULT_CHARSET),
            fields.get(_Meta.COLUMN_CHARSET),
        ),
        **_collations(
            lists,
            fields.get(_Meta.ENUM_AND_SET_DEFAULT_CHARSET),
            fields.get(_Meta.ENUM_AND_SET_COLUMN_CHARSET),
        ),
    }
    values = {
        **_values(bases, ColumnType.ENUM, fields.get(_Meta.ENUM_VALUES)),
        **_values(bases, ColumnType.SET, fields.get(_Meta.SET_VALUES)),
    }
    return tuple(
        Column(
            name=names[i].decode() if names else "",
            type=base.type,
            meta=base.meta,
            nullable=bool(nullable[i // 8] & 1 << i % 8),
            unsigned=i in unsigned,
            collation=collations.get(i, BINARY_COLLATION),
            values=values.get(i, ()),
        )
        for i, base in enumerate(bases)
    )


def _collations(columns: list[int], default: bytes | None, each: bytes | None) -> dict[int, int]:
    """By column: its collation. One for most and pairs for the rest, or one for each."""
    if each is not None:
        said = _numbers(each)
        if len(said) != len(columns):
            raise MalformedEventError("a TABLE_MAP with too few or too many character sets")
        return dict(zip(columns, said, strict=True))
    if default is None:
        return {}
    common, *pairs = _numbers(default)
    found = dict.fromkeys(columns, common)
    for which, collation in zip(pairs[::2], pairs[1::2], strict=True):
        found[columns[which]] = collation
    return found


def _values(bases: list[_Base], kind: int, field: bytes | None) -> dict[int, tuple[bytes, ...]]:
    if field is None:
        return {}
    found: dict[int, tuple[bytes, ...]] = {}
    at = 0
    for i, base in enumerate(bases):
        if base.type == kind:
            count, at = lenenc(field, at)
            values: list[bytes] = []
            for _ in range(count):
                value, at = _string(field, at)
                values.append(value)
            found[i] = tuple(values)
    return found


def _key(fields: dict[int, bytes], count: int) -> tuple[int, ...]:
    if _Meta.KEY_WITH_PREFIX in fields:
        key = tuple(_numbers(fields[_Meta.KEY_WITH_PREFIX])[::2])
    else:
        key = tuple(_numbers(fields.get(_Meta.SIMPLE_KEY, b"")))
    if any(one >= count for one in key):
        raise MalformedEventError("a TABLE_MAP with a key of a column that it does not have")
    return key


def _numbers(field: bytes) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(field):
        number, at = lenenc(field, at)
        found.append(number)
    return found


def _string(field: bytes, at: int) -> tuple[bytes, int]:
    size, at = lenenc(field, at)
    if at + size > len(field):
        raise MalformedEventError("a TABLE_MAP whose texts are too short")
    return field[at : at + size], at + size


def _strings(field: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(field):
        text, at = _string(field, at)
        found.append(text)
    return found
