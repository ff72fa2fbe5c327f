"""`penstock snapshot` of a running service that is killed with -9 while it copies."""

import asyncio
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.cli.tail import oldest
from penstock.client import follow, snapshot
from penstock.client.change import Change
from penstock.errors import StateIncompleteError
from penstock.event import ChangeEvent, Kind
from tests.cli.service import Service, configure, spawn
from tests.waiting import until
from tests_support.servers import MongoReplicaSet, free_ports

Client = MongoClient[dict[str, Any]]
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

DOCUMENTS = 1500
TEXT = """
[log]
path = "log"
free_bytes_min = 0
[state]
free_bytes_min = 0
[sources.shop]
type = "mongodb"
uri = "{uri}"
database = "{database}"
heartbeat_seconds = 0.5
snapshot_chunk_documents = 50
start = "{start}"
exclude = {exclude}
[serve]
grpc = "{grpc}"
flight = "127.0.0.1:0"
http = "off"
"""


class Fold:
    """What a consumer has."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.deletes_told = 0
        self.progress = ""

    def take(self, change: Change) -> None:
        if change.kind is not Kind.DATA or change.collection != "orders":
            return
        if change.operation == "delete":
            self.rows.pop(change.document_id, None)
            assert isinstance(change.event, ChangeEvent)
            self.deletes_told += change.event.snapshot
        elif change.document is not None:
            self.rows[change.document_id] = change.document


def write(uri: str, database: str, rng: random.Random, stop: threading.Event) -> None:
    with Client(uri) as client:
        orders = client[database]["orders"]
        while not stop.is_set():
            key = rng.randrange(DOCUMENTS // 2)
            if rng.random() < 0.5:
                orders.update_one({"_id": key}, {"$inc": {"n": 1}}, upsert=True)
            else:
                orders.delete_one({"_id": key})
        orders.insert_one({"_id": "last"})


async def seen(address: str, fold: Fold, what: str, key: str = "") -> None:
    """Follow everything until that operation (of that document)."""
    async with follow(address, after=fold.progress, control_events=True) as changes:
        async for change in changes:
            fold.take(change)
            fold.progress = change.progress
            if change.operation == what and change.document_id == key:
                return


@pytest.mark.parametrize("seed", [0])
async def test_a_copy_survives_kill_9_and_ends_with_what_is_there(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str, tmp_path: Path, seed: int
) -> None:
    """P19: the consumer, the rebuilt consumer and the collection are equal, deletes included."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_many({"_id": n, "n": 0} for n in range(DOCUMENTS))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"

    def configured(start: str, exclude: list[str]) -> Path:
        text = TEXT.format(
            uri=mongo.uri,
            database=mongo_database,
            start=start,
            exclude=json.dumps(exclude),
            grpc=address,
        )
        return configure(tmp_path, text)

    fold = Fold()
    config = configured("snapshot", [])
    with Service(config) as service:
        fold.progress = await asyncio.to_thread(oldest, service.ready["flight"])
        await seen(address, fold, "snapshot_completed")
    assert len(fold.rows) == DOCUMENTS
    configured("now", ["orders"])
    with Service(config):
        await seen(address, fold, "scope_changed")
        orders.delete_many({"_id": {"$gte": DOCUMENTS - 500}})
        mongo_client[mongo_database]["other"].insert_one({"_id": "behind"})
        await seen(address, fold, "insert", "behind")

    configured("now", [])
    stop = threading.Event()
    writing = threading.Thread(
        target=write, args=(mongo.uri, mongo_database, random.Random(seed), stop)
    )
    writing.start()
    try:
        with Service(config) as service:
            await seen(address, fold, "scope_changed")
            asked = ("snapshot", "shop", "orders", "--config", str(config), "--json")
            done = await asyncio.to_thread(spawn, *asked)
            assert done.code == 0, done.err
            assert json.loads(done.out) == {
                "source": "shop",
                "collections": [f"{mongo_database}.orders"],
                "tellsDeletes": True,
            }
            pids: dict[str, int] = service.ready["pids"]
            for role in rng.sample(["capture", "serve"], 2):
                await copied_rows(address, fold, rng.randrange(100, 300))
                await asyncio.to_thread(service.kill, role, pids[role])
            await copied_rows(address, fold, rng.randrange(100, 300))
            # The parent: its children die with it.
            service.process.kill()
        with Service(config):
            await seen(address, fold, "snapshot_reconciled")
            rebuilt = await taken(address)
            stop.set()
            await asyncio.to_thread(writing.join)
            for one in (fold, rebuilt):
                await seen(address, one, "insert", "last")
        expected = {str(row["_id"]): row for row in orders.find()}
        assert fold.rows == expected
        assert rebuilt.rows == expected
        assert fold.deletes_told >= 500
    finally:
        stop.set()
        writing.join()


async def copied_rows(address: str, fold: Fold, count: int) -> None:
    """Follow until so many rows of a copy came."""
    async with follow(address, after=fold.progress, control_events=True) as changes:
        async for change in changes:
            fold.take(change)
            fold.progress = change.progress
            count -= getattr(change.event, "snapshot", False)
            if count <= 0:
                return


async def taken(address: str) -> Fold:
    """What a consumer rebuilds once the state has come to the end of the copy."""

    async def whole() -> Fold | None:
        fold = Fold()
        try:
            async with snapshot(address, collections=["shop/orders"]) as rows:
                async for row in rows:
                    fold.take(row)
        except StateIncompleteError:
            return None
        fold.progress = rows.progress
        return fold

    return await until(whole)
