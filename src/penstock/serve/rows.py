"""Current rows as Arrow batches, for Flight."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Generator, Sequence
from typing import Final

import pyarrow as pa

from penstock.client.flight import RowsRequest
from penstock.subscribe.criteria import Criteria
from penstock.subscribe.current import CurrentRow, CurrentState, Reading, rows_shown
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.wire import (
    ARROW_SCHEMA,
    Block,
    build_block,
    encode,
    places_of,
    summaries_of,
    to_arrow,
)

_OF_ENTRIES: Final = frozenset(
    {"sequence", "commit", "ordinal", "commit_rows", "commit_digest", "check", "ends_commit"}
    | {"ingested_at"}
)


def rows_to_arrow(rows: Sequence[CurrentRow], columns: Sequence[str]) -> pa.RecordBatch:
    """At least one row as columns of ARROW_SCHEMA. What only an entry of the log has is null."""
    # A block of its own, so that the columns are made as those of the log are.
    events, counts = encode(rows), [len(rows)]
    places, summaries = places_of(counts), summaries_of(events, counts)
    data = build_block(events, places, summaries, first_commit=1, ingested_at=0, before=0)
    block = Block(data, log_id=0, first_sequence=1)
    batch = to_arrow((block,), [name for name in columns if name not in _OF_ENTRIES])
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in _OF_ENTRIES:
        arrays[name] = pa.nulls(len(rows), ARROW_SCHEMA.field(name).type)
    arrays["sequence"] = pa.array([row.sequence for row in rows], pa.int64())
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


def current_batches(
    current: CurrentState, request: RowsRequest, scope: Scope = EVERYTHING
) -> Generator[tuple[pa.RecordBatch, str]]:
    """The current rows in batches; then an empty one with the marker to follow from.

    Opens the reading at once, and raises as `CurrentState.open` does; the first batch must be asked
    for, or the reading stays open.
    """
    criteria = Criteria(
        collections=frozenset(request.collections),
        sources=frozenset([request.source] if request.source else []),
        scope=scope,
    )
    columns = request.columns or tuple(ARROW_SCHEMA.names)
    return _batches(current.open(criteria), request.batch_bytes, columns, criteria)


def _batches(
    reading: Reading, bytes_max: int, columns: Sequence[str], criteria: Criteria
) -> Generator[tuple[pa.RecordBatch, str]]:
    try:
        while rows := reading.read(bytes_max=bytes_max):
            shown = rows_shown(rows, criteria)
            if shown:
                yield rows_to_arrow(shown, columns), ""
        schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
        yield pa.RecordBatch.from_pylist([], schema=schema), str(reading.progress)
    finally:
        reading.close()
