"""From commit to consumer at a steady 500 events/s: three processes, as in production.

One process appends a commit of one 1 KB event every 2 ms; `SubscribeBatch` serves it from another
process; a consumer follows in a third. The clock starts before the append, so making the event
durable is part of what is measured. Target: p99 under 20 ms.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from msgspec import structs
from rich.console import Console
from rich.table import Table

from bench.events import change
from bench.fanout.run import serving
from penstock.client import follow_sync
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.subscribe.resume import oldest

_SPAWN = multiprocessing.get_context("spawn")


def consume(address: str, after: str, events: int, line: Connection) -> None:
    """The consumer process: milliseconds from each event's birth to its arrival."""
    latencies: list[float] = []
    with follow_sync(address, after=after) as changes:
        for one in changes:
            latencies.append((time.time_ns() - int(one.event.position)) / 1e6)
            if one.sequence == 1:
                line.send("ready")
            if len(latencies) == events + 1:
                line.send(latencies[1:])
                return


async def produce(log: LmdbLog, events: int, interval_seconds: float) -> None:
    """Append one event every interval, on schedule: a late one does not put the others off."""
    started = time.perf_counter()
    for number in range(events):
        wait = started + number * interval_seconds - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await append(log, number)


async def append(log: LmdbLog, number: int) -> None:
    """A commit whose position says when it was made."""
    position = str(time.time_ns())
    event = structs.replace(change(number), position=position)
    await log.append([Commit(source="shop", position=position, events=(event,))])


async def run(path: Path, events: int, rate: float) -> list[float]:
    """Latencies in milliseconds, in order."""
    async with LmdbLog(LogConfig(path=path)) as log:
        after = str(oldest(await log.bounds()))
        with serving(path) as address:
            ours, theirs = _SPAWN.Pipe()
            consumer = _SPAWN.Process(target=consume, args=(address, after, events, theirs))
            consumer.start()
            await append(log, 0)
            await asyncio.to_thread(ours.recv)
            await produce(log, events, 1 / rate)
            latencies: list[float] = await asyncio.to_thread(ours.recv)
            consumer.join()
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=500.0, help="events a second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        events = int(arguments.seconds * arguments.rate)
        latencies = asyncio.run(run(Path(folder) / "log", events, arguments.rate))
    table = Table(title=f"commit to consumer at {arguments.rate:g} events/s, {events} events")
    for name in ("p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{np.percentile(latencies, at):.2f}" for at in (50, 90, 99, 100)))
    Console().print(table)


if __name__ == "__main__":
    main()
