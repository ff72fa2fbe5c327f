"""The endpoint for zero-cache over a real log with its current rows, and a client that folds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect

from penstock.event import AnyEvent, Commit
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.serve.access import Access
from penstock.serve.config import ServeConfig
from penstock.serve.health import Health
from penstock.serve.http import Told, serve_http
from penstock.serve.zero.service import ZeroService
from penstock.serve.zero.watermarks import read_watermark
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from tests.state.histories import change, copied_whole
from tests.waiting import patience, until

SHIPPED = {"appID": "zero", "shardNum": "0"}
DESIGN = {"shardID": "s1"}
ITEMS: dict[str, Any] = {
    "tables": {
        "item": {
            "source": "shop",
            "collection": "items",
            "columns": {"id": {"from": "_id", "type": "int"}, "name": "text"},
            "key": ["id"],
        }
    }
}
STATE = StateConfig(free_bytes_min=0, interval=0)


class Address(NamedTuple):
    """Where an endpoint of another process is."""

    address: str


class Endpoint:
    """A log, its current rows, and the endpoint over them."""

    def __init__(
        self, log: LmdbLog, keeper: StateKeeper, service: ZeroService, address: str
    ) -> None:
        self.log = log
        self.keeper = keeper
        self.service = service
        self.address = address
        self.position = 0

    async def append(self, *events: AnyEvent, source: str = "shop") -> int:
        """One commit; its number."""
        self.position += 1
        commit = Commit(source=source, position=str(1000 + self.position), events=events)
        await self.log.append([commit])
        return (await self.log.bounds()).head_commit

    async def put(self, key: int, collection: str = "items", **fields: Any) -> int:
        """A commit of one new document."""
        document = {"_id": key, **fields}
        return await self.append(
            change("shop", collection, key, document=document, position=self.position + 2)
        )

    async def applied(self) -> None:
        """The current rows have all of the log."""
        head = (await self.log.bounds()).head
        await until(lambda: self.keeper.applied.sequence >= head)


class Serving(NamedTuple):
    """What serves a log."""

    keeper: StateKeeper
    service: ZeroService
    address: str


@asynccontextmanager
async def serving(
    log: Any, path: Path, address: str = "127.0.0.1:0", *, access: Access | None = None, **zero: Any
) -> AsyncGenerator[Serving]:
    """The endpoint over a log that is open, with its current rows."""
    given = {"status_interval": 0.02, **(zero if zero.get("tables") else {**ITEMS, **zero})}
    serve = ServeConfig.model_validate({"http": address, "zero": given})
    assert serve.zero is not None
    async with contextlib.AsyncExitStack() as stack:
        keeper = StateKeeper(log, path, STATE)
        keeper.start()
        stack.push_async_callback(asyncio.to_thread, keeper.close)
        service = await stack.enter_async_context(
            ZeroService.running(log, keeper, path, serve.zero)
        )
        told = Told(health=_health, ready=_ready, metrics=_metrics, access=access, zero=service)
        server = await stack.enter_async_context(await serve_http(serve, told))
        stack.push_async_callback(service.stop)
        yield Serving(keeper, service, server.address)


@asynccontextmanager
async def opened(path: Path, **config: Any) -> AsyncGenerator[LmdbLog]:
    """A log whose source was copied whole."""
    log = LmdbLog(LogConfig(path=path, free_bytes_min=0, **config))
    try:
        if not (await log.bounds()).head:
            await log.append(copied_whole("shop"))
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def served(
    path: Path, *, access: Access | None = None, **zero: Any
) -> AsyncGenerator[Endpoint]:
    """The endpoint over the log at `path`, which is made, and whose source was copied whole."""
    async with opened(path) as log, serving(log, path, access=access, **zero) as server:
        endpoint = Endpoint(log, *server)
        await endpoint.applied()
        yield endpoint


async def _health() -> Health:
    raise NotImplementedError


async def _ready() -> bool:
    return True


async def _metrics() -> bytes:
    return b""


class Replica:
    """What a zero-cache has: tables and rows, as of the last transaction that it was told whole."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.watermark = ""
        self.version = ""
        """Of the snapshot."""
        self.statuses: list[str] = []
        self.transactions: list[str] = []
        self.resets: list[str] = []
        self._open: tuple[str, Any, Any] | None = None

    def take(self, message: list[Any]) -> str:
        """Apply a message; returns its tag."""
        tag: str = message[0]
        match tag:
            case "begin":
                mark = message[2]["commitWatermark"]
                assert self._open is None
                assert mark > self.watermark, (mark, self.watermark)
                copied = {
                    name: {key: dict(row) for key, row in rows.items()}
                    for name, rows in self.rows.items()
                }
                self._open = mark, dict(self.tables), copied
            case "data":
                assert self._open is not None
                self._change(message[1])
            case "commit":
                assert self._open is not None
                assert self._open[0] == message[2]["watermark"]
                self.watermark = self._open[0]
                self.version = self.version or self.watermark
                self.transactions.append(self.watermark)
                self._open = None
            case "rollback":
                self.abandon()
            case "status":
                assert self._open is None
                assert message[2]["watermark"] > max([self.watermark, *self.statuses[-1:]])
                self.statuses.append(message[2]["watermark"])
            case "control" if message[1]["tag"] == "reset-required":
                self.resets.append(message[1]["message"])
            case "control":
                assert message[1]["tag"] == "ack-requested"
                self.statuses.append(message[1]["latestUpstreamWatermark"])
            case _:
                raise AssertionError(message)
        return tag

    def abandon(self) -> None:
        """Forget the transaction that is open."""
        if self._open is not None:
            _, self.tables, self.rows = self._open
            self._open = None

    def _change(self, change: dict[str, Any]) -> None:
        tag = change["tag"]
        if tag in {"insert", "update", "delete"}:
            name = _name(change["relation"])
            key_columns = change["relation"]["rowKey"]["columns"]
            rows, columns = self.rows[name], self.tables[name]["columns"]
            if tag == "delete":
                rows.pop(tuple(change["key"][one] for one in key_columns), None)
                return
            new = change["new"]
            assert new.keys() <= columns.keys(), "a column that was not announced (Z7)"
            at = tuple(new[one] for one in key_columns)
            before = rows.get(at, {}) if tag == "update" else {}
            row = {**dict.fromkeys(columns), **before, **new}
            rows[at] = row
            for column, spec in columns.items():
                assert not (spec.get("notNull") and row[column] is None)
        elif tag == "create-table":
            self.tables = {**self.tables, _name(change["spec"]): dict(change["spec"])}
            self.rows[_name(change["spec"])] = {}
        elif tag == "create-index":
            spec = change["spec"]
            name = (
                spec["tableName"]
                if spec["schema"] == "public"
                else (f"{spec['schema']}.{spec['tableName']}")
            )
            columns = self.tables[name]["columns"]
            assert spec["unique"]
            assert all(columns[one]["notNull"] for one in spec["columns"])
            self.tables = {**self.tables, name: {**self.tables[name], "index": spec["columns"]}}
        elif tag == "add-column":
            name = _name(change["table"])
            column = change["column"]
            table = self.tables[name]
            columns = {**table["columns"], column["name"]: column["spec"]}
            self.tables = {**self.tables, name: {**table, "columns": columns}}
            for row in self.rows[name].values():
                row[column["name"]] = None
        elif tag == "truncate":
            for one in change["relations"]:
                self.rows[_name(one)] = {}
        elif tag == "rename-table":
            old, new = _name(change["old"]), _name(change["new"])
            assert new not in self.tables
            self.tables = {new if n == old else n: t for n, t in self.tables.items()}
            self.rows[new] = self.rows.pop(old)
        elif tag == "drop-table":
            self.tables = {n: t for n, t in self.tables.items() if n != _name(change["id"])}
            del self.rows[_name(change["id"])]
        else:
            raise AssertionError(change)

    def resuming(self) -> dict[str, str]:
        """The parameters by which it goes on."""
        return {"lastWatermark": self.watermark, "replicaVersion": self.version}

    @property
    def commit(self) -> int:
        """The number of its last commit."""
        return read_watermark(self.watermark).commit


def _name(table: dict[str, Any]) -> str:
    name: str = table["name"]
    return name if table["schema"] == "public" else f"{table['schema']}.{name}"


def url(endpoint: Endpoint | Address, **parameters: Any) -> str:
    """Where a client connects."""
    query = urlencode(parameters or SHIPPED, doseq=True)
    return f"ws://{endpoint.address}/changes/v0/stream?{query}"


@asynccontextmanager
async def connection(
    endpoint: Endpoint | Address, **parameters: Any
) -> AsyncGenerator[ClientConnection]:
    """A WebSocket that holds little itself."""
    async with connect(
        url(endpoint, **parameters), max_queue=4, compression=None, max_size=None
    ) as socket:
        try:
            yield socket
        finally:
            socket.transport.abort()


async def message(socket: ClientConnection) -> list[Any]:
    """The next one."""
    found: list[Any] = json.loads(await socket.recv())
    return found


async def fold(socket: ClientConnection, replica: Replica, until: int | None = None) -> Replica:
    """Apply what comes, to the end of a transaction that is at or behind commit `until`."""
    async with patience():
        while True:
            tag = replica.take(await message(socket))
            if tag == "commit" and replica.commit >= (until or 0):
                return replica


async def ack(socket: ClientConnection, watermark: str, *, of_rows: bool = True) -> None:
    """As zero-cache does it."""
    said = {"tag": "commit"} if of_rows else {"ack": True}
    await socket.send(json.dumps(["status", said, {"watermark": watermark}]))
