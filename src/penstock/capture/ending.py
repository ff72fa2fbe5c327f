"""Ending a task that may not hear it the first time."""

import asyncio
from typing import Any, Final

_AGAIN_SECONDS: Final = 2.0


async def ended(task: "asyncio.Future[Any]") -> None:
    """Cancel `task`, and return once it has ended, in whatever way.

    A library may lose a cancellation: until Python 3.12 asyncio's own `wait_for` does, where it
    comes just as what it waits for is done, and drivers use it while they connect. The task then
    goes on, and whoever waits for its end waits for ever. So it is cancelled again as long as it
    goes on; not for a task whose own cleaning up must not be cut short. Whoever is cancelled here
    hears it once `task` has ended: a task that ends another leaves none behind, though both are
    cancelled again.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # its error was told, or is another's to tell
    if cancelled is not None:
        raise cancelled
