"""From a chunk to what is written: rows, columns and rejects of one table. Pure."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.chunk import ROW_SCHEMA, Chunk, concat_cells
from penstock.spark.table.constrained import NO_CONSTRAINTS, unmet_by
from penstock.spark.table.declared import with_declared
from penstock.spark.table.decode import Cells, Document, decode_documents, documents_of
from penstock.spark.table.kinds import Kind, document_field, kind_of_column
from penstock.spark.table.patch import State, builds_on_row, decode_change, fold
from penstock.spark.table.placing import place
from penstock.spark.table.plan import (
    DATABASE,
    DELTA,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    REJECTED,
    SEQUENCE,
    SOURCE,
    STALE,
    Placement,
)
from penstock.spark.table.reduce import DELETE, PUT, RELATIVE, codes_of
from penstock.spark.table.rejects import Reject

Identity = tuple[str, str, str]
"""(key, source, database) of a row of one table."""


class TableWrite(Struct, frozen=True, kw_only=True):
    """What one batch does to one table."""

    changes: pa.Table
    """OWN_COLUMNS, the documents' columns as they will be, and OPERATION. A key occurs once."""
    widened: bool
    rejects: list[Reject]
    rows: int
    """How many rows are written or deleted."""


class Outcomes(Struct, frozen=True, kw_only=True):
    """What the entries of one collection come to, by row of it; each occurs once."""

    identities: list[Column]
    """key, source and database."""
    sequences: NDArray[np.int64]
    rejected: list[int | None]
    operations: list[int]
    """PUT, DELETE or STALE."""
    cells: Cells
    rejects: list[Reject]


def relative_keys(chunk: Chunk) -> list[str]:
    """The keys whose outcome depends on the row that the table has."""
    codes, relative = codes_of(chunk.rows), chunk.roles == RELATIVE
    firsts = np.unique(codes, return_index=True)[1]
    places = firsts[relative[firsts]]
    keys: list[str] = compute.unique(chunk.rows["key"].take(arrow.array(places))).to_pylist()
    return keys


def prepare(
    chunk: Chunk,
    *,
    schema: pa.Schema,
    base: pa.Table,
    loading: bool = False,
    constraints: Mapping[str, str] = NO_CONSTRAINTS,
) -> TableWrite:
    """Decide what `chunk`, entries of one collection, does to its table.

    `schema` are the documents' columns of the table now; `base` its rows for `relative_keys`. With
    `loading`, the table does not have all rows yet: what builds on one that it has not is passed
    over, for that row is still to come, or its end is. A row that does not meet one of the table's
    `constraints` is rejected.
    """
    outcomes = outcomes_of(chunk, table_states(base), loading=loading)
    operations, rejected = list(outcomes.operations), list(outcomes.rejected)
    sequences, rejects = outcomes.sequences, list(outcomes.rejects)
    existing = with_declared(schema, chunk.declared, DELTA)
    puts = np.flatnonzero(np.array(operations, np.int8) == PUT)
    placement = place(existing, outcomes.cells, sequences, others=unmet_by(constraints, puts))
    for row, why in sorted(placement.misfits.items()):
        operations[row] = STALE
        rejected[row] = max(rejected[row] or 0, int(sequences[row]))
        rejects.append(Reject(sequence=int(sequences[row]), reason=why.reason, field=why.field))
    changes = _changes(outcomes.identities, sequences, rejected, operations, placement)
    return TableWrite(
        changes=changes,
        widened=placement.widened,
        rejects=rejects,
        rows=changes.num_rows - len(rejects),
    )


def outcomes_of(
    chunk: Chunk, states: Mapping[Identity, State], *, loading: bool = False
) -> Outcomes:
    """What `chunk` comes to on a table whose rows for `relative_keys` are `states`."""
    codes = codes_of(chunk.rows)
    relative = np.unique(codes[chunk.roles == RELATIVE])
    folding = np.isin(codes, relative)
    simple = chunk.take(np.flatnonzero(~folding))
    folded, rejects = fold_rows(chunk.take(np.flatnonzero(folding)), states, loading=loading)
    count = simple.rows.num_rows
    operations = [int(role) for role in simple.roles] + [row.operation for row in folded]
    rejected = [None] * count + [row.rejected for row in folded]
    identities = [
        arrow.concat_arrays(
            [
                simple.rows[name].combine_chunks(),
                arrow.array([row.own[at] for row in folded], pa.string()),
            ]
        )
        for at, name in enumerate(("key", "source", "database"))
    ]
    sequences = np.concatenate(
        [simple.sequences, np.array([row.sequence for row in folded], np.int64)]
    )
    cells = concat_cells(
        (simple.cells, count),
        (decode_documents([row.document or {} for row in folded]), len(folded)),
    )
    return Outcomes(
        identities=identities,
        sequences=sequences,
        rejected=rejected,
        operations=operations,
        cells=cells,
        rejects=rejects,
    )


def _changes(
    identities: list[Column],
    sequences: np.ndarray[tuple[int], np.dtype[np.int64]],
    rejected: Sequence[int | None],
    operations: Sequence[int],
    placement: Placement,
) -> pa.Table:
    schema = arrow.schema([*OWN_COLUMNS, *placement.schema, arrow.field(OPERATION, pa.int8())])
    return arrow.Table.from_arrays(
        [
            *identities,
            arrow.array(sequences),
            arrow.array(rejected, pa.int64()),
            *placement.columns,
            arrow.array(operations, pa.int8()),
        ],
        schema=schema,
    )


class Folded(Struct, frozen=True, kw_only=True):
    """What the changes of a row come to: PUT, DELETE or STALE."""

    own: Identity
    operation: int
    document: Document | None
    sequence: int
    rejected: int | None


def fold_rows(
    chunk: Chunk, states: Mapping[Identity, State], *, loading: bool = False
) -> tuple[list[Folded], list[Reject]]:
    """The rows whose changes build on one another, folded onto the table's; as `prepare` says."""
    histories: dict[Identity, list[int]] = {}
    rows = chunk.rows.to_pylist()
    for at, row in enumerate(rows):
        histories.setdefault((row["key"], row["source"], row["database"]), []).append(at)
    puts = np.flatnonzero(chunk.roles == PUT).tolist()
    documents = dict(zip(puts, documents_of(chunk.cells, puts), strict=True))
    folded: list[Folded] = []
    rejects: list[Reject] = []
    for own, history in histories.items():
        changes = [
            decode_change(
                sequence=rows[at]["sequence"],
                operation=rows[at]["operation_type"],
                document=documents.get(at),
                full_document=rows[at]["full_document"],
                update_description=rows[at]["update_description"],
                unchanged=rows[at]["unchanged"],
                disambiguated_paths=rows[at]["disambiguated_paths"],
            )
            for at in history
        ]
        if loading and own not in states:
            changes = list(dropwhile(builds_on_row, changes))
            if not changes:
                continue
        before = states.get(own, State(document=None))
        after = fold(before, changes)
        rejects.extend(
            Reject(sequence=sequence, reason=reason) for sequence, reason in after.rejected
        )
        folded.append(outcome(own, before, after))
    return folded, rejects


def outcome(own: Identity, before: State, after: State) -> Folded:
    """What is to be done to a table that has the row `before`, so that it has it as `after`."""
    stale = after.rejected_sequence
    if stale is not None and after.sequence == before.sequence:
        operation = STALE
    else:
        operation = DELETE if after.document is None else PUT
    return Folded(
        own=own,
        operation=operation,
        document=after.document if operation == PUT else None,
        sequence=stale if operation == STALE and stale is not None else after.sequence,
        rejected=stale,
    )


def table_cells(table: pa.Table, *, own: pa.Schema = OWN_COLUMNS) -> Cells:
    """A table's documents' columns as cells, of which documents can be made again."""
    cells: Cells = {}
    for column in table.schema:
        kind = kind_of_column(column)
        if column.name not in own.names and kind is not None:
            cells[document_field(column)] = {Kind(kind): table[column.name].combine_chunks()}
    return cells


def table_states(base: pa.Table, *, own: pa.Schema = OWN_COLUMNS) -> dict[Identity, State]:
    """The rows of a table as states to fold onto."""
    owns = zip(*(base[name].to_pylist() for name in (KEY, SOURCE, DATABASE)), strict=True)
    documents = documents_of(table_cells(base, own=own), range(base.num_rows))
    sequences: list[Any] = base[SEQUENCE].to_pylist()
    marks: list[Any] = base[REJECTED].to_pylist()
    return {
        identity: State(document=document, sequence=sequence, rejected_sequence=mark)
        for identity, document, sequence, mark in zip(
            owns, documents, sequences, marks, strict=True
        )
    }


def entries_of(rows: pa.Table, **said: Any) -> pa.Table:
    """A table's rows as those of a chunk (ROW_SCHEMA), each of which says `said`."""
    count = rows.num_rows
    columns = {
        name: arrow.array([value] * count, ROW_SCHEMA.field(name).type)
        for name, value in said.items()
    }
    known = {"source": rows[SOURCE], "database": rows[DATABASE], "key": rows[KEY], **columns}
    arrays = [known.get(field.name, arrow.nulls(count, field.type)) for field in ROW_SCHEMA]
    return arrow.table(arrays, schema=ROW_SCHEMA)


def prepare_move(
    rows: pa.Table, *, schema: pa.Schema, database: str, collection: str, sequence: int
) -> TableWrite:
    """Decide how a table's rows become those of another one, as of `sequence`.

    Rows that were stale stay so. A row that does not fit is in the rejects with all it had.
    """
    moved = entries_of(rows, sequence=sequence, role=PUT, database=database, collection=collection)
    chunk = Chunk(rows=moved, cells=table_cells(rows))
    write = prepare(chunk, schema=schema, base=OWN_COLUMNS.empty_table())
    misfits = np.flatnonzero(write.changes[OPERATION].to_numpy() == STALE).tolist()
    documents = documents_of(chunk.cells, misfits)
    rejects = [
        structs.replace(reject, key=rows[KEY][at].as_py(), document=document)
        for reject, at, document in zip(write.rejects, misfits, documents, strict=True)
    ]
    rejected = write.changes[REJECTED].combine_chunks()
    marks = compute.coalesce(rejected, rows[REJECTED].combine_chunks())
    column = write.changes.schema.get_field_index(REJECTED)
    changes = write.changes.set_column(column, OWN_COLUMNS.field(REJECTED), marks)
    return structs.replace(write, changes=changes, rejects=rejects)
