"""Catching up coalesced against raw: the rate of merging, and what it spares a consumer.

A log of a busy collection: few documents take most of the changes, and a change is an update with
its document and its delta in seven of ten cases. `merge` reads the log in this process and makes
the messages, sending none; the rows below it are our client over gRPC, in a process of its own,
with a consumer that works for so long on each event.
Target: with 100 us of work an event, catching up coalesced takes at most half the time of raw.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Raw
from rich.console import Console
from rich.table import Table

from penstock.client import follow_sync
from penstock.event import ChangeEvent, ClusterTime, Commit, Operation, event_id
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.progress import parse_progress
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc
from penstock.subscribe import Coalescing, Criteria, Subscription, Window, follow
from penstock.subscribe.resume import oldest, start
from penstock.wire import Block

_SPAWN = multiprocessing.get_context("spawn")
_TEXT = b"0123456789abcdef" * 20
_OPERATIONS = (Operation.UPDATE,) * 7 + (Operation.INSERT, Operation.REPLACE, Operation.DELETE)


def change(number: int, key: int, operation: Operation) -> ChangeEvent:
    """A change of a document of about 400 bytes."""
    document = Raw(b'{"_id":%d,"n":%d,"text":"%s"}' % (key, number, _TEXT))
    update = b'{"updatedFields":{"n":%d,"at.%d":3.0},"removedFields":[],"truncatedArrays":[]}'
    return ChangeEvent(
        event_id=event_id("shop", str(number), 0),
        source="shop",
        database="shop",
        tenant="shop",
        collection="orders",
        cluster_time=ClusterTime(1_750_000_000 + number // 1000, number % 1000),
        timestamp=1_750_000_000_000 + number,
        position=str(number),
        document_id=str(key),
        key=Raw(b'{"_id":%d}' % key),
        operation=operation,
        full_document=None if operation is Operation.DELETE else document,
        update_description=(
            Raw(update % (number, number % 9)) if operation is Operation.UPDATE else None
        ),
    )


async def fill(path: Path, *, events: int, documents: int) -> str:
    """A log of commits of 10; the marker before them. The k-th document is 1/k as busy."""
    rng = random.Random(7)
    busy = [1 / (key + 1) for key in range(documents)]
    keys = rng.choices(range(documents), weights=busy, k=events)
    async with LmdbLog(LogConfig(path=path)) as log:
        after = str(oldest(await log.bounds()))
        for first in range(0, events, 1000):
            await log.append(
                [
                    Commit(
                        source="shop",
                        position=str(number),
                        events=tuple(
                            change(one, keys[one], rng.choice(_OPERATIONS))
                            for one in range(number, min(number + 10, events))
                        ),
                    )
                    for number in range(first, min(first + 1000, events), 10)
                ]
            )
        return after


class Found(NamedTuple):
    """What a reader took."""

    seconds: float
    cpu_seconds: float
    events: int


async def merge(path: Path, after: str, *, coalescing: Coalescing | None) -> Found:
    """One reader in this process, from `after` to the head."""
    async with await LmdbLogReader.open(path) as log:
        head = (await log.bounds()).head
        started, busy, messages = time.perf_counter(), time.process_time(), 0
        async for delivery in follow(
            log,
            Subscription(criteria=Criteria(), progress=await start(log, after)),
            bytes_max=1 << 20,
            heartbeat_seconds=0,
            clock=time.monotonic,
            coalescing=coalescing,
        ):
            make = delivery.made(Block.messages, Window.messages)
            for block, entries in delivery.slices:
                messages += sum(1 for _ in make(block, entries))
            if delivery.progress.sequence >= head:
                seconds = time.perf_counter() - started
                return Found(seconds, time.process_time() - busy, messages)
    raise AssertionError("the log ended early")


def serve(path: Path, threshold: int, told: Connection) -> None:
    """The server process: runs until it is terminated."""

    async def run() -> None:
        config = ServeConfig(grpc="127.0.0.1:0", catch_up_threshold=threshold)
        async with (
            await LmdbLogReader.open(path) as log,
            await serve_grpc(log, config) as server,
        ):
            told.send(server.address)
            await asyncio.Event().wait()

    asyncio.run(run())


@contextlib.contextmanager
def serving(path: Path, threshold: int) -> Generator[str]:
    """A server process over the log at `path`; its address."""
    ours, theirs = _SPAWN.Pipe()
    server = _SPAWN.Process(target=serve, args=(path, threshold, theirs))
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def consume(
    address: str, after: str, head: int, work: float, coalesce: bool, line: Connection
) -> None:
    """A consumer process that is busy for `work` seconds with each event."""
    started, busy, events = time.perf_counter(), time.process_time(), 0
    with follow_sync(address, after=after, coalesce_on_catch_up=coalesce) as changes:
        for one in changes:
            until = time.perf_counter() + work
            while time.perf_counter() < until:
                pass
            events += 1
            if parse_progress(one.progress).sequence >= head:
                break
    line.send(Found(time.perf_counter() - started, time.process_time() - busy, events))


def catch_up(address: str, after: str, head: int, work: float, coalesce: bool) -> Found:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=consume, args=(address, after, head, work, coalesce, theirs))
    process.start()
    found: Found = ours.recv()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--threshold", type=int, default=1000, help="catch_up_threshold")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=int, nargs="+", default=[0, 20, 100], help="us per event")
    arguments = parser.parse_args()
    events = arguments.events
    table = Table(title=f"catching up {events:,} changes, {os.cpu_count()} cores, median")
    for column in ("reader", "way", "seconds", "CPU s", "events in/s", "events out", "x raw"):
        table.add_column(column, justify="right")

    def row(reader: str, way: str, found: list[Found], base: float) -> float:
        seconds = median(one.seconds for one in found)
        table.add_row(
            reader,
            way,
            f"{seconds:.2f}",
            f"{median(one.cpu_seconds for one in found):.2f}",
            f"{events / seconds:,.0f}",
            f"{found[0].events:,}",
            f"{(base or seconds) / seconds:.2f}",
        )
        return seconds

    rounds = range(arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        after = asyncio.run(fill(path, events=events, documents=arguments.documents))
        base = 0.0
        for way, coalescing in (("raw", None), ("coalesced", Coalescing(threshold=1))):
            found = [asyncio.run(merge(path, after, coalescing=coalescing)) for _ in rounds]
            base = row("merge", way, found, base)
        with serving(path, arguments.threshold) as address:
            for work in arguments.work:
                base = 0.0
                for way in ("raw", "coalesced"):
                    found = [
                        catch_up(address, after, events, work / 1e6, way == "coalesced")
                        for _ in rounds
                    ]
                    base = row(f"{work} us/event", way, found, base)
    Console().print(table)


if __name__ == "__main__":
    main()
