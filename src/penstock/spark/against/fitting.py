"""Rows of a source as the columns that a table has, to be compared with its own. Pure.

A column only widens, so a value that it took once is one that it holds: what does not fit is either
rejected, or never came to the table. And what fits was never rejected, but for a value without an
exact place that came before its column: such a row is in doubt.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.chunk import Chunk
from penstock.spark.table.comparing import UNFIT
from penstock.spark.table.kinds import Kind, document_field, kind_of_column
from penstock.spark.table.plan import DATABASE, KEY, OWN_COLUMNS, SOURCE, fit, present

DOUBTFUL: Final = "_penstock_doubtful"
"""Of a row of the source: whether a table with these columns would reject it, or may have."""

_IDENTITY: Final = {KEY: "key", SOURCE: "source", DATABASE: "database"}


def compared_schema(table: pa.Schema) -> pa.Schema:
    """The columns in which rows are compared: all but the place in the log, instants as integer
    microseconds."""
    fields = [
        pa.field(one.name, pa.int64() if arrow.types.is_timestamp(one.type) else one.type)
        for one in table
        if one.name in _IDENTITY or one.name not in OWN_COLUMNS.names
    ]
    return arrow.schema(fields)


def fitted(chunk: Chunk, table: pa.Schema) -> pa.Table:
    """The rows of `chunk`, all of them whole, in the columns `compared_schema(table)`; the names of
    the columns, or of the fields without one, that do not hold a row's value (UNFIT); and DOUBTFUL.
    """
    count = chunk.rows.num_rows
    columns = {document_field(one): one for one in table if one.name not in OWN_COLUMNS.names}
    stored: dict[str, Column] = {}
    unfit: list[list[str]] = [[] for _ in range(count)]
    doubtful = np.zeros(count, bool)
    for field, values in chunk.cells.items():
        column = columns.get(field)
        kind = None if column is None else kind_of_column(column)
        name = field if column is None else column.name
        for own, cells in values.items():
            if kind is None:
                left = rejected = present(cells)
            else:
                held, left, rejected = _held(kind, own, cells)
                known = stored.get(name)
                stored[name] = held if known is None else compute.coalesce(known, held)
            doubtful |= rejected
            for at in np.flatnonzero(left):
                unfit[at].append(name)
    schema = compared_schema(table)
    arrays: list[Column] = []
    for one in schema:
        if one.name in _IDENTITY:
            arrays.append(chunk.rows[_IDENTITY[one.name]].combine_chunks())
        elif one.name in stored:
            arrays.append(stored[one.name].cast(one.type))
        else:
            arrays.append(arrow.nulls(count, one.type))
    arrays += [arrow.array(unfit, pa.list_(pa.string())), arrow.array(doubtful)]
    return arrow.Table.from_arrays(arrays, names=[*schema.names, UNFIT, DOUBTFUL])


def _held(
    kind: Kind, own: Kind, cells: Column
) -> tuple[Column, NDArray[np.bool_], NDArray[np.bool_]]:
    """`cells`, of kind `own`, in a column of `kind`; which it cannot hold; and which a table does
    not take, or may not have taken."""
    held, left = fit(kind, own, cells)
    nothing = np.zeros(len(cells), bool)
    rejected = nothing if left is None else left
    if own is Kind.UNFIT:
        # Without a column of its own yet, it was refused; a column of JSON text takes it now.
        rejected = present(cells)
    if kind is Kind.DECIMAL and own is Kind.DOUBLE:
        # Taken when the column was one of integers, which has become decimal since.
        whole, left = fit(Kind.INT64, own, cells)
        held, _ = fit(kind, Kind.INT64, whole)
    return held, nothing if left is None else left, rejected
