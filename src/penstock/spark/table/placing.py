"""Which rows of a batch a table stores: those that fit once the others are left out. Pure.

A row that does not fit decides nothing, or those behind it would be refused for what was never
written. As if each row came in a batch of its own: it fits what those before it, that are stored,
have made of the table, or it is left out.

Most batches have no such row, and many of these rows have nothing to decide. Else those are left
out at once that do not fit whatever becomes of the others, and those that want what rows before
them have that fit. Where that is not sure, the rows before the first that does not fit are stored,
and it is looked at again beside the table that they make. So rounds are few, however many rows do
not fit.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.table.alone import unfit_alone
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind, document_field, kind_of_column
from penstock.spark.table.plan import (
    DELTA,
    Misfit,
    Naming,
    Placement,
    first_value,
    placed,
    present,
)
from penstock.spark.table.room import Room

Rows = NDArray[np.intp]
"""Places in the batch, or a number of each of its rows."""
Mask = NDArray[np.bool_]
Others = Callable[[Placement], Mapping[int, Misfit]]
Prepare = Callable[[pa.Schema, Cells], Cells]

_ENDLESS: Final = Room(1 << 30)


def _no_others(_: Placement) -> Mapping[int, Misfit]:
    return {}


def _as_they_are(_: pa.Schema, cells: Cells) -> Cells:
    return cells


def place(
    existing: pa.Schema,
    cells: Cells,
    sequences: NDArray[np.int64],
    *,
    naming: Naming = DELTA,
    parents: Rows | None = None,
    others: Others = _no_others,
    prepare: Prepare = _as_they_are,
) -> Placement:
    """Find each field its column.

    `existing` are the documents' columns of the table now (without `naming.own`). The first value
    of a field, by sequence, decides the kind of its new column; of fields that would have one name,
    the one whose first value is the earliest gets it. `others` says which rows cannot be stored for
    other reasons, of a placement as it would be. `prepare` is given the table's columns, and the
    cells of all rows that are not left out, before columns are found for them.

    A row in `misfits` decides nothing: no column is made, or grows, for its values. Nor do those of
    the other rows that have its number in `parents`, which are stored with it or not at all. No row
    is in `misfits` for the sake of one that is.
    """
    batch = _Batch(sequences, naming, parents, others, prepare)
    decided = np.zeros(len(sequences), bool)
    standing = _Standing(schema=existing, cells=cells, decided=decided, refused={})
    while True:
        trial = _tried(batch, standing)
        if not trial.new or not _decides(batch, standing, trial):
            kinds = {column.name: kind_of_column(column) for column in trial.placement.schema}
            widened = any(kinds[one.name] is not kind_of_column(one) for one in existing)
            return structs.replace(trial.placement, widened=widened)
        surely = _surely(batch, standing, trial)
        if surely:
            standing = _refused(batch, standing, trial, surely)
        else:
            standing = _next(batch, standing, trial)


class _Batch(Struct, frozen=True):
    """What all rounds have in common."""

    sequences: NDArray[np.int64]
    naming: Naming
    parents: Rows | None
    others: Others
    prepare: Prepare

    def together(self, rows: Iterable[int]) -> Rows:
        """These rows, and those that are stored with them or not at all."""
        these = np.fromiter(rows, np.intp)
        if self.parents is None:
            return these
        return np.flatnonzero(np.isin(self.parents, self.parents[these]))

    def turns(self) -> Rows:
        """When each row's turn is: by sequence, and at once for those that are stored together."""
        turns = np.empty(len(self.sequences), np.intp)
        turns[np.argsort(self.sequences, kind="stable")] = np.arange(len(turns))
        if self.parents is None:
            return turns
        _, parents = np.unique(self.parents, return_inverse=True)
        first = np.full(len(turns), len(turns))
        np.minimum.at(first, parents, turns)
        return first[parents]


class _Standing(Struct, frozen=True, kw_only=True):
    """What is decided of a batch so far."""

    schema: pa.Schema
    """The table's columns, with those of the rows that are stored."""
    cells: Cells
    """Of all rows that are not left out; of the stored ones as their columns have them."""
    decided: Mask
    """Whether a row is stored or left out."""
    refused: Mapping[int, Misfit]
    """Why rows are left out, but for those that are so with another."""


class _Trial(Struct, frozen=True, kw_only=True):
    """What it comes to if all rows that are not left out decide."""

    cells: Cells
    placement: Placement
    """With the refused among its misfits."""
    contested: Sequence[int]
    """The rows that find no column."""
    new: Sequence[int]
    """These, and those of `others`, that were not refused before."""
    absent: Sequence[Column]
    """New columns that there is no room for."""


def _tried(batch: _Batch, standing: _Standing) -> _Trial:
    cells = batch.prepare(standing.schema, standing.cells)
    found, absent = placed(standing.schema, cells, batch.sequences, batch.naming)
    contested = list(found.misfits)
    found = structs.replace(found, misfits={**found.misfits, **standing.refused})
    misfits = {**batch.others(found), **found.misfits}
    return _Trial(
        cells=cells,
        placement=structs.replace(found, misfits=misfits),
        contested=contested,
        new=[row for row in misfits if row not in standing.refused],
        absent=absent,
    )


def _decides(batch: _Batch, standing: _Standing, trial: _Trial) -> bool:
    """Whether a row that does not fit has a value in a column that is new, or of another kind."""
    rows = batch.together(trial.new)
    before = {column.name: kind_of_column(column) for column in standing.schema}
    found = trial.placement
    made = (
        column
        for field, column in zip(found.schema, found.columns, strict=True)
        if before.get(field.name) is not kind_of_column(field)
    )
    return any(present(column)[rows].any() for column in chain(made, trial.absent))


def _surely(batch: _Batch, standing: _Standing, trial: _Trial) -> list[int]:
    """Rows that do not fit, whatever becomes of the others that do not."""
    count = len(batch.sequences)
    alone = unfit_alone(standing.schema, trial.cells, batch.naming, count=count)
    if surely := [row for row in trial.new if alone[row]]:
        return surely
    # Before the first contest, all that decide are stored.
    turns = batch.turns()
    first = turns[list(trial.contested)].min(initial=count)
    if surely := [row for row in trial.new if turns[row] < first]:
        return surely
    return _losers(batch, standing, trial)


def _losers(batch: _Batch, standing: _Standing, trial: _Trial) -> list[int]:
    """The rows that want what rows before them have that fit; none where that is not sure."""
    out = np.zeros(len(standing.decided), bool)
    out[batch.together(trial.new)] = True
    fitting = batch.prepare(standing.schema, _only(standing.cells, ~out))
    found, _ = placed(standing.schema, fitting, batch.sequences, batch.naming)
    if found.misfits:
        return []
    before = {document_field(column): kind_of_column(column) for column in standing.schema}
    for column in found.schema:
        field, kind = document_field(column), kind_of_column(column)
        if field not in before:
            # Had another the field first, it would not be the fitting rows that this one lost to.
            first = first_value(trial.cells[field], batch.sequences)
            if first != first_value(fitting[field], batch.sequences) or first[1] is not kind:
                return []
        elif before[field] is not kind:
            return []
    # Room is for those that come first, and these may come before some that fit.
    naming = batch.naming._replace(room=_ENDLESS)
    alone = unfit_alone(found.schema, trial.cells, naming, count=len(out))
    return [row for row in trial.contested if alone[row]]


def _refused(batch: _Batch, standing: _Standing, trial: _Trial, rows: Sequence[int]) -> _Standing:
    """Without these rows, for the reasons that the trial gives."""
    gone, misfits = batch.together(rows), trial.placement.misfits
    out = np.zeros(len(standing.decided), bool)
    out[gone] = True
    return structs.replace(
        standing,
        cells=_only(standing.cells, ~out),
        decided=standing.decided | out,
        refused={
            **standing.refused,
            **{row: misfits[row] for row in gone.tolist() if row in misfits},
        },
    )


def _next(batch: _Batch, standing: _Standing, trial: _Trial) -> _Standing:
    """With the next rows stored, up to the first contest; or the very next one left out."""
    turns = batch.turns()
    waiting = np.unique(turns[~standing.decided])
    contest = int(np.searchsorted(waiting, turns[list(trial.contested)].min()))
    if contest and (found := _stored(batch, standing, turns < waiting[contest])):
        return found
    # The next one does not fit: by itself, or since a column has grown for others behind it.
    found, count = None, 1
    while count < len(waiting):
        more = _stored(batch, standing, turns < waiting[count])
        if more is None:
            break
        found, count = more, count * 2
    if found is not None:
        return found
    alone = turns == waiting[0]
    by_itself = _tried(batch, _ahead(standing, alone))
    return _refused(batch, standing, by_itself, [row for row in by_itself.new if alone[row]])


def _ahead(standing: _Standing, rows: Mask) -> _Standing:
    """With none but these of the rows that are not decided."""
    return structs.replace(standing, cells=_only(standing.cells, standing.decided | rows))


def _stored(batch: _Batch, standing: _Standing, rows: Mask) -> _Standing | None:
    """With these rows stored too; None if one of them does not fit."""
    rows = rows & ~standing.decided
    trial = _tried(batch, _ahead(standing, rows))
    if rows[list(trial.new)].any():
        return None
    decided, found = standing.decided | rows, trial.placement
    cells = _only(standing.cells, ~decided)
    for field, column in zip(found.schema, found.columns, strict=True):
        kind = kind_of_column(field)
        if kind is not None and column.null_count < len(column):
            values = cells.setdefault(document_field(field), {})
            values[kind] = compute.coalesce(values[kind], column) if kind in values else column
    return structs.replace(standing, schema=found.schema, cells=cells, decided=decided)


def _only(cells: Cells, rows: Mask) -> Cells:
    """The cells of these rows, and null for the others."""
    left: Cells = {}
    for field, values in cells.items():
        kept: dict[Kind, Column] = {}
        for kind, column in values.items():
            stays = present(column) & rows
            if stays.any():
                nothing = arrow.scalar(None, column.type)
                kept[kind] = compute.if_else(arrow.array(stays), column, nothing)
        if kept:
            left[field] = kept
    return left
