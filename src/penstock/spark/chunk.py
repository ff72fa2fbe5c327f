"""A batch on its way from the workers to the driver: reduced, decoded, and still exact. Pure.

Workers turn entries into chunks: the entries that still matter, their documents as columns per
field and kind. The driver joins chunks and reduces again; nothing is lost or decided on the way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from penstock.event import Kind as Event
from penstock.spark.decode import Cells, decode_documents, parse_documents
from penstock.spark.kinds import Kind
from penstock.spark.reduce import (
    CONTROL,
    PUT,
    RELATIVE,
    codes_of,
    roles_of,
    sum_commits,
    surviving,
)

INPUT_COLUMNS: Final = (
    "sequence",
    "commit",
    "commit_rows",
    "commit_digest",
    "check",
    "kind",
    "operation_type",
    "source",
    "database",
    "collection",
    "key",
    "full_document",
    "update_description",
    "unchanged",
)
"""What a table needs of an entry; readers need not fetch more."""

ROW_SCHEMA: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("role", pa.int8()),
        ("kind", pa.int8()),
        ("operation_type", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("collection", pa.string()),
        ("key", pa.string()),
        ("full_document", pa.string()),
        ("update_description", pa.string()),
        ("unchanged", pa.list_(pa.string())),
    ]
)
"""Rows of a chunk. The texts are there for RELATIVE and CONTROL only: a PUT's are its cells."""

CHUNK_SCHEMA: Final = pa.schema(
    [
        ("rows", pa.binary()),
        ("cells", pa.binary()),
        ("commits", pa.binary()),
        ("first", pa.int64()),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
PIECE_BYTES: Final = 32 << 20
"""Workers decode about so many bytes of entries at once."""


class Chunk(Struct, frozen=True, kw_only=True):
    """Entries that still matter, ascending by sequence."""

    rows: pa.Table
    """ROW_SCHEMA."""
    cells: Cells
    """One value per row; null for rows that are no PUT."""

    @property
    def sequences(self) -> NDArray[np.int64]:
        sequences: NDArray[np.int64] = self.rows["sequence"].to_numpy()
        return sequences

    @property
    def roles(self) -> NDArray[np.int8]:
        roles: NDArray[np.int8] = self.rows["role"].to_numpy()
        return roles

    @property
    def last_sequence(self) -> int:
        """0 for a chunk without rows."""
        sequences = self.sequences
        return int(sequences[-1]) if len(sequences) else 0

    def take(self, places: NDArray[np.intp]) -> "Chunk":
        """Some of the rows. Fields of which none has a value are left out."""
        if len(places) == self.rows.num_rows and bool((places == np.arange(len(places))).all()):
            return self
        indices = pa.array(places)
        cells: Cells = {}
        for field, columns in self.cells.items():
            taken = {kind: column.take(indices) for kind, column in columns.items()}
            left = {kind: one for kind, one in taken.items() if one.null_count < len(one)}
            if left:
                cells[field] = left
        return Chunk(rows=self.rows.take(indices), cells=cells)


class Control(Struct, frozen=True, kw_only=True):
    """A schema, gap or system event, as far as tables care. Empty text for what it names not."""

    sequence: int
    kind: Event
    operation: str
    source: str
    database: str
    collection: str
    description: dict[str, Any]


class Collected(Struct, frozen=True, kw_only=True):
    """A whole batch, reduced."""

    chunk: Chunk
    after: int
    """The sequence before its first entry."""
    entries: int
    """How many there were before they were reduced."""

    @property
    def controls(self) -> list[Control]:
        """Its control events, in order."""
        rows = self.chunk.rows.filter(pa.array(self.chunk.roles == CONTROL))
        return [_control(row) for row in rows.to_pylist()]


def _control(row: Mapping[str, Any]) -> Control:
    said = row["full_document"]
    return Control(
        sequence=row["sequence"],
        kind=Event(row["kind"]),
        operation=row["operation_type"],
        source=row["source"] or "",
        database=row["database"] or "",
        collection=row["collection"] or "",
        description=msgspec.json.decode(said) if said else {},
    )


def reduce_entries(entries: pa.Table, *, cuts: Sequence[int] = ()) -> Chunk:
    """The entries (INPUT_COLUMNS, any order) that still matter, with their documents decoded."""
    roles = roles_of(entries)
    sequences = entries["sequence"].to_numpy()
    kept = surviving(codes_of(entries), sequences, roles, cuts=cuts)
    entries, roles = entries.take(pa.array(kept)), roles[kept]
    puts = roles == PUT
    texts = pa.array((roles == RELATIVE) | (roles == CONTROL))
    columns: dict[str, Any] = {"role": pa.array(roles)}
    for field in ROW_SCHEMA:
        if field.name == "role":
            continue
        column = entries[field.name].combine_chunks()
        if field.name in {"full_document", "update_description", "unchanged"}:
            column = pc.if_else(texts, column, pa.scalar(None, column.type))
        columns[field.name] = column.cast(field.type)
    parsed = iter(parse_documents(entries["full_document"].combine_chunks().filter(pa.array(puts))))
    documents = [next(parsed) if put else {} for put in puts.tolist()]
    return Chunk(
        rows=pa.table([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA),
        cells=decode_documents(documents),
    )


def join(chunks: Sequence[Chunk], *, cuts: Sequence[int] = ()) -> Chunk:
    """Many chunks as one, reduced again."""
    if not chunks:
        return Chunk(rows=ROW_SCHEMA.empty_table(), cells={})
    if len(chunks) == 1:
        return chunks[0]
    rows = pa.concat_tables([chunk.rows for chunk in chunks])
    whole = Chunk(
        rows=rows, cells=concat_cells(*((chunk.cells, chunk.rows.num_rows) for chunk in chunks))
    )
    return whole.take(surviving(codes_of(rows), whole.sequences, whole.roles, cuts=cuts))


def concat_cells(*parts: tuple[Cells, int]) -> Cells:
    """The cells of many parts, each with its number of rows, as one."""
    tables = [_flat(cells, count) for cells, count in parts]
    return _nested(pa.concat_tables(tables, promote_options="default"))


# --- for the wire -------------------------------------------------------------------------------


def to_chunks(
    batches: Iterable[pa.RecordBatch], *, cuts: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """CHUNK_SCHEMA batches of one row each from a partition's entries; bounded in memory."""
    piece: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        piece.append(batch)
        held += batch.nbytes
        if held >= PIECE_BYTES:
            yield _to_chunk(piece, held, cuts)
            piece, held = [], 0
    if piece:
        yield _to_chunk(piece, held, cuts)


def _to_chunk(piece: list[pa.RecordBatch], held: int, cuts: Sequence[int]) -> pa.RecordBatch:
    entries = pa.Table.from_batches(piece)
    chunk = reduce_entries(entries, cuts=cuts)
    columns = [
        [_ipc(chunk.rows)],
        [_ipc(_flat(chunk.cells, chunk.rows.num_rows))],
        [_ipc(sum_commits(entries))],
        [pc.min(entries["sequence"]).as_py()],
        [entries.num_rows],
        [held],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(value, field.type) for value, field in zip(columns, CHUNK_SCHEMA, strict=True)],
        schema=CHUNK_SCHEMA,
    )


def from_chunk(row: dict[str, Any]) -> tuple[Chunk, pa.Table]:
    """A chunk and the sums of its commits (see `verify_commits`) from a row of CHUNK_SCHEMA."""
    chunk = Chunk(rows=_open(row["rows"]), cells=_nested(_open(row["cells"])))
    return chunk, _open(row["commits"])


def _flat(cells: Cells, count: int) -> pa.Table:
    names = [f"{kind}:{field}" for field, columns in cells.items() for kind in columns]
    arrays = [column for columns in cells.values() for column in columns.values()]
    # The row number keeps the height of a table without fields.
    return pa.table([pa.array(np.arange(count)), *arrays], names=["", *names])


def _nested(flat: pa.Table) -> Cells:
    cells: Cells = {}
    for name in flat.column_names[1:]:
        kind, _, field = name.partition(":")
        column = flat[name].combine_chunks()
        if column.null_count < len(column):
            cells.setdefault(field, {})[Kind(kind)] = column
    return cells


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _open(data: Any) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
