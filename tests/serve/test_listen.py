"""HTTP servers of every kind listen the same way."""

import asyncio
import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.serve.listen import listen


async def test_what_was_asked_is_waited_for_at_the_end_as_long_as_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not only for as long as those whose answers can be had again."""
    monkeypatch.setattr("penstock.serve.listen.GRACE_SECONDS", 0.01)
    begun = asyncio.Event()

    async def slow(_: Any) -> PlainTextResponse:
        begun.set()
        await asyncio.sleep(0.1)
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", slow)])
    async with await listen(
        app, "127.0.0.1:0", connections_max=4, advice="", stop_seconds=59.5
    ) as server:
        host, _, port = server.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await begun.wait()
    assert (await reader.read()).endswith(b"ok")
    writer.close()


async def test_answers_do_not_wait_for_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is written in two parts: with Nagle's algorithm the second waits 40 ms."""
    undelayed = list[bool]()

    async def told(_: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    protocol: Any = H11Protocol
    made = protocol.connection_made

    def seen(self: Any, transport: Any) -> None:
        connection = transport.get_extra_info("socket")
        undelayed.append(bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        made(self, transport)

    monkeypatch.setattr(protocol, "connection_made", seen)
    app = Starlette(routes=[Route("/", told)])
    async with await listen(app, "127.0.0.1:0", connections_max=4, advice="") as server:
        host, _, port = server.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"ok")
        writer.close()
    assert undelayed == [True]
