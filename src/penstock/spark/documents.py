"""Documents as a typed struct: Extended JSON in, values of a declared schema out, or a refusal.

A value fits only if the column's type holds exactly the same value: an int in a DOUBLE if a double
can be that int, a double in a BIGINT if it is whole, never a number from text. An ObjectId is a
STRING (its 24 hex digits), an instant a TIMESTAMP, bytes are BINARY (the subtype is not kept).
Fields that the schema does not name are left out, as in any projection; a field that a document
does not have is null. A value that does not fit is never made null: its whole document is refused,
with the path, the reason and the text. Extended JSON writes many values as objects: such a one is
no document, unless a STRUCT names its `$` field.
"""

# Documents are what JSON says they are: Any all the way down.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import base64
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from math import copysign, inf, nan
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.extjson import is_wrapper
from penstock.spark.variant import instant_micros

_NON_FINITE: Final = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
_FLOAT: Final = struct.Struct("<f")
_DAY_MICROS: Final = 86_400_000_000
_INTEGER_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}

Converter = Callable[[Any], Any]


class MisfitError(ValueError):
    """A value that its column cannot hold exactly. Says where and why, never what."""

    def __init__(self, reason: str) -> None:
        self.path: list[str] = []
        self.reason = reason
        super().__init__(reason)

    def within(self, step: str) -> "MisfitError":
        """The same, one level further out."""
        self.path.insert(0, step)
        return self


def converter_of(kind: DataType) -> Converter:
    """The function that turns a decoded JSON value into what Arrow takes for `kind`.

    It raises MisfitError; None stays None. Raises ConfigError for a type without a mapping.
    """
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind.precision, kind.scale)
    if type(kind) in _INTEGER_BITS:
        return _integer(kind)
    # By exact type: VARCHAR and the like are StringTypes that would cut.
    scalar = _SCALARS.get(type(kind))
    if scalar is None:
        raise ConfigError(
            f"documentSchema has the type {kind.simpleString()}, to which no document value maps. "
            f"Nothing was read. Use documents = 'json' or 'variant', or another type."
        )
    return scalar


def _struct(kind: StructType) -> Converter:
    fields = [(field.name, converter_of(field.dataType), field.nullable) for field in kind]
    names = frozenset(kind.names)

    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        # A wrapper is one value: it has none of the fields, and each would be null.
        if not isinstance(value, dict) or (is_wrapper(value) and names.isdisjoint(value)):
            raise MisfitError(f"{_kind_name(value)} is no document")
        converted: dict[str, Any] = {}
        cased: dict[str, str] | None = None
        for name, inner, nullable in fields:
            given = value.get(name)
            if given is None:
                if name not in value:
                    # Spark takes the two for one name, and a condition would be about nothing.
                    if cased is None:
                        cased = {key.lower(): key for key in value}
                    if (other := cased.get(name.lower())) is not None:
                        raise MisfitError(f"is missing, and there is {other}").within(name)
                if not nullable:
                    raise MisfitError("is missing or null, and the schema says NOT NULL").within(
                        name
                    )
                converted[name] = None
                continue
            try:
                converted[name] = inner(given)
            except MisfitError as misfit:
                raise misfit.within(name) from None
        return converted

    return convert


def _array(kind: ArrayType) -> Converter:
    inner = converter_of(kind.elementType)

    def convert(value: Any) -> list[Any] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            raise MisfitError(f"{_kind_name(value)} is no array")
        items: list[Any] = []
        for index, item in enumerate(value):
            try:
                items.append(inner(item))
            except MisfitError as misfit:
                raise misfit.within(str(index)) from None
        return items

    return convert


def _map(kind: MapType) -> Converter:
    if type(kind.keyType) is not StringType:
        raise ConfigError("documentSchema has a MAP whose keys are no STRING. Nothing was read.")
    inner = converter_of(kind.valueType)

    def convert(value: Any) -> list[tuple[str, Any]] | None:
        if value is None:
            return None
        if not isinstance(value, dict) or is_wrapper(value):
            raise MisfitError(f"{_kind_name(value)} is no document")
        pairs: list[tuple[str, Any]] = []
        for name, item in value.items():
            try:
                pairs.append((name, inner(item)))
            except MisfitError as misfit:
                raise misfit.within(str(name)) from None
        return pairs

    return convert


def _integer(kind: DataType) -> Converter:
    bits = _INTEGER_BITS[type(kind)]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int | None:
        number = _number(value)
        if number is None:
            return None
        if isinstance(number, float):
            if not number.is_integer() or (number == 0 and copysign(1, number) < 0):
                raise MisfitError("the double is not whole")
        elif isinstance(number, Decimal):
            raise MisfitError("a decimal is no integer")
        whole = int(number)
        if not low <= whole <= high:
            raise MisfitError(f"the number does not fit {bits} bits")
        return whole

    return convert


def _number(value: Any) -> int | float | Decimal | None:
    """The number that a JSON value or its wrapper is. Raises MisfitError if it is none."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, dict) and len(value) == 1:
        if isinstance(text := value.get("$numberLong"), str):
            return int(text)
        if isinstance(text := value.get("$numberDouble"), str) and text in _NON_FINITE:
            return _NON_FINITE[text]
        if isinstance(text := value.get("$numberDecimal"), str):
            try:
                return Decimal(text)
            except InvalidOperation:
                raise MisfitError("the decimal has no value") from None
    raise MisfitError(f"{_kind_name(value)} is no number")


def _double(value: Any) -> float | None:
    number = _number(value)
    if number is None or isinstance(number, float):
        return number
    if isinstance(number, Decimal):
        raise MisfitError("a decimal is no double")
    if int(float(number)) != number:
        raise MisfitError("no double is exactly this integer")
    return float(number)


def _float(value: Any) -> float | None:
    number = _double(value)
    if number is None or number != number:  # noqa: PLR0124 - NaN
        return number
    try:
        (narrow,) = _FLOAT.unpack(_FLOAT.pack(number))
    except OverflowError:
        narrow = inf
    if narrow != number:
        raise MisfitError("no 32-bit float is exactly this number")
    return number


def _decimal(precision: int, scale: int) -> Converter:
    def convert(value: Any) -> Decimal | None:
        number = _number(value)
        if number is None:
            return None
        if isinstance(number, float):
            raise MisfitError("a double is no decimal")
        exact = Decimal(number)
        _, digits, exponent = exact.as_tuple()
        if not isinstance(exponent, int):
            raise MisfitError("the decimal is not finite")
        unscaled = int("".join(map(str, digits)))
        shift = exponent + scale
        if shift < 0:
            unscaled, rest = divmod(unscaled, 10**-shift)
            if rest:
                raise MisfitError(f"the decimal has more than {scale} decimal places")
        elif unscaled:
            if len(digits) + shift > precision:
                raise MisfitError(f"the decimal has more than {precision} digits")
            unscaled *= 10**shift
        if unscaled >= 10**precision:
            raise MisfitError(f"the decimal has more than {precision} digits")
        sign = 1 if exact < 0 else 0
        return Decimal((sign, tuple(map(int, str(unscaled))), -scale))

    return convert


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    wrapped = _wrapped(value, "$oid")
    if isinstance(wrapped, str):
        return wrapped
    raise MisfitError(f"{_kind_name(value)} is no text")


def _flag(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise MisfitError(f"{_kind_name(value)} is no boolean")


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    inner = _wrapped(value, "$date")
    if inner is None:
        raise MisfitError(f"{_kind_name(value)} is no instant")
    micros = instant_micros(inner)
    if micros is None:
        raise MisfitError("the instant does not fit 64 bits of microseconds")
    return micros


def _date(value: Any) -> int | None:
    micros = _timestamp(value)
    if micros is None:
        return None
    if micros % _DAY_MICROS:
        raise MisfitError("the instant is not midnight UTC")
    return micros // _DAY_MICROS


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    inner = _wrapped(value, "$binary")
    if not isinstance(inner, dict):
        raise MisfitError(f"{_kind_name(value)} is no binary")
    return base64.b64decode(inner["base64"])


def _wrapped(value: Any, name: str) -> Any:
    """What stands in the wrapper `name`; None if `value` is not that wrapper."""
    return value.get(name) if isinstance(value, dict) and len(value) == 1 else None


def _kind_name(value: Any) -> str:
    """A word for the kind of a value; never the value."""
    if isinstance(value, dict):
        first = next(iter(value), "")
        return f"a {first}" if first.startswith("$") else "a document"
    names = {bool: "a boolean", int: "an integer", float: "a double", str: "text", list: "an array"}
    return names.get(type(value), "null")


_SCALARS: Final[dict[type[DataType], Converter]] = {
    StringType: _text,
    BooleanType: _flag,
    DoubleType: _double,
    FloatType: _float,
    TimestampType: _timestamp,
    DateType: _date,
    BinaryType: _bytes,
}
