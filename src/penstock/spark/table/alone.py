"""Which rows a table cannot store, whatever becomes of the others of their batch. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind, document_field, kind_of_column, wider
from penstock.spark.table.plan import Naming, fit, present
from penstock.spark.table.room import Room


def unfit_alone(
    schema: pa.Schema, cells: Cells, naming: Naming, *, count: int
) -> NDArray[np.bool_]:
    """Which of `count` rows a table with these columns does not hold: they have a value that does
    not fit its column, a field that can have none, two fields that would have one, or too many."""
    unfit, named = np.zeros(count, bool), dict[str, NDArray[np.bool_]]()
    columns, width, room = np.zeros(count, np.int64), np.zeros(count, np.int64), naming.room
    by_field = {document_field(column): column for column in schema}
    taken = {naming.one_case(name) for name in (*naming.own, *schema.names)}
    for field, values in cells.items():
        column = by_field.get(field)
        before = None if column is None else kind_of_column(column)
        width += _width(before, values, room)
        if before is not None:
            unfit |= _beyond(before, values)
            continue
        there = np.logical_or.reduce([present(one) for one in values.values()])
        name = field.translate(naming.forbidden)
        if column is not None or naming.refusal(name, field, taken) is not None:
            unfit |= there
        elif Kind.UNFIT in values and Kind.JSON not in values:
            unfit |= present(values[Kind.UNFIT])
        alike = named.setdefault(naming.one_case(name), np.zeros(count, bool))
        unfit |= alike & there
        alike |= there
        columns += there
    unfit |= columns > room.columns_max - len(naming.own) - len(schema)
    return unfit | (width > room.width_max - room.width(*map(kind_of_column, schema)))


def _beyond(before: Kind, values: Mapping[Kind, Column]) -> NDArray[np.bool_]:
    """Which values a column of this kind does not hold, even if it grows for them."""
    beyond = np.zeros(len(next(iter(values.values()))), bool)
    for own, column in values.items():
        if before is not Kind.JSON and wider(before, own) in {None, before}:
            unfit = fit(before, own, column)[1]
            beyond |= False if unfit is None else unfit
    return beyond


def _width(before: Kind | None, values: Mapping[Kind, Column], room: Room) -> NDArray[np.int64]:
    """How much wider each value makes the rows; `before` is None for a column that is new."""
    more = np.zeros(len(next(iter(values.values()))), np.int64)
    for own, column in values.items():
        kind = own if before is None else wider(before, own) or before
        if kind is not Kind.UNFIT:
            more += present(column) * (room.width(kind) - room.width(before))
    return more
