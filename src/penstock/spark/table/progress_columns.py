"""The columns of a pipeline's own tables: how far it has come, and when it was verified."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false

from typing import Final

import pyarrow as pa

from penstock.spark.table.arrow import arrow

STANDING_SCHEMA: Final = arrow.schema(
    [
        arrow.field("pipeline", pa.string(), nullable=False),
        arrow.field("source", pa.string(), nullable=False),
        arrow.field("collections", pa.list_(pa.string()), nullable=False),
        arrow.field("progress", pa.string(), nullable=False),
        arrow.field("sequence", pa.int64(), nullable=False),
        arrow.field("tables", pa.string(), nullable=False),
        arrow.field("to", pa.string()),
        arrow.field("format", pa.string()),
        arrow.field("steps", pa.string()),
    ]
)
"""Columns that may be null came later: a row that was written before has none of them."""
VERIFIED_SCHEMA: Final = arrow.schema(
    [
        arrow.field("pipeline", pa.string(), nullable=False),
        arrow.field("verified_at_ms", pa.int64(), nullable=False),
        arrow.field("differences", pa.int64(), nullable=False),
        arrow.field("progress", pa.string(), nullable=False),
    ]
)
