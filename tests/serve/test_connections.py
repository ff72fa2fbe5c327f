"""Connections of HTTP that ask for nothing, or for nonsense: they cost others nothing."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from penstock.serve.access import TlsConfig
from penstock.serve.connections import HALF_OPEN_MAX
from penstock.serve.listen import HttpServer, StreamLimits, listen
from penstock.telemetry import SERVE_REGISTRY
from tests.access.certificates import Authority

LARGE = 8 << 20


def counted(protocol: str, code: str) -> float:
    labels = {"protocol": protocol, "code": code}
    return SERVE_REGISTRY.get_sample_value("penstock_publish_errors_total", labels) or 0.0


def request(path: str = "/", *more: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *more, "", "")).encode()


@asynccontextmanager
async def small(
    *, connections_max: int = 2, tls: TlsConfig | None = None, seconds: float = 60.0
) -> AsyncGenerator[HttpServer]:
    """A server of two connections, which answers at once, and a socket that stays."""

    async def told(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def large(_: Request) -> Response:
        return Response(b"x" * LARGE)

    async def broken(_: Request) -> Response:
        raise ValueError("a document")

    async def socket_(connection: WebSocket) -> None:
        await connection.accept()
        with contextlib.suppress(Exception):
            await connection.receive()

    routes = [
        *(Route("/", told), Route("/large", large), Route("/broken", broken)),
        WebSocketRoute("/socket", socket_),
    ]
    limits = StreamLimits(message_bytes_max=1 << 10, liveness_seconds=60)
    async with await listen(
        Starlette(routes=routes),
        "127.0.0.1:0",
        connections_max=connections_max,
        advice="",
        tls=tls,
        streams=limits,
        keep_alive_seconds=60,
        request_seconds=seconds,
    ) as server:
        yield server


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def line_to(
    stack: AsyncExitStack, address: str, context: ssl.SSLContext | None = None
) -> Line:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)

    def hang_up(kept: asyncio.StreamWriter) -> None:
        kept.transport.abort()

    # As an argument it is kept: who lets go of it hangs up.
    stack.callback(hang_up, writer)
    return reader, writer


async def answered(line: Line, asked: bytes) -> bytes:
    line[1].write(asked)
    head = await line[0].readuntil(b"\r\n\r\n")
    return head.split()[1]


@pytest.mark.slow
async def test_who_had_an_answer_and_stays_keeps_nobody_out() -> None:
    """A connection that is kept alive, or whose request is not whole though it was answered."""
    late = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    for asked in (request(), late):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(small())
            for _ in range(5):
                line = await line_to(stack, server.address)
                assert await answered(line, asked) == b"200"
            line = await line_to(stack, server.address)
            assert await answered(line, request()) == b"200"


async def test_sockets_still_count_and_a_connection_that_was_idle_counts_again() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small())
        idle = await line_to(stack, server.address)
        assert await answered(idle, request()) == b"200"
        for _ in range(2):
            await stack.enter_async_context(connect(f"ws://{server.address}/socket"))
        assert await answered(idle, request()) == b"503"


async def test_a_socket_over_the_limit_is_refused() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small())
        address = f"ws://{server.address}/socket"
        for _ in range(2):
            await stack.enter_async_context(connect(address))
        with pytest.raises(InvalidStatus) as caught:
            await stack.enter_async_context(connect(address))
        assert caught.value.response.status_code == 503


@pytest.mark.slow
async def test_who_sends_pings_and_takes_no_pongs_is_cut_off_soon() -> None:
    """Long before its connection is found to be dead: pongs would gather meanwhile."""
    ping = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small())
        line = await line_to(stack, server.address)
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
        more = ("Connection: Upgrade", "Upgrade: websocket", key, "Sec-WebSocket-Version: 13")
        assert await answered(line, request("/socket", *more)) == b"101"
        transport: Any = line[1].transport
        transport.pause_reading()

        async def ping_on() -> int:
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    line[1].write(ping)
                    await line[1].drain()
                    sent += len(ping)
            return sent

        assert await ping_on() < 64 << 20


@pytest.mark.slow
async def test_of_those_that_are_kept_alive_the_oldest_go_when_there_are_too_many() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small())
        lines: list[Line] = []
        for _ in range(HALF_OPEN_MAX + 1):
            lines.append(await line_to(stack, server.address))
            assert await answered(lines[-1], request()) == b"200"
            await lines[-1][0].readexactly(2)
        assert await lines[0][0].read() == b""  # closed, without an answer that nobody asked for
        assert await answered(lines[-1], request()) == b"200"


@pytest.mark.parametrize("encrypted", [False, True])
async def test_an_answer_that_is_on_its_way_when_the_server_stops_arrives_whole(
    tmp_path: Path, encrypted: bool
) -> None:
    """And who was connected then is gone when it has stopped."""
    authority = Authority()
    tls = tls_of(tmp_path, authority) if encrypted else None
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small(tls=tls))
        context = trusting if encrypted else None
        idle = await line_to(stack, server.address, context)
        assert await answered(idle, request()) == b"200"
        line = await line_to(stack, server.address, context)
        assert await answered(line, request("/large")) == b"200"
        stopping = asyncio.create_task(server.stop())
        found = await line[0].read()
        while part := await line[0].read():
            found += part
        assert len(found) == LARGE
        line[1].close()
        await stopping
        assert await idle[0].read() in {b"ok", b""}


# --- handshakes ---------------------------------------------------------------------------------


def tls_of(folder: Path, authority: Authority) -> TlsConfig:
    certificate, key = authority.sign("localhost").write(folder, "server")
    return TlsConfig(certificate=certificate, key=key)


@pytest.mark.slow
async def test_who_never_shakes_hands_is_hung_up_on(tmp_path: Path) -> None:
    """Not after asyncio's minute: as soon as who never asks."""
    authority = Authority()
    tls = tls_of(tmp_path, authority)
    before = counted("http", "handshake")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small(tls=tls, seconds=0.2))
        silent = [await line_to(stack, server.address) for _ in range(3)]
        silent[1][1].write(b"\x16\x03\x01")
        silent[2][1].write(b"GET / HTTP/1.1\r\n\r\n")
        for reader, _ in silent:
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):
                    pass
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        line = await line_to(stack, server.address, trusting)
        assert await answered(line, request()) == b"200"
    assert counted("http", "handshake") == before + 3


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
async def test_too_many_that_never_begin_are_closed_oldest_first_and_keep_nobody_out(
    tmp_path: Path, encrypted: bool
) -> None:
    authority = Authority()
    trusting, tls = None, None
    if encrypted:
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        tls = tls_of(tmp_path, authority)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(small(tls=tls))
        silent = [await line_to(stack, server.address) for _ in range(HALF_OPEN_MAX + 50)]
        line = await line_to(stack, server.address, trusting)
        assert await answered(line, request()) == b"200"
        for reader, _ in silent[:50]:
            with contextlib.suppress(ConnectionError):
                assert (await reader.read())[:12] == (b"" if encrypted else b"HTTP/1.1 408")
        assert not silent[-1][0].at_eof()


async def test_what_clients_do_wrong_is_counted_and_not_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """For they could fill a disk; nor is any path, which has tickets and keys in it."""
    upgrade = request("/", "Connection: Upgrade", "Upgrade: h2c")
    wrong = {"invalid": b"\x00\r\n\r\n", "upgrade": upgrade}
    before = {code: counted("http", code) for code in (*wrong, "busy")}
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(small(connections_max=1))
            for asked in wrong.values():
                await answered(await line_to(stack, server.address), asked)
            await stack.enter_async_context(connect(f"ws://{server.address}/socket?ticket=secret"))
            line = await line_to(stack, server.address)
            assert await answered(line, request("/?ticket=secret")) == b"503"
    assert {code: counted("http", code) - was for code, was in before.items()} == dict.fromkeys(
        before, 1.0
    )
    assert lines == []
    assert "secret" not in caplog.text.replace("> GET", "") or not _of_uvicorn(caplog)
    assert capfd.readouterr().err == ""


def _of_uvicorn(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name.startswith("uvicorn")]


async def test_of_an_answer_that_breaks_the_log_has_the_kind_of_error_and_not_its_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with capture_logs() as lines:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(small())
            line = await line_to(stack, server.address)
            assert await answered(line, request("/broken")) == b"500"
            assert b"a document" not in await line[0].read()
    assert [(one["event"], one["error"]) for one in lines] == [("an answer broke", "ValueError")]
    assert "a document" not in f"{lines}{caplog.text}{capfd.readouterr().err}"
