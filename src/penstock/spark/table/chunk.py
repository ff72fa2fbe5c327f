"""A batch on its way from the workers to the driver: reduced, decoded, and still exact. Pure.

Workers turn entries into chunks: the entries that still matter, their documents as columns per
field and kind. The driver joins chunks and reduces again; nothing is lost or decided on the way.
To current rows a key's last entries matter; to their history (`every`) all of them do.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import gc
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from penstock.event import Kind as Event
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.decode import Cells, decode_documents, parse_documents
from penstock.spark.table.kinds import Kind
from penstock.spark.table.reduce import (
    CONTROL,
    PUT,
    RELATIVE,
    codes_of,
    each_once,
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
    "disambiguated_paths",
    "unchanged",
    "timestamp",
    "snapshot",
    "full_document_as_of_event",
)
"""What a table needs of an entry; readers need not fetch more."""

ROW_SCHEMA: Final = arrow.schema(
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
        ("disambiguated_paths", pa.string()),
        ("unchanged", pa.list_(pa.string())),
        ("timestamp", pa.int64()),
        ("snapshot", pa.bool_()),
        ("full_document_as_of_event", pa.bool_()),
    ]
)
"""Rows of a chunk. The texts are there for RELATIVE and CONTROL only: a PUT's are its cells."""

_TOLD_COLUMNS: Final = frozenset(
    {"full_document", "update_description", "disambiguated_paths", "unchanged"}
)

CHUNK_SCHEMA: Final = arrow.schema(
    [
        ("rows", pa.binary()),
        ("cells", pa.binary()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("commits", pa.binary()),
        ("first", pa.int64()),
        ("entries", pa.int64()),
    ]
)
"""A chunk: its rows and cells inline or in a file, and what is left of its commits to verify."""

PIECE_BYTES: Final = 32 << 20
"""Workers decode about so many bytes of entries at once."""


class Chunk(Struct, frozen=True, kw_only=True):
    """Entries that still matter, ascending by sequence."""

    rows: pa.Table
    """ROW_SCHEMA."""
    cells: Cells
    """One value per row; null for rows that are no PUT."""
    declared: Mapping[str, Kind] = {}
    """By field: the kind that its column has from the first (`penstock.spark.table.declared`)."""

    @property
    def sequences(self) -> NDArray[np.int64]:
        sequences: NDArray[np.int64] = self.rows["sequence"].to_numpy()
        return sequences

    @property
    def roles(self) -> NDArray[np.int8]:
        roles: NDArray[np.int8] = self.rows["role"].to_numpy()
        return roles

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        cells = sum(one.nbytes for columns in self.cells.values() for one in columns.values())
        return cells + int(self.rows.nbytes)

    @property
    def last_sequence(self) -> int:
        """0 for a chunk without rows."""
        sequences = self.sequences
        return int(sequences[-1]) if len(sequences) else 0

    def take(self, places: NDArray[np.intp]) -> "Chunk":
        """Some of the rows. Fields of which none has a value are left out."""
        if len(places) == self.rows.num_rows and bool((places == np.arange(len(places))).all()):
            return self
        indices = arrow.array(places)
        cells: Cells = {}
        for field, columns in self.cells.items():
            taken = {kind: column.take(indices) for kind, column in columns.items()}
            left = {kind: one for kind, one in taken.items() if one.null_count < len(one)}
            if left:
                cells[field] = left
        return Chunk(rows=self.rows.take(indices), cells=cells, declared=self.declared)


class Control(Struct, frozen=True, kw_only=True):
    """A schema, gap or system event, as far as tables care. Empty text for what it names not."""

    sequence: int
    kind: Event
    operation: str
    source: str
    database: str
    collection: str
    timestamp: int
    """Unix milliseconds; 0 where the event does not say."""
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
        rows = self.chunk.rows.filter(arrow.array(self.chunk.roles == CONTROL))
        return [control_of(row) for row in rows.to_pylist()]


def removed_by(controls: Iterable[Control]) -> list[tuple[int, int]]:
    """The ranges, each (after, until], that retention removed before they were read, of which
    there are gaps of no source."""
    return [
        (control.description["from"], control.description["to"])
        for control in controls
        if control.kind is Event.GAP and not control.source
    ]


def control_of(row: Mapping[str, Any]) -> Control:
    """The event of an entry that is no change of a row."""
    said = row["full_document"]
    return Control(
        sequence=row["sequence"],
        kind=Event(row["kind"]),
        operation=row["operation_type"],
        source=row["source"] or "",
        database=row["database"] or "",
        collection=row["collection"] or "",
        timestamp=row["timestamp"] or 0,
        description=msgspec.json.decode(said) if said else {},
    )


Decode = Callable[[Sequence[str | None], Sequence[str | None]], Cells]
"""From documents (None where a row is no PUT) and keys, both as Extended JSON, to cells. Runs in
workers, so it must be a function of a module."""


def decode_rows(documents: Sequence[str | None], keys: Sequence[str | None]) -> Cells:  # noqa: ARG001
    """A column per field and kind of the documents."""
    parsed = iter(parse_documents([text for text in documents if text is not None]))
    return decode_documents([{} if text is None else next(parsed) for text in documents])


def reduce_entries(
    entries: pa.Table,
    *,
    cuts: Sequence[int] = (),
    every: bool = False,
    decode: Decode = decode_rows,
) -> Chunk:
    """The entries (INPUT_COLUMNS, any order) that still matter, with their documents decoded."""
    roles = roles_of(entries)
    sequences = entries["sequence"].to_numpy()
    kept = (
        each_once(sequences) if every else surviving(codes_of(entries), sequences, roles, cuts=cuts)
    )
    roles = roles[kept]
    told = (roles == RELATIVE) | (roles == CONTROL)
    indices, told_only = arrow.array(kept), arrow.array(kept, mask=~told)
    columns: dict[str, Any] = {"role": arrow.array(roles)}
    for field in ROW_SCHEMA:
        if field.name in _TOLD_COLUMNS and not told.any():
            columns[field.name] = arrow.nulls(len(kept), field.type)
        elif field.name != "role":
            wanted = told_only if field.name in _TOLD_COLUMNS else indices
            columns[field.name] = entries[field.name].combine_chunks().take(wanted).cast(field.type)
    puts = arrow.array(kept, mask=roles != PUT)
    texts = entries["full_document"].combine_chunks().take(puts)
    return Chunk(
        rows=arrow.table([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA),
        cells=decode(texts.to_pylist(), columns["key"].to_pylist()),
    )


def join(chunks: Sequence[Chunk], *, cuts: Sequence[int] = (), every: bool = False) -> Chunk:
    """Many chunks as one, reduced again."""
    if not chunks:
        return Chunk(rows=ROW_SCHEMA.empty_table(), cells={})
    if len(chunks) == 1:
        return chunks[0]
    rows = arrow.concat_tables([chunk.rows for chunk in chunks])
    sequences, roles = rows["sequence"].to_numpy(), rows["role"].to_numpy()
    kept = each_once(sequences) if every else surviving(codes_of(rows), sequences, roles, cuts=cuts)
    edges = np.cumsum([0, *(chunk.rows.num_rows for chunk in chunks)])
    lasting = np.sort(kept)
    # Each chunk lets go of its own rows first: copying all only to choose would be the larger part.
    left = [
        chunk.take(lasting[(lasting >= start) & (lasting < stop)] - start)
        for chunk, (start, stop) in zip(chunks, itertools.pairwise(edges), strict=True)
    ]
    whole = Chunk(
        rows=arrow.concat_tables([chunk.rows for chunk in left]).combine_chunks(),
        cells=concat_cells(*((chunk.cells, chunk.rows.num_rows) for chunk in left)),
        declared={field: kind for chunk in left for field, kind in chunk.declared.items()},
    )
    return whole.take(np.searchsorted(lasting, kept))


def concat_cells(*parts: tuple[Cells, int]) -> Cells:
    """The cells of many parts, each with its number of rows, as one."""
    tables = [_flat(cells, count) for cells, count in parts]
    return _nested(arrow.concat_tables(tables, promote_options="default"))


# --- for the way --------------------------------------------------------------------------------


def to_chunks(
    batches: Iterable[pa.RecordBatch],
    *,
    cuts: Sequence[int],
    scratch: str | None,
    every: bool = False,
    decode: Decode = decode_rows,
) -> Iterator[pa.RecordBatch]:
    """CHUNK_SCHEMA batches of one row each from a partition's entries; bounded in memory.

    With `scratch`, a folder that the driver sees too, the bulk goes there as files that it maps;
    that spares three copies through Spark. Without, it goes inline.
    """
    make = partial(_to_chunk, cuts=cuts, scratch=scratch, every=every, decode=decode)
    piece: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        piece.append(batch)
        held += batch.nbytes
        if held >= PIECE_BYTES:
            yield make(piece)
            piece, held = [], 0
    if held:
        yield make(piece)


def _to_chunk(
    piece: list[pa.RecordBatch],
    *,
    cuts: Sequence[int],
    scratch: str | None,
    every: bool,
    decode: Decode,
) -> pa.RecordBatch:
    entries = arrow.Table.from_batches(piece)
    with _no_collector():
        chunk = reduce_entries(entries, cuts=cuts, every=every, decode=decode)
    rows, cells = chunk.rows, _flat(chunk.cells, chunk.rows.num_rows)
    file = None
    if scratch is not None:
        file = f"{scratch}/{uuid4().hex}"
        with Path(file).open("wb") as bulk:
            _write(bulk, rows)
            _write(bulk, cells)
    values = {
        "rows": None if file else _ipc(rows),
        "cells": None if file else _ipc(cells),
        "file": file,
        "size": rows.nbytes + cells.nbytes,
        "commits": _ipc(sum_commits(entries)),
        "first": compute.min(entries["sequence"]).as_py(),
        "entries": entries.num_rows,
    }
    return arrow.RecordBatch.from_pylist([values], schema=CHUNK_SCHEMA)


@contextmanager
def _no_collector() -> Generator[None]:
    """Do not look for cyclic garbage: a piece's documents are so many objects, and no cycles, that
    the collector would take a third of the time to walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def from_chunks(table: pa.Table) -> list[tuple[Chunk, pa.Table]]:
    """Chunks, and the sums of their commits (see `verify_commits`), from CHUNK_SCHEMA rows."""
    return [_from_chunk(batch, at) for batch in table.to_batches() for at in range(batch.num_rows)]


def _from_chunk(batch: pa.RecordBatch, at: int) -> tuple[Chunk, pa.Table]:
    file = batch["file"][at].as_py()
    if file is None:
        rows = _open(batch["rows"][at].as_buffer())
        cells = _open(batch["cells"][at].as_buffer())
    else:
        with arrow.memory_map(file) as bulk:
            rows, cells = _open(bulk), _open(bulk)
    chunk = Chunk(rows=rows, cells=_nested(cells))
    return chunk, _open(batch["commits"][at].as_buffer())


def _flat(cells: Cells, count: int) -> pa.Table:
    names = [f"{kind}:{field}" for field, columns in cells.items() for kind in columns]
    arrays = [column for columns in cells.values() for column in columns.values()]
    # The row number keeps the height of a table without fields.
    return arrow.table([arrow.array(np.arange(count)), *arrays], names=["", *names])


def _nested(flat: pa.Table) -> Cells:
    cells: Cells = {}
    for name in flat.column_names[1:]:
        kind, _, field = name.partition(":")
        column = flat[name].combine_chunks()
        if column.null_count < len(column):
            cells.setdefault(field, {})[Kind(kind)] = column
    return cells


def _write(sink: Any, table: pa.Table) -> None:
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _ipc(table: pa.Table) -> bytes:
    sink = arrow.BufferOutputStream()
    _write(sink, table)
    return bytes(sink.getvalue().to_pybytes())


def _open(data: Any) -> pa.Table:
    with arrow.ipc.open_stream(data) as reader:
        return reader.read_all()
