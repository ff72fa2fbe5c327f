"""Current rows for a consumer that rebuilds for itself: the same batches for every protocol.

Rows come in no order of time, each once, as of one place of the log. The last batch has no rows but
the marker of that place: following from it gives exactly the later changes. A stream that ends
without it is not whole, and what came of it must be thrown away.
"""

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

from penstock.errors import RequestError
from penstock.subscribe import Criteria
from penstock.subscribe.current import CurrentRow, CurrentState, row_messages
from penstock.wire import batch_message


class RowBatch(Struct, frozen=True):
    """Some rows; or, at the end, none and the marker to follow from."""

    rows: list[CurrentRow]
    progress: str = ""

    def message(self) -> bytes:
        """As `penstock.v1.EventBatch`."""
        return batch_message(row_messages(self.rows), self.progress)


def kept(current: CurrentState | None) -> CurrentState:
    """Whoever keeps the rows. Raises RequestError where nobody does."""
    if current is None:
        raise RequestError(
            "this service keeps no current rows. Nothing was sent. Set enabled = true under "
            "[state], restart, and run `penstock snapshot SOURCE` for each source."
        )
    return current


async def row_batches(
    current: CurrentState | None, criteria: Criteria, *, bytes_max: int
) -> AsyncGenerator[RowBatch]:
    """The rows that `criteria` wants, in batches of about `bytes_max`, then the marker.

    Reads only when the next batch is asked for, and lets go when it is closed. Raises
    StateIncompleteError before the first batch if rows may be missing, RequestError if nobody
    keeps rows.
    """
    reading = await asyncio.to_thread(kept(current).open, criteria)
    try:
        while rows := await asyncio.to_thread(reading.read, bytes_max=bytes_max):
            yield RowBatch(rows)
        yield RowBatch([], str(reading.progress))
    finally:
        # Not on the loop: it waits for the write under way.
        await asyncio.to_thread(reading.close)
