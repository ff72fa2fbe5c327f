"""Values of MySQL's JSON columns: as SQL that makes them again, and compared. Pure.

A document of the trail is written as its text, which the server reads; but where it holds a DECIMAL
or bytes, for which JSON has no text, it is put together by the server's own functions. What capture
writes as text (a DATE or TIME within a document, a DECIMAL of more than 34 digits) is a string
again. A null in place of a whole document is NULL, but where the column takes none: the trail does
not tell them apart.
Sources: the MySQL documentation, "The JSON Data Type", "Functions That Create JSON Values".
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import base64
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

from bson.decimal128 import Decimal128

from penstock.sources.mysql.restoring.literals import NoLiteralError, binary, digits, double, text

_INT64_MAX: Final = (1 << 63) - 1
_UINT64_MAX: Final = (1 << 64) - 1
_OPAQUE: Final = re.compile(r"base64:type\d+:([A-Za-z0-9+/=\s]*)")
_JSON_TEXT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def document(value: Any) -> str:
    """What puts a document, as the trail keeps it, into a column. Raises NoLiteralError."""
    if value is None:
        return "NULL"
    if _has_text(value):
        return text(_text(value))
    if isinstance(value, Mapping | list):
        return _made(value)
    return f"JSON_EXTRACT(JSON_ARRAY({_made(value)}), '$[0]')"


def document_null() -> str:
    """What puts a document into a column that is null itself."""
    return text("null")


def same_document(value: Any) -> str:
    """What is equal for two documents exactly if they are; the order of members does not count.

    A DECIMAL and a DOUBLE of the same digits are equal: the server's own text, from which one of
    the two comes, does not tell them apart.
    """
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        inner = (f"{_JSON_TEXT.encode(name)}:{same_document(members[name])}" for name in
                 sorted(members))  # fmt: skip
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(same_document(one) for one in value) + "]"
    if isinstance(value, bytes):
        return f"bytes:{value.hex()}"
    if isinstance(value, str) and (found := _OPAQUE.fullmatch(value)):
        return f"bytes:{base64.b64decode(found[1]).hex()}"
    if isinstance(value, bool) or value is None:
        return _JSON_TEXT.encode(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return f"{Decimal(repr(value)).normalize() + 0:f}."
    if isinstance(value, Decimal128):
        number = value.to_decimal()
        whole = number.as_tuple().exponent == 0
        return str(int(number)) if whole else f"{number.normalize() + 0:f}."
    return _JSON_TEXT.encode(value)


def told_document(answer: str) -> Any:
    """The document that the server's text says, as the trail would keep it; a DECIMAL that is no
    other number than a DOUBLE is one."""
    return json.loads(answer, parse_float=_number, parse_int=_integer)


def _number(token: str) -> Any:
    near = float(token)
    if Decimal(repr(near)) == Decimal(token):
        return near
    return Decimal128(token)


def _integer(token: str) -> Any:
    number = int(token)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else Decimal128(token)


def _has_text(value: Any) -> bool:
    """Whether JSON's own text says all of a document."""
    if isinstance(value, Mapping):
        return all(_has_text(one) for one in cast("Mapping[str, Any]", value).values())
    if isinstance(value, list):
        return all(_has_text(one) for one in value)
    if isinstance(value, Decimal128):
        return _is_unsigned(value)
    return not isinstance(value, bytes)


def _is_unsigned(value: Decimal128) -> bool:
    """Whether it is an integer that BSON has no other form for."""
    number = value.to_decimal()
    whole = number.is_finite() and number.as_tuple().exponent == 0
    return whole and _INT64_MAX < number <= _UINT64_MAX


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        inner = (f"{_JSON_TEXT.encode(name)}:{_text(one)}" for name, one in members.items())
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, Decimal128):
        return digits(value)
    if isinstance(value, float):
        return double(value)
    if value is None or isinstance(value, bool | int | str):
        return _JSON_TEXT.encode(value)
    raise NoLiteralError(f"a document with a value of the type {type(value).__name__}")


def _made(value: Any) -> str:
    """An expression of the server's functions."""
    if _has_text(value):
        return f"CAST({text(_text(value))} AS JSON)"
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        inner = (f"{text(name)}, {_made(one)}" for name, one in members.items())
        return f"JSON_OBJECT({', '.join(inner)})"
    if isinstance(value, list):
        return f"JSON_ARRAY({', '.join(map(_made, value))})"
    if isinstance(value, bytes):
        return binary(value)
    written = digits(value)
    return written if "." in written else f"CAST({written} AS DECIMAL(65, 0))"
