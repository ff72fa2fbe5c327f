"""Rows as a server's SELECT gives them, made into the very documents that its binlog gives. Pure.

Each type is asked for in the form from which its value comes exactly (invariant 9, S12): text as
the bytes of its own character set, read by the codec that reads the binlog; a FLOAT as the double
that it is; a TIMESTAMP in a session at UTC. A test has every type told by both and compares bytes.

A table is read in the order of its key. Where a key cannot be compared with a constant as the
server orders it, or there is none, the table is not divided (`divides`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import xxhash
from msgspec import Struct, structs

from penstock import extjson
from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.charsets import CODECS, latin1, member
from penstock.sources.mysql.columns import ColumnRules, ForbiddenRuleError
from penstock.sources.mysql.json_texts import json_of_text, kinds_of
from penstock.sources.mysql.keyed import Spelled, described, keyed
from penstock.sources.mysql.row_readers import Document, RowReader, UnreadableTableError
from penstock.sources.mysql.rows import CompiledTable
from penstock.sources.mysql.shapes import varying
from penstock.sources.mysql.tables import Column, ColumnType, Table
from penstock.sources.mysql.values import geometry, instant

Convert = Callable[[Any], Any]
"""What becomes of a value that is not NULL, as the client library has it: bytes, or ASCII text."""


class ColumnFacts(NamedTuple):
    """One column, as the server describes it."""

    name: str
    type: str
    """Its type alone: `int`, `varchar`."""
    whole_type: str
    """With all that belongs to it: `int(10) unsigned`."""
    charset: str | None
    collation: str | None
    extra: str = ""


class KeyPart(NamedTuple):
    """A column of an index."""

    name: str
    partial: bool
    """Only the value's beginning is in it."""


Key = tuple[str, ...]
"""The values of a key's columns, each as `Selection.place` has it; or of the first ones alone."""


class Span(NamedTuple):
    """Rows whose keys follow one another."""

    after: Sequence[str] | None = None
    """The key that is right before them;"""
    start: Sequence[str] | None = None
    """or the one that none is less than;"""
    stop: Sequence[str] | None = None
    """and that all are less than. None: there is no such bound."""


WHOLE: Final = Span()


class Definition(Struct, frozen=True):
    """A table, as the server describes it."""

    database: str
    name: str
    engine: str
    columns: tuple[ColumnFacts, ...]
    """In their order, hidden ones too where the binlog has them."""
    index: str
    """The name of the index by which its rows are known; empty if there is none."""
    key: tuple[KeyPart, ...]
    versioned: bool = False
    """Whether it keeps rows of before, which the binlog has as well."""
    computed: Mapping[str, str] = {}
    """The expressions of columns that the server computes, virtual ones too."""

    @property
    def table(self) -> tuple[str, str]:
        """Its database and name."""
        return self.database, self.name

    @property
    def divides(self) -> bool:
        """Whether it can be read in parts, in the order of its key."""
        types = {column.name: column.type for column in self.columns}
        return bool(self.key) and not any(
            part.partial or types[part.name] in _GEOMETRIES for part in self.key
        )

    @property
    def shape(self) -> str:
        """Differs where the key does, so that a place in one is none in the other."""
        known = {column.name: column for column in self.columns}
        said = [(part, known[part.name][2:5]) for part in self.key]
        return xxhash.xxh3_64_hexdigest(repr(said).encode())


_INTEGERS: Final = {
    "tinyint": ColumnType.TINY,
    "smallint": ColumnType.SHORT,
    "mediumint": ColumnType.INT24,
    "int": ColumnType.LONG,
    "bigint": ColumnType.LONGLONG,
    "year": ColumnType.YEAR,
}
_TEXTS: Final = {
    "char": ColumnType.STRING,
    "varchar": ColumnType.VARCHAR,
    "tinytext": ColumnType.BLOB,
    "text": ColumnType.BLOB,
    "mediumtext": ColumnType.BLOB,
    "longtext": ColumnType.BLOB,
}
_BYTES: Final = {
    "binary": ColumnType.STRING,
    "varbinary": ColumnType.VARCHAR,
    "tinyblob": ColumnType.BLOB,
    "blob": ColumnType.BLOB,
    "mediumblob": ColumnType.BLOB,
    "longblob": ColumnType.BLOB,
    # A MariaDB keeps and logs it as VARBINARY; a MySQL's is told alike.
    "vector": ColumnType.VARCHAR,
}
_FIXED_BYTES: Final = {"uuid": 16, "inet6": 16, "inet4": 4}
_GEOMETRIES: Final = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"}
    | {"multipolygon", "geometrycollection", "geomcollection"}
)
_OTHERS: Final = {
    "bit": ColumnType.BIT,
    "decimal": ColumnType.NEWDECIMAL,
    "float": ColumnType.FLOAT,
    "double": ColumnType.DOUBLE,
    "date": ColumnType.DATE,
    "time": ColumnType.TIME2,
    "datetime": ColumnType.DATETIME2,
    "timestamp": ColumnType.TIMESTAMP2,
    "enum": ColumnType.ENUM,
    "set": ColumnType.SET,
    "json": ColumnType.JSON,
    **dict.fromkeys(_FIXED_BYTES, ColumnType.STRING),
    **dict.fromkeys(_GEOMETRIES, ColumnType.GEOMETRY),
}
_TYPES: Final[Mapping[str, ColumnType]] = {**_INTEGERS, **_TEXTS, **_BYTES, **_OTHERS}


class Selection:
    """How to ask for the rows of one table, and what to make of the answer."""

    def __init__(self, definition: Definition, *, rules: ColumnRules | None = None) -> None:
        """`rules` are those of columns, as of the stream.

        Raises UnreadableTableError for a column that has no exact form, or that they cannot be of.
        """
        self.definition = definition
        names, key = [one.name for one in definition.columns], [one.name for one in definition.key]
        # Virtual ones too: rules may be of them, and stored ones computed of them.
        names += [name for name in definition.computed if name not in names]
        try:
            ruled = (
                None
                if rules is None
                else rules.of(definition.table, names, key, definition.computed)
            )
        except ForbiddenRuleError as error:
            raise UnreadableTableError(str(error)) from error
        left_out = frozenset[str]() if ruled is None else ruled.left_out
        self._ruled = _as_it_is if ruled is None else ruled.apply
        told = [column for column in definition.columns if column.name not in left_out]
        asked = [_asked(definition, column) for column in told]
        self._expressions = [expression for expression, _ in asked]
        self._values = [
            (column.name, convert) for column, (_, convert) in zip(told, asked, strict=True)
        ]
        jsons = [column.name for column in told if column.type == "json"]
        self._kinds = [(name, kinds_of(name_of(name))) for name in jsons]
        """Of MySQL's JSON: what its text does not say, asked for behind the values."""
        known = {column.name: column for column in definition.columns}
        # A place in a key is kept as it is, which one that is hashed must not be.
        hidden = ruled is not None and ruled.changes(key)
        self.divides = definition.divides and not hidden
        """Whether it is read in parts, in the order of its key."""
        self.key = [known[part.name] for part in definition.key] if self.divides else []
        """Its columns, where it is divided."""
        self.compiled = structs.replace(
            _compiled(definition, told),
            varying=varying(
                (column.name, _TYPES.get(column.type, -1))
                for column in told
                if ruled is None or not ruled.changes((column.name,))
            ),
        )
        """What the stream's own events of the table are made with."""

    def statement(self, span: Span, limit: int | None) -> str:
        """The SELECT of rows: the first so many of a span, in the key's order; or all rows."""
        kinds = (expression for _, expression in self._kinds)
        asked = [*self._expressions, *kinds, *map(_place, self.key)]
        if limit is None:
            return f"SELECT {', '.join(asked) or '1'} {self._source}"
        return f"SELECT {', '.join(asked)} {self._ordered(span)} LIMIT {limit}"

    def key_in(self, span: Span, *, last: bool = False, skip: int = 0) -> str:
        """The SELECT of the first key of a span behind so many, or of its last one."""
        asked = ", ".join(map(_place, self.key))
        return f"SELECT {asked} {self._ordered(span, last=last)} LIMIT 1 OFFSET {skip}"

    def counted(self, span: Span) -> str:
        """The SELECT of which the server is to say how many rows of the span it expects."""
        return f"SELECT 1 {self._ordered(span)}"

    @property
    def _source(self) -> str:
        versions = " FOR SYSTEM_TIME ALL" if self.definition.versioned else ""
        return f"FROM {quoted(self.definition.table)}{versions}"

    def _ordered(self, span: Span, *, last: bool = False) -> str:
        bounds = ((span.after, ">"), (span.start, ">="), (span.stop, "<"))
        wanted = [f"({self._beside(key, sign)})" for key, sign in bounds if key is not None]
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        order = ", ".join(f"{name_of(one.name)}{' DESC' if last else ''}" for one in self.key)
        index = name_of(self.definition.index)
        return f"{self._source} FORCE INDEX ({index}){where} ORDER BY {order}"

    def _beside(self, key: Sequence[str], sign: str) -> str:
        """What is true of rows whose key is greater, or less, or as great, column by column."""
        literals = [_literal(one, text) for one, text in zip(self.key, key, strict=False)]
        names = [name_of(column.name) for column in self.key]
        ways: list[str] = []
        for at, literal in enumerate(literals):
            same = [f"{names[i]} = {literals[i]}" for i in range(at)]
            last = sign if at == len(literals) - 1 else sign[0]
            ways.append(" AND ".join([*same, f"{names[at]} {last} {literal}"]))
        return " OR ".join(f"({way})" for way in ways)

    def document(self, row: Sequence[Any]) -> Document:
        """The document of a row. Raises ValueError for a value that has no exact form."""
        document: Document = {
            name: None if value is None else convert(value)
            for (name, convert), value in zip(self._values, row, strict=False)
        }
        for at, (name, _) in enumerate(self._kinds, len(self._values)):
            text, kinds = document[name], row[at]
            if text is None:
                continue
            if kinds is None:
                raise ValueError(
                    f"the server cannot say of what kinds the values in its JSON column {name!r} "
                    f"are, for the list is longer than its max_allowed_packet. Raise that (SET "
                    f"GLOBAL, and in the server's file), and start the source again"
                )
            document[name] = json_of_text(text, kinds)
        return self._ruled(document)

    def place(self, row: Sequence[Any]) -> tuple[str, ...]:
        """The key of a row, as `statement` takes it."""
        return tuple(str(value) for value in row[len(self._values) + len(self._kinds) :])


def name_of(name: str) -> str:
    """A name as a statement has it."""
    return f"`{name.replace('`', '``')}`"


def quoted(table: tuple[str, str]) -> str:
    """A table's name, with its database, as a statement has it."""
    return f"{name_of(table[0])}.{name_of(table[1])}"


# --- values ---------------------------------------------------------------------------------------


def _asked(definition: Definition, column: ColumnFacts) -> tuple[str, Convert]:
    """What to ask for a column, and what becomes of the answer."""
    kind, name = column.type, name_of(column.name)
    if kind in _INTEGERS:
        return name, int
    if kind == "bit":
        return f"{name} + 0", int
    if kind == "decimal":
        return name, _decimal
    if kind in {"float", "double"}:
        return f"CAST({name} AS DOUBLE)", float
    if kind in {"date", "time", "datetime"}:
        return name, str
    if kind == "timestamp":
        return name, _timestamp
    if kind == "vector":
        return f"CAST({name} AS BINARY)", extjson.binary
    if kind in _BYTES:
        return name, extjson.binary
    if kind == "json":
        return name, str
    if kind in _FIXED_BYTES:
        return f"CAST({name} AS BINARY({_FIXED_BYTES[kind]}))", extjson.binary
    if kind in _GEOMETRIES:
        return name, geometry
    if kind in _TEXTS or kind in {"enum", "set"}:
        decode = _decoder(definition, column)
        # A CAST of what is longer than the server's max_allowed_packet is NULL (MariaDB).
        text = f"CONVERT({name} USING binary)"
        if kind == "set":
            # An empty text is no value, or a value that is empty.
            return f"CONCAT(IF({name} + 0, '1', '0'), {text})", _members(decode)
        return text, decode
    raise _unreadable(definition, column, f"of the type {column.whole_type}")


def _decoder(definition: Definition, column: ColumnFacts) -> Callable[[bytes], str]:
    charset, is_member = column.charset or "binary", column.type in {"enum", "set"}
    codec = CODECS.get("utf8mb4" if is_member and charset == "binary" else charset)
    if codec is None:
        raise _unreadable(definition, column, f"text in the character set {charset}")
    if is_member:
        return lambda value: member(value, codec)
    if codec == CODECS["latin1"]:
        return latin1
    return lambda value: value.decode(codec)


def _members(decode: Callable[[bytes], str]) -> Convert:
    return lambda value: decode(value[1:]).split(",") if value[:1] == b"1" else []


def _decimal(value: str) -> dict[str, str]:
    """ZEROFILL is how a number is shown, and no part of it."""
    sign = "-" if value[:1] == "-" else ""
    whole, point, part = value.lstrip("-").partition(".")
    return {"$numberDecimal": f"{sign}{whole.lstrip('0') or '0'}{point}{part}"}


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC throughout


def _timestamp(value: str) -> Any:
    """A TIMESTAMP as a session at UTC shows it."""
    if value.startswith("0000"):
        return value
    passed = datetime.fromisoformat(value) - _EPOCH
    return instant(passed.days * 86_400 + passed.seconds, passed.microseconds)


def _unreadable(definition: Definition, column: ColumnFacts, what: str) -> UnreadableTableError:
    return UnreadableTableError(
        f"the column {column.name!r} of {definition.database}.{definition.name}, which is {what}"
    )


# --- keys -----------------------------------------------------------------------------------------


def _place(column: ColumnFacts) -> str:
    """What to ask for a key's column, so that the answer is plain text."""
    name = name_of(column.name)
    if column.type in {"bit", "enum", "set"}:
        return f"{name} + 0"
    if column.type in {"float", "double"}:
        return f"CAST({name} AS DOUBLE)"
    if column.type in _TEXTS or column.type in _BYTES:
        return f"HEX({name})"
    return f"CAST({name} AS CHAR)"


_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_HEX: Final = re.compile(r"([0-9A-F]{2})*")
_WORD: Final = re.compile(r"[0-9A-Za-z:. -]+")
_NUMERIC: Final = frozenset({*_INTEGERS, "bit", "decimal", "float", "double", "enum", "set"})


def _literal(column: ColumnFacts, text: str) -> str:
    """What `_place` gave, as a constant that compares as the server orders the column."""
    kind = column.type
    if kind in _NUMERIC and _NUMBER.fullmatch(text):
        exact = kind not in {"float", "double"} or "e" in text
        return text if exact else f"{text}e0"
    if kind in _TEXTS and _HEX.fullmatch(text):
        return f"_{column.charset} x'{text}'"
    if kind in _BYTES and _HEX.fullmatch(text):
        return f"x'{text}'"
    if kind not in _NUMERIC and kind not in _TEXTS and kind not in _BYTES and _WORD.fullmatch(text):
        return f"'{text}'"
    raise MalformedEventError(f"a key of {column.name!r} that is no {column.whole_type}")


def _compiled(definition: Definition, told: Sequence[ColumnFacts]) -> CompiledTable:
    """The table as its events are made with."""
    names = [column.name for column in told]
    key = tuple(part.name for part in definition.key)
    columns = tuple(
        Column(
            name=column.name,
            type=_TYPES.get(column.type, -1),
            meta=0,
            unsigned="unsigned" in column.whole_type,
        )
        for column in definition.columns
    )
    try:
        extjson.refuse_mimic(dict.fromkeys(names))
        extjson.refuse_mimic(dict.fromkeys(key))
    except extjson.AmbiguousDocumentError as error:
        raise UnreadableTableError(f"{definition.database}.{definition.name}: {error}") from error
    places = {column.name: i for i, column in enumerate(definition.columns)}
    table = Table(
        database=definition.database,
        name=definition.name,
        columns=columns,
        key=tuple(places[name] for name in key),
        full=True,
    )
    return CompiledTable(
        *(table, definition.table, _no_bytes, None, key),
        told={},
        read_some=_no_bytes_of,
        version=0,
        shape={},
        keyed=keyed(
            [_spelled(definition.columns[i]) for i in table.key], [_spelled(one) for one in told]
        ),
    )


def _spelled(column: ColumnFacts) -> Spelled:
    return described(column.name, column.type, column.whole_type)


def _as_it_is(row: Document) -> Document:
    return row


def _no_bytes(_data: bytes, _at: int) -> tuple[Document, int]:
    raise MalformedEventError("rows of a binlog, for a table that is read by SELECT")


def _no_bytes_of(_image: int) -> RowReader:
    return _no_bytes
