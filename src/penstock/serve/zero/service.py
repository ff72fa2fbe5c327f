"""All shards of a serve process: their records, who of them is connected, and how they are."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import ServiceBusyError, ServiceUnavailableError
from penstock.holds import dating
from penstock.ports import LogReader
from penstock.serve.zero.config import ZeroConfig
from penstock.serve.zero.record import ShardRecord
from penstock.serve.zero.request import ZeroRequest
from penstock.serve.zero.shards import ShardBook
from penstock.serve.zero.status import ShardStatus
from penstock.serve.zero.turns import Comer, Turns
from penstock.serve.zero.watermarks import watermark_of
from penstock.subscribe.captures.past import CurrentRows
from penstock.subscribe.current import CurrentState

_TELLING_SECONDS = 1.0


class Connection(Comer, Protocol):
    """What is known of the connection of a shard."""

    state: str
    rows: int
    """Of those that are copied, how many were sent."""

    @property
    def request(self) -> ZeroRequest: ...

    @property
    def who(self) -> str:
        """By its token; empty where nobody is asked."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Those that its tables are made of."""
        ...

    @property
    def watermark(self) -> str:
        """Up to where the client was told."""
        ...


class Rows(CurrentState, CurrentRows, Protocol):
    """Whoever keeps current rows: all of them, and one."""


class ZeroService:
    """Serves shards. Belongs to one event loop."""

    def __init__(
        self,
        log: LogReader,
        rows: Rows,
        book: ShardBook,
        config: ZeroConfig,
    ) -> None:
        """Raises ValueError for permissions that cannot be read."""
        self.log = log
        self.rows = rows
        self.book = book
        self.config = config
        self.permissions: dict[str, Any] | None = config.permission_values()
        self.stopped = asyncio.Event()
        self.now_ms = dating()
        self._connections = 0
        self.turns: Turns[Connection] = Turns()
        self._troubles: dict[bytes, tuple[str, str]] = {}
        """Why a shard is not served, as code and sentence, until it is."""
        self._gone = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, log: LogReader, rows: Rows, path: Path, config: ZeroConfig
    ) -> AsyncGenerator["ZeroService"]:
        """A service of the log at `path`; at the end of the block every connection is closed, and
        what was acknowledged is written."""
        book = await ShardBook.open(path, hold_seconds=config.hold, hold_bytes=config.hold_bytes)
        try:
            service = cls(log, rows, book, config)
            try:
                yield service
            finally:
                await service.stop()
        finally:
            await book.close()

    async def stop(self) -> None:
        """End every connection, and give each a moment to be told."""
        self.stopped.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TELLING_SECONDS):
                while self._connections:
                    self._gone.clear()
                    await self._gone.wait()

    @contextlib.contextmanager
    def connection(self) -> Generator[None]:
        """A place for one connection. Raises ServiceBusyError where there is none."""
        if self.stopped.is_set():
            raise ServiceUnavailableError("this service is stopping. Connect again in a moment.")
        if self._connections >= self.config.connections_max:
            raise ServiceBusyError(
                readers_max=self.config.connections_max,
                setting="connections_max under [serve.zero]",
            )
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1
            self._gone.set()

    async def make_room(self, key: bytes) -> None:
        """Have room for the record of a shard. Raises ServiceBusyError where there is none."""
        records = self.book.records
        if key in records or len(records) < self.config.shards_max:
            return
        over = self.now_ms() - int(self.config.hold * 1000)
        idle = [one for name, one in records.items() if name not in self.turns.live]
        oldest = min(idle, key=lambda one: one.seen_at, default=None)
        if oldest is None or oldest.seen_at > over:
            raise ServiceBusyError(
                readers_max=self.config.shards_max, setting="shards_max under [serve.zero]"
            )
        await self.book.forget(lambda one: one is oldest)

    def troubled(self, key: bytes, code: str, message: str) -> bool:
        """Say why a shard is not served; False if that was said already."""
        before = self._troubles.get(key)
        self._troubles[key] = (code, message)
        return before != (code, message)

    def served(self, key: bytes) -> None:
        """It is."""
        self._troubles.pop(key, None)

    def shards(self) -> tuple[ShardStatus, ...]:
        """How every shard is that is remembered, or connected for the first time; by name."""
        found = [self._status(key, record) for key, record in self.book.records.items()]
        new = (one for key, one in self.turns.live.items() if key not in self.book.records)
        found += [self._begins(one) for one in new]
        return tuple(sorted(found, key=lambda one: (one.shard, one.who)))

    def _begins(self, session: Connection) -> ShardStatus:
        code, message = self._troubles.get(session.key, ("", ""))
        return ShardStatus(
            shard=session.request.shard.name,
            who=session.who,
            publications=session.request.publications,
            sources=session.sources,
            state=session.state,
            seen_at=self.now_ms(),
            code=code,
            message=message,
        )

    def _status(self, key: bytes, record: ShardRecord) -> ShardStatus:
        live = self.turns.live.get(key)
        code, message = self._troubles.get(key, ("", ""))
        state = live.state if live is not None else "stopped" if code else "away"
        return ShardStatus(
            shard=record.name,
            who=record.who,
            publications=record.publications,
            sources=record.sources,
            state=state,
            watermark="" if live is None else live.watermark,
            acknowledged=watermark_of(record.floor.commit, record.floor.check),
            commit=record.floor.commit,
            rows=0 if live is None else live.rows,
            seen_at=record.seen_at,
            code=code,
            message=message,
        )
