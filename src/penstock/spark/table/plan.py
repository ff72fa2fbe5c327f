"""Where the values of rows go in a table: columns, new columns, wider columns, rejects. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Callable, Mapping, Set
from re import Pattern
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column, Field, arrow, compute
from penstock.spark.table.decode import Cells, json_text, python_values
from penstock.spark.table.kinds import (
    ARROW_TYPES,
    Kind,
    column_field,
    document_field,
    kind_of_column,
    wider,
)
from penstock.spark.table.room import Room, Wanted, without_room

KEY: Final = "_key"
SEQUENCE: Final = "_sequence"
DATABASE: Final = "_database"
SOURCE: Final = "_source"
REJECTED: Final = "_rejected_sequence"

OWN_COLUMNS: Final = arrow.schema(
    [
        arrow.field(KEY, pa.string(), nullable=False),
        arrow.field(SOURCE, pa.string(), nullable=False),
        arrow.field(DATABASE, pa.string(), nullable=False),
        arrow.field(SEQUENCE, pa.int64(), nullable=False),
        arrow.field(REJECTED, pa.int64()),
    ]
)
"""The columns of every table beside the documents' own.

`_key` is the key as Extended JSON, `_sequence` that of the row's last change. `_rejected_sequence`
is null but where a later change of the row is in the rejects: until it is healed by a change that
fits, the row is as it was at `_sequence`.
"""

OPERATION: Final = "_operation"
"""Of the rows that are written: PUT, DELETE or STALE."""

STALE: Final = 2
"""The row stays as it is, and says which change of it was rejected."""

COLUMNS_MAX: Final = 2000
"""Documents with ever new field names would otherwise make a table that nothing can read."""

_EXACT_DOUBLE: Final = 1 << 53
_FORBIDDEN: Final = str.maketrans(dict.fromkeys(" ,;{}()\n\t=`", "_"))
"""What Parquet or SQL cannot name; the column's metadata keeps the field's own name."""

_TEXT: Final = frozenset({Kind.STRING, Kind.OBJECT_ID})


class Unwritable(NamedTuple):
    """Characters that no name has."""

    found: Pattern[str]
    said: str


class Naming(NamedTuple):
    """What columns can be called where the table is."""

    own: tuple[str, ...] = (*OWN_COLUMNS.names, OPERATION)
    """Columns that are not the documents'."""
    forbidden: Mapping[int, str] = _FORBIDDEN
    """Characters that are written as others, for str.translate."""
    room: Room = Room(COLUMNS_MAX)
    bytes_max: int | None = None
    unwritable: Unwritable = Unwritable(re.compile("\0"), "a NUL")
    """What no name of a table or a column has; a NUL, for Arrow's C interface ends a name there."""
    reserved: Pattern[str] | None = None
    """Names that the server has for columns of its own."""
    one_case: Callable[[str], str] = str.lower
    """A name, written as all are that it is not told apart from."""

    def refusal(self, name: str, field: str, taken: Set[str]) -> str | None:
        """Why a table whose columns are `taken`, in one case, has none for the field."""
        if not field:
            return "a column cannot have an empty name"
        if self.unwritable.found.search(name):
            return f"a column cannot have a name with {self.unwritable.said}"
        if self.reserved is not None and self.reserved.fullmatch(name):
            return f"the server has a column of its own that is called {name}"
        if self.bytes_max is not None and len(name.encode()) > self.bytes_max:
            return f"a column cannot have a name of more than {self.bytes_max} bytes"
        if self.one_case(name) in taken:
            return f"the table has another column that is called {name}, or differs only in case"
        return None


DELTA: Final = Naming()


class Misfit(Struct, frozen=True):
    """Why a row cannot be stored."""

    field: str
    reason: str


class Placement(Struct, frozen=True, kw_only=True):
    """A batch's documents as the columns of the table it goes to."""

    schema: pa.Schema
    """The documents' columns as they are after the batch: the old ones, then the new."""
    columns: list[Column]
    """One per field of `schema`, of all rows; meaningless for rows in `misfits`."""
    widened: bool
    """An existing column changes its type: the table must be written anew."""
    misfits: dict[int, Misfit]
    """Rows that cannot be stored, by their place in the batch."""


def placed(
    existing: pa.Schema, cells: Cells, sequences: NDArray[np.int64], naming: Naming
) -> tuple[Placement, list[Column]]:
    """As `penstock.spark.table.placing.place`, of rows each of which decides; and the new columns
    that there is no room for."""
    columns: dict[str, tuple[Field, Column]] = {}
    misfits: dict[int, Misfit] = {}
    by_field = {document_field(column): column for column in existing}
    taken = {naming.one_case(name) for name in (*naming.own, *existing.names)}
    room = naming.room
    width = room.width(*map(kind_of_column, existing))
    wanted: list[Wanted] = []
    widened = False
    nothing = len(sequences)
    without: list[Column] = []
    firsts = {
        field: (0, None) if field in by_field else first_value(values, sequences)
        for field, values in cells.items()
    }
    # Of two fields that want one name, the first to have a value gets it.
    for field in sorted(cells, key=lambda field: firsts[field][0]):
        values, column = cells[field], by_field.get(field)
        if column is not None:
            name, before = column.name, kind_of_column(column)
        else:
            name, before = field.translate(naming.forbidden), firsts[field][1]
            refusal = (
                naming.refusal(name, field, taken)
                if before is not None
                else "the value is beyond what a column can hold"
            )
            if refusal is not None:
                _reject(misfits, values, Misfit(field, refusal))
                continue
            taken.add(naming.one_case(name))
        if before is None:
            foreign = f"the column {name} has the type {column.type if column else None}"
            _reject(misfits, values, Misfit(field, foreign))
            continue
        kind, stored = _settle(before, values, field, sequences, misfits)
        if column is None:
            wanted.append(Wanted(name, kind, stored))
        elif room.width(kind) - room.width(before) > room.width_max - width:
            kind, stored = _settle(before, values, field, sequences, misfits, grows=False)
        if column is None or kind is not before:
            if column is not None:
                widened = True
                width += room.width(kind) - room.width(before)
            column = column_field(name, kind, field=field)
        columns[name] = (column, stored)
    count = len(naming.own) + len(existing)
    if not room.holds(count + len(wanted), width + room.width(*(one.kind for one in wanted))):
        refused, absent = without_room(wanted, sequences, misfits, room, columns=count, width=width)
        for row, name in refused.items():
            field = document_field(columns[name][0])
            misfits[row] = Misfit(field, "the table has no room for another column")
        without = [columns[name][1] for name in absent]
        columns = {name: one for name, one in columns.items() if name not in absent}
    fields, arrays = [], []
    for old in existing:
        new = columns.pop(old.name, None) or (old, arrow.nulls(nothing, old.type))
        fields.append(new[0])
        arrays.append(new[1])
    for new in columns.values():
        fields.append(new[0])
        arrays.append(new[1])
    schema = arrow.schema(fields)
    placement = Placement(schema=schema, columns=arrays, widened=widened, misfits=misfits)
    return placement, without


def first_value(
    values: Mapping[Kind, Column], sequences: NDArray[np.int64]
) -> tuple[int, Kind] | tuple[int, None]:
    """The sequence and the kind of the earliest value; 0 and None if none of them fits a column."""
    earliest = {
        kind: int(sequences[present(column)].min())
        for kind, column in values.items()
        if kind is not Kind.UNFIT and column.null_count < len(column)
    }
    if not earliest:
        return 0, None
    kind = min(earliest, key=earliest.__getitem__)
    return earliest[kind], kind


def _settle(
    kind: Kind,
    values: Mapping[Kind, Column],
    field: str,
    sequences: NDArray[np.int64],
    misfits: dict[int, Misfit],
    *,
    grows: bool = True,
) -> tuple[Kind, Column]:
    """The column's kind and its values; `kind` grows while that makes values fit, if it may.

    The earliest value that does not fit decides how it grows, as if each came in its own batch.
    """
    while True:
        stored: Column | None = None
        left: list[tuple[Kind, NDArray[np.bool_]]] = []
        for own, column in values.items():
            converted, unfit = fit(kind, own, column)
            if unfit is not None and unfit.any():
                left.append((own, unfit))
            stored = converted if stored is None else compute.coalesce(stored, converted)
        left.sort(key=lambda one: int(sequences[one[1]].min()))
        grown = next((w for own, _ in left if (w := wider(kind, own)) not in {None, kind}), None)
        if grown is None or not grows:
            break
        kind = grown
    for own, unfit in left:
        said = "a value beyond its column" if own is Kind.UNFIT else f"a value of kind {own}"
        reason = f"the field {field} holds {said}, and its column is {kind}"
        for row in np.flatnonzero(unfit):
            misfits.setdefault(int(row), Misfit(field, reason))
    assert stored is not None
    return kind, stored


def _reject(misfits: dict[int, Misfit], values: Mapping[Kind, Column], why: Misfit) -> None:
    for column in values.values():
        for row in np.flatnonzero(present(column)):
            misfits.setdefault(int(row), why)


def present(column: Column) -> NDArray[np.bool_]:
    present: NDArray[np.bool_] = compute.is_valid(column).to_numpy(zero_copy_only=False)
    return present


def fit(kind: Kind, own: Kind, column: Column) -> tuple[Column, NDArray[np.bool_] | None]:
    """`column`, of kind `own`, as a column of `kind`, and which values it cannot hold exactly."""
    if kind is own or (kind in _TEXT and own in _TEXT):
        return column, None
    if kind is Kind.JSON:
        texts = [
            None if value is None else json_text(own, value) for value in python_values(own, column)
        ]
        return arrow.array(texts, pa.string()), None
    target = ARROW_TYPES[kind]
    exact = _exact(kind, own, column)
    if exact is None:
        return arrow.nulls(len(column), target), present(column)
    kept = compute.if_else(arrow.array(exact), column, arrow.scalar(None, column.type))
    if kind is Kind.DECIMAL:
        kept = kept.cast(pa.decimal128(19, 0))  # the way from integers to a scale
    return kept.cast(target), present(column) & ~exact


def _exact(kind: Kind, own: Kind, column: Column) -> NDArray[np.bool_] | None:
    """Which values a numeric column of `kind` holds exactly; None: none of them."""
    everything = np.ones(len(column), bool)
    match own, kind:
        case (Kind.INT32, Kind.INT64 | Kind.DOUBLE | Kind.DECIMAL) | (Kind.INT64, Kind.DECIMAL):
            return everything
        case Kind.INT64, Kind.INT32 | Kind.DOUBLE:
            limit = (1 << 31) - 1 if kind is Kind.INT32 else _EXACT_DOUBLE
            integers = compute.fill_null(column, 0).to_numpy(zero_copy_only=False)
            return (integers >= -limit) & (integers <= limit)
        case Kind.DOUBLE, Kind.INT32 | Kind.INT64:
            limit = (1 << 31) - 1 if kind is Kind.INT32 else _EXACT_DOUBLE
            doubles = compute.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
            whole = np.floor(doubles) == doubles
            negative_zero = (doubles == 0) & np.signbit(doubles)
            return whole & (np.abs(doubles) <= limit) & ~negative_zero
        case _:
            return None
