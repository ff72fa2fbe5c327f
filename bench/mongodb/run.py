"""Capture from MongoDB into the durable log, beside a bare pymongo `watch()` loop.

    .venv/bin/python bench/mongodb/run.py [EVENTS]

Both read the same backlog of the same server from its start, in turns. The bare loop decodes each
event and forgets it; capture decodes it, proves that it decoded exactly, encodes it, and makes it
durable with its position. The ratio is that of the medians; the bar is 0.7.
"""

import asyncio
import logging
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
from pymongo import MongoClient

from penstock.capture.pump import PumpProgress, pump
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.sources.mongodb import MongoSource, MongoSourceConfig
from penstock.testing.servers import MongoReplicaSet

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


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with MongoReplicaSet(oplog_mb=512) as mongo:
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            since = client.admin.command("ping")["operationTime"]
            for first in range(0, EVENTS, 1000):
                batch = [order(number) for number in range(first, min(first + 1000, EVENTS))]
                client["shop"]["orders"].insert_many(batch)
        bares: list[float] = []
        ours: list[float] = []
        for _ in range(ROUNDS):
            bares.append(measured("watch()", lambda: bare(mongo.uri, since)))
            ours.append(measured("capture", lambda: asyncio.run(captured(mongo.uri))))
    print(
        f"capture {median(ours):,.0f} events/s, bare watch() {median(bares):,.0f} events/s: "
        f"ratio {median(ours) / median(bares):.2f} (bar 0.7)"
    )


if __name__ == "__main__":
    main()
