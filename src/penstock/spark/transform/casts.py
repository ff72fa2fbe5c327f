"""A value as another kind: exactly, or not at all. Pure.

| to | from |
|---|---|
| string | number, boolean, ObjectId, instant: their text |
| int, long | whole numbers of any kind in range, and their text |
| double | numbers that a double is exactly, and text |
| decimal | int, long, decimal, text; a double by its shortest text |
| boolean | `true` and `false`, as text too |
| timestamp | ISO 8601 text with its zone, to the microsecond |

null stays null. Text of a number is what it says: "1.10" as a double is the nearest one.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

from penstock.extjson import date, long

_INTEGER = re.compile(r"[+-]?\d{1,40}")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_INSTANT = re.compile(r"[\dW-]+.[\d:]+([.,]\d{1,6}0*)?(Z|[+-][\d:]+)", re.ASCII)
"""Of what `datetime.fromisoformat` reads, what it reads whole: it passes over later digits."""
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CastError(ValueError):
    """The value cannot be that kind exactly. Says why, never what it is."""


def cast_value(value: Any, to: str) -> Any:
    """`value`, decoded Extended JSON, as the kind `to`. Raises CastError."""
    return None if value is None else _CASTS[to](value)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    name, inner = _wrapped(value)
    if name in {"$oid", "$numberLong", "$numberDouble", "$numberDecimal", "$date"} and isinstance(
        inner, str
    ):
        return inner
    raise CastError(f"{_kind(value)} has no one text")


def _integer(bits: int) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        number = _number(value)
        if isinstance(number, str):
            if not _INTEGER.fullmatch(number):
                raise CastError("the text is no integer")
            whole = int(number)
        elif isinstance(number, int):
            whole = number
        elif not _is_whole(number):
            raise CastError("the number is not whole")
        else:
            whole = int(number)
        if not -(1 << bits - 1) <= whole < 1 << bits - 1:
            raise CastError(f"the number does not fit {bits} bits")
        return whole if bits <= 32 else long(whole)

    return convert


def _is_whole(number: float | Decimal) -> bool:
    if not isinstance(number, Decimal):
        return float(number).is_integer() and not (number == 0 and math.copysign(1, number) < 0)
    # Not by int(): a decimal of 6,000 digits is no integer of a row.
    return number.is_finite() and number.adjusted() < 40 and number == number.to_integral_value()


def _double(value: Any) -> Any:
    number = _number(value)
    if isinstance(number, str):
        if number in _NON_FINITE:
            return {"$numberDouble": number}
        if not _NUMBER.fullmatch(number):
            raise CastError("the text is no number")
        found = float(number)
        if math.isinf(found):
            raise CastError("the number is beyond a double")
        return found
    if isinstance(number, float):
        return number if math.isfinite(number) else value
    try:
        exact = float(number)
    except OverflowError:
        raise CastError("the number is beyond a double") from None
    if not math.isfinite(exact) or Decimal(exact) != Decimal(number):
        raise CastError("no double is exactly this number")
    return exact


def _decimal(value: Any) -> Any:
    number = _number(value)
    if isinstance(number, str):
        if not _NUMBER.fullmatch(number):
            raise CastError("the text is no number")
        return {"$numberDecimal": str(Decimal(number))}
    if isinstance(number, float):
        if not math.isfinite(number):
            raise CastError("the number is not finite")
        return {"$numberDecimal": str(Decimal(repr(number)))}
    return {"$numberDecimal": str(number)}


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise CastError(f"{_kind(value)} is neither true nor false")


def _timestamp(value: Any) -> Any:
    if _wrapped(value)[0] == "$date":
        return value
    if not isinstance(value, str):
        raise CastError(f"{_kind(value)} is no instant")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise CastError("the text is no instant of ISO 8601") from None
    if moment.tzinfo is None:
        raise CastError("the text names no zone, so it is no instant")
    if not _INSTANT.fullmatch(value):
        raise CastError("the text says more than an instant in whole microseconds")
    since = moment - _EPOCH
    if since % timedelta(milliseconds=1):
        try:
            exact = (_EPOCH + since).replace(tzinfo=None)
        except OverflowError:
            raise CastError("in UTC the instant is outside the years 1 to 9999") from None
        return {"$date": f"{exact.isoformat(timespec='microseconds')}Z"}
    return date(since // timedelta(milliseconds=1))


def _number(value: Any) -> int | float | Decimal | str:
    """A number as Python has it, and text as it is. Raises CastError for anything else."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    name, inner = _wrapped(value)
    if isinstance(inner, str):
        if name in {"$numberLong", "$numberInt"}:
            return int(inner)
        if name == "$numberDouble":
            return _NON_FINITE[inner] if inner in _NON_FINITE else float(inner)
        if name == "$numberDecimal":
            try:
                return Decimal(inner)
            except InvalidOperation:
                raise CastError("the decimal has no value") from None
    raise CastError(f"{_kind(value)} is no number")


def _wrapped(value: Any) -> tuple[str, Any]:
    if type(value) is not dict or not value:
        return "", None
    name, inner = next(iter(cast("dict[str, Any]", value).items()))
    return name, inner


def _kind(value: Any) -> str:
    """A word for the kind of a value; never the value."""
    if type(value) is dict:
        name = _wrapped(value)[0]
        return f"a {name}" if name.startswith("$") else "an object"
    names = {bool: "a boolean", int: "an integer", float: "a double", str: "text", list: "an array"}
    return names[type(value)]


_CASTS: Final[dict[str, Callable[[Any], Any]]] = {
    "string": _string,
    "int": _integer(32),
    "long": _integer(64),
    "double": _double,
    "decimal": _decimal,
    "boolean": _boolean,
    "timestamp": _timestamp,
}
