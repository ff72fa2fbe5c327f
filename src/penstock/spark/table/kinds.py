"""What a column of a table can hold, and when it may become wider.

One rule decides everything: a value goes into a column if the column holds it exactly. Otherwise
the column widens if a wider kind holds all its values and the new one exactly; otherwise the row
is rejected. Never is a value rounded, cut or made null.

    int32 ──▶ int64 ──▶ decimal(38, 18)
      └─────▶ double
    objectId ◀─▶ string, both text       any value ──▶ a column that is JSON text already

A column keeps values, not how they were written. What has no place in a column's type is lost in
the table, though not in the log: the subtype of binary data, the exponent of a decimal (1.10 is
stored as 1.1, with 18 places) and the sign of a decimal zero, and whether text was an objectId.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from enum import StrEnum
from typing import Final

import pyarrow as pa

from penstock.spark.table.arrow import Field, arrow


class Kind(StrEnum):
    """The kinds of value that a document's field can have, as far as a table tells them apart."""

    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    OBJECT_ID = "objectId"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    JSON = "json"
    """Objects, arrays and types without a column of their own, as their Extended JSON."""
    UNFIT = "unfit"
    """Its kind has a column type, but not this value: a decimal beyond 38 digits or not a
    number, a date outside the years 1 to 9999. Held as its Extended JSON."""


DECIMAL_SCALE: Final = 18

ARROW_TYPES: Final[dict[Kind, pa.DataType]] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.DECIMAL: pa.decimal128(38, DECIMAL_SCALE),
    Kind.STRING: pa.string(),
    Kind.OBJECT_ID: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.BINARY: pa.binary(),
    Kind.JSON: pa.string(),
    Kind.UNFIT: pa.string(),
}

_BY_TYPE: Final = {
    arrow: kind
    for kind, arrow in ARROW_TYPES.items()
    if kind not in {Kind.OBJECT_ID, Kind.JSON, Kind.UNFIT}
}
METADATA: Final = b"penstock.kind"
"""What a column's metadata says: which kind it holds, and the name of the documents' field."""
FIELD: Final = b"penstock.field"

_WIDER: Final = {
    (Kind.INT32, Kind.INT64): Kind.INT64,
    (Kind.INT32, Kind.DOUBLE): Kind.DOUBLE,
    (Kind.INT32, Kind.DECIMAL): Kind.DECIMAL,
    (Kind.INT64, Kind.DECIMAL): Kind.DECIMAL,
}


def wider(column: Kind, value: Kind) -> Kind | None:
    """The kind that holds every value of `column` and of `value` exactly; None if there is none.

    int64 and double have none: beyond 2^53 a double skips integers.
    """
    return column if column is value else _WIDER.get((column, value))


def column_field(name: str, kind: Kind, *, field: str) -> Field:
    """The column for a document's `field`; its kind and the field's own name go with it."""
    metadata = {METADATA: kind.value.encode(), FIELD: field.encode()}
    return arrow.field(name, ARROW_TYPES[kind], metadata=metadata)


def kind_of_column(column: Field) -> Kind | None:
    """What a table's column holds; None for a type that Penstock does not write."""
    return stated_kind(column) or _BY_TYPE.get(column.type)


def stated_kind(column: Field) -> Kind | None:
    """What a table's column says that it holds; None where it says nothing, or has another type."""
    stored = (column.metadata or {}).get(METADATA)
    if stored is not None and ARROW_TYPES[Kind(stored.decode())] == column.type:
        return Kind(stored.decode())
    return None


def document_field(column: Field) -> str:
    """The name that the column's field has in the documents."""
    stored = (column.metadata or {}).get(FIELD)
    return stored.decode() if stored is not None else str(column.name)
