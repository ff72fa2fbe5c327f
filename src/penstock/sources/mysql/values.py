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
| VECTOR                            | the same, of four bytes for each number                      |
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
    """How many bytes a DECIMAL takes: four for each nine digits, on either side of the point.

    Raises MalformedEventError for one that there is not.
    """
    if not (0 < precision <= 65 and scale <= precision):
        raise MalformedEventError(f"a DECIMAL of precision {precision} and scale {scale}")
    whole, part = divmod(precision - scale, _NINE), divmod(scale, _NINE)
    return 4 * (whole[0] + part[0]) + _DIGIT_BYTES[whole[1]] + _DIGIT_BYTES[part[1]]


_TWO_DIGITS: Final = tuple(f"{number:02d}" for number in range(256))
"""By a byte. It has no more than 99, and if it has, it is not another number."""


def decimal_lines(
    into: str, raw: str, precision: int, scale: int, *, name: Callable[[Any], str]
) -> list[str]:
    """Lines that put a DECIMAL, whose bytes `raw` has, into a variable; `name` keeps what they use.

    It is big-endian groups of digits, each some bits of one number; its first bit is the sign, and
    of a negative number all bits are inverted.
    """
    whole, first = divmod(precision - scale, _NINE)
    parts, last = divmod(scale, _NINE)
    digits = [first] * bool(first) + [_NINE] * (whole + parts) + [last] * bool(last)
    size = shift = decimal_bytes(precision, scale)
    number, part = "0", ""
    for index, many in enumerate(digits):
        width = _DIGIT_BYTES[many] if many < _NINE else 4
        shift -= width
        group = f"v >> {8 * shift}" if shift else "v"
        if index:
            group = f"({group} & {(1 << 8 * width) - 1})"
        if index < whole + bool(first):
            number = f"({group})" if number == "0" else f"({number} * {10**many} + {group})"
        elif many == 2:
            part += f"{{{name(_TWO_DIGITS)}[{group}]}}"
        else:
            part += f"{{({group}):0{many}d}}"
    text = f"{{{number}}}.{part}" if scale else f"{{{number}}}"
    sign = 1 << 8 * size - 1
    return [
        f"v = int_({raw}, 'big')",
        f"if v & {sign}:",
        f"    v ^= {sign}",
        f"    {into} = {{'$numberDecimal': f'{text}'}}",
        "else:",
        f"    v ^= {sign - 1}",
        f"    {into} = {{'$numberDecimal': f'-{text}'}}",
    ]


@lru_cache(maxsize=256)
def decimal_reader(precision: int, scale: int) -> Reader:
    """Reads a DECIMAL."""
    space: dict[str, Any] = {"int_": int.from_bytes}

    def name(value: Any) -> str:
        space[f"o{len(space)}"] = value
        return f"o{len(space) - 1}"

    raw = f"b[p:p + {decimal_bytes(precision, scale)}]"
    lines = decimal_lines("c", raw, precision, scale, name=name)
    body = "\n    ".join([*lines, "return c"])
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


def datetime_lines(
    into: str, high: str, low: str, part: str, digits: int, *, name: Callable[[Any], str]
) -> str:
    """A line that puts a DATETIME(n) into a variable: 17 bits of year and month, 5 of each day and
    hour, then 6 of the rest. `high` has the first 8 of them and a sign, which is always set, `low`
    has the other 32, and `part` the fraction's number. `name` keeps what it uses."""
    days = f"{name(_day)}(({high} - 128) << 15 | {low} >> 17)"
    text = f"{{{days}}}{{{name(_MINUTES)}[{low} >> 6 & 2047]}}{{{name(_TWO)}[{low} & 63]}}"
    if digits:
        text += f"{{{name(_fractions(digits))}({part})}}"
    return f'{into} = f"{text}"'


@lru_cache(maxsize=16)
def _fractions(digits: int) -> Callable[[int], str]:
    """What writes the fraction of a DATETIME(n)."""
    size = fraction_bytes(digits)
    return _tabled(lambda value: _fraction(value, size, digits), size)


def _tabled(text: Callable[[int], str], size: int) -> Callable[[int], str]:
    """`text` of a fraction that has so many bytes; up to two from a table, which ends where they
    do."""
    if size > 2:
        return text
    return tuple(map(text, range(10 ** (2 * size)))).__getitem__


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC throughout


def instant(seconds: int, micros: int) -> Any:
    """A TIMESTAMP: seconds since the epoch, and the fraction."""
    if micros % 1000:
        moment = _EPOCH + timedelta(0, seconds, micros)
        return {"$date": f"{moment.isoformat(timespec='microseconds')}Z"}
    return extjson.date(seconds * 1000 + micros // 1000)


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Since the epoch, as ISO text up to the fraction. Rows that come together share many."""
    text: str = extjson.date(seconds * 1000)["$date"]
    return text[: -len("000Z")]


def timestamp_lines(
    into: str, seconds: str, part: str, digits: int, *, name: Callable[[Any], str]
) -> str:
    """A line that puts a TIMESTAMP(n) into a variable: `seconds` since the epoch, and `part`, the
    fraction's number. 0 is the zero timestamp. `name` keeps what it uses."""
    size = fraction_bytes(digits)
    zero = f"0000-00-00 00:00:00{_fraction(0, size, digits)}"
    if not size:
        found, end = seconds, "000Z"
    else:
        end = f"{{{name(_instant_fractions(size))}({part})}}"
        found = f"{seconds} or {part}"
    text = f'f"{{{name(_second)}({seconds})}}{end}"'
    return f"{into} = {{'$date': {text}}} if {found} else '{zero}'"


@lru_cache(maxsize=16)
def _instant_fractions(size: int) -> Callable[[int], str]:
    """What writes the fraction of an instant, of so many bytes, as `instant` does."""

    def text(value: int) -> str:
        micros = value * 10 ** (6 - 2 * size)
        if micros >= 10**6:
            raise MalformedEventError(f"a TIMESTAMP with a fraction of {micros} microseconds")
        return f"{micros:06d}Z" if micros % 1000 else f"{micros // 1000:03d}Z"

    return _tabled(text, size)


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
