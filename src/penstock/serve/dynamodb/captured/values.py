"""Documents and keys as AttributeValues, with the sizes that the protocol gives them.

| Extended JSON                             | AttributeValue                                     |
|-------------------------------------------|----------------------------------------------------|
| text, true, null, array, object           | S, BOOL, NULL, L, M                                |
| whole numbers, doubles, decimals          | N, in its one form: 5.0 is 5                       |
| NaN, infinity, -0.0, a number beyond N's  | S, as it is written                                |
| 38 digits or 1E-130 to 1E126              |                                                    |
| binary of subtype 00                      | B                                                  |
| any other wrapper: `{"$oid": ...}`,       | M with the wrapper's members, as it stands         |
| `{"$date": ...}`, other binary, ...       |                                                    |

A key's attributes are S, N or B, as every table's are, in records' images too. What is none of
these (and a double with a fraction) is S: its Extended JSON, in brackets unless it is an object. A
text that begins with `{`, `[` or `"` is S in JSON's quotes. No table has a key that is empty: such
a text is in quotes too, and such bytes are Extended JSON. So two documents that differ in their
keys have different Keys.
"""

from base64 import b64decode
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.store.errors import ValueRefusedError
from penstock.store.values import Number, number, number_size, number_text

_QUOTED: Final = ("{", "[", '"')
_WRAPPED: Final = frozenset({"$numberLong", "$numberInt", "$numberDouble", "$numberDecimal"})

Attribute = dict[str, Any]
"""{"S": "text"} and its like."""


class Told(NamedTuple):
    """Attributes, and their bytes as the protocol counts them."""

    attributes: dict[str, Attribute]
    size: int


def item_of(document: bytes, keys: Sequence[str]) -> Told:
    """A document's attributes; those of `keys` as a key's."""
    return _item(cast("dict[str, object]", _decoder.decode(document)), frozenset(keys))


def key_of(key: bytes) -> Told:
    """A key's attributes, in its order."""
    decoded = cast("dict[str, object]", _decoder.decode(key))
    return _item(decoded, frozenset(decoded))


def key_within(image: Told, names: Sequence[str]) -> Told:
    """The key that an item's attributes, told with these `names` as a key's, hold."""
    attributes = {name: image.attributes[name] for name in names}
    size = 0
    for name, attribute in attributes.items():
        ((kind, value),) = attribute.items()
        size += len(name.encode())
        if kind == "N":
            size += number_size(number(Decimal(value)))
        else:
            size += len(b64decode(value)) if kind == "B" else len(value.encode())
    return Told(attributes, size)


def key_names(key: bytes) -> tuple[str, ...]:
    """The names of a key's attributes, in its order; none for what is no key."""
    decoded = _decoder.decode(key) if key else None
    return tuple(cast("dict[str, object]", decoded)) if isinstance(decoded, dict) else ()


def _item(document: dict[str, object], keys: frozenset[str]) -> Told:
    attributes, total = dict[str, Attribute](), 0
    for name, value in document.items():
        attribute, size = _keyed(value) if name in keys else _valued(value)
        attributes[name] = attribute
        total += len(name.encode()) + size
    return Told(attributes, total)


def _valued(value: object) -> tuple[Attribute, int]:
    """An attribute, and its bytes."""
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return {"NULL": True}, 1
    if isinstance(value, bool):
        return {"BOOL": value}, 1
    if isinstance(value, int | float):
        return _numbered(value)
    if isinstance(value, list):
        told = [_valued(element) for element in cast("list[object]", value)]
        return {"L": [one for one, _ in told]}, 3 + sum(size + 1 for _, size in told)
    members = cast("dict[str, object]", value)
    scalar = _unwrapped(members)
    if scalar is not None:
        return scalar
    inside = {name: _valued(member) for name, member in members.items()}
    size = sum(len(name.encode()) + size + 1 for name, (_, size) in inside.items())
    return {"M": {name: one for name, (one, _) in inside.items()}}, 3 + size


def _keyed(value: object) -> tuple[Attribute, int]:
    """An attribute of a key, and its bytes."""
    if isinstance(value, str):
        return _text(_json(value) if not value or value.startswith(_QUOTED) else value)
    exact = isinstance(value, int) and not isinstance(value, bool)
    if exact or (isinstance(value, float) and value.is_integer()):
        told = _numbered(cast("int | float", value))
    elif isinstance(value, float):
        return _text(_json({"$numberDouble": repr(value)}))
    elif isinstance(value, dict):
        members = cast("dict[str, object]", value)
        told = _unwrapped(members) or ({"M": {}}, 0)
    else:
        return _text(_json([value]))
    if "N" in told[0] or told[0].get("B"):
        return told
    return _text(_json(cast("object", value) if isinstance(value, dict) else [value]))


def _unwrapped(members: dict[str, object]) -> tuple[Attribute, int] | None:
    """The scalar that a wrapper stands for; None for a document, and a wrapper that stays one."""
    first = next(iter(members), "")
    if first in _WRAPPED:
        return _numbered(cast("str", members[first]))
    if first == "$binary":
        binary = cast("dict[str, str]", members[first])
        if binary["subType"] == "00":
            return {"B": binary["base64"]}, len(b64decode(binary["base64"]))
    return None


def _numbered(value: int | float | str) -> tuple[Attribute, int]:
    """A number as N, or as S what N cannot hold."""
    written = value if isinstance(value, str) else repr(value)
    exact = _exact(written)
    if exact is None:
        return _text(written)
    return {"N": number_text(exact)}, number_size(exact)


def _exact(written: str) -> Number | None:
    """The number, if N has it."""
    try:
        read = Decimal(written)
        if not read.is_finite() or (read.is_zero() and read.is_signed()):
            return None
        return number(read)
    except (InvalidOperation, ValueRefusedError):
        return None


def _text(text: str) -> tuple[Attribute, int]:
    return {"S": text}, len(text.encode())


def _json(value: object) -> str:
    return _encoder.encode(value).decode()


_decoder: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder()
