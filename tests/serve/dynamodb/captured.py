"""A log whose streams are served, and boto3 as it is sold."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.clocks import Clock, SystemClock
from penstock.event import Commit
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.dynamodb.captured.index import CapturedIndex
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.server import serving_captured
from tests.serve.dynamodb.support import Clients
from tests.waiting import PATIENCE_SECONDS

Log = LmdbLog | MemoryLog


class Captured(Clients):
    """A log that is served, and clients of it."""

    def __init__(
        self, log: Log, index: CapturedIndex, address: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(address)
        self.log = log
        self.index = index
        self._loop = loop

    def append(self, *commits: Commit) -> None:
        """Add commits to the log, and wait until the endpoint shows them."""
        self.run(self.log.append(commits))
        self.settled()

    def run(self, work: Any) -> Any:
        """What the log's loop makes of a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def settled(self) -> None:
        """Wait until everything in the log is indexed."""
        head = self.run(self.log.bounds()).head
        assert self.index.wait(head, seconds=PATIENCE_SECONDS).sequence >= head

    def tidied(self) -> None:
        """Have the index look at the time and at what was trimmed, as it does every second."""
        self.index.tidy()

    def arns(self, table: str) -> list[str]:
        """The streams of a table, oldest first."""
        told = self.streams.list_streams(TableName=table)["Streams"]
        return [str(stream["StreamArn"]) for stream in told]

    def arn_of(self, table: str) -> str:
        """The newest stream of a table."""
        told = self.client.describe_table(TableName=table)["Table"]
        return str(told["LatestStreamArn"])

    def describe(self, arn: str) -> Any:
        return self.streams.describe_stream(StreamArn=arn)["StreamDescription"]

    def read(self, arn: str) -> list[Any]:
        """Every record of a stream, shard by shard."""
        return self.records(arn)


@contextmanager
def captured(
    folder: Path,
    *,
    log: Log | None = None,
    clock: Clock | None = None,
    lacking: Any = None,
    **config: Any,
) -> Generator[Captured]:
    """A log in the folder, served inside the block. Everything runs in a thread of its own."""
    found: Future[Captured] = Future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    settings = CapturedConfig.model_validate({"address": "127.0.0.1:0", **config})

    async def serve() -> None:
        try:
            async with log or LmdbLog(LogConfig(path=folder / "log"), clock=clock) as opened:
                index = CapturedIndex(
                    opened,
                    folder / "index",
                    settings,
                    clock=clock or SystemClock(),
                    lacking=lacking,
                )
                async with serving_captured(opened, index, settings, clock=clock) as address:
                    found.set_result(Captured(opened, index, address, loop))
                    await stop.wait()
        except BaseException as error:
            if not found.done():
                found.set_exception(error)
            raise

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        everything = found.result()
        try:
            yield everything
        finally:
            everything.close()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
