"""Which key a request means, however it is written. Pure.

A number is the same key whatever type it was stored in, and with however many zeros at its end: a
primary key of SQL is a DECIMAL of some scale, and MongoDB's index compares numbers so. The fields
of a key of several have no order of their own; those of a document that is one field's value have.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal, InvalidOperation
from itertools import islice, permutations, product
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.subscribe.captures.requests import is_finite

SPELLINGS_MAX: Final = 10_000
"""How many ways of writing a key are looked up at most."""
_SCALE_MAX: Final = 30
"""Of a DECIMAL, in MariaDB and MySQL."""
_DECIMAL_DIGITS_MAX: Final = 65
"""Of a DECIMAL before its point."""
_DIGITS_MAX: Final = 400
"""Longer numbers are compared by their exponent."""
_PLACES_MAX: Final = 10_000
"""What is written with more places is no number of any source, and compared as it is written."""
_NUMBERS: Final = frozenset({"$numberLong", "$numberInt", "$numberDecimal", "$numberDouble"})


def forms_of(key: object) -> list[bytes]:
    """What a request's key is compared by: as the value of a key's only field, and of an object as
    a whole key, too."""
    forms = [_form("value", _plain(key))]
    if isinstance(key, dict) and not _is_wrapped(cast("dict[str, Any]", key)):
        forms.append(_whole(cast("dict[str, Any]", key)))
    return forms


def forms_of_stored(key: bytes) -> tuple[bytes, ...]:
    """What the key of an entry is compared by."""
    fields: dict[str, Any] = msgspec.json.decode(key)
    whole = _whole(fields)
    if len(fields) != 1:
        return (whole,)
    return whole, _form("value", _plain(next(iter(fields.values()))))


class Spellings(NamedTuple):
    """The ways in which a log may have written a key."""

    texts: list[bytes]
    complete: bool
    """Whether these are all; else a row that is written in none of them may be there."""


def spellings_of(key: object) -> Spellings:
    """The value of a key, or a whole key, in the ways in which a log may have written it."""
    value = key
    if not isinstance(key, dict) or _is_wrapped(cast("dict[str, Any]", key)):
        ways, complete = _written(value, decimals=True)
        return Spellings([msgspec.json.encode(one) for one in ways], complete)
    fields = cast("dict[str, Any]", key)
    decimals = len(fields) <= 2
    values = {name: _written(one, decimals=decimals) for name, one in fields.items()}
    found = (
        msgspec.json.encode(dict(zip(names, each, strict=True)))
        for names in permutations(fields)
        for each in product(*(values[name][0] for name in names))
    )
    texts = list(islice(found, SPELLINGS_MAX))
    complete = all(one for _, one in values.values()) and next(found, None) is None
    return Spellings(texts, complete)


def _whole(fields: Mapping[str, Any]) -> bytes:
    return _form("key", sorted((name, _plain(value)) for name, value in fields.items()))


def _form(kind: str, value: object) -> bytes:
    return msgspec.json.encode([kind, value])


def _plain(value: object) -> object:
    """A value with its numbers in one form."""
    number = _number(value)
    if number is not None:
        # No other value is an object here.
        plain = _normal(number)
        return {"N": f"{plain:f}" if abs(plain.adjusted()) < _DIGITS_MAX else str(plain)}
    if isinstance(value, dict):
        return [[name, _plain(one)] for name, one in cast("dict[str, Any]", value).items()]
    if isinstance(value, list):
        return ["list", *map(_plain, cast("list[object]", value))]
    return value


def _number(value: object) -> Decimal | None:
    """A value as a number; None for what is none, or is too far from 1 to be stored as one."""
    text = ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        text = repr(value) if isinstance(value, float) else str(Decimal(value))
    elif isinstance(value, dict) and len(cast("dict[str, Any]", value)) == 1:
        ((name, one),) = cast("dict[str, Any]", value).items()
        text = one if name in _NUMBERS and isinstance(one, str) else ""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if number.is_zero():
        return Decimal(0)
    return number if isinstance(value, int) or abs(number.adjusted()) <= _PLACES_MAX else None


def _normal(number: Decimal) -> Decimal:
    """A number without zeros at its end, and with all of its other digits."""
    return number.normalize(Context(prec=len(number.as_tuple().digits)))


def _written(value: object, *, decimals: bool) -> tuple[list[Any], bool]:
    """A value in the ways in which a log may have written it, and whether these are all."""
    number = _number(value)
    if number is None:
        return [value], not _has_numbers(value)
    if not _is_writable(value):
        return [value], False
    found: list[Any] = [value]
    if number == number.to_integral_value() and abs(number) < 1 << 1000:
        whole = int(number)
        found += [whole, {"$numberLong": str(whole)}]
    double = float(number)
    if is_finite(double) and (double == number or _number(double) == number):
        found.append(double)
    scaled = [{"$numberDecimal": one} for one in _scaled(number)] if decimals else []
    return found + scaled, bool(scaled)


def _has_numbers(value: object) -> bool:
    """Whether a value is of others that may be written in several ways."""
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        inner = cast("Iterable[Any]", value)
    return any(_number(one) is not None or _has_numbers(one) for one in inner)


def _is_writable(value: object) -> bool:
    """Whether JSON can write it."""
    return not isinstance(value, (int, float)) or is_finite(value)


def _scaled(number: Decimal) -> Iterator[str]:
    """The texts of a decimal: with zeros at its end, or an exponent in their place. None where it
    is too long, or has too many places."""
    sign, digits, exponent = _normal(number).as_tuple()
    if number.adjusted() >= _DECIMAL_DIGITS_MAX or not isinstance(exponent, int):
        return
    for more in range(max(-exponent, 0), _SCALE_MAX + 1):
        yield f"{number:.{more}f}"
    for less in range(1, exponent + 1):
        yield str(Decimal((sign, (*digits, *[0] * (exponent - less)), less)))


def _is_wrapped(key: Mapping[str, Any]) -> bool:
    return any(name.startswith("$") for name in key)
