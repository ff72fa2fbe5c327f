"""From a store in this process, through `penstock run`, to a consumer."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import store
from penstock.cli.tail import oldest
from penstock.client import follow, snapshot
from penstock.client.change import Change
from penstock.event import Kind
from penstock.store import Store
from tests.cli.service import Service, configure, spawn
from tests.sources_store.support import make
from tests.waiting import patience, until
from tests_support.servers import free_ports

pytestmark = pytest.mark.slow

CONFIG = """
[log]
path = "log"
free_bytes_min = 0
[state]
free_bytes_min = 0
[sources.db]
type = "store"
path = "shop.store"
start = "snapshot"
[serve]
grpc = "{grpc}"
flight = "127.0.0.1:0"
http = "off"
"""


class Consumer:
    """What a consumer has of a service's tables."""

    def __init__(self, address: str, progress: str) -> None:
        self.address = address
        self.progress = progress
        self.rows: dict[tuple[str, str], Any] = {}
        self.told: list[Change] = []

    async def until(self, reached: Callable[[Change], bool]) -> None:
        """Follow, control events too, up to a change of which that holds."""
        changes = follow(self.address, after=self.progress, control_events=True)
        async with patience(), changes as following:
            async for change in following:
                self.progress = change.progress
                self.told.append(change)
                if change.kind is Kind.DATA:
                    place = (change.collection, change.document_id)
                    if change.operation == "delete":
                        self.rows.pop(place, None)
                    else:
                        self.rows[place] = change.document
                if reached(change):
                    return


def items(db: Store) -> dict[tuple[str, str], Any]:
    """What is in the store."""
    return {
        (table, str(item["id"])): item
        for table in db.list_tables()
        for item in db.scan(table).execute().items
    }


def says(operation: str, collection: str = "") -> Callable[[Change], bool]:
    """Holds of the event with that operation."""
    return lambda change: (change.operation, change.collection) == (operation, collection)


async def rebuilt(address: str, wanted: dict[tuple[str, str], Any]) -> None:
    """Ask for all rows, as whoever comes new, until the state has come to those wanted: it may be
    behind the log, and never says that all is known where it is not."""

    async def has_come() -> bool:
        return wanted == {
            (row.collection, row.document_id): row.document async for row in snapshot(address)
        }

    await until(has_come)


async def test_what_is_written_to_a_store_reaches_a_consumer_of_the_service(tmp_path: Path) -> None:
    """The configured path is relative to the file; the writer is another process than capture."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    config = configure(tmp_path, CONFIG.format(grpc=address))
    with store.open(tmp_path / "shop.store", sweep_seconds=None) as db:
        make(db, "orders", "customers")
        for number in range(50):
            db.put("orders", {"id": number, "total": number * 100})
        with Service(config) as service:
            progress = await asyncio.to_thread(oldest, service.ready["flight"])
            consumer = Consumer(address, progress)
            await consumer.until(says("snapshot_completed"))
            assert consumer.rows == items(db)
            assert {one.event.database for one in consumer.told if one.collection} == {"shop"}
            with db.transact() as transaction:
                transaction.put("customers", {"id": 1, "name": "Ada"})
                transaction.delete("orders", {"id": 0})
                transaction.put("orders", {"id": 1, "total": 5})
            await consumer.until(says("replace", "orders"))
            assert consumer.rows == items(db)
            make(db, "later")
            db.put("later", {"id": 7})
            await consumer.until(says("insert", "later"))
            await rebuilt(address, items(db))
            pid = service.ready["pids"]["capture"]
            db.put("later", {"id": 8})
            await asyncio.to_thread(service.kill, "capture", pid)
            db.disable_stream("later")
            db.put("later", {"id": 9})
            db.delete("later", {"id": 7})
            await consumer.until(says("gap", "later"))
            db.enable_stream("later", store.StreamViewType.NEW_AND_OLD_IMAGES)
            await consumer.until(says("snapshot_reconciled"))
            assert consumer.rows == items(db)
            await consumer.until(says("gap_closed"))
            asked = ("snapshot", "db", "orders", "--config", str(config), "--json")
            done = await asyncio.to_thread(spawn, *asked)
            assert json.loads(done.out)["collections"] == ["shop.orders"], done.err
            await consumer.until(says("snapshot_completed"))
            assert consumer.rows == items(db)
