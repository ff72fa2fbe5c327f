"""Values of the log as MongoDB keeps them. Pure.

A document of the log is Extended JSON (`penstock.extjson`), and so is nearly all of BSON. What BSON
has no exact form for is text (a decimal of more than 34 digits), a decimal (an integer beyond 64
bits, signed), or stays Extended JSON (an instant between two milliseconds; MongoDB's own symbols,
pointers and undefined). Nothing is rounded.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal, DecimalException, Inexact, Rounded
from typing import Any, Final, cast

import msgspec
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128, create_decimal128_context
from bson.int64 import Int64

_OPTIONS: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=True,
    unicode_decode_error_handler="strict",
)
_INT64_MAX: Final = (1 << 63) - 1
_DECIMALS: Final = create_decimal128_context()
_DECIMALS.traps[Inexact] = _DECIMALS.traps[Rounded] = True


def document_of(text: str | bytes | None) -> dict[str, Any] | None:
    """The document that `text` is, as MongoDB keeps it; None for None."""
    if text is None:
        return None
    document: dict[str, Any] = value_of(msgspec.json.decode(text))
    return document


def value_of(value: Any) -> Any:
    """One value, as msgspec reads it from Extended JSON."""
    if isinstance(value, dict):
        return _document(cast("dict[str, Any]", value))
    if isinstance(value, list):
        return [value_of(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, int) and value > _INT64_MAX:
        return Decimal128(str(value))
    return value


def _document(value: dict[str, Any]) -> Any:
    for first in value:
        if first.startswith("$"):
            return _wrapped(value, first)
        break
    return {name: value_of(one) for name, one in value.items()}


def _wrapped(value: dict[str, Any], first: str) -> Any:
    if first == "$numberDecimal":
        return _decimal(value[first])
    if first == "$numberLong" and len(value) == 1:
        return Int64(value[first])
    if first == "$date":
        return _instant(value[first])
    if first in _WRAPPERS:
        inner = {name: value_of(one) if type(one) is dict else one for name, one in value.items()}
        return json_util.object_hook(inner, _OPTIONS)
    return {name: value_of(one) for name, one in value.items()}


def _decimal(text: str) -> Decimal128 | str:
    try:
        exact = _DECIMALS.create_decimal(Decimal(text))
    except DecimalException:
        return text
    return Decimal128(exact)


def _instant(said: str | dict[str, str]) -> DatetimeMS | dict[str, str]:
    if isinstance(said, dict):
        return DatetimeMS(int(said["$numberLong"]))
    moment = datetime.fromisoformat(said)
    if moment.microsecond % 1000:
        return {"$date": said}
    return DatetimeMS(moment)


_WRAPPERS: Final = frozenset(
    {
        "$oid",
        "$numberInt",
        "$numberDouble",
        "$binary",
        "$uuid",
        "$timestamp",
        "$regularExpression",
        "$code",
        "$minKey",
        "$maxKey",
    }
)
