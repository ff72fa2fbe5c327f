"""Rows as Spark wants them: the columns of `wire.ARROW_SCHEMA`, in Spark's types.

Spark has no unsigned integers: `check`, `commit_digest` and `key_hash` keep their 64 bits and are
read as signed LONGs (a value of 2**63 and more is negative; equal stays equal, and sums modulo
2**64 stay right). All else maps to the type that holds exactly the same values.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import ConfigError
from penstock.event import Kind, event_id
from penstock.wire import ARROW_SCHEMA

_SPARK_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.int8(): ByteType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.uint64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.list_(pa.string()): ArrayType(StringType()),
}

ENTRY_SCHEMA: Final = StructType(
    [StructField(field.name, _SPARK_TYPES[field.type]) for field in ARROW_SCHEMA]
)
"""The columns of an entry with its documents as JSON text."""


def check_columns(schema: StructType, offered: StructType) -> None:
    """Raise ConfigError unless `schema` names columns of `offered`, with their types."""
    types = {field.name: field.dataType for field in offered}
    for field in schema:
        if field.name not in types:
            raise ConfigError(
                f"format 'penstock' has no column {field.name!r}. Nothing was read. Its columns "
                f"are {', '.join(types)}."
            )
        if field.dataType != types[field.name]:
            raise ConfigError(
                f"column {field.name} is {types[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}. Nothing was read. Convert it after reading."
            )


def to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in the Arrow schema that Spark expects; shares the buffers."""
    columns = [_column(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(column: Any, wanted: pa.DataType) -> Any:
    if column.type == wanted:
        return column
    if column.type == pa.uint64():
        return column.view(wanted)
    # Lists differ only in the name of their element.
    return column.cast(wanted)


def gap_row(*, log_id: int, after: int, until: int, columns: Sequence[str]) -> pa.RecordBatch:
    """One entry of kind GAP in place of (after, until], which retention removed unread.

    Its `sequence` is the last one lost; it belongs to no source and no commit. The same loss
    gives the same row.
    """
    description = {"from": after, "to": until, "reason": "removed by retention before it was read"}
    row = dict.fromkeys(ARROW_SCHEMA.names) | {
        "sequence": until,
        "kind": int(Kind.GAP),
        "operation_type": "gap",
        "event_id": event_id("", f"{log_id:016x}:{after}:{until}", 0),
        "full_document": json.dumps(description),
    }
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_pylist([{name: row[name] for name in columns}], schema=schema)
