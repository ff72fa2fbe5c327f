"""Closing a client, and not in the middle of its opening a connection.

The driver leaves the socket of a connection whose opening is cancelled to the collector (seen with
pymongo 4.20, `_async_create_connection`), and closing a client cancels what its monitor opens. So
a client is closed between two of its heartbeats, if they let it.
"""

import asyncio
import contextlib
from typing import Final

from pymongo.monitoring import (
    ServerHeartbeatFailedEvent,
    ServerHeartbeatListener,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
)

from penstock.sources.mongodb.deployment import Client

_OPENING_SECONDS_MAX: Final = 1.0
"""A server that does not answer is not waited for any longer."""


class Heartbeats(ServerHeartbeatListener):
    """The heartbeats for which a connection may be being opened. Belongs to the client's loop."""

    def __init__(self) -> None:
        self._opening: set[tuple[str, int | None]] = set()
        self._none = asyncio.Event()
        self._none.set()

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        """As the driver's; one that is awaited has its connection already."""
        if not event.awaited:
            self._opening.add(event.connection_id)
            self._none.clear()

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        """As the driver's."""
        self._ended(event.connection_id)

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        """As the driver's."""
        self._ended(event.connection_id)

    def _ended(self, server: tuple[str, int | None]) -> None:
        self._opening.discard(server)
        if not self._opening:
            self._none.set()

    async def between(self) -> None:
        """Return once no heartbeat opens a connection, or one takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_SECONDS_MAX):
                await self._none.wait()


async def close(client: Client, heartbeats: Heartbeats) -> None:
    """Close `client`, whose heartbeats these are; takes a second longer at most."""
    try:
        await heartbeats.between()
    finally:
        # Also for who is cancelled meanwhile: nobody else knows the client any more.
        await client.close()
