"""Blocks -> Arrow columns, gathered over the blocks' own bytes; no entry is parsed.

A call costs a fixed ~0.3 ms, so Flight hands over about 1 MiB of blocks at a time. The first call
of a process also loads `pyarrow.compute`, half a second, which no other part of a service needs.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import Kind
from penstock.wire.block import Block
from penstock.wire.layout import (
    CELLS,
    COMMIT,
    FLAG_AS_OF_EVENT,
    FLAG_SNAPSHOT,
    FLAG_TXN,
    INDEX,
    OPERATIONS,
    PLACE,
    Stream,
)

# The published types of pyarrow are partly unknown, and take numpy arrays for booleans.
_arrow: Any = pa

_OFFSET_MAX: Final = (1 << 31) - 1


class _Rows(Struct, frozen=True):
    """The chosen rows of some blocks, one below the other."""

    sequence: NDArray[np.int64]
    commit: NDArray[np.int64]
    ingested_at: NDArray[np.int64]
    summaries: NDArray[np.void]
    places: NDArray[np.void]
    index: NDArray[np.void]
    start: NDArray[np.int64]
    """Where in `data` a row's message starts."""
    stream: NDArray[np.int64]
    """The row's number in `streams`."""
    streams: list[Stream]
    data: bytes


Array = Any
"""A pyarrow Array."""
Column = Callable[[_Rows], Array]
Present = Callable[[_Rows], NDArray[np.bool_]]


def to_arrow(
    blocks: Sequence[Block],
    columns: Sequence[str] | None = None,
    selected: Sequence[NDArray[np.intp]] | None = None,
) -> pa.RecordBatch:
    """The entries in view of `blocks` as one RecordBatch, in order.

    `columns` are names of ARROW_SCHEMA, in the order wanted (None: all). `selected` has for each
    block the positions wanted, ascending (None: all in view). Raises ValueError if the blocks
    together exceed 2 GiB, the most that a string column can address.
    """
    schema: pa.Schema = ARROW_SCHEMA
    if columns is not None:
        schema = _arrow.schema([(name, _COLUMNS[name][0]) for name in columns])
    rows = _gather(blocks, selected)
    arrays = [_COLUMNS[name][1](rows) for name in schema.names]
    batch: pa.RecordBatch = _arrow.RecordBatch.from_arrays(arrays, schema=schema)
    return batch


def _gather(blocks: Sequence[Block], selected: Sequence[NDArray[np.intp]] | None) -> _Rows:
    # Tables are joined as bytes: numpy would compare the layouts of every pair it concatenates.
    places = np.frombuffer(b"".join([block.places_in_view for block in blocks]), PLACE)
    index = np.frombuffer(b"".join([block.index_in_view for block in blocks]), INDEX)
    summaries = np.frombuffer(b"".join([block.summary_table for block in blocks]), COMMIT)
    streams: list[Stream] = []
    # What to add, per block, to a row's number for its sequence, and to what its place says.
    bases: list[tuple[int, ...]] = []
    firsts: list[int] = []
    row = summary = size = 0
    for block in blocks:
        firsts.append(row - block.start)
        sequence = block.first_sequence - firsts[-1]
        start = size + block.payload
        bases.append(
            (sequence, block.first_commit, block.ingested_at, summary, len(streams), start)
        )
        streams += block.streams
        row += len(block)
        summary += len(block.summary_table) // COMMIT.itemsize
        size += block.nbytes
    if size > _OFFSET_MAX:
        raise ValueError(f"{size} bytes of blocks exceed one Arrow batch; pass fewer at once")

    numbers = np.arange(row)
    base = np.repeat(np.array(bases, np.int64).reshape(-1, 6), [len(b) for b in blocks], axis=0)
    if selected is not None:
        numbers = np.concatenate([one + first for one, first in zip(selected, firsts, strict=True)])
        places, index, base = places[numbers], index[numbers], base[numbers]
    commits = places["commit"].astype(np.int64)
    return _Rows(
        sequence=numbers + base[:, 0],
        commit=commits + base[:, 1],
        ingested_at=base[:, 2],
        summaries=summaries[commits + base[:, 3]],
        places=places,
        index=index,
        start=places["start"] + base[:, 5],
        stream=places["stream"] + base[:, 4],
        streams=streams,
        data=blocks[0].data if len(blocks) == 1 else b"".join([block.data for block in blocks]),
    )


def _cell(name: str, *, present: Present | None = None) -> Column:
    """A cell's column: a string array over the blocks' bytes, then `take`.

    Its offsets alternate between the bytes before a cell and the cell, so that row k's cell is
    element 2k + 1. An empty cell is null, but where `present` says otherwise.
    """
    number = CELLS.index(name)

    def column(rows: _Rows) -> Array:
        count = len(rows.index)
        cells = rows.index["cells"][:, number]
        lengths = cells[:, 1]
        absent = lengths == 0 if present is None else ~present(rows)
        if absent.all():
            return _arrow.nulls(count, pa.string())
        offsets = np.zeros(2 * count + 1, np.int32)
        offsets[1::2] = rows.start + cells[:, 0]
        offsets[2::2] = offsets[1::2] + lengths
        whole = _arrow.StringArray.from_buffers(
            2 * count, _arrow.py_buffer(offsets.data), _arrow.py_buffer(rows.data)
        )
        return whole.take(_arrow.array(np.arange(1, 2 * count, 2), mask=absent))

    return column


def _always(rows: _Rows) -> NDArray[np.bool_]:
    return np.ones(len(rows.index), np.bool_)


def _of_data(rows: _Rows) -> NDArray[np.bool_]:
    of_data: NDArray[np.bool_] = rows.index["kind"] == Kind.DATA.value
    return of_data


def _stream_word(number: int) -> Column:
    def column(rows: _Rows) -> Array:
        words = _arrow.array([stream[number] for stream in rows.streams], pa.string())
        return words.take(_arrow.array(rows.stream))

    return column


def _operation(rows: _Rows) -> Array:
    words = _arrow.array(OPERATIONS, pa.string()).take(_arrow.array(rows.index["operation"]))
    control = np.flatnonzero(rows.index["kind"])
    if not len(control):
        return words
    spelled = words.to_pylist()
    # The word stands before the first cell; what comes after that need not be parsed.
    starts = rows.start[control]
    for row, start, end in zip(
        control.tolist(),
        starts.tolist(),
        (starts + rows.index["head"][control]).tolist(),
        strict=True,
    ):
        spelled[row] = pb.Event.FromString(rows.data[start:end]).operation_type
    return _arrow.array(spelled, pa.string())


def _unchanged(rows: _Rows) -> Array:
    sizes = rows.index["unchanged"]
    listed = np.flatnonzero(sizes)
    last = rows.index["cells"][listed, -1]
    starts = rows.start[listed] + last[:, 0] + last[:, 1]
    found = [
        _names(rows.data[start:end])
        for start, end in zip(starts.tolist(), (starts + sizes[listed]).tolist(), strict=True)
    ]
    counts = np.zeros(len(sizes) + 1, np.int32)
    counts[listed + 1] = [len(names) for names in found]
    offsets = _arrow.array(np.cumsum(counts, dtype=np.int32))
    return _arrow.ListArray.from_arrays(offsets, _arrow.array(list(chain(*found)), pa.string()))


@lru_cache(maxsize=1024)
def _names(fields: bytes) -> tuple[str, ...]:
    return tuple(pb.Event.FromString(fields).unchanged)


def _txn_number(rows: _Rows) -> Array:
    return _arrow.array(rows.index["txn_number"], mask=(rows.index["flags"] & FLAG_TXN) == 0)


def _flag(flag: int) -> Column:
    return lambda rows: _arrow.array((rows.index["flags"] & flag) != 0)


def _number(name: str, kind: type[np.generic]) -> Column:
    return lambda rows: _arrow.array(np.ascontiguousarray(rows.index[name]).astype(kind))


_COLUMNS: Final[dict[str, tuple[pa.DataType, Callable[[_Rows], Array]]]] = {
    "sequence": (pa.int64(), lambda rows: _arrow.array(rows.sequence)),
    "commit": (pa.int64(), lambda rows: _arrow.array(rows.commit)),
    "ordinal": (pa.int32(), lambda rows: _arrow.array(rows.places["ordinal"].astype(np.int32))),
    "commit_rows": (pa.int64(), lambda rows: _arrow.array(rows.summaries["rows"].astype(np.int64))),
    "commit_digest": (pa.uint64(), lambda rows: _arrow.array(rows.summaries["digest"].copy())),
    "check": (pa.uint64(), _number("check", np.uint64)),
    "ends_commit": (pa.bool_(), lambda rows: _arrow.array(rows.places["ends"] != 0)),
    "kind": (pa.int8(), _number("kind", np.int8)),
    "operation_type": (pa.string(), _operation),
    **{name: (pa.string(), _stream_word(number)) for number, name in enumerate(Stream._fields)},
    "event_id": (pa.string(), _cell("event_id", present=_always)),
    "document_id": (pa.string(), _cell("document_id", present=_of_data)),
    "key": (pa.string(), _cell("key")),
    "key_hash": (pa.uint64(), _number("key_hash", np.uint64)),
    "full_document": (pa.string(), _cell("full_document")),
    "full_document_before_change": (
        pa.string(),
        _cell("full_document_before_change"),
    ),
    "update_description": (pa.string(), _cell("update_description")),
    "position": (pa.string(), _cell("position", present=_always)),
    "transaction": (pa.string(), _cell("transaction")),
    "timestamp": (pa.int64(), _number("timestamp", np.int64)),
    "cluster_time_t": (pa.int64(), _number("t", np.int64)),
    "cluster_time_i": (pa.int64(), _number("i", np.int64)),
    "txn_number": (pa.int64(), _txn_number),
    "schema_version": (pa.int64(), _number("schema_version", np.int64)),
    "snapshot": (pa.bool_(), _flag(FLAG_SNAPSHOT)),
    "full_document_as_of_event": (pa.bool_(), _flag(FLAG_AS_OF_EVENT)),
    "unchanged": (pa.list_(pa.string()), _unchanged),
    "ingested_at": (pa.int64(), lambda rows: _arrow.array(rows.ingested_at)),
    "disambiguated_paths": (pa.string(), _cell("disambiguated_paths")),
    "origin": (pa.string(), _cell("origin")),
}

ARROW_SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
"""The columns of an entry, for Flight and Spark. Documents are JSON text; times are Unix ms."""
