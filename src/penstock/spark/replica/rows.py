"""From changes of rows to what is written in a table of an SQL database. Pure, but for `select`.

The key's fields are columns, with a unique index; each other field of a document is one too, by
the rules of `penstock.spark.table.plan`. A row whose values no column holds stays as it was, and
its change is rejected.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.errors import DestinationError
from penstock.spark.replica.altering import Added, Created, TableChange, Widened
from penstock.spark.replica.dialect import (
    TEXTS,
    Dialect,
    SqlColumn,
    SqlTable,
    Values,
    characters,
    lengths,
)
from penstock.spark.replica.keys import Forms, Told, refuse_equal, tell_apart
from penstock.spark.replica.place import Stream
from penstock.spark.table.apply import Identity, fold_rows, relative_keys
from penstock.spark.table.arrow import Column, arrow
from penstock.spark.table.chunk import Chunk, concat_cells
from penstock.spark.table.declared import with_declared
from penstock.spark.table.decode import (
    Cells,
    Document,
    decode_documents,
    documents_of,
    parse_documents,
)
from penstock.spark.table.kinds import Kind, column_field, kind_of_column
from penstock.spark.table.patch import State
from penstock.spark.table.placing import place
from penstock.spark.table.plan import Misfit, Placement
from penstock.spark.table.reduce import DELETE, PUT, RELATIVE, codes_of
from penstock.spark.table.rejects import Reject

Select = Callable[[Sequence[SqlColumn], Sequence[Values]], list[Column]]
"""Gives these columns of the rows with these keys."""


class Setup(Struct, frozen=True, kw_only=True):
    """What must be done outside of a transaction first."""

    changes: Sequence[tuple[str, TableChange]]
    """Each with its table."""
    owned: Sequence[tuple[str, Stream]]
    """Tables that are ours from then on."""
    decided_by: Mapping[str, SqlTable | None] = {}
    """By name: the tables that are changed, as they were when that was decided."""


class SetupNeededError(Exception):
    """A step cannot be done before its setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        super().__init__()


class Prepared(Struct, frozen=True, kw_only=True):
    """What is done to one table."""

    setup: Sequence[TableChange]
    """What changes the table first; the rest is then prepared anew."""
    key: tuple[str, ...] = ()
    puts: Sequence[Values] = ()
    put: Sequence[str] = ()
    """The keys of the rows of `puts`."""
    sequences: Sequence[int] = ()
    """Their last changes."""
    deletes: Sequence[Values] = ()
    deleted: Sequence[str] = ()
    absent: Sequence[str] = ()
    """The keys of deleted rows that could never be there."""
    rejects: Sequence[Reject] = ()
    stale: Mapping[str, int] = {}
    """By key: the change that its row lacks from now on."""
    forms: Forms = {}
    """What the table's key holds from now on."""


def decode_keyed(documents: Sequence[str | None], keys: Sequence[str | None]) -> Cells:
    """As `chunk.decode_rows`, with the key's fields for every row that has a key, first."""
    parsed = iter(parse_documents([text for text in documents if text is not None]))
    own = iter(parse_documents([text for text in keys if text is not None]))
    return decode_documents(
        [
            _keyed(next(parsed) if text is not None else {}, next(own) if key is not None else {})
            for text, key in zip(documents, keys, strict=True)
        ]
    )


def _keyed(document: Document, key: Document) -> Document:
    return {**key, **document, **key}


def prepared(
    chunk: Chunk,
    *,
    name: str,
    table: SqlTable | None,
    dialect: Dialect,
    pipeline: str,
    stale: Mapping[str, int],
    forms: Forms,
    select: Select,
) -> Prepared:
    """Decide what `chunk`, changes of one stream, does to its table; None: it is to be made.

    `stale` is by key the change that its row lacks, and `forms` what the table's key holds. Raises
    DestinationError.
    """
    key = _key_of(chunk, name, table, pipeline)
    existing = existing_columns(table)
    rows = _folded(chunk, existing, table, dialect, stale, select)
    naming = dialect.naming._replace(room=dialect.room(_limits(key, table, dialect)))
    told = Told(forms=forms, misfits={})

    def others(placement: Placement) -> Mapping[int, Misfit]:
        nonlocal told
        # First what the server does not hold: such a row is not written, and decides no form.
        unfit = dict(placement.misfits)
        _unfit(unfit, placement, key, rows.operations, table, dialect)
        told = tell_apart(
            forms,
            rows.keys,
            rows.cells,
            structs.replace(placement, misfits=unfit),
            fields=key,
            operations=rows.operations,
            sequences=rows.sequences,
        )
        return {**told.misfits, **unfit}

    wanted = with_declared(existing, chunk.declared, naming)
    placement = place(wanted, rows.cells, rows.sequences, naming=naming, others=others)
    misfits = placement.misfits
    fits = np.ones(len(rows.keys), bool)
    fits[list(misfits)] = False
    puts = np.flatnonzero((rows.operations == PUT) & fits)
    deletes = np.flatnonzero((rows.operations == DELETE) & fits)
    if len(puts):
        _refuse_foreign(table, placement, name, pipeline)
        if setup := _setup(key, table, placement):
            return Prepared(setup=setup)
    rejects = list(rows.rejects)
    left = dict(rows.stale)
    for row, why in sorted(misfits.items()):
        if rows.operations[row] == PUT:
            sequence = int(rows.sequences[row])
            rejects.append(Reject(sequence=sequence, reason=why.reason, field=why.field))
            left[rows.keys[row]] = sequence
    put = [rows.keys[row] for row in puts.tolist()]
    refuse_equal(values_of(placement, puts, key), put, name=name, pipeline=pipeline)
    return Prepared(
        setup=(),
        key=key,
        puts=values_of(placement, puts, None),
        put=put,
        sequences=rows.sequences[puts].tolist(),
        deletes=values_of(placement, deletes, key) if table is not None else (),
        deleted=[rows.keys[row] for row in deletes.tolist()] if table is not None else (),
        absent=[rows.keys[row] for row in misfits if rows.operations[row] == DELETE],
        rejects=rejects,
        stale=left,
        forms=told.forms,
    )


def _key_of(chunk: Chunk, name: str, table: SqlTable | None, pipeline: str) -> tuple[str, ...]:
    """The names of the key's fields, which are the same for all rows."""
    keys: list[Any] = chunk.rows["key"].to_pylist()
    found = {tuple(key) for key in parse_documents(keys)}
    key = min(found, key=len)
    if len(found) > 1 or (table is not None and not table.has_key(key)):
        said = " and ".join(f"({', '.join(one)})" for one in sorted(found))
        there = " or ".join(f"({', '.join(sorted(one))})" for one in table.unique) if table else ""
        raise DestinationError(
            pipeline=pipeline,
            what=f"rows of the table {name} have the key {said}"
            + (f", and the table has {there}" if there else " in one batch"),
            remedy="Give the table a unique index of these columns, or begin anew with another "
            "name.",
        )
    return key


def _limits(key: Sequence[str], table: SqlTable | None, dialect: Dialect) -> list[int | None]:
    """As `SqlColumn.limit`, of each column of the key."""
    if table is None:
        return [dialect.key_limit(len(key))] * len(key)
    return [one.limit for one in table.columns if one.name in key]


def existing_columns(table: SqlTable | None) -> pa.Schema:
    """The columns of a table, as `place` takes them."""
    fields = [
        column_field(one.name, one.kind, field=one.name)
        for one in (table.columns if table is not None else ())
        if one.kind is not None
    ]
    schema: pa.Schema = arrow.schema(fields)
    return schema


# --- rows that build on the rows before -----------------------------------------------------------


class _Rows(Struct, frozen=True, kw_only=True):
    keys: list[str]
    operations: NDArray[np.int8]
    sequences: NDArray[np.int64]
    cells: Cells
    rejects: list[Reject]
    stale: dict[str, int]


def _folded(
    chunk: Chunk,
    existing: pa.Schema,
    table: SqlTable | None,
    dialect: Dialect,
    stale: Mapping[str, int],
    select: Select,
) -> _Rows:
    codes = codes_of(chunk.rows)
    folding = np.isin(codes, np.unique(codes[chunk.roles == RELATIVE]))
    simple = chunk.take(np.flatnonzero(~folding))
    keys: list[Any] = simple.rows["key"].to_pylist()
    if not folding.any():
        return _Rows(
            keys=keys,
            operations=simple.roles,
            sequences=simple.sequences,
            cells=simple.cells,
            rejects=[],
            stale={},
        )
    building = chunk.take(np.flatnonzero(folding))
    states = _states(building, existing, table, dialect, stale, select)
    folded, rejects = fold_rows(building, states)
    own = parse_documents([row.own[0] for row in folded])
    documents = [_keyed(row.document or {}, key) for row, key in zip(folded, own, strict=True)]
    return _Rows(
        keys=[*keys, *(row.own[0] for row in folded)],
        operations=np.array([*simple.roles, *(row.operation for row in folded)], np.int8),
        sequences=np.array([*simple.sequences, *(row.sequence for row in folded)], np.int64),
        cells=concat_cells(
            (simple.cells, len(keys)), (decode_documents(documents), len(documents))
        ),
        rejects=rejects,
        stale={row.own[0]: row.rejected for row in folded if row.rejected is not None},
    )


def _states(
    chunk: Chunk,
    existing: pa.Schema,
    table: SqlTable | None,
    dialect: Dialect,
    stale: Mapping[str, int],
    select: Select,
) -> dict[Identity, State]:
    """The rows that the table has for `relative_keys`."""
    keys = relative_keys(chunk)
    if table is None or not keys:
        return {}
    firsts = {
        row["key"]: row for row in chunk.rows.select(["key", "source", "database"]).to_pylist()
    }
    documents = parse_documents(keys)
    cells = decode_documents(documents)
    placement = place(existing, cells, np.arange(len(keys)), naming=dialect.naming)
    fitting = np.array([at for at in range(len(keys)) if at not in placement.misfits], np.int64)
    names = tuple(documents[0])
    wanted = values_of(placement, fitting, names)
    columns = [one for one in table.columns if one.kind is not None]
    if not len(fitting):
        return {}
    found = select(columns, wanted)
    held: Cells = {}
    for column, values in zip(columns, found, strict=True):
        assert column.kind is not None
        held[column.name] = {column.kind: values}
    rows = documents_of(held, range(len(found[0])))
    told = [one.column.to_pylist() for one in wanted]
    there = zip(*(held[name][_kind(table, name)].to_pylist() for name in names), strict=True)
    by_key = dict(zip(there, rows, strict=True))
    states: dict[Identity, State] = {}
    for at, own in zip(fitting.tolist(), zip(*told, strict=True), strict=True):
        key = keys[at]
        if own in by_key:
            states[key, firsts[key]["source"], firsts[key]["database"]] = State(
                document=by_key[own], rejected_sequence=stale.get(key)
            )
    return states


def _kind(table: SqlTable, name: str) -> Kind:
    column = table.column(name)
    assert column is not None
    assert column.kind is not None
    return column.kind


# --- columns --------------------------------------------------------------------------------------


def values_of(
    placement: Placement, rows: NDArray[np.int64], names: Sequence[str] | None
) -> list[Values]:
    """Columns of some rows: those of these names, in this order, or all."""
    if not len(rows):
        return []
    indices = arrow.array(rows)
    found: list[Values] = []
    for field, column in zip(placement.schema, placement.columns, strict=True):
        kind = kind_of_column(field)
        assert kind is not None
        if names is None or field.name in names:
            found.append(Values(field.name, kind, column.take(indices)))
    if names is not None:
        found.sort(key=lambda one: list(names).index(one.name))
    return found


def _unfit(
    misfits: dict[int, Misfit],
    placement: Placement,
    key: Sequence[str],
    operations: NDArray[np.int8],
    table: SqlTable | None,
    dialect: Dialect,
) -> None:
    """Add the rows with values that columns of this kind hold elsewhere, and not here."""

    def reject(rows: NDArray[np.bool_], field: str, reason: str) -> None:
        for row in np.flatnonzero(rows).tolist():
            misfits.setdefault(row, Misfit(field, reason))

    count = len(placement.columns[0]) if placement.columns else 0
    size = np.zeros(count, np.int64)
    for field, column in zip(placement.schema, placement.columns, strict=True):
        kind = kind_of_column(field)
        assert kind is not None
        if (found := dialect.unfit(kind, column)) is not None:
            reject(found[0], field.name, f"the field {field.name} holds {found[1]}")
        own = None if table is None else table.column(field.name)
        limit = own.limit if own is not None else None
        if field.name in key:
            reject(_nulls(column), field.name, f"the key's field {field.name} is null")
            size += lengths(kind, column)
            if own is None:
                limit = dialect.key_limit(len(key))
        elif own is not None and not own.takes_null:
            why = f"the field {field.name} has no value, and its column is NOT NULL"
            reject(_nulls(column) & (operations == PUT), field.name, why)
        if limit is not None and kind in TEXTS | {Kind.BINARY}:
            reason = f"the field {field.name} is longer than {limit}, which its column holds"
            reject(characters(kind, column) > limit, field.name, reason)
    reject(
        size > dialect.key_bytes_max(), ", ".join(key), "the key is longer than an index can hold"
    )


def _nulls(column: Column) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _refuse_foreign(table: SqlTable | None, placement: Placement, name: str, pipeline: str) -> None:
    """Raise DestinationError if a field's column is there, and of a type that is none of ours."""
    there = () if table is None else table.columns
    wanted = set(placement.schema.names)
    for column in there:
        if column.kind is None and column.name in wanted:
            raise DestinationError(
                pipeline=pipeline,
                what=f"rows of the table {name} have a field {column.name}, and its column is of a "
                f"type that no replica writes: {column.declared}",
                remedy="Alter it to the type of the field's values, or call it otherwise, then "
                "start the pipeline again.",
            )


def _setup(key: Sequence[str], table: SqlTable | None, placement: Placement) -> list[TableChange]:
    """What must be done to the table before the placement's columns can be written."""
    kinds = {field.name: kind_of_column(field) or Kind.UNFIT for field in placement.schema}
    if table is None:
        return [Created(columns=tuple(kinds.items()), key=tuple(key))]
    changes: list[TableChange] = []
    for column, kind in kinds.items():
        there = table.column(column)
        if there is None:
            changes.append(Added(name=column, kind=kind))
        elif there.kind is not kind and not {there.kind, kind} <= TEXTS:
            changes.append(Widened(name=column, kind=kind, key=column in key))
    return changes
