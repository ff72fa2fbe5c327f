"""A server of Zero's change source protocol behind the port of a source."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from msgspec import structs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from penstock.errors import ConfigError, SourceError, SourceUnavailableError
from penstock.event import Commit, Fragment
from penstock.proxies import is_here
from penstock.sources.zero.config import ZeroSourceConfig
from penstock.sources.zero.failures import unavailable
from penstock.sources.zero.positions import parse_position
from penstock.sources.zero.reading import Reading, Reset
from penstock.zero.messages import Upstream, upstream_text

_CLOSE_SECONDS: Final = 1.0
_FRAMES_MAX: Final = 16
"""Read ahead; the rest stays with the server."""
_UNHEARD: Final = logging.Logger("penstock.sources.zero", logging.CRITICAL + 1)  # noqa: LOG001
"""Outside the tree of loggers, so that nobody turns it on: what the library says has the URL, with
its key of access (Z9)."""
_REFUSALS: Final = frozenset({400, 401, 403, 404, 405, 410, 426})
"""Answers to a handshake that no retry mends."""


class ZeroSource:
    """The tables of one shard of a server, in the order of its commits: a ChangeSource.

    A commit is a transaction of the server. It is acknowledged once the log holds it, and an idle
    watermark once the log holds its position; a copy is not acknowledged, as zero-cache does not:
    the connection ends with it, and another one goes on behind it.
    """

    def __init__(self, name: str, config: ZeroSourceConfig) -> None:
        self.name = name
        self.config = config
        self._unsaid: deque[tuple[str, Upstream | None]] = deque()
        """What may be acknowledged once the position is durable, and the positions between them,
        any of which may be the one that is called durable; as long as the pump's hand-over at
        most."""
        self._due: deque[Upstream] = deque()
        self._told = asyncio.Event()
        self._reading: Reading | None = None

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        """Commits after `position`; None: where `start` says.

        Empty commits tell newer positions: one at the start, one for each status of the server,
        and one every heartbeat while it says nothing. Raises SourceError.
        """
        known = None if position is None else parse_position(position)
        reading = self._reading = Reading(self.name, self.config, known)
        self._unsaid.clear()
        self._due.clear()
        try:
            for item in reading.opening():
                yield item
            anew = reading.position.watermark is None
            while True:
                async with self._connected(reading, anew=anew) as connection:
                    try:
                        async with aclosing(self._items(reading, connection)) as items:
                            async for item in items:
                                yield item
                        anew = False
                        continue
                    except Reset as reset:
                        why = str(reset)
                gap, error = reading.lost(why)
                for item in gap:
                    yield item
                if error is not None:
                    raise error
                anew = True
        finally:
            reading.close()

    async def acknowledge(self, position: str) -> None:
        """Have the server told of what is durable; never waits for it."""
        found = [number for number, (one, _) in enumerate(self._unsaid, 1) if one == position]
        for _ in range(found[-1] if found else 0):
            _, upstream = self._unsaid.popleft()
            if upstream is None:
                continue
            # One of each kind says all that the ones before it said.
            for one in [one for one in self._due if type(one) is type(upstream)]:
                self._due.remove(one)
            self._due.append(upstream)
        if self._due:
            self._told.set()

    async def unmatched(self) -> list[str]:
        """As `NamesThings.unmatched`, by what the server announced to the capture that runs, for
        nobody else can ask it; none where nothing was captured yet."""
        if self._reading is None or not (self.config.include or self.config.exclude):
            return []
        there = self._reading.there
        if there is None:
            raise SourceUnavailableError(
                f"{self.name}: the server has not announced its tables yet. Nothing was skipped; "
                f"they come with the copy with which capture begins."
            )
        return self.config.scope.unmatched(there)

    async def close(self) -> None:
        """Nothing is held between sessions."""

    # --- the connection --------------------------------------------------------------------------

    async def _items(
        self, reading: Reading, connection: ClientConnection
    ) -> AsyncGenerator[Commit | Fragment]:
        """What comes of one connection, until a copy ends."""
        while True:
            try:
                async with asyncio.timeout(self.config.heartbeat_seconds):
                    text = await connection.recv(decode=False)
            except TimeoutError:
                if reading.quiet:
                    yield structs.replace(reading.heartbeat(), as_of_ms=time.time_ns() // 1_000_000)
                continue
            except ConnectionClosed as closed:
                raise self._ended(closed) from None
            for item in reading.take(text):
                if isinstance(item, Commit):
                    self._unsaid.append((item.position, reading.acknowledgement))
                yield item
            if reading.copied and self.config.dialect == "shipped":
                return

    @asynccontextmanager
    async def _connected(self, reading: Reading, *, anew: bool) -> AsyncGenerator[ClientConnection]:
        reading.connected(anew=anew)
        config, place = self.config, reading.position
        address = config.address(watermark=None if anew else place.watermark, replica=place.replica)
        try:
            connection = await connect(
                address,
                proxy=None if is_here(config.place[0]) else True,
                max_size=config.message_bytes_max,
                max_queue=_FRAMES_MAX,
                open_timeout=config.connect_timeout,
                logger=_UNHEARD,
                ping_interval=config.ping_seconds,
                ping_timeout=config.ping_timeout,
                close_timeout=_CLOSE_SECONDS,
            )
        except InvalidStatus as refused:
            raise self._refused(refused.response.status_code) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise unavailable(self.name, config, error) from None
        saying = asyncio.ensure_future(self._say(connection))
        try:
            yield connection
        finally:
            saying.cancel()
            with suppress(asyncio.CancelledError):
                await saying
            await connection.close()

    async def _say(self, connection: ClientConnection) -> None:
        """Tell the server what is durable, as it becomes so."""
        # Whoever reads hears that it closed, and says so.
        with suppress(ConnectionClosed):
            while True:
                while self._due:
                    upstream = self._due.popleft()
                    await connection.send(upstream_text(upstream).decode())
                self._told.clear()
                await self._told.wait()

    def _refused(self, status: int) -> SourceError | ConfigError:
        why = f"{self.name}: the server answered {status} instead of a stream"
        if status in _REFUSALS:
            return ConfigError(
                f"{why}. Nothing was captured, and what was captured before is safe. See that the "
                f"url names a server of Zero's change source protocol, and its key of access."
            )
        return SourceUnavailableError(
            f"{why}. Nothing was skipped; capture goes on from its durable position once it does."
        )

    def _ended(self, closed: ConnectionClosed) -> SourceUnavailableError:
        code = closed.rcvd.code if closed.rcvd is not None else None
        return SourceUnavailableError(
            f"{self.name}: the connection ended ({code or 'without a word'}). Nothing was skipped; "
            f"capture goes on from its durable position."
        )
