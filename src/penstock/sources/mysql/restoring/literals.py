"""Values of a trail as literals of SQL that are read back as exactly those values. Pure.

They mean the same whatever the session's sql_mode says of backslashes and quotes: text that is more
than plain is written by its bytes. What the session must have is in `sql.HEAD`.
Sources: the MariaDB documentation, "String Literals", "Hexadecimal Literals", "Character Set
Introducers"; the grammar of unsigned literals for integers up to 2**64 - 1.
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128

_PLAIN: Final = re.compile(r"[^\\\x00-\x1f\x7f]*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class NoLiteralError(ValueError):
    """A value that no column of MySQL or MariaDB holds."""


def literal(value: Any) -> str:
    """A value, as the trail keeps it, as SQL. Raises NoLiteralError; its message holds no value."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return double(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Decimal128):
        return digits(value)
    if isinstance(value, Binary) and value.subtype != 0:
        raise NoLiteralError(f"binary data of MongoDB's subtype {value.subtype}")
    if isinstance(value, bytes):
        return binary(value)
    if isinstance(value, list):
        return text(members(value))
    if isinstance(value, Mapping) and "wkb" in value:
        return binary(stored_geometry(cast("Mapping[str, Any]", value)))
    return text(instant(value))


def double(value: float) -> str:
    """A double, by digits that no other double has; with an exponent, or it were a DECIMAL."""
    if value - value != 0:
        raise NoLiteralError("a number that is infinite, or none")
    written = repr(value)
    return written if "e" in written else f"{written}e0"


def digits(value: Decimal128) -> str:
    """A decimal with all of its digits and no exponent."""
    number = value.to_decimal()
    if not number.is_finite():
        raise NoLiteralError("a decimal that is infinite, or no number")
    return f"{number:f}"


def text(value: str) -> str:
    """Text in utf8mb4."""
    if _PLAIN.fullmatch(value):
        return "'" + value.replace("'", "''") + "'"
    return f"_utf8mb4 {binary(value.encode())}"


def binary(value: bytes) -> str:
    """Bytes."""
    return f"X'{value.hex()}'"


def members(values: list[Any]) -> str:
    """The value of a SET: its texts."""
    if not all(isinstance(one, str) for one in values):
        raise NoLiteralError("an array")
    return ",".join(values)


def stored_geometry(value: Mapping[str, Any]) -> bytes:
    """A geometry as servers keep it: four bytes of SRID, and WKB.

    They take it as it is; ST_GeomFromWKB would turn the axes of some SRIDs in MySQL.
    """
    return int(value["srid"]).to_bytes(4, "little") + bytes(value["wkb"])


def instant(value: Any) -> str:
    """A TIMESTAMP in UTC: with its milliseconds, or, where it has them, microseconds."""
    if isinstance(value, DatetimeMS):
        moment = _EPOCH + timedelta(milliseconds=int(value))
        return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%d %H:%M:%S.%f}"
    if isinstance(value, Mapping) and list(cast("Mapping[str, Any]", value)) == ["$date"]:
        said = str(cast("Mapping[str, Any]", value)["$date"])
        return f"{datetime.fromisoformat(said):%Y-%m-%d %H:%M:%S.%f}"
    raise NoLiteralError(f"a value of the type {type(value).__name__}")
