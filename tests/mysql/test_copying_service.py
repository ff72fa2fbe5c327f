"""Copies of a running service: `penstock snapshot`, kill -9, and a gap that a copy closes."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.cli.tail import oldest
from penstock.client import follow, snapshot
from penstock.client.change import Change
from penstock.errors import StateIncompleteError
from penstock.event import ChangeEvent, Kind
from tests.cli.service import Service, configure, spawn
from tests.mysql.conftest import on
from tests.mysql.support import numbers, purge, run
from tests.seeds import seed_of
from tests.waiting import until
from tests_support.servers import SqlServer, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 1500
TEXT = """
[log]
path = "log"
free_bytes_min = 0
[state]
free_bytes_min = 0
[sources.shop]
type = "mysql"
port = {port}
user = "root"
heartbeat_seconds = 0.5
heartbeat_deadline_seconds = 20
snapshot_chunk_documents = 100
include = ["shop.*"]
start = "snapshot"
on_position_lost = "{lost}"
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
        self.said: list[str] = []

    def take(self, change: Change) -> None:
        if change.kind is not Kind.DATA:
            self.said.append(change.operation)
        elif change.operation == "delete":
            self.rows.pop(change.document_id, None)
            assert isinstance(change.event, ChangeEvent)
            self.deletes_told += change.event.snapshot
        elif change.document is not None:
            self.rows[change.document_id] = change.document


async def seen(address: str, fold: Fold, what: str, key: str = "") -> None:
    """Follow everything until that operation (of that row)."""
    async with follow(address, after=fold.progress, control_events=True) as changes:
        async for change in changes:
            fold.take(change)
            fold.progress = change.progress
            if change.operation == what and change.document_id == key:
                return


async def captured(address: str, fold: Fold) -> None:
    """Follow until a row's change comes: the source is captured."""
    async with follow(address, after=fold.progress, control_events=True) as changes:
        async for change in changes:
            fold.take(change)
            fold.progress = change.progress
            if change.kind is Kind.DATA:
                return


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


def write(server: SqlServer, rng: random.Random, stop: threading.Event) -> None:
    """To the first half of the rows."""
    with server.connect(database="shop") as db:
        while not stop.wait(0.002):
            key = rng.randrange(ROWS // 2)
            if rng.random() < 0.5:
                run(db, f"REPLACE INTO orders VALUES ({key}, {rng.randrange(1000)})")
            else:
                run(db, f"DELETE FROM orders WHERE id = {key}")
        run(db, "INSERT INTO orders VALUES (-1, 0)")


def contents(db: "pymysql.connections.Connection[Any]") -> dict[str, Any]:
    return {str(key): {"id": key, "n": n} for key, n in run(db, "SELECT id, n FROM shop.orders")}


def prepared(db: "pymysql.connections.Connection[Any]") -> None:
    run(db, "CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT)")
    run(db, "USE shop", f"INSERT INTO orders SELECT seq, 0 FROM {numbers(0, ROWS - 1)}")


@on("mariadb", soak=("mysql", "files"))
async def test_a_copy_survives_kill_9_and_ends_with_what_is_there(
    start: Callable[..., SqlServer], tmp_path: Path
) -> None:
    """A29, P19: the consumer, the rebuilt consumer and the table are equal."""
    rng = random.Random(seed_of("mysql-copy-service"))
    server, (port,) = start(), free_ports(1)
    address = f"127.0.0.1:{port}"
    config = configure(tmp_path, TEXT.format(port=server.port, grpc=address, lost="halt"))
    stop, fold = threading.Event(), Fold()
    writing = threading.Thread(target=write, args=(server, rng, stop))
    with server.connect() as db:
        prepared(db)
        with Service(config) as service:
            fold.progress = await asyncio.to_thread(oldest, service.ready["flight"])
            await seen(address, fold, "snapshot_completed")
        assert fold.rows == contents(db)
        writing.start()
        try:
            with Service(config) as service:
                await captured(address, fold)
                asked = ("snapshot", "shop", "shop.orders", "--config", str(config), "--json")
                done = await asyncio.to_thread(spawn, *asked)
                assert done.code == 0, done.err
                assert json.loads(done.out) == {
                    "source": "shop",
                    "collections": ["shop.orders"],
                    "tellsDeletes": True,
                }
                pids: dict[str, int] = service.ready["pids"]
                for role in rng.sample(["capture", "serve"], 2):
                    await copied_rows(address, fold, rng.randrange(100, 300))
                    await asyncio.to_thread(service.kill, role, pids[role])
                await copied_rows(address, fold, rng.randrange(100, 200))
                # The parent: its children die with it.
                service.process.kill()
            with Service(config):
                await seen(address, fold, "snapshot_reconciled")
                rebuilt = await taken(address)
                stop.set()
                await asyncio.to_thread(writing.join)
                for one in (fold, rebuilt):
                    await seen(address, one, "insert", "-1")
            assert fold.rows == contents(db)
            assert rebuilt.rows == contents(db)
            assert fold.said.count("snapshot_started") == 2, "it went on after each kill"
        finally:
            stop.set()
            writing.join()


@on("mysql", soak=("mariadb", "files"))
async def test_a_lost_position_is_made_good_by_a_copy_that_tells_deletes_and_closes_the_gap(
    start: Callable[..., SqlServer], tmp_path: Path
) -> None:
    """S7, P19."""
    server, (port,) = start(), free_ports(1)
    address = f"127.0.0.1:{port}"
    config = configure(tmp_path, TEXT.format(port=server.port, grpc=address, lost="snapshot"))
    fold = Fold()
    with server.connect() as db:
        prepared(db)
        with Service(config) as service:
            fold.progress = await asyncio.to_thread(oldest, service.ready["flight"])
            await seen(address, fold, "snapshot_completed")
        # Nobody is there when this happens, and then it is gone.
        run(db, "DELETE FROM orders WHERE id >= 1000", "UPDATE orders SET n = 7 WHERE id < 10")
        run(db, "FLUSH BINARY LOGS")
        purge(db)
        with Service(config):
            await seen(address, fold, "gap_closed")
            rebuilt = await taken(address)
        assert fold.rows == rebuilt.rows == contents(db)
        assert fold.deletes_told == ROWS - 1000
        order = ["gap", "snapshot_started", "snapshot_completed", "snapshot_reconciled"]
        assert [said for said in fold.said if said in {*order, "gap_closed"}] == [
            "snapshot_started",
            "snapshot_completed",
            *order,
            "gap_closed",
        ]


@on("mariadb", soak=("mysql", "files"))
async def test_rows_under_the_key_of_before_an_alter_are_told_as_deleted(
    start: Callable[..., SqlServer], tmp_path: Path
) -> None:
    """Invariant 4: the consumer, the rebuilt consumer and the table are equal."""
    server, (port,) = start(), free_ports(1)
    address = f"127.0.0.1:{port}"
    config = configure(tmp_path, TEXT.format(port=server.port, grpc=address, lost="snapshot"))
    fold = Fold()
    with server.connect() as db:
        prepared(db)
        with Service(config) as service:
            fold.progress = await asyncio.to_thread(oldest, service.ready["flight"])
            await seen(address, fold, "snapshot_completed")
            run(db, "ALTER TABLE orders MODIFY id DECIMAL(9)", "DELETE FROM orders WHERE id = 0")
            await seen(address, fold, "gap_closed")
            rebuilt = await taken(address)
        there = {str(key) for (key,) in run(db, "SELECT id FROM shop.orders")}
    assert len(there) == ROWS - 1
    ids = {row["id"]["$numberDecimal"] for row in rebuilt.rows.values()}
    assert ids == there
    assert len(rebuilt.rows) == ROWS - 1
    assert fold.deletes_told == ROWS
    assert rebuilt.rows == fold.rows
