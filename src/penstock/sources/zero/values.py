"""Values of columns, from the wire to Extended JSON. Pure.

| type                                    | on the wire            | in a document              |
|-----------------------------------------|------------------------|----------------------------|
| int2, int4, serial, ...                 | integer                | int32                      |
| int8, bigint, ...                       | integer of any size    | int64, or its digits       |
| numeric, decimal                        | number                 | decimal, all digits        |
| real, float4, float8, double precision  | number                 | double                     |
| bool                                    | true, false            | the same                   |
| timestamptz                             | ms since the epoch     | instant                    |
| timestamp                               | ms since the epoch     | text `2026-01-31 23:59:59` |
| date                                    | ms of its midnight     | text `2026-01-31`          |
| time, timetz                            | ms since midnight      | text `23:59:59`            |
| json, jsonb                             | JSON, or its text      | what it says; numbers that |
|                                         |                        | no double is, as decimal   |
| T[]                                     | array                  | array of what T is         |
| text, enumerations, and all other types | text                   | the same                   |

A fraction of a millisecond counts microseconds; texts have one of 6 digits where it is not 0.
What has no exact form raises ValueError, which says what came and never the value.
Source: @rocicorp/zero 1.9.0; the value encodings of its change source protocol.
"""

import json as text_json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.extjson import DocumentEncoder, date, long, python_hook
from penstock.zero.messages import ColumnSpec

Decode = Callable[[bytes], bytes]
"""A value's JSON, but for null, to its Extended JSON. Raises ValueError."""

_encode: Final = msgspec.json.Encoder().encode
_string: Final = msgspec.json.Decoder(str).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_INTEGER: Final = re.compile(rb"-?[0-9]+")
_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC throughout
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The microseconds from which to which a year has four digits."""


@lru_cache(maxsize=4096)
def decoder(spec: ColumnSpec, *, json_as_text: bool) -> Decode:
    """What reads the values of a column; `json_as_text` is how the transaction says json."""
    name = spec.data_type.lower()
    if name.endswith("[]") or spec.elem_pg_type_class is not None:
        return _array(name, spec.elem_pg_type_class == "e")
    return _of(name, spec.pg_type_class == "e", json_as_text)


def _of(name: str, enum: bool, json_as_text: bool) -> Decode:
    if enum:
        return _text
    base = re.sub(r"\s*\([^)]*\)", "", name).strip()
    if is_json(base):
        return _json_text if json_as_text else _json
    return _TYPES.get(base, _text)


def is_json(name: str) -> bool:
    """Whether a type's values are any JSON."""
    return name.lower() in {"json", "jsonb"}


def _array(name: str, enum: bool) -> Decode:
    # What is in an array is JSON however the transaction says json.
    element = _of(name.removesuffix("[]"), enum, json_as_text=False)
    deep = element is not _json

    def array(value: bytes) -> bytes:
        if value[:1] != b"[":
            raise ValueError(f"{_came(value)} where an array was announced")
        parts = (bytes(one) for one in _elements(value))
        return b"[%b]" % b",".join(
            # Arrays of arrays are announced as their elements are.
            one if one == b"null" else array(one) if deep and one[:1] == b"[" else element(one)
            for one in parts
        )

    return array


def _came(value: bytes) -> str:
    first = value[:1]
    names = {b'"': "text", b"[": "an array", b"{": "an object", b"t": "true", b"f": "false"}
    return names.get(first, "null" if first == b"n" else "a number")


def _text(value: bytes) -> bytes:
    if value[:1] != b'"':
        raise ValueError(f"{_came(value)} where text was announced")
    if b"\\" not in value:
        return value
    return _encode(_unescaped(value))


def _unescaped(value: bytes) -> str:
    try:
        return _string(value)
    except msgspec.DecodeError:
        raise ValueError("text with a lone surrogate, which is no Unicode text") from None


def _integer(value: bytes) -> int:
    if _INTEGER.fullmatch(value) is None:
        raise ValueError(f"{_came(value)} where an integer was announced")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError("an integer beyond 64 bits")
    return number


def _int(value: bytes) -> bytes:
    return b"%d" % _integer(value)


def _long(value: bytes) -> bytes:
    return _encode(long(_integer(value)))


def _number(value: bytes) -> bytes:
    if _NUMBER.fullmatch(value) is None:
        raise ValueError(f"{_came(value)} where a number was announced")
    return value


def _double(value: bytes) -> bytes:
    number = float(_number(value))
    if number in {float("inf"), float("-inf")}:
        raise ValueError("a number beyond a double's range")
    return repr(number).encode()


def _decimal(value: bytes) -> bytes:
    digits = value[1:-1] if value[:1] == b'"' else value
    return b'{"$numberDecimal":"%b"}' % _number(digits)


def _bool(value: bytes) -> bytes:
    if value not in {b"true", b"false"}:
        raise ValueError(f"{_came(value)} where a boolean was announced")
    return value


def _micros(value: bytes) -> int:
    return int((Decimal(_number(value).decode()) * 1000).to_integral_value())


def _moment(micros: int) -> datetime:
    if not _YEARS[0] <= micros < _YEARS[1]:
        raise ValueError("a date of a year that has not four digits")
    return _EPOCH + timedelta(microseconds=micros)


def _instant(value: bytes) -> bytes:
    micros = _micros(value)
    if not micros % 1000:
        millis = micros // 1000
        if not -(1 << 63) <= millis < 1 << 63:
            raise ValueError("an instant beyond 64 bits of milliseconds")
        return _encode(date(millis))
    return _encode({"$date": f"{_moment(micros).isoformat(timespec='microseconds')}Z"})


def _timestamp(value: bytes) -> bytes:
    return b'"%b"' % _moment(_micros(value)).isoformat(sep=" ").encode()


def _date(value: bytes) -> bytes:
    moment = _moment(_micros(value))
    if moment.time() != _EPOCH.time():
        raise ValueError("a date that is not at midnight")
    return b'"%b"' % moment.date().isoformat().encode()


def _time(value: bytes) -> bytes:
    micros = _micros(value)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    sign, tail = "-" if micros < 0 else "", f".{fraction:06d}" if fraction else ""
    return f'"{sign}{text}{tail}"'.encode()


# --- json ---------------------------------------------------------------------------------------

_ENCODER: Final = DocumentEncoder(python_hook)
_HEAD: Final = b'{"":'


def _exact(text: str) -> float | Decimal:
    """A number of json, which may have more digits than a double."""
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError("json with a number beyond a double's range")
    digits = Decimal(text)
    return number if digits == Decimal(repr(number)) else digits


def _refused(_: str) -> Any:
    raise ValueError("json with a number that is none (NaN, Infinity)")


_parse_json: Final = text_json.JSONDecoder(parse_float=_exact, parse_constant=_refused).decode


def _json(value: bytes) -> bytes:
    if value in {b"true", b"false"} or (value[:1] == b'"' and b"\\" not in value):
        return value
    try:
        found = _parse_json(value.decode())
    except text_json.JSONDecodeError:
        raise ValueError("json that is none") from None
    # Encoded as a field, for a value that is no document has no encoding of its own.
    return bytes(_ENCODER.encode({"": found}))[len(_HEAD) : -1]


def _json_text(value: bytes) -> bytes:
    if value[:1] != b'"':
        raise ValueError(f"{_came(value)} where the text of json was announced")
    return _json(_unescaped(value).strip().encode())


_TYPES: Final[dict[str, Decode]] = {
    **dict.fromkeys(("int2", "int4", "smallint", "integer", "int", "serial"), _int),
    **dict.fromkeys(("serial2", "serial4", "smallserial"), _int),
    **dict.fromkeys(("int8", "bigint", "bigserial", "serial8", "oid"), _long),
    **dict.fromkeys(("numeric", "decimal"), _decimal),
    **dict.fromkeys(("real", "float4", "float8", "double precision", "float"), _double),
    **dict.fromkeys(("bool", "boolean"), _bool),
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), _instant),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), _timestamp),
    "date": _date,
    **dict.fromkeys(("time", "timetz", "time with time zone", "time without time zone"), _time),
}
