"""Rows of a table in slices that memory holds, each whole in itself. Pure."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column, arrow
from penstock.spark.table.plan import KEY

SLICE_BYTES_MAX: Final = 1 << 30
"""However much memory there is: Arrow holds less than 2 GiB of text in a column, and a column of a
slice is joined with another, or has its texts quoted."""

Slice = tuple[pa.Table, bool]
"""Some rows, and whether they are the last."""


def slice_bytes(bytes_max: int) -> int:
    """How large a slice may be where memory holds `bytes_max`."""
    return min(bytes_max, SLICE_BYTES_MAX)


def in_slices(
    batches: Iterable[pa.RecordBatch], *, nothing: pa.Table, bytes_max: int
) -> Iterator[Slice]:
    """All rows, of about `bytes_max` at a time, or one row; `nothing` where there are none."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch, bytes_max):
            if held and size + piece.nbytes > bytes_max:
                yield _joined(held, nothing), False
                held, size = [], 0
            held.append(piece)
            size += piece.nbytes
    yield _joined(held, nothing), True


def whole_keys(
    scan: Callable[[], Iterable[pa.RecordBatch]], *, nothing: pa.Table, bytes_max: int
) -> Iterator[Slice]:
    """As `in_slices`, with all rows of a key in one slice, wherever among the others they are.

    Whatever is more than one slice is read once to see how much it is, and once for each.
    """
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in scan():
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size <= bytes_max:
            held.append(batch)
        else:
            held.clear()
    if size <= bytes_max:
        yield _joined(held, nothing), True
        return
    count = min(rows, -(-size // bytes_max))
    for part in range(count):
        of_part = (batch.filter(arrow.array(_parts(batch, count) == part)) for batch in scan())
        yield _joined(of_part, nothing), part == count - 1


def castable(rows: pa.RecordBatch, *, bytes_max: int = SLICE_BYTES_MAX) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of which no column of views has more text than `bytes_max`, or of one row.

    Of more, Arrow's cast from views makes an array whose offsets have run over, without a word.
    """
    if rows.num_rows < 2 or max(map(_text_bytes, rows.columns), default=0) <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from castable(rows.slice(0, half), bytes_max=bytes_max)
    yield from castable(rows.slice(half), bytes_max=bytes_max)


def _text_bytes(column: Column) -> int:
    """What the texts of a column of views come to; 0 for any other."""
    if not (arrow.types.is_string_view(column.type) or arrow.types.is_binary_view(column.type)):
        return 0
    # A view is four numbers, and the first one is its length.
    buffer: Any = column.buffers()[1]
    views = np.frombuffer(buffer, np.int32).reshape(-1, 4)
    return int(views[column.offset : column.offset + len(column), 0].sum(dtype=np.int64))


def _joined(batches: Iterable[pa.RecordBatch], nothing: pa.Table) -> pa.Table:
    held = list(batches)
    return arrow.Table.from_batches(held) if held else nothing


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `bytes_max`, for some rows are large."""
    step = max(1, batch.num_rows * bytes_max // max(1, batch.nbytes))
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _parts(batch: pa.RecordBatch, count: int) -> NDArray[np.int64]:
    """By row, to which of `count` parts its key belongs."""
    keys = batch[KEY].dictionary_encode()
    names: list[Any] = keys.dictionary.to_pylist()
    numbers = np.array([crc32(name.encode()) % count for name in names], np.int64)
    parts: NDArray[np.int64] = numbers[keys.indices.to_numpy()]
    return parts
