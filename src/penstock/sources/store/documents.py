"""A store's items as documents: type-preserving Extended JSON (`penstock.extjson`).

| a store's value            | written as                                              |
|----------------------------|---------------------------------------------------------|
| integer within 64 bits     | `5`, `5000000000`: an int32, or an int64 beyond it       |
| any other number           | `{"$numberDecimal":"0.10"}`, with all of its digits      |
| bytes                      | `{"$binary":{"base64":"...","subType":"00"}}`            |
| set                        | an array, sorted; that it was a set is not told          |
| string, bool, null, list   | as they are                                             |
| map                        | an object, its keys sorted as the store keeps them       |
"""

from decimal import Decimal
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from penstock import extjson
from penstock.flatten import flatten
from penstock.store.values import Item, Value, number_text

_INT64: Final = 1 << 63


def document(item: Item, *, flat: bool = False) -> Raw:
    """An item's bytes as a document; `flat`: with one level of dotted keys (`penstock.flatten`).

    Raises AmbiguousDocumentError for an item or map that would read as a wrapper.
    """
    return Raw(_encoder.encode(plain(flatten(item) if flat else item)))


def identity(key: Item, names: tuple[str, ...]) -> tuple[str, Raw]:
    """A key as text and as JSON, its attributes in the order of `names`.

    As text: a string or an integer as it is, another value as JSON, several as an array of JSON.
    Raises AmbiguousDocumentError.
    """
    ordered = {name: plain(key[name]) for name in names}
    extjson.refuse_mimic(ordered)
    first = key[names[0]]
    if len(names) == 1 and isinstance(first, str | int):
        text = str(first)
    else:
        values = list(ordered.values())
        text = _encoder.encode(values if len(names) > 1 else values[0]).decode()
    return text, Raw(_encoder.encode(ordered))


def plain(value: Value) -> Any:
    """What a JSON library writes for a value without losing anything of it."""
    kind: type[object] = type(value)  # exactly one of these, as the store decodes it
    if kind is str or value is None or kind is bool:
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else _decimal(value)
    if isinstance(value, dict):
        extjson.refuse_mimic(value)
        return {name: plain(element) for name, element in value.items()}
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, bytes):
        return extjson.binary(value)
    return [plain(element) for element in sorted(cast("set[Any]", value))]


def _decimal(value: int | Decimal) -> dict[str, str]:
    return {"$numberDecimal": number_text(value)}


_encoder: Final = msgspec.json.Encoder()
