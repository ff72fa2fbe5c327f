"""The server's memory does not grow with what its readers leave unread (P18, invariant 6)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.subscribe.resume import oldest
from tests.children import MODULE, Child
from tests.serve.calls import subscribe, subscribe_batch
from tests.subscribe.events import change, commit

STALLED = 10
EVENTS = 24_000
DOCUMENT = {"text": "x" * 4000}


def anonymous_bytes(pid: int) -> int:
    """Memory that no file backs; the log's map is not in it (proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon: not Linux")


@pytest.mark.slow
async def test_stalled_readers_of_100_mb_cost_the_server_a_bounded_outbox_each_p18(
    tmp_path: Path, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    async with LmdbLog(LogConfig(path=tmp_path / "log")) as log:
        after = str(oldest(await log.bounds()))
        command = (*MODULE, "tests.client.server_process", tmp_path / "log", "127.0.0.1:0")
        with Child(*command) as server:
            address = await asyncio.to_thread(server.line)
            stalled = [
                subscribe(connect(address), after=after, consumer_id="stalled")
                for _ in range(STALLED)
            ]
            for call in stalled:
                await call.initial_metadata()
            before = anonymous_bytes(server.pid)
            for first in range(1, EVENTS + 1, 500):
                await log.append(
                    [commit(change(n, document=DOCUMENT)) for n in range(first, first + 500)]
                )
            reading = subscribe_batch(connect(address), after=after)
            count = 0
            while count < EVENTS:
                count += len((await reading.read()).events)
            grown = anonymous_bytes(server.pid) - before
            # Each holds one read of the log (1 MiB) and what gRPC buffers; the cache, 32 MiB.
            assert grown < (STALLED * 4 + 32 + 32) << 20
            assert (await stalled[0].read()).sequence == 1
