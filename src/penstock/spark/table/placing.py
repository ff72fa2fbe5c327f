"""Which rows of a batch a table stores: those that fit once the others are left out. Pure.

A row that does not fit decides nothing, or those behind it would be refused for what was never
written. As if each row came in a batch of its own: it fits what those before it, that are stored,
have made of the table, or it is left out.

Most batches have no such row, and many of these rows have nothing to decide. Else the earliest is
left out and the rest placed anew; more go each time, so that a batch of nothing else takes a few
rounds. Those that went with the earliest are looked at again, behind the rows that stand.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind, kind_of_column
from penstock.spark.table.plan import DELTA, Misfit, Naming, Placement, placed, present

Rows = NDArray[np.intp]
"""Places in the batch."""
Others = Callable[[Placement], Mapping[int, Misfit]]
Prepare = Callable[[pa.Schema, Cells, Rows, NDArray[np.int64]], Cells]

_TRIED_MAX: Final = 256
"""So many rows are tried one by one, each in less than a millisecond."""


def _no_others(_: Placement) -> Mapping[int, Misfit]:
    return {}


def _as_they_are(
    _schema: pa.Schema, cells: Cells, _rows: Rows, _sequences: NDArray[np.int64]
) -> Cells:
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
    of a field, by sequence, decides the kind of its new column. `others` says which rows cannot be
    stored for other reasons, of a placement as it would be. `prepare` is given the table's columns,
    and cells of some rows with their places and sequences, before columns are found for them.

    A row in `misfits` decides nothing: no column is made, or grows, for its values. Nor do those of
    the other rows that have its number in `parents`, which are stored with it or not at all. Of
    very many such rows that are of new columns, some may be in `misfits` that would fit.
    """
    batch = _Batch(existing, sequences, naming, parents, others, prepare)
    found = _standing(batch, cells)
    if not len(found.swept):
        return found.placement
    won = _won_back(batch, cells, found)
    if not len(won):
        return found.placement
    out = np.setdiff1d(found.out, won)
    refused = {row: why for row, why in found.refused.items() if row in out}
    last = int(sequences.max()) + 1
    behind = np.where(np.isin(np.arange(len(sequences)), won), sequences + last, sequences)
    batch = structs.replace(batch, sequences=behind)
    return _standing(batch, _without(cells, out, behind), out=out, refused=refused).placement


class _Batch(Struct, frozen=True):
    """What all rounds have in common."""

    existing: pa.Schema
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

    def placed(self, schema: pa.Schema, cells: Cells, rows: Rows) -> Placement:
        """As `plan.placed`, of the cells of these rows."""
        sequences = self.sequences[rows]
        prepared = self.prepare(schema, cells, rows, sequences)
        return placed(schema, prepared, sequences, self.naming)


class _Found(Struct, frozen=True):
    placement: Placement
    refused: dict[int, Misfit]
    out: Rows
    """The rows that were left out, `refused` or stored with one that is."""
    swept: Rows
    """Those of them that were not the earliest of their round, and may fit."""


_NOTHING: Final[Rows] = np.zeros(0, np.intp)


def _standing(
    batch: _Batch,
    cells: Cells,
    *,
    out: Rows = _NOTHING,
    refused: Mapping[int, Misfit] | None = None,
) -> _Found:
    """Leave rows out until the others stand without them; `cells` are of all but `out`."""
    refused, swept, at_once = dict(refused or {}), _NOTHING, 1
    everything = np.arange(len(batch.sequences))
    while True:
        found = batch.placed(batch.existing, cells, everything)
        found = structs.replace(found, misfits={**found.misfits, **refused})
        misfits = {**batch.others(found), **found.misfits}
        found = structs.replace(found, misfits=misfits)
        new = _in_order(misfits.keys() - refused.keys(), batch.sequences)
        if not new or not _decides(batch.existing, found, batch.together(new)):
            return _Found(found, refused, out, swept)
        first, gone = batch.together(new[:1]), batch.together(new[:at_once])
        at_once *= 2
        refused |= {row: misfits[row] for row in gone.tolist() if row in misfits}
        swept = np.union1d(swept, np.setdiff1d(gone, first))
        out = np.union1d(out, gone)
        cells = _without(cells, gone, batch.sequences)


def _won_back(batch: _Batch, cells: Cells, found: _Found) -> Rows:
    """Those that were swept out which fit the table that the others make, one after the other."""
    schema, swept = found.placement.schema, found.swept
    everything = np.arange(len(batch.sequences))
    rest = _without(cells, np.setdiff1d(everything, swept), batch.sequences)
    all_of_them = batch.placed(schema, rest, everything)
    unfit = batch.together(_in_order(all_of_them.misfits, batch.sequences))
    if not len(unfit) or not _decides(schema, all_of_them, unfit):
        return np.setdiff1d(swept, unfit)
    won: list[Rows] = []
    for rows in _groups(batch, swept):
        one = batch.placed(schema, _only(cells, rows), rows)
        if not one.misfits:
            schema = one.schema
            won.append(rows)
    return np.concatenate(won) if won else _NOTHING


def _groups(batch: _Batch, rows: Rows) -> Iterator[Rows]:
    """These rows, those together that are stored together, the earliest first; not too many."""
    left, seen = _TRIED_MAX, set[int]()
    for row in _in_order(rows.tolist(), batch.sequences):
        if row in seen:
            continue
        group = batch.together([row])
        left -= len(group)
        if left < 0:
            return
        seen.update(group.tolist())
        yield group


def _in_order(rows: Iterable[int], sequences: NDArray[np.int64]) -> list[int]:
    return sorted(rows, key=lambda row: (int(sequences[row]), row))


def _decides(existing: pa.Schema, placement: Placement, rows: Rows) -> bool:
    """Whether one of these rows has a value in a column that is new, or of another kind now."""
    before = {column.name: kind_of_column(column) for column in existing}
    return any(
        present(column)[rows].any()
        for field, column in zip(placement.schema, placement.columns, strict=True)
        if before.get(field.name) is not kind_of_column(field)
    )


def _without(cells: Cells, rows: Rows, sequences: NDArray[np.int64]) -> Cells:
    """The cells of all but these, fields in the order in which the others have them first."""
    others = np.ones(len(sequences), bool)
    others[rows] = False
    left: Cells = {}
    begins: dict[str, int] = {}
    for field, values in cells.items():
        kept: dict[Kind, Column] = {}
        for kind, column in values.items():
            stays = present(column) & others
            if stays.any():
                nothing = arrow.scalar(None, column.type)
                kept[kind] = compute.if_else(arrow.array(stays), column, nothing)
                begins[field] = min(
                    int(sequences[stays].min()), begins.get(field, int(sequences.max()))
                )
        if kept:
            left[field] = kept
    return {field: left[field] for field in sorted(left, key=begins.__getitem__)}


def _only(cells: Cells, rows: Rows) -> Cells:
    """The cells of these rows alone."""
    indices = arrow.array(rows)
    left: Cells = {}
    for field, values in cells.items():
        taken = {kind: column.take(indices) for kind, column in values.items()}
        kept = {kind: one for kind, one in taken.items() if one.null_count < len(one)}
        if kept:
            left[field] = kept
    return left
