"""Plain JSON documents to and from values, with every digit of their numbers."""

from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

import msgspec

from penstock.store.errors import ValueRefusedError
from penstock.store.values import DEPTH_MAX, Item, Value, number


def from_json(data: str | bytes) -> Value:
    """The value of JSON: numbers become int or Decimal, never float. An object may be an item.

    Raises ValueRefusedError for what is no JSON, and for a number that is not exact in 38 digits.
    """
    try:
        decoded = _decoder.decode(data)
    except (msgspec.MsgspecError, InvalidOperation, UnicodeEncodeError) as error:
        raise ValueRefusedError(f"no JSON that a store can hold: {error}") from error
    if isinstance(decoded, dict):
        return item_from_plain(cast("dict[str, object]", decoded))
    return from_plain(decoded)


def item_from_plain(document: dict[str, object]) -> Item:
    """A decoded JSON object as an item, which is no level itself: its attributes have 32.

    Raises as `from_plain`.
    """
    return {name: from_plain(value) for name, value in document.items()}


def from_plain(document: object, depth: int = 0) -> Value:
    """A decoded JSON document as a value: numbers in their one form, at most 32 levels.

    Raises ValueRefusedError, for a float too: decode with `from_json`, which never makes one.
    """
    if document is None or isinstance(document, bool | str):
        return document
    if isinstance(document, int | Decimal):
        return number(document)
    if isinstance(document, dict | list) and depth >= DEPTH_MAX:
        raise ValueRefusedError(f"the document is nested more than {DEPTH_MAX} levels deep")
    if isinstance(document, list):
        return [from_plain(element, depth + 1) for element in cast("list[object]", document)]
    if isinstance(document, dict):
        mapping = cast("dict[str, object]", document)
        return {name: from_plain(element, depth + 1) for name, element in mapping.items()}
    raise ValueRefusedError(
        f"a {type(document).__name__} is no JSON that a store can hold; read JSON with "
        f"penstock.store.from_json, which makes no float"
    )


def to_json(value: Value) -> bytes:
    """A value as plain JSON, which `from_json` reads as the same value.

    Raises ValueRefusedError for bytes and sets, which plain JSON does not have: DynamoDB's JSON
    (`penstock.store.attributevalue`) has them.
    """
    return _encoder.encode(to_plain(value))


def to_plain(value: Value) -> Any:
    """A value as what JSON encoders take (Decimals are left as they are)."""
    if isinstance(value, list):
        return [to_plain(element) for element in value]
    if isinstance(value, dict):
        return {name: to_plain(element) for name, element in value.items()}
    if isinstance(value, bytes | set | frozenset):
        kind = "bytes" if isinstance(value, bytes) else "a set"
        raise ValueRefusedError(
            f"plain JSON has no form for {kind} that could be read back as the same value; write "
            f"it as DynamoDB's JSON (penstock.store.attributevalue)"
        )
    return value


_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number")
