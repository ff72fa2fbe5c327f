"""Values of an SQL table as bytes that are equal exactly where the values are. Pure.

A column grows wider, and its values stay what they are: so a whole number is the same cell in every
kind of column that holds it. NaN is one value, and -0.0 is not 0.0, but in a key.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from math import copysign, isfinite, isnan, nan
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.spark.table.arrow import Column, arrow
from penstock.spark.table.decode import python_values
from penstock.spark.table.kinds import ARROW_TYPES, Kind

Cell = Any
"""None, a bool, an integer, a float, text, or bytes; an empty list for what cannot be read."""

UNREADABLE: Final[Cell] = []
"""What a column of its kind never holds as the pipeline writes it."""
_TRUTHS: Final = frozenset({None, False, True})
"""To a server whose truths are numbers 7 is true as well, and yet another value."""
_EXACT_DOUBLE: Final = 1 << 53
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def cells_of(kind: Kind, column: Column, *, key: bool = False) -> list[Cell]:
    """A column's values; `key`: it is one of the key's."""
    if kind is Kind.DECIMAL:
        column = column.cast(ARROW_TYPES[kind])
    values = python_values(kind, column)
    if kind is Kind.DOUBLE:
        return [None if one is None else _double(one, key=key) for one in values]
    if kind is Kind.DECIMAL:
        return [None if one is None else _decimal(one) for one in values]
    return values


def read_cells(
    read: Callable[[Kind, Sequence[Any]], Column], kind: Kind, values: Sequence[Any], *, key: bool
) -> list[Cell]:
    """As `cells_of`, of what a server gave; UNREADABLE for what `read` does not take, and for a
    truth that is neither."""
    if kind is not Kind.BOOL or _TRUTHS.issuperset(values):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return cells_of(kind, read(kind, values), key=key)
    if len(values) == 1:
        return [UNREADABLE]
    return [cell for one in values for cell in read_cells(read, kind, [one], key=key)]


def column_of(kind: Kind, cells: Sequence[Cell]) -> Column:
    """Cells as a column again."""
    values: Sequence[Any] = cells
    if kind is Kind.DOUBLE:
        values = [None if one is None else float(one) for one in cells]
    elif kind is Kind.DECIMAL:
        values = [None if one is None else Decimal(one) for one in cells]
    elif kind is Kind.TIMESTAMP:
        instants: Column = arrow.array(cells, pa.int64()).cast(ARROW_TYPES[kind])
        return instants
    column: Column = arrow.array(values, ARROW_TYPES[kind])
    return column


def key_bytes(cells: Sequence[Cell]) -> bytes:
    """A key, its fields in the order of their names."""
    return msgspec.msgpack.encode(cells)


def key_cells(own: bytes) -> list[Cell]:
    """The fields of a key."""
    return msgspec.msgpack.decode(own, type=list[Any])


def row_bytes(cells: Mapping[str, Cell]) -> bytes:
    """A row; that a column is null is the same as that there is none."""
    held = {name: cells[name] for name in sorted(cells) if cells[name] is not None}
    return msgspec.msgpack.encode(held)


def row_cells(held: bytes) -> dict[str, Cell]:
    """The columns of a row that are not null."""
    return msgspec.msgpack.decode(held, type=dict[str, Any])


def differing_columns(wanted: bytes, found: bytes) -> tuple[str, ...]:
    """The columns that two rows differ in."""
    one, other = row_cells(wanted), row_cells(found)
    return tuple(name for name in sorted({*one, *other}) if _told(one, name) != _told(other, name))


def _told(row: Mapping[str, Cell], name: str) -> bytes:
    # As bytes: to Python 0.0 is -0.0, and NaN is not itself.
    return msgspec.msgpack.encode(row.get(name))


def _double(value: float, *, key: bool) -> Cell:
    if not isfinite(value):
        return nan if isnan(value) else value
    if value == 0 and copysign(1.0, value) < 0 and not key:
        return value
    return int(value) if abs(value) <= _EXACT_DOUBLE and value.is_integer() else value


def _decimal(value: Decimal) -> Cell:
    text = format(value, "f")
    whole, _, rest = text.partition(".")
    if rest.strip("0"):
        return text
    number = int(whole)
    return number if _INT64_MIN <= number <= _INT64_MAX else text
