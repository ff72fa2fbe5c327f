"""Keys as bytes that sort as their values do.

A string sorts by its UTF-8 bytes, a number by its value, bytes by themselves. Every encoding says
where it ends, so none is the beginning of another, and a partition key and a sort key can stand
one behind the other. Any byte may be in a key (F16): a zero byte is written as 00 FF, and 00 00
ends the key.

A number other than zero is 0.d1d2... times a power of ten: a byte that says its sign, one for the
power, one for each two digits, and an end. A negative number has all of its bits inverted.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.store.errors import (
    KeyTooLargeError,
    KeyTypeMismatchError,
    MissingKeyAttributeError,
    ValueRefusedError,
)
from penstock.store.values import Scalar, number, number_size

PARTITION_BYTES_MAX: Final = 2048
SORT_BYTES_MAX: Final = 1024
_POWER_BIAS: Final = 129
_INVERT: Final = bytes(range(255, -1, -1))


class KeyType(StrEnum):
    """What a key attribute is; the letters are DynamoDB's."""

    STRING = "S"
    NUMBER = "N"
    BINARY = "B"


class KeyAttribute(NamedTuple):
    """A key attribute of a table."""

    name: str
    type: KeyType


def encode_key(value: object, attribute: KeyAttribute, *, bytes_max: int) -> bytes:
    """The bytes of a key attribute, which sort as its values do.

    Raises KeyTypeMismatchError, KeyTooLargeError, and ValueRefusedError for an empty string, empty
    bytes, or a number that is not exact in 38 digits.
    """
    encoded, size = _encode(value, attribute)
    if not size:
        raise ValueRefusedError(f"the key attribute {attribute.name!r} must not be empty")
    if size > bytes_max:
        raise KeyTooLargeError(
            f"the key attribute {attribute.name!r} has {size} bytes, and may have {bytes_max}. "
            f"Nothing was written."
        )
    return encoded


def _encode(value: object, attribute: KeyAttribute) -> tuple[bytes, int]:
    kind = attribute.type
    if kind is KeyType.STRING and isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError:
            raise ValueRefusedError(
                f"the key attribute {attribute.name!r} is not Unicode text (a lone surrogate)"
            ) from None
        return _ended(text), len(text)
    if kind is KeyType.BINARY and isinstance(value, bytes):
        return _ended(value), len(value)
    if kind is KeyType.NUMBER and isinstance(value, int | Decimal) and not isinstance(value, bool):
        exact = number(value)
        return encode_number(exact), number_size(exact)
    raise KeyTypeMismatchError(
        f"the key attribute {attribute.name!r} is of type {kind.name}, and {type(value).__name__} "
        f"was given. Nothing was changed."
    )


def key_of(attributes: "dict[str, Any]", key: KeyAttribute, *, bytes_max: int) -> bytes:
    """The bytes of a key attribute of an item or a key. Raises MissingKeyAttributeError too."""
    if key.name not in attributes:
        raise MissingKeyAttributeError(
            f"the key attribute {key.name!r} is missing. Nothing was changed."
        )
    return encode_key(attributes[key.name], key, bytes_max=bytes_max)


def beginning(value: Scalar, attribute: KeyAttribute) -> bytes:
    """The bytes with which the key of every value begins that begins with `value`.

    Raises KeyTypeMismatchError; numbers have no beginning.
    """
    if attribute.type is KeyType.NUMBER:
        raise KeyTypeMismatchError(f"{attribute.name!r} is a number, and no number begins another")
    return _encode(value, attribute)[0][:-2]


def after(prefix: bytes) -> bytes | None:
    """The first bytes that sort behind all that begins with `prefix`; None: there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _ended(data: bytes) -> bytes:
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def encode_number(value: int | Decimal) -> bytes:
    """A number in its one form (`values.number`)."""
    if not value:
        return b"\x01"
    if isinstance(value, int):
        text = str(abs(value))
        digits, power = text.rstrip("0"), len(text)
    else:
        _, tuple_, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        digits, power = "".join(map(str, tuple_)), exponent + len(tuple_)
    if len(digits) % 2:
        digits += "0"
    pairs = bytes(int(digits[at : at + 2]) + 1 for at in range(0, len(digits), 2))
    magnitude = bytes([power + _POWER_BIAS]) + pairs + b"\x00"
    return b"\x00" + magnitude.translate(_INVERT) if value < 0 else b"\x02" + magnitude
