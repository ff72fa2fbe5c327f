"""A MongoDB that is captured in this process, by a capture that may lose changes."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from msgspec import structs
from pymongo import MongoClient

from penstock.capture.pump import pump
from penstock.client.flight import LogClient
from penstock.errors import PenstockError
from penstock.event import AnyEvent, ChangeEvent, Commit, Fragment
from penstock.log.memory import MemoryLog
from penstock.serve.flight import FlightServer
from penstock.sources.mongodb import MongoSource
from penstock.spark.loading.reading import OpenSource
from tests.mongodb.support import config
from tests.waiting import wait_until

Client = MongoClient[dict[str, Any]]
Loses = Callable[[ChangeEvent], bool]


class _Losing:
    """A source whose changes do not all come to the log."""

    def __init__(self, source: MongoSource, loses: Loses) -> None:
        self._source = source
        self._loses = loses
        self.name = source.name

    async def changes(self, *, position: str | None) -> AsyncGenerator[Commit | Fragment]:
        items: AsyncIterator[Commit | Fragment] = self._source.changes(position=position)
        async for item in items:
            yield structs.replace(item, events=tuple(filter(self._kept, item.events)))

    def _kept(self, event: AnyEvent) -> bool:
        return not (isinstance(event, ChangeEvent) and self._loses(event))

    async def acknowledge(self, position: str) -> None:
        await self._source.acknowledge(position)

    async def close(self) -> None:
        await self._source.close()


class Captured:
    """The log's address, and what makes the source."""

    def __init__(self, uri: str, database: str) -> None:
        options = config(uri, database=database, heartbeat_seconds=0.5)
        self.open_source: OpenSource = partial(MongoSource, "shop", options)
        self.log = MemoryLog()
        self.server = FlightServer(self.log)
        self.endpoint = ""
        self._lost: set[str] = set()

    def lose(self, *keys: int) -> None:
        """From now on no change of these documents comes to the log."""
        self._lost = {f'{{"_id":{key}}}' for key in keys}

    async def run(self, stopping: threading.Event) -> None:
        """Capture until told to stop, and again after errors that pass."""
        source = _Losing(self._open(), lambda event: bytes(event.key).decode() in self._lost)
        told = asyncio.ensure_future(asyncio.to_thread(stopping.wait))
        pumping: asyncio.Future[None] | None = None
        try:
            while not told.done():
                pumping = asyncio.ensure_future(pump(source, self.log))
                await asyncio.wait([pumping, told], return_when=asyncio.FIRST_COMPLETED)
                error = pumping.exception() if pumping.done() else None
                if error is not None and not (isinstance(error, PenstockError) and error.transient):
                    raise error
        finally:
            stopping.set()
            if pumping is not None:
                pumping.cancel()
                with suppress(asyncio.CancelledError, PenstockError):
                    await pumping
            await source.close()

    def _open(self) -> MongoSource:
        source = self.open_source()
        assert isinstance(source, MongoSource)
        return source


@contextmanager
def captured(client: Client, uri: str, database: str) -> Generator[Captured]:
    """The database is captured inside the block; its server is never idle, so nobody waits."""
    made, stopping = Captured(uri, database), threading.Event()

    def tick() -> None:
        while not stopping.wait(0.05):
            client[f"{database}_ticks"]["ticks"].replace_one({"_id": 0}, {}, upsert=True)

    threads = [
        threading.Thread(target=tick, name="ticks"),
        threading.Thread(target=asyncio.run, args=(made.run(stopping),), name="capture"),
    ]
    made.server.start()
    made.endpoint = made.server.address
    for thread in threads:
        thread.start()
    try:
        with LogClient(made.endpoint) as log:
            wait_until(lambda: log.position("shop"), "capture to begin")
        yield made
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
        made.server.stop()
        client.drop_database(f"{database}_ticks")
