"""What Spark computed, as Extended JSON: each type's values exactly. Pure.

| Spark | Extended JSON |
|---|---|
| TINYINT, SMALLINT, INT | int32 |
| BIGINT | int64 |
| FLOAT, DOUBLE | double |
| DECIMAL | decimal |
| BOOLEAN, STRING, BINARY | boolean, text, bytes |
| TIMESTAMP, DATE | instant; a date is its midnight in UTC |
| STRUCT, MAP of STRING, ARRAY | object, object, array |

A column of a struct that is null is null in the document, not absent.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.extjson import AmbiguousDocumentError, refuse_mimic
from penstock.spark.table.decode import extended_json
from penstock.spark.table.kinds import Kind

Encoder = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def encoder_of(kind: pa.DataType) -> Encoder:
    """The function from what Arrow gives for a value of `kind`, null apart, to Extended JSON.

    Raises ConfigError for a type that has none.
    """
    types: Any = pa.types
    made = _scalar(kind, types)
    if made is not None:
        return made
    inner: Any = kind
    if types.is_list(kind):
        element = _nullable(encoder_of(inner.value_type))
        return lambda value: [element(one) for one in value]
    if types.is_map(kind) and types.is_string(inner.key_type):
        item = _nullable(encoder_of(inner.item_type))
        return lambda value: _object({name: item(one) for name, one in value})
    if types.is_struct(kind):
        fields = {field.name: _nullable(encoder_of(field.type)) for field in inner}
        return lambda value: _object({name: one(value[name]) for name, one in fields.items()})
    raise ConfigError(
        f"a step gives a document with a value of the type {kind}, which no document can have. "
        f"Nothing of the batch was written. CAST it to another type in the step."
    )


def _scalar(kind: pa.DataType, types: Any) -> Encoder | None:
    if types.is_boolean(kind) or types.is_string(kind):
        return lambda value: value
    if types.is_integer(kind):
        wide = Kind.INT64 if kind == pa.int64() else Kind.INT32
        return lambda value: extended_json(wide, value)
    if types.is_floating(kind):
        return lambda value: extended_json(Kind.DOUBLE, value)
    if types.is_decimal(kind):
        return lambda value: extended_json(Kind.DECIMAL, value)
    if types.is_binary(kind):
        return lambda value: extended_json(Kind.BINARY, value)
    if types.is_date(kind):
        return lambda value: extended_json(
            Kind.TIMESTAMP, _micros(datetime(value.year, value.month, value.day, tzinfo=UTC))
        )
    if types.is_timestamp(kind) and getattr(kind, "tz", None) is not None:
        return lambda value: extended_json(Kind.TIMESTAMP, _micros(value))
    return None


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _nullable(encode: Encoder) -> Encoder:
    return lambda value: None if value is None else encode(value)


def _object(made: dict[str, Any]) -> dict[str, Any]:
    try:
        refuse_mimic(made)
    except AmbiguousDocumentError as error:
        raise ConfigError(
            f"a step gives {error}. Nothing of the batch was written. Give the column another name."
        ) from None
    return made
