"""The columns of a server's table, how to ask for them exactly, and when two values are one. Pure.

What `from_server` makes of an answer is what the trail keeps of the same value, so that rows that
are there and rows of a trail can be compared, and both written by `literals`.
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from msgspec import Struct

from penstock.audit.values import value_of
from penstock.sources.mysql.charsets import member
from penstock.sources.mysql.restoring.documents import document, same_document, told_document
from penstock.sources.mysql.restoring.literals import (
    instant,
    literal,
    members,
    stored_geometry,
)

_WHOLE: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_DECIMALS: Final = frozenset({"decimal", "numeric"})
_FLOATS: Final = frozenset({"float", "double"})
_MOMENTS: Final = frozenset({"date", "time", "datetime"})
_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
_BYTES: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"}
)
_BYTES_BY_TYPE: Final = {"uuid": 16, "inet6": 16, "inet4": 4}
_SHAPES: Final = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"}
    | {"multipolygon", "geometrycollection", "geomcollection"}
)
KNOWN: Final = (
    _WHOLE | _DECIMALS | _FLOATS | _MOMENTS | _TEXTS | _BYTES | _SHAPES | frozenset(_BYTES_BY_TYPE)
    | {"bit", "set", "timestamp", "json"}
)  # fmt: skip


class ServerColumn(Struct, frozen=True, kw_only=True):
    """A column, as the server describes it."""

    name: str
    type: str
    """Of information_schema, in lower case: int, varchar, uuid, ..."""
    values: tuple[str, ...] = ()
    """Of an ENUM."""
    required: bool = False
    """NOT NULL."""
    computed: bool = False
    """The server computes it, and takes no value for it."""
    updates_itself: bool = False
    """ON UPDATE CURRENT_TIMESTAMP: an UPDATE that does not name it changes it."""


class ServerTable(Struct, frozen=True, kw_only=True):
    """A table, as the server describes it."""

    columns: tuple[ServerColumn, ...]
    key: tuple[str, ...] = ()
    """The columns of its primary key, in order."""

    def column(self, name: str) -> ServerColumn | None:
        """The column of this name; the case of letters does not count, as on the server."""
        lower = name.lower()
        return next((one for one in self.columns if one.name.lower() == lower), None)

    @property
    def written(self) -> tuple[ServerColumn, ...]:
        """Those that take values."""
        return tuple(one for one in self.columns if not one.computed)


def quoted(*names: str) -> str:
    """A name, with those that it belongs to before it."""
    return ".".join("`" + one.replace("`", "``") + "`" for one in names)


def asked(column: ServerColumn) -> str:
    """What to SELECT for `from_server`, in a session with time_zone = '+00:00'."""
    name, kind = quoted(column.name), column.type
    if kind == "bit":
        return f"CAST({name}+0 AS CHAR)"
    if kind in _FLOATS:
        return f"CAST({name} AS DOUBLE)"
    if kind in _WHOLE | _DECIMALS | _MOMENTS | {"timestamp"}:
        return f"CAST({name} AS CHAR)"
    if kind in _BYTES or kind in _SHAPES:
        return f"HEX({name})"  # of a geometry, as it is kept: SRID, then WKB
    if kind in _BYTES_BY_TYPE:
        return f"HEX(CAST({name} AS BINARY({_BYTES_BY_TYPE[kind]})))"
    if kind == "json":
        return f"CAST({name} AS CHAR CHARACTER SET utf8mb4)"
    return f"CONVERT({name} USING utf8mb4)"


def from_server(column: ServerColumn, answer: Any) -> Any:
    """The value that the trail would keep, from the answer to `asked`."""
    kind = column.type
    if answer is None or kind in _FLOATS:
        return answer
    said = answer.decode() if isinstance(answer, bytes) else str(answer)
    if kind in _WHOLE or kind == "bit":
        return value_of(int(said))
    if kind in _DECIMALS:
        return value_of({"$numberDecimal": said})
    if kind in _BYTES or kind in _BYTES_BY_TYPE:
        return bytes.fromhex(said)
    if kind in _SHAPES:
        kept = bytes.fromhex(said)
        return {"srid": int.from_bytes(kept[:4], "little"), "wkb": kept[4:]}
    if kind == "json":
        return told_document(said)
    if kind == "set":
        return said.split(",") if said else []
    if kind == "timestamp" and not said.startswith("0000"):
        return value_of({"$date": said.replace(" ", "T") + "Z"})
    return said


def comparable(column: ServerColumn, value: Any) -> Any:
    """What is equal for two values exactly if the column holds the same of both.

    The number of digits behind the point is the column's, and not the value's.
    """
    kind = column.type
    if value is None:
        return None
    if kind == "json":
        return same_document(value)
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, float):
        return repr(value + 0.0)  # servers keep no sign of zero
    if isinstance(value, int):
        return Decimal(int(value))
    if isinstance(value, list):
        return members(value)
    if kind in _DECIMALS and isinstance(value, str):
        return Decimal(value)
    if kind in _MOMENTS or kind == "timestamp":
        said = value if isinstance(value, str) else instant(value)
        return said.rstrip("0").rstrip(".") if "." in said else said
    if isinstance(value, Mapping) and "wkb" in value:
        shape = cast("Mapping[str, Any]", value)
        return int(shape["srid"]), bytes(shape["wkb"])
    if isinstance(value, DatetimeMS):
        return instant(value)
    return bytes(value) if isinstance(value, bytes) else value


def written(kind: str, value: Any) -> str:
    """A value as SQL, for a column of a type; an empty `kind` is one of which nothing is known.

    Raises NoLiteralError.
    """
    return document(value) if kind == "json" else literal(value)


def condition(column: str, kind: str, value: Any) -> str:
    """That a column holds exactly this value, whatever its collation thinks is equal (A25).

    Raises NoLiteralError.
    """
    name, literal_of = quoted(column), written(kind, value)
    if value is None and kind == "json":
        return f"({name} IS NULL OR JSON_TYPE({name}) = 'NULL')"
    if value is None:
        return f"{name} IS NULL"
    if kind == "json":
        # Documents whose numbers are of other types are equal to the server, and their texts not.
        return f"{_json_text(name)} = {_json_text(_as_json(value))}"
    if kind == "vector":  # which MySQL compares with nothing
        return f"HEX({name}) = '{bytes(value).hex().upper()}'"
    if isinstance(value, str | list):
        # As it would be written, in bytes: for texts, and for the dates and times that are texts.
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) = CAST({literal_of} AS BINARY)"
    if isinstance(value, Mapping) and "wkb" in value:
        kept = stored_geometry(cast("Mapping[str, Any]", value))
        return f"HEX({name}) = '{kept.hex().upper()}'"
    return f"{name} = {literal_of}"


def _json_text(expression: str) -> str:
    return f"CAST(CAST({expression} AS CHAR CHARACTER SET utf8mb4) AS BINARY)"


def _as_json(value: Any) -> str:
    return f"CAST({document(value)} AS JSON)"


def enum_values(declared: str) -> tuple[str, ...]:
    """The values of an ENUM, from its type as the server writes it; one of bytes that are no text
    as a trail has it, where the server says which (MySQL: `x'fffe'`)."""
    found: list[str] = []
    inside = declared.partition("(")[2].rpartition(")")[0]
    at = 0
    while at < len(inside):
        coded = inside[at] == "x"
        at += 1 + coded  # the quote
        value = ""
        while True:
            if inside[at] == "'":
                if inside[at + 1 : at + 2] != "'":
                    break
                at += 1
            value += inside[at]
            at += 1
        found.append(member(bytes.fromhex(value), "utf-8") if coded else value)
        at += 2  # the quote, and a comma
    return tuple(found)
