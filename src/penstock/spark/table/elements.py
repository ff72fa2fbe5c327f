"""What a batch does to a table of the elements of documents' arrays, decided purely.

A document's rows are written together (decision 0037): it has the rows of all its elements, or
those that it had. So of each document the batch says its elements, and of all rows from the next
one on that they go; or, where it is deleted or does not fit, one thing of all rows that it has.
Nobody asks how many there are.

Its rows say what the document was, for each has all other fields of it. A document without elements
has none; what builds on it is rejected, as it is of a row that was never there.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.errors import BatchTooLargeError
from penstock.spark.config import DeltaPipelineConfig, TablePipelineConfig
from penstock.spark.table.apply import (
    Identity,
    Outcomes,
    TableWrite,
    outcomes_of,
    relative_keys,
    table_cells,
)
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.chunk import Chunk
from penstock.spark.table.declared import with_declared
from penstock.spark.table.decode import Cells, Document, decode_documents, documents_of
from penstock.spark.table.kinds import Kind, document_field
from penstock.spark.table.patch import State
from penstock.spark.table.placing import place
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    REJECTED,
    SEQUENCE,
    SOURCE,
    STALE,
    Misfit,
    Naming,
    Placement,
    fit,
    present,
)
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.rejects import Reject
from penstock.spark.transform.config import ELEMENT

EXPLODED: Final = b"penstock.explode"
"""What the metadata of the column `element` says: the field of whose elements the rows are."""

ELEMENT_NAMING: Final = Naming(own=(*OWN_COLUMNS.names, ELEMENT, OPERATION))


class Elements(Struct, frozen=True, kw_only=True):
    """What a table has rows of."""

    pipeline: str
    field: str
    bytes_max: int
    """What all rows of a batch may take."""


def elements_of(pipeline: str, config: DeltaPipelineConfig, collection: str) -> Elements | None:
    """What the table of a collection has rows of; None for rows of documents."""
    field = config.exploded_field(collection) if isinstance(config, TablePipelineConfig) else ""
    if not field:
        return None
    return Elements(pipeline=pipeline, field=field, bytes_max=config.max_bytes_per_batch)


def element_columns(field: str) -> pa.Schema:
    """The columns of a table of elements beside the documents' own."""
    metadata = {EXPLODED: field.encode()}
    element = arrow.field(ELEMENT, pa.int32(), nullable=False, metadata=metadata)
    return arrow.schema([*OWN_COLUMNS, element])


def exploded_in(schema: pa.Schema) -> str:
    """The field of whose elements a table with these columns has rows; empty for documents."""
    if ELEMENT not in schema.names:
        return ""
    return (schema.field(ELEMENT).metadata or {}).get(EXPLODED, b"").decode()


def prepare_elements(
    chunk: Chunk, *, schema: pa.Schema, base: pa.Table, elements: Elements
) -> TableWrite:
    """As `prepare`, for a table of elements. `base` are all its rows for `relative_keys`.

    Of its changes, a key and an element occur once; DELETE and STALE are of all rows of their
    document from `element` on. Raises BatchTooLargeError.
    """
    building = arrow.array(relative_keys(chunk), pa.string())
    base = base.filter(compute.is_in(base[KEY], building))
    outcomes = outcomes_of(chunk, element_states(base, elements.field))
    existing = with_declared(schema, chunk.declared, ELEMENT_NAMING)
    write, misfits = _written(outcomes, existing, elements, sized=True)
    rejects = [
        Reject(sequence=int(outcomes.sequences[at]), reason=why.reason, field=why.field)
        for at, why in sorted(misfits.items())
    ]
    return structs.replace(write, rejects=[*outcomes.rejects, *rejects])


def prepare_elements_move(
    rows: pa.Table, *, schema: pa.Schema, database: str, sequence: int, elements: Elements
) -> TableWrite:
    """As `prepare_move`: whole documents are handed over, however many."""
    states = element_states(rows, elements.field)
    documents = [state.document or {} for state in states.values()]
    keys = [key for key, _, _ in states]
    sources = [source for _, source, _ in states]
    outcomes = Outcomes(
        identities=[
            arrow.array(column, pa.string()) for column in (keys, sources, [database] * len(keys))
        ],
        sequences=np.full(len(keys), sequence, np.int64),
        rejected=[state.rejected_sequence for state in states.values()],
        operations=[PUT] * len(keys),
        cells=decode_documents(documents),
        rejects=[],
    )
    write, misfits = _written(outcomes, schema, elements, sized=False)
    rejects = [
        Reject(
            sequence=sequence,
            reason=why.reason,
            field=why.field,
            key=keys[at],
            document=documents[at],
        )
        for at, why in sorted(misfits.items())
    ]
    return structs.replace(write, rejects=rejects)


def element_states(rows: pa.Table, field: str) -> dict[Identity, State]:
    """The documents of which these are all rows."""
    own = element_columns(field)
    documents = documents_of(table_cells(rows, own=own), range(rows.num_rows))
    told: list[Any] = rows.select(own.names).to_pylist()
    arrays: dict[Identity, dict[int, Any]] = {}
    states: dict[Identity, State] = {}
    for row, document in zip(told, documents, strict=True):
        identity = (row[KEY], row[SOURCE], row[DATABASE])
        arrays.setdefault(identity, {})[row[ELEMENT]] = document.pop(field, None)
        states[identity] = State(
            document=document, sequence=row[SEQUENCE], rejected_sequence=row[REJECTED]
        )
    for identity, state in states.items():
        assert state.document is not None
        array = arrays[identity]
        state.document[field] = [array[at] for at in sorted(array)]
    return states


def _written(
    outcomes: Outcomes, schema: pa.Schema, elements: Elements, *, sized: bool
) -> tuple[TableWrite, dict[int, Misfit]]:
    """What is written of documents, and by place of the document why one is not."""
    count = len(outcomes.operations)
    arrays, misfits = _arrays(outcomes, elements.field)
    counts = np.array([len(arrays.get(at, ())) for at in range(count)], np.int64)
    if sized:
        _check_size(outcomes.cells, counts, elements)
    parents = np.repeat(np.arange(count), counts)
    places = np.concatenate([np.arange(one) for one in counts]) if count else parents
    order = np.argsort(np.lexsort((places, outcomes.sequences[parents])))
    cells = _cells(outcomes.cells, arrays, parents, elements.field)

    def prepare(schema: pa.Schema, cells: Cells) -> Cells:
        if any(document_field(column) == elements.field for column in schema):
            return cells
        return _of_one_kind(cells, elements.field, parents, order)

    placement = place(schema, cells, order, naming=ELEMENT_NAMING, parents=parents, prepare=prepare)
    for row, why in sorted(placement.misfits.items()):
        reason = why.reason
        if why.field == elements.field:
            reason = f"{reason} (element {places[row]})"
        misfits.setdefault(int(parents[row]), Misfit(field=why.field, reason=reason))
    operations = [STALE if at in misfits else one for at, one in enumerate(outcomes.operations)]
    rejected = [
        max(one or 0, int(outcomes.sequences[at])) if at in misfits else one
        for at, one in enumerate(outcomes.rejected)
    ]
    kept = np.flatnonzero(~np.isin(parents, list(misfits)))
    # One row more of each document: what becomes of those that it has behind its elements.
    rest = [DELETE if one == PUT else one for one in operations]
    first = [int(counts[at]) if one == PUT else 0 for at, one in enumerate(operations)]
    of = np.concatenate([parents[kept], np.arange(count)])
    own = _own(outcomes, rejected, of, np.concatenate([places[kept], np.array(first, np.int64)]))
    said = arrow.array([PUT] * len(kept) + rest, pa.int8())
    changes = _changes(own, placement, kept, said, elements.field)
    gone = sum(one == DELETE for one in operations)
    write = TableWrite(
        changes=changes, widened=placement.widened, rejects=[], rows=len(kept) + gone
    )
    return write, misfits


def _arrays(outcomes: Outcomes, field: str) -> tuple[dict[int, list[Any]], dict[int, Misfit]]:
    """By place of the document: its elements, or why it has none to speak of."""
    arrays: dict[int, list[Any]] = {}
    misfits: dict[int, Misfit] = {}
    nothing = Misfit(field=field, reason=f"the field {field} is no array")
    for kind, column in outcomes.cells.get(field, {}).items():
        present = np.flatnonzero(compute.is_valid(column).to_numpy(zero_copy_only=False)).tolist()
        texts: list[Any] = column.take(arrow.array(present, pa.int64())).to_pylist()
        for at, text in zip(present, texts, strict=True):
            value = msgspec.json.decode(text) if kind is Kind.JSON else None
            if isinstance(value, list):
                arrays[at] = value
            else:
                misfits[at] = nothing
    return arrays, misfits


def _cells(
    cells: Cells, arrays: dict[int, list[Any]], parents: NDArray[np.intp], field: str
) -> Cells:
    """The documents' cells for each element, which has the array's place."""
    indices = arrow.array(parents)
    result: Cells = {}
    for name, columns in cells.items():
        if name == field:
            rows: list[Document] = [{field: one} for at in sorted(arrays) for one in arrays[at]]
            result |= decode_documents(rows)
            continue
        taken = {kind: column.take(indices) for kind, column in columns.items()}
        left = {kind: one for kind, one in taken.items() if one.null_count < len(one)}
        if left:
            result[name] = left
    return result


def _of_one_kind(
    cells: Cells, field: str, parents: NDArray[np.intp], order: NDArray[np.intp]
) -> Cells:
    """Cells by which the first array decides what kind its new column is.

    One whose elements are of kinds that no column holds makes a column of JSON, which holds all:
    else it would be rejected, and leave a column that others do not fit.
    """
    kinds: dict[Kind, Column] = {
        kind: column
        for kind, column in cells.get(field, {}).items()
        if kind is not Kind.UNFIT and column.null_count < len(column)
    }
    if len(kinds) < 2:
        return cells
    first = min(int(order[present(column)].min()) for column in kinds.values())
    of = np.flatnonzero(parents == parents[np.flatnonzero(order == first)[0]])
    start, stop = int(of[0]), int(of[-1]) + 1
    own: dict[Kind, Column] = {
        kind: column.slice(start, stop - start) for kind, column in kinds.items()
    }
    if not place(arrow.schema([]), {field: own}, order[start:stop], naming=ELEMENT_NAMING).misfits:
        return cells
    texts = compute.coalesce(*(fit(Kind.JSON, kind, column)[0] for kind, column in own.items()))
    columns: dict[Kind, Column] = {
        Kind.JSON: arrow.nulls(len(parents), pa.string()),
        **cells[field],
    }
    told: dict[Kind, Column] = {
        kind: arrow.concat_arrays(
            [
                column.slice(0, start),
                texts if kind is Kind.JSON else arrow.nulls(stop - start, column.type),
                column.slice(stop),
            ]
        )
        for kind, column in columns.items()
        if kind is not Kind.UNFIT
    }
    if Kind.UNFIT in columns:
        told[Kind.UNFIT] = columns[Kind.UNFIT]
    return {**cells, field: told}


def _check_size(cells: Cells, counts: NDArray[np.int64], elements: Elements) -> None:
    """Raise BatchTooLargeError for rows that come to more than memory may hold."""
    size = 0
    for name, columns in cells.items():
        for column in columns.values():
            widths = _widths(column)
            size += int((widths if name == elements.field else widths * counts).sum())
    if size > elements.bytes_max:
        raise BatchTooLargeError(
            pipeline=elements.pipeline,
            entries=len(counts),
            size=size,
            size_max=elements.bytes_max,
        )


def _widths(column: Column) -> NDArray[np.int64]:
    """The bytes that each value takes."""
    if arrow.types.is_string(column.type) or arrow.types.is_binary(column.type):
        lengths = compute.fill_null(compute.binary_length(column), 0)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.full(len(column), max(1, column.type.bit_width // 8), np.int64)


def _own(
    outcomes: Outcomes, rejected: list[int | None], of: NDArray[np.intp], places: NDArray[np.int64]
) -> list[Column]:
    """The table's own columns of rows of these documents."""
    indices = arrow.array(of)
    return [
        *(column.take(indices) for column in outcomes.identities),
        arrow.array(outcomes.sequences[of]),
        arrow.array(rejected, pa.int64()).take(indices),
        arrow.array(places, pa.int32()),
    ]


def _changes(
    own: list[Column], placement: Placement, kept: NDArray[np.intp], said: Column, field: str
) -> pa.Table:
    rest, indices = len(said) - len(kept), arrow.array(kept)
    columns = [
        arrow.concat_arrays([column.take(indices), arrow.nulls(rest, column.type)])
        for column in placement.columns
    ]
    schema = arrow.schema(
        [*element_columns(field), *placement.schema, arrow.field(OPERATION, pa.int8())]
    )
    return arrow.Table.from_arrays([*own, *columns, said], schema=schema)
