"""Current rows for a consumer that rebuilds for itself: the same batches for every protocol.

Rows come in no order of time, each once, as of one place of the log. The last batch has no rows but
the marker of that place: following from it gives exactly the later changes. A stream that ends
without it is not whole, and what came of it must be thrown away.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from penstock.errors import RequestError
from penstock.subscribe import Criteria
from penstock.subscribe.current import (
    CurrentRow,
    CurrentState,
    Reading,
    row_messages,
    rows_shown,
)
from penstock.wire import batch_message

_T = TypeVar("_T")


class RowBatch(Struct, frozen=True):
    """Some rows; or, at the end, none and the marker to follow from."""

    rows: Sequence[CurrentRow]
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
    reading = await _opened(kept(current), criteria)
    try:
        while rows := await asyncio.to_thread(reading.read, bytes_max=bytes_max):
            shown = rows_shown(rows, criteria)
            if shown:
                yield RowBatch(shown)
        yield RowBatch([], str(reading.progress))
    finally:
        # Not on the loop: it waits for the write under way. And shielded, for whoever is cancelled
        # may be cancelled once more here, and then nobody would ever close it.
        await asyncio.shield(_in_thread(reading.close))


async def _opened(current: CurrentState, criteria: Criteria) -> Reading:
    """A reading; when cancelled meanwhile, it is closed as soon as it is open."""
    opening = _in_thread(lambda: current.open(criteria))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[Reading]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _in_thread(opening.result().close)


def _in_thread(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """`work`, begun: no task, so nothing that ends all tasks takes its result away."""
    return asyncio.get_running_loop().run_in_executor(None, work)
