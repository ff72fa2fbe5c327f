"""Types of columns: what of a document fits one, and what it is then on the wire. Pure.

| type        | takes                                       | on the wire                       |
|-------------|---------------------------------------------|-----------------------------------|
| `text`      | text                                        | text                              |
| `objectid`  | an ObjectId                                 | its 24 hex digits                 |
| `uuid`      | a UUID; of MariaDB, 16 bytes                | text with dashes                  |
| `int`       | an integer of up to 2^53-1, either sign     | a number                          |
| `bigint`    | any integer                                 | its digits as text                |
| `double`    | a finite double, or an integer that is one  | a number                          |
| `decimal`   | a decimal or an integer                     | all of its digits as text         |
| `numeric`   | any finite number                           | the nearest double: **not exact** |
| `bool`      | true and false, 1 and 0                     | true and false                    |
| `timestamp` | an instant; a DATETIME, taken as UTC        | ms of the epoch, a fraction       |
| `date`      | `2026-01-31`, or an instant at midnight UTC | ms of the epoch                   |
| `time`      | `-01:02:03.5`                               | ms, of either sign                |
| `json`      | anything                                    | plain JSON, see `plain_json`      |
| `jsontext`  | text that is JSON; another value as `json`  | the JSON that it is               |
| `exact`     | anything                                    | its Extended JSON as text         |
| `binary`    | bytes                                       | base64 text                       |
| `enum`      | text                                        | text                              |
| `T[]`       | an array of what T takes, and nulls         | an array                          |

What a type does not take raises UnfitError; nothing is rounded or made null. Integers beyond
2^53-1 kill the queries of Zero's clients, and doubles that JavaScript writes as integers beyond 64
bits kill its replica (Z8): neither is ever sent as a number.
Source: @rocicorp/zero 1.9.0; the value encodings of its change source protocol.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import isfinite
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from msgspec import Raw

from penstock.zero.messages import ColumnSpec

SAFE_INTEGER: Final = (1 << 53) - 1
"""The largest integer that JavaScript tells from its neighbours."""

Convert = Callable[[bytes], bytes]
"""A value's Extended JSON, but for null, to its JSON on the wire. Raises UnfitError."""


class UnfitError(ValueError):
    """A value does not fit a type; `came` says what it is of, and never the value."""

    def __init__(self, came: str, remedy: str = "") -> None:
        self.came = came
        self.remedy = remedy
        super().__init__(came)


_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_any: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode

_LONG: Final = b'{"$numberLong":"'
_DECIMAL: Final = b'{"$numberDecimal":"'
_DOUBLE: Final = b'{"$numberDouble":"'
_OID: Final = b'{"$oid":"'
_DATE: Final = b'{"$date":'
_BINARY: Final = re.compile(
    rb'\{"\$binary":\{"base64":"([A-Za-z0-9+/=]*)","subType":"([0-9a-f]{2})"\}\}'
)
_INTEGER: Final = re.compile(rb"-?[0-9]+")
_NUMBER: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def came(value: bytes) -> str:
    """What a value is, for people."""
    first = value[:1]
    if first == b'"':
        return "text"
    if first == b"[":
        return "an array"
    if first in {b"t", b"f"}:
        return "a boolean"
    if first == b"n":
        return "null"
    if first == b"{":
        for start, name in _CAME:
            if value.startswith(start):
                return name
        return "a document"
    if _INTEGER.fullmatch(value):
        return "an integer" if abs(int(value)) <= SAFE_INTEGER else "an integer beyond 2^53-1"
    return "a double"


_CAME: Final = (
    (_LONG, "an integer"),
    (_DECIMAL, "a decimal"),
    (_DOUBLE, "a double that is no number (NaN, Infinity)"),
    (_OID, "an ObjectId"),
    (_DATE, "an instant"),
    (b'{"$binary":', "bytes"),
    (b'{"$timestamp":', "a Timestamp"),
    (b'{"$regularExpression":', "a regular expression"),
    (b'{"$code":', "code"),
    (b'{"$minKey":', "MinKey"),
    (b'{"$maxKey":', "MaxKey"),
    (b'{"$undefined":', "undefined"),
    (b'{"$symbol":', "a symbol"),
    (b'{"$dbPointer":', "a DBPointer"),
)


def integer_of(value: bytes) -> int | None:
    """The integer that a value is, however wide; None for another value."""
    if value.startswith(_LONG):
        value = value[len(_LONG) : -2]
    return int(value) if _INTEGER.fullmatch(value) else None


# --- the types ----------------------------------------------------------------------------------


def _text(value: bytes) -> bytes:
    if value[0] != 34:
        raise UnfitError(came(value))
    return value


def _object_id(value: bytes) -> bytes:
    if not value.startswith(_OID):
        raise UnfitError(came(value))
    return value[len(_OID) - 1 : -1]


def _bytes_of(value: bytes) -> tuple[bytes, bytes]:
    """The base64 and the subtype of bytes."""
    found = _BINARY.fullmatch(value)
    if found is None:
        raise UnfitError(came(value))
    return found[1], found[2]


def _uuid(value: bytes) -> bytes:
    encoded, subtype = _bytes_of(value)
    data = b64decode(encoded)
    if subtype not in {b"04", b"00"} or len(data) != 16:
        raise UnfitError("bytes that are no UUID")
    return b'"%b"' % str(UUID(bytes=data)).encode()


def _binary(value: bytes) -> bytes:
    return b'"%b"' % _bytes_of(value)[0]


def _int(value: bytes) -> bytes:
    if value.isdigit() and len(value) < 16:
        return value
    number = integer_of(value)
    if number is None:
        raise UnfitError(came(value))
    if abs(number) > SAFE_INTEGER:
        raise UnfitError("an integer beyond 2^53-1", "bigint sends it as text")
    return b"%d" % number


def _bigint(value: bytes) -> bytes:
    number = integer_of(value)
    if number is None:
        raise UnfitError(came(value))
    return b'"%d"' % number


def _double(value: bytes) -> bytes:
    # So short, and without an exponent, it is far from 2^53 and as its source wrote it.
    if len(value) < 16 and b"e" not in value and (value[0] == 45 or value[:1].isdigit()):
        return value
    number = integer_of(value)
    if number is None:
        if not _NUMBER.fullmatch(value):
            raise UnfitError(came(value))
        return _float(float(value))
    try:
        nearest = float(number)
    except OverflowError:
        raise UnfitError("an integer beyond 2^53-1") from None
    if int(nearest) != number:
        raise UnfitError("an integer that is no double", "decimal and bigint send it as text")
    return _float(nearest)


def _float(number: float) -> bytes:
    if not isfinite(number):
        raise UnfitError("a number beyond a double's range")
    # JavaScript writes it without an exponent, and reads it again as an integer: of up to 64 bits
    # that is the same number, and of more there is none.
    if 2.0**63 <= abs(number) < 1e21:
        raise UnfitError("a double between 2^63 and 10^21, which Zero's replica cannot hold")
    return repr(number).encode()


def _decimal(value: bytes) -> bytes:
    if value.startswith(_DECIMAL):
        return value[len(_DECIMAL) - 1 : -1]
    return _bigint(value)


def _numeric(value: bytes) -> bytes:
    digits = value
    if value.startswith((_DECIMAL, _LONG)):
        digits = value.split(b'"')[3]
    try:
        number = float(Decimal(digits.decode())) if value[0] != 34 else None
    except (InvalidOperation, OverflowError):
        number = None
    if number is None or not isfinite(number):
        raise UnfitError(came(value))
    if number == int(number) and abs(number) <= SAFE_INTEGER:
        return b"%d" % int(number)
    return _float(number)


def _bool(value: bytes) -> bytes:
    if value in {b"true", b"false"}:
        return value
    number = integer_of(value)
    if number not in {0, 1}:
        raise UnfitError(came(value))
    return b"true" if number else b"false"


_DAY_MS: Final = 86_400_000
_MICROS_MAX: Final = 1000 << 43
"""From there on, doubles of milliseconds are more than a microsecond apart."""
_EPOCH: Final = date(1970, 1, 1)
_MOMENT: Final = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?Z?"
)
_DAY: Final = re.compile(rb'"[0-9]{4}-[0-9]{2}-[0-9]{2}"')
_TIME: Final = re.compile(rb'"(-?)([0-9]{2,3}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"')


@lru_cache(maxsize=4096)
def _day(text: bytes) -> int:
    """Milliseconds from the epoch to the beginning of a day. Raises UnfitError for none."""
    try:
        return (date.fromisoformat(text.decode()) - _EPOCH).days * _DAY_MS
    except ValueError:
        raise UnfitError("a date that no calendar has, as MySQL's zero dates") from None


@lru_cache(maxsize=4096)
def _minute(text: bytes) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if hours > 23 or minutes > 59:
        raise UnfitError("a time that no clock has")
    return (hours * 60 + minutes) * 60_000


def _millis(millis: int, fraction: bytes | None, sign: int = 1) -> bytes:
    """`millis`, and digits of a second behind them, as a number that says all of them."""
    micros = sign * (millis * 1000 + int((fraction or b"").ljust(6, b"0")))
    if not micros % 1000:
        return b"%d" % (micros // 1000)
    if abs(micros) >= _MICROS_MAX:
        raise UnfitError("microseconds outside 1692 to 2248, which no double tells apart")
    mark = b"-" if micros < 0 else b""
    text = b"%b%d.%03d" % (mark, abs(micros) // 1000, abs(micros) % 1000)
    return text.rstrip(b"0")


def _moment(text: bytes) -> bytes:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise UnfitError("text that is no date and time")
    day, minute, second, fraction = found.groups()
    return _millis(_day(day) + _minute(minute) + int(second) * 1000, fraction)


def _timestamp(value: bytes) -> bytes:
    if value.startswith(b'{"$date":"'):
        if value[33:] == b'Z"}':  # with milliseconds, as nearly all are
            whole = _day(value[10:20]) + _minute(value[21:26])
            return b"%d" % (whole + int(value[27:29]) * 1000 + int(value[30:33]))
        return _moment(value[10:-2])
    if value.startswith(_DATE):
        millis = integer_of(value[len(_DATE) : -1])
        if millis is not None and abs(millis) <= SAFE_INTEGER:
            return b"%d" % millis
        raise UnfitError("an instant beyond 2^53-1 ms")
    if value[0] == 34:
        return _moment(value[1:-1])
    raise UnfitError(came(value))


def _date(value: bytes) -> bytes:
    if value[0] == 34:
        if _DAY.fullmatch(value) is None:
            raise UnfitError("text that is no date")
        return b"%d" % _day(value[1:-1])
    if not value.startswith(_DATE):
        raise UnfitError(came(value))
    written = _timestamp(value)
    if b"." in written or int(written) % _DAY_MS:
        raise UnfitError("an instant that is not midnight UTC", "timestamp holds it")
    return written


def _time(value: bytes) -> bytes:
    found = _TIME.fullmatch(value)
    if found is None:
        raise UnfitError(came(value) if value[0] != 34 else "text that is no time")
    sign, hours, minutes, seconds, fraction = found.groups()
    millis = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000
    return _millis(millis, fraction, -1 if sign else 1)


def _exact(value: bytes) -> bytes:
    return _encode(value.decode())


# --- json ---------------------------------------------------------------------------------------

_SPECIAL: Final = re.compile(rb'\{"\$|[0-9]{16}|[0-9][eE]')


def plain_json(value: bytes) -> bytes:
    """A value as the JSON that clients work with.

    An ObjectId is its hex digits, a UUID its text, other bytes base64, an instant its ISO text or,
    outside 1970 to 9999, its milliseconds; a decimal, NaN, the infinities, and any number that is
    an integer beyond 2^53-1 are text of what they are. Every digit is kept; that it was no text is
    not. What else has a wrapper in Extended JSON (Timestamp, regular expressions, ...) keeps it.
    """
    if _SPECIAL.search(value) is None:
        return value
    return _encode(_plain(_any(value)))


def _json_text(value: bytes) -> bytes:
    if value[0] != 34:
        return plain_json(value)
    text = _any(value).encode()
    try:
        said = _any(text)
    except msgspec.DecodeError:
        raise UnfitError("text that is no JSON") from None
    # Not for its shape, but for numbers that JavaScript would not tell apart.
    return text if _SPECIAL.search(text) is None else _encode(_plain(said, wrapped=False))


def _plain(value: Any, *, wrapped: bool = True) -> Any:
    if isinstance(value, dict):
        document = cast("dict[str, Any]", value)
        first = next(iter(document), "")
        if wrapped and first.startswith("$"):
            return _unwrapped(first, document)
        return {name: _plain(inner, wrapped=wrapped) for name, inner in document.items()}
    if isinstance(value, list):
        return [_plain(inner, wrapped=wrapped) for inner in cast("Sequence[Any]", value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if abs(value) > SAFE_INTEGER and value == int(value):
        return str(value)
    return value


def _unwrapped(name: str, wrapper: dict[str, Any]) -> Any:
    value = wrapper[name]
    match name, len(wrapper):
        case (("$oid" | "$numberDecimal" | "$numberDouble"), 1):
            return value
        case "$numberLong", 1:
            number = int(value)
            return number if abs(number) <= SAFE_INTEGER else value
        case "$date", 1:
            return value if isinstance(value, str) else _unwrapped("$numberLong", value)
        case "$binary", 1:
            data = b64decode(value["base64"])
            is_uuid = value["subType"] == "04" and len(data) == 16
            return str(UUID(bytes=data)) if is_uuid else value["base64"]
        case _:
            return {key: _plain(inner) for key, inner in wrapper.items()}


# --- by name ------------------------------------------------------------------------------------

_TYPES: Final[dict[str, tuple[str, Convert]]] = {
    "text": ("text", _text),
    "objectid": ("text", _object_id),
    "uuid": ("text", _uuid),
    "int": ("int8", _int),
    "bigint": ("text", _bigint),
    "double": ("float8", _double),
    "decimal": ("text", _decimal),
    # Not "numeric", in whose columns SQLite makes integers of doubles, beyond 2^53-1 too.
    "numeric": ("float8", _numeric),
    "bool": ("bool", _bool),
    "timestamp": ("timestamptz", _timestamp),
    "date": ("date", _date),
    "time": ("time", _time),
    "json": ("json", plain_json),
    "jsontext": ("json", _json_text),
    "exact": ("text", _exact),
    "binary": ("text", _binary),
    "enum": ("enum", _text),
}
TYPE_NAMES: Final = tuple(_TYPES)
KEY_TYPES: Final = frozenset(TYPE_NAMES) - {"json", "jsontext", "numeric", "bool"}
"""Those by which rows are told apart: equal on the wire only where they are equal."""


def is_type(name: str) -> bool:
    """Whether there is such a type."""
    return name.removesuffix("[]") in _TYPES


@lru_cache(maxsize=64)
def converter(name: str) -> Convert:
    """What turns values into those of a type's columns."""
    convert = _TYPES[name.removesuffix("[]")][1]
    if not name.endswith("[]"):
        return convert

    def array(value: bytes) -> bytes:
        if value[0] != 91:
            raise UnfitError(came(value))
        try:
            parts = [_element(bytes(one), convert) for one in _elements(value)]
        except UnfitError as error:
            raise UnfitError(f"an array with {error.came}", error.remedy) from None
        return b"[%b]" % b",".join(parts)

    return array


def _element(value: bytes, convert: Convert) -> bytes:
    return value if value == b"null" else convert(value)


def column_spec(name: str, *, pos: int, not_null: bool) -> ColumnSpec:
    """A column of a type, as it is announced."""
    element = name.removesuffix("[]")
    data_type, enum = _TYPES[element][0], element == "enum"
    if element == name:
        kind = "e" if enum else None
        return ColumnSpec(
            pos=pos, data_type=data_type, not_null=not_null or None, pg_type_class=kind
        )
    return ColumnSpec(
        pos=pos,
        data_type=f"{data_type}[]",
        not_null=not_null or None,
        elem_pg_type_class="e" if enum else "b",
    )
