"""MongoDB through Penstock into the real zero-cache: its first copy, and how late a write is there.

`PYTHONPATH=. python bench/zero/cache.py [ROWS]`: rows/s of the first copy, between the two lines of
zero-cache's log that begin and end it; then an insert every 50 ms, and the milliseconds from before
it until zero-cache's replica has it. Beside them, as the peer, until a bare client of the same
endpoint has it, which only reads: the difference is zero-cache's own.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection
from websockets.asyncio.client import connect

from bench.zero.run import document
from tests.e2e.test_zero import Deployed
from tests.zero.real import scripts
from tests_support.servers import ZERO, MongoReplicaSet, PostgresServer

WRITES = 200
INTERVAL_SECONDS = 0.05
_TEXTS = "\n".join(f'text{n} = "text"' for n in range(8))
_NUMBERS = "\n".join(f'number{n} = "int"' for n in range(4))
Arrivals = dict[int, float]
"""When each document arrived, by its id: Unix milliseconds, exact to about one."""


def settings(uri: str) -> str:
    """A table of 14 columns."""
    return f"""
        [sources.shop]
        type = "mongodb"
        uri = "{uri}"
        database = "shop"
        start = "snapshot"
        [serve.zero.tables.item]
        source = "shop"
        collection = "items"
        key = ["id"]
        [serve.zero.tables.item.columns]
        id = {{ from = "_id", type = "int" }}
        tags = "json"
        {_TEXTS}
        {_NUMBERS}
        """


def copied(log: str) -> tuple[int, float]:
    """How many changes the first copy had, and its seconds, as zero-cache's log says it."""
    entries = re.split(r"^(?=\d{4}-\d\d-\d\dT)", log, flags=re.MULTILINE)

    def first(text: str) -> tuple[datetime, str]:
        entry = next(one for one in entries if text in one)
        return datetime.fromisoformat(entry.split(" ", 1)[0]), entry.partition(text)[2]

    begun, _ = first("initial sync of shard ")
    ended, rest = first("finished initial-sync of ")
    return int(rest.split()[0]), (ended - begun).total_seconds()


async def bare(url: str, last: int, ready: asyncio.Event, seen: Arrivals) -> None:
    """The peer: a client that notes when documents come, and ends with the `last`."""
    watermark = ""
    async with connect(f"{url}?shardID=bare", max_size=None, compression=None) as socket:
        async for message in socket:
            said = json.loads(message)
            if said[0] == "commit":
                watermark = said[2]["watermark"]
                break
    asked = f"{url}?shardID=bare&lastWatermark={watermark}"
    async with connect(asked, max_size=None, compression=None) as socket:
        ready.set()
        async for message in socket:
            said = json.loads(message)
            if said[0] == "data" and said[1]["tag"] == "insert":
                key = said[1]["new"]["id"]
                seen[key] = time.time() * 1e3
                if key == last:
                    return


async def replica(path: Path, last: int, ready: asyncio.Event, seen: Arrivals) -> None:
    """Zero-cache's replica, looked at once a millisecond."""
    async with scripts() as folder:
        process = await asyncio.create_subprocess_exec(
            *(str(ZERO.program()), "watch.mjs", str(path), "item"),
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        largest = None
        async for line in process.stdout:
            key, at = json.loads(line)
            if largest is not None:
                seen.update(dict.fromkeys(range(largest + 1, key + 1), float(at)))
            largest = key
            ready.set()
            if key == last:
                break
        process.stdin.close()
        await process.wait()


async def write(items: Collection[Any], first: int, written: Arrivals) -> None:
    """Insert on schedule: a late one does not put the others off."""
    began = time.perf_counter()
    for number in range(WRITES):
        await asyncio.sleep(max(0.0, began + number * INTERVAL_SECONDS - time.perf_counter()))
        written[first + number] = time.time() * 1e3
        await asyncio.to_thread(items.insert_one, document(first + number))


async def latencies(deployed: Deployed, items: Collection[Any], rows: int) -> None:
    """Time writes."""
    last = rows + WRITES - 1
    written: Arrivals = {}
    there: tuple[Arrivals, Arrivals] = ({}, {})
    ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(bare(deployed.cache.upstream, last, ready[0], there[0]))
        group.create_task(replica(deployed.cache.replica, last, ready[1], there[1]))
        for one in ready:
            await one.wait()
        await write(items, rows, written)
    for name, seen in zip(("a bare client", "zero-cache's replica"), there, strict=True):
        late = [seen[key] - at for key, at in written.items()]
        p99 = quantiles(late, n=100)[98]
        print(f"{name}: p50 {median(late):.1f} ms, p99 {p99:.1f} ms, most {max(late):.1f} ms")


def main(rows: int) -> None:
    """All of it, once."""
    with (
        MongoReplicaSet() as mongo,
        PostgresServer() as postgres,
        tempfile.TemporaryDirectory() as folder,
        MongoClient[dict[str, Any]](mongo.uri) as client,
    ):
        items = client.shop.items
        for first in range(0, rows, 10_000):
            items.insert_many(map(document, range(first, min(rows, first + 10_000))))
        deployed = Deployed(settings(mongo.uri), postgres, Path(folder))
        try:
            deployed.service.start()
            deployed.service.fact("ready")
            deployed.cache.start()
            changes, seconds = copied(deployed.cache.process.log_path.read_text())
            print(f"load {os.getloadavg()[0]:.1f}")
            print(f"first copy: {changes / seconds:,.0f} rows/s, {changes:,} in {seconds:.1f} s")
            asyncio.run(latencies(deployed, items, rows))
            print(f"load {os.getloadavg()[0]:.1f}")
        finally:
            deployed.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
