"""Documents as VARIANT: Extended JSON in, Spark's binary variant out, types kept.

`parse_json` would make 3.0 a decimal and leave `{"$date": ...}` an object. Here an int is an int, a
double a double, `$numberLong` a long, `$numberDecimal` a decimal, `$date` a timestamp and `$binary`
of subtype 00 bytes. An integer beyond 64 bits with a sign, as MySQL's BIGINT UNSIGNED may have, is
a decimal without places. What VARIANT has no type for (ObjectId, another binary subtype, a decimal
of more than 38 digits, an instant beyond 64-bit microseconds, ...) stays the object that it is
written as, so nothing is lost.
Source: the Variant Binary Encoding of the Apache Parquet format, version 1. Keys are ordered as
Spark orders them, by UTF-16 code units.
"""

# Documents are what JSON says they are: Any all the way down.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import inf, nan
from struct import Struct as Layout
from typing import Any, Final

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT8, _INT16, _INT32, _INT64 = 3 << 2, 4 << 2, 5 << 2, 6 << 2
_DOUBLE = Layout("<Bd")
_TYPE_DOUBLE, _TYPE_TIMESTAMP, _TYPE_BINARY, _TYPE_STRING = 7 << 2, 12 << 2, 15 << 2, 16 << 2
_DECIMALS: Final = ((9, 4, 8 << 2), (18, 8, 9 << 2), (38, 16, 10 << 2))
"""Digits at most, bytes, and type, of the three widths of a decimal."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NON_FINITE: Final = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def encode_variant(document: Any) -> tuple[bytes, bytes]:
    """The value and the metadata of one decoded document.

    Raises ValueError for an integer of more than 64 bits, which no source writes.
    """
    keys: dict[str, int] = {}
    value = _encode(document, keys)
    return value, _metadata(tuple(keys))


@lru_cache(maxsize=1024)
def _metadata(keys: tuple[str, ...]) -> bytes:
    """The dictionary of field names. Documents of one collection share a few of them."""
    names = [key.encode() for key in keys]
    size = _width(max(sum(map(len, names)), len(names)))
    offsets = [0]
    for name in names:
        offsets.append(offsets[-1] + len(name))
    numbers = (len(names), *offsets)
    head = bytes([1 | (size - 1) << 6])
    return head + b"".join([number.to_bytes(size, "little") for number in numbers] + names)


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _encode(value: Any, keys: dict[str, int]) -> bytes:
    kind = type(value)
    if kind is str:
        return _string(value)
    if kind is int:
        return _integer(value)
    if kind is float:
        return _DOUBLE.pack(_TYPE_DOUBLE, value)
    if value is None:
        return _NULL
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is dict:
        if len(value) == 1:
            ((name, inner),) = value.items()
            scalar = _WRAPPERS.get(name)
            encoded = scalar(inner) if scalar is not None else None
            if encoded is not None:
                return encoded
        return _object(value, keys)
    return _array([_encode(item, keys) for item in value])


def _string(value: str) -> bytes:
    data = value.encode()
    if len(data) < 64:
        return bytes([1 | len(data) << 2]) + data
    return bytes([_TYPE_STRING]) + len(data).to_bytes(4, "little") + data


def _integer(value: int) -> bytes:
    if -128 <= value < 128:
        return bytes([_INT8, value & 0xFF])
    if -(1 << 15) <= value < 1 << 15:
        return bytes([_INT16]) + value.to_bytes(2, "little", signed=True)
    if -(1 << 31) <= value < 1 << 31:
        return bytes([_INT32]) + value.to_bytes(4, "little", signed=True)
    if -(1 << 63) <= value < 1 << 63:
        return bytes([_INT64]) + value.to_bytes(8, "little", signed=True)
    if 0 < value < 1 << 64:
        return bytes([_DECIMALS[-1][-1], 0]) + value.to_bytes(16, "little", signed=True)
    raise ValueError("an integer of more than 64 bits, which no source writes")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _object(fields: dict[str, Any], keys: dict[str, int]) -> bytes:
    names = list(fields)
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    ids = [keys.setdefault(name, len(keys)) for name in names]
    values = [_encode(fields[name], keys) for name in names]
    large = len(names) > 255
    id_size = _width(max(ids, default=0))
    count = len(names).to_bytes(4 if large else 1, "little")
    id_bytes = b"".join([number.to_bytes(id_size, "little") for number in ids])
    offsets, offset_size = _offsets(values)
    head = bytes([2 | (offset_size - 1) << 2 | (id_size - 1) << 4 | large << 6])
    return b"".join((head, count, id_bytes, offsets, *values))


def _array(values: list[bytes]) -> bytes:
    large = len(values) > 255
    offsets, offset_size = _offsets(values)
    head = bytes([3 | (offset_size - 1) << 2 | large << 4])
    return b"".join((head, len(values).to_bytes(4 if large else 1, "little"), offsets, *values))


def _offsets(values: list[bytes]) -> tuple[bytes, int]:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    size = _width(ends[-1])
    return b"".join([end.to_bytes(size, "little") for end in ends]), size


# --- wrappers: the scalar that one stands for, or None to keep the object -----------------------


def _long(text: Any) -> bytes | None:
    return _integer(int(text)) if isinstance(text, str) else None


def _double(text: Any) -> bytes | None:
    value = _NON_FINITE.get(text) if isinstance(text, str) else None
    return None if value is None else _DOUBLE.pack(_TYPE_DOUBLE, value)


def _decimal(text: Any) -> bytes | None:
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except (InvalidOperation, TypeError, ValueError):
        return None
    # No decimal of Spark keeps a positive exponent, or the sign of a zero.
    if not isinstance(exponent, int) or exponent > 0 or (sign and not any(digits)):
        return None
    unscaled = int("".join(map(str, digits)))
    scale = -exponent
    for digits_max, size, header in _DECIMALS:
        if unscaled < 10**digits_max and scale <= digits_max:
            number = -unscaled if sign else unscaled
            return bytes([header, scale]) + number.to_bytes(size, "little", signed=True)
    return None


def _date(value: Any) -> bytes | None:
    micros = instant_micros(value)
    if micros is None:
        return None
    return bytes([_TYPE_TIMESTAMP]) + micros.to_bytes(8, "little", signed=True)


def _binary(value: Any) -> bytes | None:
    if not isinstance(value, dict) or value.get("subType") != "00":
        return None
    data = base64.b64decode(value["base64"])
    return bytes([_TYPE_BINARY]) + len(data).to_bytes(4, "little") + data


def instant_micros(value: Any) -> int | None:
    """Microseconds since the epoch of what stands in a `$date`; None if 64 bits do not hold it."""
    if isinstance(value, str):
        return (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, dict) and isinstance(value.get("$numberLong"), str):
        micros = int(value["$numberLong"]) * 1000
        return micros if -(1 << 63) <= micros < 1 << 63 else None
    return None


_WRAPPERS: Final[dict[str, Callable[[Any], bytes | None]]] = {
    "$numberLong": _long,
    "$numberDouble": _double,
    "$numberDecimal": _decimal,
    "$date": _date,
    "$binary": _binary,
}
