"""How late a pushed record is: a store's writer, its server and a subscriber, as in production.

The server runs in the writer's process, as there is one writer; the subscriber is a process of its
own, over the Unix socket. Writes come on schedule. Two latencies: from before the put, so that
making it durable is part of it, and from when the put had returned, which is the commit.
"""

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench.store.writes import item
from penstock import store
from penstock.store import Client, KeyType, Store, StreamViewType
from penstock.store.remote.server import serving
from penstock.store.syncing import SyncMode

_SPAWN = multiprocessing.get_context("spawn")


class Late(NamedTuple):
    """Milliseconds, a record each."""

    from_put: list[float]
    from_commit: list[float]


def subscribe(address: str, records: int, line: Connection) -> None:
    """The subscriber: says ready, and when each record came, in nanoseconds."""
    came = list[int]()
    with Client(address) as db:
        for _ in db.follow("t"):
            came.append(time.monotonic_ns())
            if len(came) == 1:
                line.send("ready")
            if len(came) == records + 1:
                line.send(came[1:])
                return


def measure(folder: Path, *, sync: SyncMode, records: int, rate: float) -> Late:
    """Write `records` at `rate` a second."""
    address = folder / "s"
    with store.open(folder / "store", sync=sync) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).stream(
            StreamViewType.NEW_AND_OLD_IMAGES
        ).execute()
        with served(db, address):
            ours, theirs = _SPAWN.Pipe()
            subscriber = _SPAWN.Process(target=subscribe, args=(str(address), records, theirs))
            subscriber.start()
            db.put("t", item(0, 0))
            ours.recv()
            put, committed = list[int](), list[int]()
            begun = time.perf_counter()
            for number in range(records):
                wait = begun + number / rate - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                put.append(time.monotonic_ns())
                db.put("t", item(number % 5000, number + 1))
                committed.append(time.monotonic_ns())
            came: list[int] = ours.recv()
            subscriber.join()
    return Late(
        [(at - before) / 1e6 for at, before in zip(came, put, strict=True)],
        [(at - before) / 1e6 for at, before in zip(came, committed, strict=True)],
    )


@contextmanager
def served(db: Store, address: Path) -> Iterator[None]:
    """The store's server, in a thread."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(db, address):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        ready.wait()
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
