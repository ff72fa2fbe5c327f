"""DynamoDB's JSON for values, exactly: {"S": "text"}, {"N": "1.5"}, {"B": base64}, {"L": [...]}.

Shapes: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_AttributeValue.html. The
errors' messages are DynamoDB's: MalformedValueError for what it calls SerializationException,
ValueRefusedError for its ValidationException.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, cast

from penstock.store.errors import MalformedValueError, NumberRefusedError, ValueRefusedError
from penstock.store.kinds import ValueType, type_of
from penstock.store.values import DEPTH_MAX, DIGITS_MAX, Item, Number, Value, number, number_text

NUMBER_OVERFLOW: Final = (
    "Number overflow. Attempting to store a number with magnitude larger than supported range"
)
NUMBER_UNDERFLOW: Final = (
    "Number underflow. Attempting to store a number with magnitude smaller than supported range"
)
NUMBER_TOO_LONG: Final = "Attempting to store more than 38 significant digits in a Number"
_NO_NUMBER: Final = "The parameter cannot be converted to a numeric value"
_INVALID: Final = "One or more parameter values were invalid: "
_EMPTY: Final = (
    "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
)
_SEVERAL: Final = (
    "Supplied AttributeValue has more than one datatypes set, "
    "must contain exactly one of the supported datatypes"
)
_NESTED: Final = (
    "Nesting Levels have exceeded supported limits: "
    "Attributes in the item have nested levels beyond supported limit"
)
_NO_STRUCTURE: Final = "Start of structure or map found where not expected"
_JSON_KINDS: Final = {True: "TRUE_VALUE", False: "FALSE_VALUE"}
_WRITTEN: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_TYPES: Final = frozenset(ValueType)
NAME_BYTES_MAX: Final = 65_535
NAME_TOO_LONG: Final = (
    "1 validation error detected: Attribute name is too large, must be less than 65536 bytes"
)


def decode_attributes(json: object) -> Item:
    """The item of {"name": {"S": ...}, ...}."""
    return {name: decode_value(value) for name, value in named(members_of(json)).items()}


def named(members: dict[str, object]) -> dict[str, object]:
    """Members whose names are those of attributes. Raises ValueRefusedError for one too long."""
    for name in members:
        refuse_name(name)
    return members


def refuse_name(name: str) -> None:
    """Raise ValueRefusedError for more than an attribute's name may have."""
    # No character has less than one byte or more than four.
    if len(name) * 4 > NAME_BYTES_MAX and len(name.encode(errors="surrogatepass")) > NAME_BYTES_MAX:
        raise ValueRefusedError(NAME_TOO_LONG)


def encode_attributes(item: Item) -> dict[str, Any]:
    """An item as {"name": {"S": ...}, ...}."""
    return {name: encode_attribute(value) for name, value in item.items()}


def decode_value(json: object, depth: int = 0) -> Value:
    """The value of {"S": "text"} and its like.

    Raises MalformedValueError and ValueRefusedError, with DynamoDB's texts.
    """
    given = [
        (kind, content)
        for kind, content in members_of(json).items()
        if kind in _TYPES and content is not None
    ]
    if not given:
        raise ValueRefusedError(_EMPTY)
    # What is wrong with a value is told before there being too many.
    values = [_decoders[ValueType(kind)](content, depth) for kind, content in given]
    if len(values) > 1:
        raise ValueRefusedError(_SEVERAL)
    return values[0]


def encode_attribute(value: Value) -> dict[str, Any]:
    """A value as {"S": "text"} and its like; sets are sorted.

    Raises ValueRefusedError for what no store can hold.
    """
    kind = type_of(value)
    return {kind.value: _encode(kind, cast("Any", value))}


def _encode(kind: ValueType, value: Any) -> Any:
    match kind:
        case ValueType.NULL:
            return True
        case ValueType.NUMBER:
            return number_text(number(value))
        case ValueType.BINARY:
            return _base64(value)
        case ValueType.LIST:
            return [encode_attribute(element) for element in value]
        case ValueType.MAP:
            return {name: encode_attribute(element) for name, element in value.items()}
        case ValueType.STRING_SET:
            return sorted(value)
        case ValueType.NUMBER_SET:
            return [number_text(number(element)) for element in sorted(value)]
        case ValueType.BINARY_SET:
            return [_base64(element) for element in sorted(value)]
        case _:
            return value


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def parse_number(text: str) -> Number:
    """The number of its digits, exactly. Raises NumberRefusedError with DynamoDB's texts."""
    match = _WRITTEN.fullmatch(text)
    sign, whole, fraction, exponent = match.groups() if match else ("", "", "", "")
    written = whole + (fraction or "")
    # BigDecimal, which DynamoDB reads numbers with, has exponents of 32 bits.
    if not written or len((exponent or "0").lstrip("+-0")) > 10:
        no_number = f"{_NO_NUMBER}: {text}" if text else _NO_NUMBER
        raise NumberRefusedError(no_number, dynamodb=no_number)
    digits = written.lstrip("0")
    if not digits:
        return 0
    power = int(exponent or "0") - len(fraction or "")
    leading = power + len(digits) - 1
    significant = digits.rstrip("0")
    refuse_number(digits=len(significant), leading=leading)
    exact = Decimal(f"{sign}{significant}E{leading - len(significant) + 1}")
    return number(exact)


def refuse_number(*, digits: int, leading: int) -> None:
    """Refuse a number of so many significant digits, the first of which counts 10^leading."""
    if leading > 125:
        raise NumberRefusedError(NUMBER_OVERFLOW, dynamodb=NUMBER_OVERFLOW)
    if leading < -130:
        raise NumberRefusedError(NUMBER_UNDERFLOW, dynamodb=NUMBER_UNDERFLOW)
    if digits > DIGITS_MAX:
        raise NumberRefusedError(NUMBER_TOO_LONG, dynamodb=NUMBER_TOO_LONG)


def members_of(json: object, scalar: str = "Expected null") -> dict[str, object]:
    """The members of a JSON object. Raises MalformedValueError, with DynamoDB's text."""
    if isinstance(json, dict):
        return cast("dict[str, object]", json)
    if isinstance(json, list):
        raise MalformedValueError("Start of list found where not expected")
    raise MalformedValueError(scalar)


def elements_of(json: object) -> list[object]:
    """The elements of a JSON list. Raises MalformedValueError, with DynamoDB's text."""
    if isinstance(json, list):
        return cast("list[object]", json)
    if isinstance(json, dict):
        raise MalformedValueError(_NO_STRUCTURE)
    raise MalformedValueError("Expected list or null")


def refuse_scalar(json: object, wanted: str) -> None:
    """Refuse what is no value of a Java type. Raises MalformedValueError, with DynamoDB's text."""
    if isinstance(json, list):
        raise MalformedValueError("Start of list found where not expected")
    if isinstance(json, dict):
        raise MalformedValueError(_NO_STRUCTURE)
    if json is None:
        raise MalformedValueError("Expected null")
    kind = _JSON_KINDS.get(json) if isinstance(json, bool) else None
    if kind is None and isinstance(json, int | float | Decimal):
        kind = "NUMBER_VALUE" if json == int(json) else "DECIMAL_VALUE"
    raise MalformedValueError(f"{kind or 'STRING_VALUE'} cannot be converted to {wanted}")


def refuse_types(json: object, depth: int = 0) -> None:
    """Refuse a value with a part of another JSON type than its own, whatever else is wrong with it.

    Raises MalformedValueError: DynamoDB says that before anything else of a request.
    """
    for kind, content in members_of(json).items():
        if kind not in _TYPES or content is None:
            continue
        match ValueType(kind):
            case ValueType.LIST:
                inner = elements_of(content)
            case ValueType.MAP:
                inner = list(members_of(content, "Expected map or null").values())
            case ValueType.STRING_SET | ValueType.NUMBER_SET:
                for element in elements_of(content):
                    _string(element)
                continue
            case ValueType.BINARY_SET:
                for element in elements_of(content):
                    _binary(element, depth)
                continue
            case ValueType.BINARY:
                _binary(content, depth)
                continue
            case ValueType.BOOLEAN | ValueType.NULL:
                _boolean(content, depth)
                continue
            case _:
                _string(content)
                continue
        # What is nested any deeper is refused for that.
        for value in inner if depth <= DEPTH_MAX else ():
            refuse_types(value, depth + 1)


def _string(json: object) -> str:
    if not isinstance(json, str):
        refuse_scalar(json, "String")
    return cast("str", json)


def _text(json: object, _depth: int) -> str:
    text = _string(json)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueRefusedError("a string is not Unicode text (a lone surrogate)") from None
    return text


def _number(json: object, _depth: int) -> Number:
    return parse_number(_string(json))


def _binary(json: object, _depth: int) -> bytes:
    if isinstance(json, bool | int | float):
        raise MalformedValueError("only base-64-encoded strings are convertible to bytes")
    text = _string(json)
    if len(text) % 4:
        raise MalformedValueError(
            f"'{text}' can not be converted to a Blob: Base64 encoded length is expected a "
            f"multiple of 4 bytes but found: {len(text)}"
        )
    odd = re.search(r"[^a-zA-Z0-9+/=]|=[^=]", text)
    if odd:
        raise MalformedValueError(
            f"'{text}' can not be converted to a Blob: Invalid Base64 character: '{odd.group()[0]}'"
        )
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        data = None
    if data is None or _base64(data) != text:
        raise MalformedValueError(
            f"'{text}' can not be converted to a Blob: Invalid last non-pad Base64 character "
            f"dectected"
        )
    return data


def _boolean(json: object, _depth: int) -> bool:
    if isinstance(json, bool):
        return json
    if not isinstance(json, str):
        refuse_scalar(json, "Boolean")
    word = cast("str", json).upper()
    if word not in {"TRUE", "1", "YES", "FALSE", "0", "NO"}:
        raise MalformedValueError("Unexpected token received from parser")
    return word in {"TRUE", "1", "YES"}


def _null(json: object, depth: int) -> None:
    if not _boolean(json, depth):
        raise ValueRefusedError(f"{_INVALID}Null attribute value types must have the value of true")


def _elements(json: object, depth: int) -> list[Value]:
    return [decode_value(element, _deeper(depth)) for element in elements_of(json)]


def _mapping(json: object, depth: int) -> dict[str, Value]:
    members = named(members_of(json, "Expected map or null"))
    deeper = _deeper(depth)
    return {name: decode_value(value, deeper) for name, value in members.items()}


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise ValueRefusedError(_NESTED)
    return depth + 1


def _strings(json: object, depth: int) -> set[str]:
    texts = [_text(element, depth) for element in elements_of(json)]
    if not texts:
        raise ValueRefusedError(f"{_INVALID}An string set  may not be empty")
    if len(set(texts)) < len(texts):
        raise ValueRefusedError(
            f"{_INVALID}Input collection [{', '.join(texts)}] contains duplicates."
        )
    return set(texts)


def _numbers(json: object, depth: int) -> set[Number]:
    numbers = [_number(element, depth) for element in elements_of(json)]
    if not numbers:
        raise ValueRefusedError(f"{_INVALID}An number set  may not be empty")
    if len(set(numbers)) < len(numbers):
        raise ValueRefusedError("Input collection contains duplicates")
    return set(numbers)


def _binaries(json: object, depth: int) -> set[bytes]:
    given = elements_of(json)
    binaries = [_binary(element, depth) for element in given]
    if not binaries:
        raise ValueRefusedError(f"{_INVALID}Binary sets should not be empty")
    if len(set(binaries)) < len(binaries):
        listed = ", ".join(map(str, given))
        raise ValueRefusedError(
            f"{_INVALID}Input collection [{listed}]of type BS contains duplicates."
        )
    return set(binaries)


_decoders: Final[dict[ValueType, Callable[[object, int], Value]]] = {
    ValueType.STRING: _text,
    ValueType.NUMBER: _number,
    ValueType.BINARY: _binary,
    ValueType.BOOLEAN: _boolean,
    ValueType.NULL: _null,
    ValueType.LIST: _elements,
    ValueType.MAP: _mapping,
    ValueType.STRING_SET: _strings,
    ValueType.NUMBER_SET: _numbers,
    ValueType.BINARY_SET: _binaries,
}
