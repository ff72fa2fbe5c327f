"""Which rows of a batch a reader asked for: `subscribe.criteria`, decided over columns. Pure."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.event import Kind
from penstock.subscribe.criteria import Criteria
from penstock.wire import Stream

NEEDED: Final = (*Stream._fields, "kind", "operation_type", "full_document")
"""The columns that say it."""


class Chosen(NamedTuple):
    """The rows that go out, ascending, before the gap that ends the read, if there is one."""

    rows: NDArray[np.intp]
    gap: int | None


def is_everything(criteria: Criteria) -> bool:
    """Whether all rows go out, whatever they are."""
    return not criteria.sources and not criteria.collections and criteria.control_events


def choose(criteria: Criteria, batch: pa.RecordBatch) -> Chosen:
    """As `subscribe.criteria.select`, of a batch with the columns NEEDED."""
    numbers, streams = _streams(batch)
    wanted = np.array([criteria.wants(stream) for stream in streams], np.bool_)
    chosen = wanted[numbers]
    kinds = batch.column("kind").to_numpy()
    for row in np.flatnonzero(kinds != Kind.DATA).tolist():
        stream = streams[numbers[row]]
        concerns = criteria.concerns(stream)
        if concerns and kinds[row] == Kind.GAP and not criteria.goes_past(stream):
            chosen[row:] = False
            return Chosen(np.flatnonzero(chosen), row)
        chosen[row] = (concerns and criteria.tells(stream)) or _renames_into(
            criteria, stream, batch, row
        )
    return Chosen(np.flatnonzero(chosen), None)


def _renames_into(criteria: Criteria, stream: Stream, batch: pa.RecordBatch, row: int) -> bool:
    """A rename is filed under the old name, and fills the new one without a single insert."""
    if batch.column("kind")[row].as_py() != Kind.SCHEMA or not criteria.control_events:
        return False
    if not criteria.concerns(stream._replace(collection="")):
        return False
    return bool(batch.column("operation_type")[row].as_py() == "rename")


def _streams(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], list[Stream]]:
    """Of each row the number of its stream, and the streams."""
    number: NDArray[np.int64] = np.zeros(batch.num_rows, np.int64)
    words: list[list[str]] = []
    for name in Stream._fields:
        column: Any = batch.column(name).dictionary_encode()
        words.append(column.dictionary.to_pylist())
        number = number * len(words[-1]) + column.indices.to_numpy()
    distinct, numbers = np.unique(number, return_inverse=True)
    streams: list[Stream] = []
    for one in distinct.tolist():
        parts: list[str] = []
        for dictionary in reversed(words):
            one, at = divmod(one, len(dictionary))  # noqa: PLW2901
            parts.append(dictionary[at])
        streams.append(Stream(*reversed(parts)))
    return numbers, streams
