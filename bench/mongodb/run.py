"""Capture from MongoDB into the durable log, beside a bare pymongo `watch()` loop.

    .venv/bin/python bench/mongodb/run.py [EVENTS]

Both read the same backlog of the same server from its start, in turns. The bare loop decodes each
event and forgets it; capture decodes it, proves that it decoded exactly, encodes it, and makes it
durable with its position. Two backlogs: inserts alone, where the server has the least to do, and a
mix of 5 inserts, 4 updates and 1 delete, whose updates are looked up. Each ratio is that of the
medians of one run; the bar is 0.7. Capture runs as its process does, which looks for cyclic
garbage less often; the bare loop runs as Python does. Run it on a quiet machine: the bare loop
waits for the server a third of its time, capture hardly ever, so that other load slows capture
down more. The processor time of an event, printed beside each rate, shows it less.
"""

import asyncio
import gc
import logging
import random
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import structlog
from bson import ObjectId, Timestamp
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.collection import Collection

from penstock.capture.pump import PumpProgress, pump
from penstock.cli.capture_process import relax_collector
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.sources.mongodb import MongoSource, MongoSourceConfig
from tests_support.servers import MongoReplicaSet

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
ROUNDS = 5


def order(number: int) -> dict[str, Any]:
    """About 1 KB of BSON."""
    return {
        "customer": ObjectId(),
        "number": number,
        "email": f"customer{number}@example.com",
        "placed": datetime(2026, 1, 1, tzinfo=UTC),
        "total": 12.5 + number,
        "tags": ["new", "gift", "paid"],
        "address": {"street": "x" * 40, "zip": 12345},
        "lines": [{"product": p, "quantity": 2, "note": "n" * 20} for p in range(4)],
        "comment": "c" * 450,
    }


def bare(uri: str, since: Timestamp) -> float:
    """Events a second of the loop everybody writes first."""
    seen = 0
    with MongoClient[dict[str, Any]](uri) as client:
        begun = perf_counter()
        with client["shop"].watch(
            start_at_operation_time=since, full_document="updateLookup"
        ) as stream:
            for _ in stream:
                seen += 1
                if seen == EVENTS:
                    break
        return EVENTS / (perf_counter() - begun)


async def captured(uri: str) -> float:
    """Events a second from the same server, durable in a log."""
    config = MongoSourceConfig.model_validate(
        {"uri": uri, "database": "shop", "start": "beginning"}
    )
    source = MongoSource("shop", config)
    with tempfile.TemporaryDirectory() as folder:
        async with LmdbLog(LogConfig(path=Path(folder))) as log:
            begun = perf_counter()
            pumping = asyncio.create_task(pump(source, log, progress=PumpProgress()))
            while (await log.bounds()).head < EVENTS:
                if pumping.done():
                    pumping.result()
                await asyncio.sleep(0.02)
            rate = EVENTS / (perf_counter() - begun)
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
            await source.close()
    return rate


def measured(name: str, run: Callable[[], float]) -> float:
    """One round, printed."""
    cpu = process_time()
    rate = run()
    micros = (process_time() - cpu) / EVENTS * 1e6
    print(f"  {name:8} {rate:10,.0f} events/s   {micros:5.1f} us of CPU an event here")
    return rate


def write_inserts(orders: Collection[dict[str, Any]]) -> None:
    for first in range(0, EVENTS, 1000):
        orders.insert_many([order(number) for number in range(first, first + 1000)])


def write_mix(orders: Collection[dict[str, Any]]) -> None:
    for first in range(0, EVENTS, 1000):
        numbers = range(first, first + 500)
        writes: list[Any] = [InsertOne({"_id": n, **order(n)}) for n in numbers]
        chosen = random.Random(first).sample(range(first, first + 500), 500)
        writes += [UpdateOne({"_id": n}, {"$inc": {"total": 1}}) for n in chosen[:400]]
        writes += [DeleteOne({"_id": n}) for n in chosen[400:]]
        orders.bulk_write(writes)


def compare(name: str, write: Callable[[Collection[dict[str, Any]]], None]) -> None:
    print(name)
    with MongoReplicaSet(oplog_mb=512) as mongo:
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            since = client.admin.command("ping")["operationTime"]
            write(client["shop"]["orders"])
        bares: list[float] = []
        ours: list[float] = []
        for _ in range(ROUNDS):
            bares.append(measured("watch()", lambda: bare(mongo.uri, since)))
            before = gc.get_threshold()
            relax_collector()
            ours.append(measured("capture", lambda: asyncio.run(captured(mongo.uri))))
            gc.unfreeze()
            gc.set_threshold(*before)
    print(
        f"  {name}: capture {median(ours):,.0f} events/s, bare watch() {median(bares):,.0f} "
        f"events/s: ratio {median(ours) / median(bares):.2f} (bar 0.7)"
    )


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    compare("inserts", write_inserts)
    compare("mix", write_mix)


if __name__ == "__main__":
    main()
