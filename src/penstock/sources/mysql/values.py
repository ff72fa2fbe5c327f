"""Values as rows have them in a binlog, as what a JSON library writes without losing anything.

| type                              | written as                                                  |
|-----------------------------------|-------------------------------------------------------------|
| TINYINT ... BIGINT, signed or not | a number: `5`, `18446744073709551615`                        |
| BIT(n)                            | a number                                                    |
| YEAR                              | a number; `0` for 0000                                       |
| DECIMAL                           | `{"$numberDecimal":"1.10"}`, with all of its digits          |
| FLOAT, DOUBLE                     | a double: `3.0`. A FLOAT is the double that it exactly is    |
| CHAR, VARCHAR, TEXT, MariaDB JSON | text, from whichever character set                           |
| ENUM                              | its text; `""` for what was no value of it                   |
| SET                               | an array of its texts, in the order of the declaration       |
| BINARY, VARBINARY, BLOB           | `{"$binary":{"base64":"...","subType":"00"}}`                |
| UUID, INET4, INET6 (MariaDB)      | the same, of their 16, 4 or 16 bytes                         |
| DATE                              | text, `"2026-01-31"`; zero and partial dates as they are     |
| TIME(n)                           | text, `"-838:59:59.00"`, with n digits                       |
| DATETIME(n)                       | text, `"2026-01-31 23:59:59.00"`, with n digits: no zone     |
| TIMESTAMP(n)                      | an instant, `{"$date":"2026-01-31T23:59:59.000Z"}`; the zero |
|                                   | one as text                                                 |
| GEOMETRY and its kinds            | `{"srid":0,"wkb":{"$binary":...}}`                           |

Numbers do not tell an INT from a BIGINT, so that a key stays the same when its column grows.
Pure. Sources: the MySQL source documentation, "Binary log: row values"; my_time and decimal of the
MariaDB Server documentation for their packed forms.
"""

import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from penstock import extjson
from penstock.sources.mysql.binlog import MalformedEventError

Reader = Callable[[bytes, int], Any]
"""Reads the value that begins at a place; its length is the type's."""

_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_NINE = 9


def decimal_bytes(precision: int, scale: int) -> int:
    """How many bytes a DECIMAL takes: four for each nine digits, on either side of the point."""
    whole, part = divmod(precision - scale, _NINE), divmod(scale, _NINE)
    return 4 * (whole[0] + part[0]) + _DIGIT_BYTES[whole[1]] + _DIGIT_BYTES[part[1]]


def decimal_lines(into: str, precision: int, scale: int) -> list[str]:
    """Lines that put the DECIMAL at `p` into a variable.

    It is big-endian groups of digits, each some bits of one number; its first bit is the sign, and
    of a negative number all bits are inverted.
    """
    if not (0 < precision <= 65 and scale <= precision):
        raise MalformedEventError(f"a DECIMAL of precision {precision} and scale {scale}")
    whole, first = divmod(precision - scale, _NINE)
    parts, last = divmod(scale, _NINE)
    digits = [first] * bool(first) + [_NINE] * (whole + parts) + [last] * bool(last)
    size = shift = decimal_bytes(precision, scale)
    number, part = "0", ""
    for index, many in enumerate(digits):
        width = _DIGIT_BYTES[many] if many < _NINE else 4
        shift -= width
        group = f"(v >> {8 * shift} & {(1 << 8 * width) - 1})"
        if index < whole + bool(first):
            number = group if number == "0" else f"({number} * {10**many} + {group})"
        else:
            part += f"{{{group}:0{many}d}}"
    text = f"{{{number}}}.{part}" if scale else f"{{{number}}}"
    sign = 1 << 8 * size - 1
    return [
        f"v = int_(b[p:p + {size}], 'big')",
        f"if v & {sign}:",
        f"    v ^= {sign}",
        f"    {into} = {{'$numberDecimal': f'{text}'}}",
        "else:",
        f"    v ^= {sign - 1}",
        f"    {into} = {{'$numberDecimal': f'-{text}'}}",
        f"p += {size}",
    ]


@lru_cache(maxsize=256)
def decimal_reader(precision: int, scale: int) -> Reader:
    """Reads a DECIMAL."""
    body = "\n    ".join([*decimal_lines("c", precision, scale), "return c"])
    space: dict[str, Any] = {"int_": int.from_bytes}
    exec(compile(f"def read(b, p):\n    {body}\n", "<DECIMAL>", "exec"), space)  # noqa: S102
    reader: Reader = space["read"]
    return reader


@lru_cache(maxsize=4096)
def date_text(packed: int) -> str:
    """A DATE: 15 bits of year, 4 of month, 5 of day. Zero and partial ones too (S2)."""
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}"


def fraction_bytes(digits: int) -> int:
    """How many bytes the fraction of a second takes that has so many digits."""
    if digits > 6:
        raise MalformedEventError(f"a time with {digits} digits of a second")
    return (digits + 1) // 2


def _fraction(value: int, size: int, digits: int) -> str:
    return f".{value:0{2 * size}d}"[: digits + 1] if digits else ""


@lru_cache(maxsize=16)
def _fractions(digits: int) -> Callable[[int], str]:
    """What writes a fraction; for up to four digits from a table, which ends where they do."""
    size = fraction_bytes(digits)
    if size > 2:
        return lambda value: _fraction(value, size, digits)
    return tuple(_fraction(value, size, digits) for value in range(10 ** (2 * size))).__getitem__


@lru_cache(maxsize=16)
def time_reader(digits: int) -> Reader:
    """Reads a TIME(n): one signed number of hours, minutes, seconds and the fraction."""
    part = fraction_bytes(digits)
    size, offset, mask = 3 + part, 0x800000 << 8 * part, (1 << 8 * part) - 1

    def read(data: bytes, at: int) -> str:
        packed = int.from_bytes(data[at : at + size], "big") - offset
        sign = "-" if packed < 0 else ""
        packed = abs(packed)
        whole = packed >> 8 * part
        return (
            f"{sign}{whole >> 12 & 0x3FF:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
            f"{_fraction(packed & mask, part, digits)}"
        )

    return read


_TWO: Final = tuple(f"{number:02d}" for number in range(64))
_MINUTES: Final = tuple(f"{both >> 6:02d}:{both & 63:02d}:" for both in range(1 << 11))
"""By the bits of hour and minute, as a DATETIME has them."""


@lru_cache(maxsize=4096)
def _day(packed: int) -> str:
    """The bits of year, month and day of a DATETIME."""
    months = packed >> 5
    return f"{months // 13:04d}-{months % 13:02d}-{packed & 31:02d} "


def datetime_lines(into: str, digits: int, name: Callable[[Any], str]) -> list[str]:
    """Lines that put the DATETIME(n) at `p` into a variable: 17 bits of year and month, 5 of each
    day and hour, then 6 of the rest. `name` keeps what they use."""
    part = fraction_bytes(digits)
    text = f"{{{name(_day)}(v >> 17)}}{{{name(_MINUTES)}[v >> 6 & 2047]}}{{{name(_TWO)}[v & 63]}}"
    if digits:
        text += f"{{{name(_fractions(digits))}(int_(b[p + 5:p + {5 + part}], 'big'))}}"
    return [
        f"v = int_(b[p:p + 5], 'big') - {0x8000000000}",
        f'{into} = f"{text}"',
        f"p += {5 + part}",
    ]


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC throughout


def instant(seconds: int, micros: int) -> Any:
    """A TIMESTAMP: seconds since the epoch, and the fraction."""
    if micros % 1000:
        moment = _EPOCH + timedelta(0, seconds, micros)
        return {"$date": f"{moment.isoformat(timespec='microseconds')}Z"}
    return extjson.date(seconds * 1000 + micros // 1000)


def _second(data: bytes, at: int) -> Any:
    """A TIMESTAMP without a fraction."""
    seconds = int.from_bytes(data[at : at + 4], "big")
    return extjson.date(seconds * 1000) if seconds else "0000-00-00 00:00:00"


@lru_cache(maxsize=16)
def timestamp_reader(digits: int) -> Reader:
    """Reads a TIMESTAMP(n): seconds since the epoch, and the fraction. 0 is the zero timestamp."""
    part = fraction_bytes(digits)
    if not part:
        return _second
    to_micros = 10 ** (6 - 2 * part)

    def read(data: bytes, at: int) -> Any:
        seconds = int.from_bytes(data[at : at + 4], "big")
        micros = int.from_bytes(data[at + 4 : at + 4 + part], "big") * to_micros
        if not seconds and not micros:
            return f"0000-00-00 00:00:00{_fraction(0, part, digits)}"
        return instant(seconds, micros)

    return read


def set_reader(size: int, values: tuple[str, ...]) -> Reader:
    """Reads a SET: a bit for each value."""

    @lru_cache(maxsize=1024)
    def members(bits: int) -> tuple[str, ...]:
        if bits >> len(values):
            raise MalformedEventError("a SET with a value that it does not have")
        return tuple(value for i, value in enumerate(values) if bits >> i & 1)

    def read(data: bytes, at: int) -> list[str]:
        return list(members(int.from_bytes(data[at : at + size], "little")))

    return read


def geometry(data: bytes) -> dict[str, Any] | None:
    """A GEOMETRY: four bytes of SRID, and WKB."""
    if len(data) < 4:
        raise MalformedEventError(f"a geometry of {len(data)} bytes")
    return {"srid": int.from_bytes(data[:4], "little"), "wkb": extjson.binary(data[4:])}


_RAW_DEFLATE = 0x08


def uncompressed_column(data: bytes) -> bytes:
    """The value of a COMPRESSED column of MariaDB.

    A byte of the method (0: as it is; 8: zlib) and, of zlib, whether it lacks its header (0x08) and
    how many bytes the length has; that length, big-endian; the compressed bytes. No byte at all is
    the empty value.
    """
    if not data:
        return data
    method = data[0] >> 4
    if method == 0:
        return data[1:]
    length_bytes = data[0] & 0x07
    if method != 8:
        raise MalformedEventError(f"a column that is compressed by method {method}")
    length = int.from_bytes(data[1 : 1 + length_bytes], "big")
    bits = -zlib.MAX_WBITS if data[0] & _RAW_DEFLATE else zlib.MAX_WBITS
    unpacker = zlib.decompressobj(bits)
    try:
        whole = unpacker.decompress(data[1 + length_bytes :], length + 1)
    except zlib.error as error:
        raise MalformedEventError("a compressed column that zlib does not take") from error
    if len(whole) != length:
        raise MalformedEventError("a compressed column of another length than it says")
    return whole
