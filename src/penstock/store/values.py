"""What an item may hold, and its one encoding.

An item is a dict of attributes. A value is None, a bool, a str, bytes, an int or Decimal (one kind:
Number), a list, a dict, or a set of strings, numbers or bytes. Numbers are exact: 38 significant
digits between 1E-130 and 9.9999999999999999999999999999999999999E+125, as DynamoDB's; an integral
one is read back as int, any other as Decimal, whatever it was written as (F15). Floats are refused:
0.1 has 55 digits.

Equal items have equal bytes: maps and sets are sorted, numbers have one form. That is how a write
that changes nothing is told (F6).

Sizes are DynamoDB's ("Item sizes and formats" in its developer guide): a name or string counts its
UTF-8 bytes, bytes count themselves, a bool or null 1, a number 1 and one for each two digits (and 1
for a minus), a list or map 3 and 1 for each element, a set its elements.
"""

from decimal import Context, Decimal, Inexact
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec
from msgspec.msgpack import Ext

from penstock.store.errors import DocumentTooLargeError, ValueRefusedError

Number: TypeAlias = int | Decimal
Scalar: TypeAlias = str | bytes | Number
Value: TypeAlias = (
    bool
    | Scalar
    | list["Value"]
    | dict[str, "Value"]
    | set[str]
    | set[bytes]
    | set[int]
    | set[Decimal]
    | set[Number]
    | None
)
Item: TypeAlias = dict[str, Any]
"""Attributes by name, each a `Value`; not typed so, that what is read needs no casts."""

ITEM_BYTES_MAX: Final = 400 << 10
DEPTH_MAX: Final = 32
DIGITS_MAX: Final = 38
_EXPONENT_MAX: Final = 125
_EXPONENT_MIN: Final = -130
_INTEGER_MAX: Final = 10 ** (_EXPONENT_MAX + 1)

_NUMBER: Final = 1
_STRINGS: Final = 2
_NUMBERS: Final = 3
_BINARIES: Final = 4
_INT64: Final = 1 << 63
_EXACT: Final = Context(prec=DIGITS_MAX, traps=[Inexact])
"""Never the caller's context, which may round, or write numbers otherwise."""


class Encoded(NamedTuple):
    """An item as it is stored."""

    data: bytes
    """Canonical: equal items, and only they, have equal bytes."""
    size: int
    """DynamoDB's bytes, which limits and SizeBytes go by."""


def number(value: Number) -> Number:
    """The one form of a number: an int if it is integral, else a Decimal without trailing zeros.

    Raises ValueRefusedError for what DynamoDB's numbers cannot hold exactly.
    """
    if isinstance(value, int):
        if -_INT64 <= value < _INT64:
            return value
        if abs(value) >= _INTEGER_MAX:  # Python itself writes no more than some thousand digits
            raise _magnitude(f"1E+{_EXPONENT_MAX + 1} or more")
        digits = str(abs(value))
        _check(value, len(digits.rstrip("0")), len(digits) - 1)
        return value
    if not value.is_finite():
        raise ValueRefusedError(f"{value} is no number that a store can hold")
    if not value:
        return 0
    sign, digits_tuple, exponent = value.as_tuple()
    digits = "".join(map(str, digits_tuple)).lstrip("0")
    leading = cast("int", exponent) + len(digits) - 1
    significant = digits.rstrip("0")
    _check(value, len(significant), leading)
    power = leading - len(significant) + 1
    if power >= 0:
        whole = int(significant + "0" * power)
        return -whole if sign else whole
    return Decimal((sign, tuple(map(int, significant)), power))


def _check(value: Number, digits: int, exponent: int) -> None:
    if digits > DIGITS_MAX:
        raise ValueRefusedError(
            f"{value:.12E}... has {digits} significant digits; a number may have {DIGITS_MAX}. "
            f"Nothing was written. Store it as a string, or round it."
        )
    if not _EXPONENT_MIN <= exponent <= _EXPONENT_MAX:
        raise _magnitude(f"about 1E{exponent:+}")


def _magnitude(told: str) -> ValueRefusedError:
    return ValueRefusedError(
        f"a number's magnitude must be between 1E{_EXPONENT_MIN} and 1E+{_EXPONENT_MAX + 1}, and "
        f"this one's is {told}. Nothing was written. Store it as a string."
    )


@lru_cache(4096)
def number_text(value: Number) -> str:
    """A number as DynamoDB writes it: all digits, no exponent, no trailing zero."""
    return str(value) if isinstance(value, int) else format(value, "f")


def number_size(value: Number) -> int:
    """DynamoDB's bytes of a number in its one form."""
    if isinstance(value, int):
        significant = len(str(abs(value)).rstrip("0"))
    else:
        significant = len(value.as_tuple().digits)
    return 1 + (significant + 1) // 2 + (value < 0)


def _text(value: str, where: str) -> int:
    try:
        return len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ValueRefusedError(f"{where} is not Unicode text (a lone surrogate)") from None


def _plain_number(value: Number) -> Any:
    """The form in which a number is encoded."""
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return value
    text = _EXACT.to_sci_string(_EXACT.normalize(Decimal(value)))
    return Ext(_NUMBER, text.encode())


def _set(value: "set[Any] | frozenset[Any]", where: str) -> tuple[Any, int]:
    if not value:
        raise ValueRefusedError(f"{where}: a set must not be empty; leave the attribute out")
    kinds = {_kind_of_element(element, where) for element in value}
    if len(kinds) > 1:
        raise ValueRefusedError(f"{where}: a set holds strings, numbers or bytes, never a mixture")
    kind = kinds.pop()
    if kind == _NUMBERS:
        numbers = sorted({number(element) for element in value})
        encoded = _encoder.encode([_plain_number(element) for element in numbers])
        return Ext(kind, encoded), sum(map(number_size, numbers))
    elements = sorted(value)
    if kind == _STRINGS:
        size = sum(_text(element, where) for element in elements)
    else:
        size = sum(map(len, elements))
    return Ext(kind, _encoder.encode(elements)), size


def _kind_of_element(element: object, where: str) -> int:
    if isinstance(element, str):
        return _STRINGS
    if isinstance(element, bytes):
        return _BINARIES
    if isinstance(element, int | Decimal) and not isinstance(element, bool):
        return _NUMBERS
    raise ValueRefusedError(
        f"{where}: a set holds strings, numbers or bytes, not {type(element).__name__}"
    )


def _prepare(value: object, where: str, depth: int) -> tuple[Any, int]:
    """What msgpack encodes for a value, and DynamoDB's bytes of it."""
    if isinstance(value, str):
        return value, _text(value, where)
    if value is None or isinstance(value, bool):
        return value, 1
    if isinstance(value, int | Decimal):
        exact = number(value)
        return _plain_number(exact), number_size(exact)
    if isinstance(value, bytes):
        return value, len(value)
    if isinstance(value, set | frozenset):
        return _set(cast("set[Any]", value), where)
    if isinstance(value, dict | list) and depth >= DEPTH_MAX:
        raise ValueRefusedError(f"{where} is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        mapping = cast("dict[object, object]", value)
        prepared, size = _attributes(mapping, where, depth + 1)
        return prepared, 3 + size + len(prepared)
    if isinstance(value, list):
        elements, size = list[Any](), 3
        for index, element in enumerate(cast("list[object]", value)):
            plain, bytes_ = _prepare(element, f"{where}[{index}]", depth + 1)
            elements.append(plain)
            size += bytes_ + 1
        return elements, size
    if isinstance(value, float):
        raise ValueRefusedError(
            f"{where} is a float, which would not keep its exact value. Nothing was written. Use "
            f"decimal.Decimal(str(number)), or read JSON with penstock.store.from_json."
        )
    raise ValueRefusedError(
        f"{where} is a {type(value).__name__}. An item holds None, bool, str, bytes, int, Decimal, "
        f"list, dict, and sets of str, numbers or bytes."
    )


def _attributes(
    attributes: dict[object, object], where: str, depth: int
) -> tuple[dict[str, Any], int]:
    prepared, size = dict[str, Any](), 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not name:
            raise ValueRefusedError(f"{where or 'an item'}: {name!r} is no attribute's name")
        path = f"{where}.{name}" if where else name
        prepared[name], bytes_ = _prepare(value, path, depth)
        size += _text(name, path) + bytes_
    return prepared, size


def encode_item(item: Item) -> Encoded:
    """An item's canonical bytes and size.

    Raises ValueRefusedError naming the attribute that cannot be kept exactly, and
    DocumentTooLargeError for more than 400 KiB.
    """
    prepared, size = _attributes(cast("dict[object, object]", item), "", 0)
    if size > ITEM_BYTES_MAX:
        raise DocumentTooLargeError(size=size, limit=ITEM_BYTES_MAX)
    return Encoded(_encoder.encode(prepared), size)


def encode_value(value: Value) -> bytes:
    """The canonical bytes of one value: equal values, and only they, have equal bytes."""
    return _encoder.encode(_prepare(value, "the value", 0)[0])


def value_size(value: Value) -> int:
    """DynamoDB's bytes of a value."""
    return _prepare(value, "the value", 0)[1]


def decode_item(data: bytes | memoryview) -> Item:
    """The item that `encode_item` encoded, anew on each call."""
    return cast("Item", _decoder.decode(data))


def _ext(code: int, data: memoryview) -> Any:
    if code == _NUMBER:
        return number(Decimal(bytes(data).decode()))
    return set(_decoder.decode(data))


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(ext_hook=_ext)
