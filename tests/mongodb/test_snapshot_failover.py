"""A snapshot survives the death of the server that it reads from."""

import asyncio
from collections.abc import Callable
from typing import Any

from pymongo import MongoClient

from tests.mongodb.support import folded, reading, stored_rows
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
ROWS = 120


async def test_killing_the_primary_while_copying_loses_nothing_and_leaves_nothing_stale(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    """Invariant 9: with writers that go on meanwhile, on the new primary too."""
    mongo = start_mongo(members=3)
    with Client(mongo.uri, w="majority", retryWrites=True) as client:
        orders = client["shop"]["orders"]
        orders.insert_many({"_id": n, "n": 0} for n in range(ROWS))
        stop = asyncio.Event()

        def write() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                orders.update_one({"_id": turn % ROWS}, {"$inc": {"n": 1}}, upsert=True)
                orders.delete_one({"_id": turn * 7 % ROWS})
            orders.insert_one({"_id": "last"})

        options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 10}
        async with reading(mongo.uri, database="shop", heartbeat_seconds=0.3, **options) as read:
            writing = asyncio.create_task(asyncio.to_thread(write))
            try:
                await read.until(lambda r: sum(c.snapshot for c in r.changes) >= ROWS // 6)
                await asyncio.to_thread(mongo.kill, mongo.primary_index())
                await read.until(
                    lambda r: any(c.operation == "snapshot_completed" for c in r.events)
                )
            finally:
                stop.set()
                await writing
            await read.until(lambda r: r.changes[-1].document_id == "last")
        assert read.failures, "the primary that was read from is gone"
        assert folded(read.events) == stored_rows(client["shop"], ["orders"])
        assert len({event.event_id for event in read.events}) == len(read.events)
