"""Clients of the HTTP transports, made of what anybody has: `websockets`, and plain sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from penstock.log.lmdb import LmdbLog
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import ScopeOf
from penstock.serve.captures.web import routes
from penstock.serve.listen import StreamLimits, listen
from penstock.subscribe.scope import EVERYTHING
from penstock.testing.contracts.capturing import (
    Asked,
    Heard,
    StreamEndedError,
    opened_log,
    singles,
)

REST = Subprotocol("rest-transport-ws")


@asynccontextmanager
async def listening(service: CaptureService, routes: Sequence[BaseRoute]) -> AsyncGenerator[str]:
    """A real server of these routes, with the service's limits; its address."""
    limits = StreamLimits(
        message_bytes_max=service.config.message_bytes_max,
        liveness_seconds=service.config.liveness_timeout,
    )
    async with await listen(
        Starlette(routes=routes), "127.0.0.1:0", connections_max=64, advice="no", streams=limits
    ) as server:
        yield server.address


@asynccontextmanager
async def web_server(
    service: CaptureService, *, scope_of: ScopeOf = lambda _, __: EVERYTHING
) -> AsyncGenerator[str]:
    """A real server of the HTTP transports; its address."""
    async with listening(service, routes(service, scope_of=scope_of)) as address:
        yield address


@asynccontextmanager
async def captured_by(service: CaptureService) -> AsyncGenerator[str]:
    """The same, with the service's own following."""
    async with service.running(), web_server(service) as address:
        yield address


def configured(**options: Any) -> CapturesConfig:
    return CapturesConfig.model_validate({"maintenance_interval": 0.05, **options})


@asynccontextmanager
async def filled(count: int, **options: Any) -> AsyncGenerator[tuple[LmdbLog, CaptureService]]:
    """A log with so many inserts, each a commit, and a service of it that does not run yet."""
    config = configured(**options)
    async with opened_log() as log:
        if count:
            await log.append(singles(1, count))
        yield log, CaptureService(log, lambda: config)


@asynccontextmanager
async def socket(
    address: str, path: str = "/rest/shop/change-captures", **options: Any
) -> AsyncGenerator[ClientConnection]:
    """A WebSocket that holds little itself: what is not read stays on the way."""
    options = {"subprotocols": [REST], "max_queue": 4, "compression": None, **options}
    async with connect(f"ws://{address}{path}", max_size=None, **options) as connection:
        try:
            yield connection
        finally:
            # Its closing handshake would wait for what nobody reads any more.
            connection.transport.abort()


@asynccontextmanager
async def opened(
    address: str, path: str = "/rest/shop/change-captures", **options: Any
) -> AsyncGenerator[ClientConnection]:
    """A WebSocket that was acknowledged."""
    async with socket(address, path, **options) as connection:
        await send(connection, "connection_init")
        assert (await said(connection))["type"] == "connection_ack"
        yield connection


async def send(connection: ClientConnection, kind: str, **fields: Any) -> None:
    await connection.send(json.dumps({"type": kind, **fields}))


async def said(connection: ClientConnection) -> dict[str, Any]:
    """The next message."""
    message: dict[str, Any] = json.loads(await connection.recv())
    return message


async def closed(connection: ClientConnection) -> tuple[int, str]:
    """The code and reason by which the server closes, after whatever else it says."""
    with contextlib.suppress(ConnectionClosed):
        async for _ in connection:
            pass
    assert connection.close_code is not None
    return connection.close_code, connection.close_reason or ""


def heard_of(
    given: dict[str, Any], error: dict[str, Any] | None, *, is_enveloped: bool = False
) -> Heard:
    """A message's data, in the contract's words."""
    wrong = {
        "code": (error or {}).get("code", ""),
        "message": (error or {}).get("message", ""),
        "oldest": (error or {}).get("oldest", (error or {}).get("after", "")),
    }
    if "confirmed" in given:
        one = given["confirmed"]
        return Heard(
            kind="confirmed",
            ids=(one["id"],),
            progress=one["progress"],
            version=one["version"],
            waiting=one.get("waiting", False),
        )
    if "maintenance" in given:
        one = given["maintenance"]
        progress = one.get("progress", "")
        return Heard(kind="maintenance", progress=progress, positions=one["positions"])
    if "finished" in given:
        return Heard(kind="finished", ids=(given["finished"]["id"],), **wrong)
    if "refused" in given:
        name = given["refused"].get("id")
        return Heard(kind="refused", ids=(name,) if name else (), **wrong)
    if is_enveloped:
        return Heard(kind="capture", said=given)
    return Heard(
        kind="capture",
        ids=tuple(given["requestIds"]),
        progress=given["progress"],
        version=given["version"],
        index=given["index"],
        area=given["area"],
        operation=given["operation"],
        entity_type=given.get("entityType", ""),
        body=given.get("body"),
        mutation_count=given.get("mutationCount", 0),
        matched=given.get("matched", {}),
    )


class SocketClient:
    """One subscription on a WebSocket: a `CaptureClient`."""

    def __init__(self, connection: ClientConnection, *, is_enveloped: bool = False) -> None:
        self._connection = connection
        self._is_enveloped = is_enveloped

    async def next(self) -> Heard:
        try:
            message = await said(self._connection)
        except ConnectionClosed:
            raise StreamEndedError from None
        assert message["id"] == "s"
        if message["type"] == "error":
            raise StreamEndedError(message["payload"]["code"])
        payload = message["payload"]
        error = payload.get("error")
        return heard_of(payload["data"], error, is_enveloped=self._is_enveloped)

    async def _send(self, kind: str, **payload: Any) -> None:
        await send(self._connection, kind, id="s", payload=payload)

    async def extend(self, *requests: Asked) -> None:
        await self._send("extend", requests=requests)

    async def change(self, request: Asked) -> None:
        await self._send("change", request=request)

    async def limit(self, *ids: str) -> None:
        await self._send("limit", requestIds=ids)

    async def cancel_all(self) -> None:
        await self._send("limit", all=True)

    async def request(self, count: int) -> None:
        await self._send("request", n=count)

    async def abort(self) -> None:
        self._connection.transport.abort()


class SocketEndpoint:
    """A `CaptureEndpoint` of a server."""

    def __init__(self, address: str) -> None:
        self._address = address

    @asynccontextmanager
    async def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AsyncGenerator[SocketClient]:
        async with opened(self._address) as connection:
            more: dict[str, Any] = {} if credit is None else {"credit": credit}
            if envelope:
                more["envelope"] = envelope
            await send(connection, "subscribe", id="s", payload={"requests": requests, **more})
            yield SocketClient(connection, is_enveloped=bool(envelope))


class Events:
    """A stream of server-sent events, read from a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._body = b""

    async def begin(self) -> None:
        """Read the head of the answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
        }

    async def body(self) -> Any:
        """The whole body, of an answer that ends, as JSON."""
        length = int(self.headers["content-length"])
        return json.loads(await self._reader.readexactly(length))

    async def text(self) -> str:
        """The whole body, of an answer that ends."""
        length = int(self.headers["content-length"])
        return (await self._reader.readexactly(length)).decode()

    async def json(self) -> Any:
        """The whole body, of an answer in chunks that ends, as JSON."""
        while size := int(await self._reader.readline(), 16):
            self._body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        return json.loads(self._body)

    async def event(self) -> dict[str, str]:
        """The next event that is no comment, by field. Raises EOFError at the end."""
        while True:
            while b"\n\n" not in self._body:
                size = int(await self._reader.readline(), 16)
                self._body += await self._reader.readexactly(size)
                await self._reader.readexactly(2)
                if not size:
                    raise EOFError
            one, _, self._body = self._body.partition(b"\n\n")
            lines = [line for line in one.decode().split("\n") if not line.startswith(":")]
            if lines:
                return {name: value for name, _, value in (line.partition(": ") for line in lines)}

    def abort(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def get(
    address: str, path: str, *, headers: dict[str, str] | None = None, method: str = "GET"
) -> AsyncGenerator[Events]:
    """An answer, whose head was read."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n{more}\r\n".encode())
    answer = Events(reader, writer)
    try:
        await answer.begin()
        yield answer
    finally:
        writer.transport.abort()


class EventsClient:
    """A `CaptureClient` that only listens."""

    def __init__(self, answer: Events, refused: list[Heard], *, is_enveloped: bool = False) -> None:
        self._answer = answer
        self._is_enveloped = is_enveloped
        self._refused = refused

    async def next(self) -> Heard:
        if self._refused:
            return self._refused.pop()
        if self._answer.status != 200:
            raise StreamEndedError
        try:
            event = await self._answer.event()
        except EOFError:
            raise StreamEndedError from None
        kind, data = event["event"], json.loads(event["data"])
        if kind in {"capture", "transaction"}:
            if self._is_enveloped:
                return heard_of(data, None, is_enveloped=True)
            marker, _, _ = str(event.get("id", data["progress"])).partition("*")
            assert marker in {data["progress"], "x"}
            return heard_of(data, None)
        if kind == "maintenance":
            marker = event.get("id") or ""
            assert "," in marker or marker.partition("*")[0] == data.get("progress", "")
        if kind == "error":
            if "id" not in data:
                raise StreamEndedError(data["code"])
            return heard_of({"finished": data}, data)
        return heard_of({kind: data}, None)

    async def abort(self) -> None:
        self._answer.abort()

    async def extend(self, *requests: Asked) -> None:
        raise NotImplementedError

    async def change(self, request: Asked) -> None:
        raise NotImplementedError

    async def limit(self, *ids: str) -> None:
        raise NotImplementedError

    async def cancel_all(self) -> None:
        raise NotImplementedError

    async def request(self, count: int) -> None:
        raise NotImplementedError


class EventsEndpoint:
    """A `CaptureEndpoint` of a server."""

    def __init__(self, address: str) -> None:
        self._address = address

    @asynccontextmanager
    async def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AsyncGenerator[EventsClient]:
        assert credit is None
        query = "&".join(f"request={quote(json.dumps(one))}" for one in requests)
        if envelope:
            query += f"&envelope={envelope}"
        async with get(self._address, f"/rest/shop/events?{query}") as answer:
            refused: list[Heard] = []
            if answer.status != 200:
                error = (await answer.body())["error"]
                if error["code"].startswith("service."):
                    raise StreamEndedError(error["code"])
                refused = [heard_of({"refused": {}}, error)]
            yield EventsClient(answer, refused, is_enveloped=bool(envelope))
