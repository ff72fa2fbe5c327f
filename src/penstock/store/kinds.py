"""The ten types of values, what equals what, and what comes before what.

Python says `True == 1` and `{1} == {True}`; a store does not. Numbers are equal by value, sets and
maps whatever their order.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Any, cast

from penstock.store.errors import ValueRefusedError
from penstock.store.values import Value, encode_value, number


class ValueType(StrEnum):
    """What a value is; the letters are DynamoDB's."""

    STRING = "S"
    NUMBER = "N"
    BINARY = "B"
    BOOLEAN = "BOOL"
    NULL = "NULL"
    LIST = "L"
    MAP = "M"
    STRING_SET = "SS"
    NUMBER_SET = "NS"
    BINARY_SET = "BS"


ORDERED = frozenset({ValueType.STRING, ValueType.NUMBER, ValueType.BINARY})
"""The types whose values come before one another."""
SETS = frozenset({ValueType.STRING_SET, ValueType.NUMBER_SET, ValueType.BINARY_SET})

_SCALARS: dict[type[object], ValueType] = {
    bool: ValueType.BOOLEAN,
    str: ValueType.STRING,
    int: ValueType.NUMBER,
    Decimal: ValueType.NUMBER,
    bytes: ValueType.BINARY,
    type(None): ValueType.NULL,
    list: ValueType.LIST,
    dict: ValueType.MAP,
}
_SET_OF = {
    ValueType.STRING: ValueType.STRING_SET,
    ValueType.NUMBER: ValueType.NUMBER_SET,
    ValueType.BINARY: ValueType.BINARY_SET,
}


def type_of(value: Value) -> ValueType:
    """The type of a value that a store can hold. Raises ValueRefusedError for any other object."""
    found = _SCALARS.get(type(value))
    if found is not None:
        return found
    if isinstance(value, set | frozenset) and value:
        of_set = _SET_OF.get(type_of(next(iter(value))))
        if of_set is not None:
            return of_set
    for kind, name in _SCALARS.items():
        if isinstance(value, kind):
            return name
    raise ValueRefusedError(f"a {type(value).__name__} is no value that a store can hold")


def canonical(value: Value) -> Value:
    """The value with its numbers in their one form, sharing nothing with what was given.

    Raises ValueRefusedError for what a store cannot hold.
    """
    encode_value(value)
    return cast("Value", _copied(value))


def _copied(value: Value) -> Any:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return number(value)
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, dict):
        return {name: _copied(element) for name, element in value.items()}
    if isinstance(value, set | frozenset):
        return cast("Value", {_copied(element) for element in cast("set[Any]", value)})
    return value


def equal(one: Value, other: Value) -> bool:
    """Whether two values are the same, as their canonical bytes are."""
    kind = type_of(one)
    if kind is not type_of(other):
        return False
    if kind in {ValueType.LIST, ValueType.MAP}:
        return encode_value(one) == encode_value(other)
    return one == other


def compare(one: Value, other: Value) -> int | None:
    """Below, at or above zero as `one` comes before, equals or follows `other`; None: no order.

    Strings compare by their UTF-8 bytes, numbers by value, bytes by themselves; nothing else, and
    nothing across types, has an order.
    """
    if isinstance(one, str) and isinstance(other, str):
        # Python orders strings by code point, which is the order of their UTF-8 bytes.
        return (one > other) - (one < other)
    if isinstance(one, bytes) and isinstance(other, bytes):
        return (one > other) - (one < other)
    if (
        isinstance(one, int | Decimal)
        and isinstance(other, int | Decimal)
        and not isinstance(one, bool)
        and not isinstance(other, bool)
    ):
        return (one > other) - (one < other)
    return None
