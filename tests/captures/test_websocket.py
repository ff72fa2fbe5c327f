"""Capture subscriptions over WebSocket."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from websockets.asyncio.client import ClientConnection, connect

from penstock.errors import RequestError
from penstock.progress import parse_progress
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.scope import Scope
from penstock.telemetry import SERVE_REGISTRY
from penstock.testing.contracts import CaptureServerContract
from penstock.testing.contracts.capturing import (
    CaptureEndpoint,
    changed,
    committed,
    singles,
    told,
)
from tests.captures.sockets import (
    SocketEndpoint,
    captured_by,
    closed,
    filled,
    opened,
    said,
    send,
    socket,
    web_server,
)
from tests.waiting import timeouts_of

pytestmark = pytest.mark.slow


class TestWebSocket(CaptureServerContract):
    @asynccontextmanager
    async def serving(self, service: CaptureService) -> AsyncGenerator[CaptureEndpoint]:
        async with web_server(service, scope_of=lambda _, __: self.scope) as address:
            yield SocketEndpoint(address)


def orders(**more: Any) -> dict[str, Any]:
    return {"criteria": [{"area": "data"}], "since": "beginning", **more}


async def test_every_breach_of_the_protocol_has_its_close_code() -> None:
    """E15: 4400, 4401, 4406, 4409, 4429; and a socket that says nothing, 4408."""
    async with filled(0) as (_, service), captured_by(service) as address:
        subscribe = {"type": "subscribe", "id": "a", "payload": orders()}
        init = {"type": "connection_init"}
        cases: list[tuple[list[Any], int]] = [
            (["no json"], 4400),
            (["[" * 100_000], 4400),
            ([[]], 4400),
            ([init, {"type": "nonsense", "id": "a", "payload": {}}], 4400),
            ([init, {"type": "subscribe", "payload": orders()}], 4400),
            ([init, {"type": "subscribe", "id": "a", "payload": None}], 4400),
            ([init, {"type": "subscribe", "id": "a", "payload": {"requests": {}}}], 4400),
            ([init, {"type": "request", "id": "a", "payload": {"n": "many"}}], 4400),
            ([init, {"type": "limit", "id": "a", "payload": {"requestIds": [1]}}], 4400),
            ([b"\x00\xff"], 4400),
            ([subscribe], 4401),
            ([init, subscribe, subscribe], 4409),
            ([init, init], 4429),
        ]
        for messages, code in cases:
            async with socket(address) as connection:
                for one in messages:
                    await connection.send(one if isinstance(one, str | bytes) else json.dumps(one))
                assert (await closed(connection))[0] == code, messages
        async with connect(f"ws://{address}/rest/shop/change-captures") as connection:
            assert (await closed(connection))[0] == 4406


async def test_a_silent_socket_is_closed_after_the_configured_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E15: pings do not count as an opening."""
    expire = timeouts_of(monkeypatch, 77.0)
    async with (
        filled(0, init_timeout=77.0) as (_, service),
        captured_by(service) as address,
        socket(address) as connection,
    ):
        await send(connection, "ping", payload={"n": 1})
        assert await said(connection) == {"type": "pong", "payload": {"n": 1}}
        expire()
        assert (await closed(connection))[0] == 4408


async def test_who_may_not_connect_is_told_so_and_nothing_else() -> None:
    """E15: 4403."""

    def nobody(_: HTTPConnection, __: Mapping[str, Any]) -> Scope:
        raise RequestError("who are you?")

    async with (
        filled(1) as (_, service),
        service.running(),
        web_server(service, scope_of=nobody) as address,
        socket(address) as connection,
    ):
        await send(connection, "connection_init")
        assert await closed(connection) == (4403, "Forbidden")


async def test_a_message_too_large_closes_its_socket() -> None:
    async with (
        filled(1, message_bytes_max=2048) as (_, service),
        captured_by(service) as address,
        opened(address) as connection,
        opened(address) as other,
    ):
        await connection.send(json.dumps({"type": "ping", "payload": "x" * 4096}))
        assert (await closed(connection))[0] == 1009
        await send(other, "ping")
        assert await said(other) == {"type": "pong"}


async def test_one_request_is_the_protocol_as_it_is_known() -> None:
    """next, complete after its count, error; unknown ids are ignored; a free id is free."""
    async with (
        filled(3) as (_, service),
        captured_by(service) as address,
        opened(address) as connection,
    ):
        await send(connection, "complete", id="unknown")
        await send(connection, "extend", id="unknown", payload={"requests": [orders()]})
        for _ in range(2):
            await send(connection, "subscribe", id="a", payload=orders(completeAfter=2))
            first, one, two, end = [await said(connection) for _ in range(4)]
            assert first["payload"]["data"]["confirmed"]["id"] == "a"
            assert [m["payload"]["data"]["version"] for m in (one, two)] == [1, 2]
            assert one["payload"]["data"]["requestIds"] == ["a"]
            assert end == {"id": "a", "type": "complete"}
        await send(connection, "subscribe", id="b", payload=orders(since="no marker"))
        error = await said(connection)
        assert (error["id"], error["type"]) == ("b", "error")
        assert error["payload"]["code"] == "MALFORMED"


async def test_many_subscriptions_share_a_socket_and_end_alone() -> None:
    async with (
        filled(2) as (log, service),
        captured_by(service) as address,
        opened(address) as connection,
    ):
        for name in "ab":
            await send(connection, "subscribe", id=name, payload=orders())
        seen: dict[str, list[int]] = {"a": [], "b": []}
        while len(seen["a"]) + len(seen["b"]) < 4:
            await note(connection, seen)
        await send(connection, "complete", id="a")
        await send(connection, "ping")
        while (await said(connection))["type"] != "pong":
            pass  # what was on its way
        await log.append(singles(3, 3))
        while len(seen["b"]) < 3:
            await note(connection, seen)
        assert seen == {"a": [1, 2], "b": [1, 2, 3]}
        assert service.subscriptions == 1


async def note(connection: ClientConnection, seen: dict[str, list[int]]) -> None:
    message = await said(connection)
    data = message["payload"]["data"]
    if "version" in data:
        seen[message["id"]].append(data["version"])


async def test_an_endpoint_of_a_catalog_shows_that_catalog_and_the_systems_shows_the_system() -> (
    None
):
    async with filled(0) as (log, service), captured_by(service) as address:
        other = committed(changed(2, source="erp"))
        await log.append([committed(changed(1)), other, committed(told(3, "started"))])
        asked = {"since": "beginning"}
        for path, expected in (
            ("shop", {("shop", "data"), ("shop", "infrastructure"), ("shop", "system")}),
            # What is about a whole source is about each of its catalogs.
            ("shop.db", {("shop", "data"), ("shop", "infrastructure"), ("shop", "system")}),
            ("erp", {("erp", "data"), ("erp", "infrastructure")}),
            ("none", set[tuple[str, str]]()),
            ("system", {("shop", "system")}),
        ):
            async with opened(address, f"/rest/{path}/change-captures") as connection:
                await send(connection, "subscribe", id="a", payload=asked)
                found: set[tuple[str, str]] = set()
                while True:
                    data = (await said(connection))["payload"]["data"]
                    if "area" in data:
                        found.add((data["source"], data["area"]))
                    marker = data.get("maintenance", {}).get("progress")
                    if marker and parse_progress(marker).sequence == 3:
                        break
                assert found == expected, path
        async with opened(address, "/rest/erp/change-captures") as connection:
            criteria = [{"site": {"catalog": "shop"}}]
            await send(connection, "subscribe", id="a", payload={"criteria": criteria})
            error = await said(connection)
            assert "this endpoint is of erp" in error["payload"]["message"]


async def test_more_messages_than_may_be_are_read_later_and_none_is_lost() -> None:
    async with (
        filled(0, messages_per_second=200) as (_, service),
        captured_by(service) as address,
        opened(address) as connection,
    ):
        for number in range(250):
            await send(connection, "ping", payload=number)
        answers = [(await said(connection))["payload"] for _ in range(250)]
        assert answers == list(range(250))


async def test_what_is_sent_is_counted() -> None:
    def value(name: str) -> float:
        return SERVE_REGISTRY.get_sample_value(name, {"protocol": "websocket"}) or 0.0

    before = value("penstock_events_published_total")
    async with (
        filled(3) as (_, service),
        captured_by(service) as address,
        opened(address) as connection,
    ):
        await send(connection, "subscribe", id="stays", payload=orders(since="now"))
        await said(connection)
        assert value("penstock_readers") == 1
        await send(connection, "subscribe", id="a", payload=orders(completeAfter=3))
        while (await said(connection))["type"] != "complete":
            pass
    assert value("penstock_events_published_total") == before + 3
    assert value("penstock_readers") == 0


async def test_a_subscription_that_never_began_holds_nothing_up() -> None:
    async with (
        filled(1) as (_, service),
        captured_by(service) as address,
        opened(address) as connection,
    ):
        await send(connection, "subscribe", id="a", payload=orders(since="no marker"))
        await send(connection, "request", id="a", payload={"n": 5})
        await send(connection, "ping")
        assert {(await said(connection))["type"] for _ in range(2)} == {"error", "pong"}


async def test_a_service_that_stops_closes_every_socket_and_says_so() -> None:
    async with (
        filled(1) as (_, service),
        web_server(service) as address,
        AsyncExitStack() as sockets,
    ):
        async with service.running():
            idle = await sockets.enter_async_context(opened(address))
            following = await sockets.enter_async_context(opened(address))
            await send(following, "subscribe", id="a", payload=orders())
            await said(following)
        assert (await closed(idle))[0] == 1012
        assert (await closed(following))[0] == 1012
