"""Clients that mean harm: each gets a defined answer, and nobody else notices.

A real `penstock run` is attacked while two clients follow it, over WebSocket and SSE. After each
attack the same serve process is there, its memory is what it was, and they missed nothing.
"""

import asyncio
import contextlib
import json
import random
import resource
import socket as plain
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from penstock.serve.connections import HALF_OPEN_MAX
from tests.captures.sockets import REST, closed, get, opened, said, send, socket
from tests.children import standing_still
from tests.cli.service import SHOP, Service, configure
from tests.seeds import seed_of
from tests.waiting import patience, until

pytestmark = pytest.mark.slow

GROWN_MB_MAX = 96.0
"""Of anonymous memory, above what the process has when it serves the two that follow. The most that
any takes is 66: twenty requests of 32,000 names each, which are served."""
SETTINGS = """
request_timeout = 2
[serve.captures]
subscriptions_max = 200
init_timeout = 2
liveness_timeout = 6
maintenance_interval = 0.5
messages_per_second = 100000
"""
PATH = "/rest/shop/change-captures"
DATA = {"criteria": [{"area": "data"}], "since": "beginning"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    folder = tmp_path_factory.mktemp("hostile")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with Service(configure(folder, SHOP.format(rate=40) + SETTINGS)) as running:
            yield running
            assert running.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def anonymous_mb(pid: int) -> float:
    """RssAnon of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) / 1024


Place = tuple[int, int]


async def follow_socket(address: str, found: list[Place]) -> None:
    async with opened(address) as connection:
        await send(connection, "subscribe", id="s", payload=DATA)
        while True:
            data = (await said(connection))["payload"]["data"]
            if "version" in data:
                found.append((data["version"], data["index"]))


async def follow_events(address: str, found: list[Place]) -> None:
    async with get(address, "/rest/shop/events?since=beginning&area=data") as answer:
        while True:
            event = await answer.event()
            if event["event"] == "capture":
                data = json.loads(event["data"])
                found.append((data["version"], data["index"]))


async def reach(found: list[Place], last: Place, task: "asyncio.Task[None]") -> None:
    """Wait until a client has heard of `last`."""
    await until(lambda: found and found[-1] >= last, f"{last}", task=task)


async def head(address: str) -> Place:
    """The newest change now: where a new client stands."""
    async with opened(address) as connection:
        asked = {**DATA, "since": "now", "completeAfter": 1}
        await send(connection, "subscribe", id="s", payload=asked)
        while "version" not in (data := (await said(connection))["payload"]["data"]):
            pass
        return data["version"], data["index"]


@asynccontextmanager
async def attacked(service: Service) -> AsyncGenerator[str]:
    """The block attacks the address; afterwards all must be as if it had not."""
    address = service.ready["http"]
    pid = service.ready["pids"]["serve"]
    sockets: list[Place] = []
    events: list[Place] = []
    most = 0.0

    async def measure() -> None:
        nonlocal most
        while True:
            most = max(most, anonymous_mb(pid))
            await asyncio.sleep(0.05)

    following = [
        asyncio.create_task(follow_socket(address, sockets)),
        asyncio.create_task(follow_events(address, events)),
    ]
    try:
        for found, task in zip((sockets, events), following, strict=True):
            await reach(found, (1, 1), task)
        before = anonymous_mb(pid)
        measuring = asyncio.create_task(measure())
        following.append(measuring)
        yield address
        async with patience():
            last = await head(address)
            for found, task in zip((sockets, events), following, strict=False):
                await reach(found, last, task)
        again: list[Place] = []
        following.append(asyncio.create_task(follow_socket(address, again)))
        await reach(again, last, following[-1])
        end = again.index(last) + 1
        assert sockets[:end] == again[:end]
        assert events[:end] == again[:end]
        print(f"{before:.0f} MB, at most {most:.0f}")
        assert most - before < GROWN_MB_MAX
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    assert anonymous_mb(pid)  # the same process
    assert service.process.code is None
    assert "Traceback" not in service.errors()
    assert "broke" not in service.errors()


async def answers(connection: ClientConnection) -> bool:
    """Whether the socket still answers, whatever else it says first."""
    await send(connection, "ping", payload="are you there")
    with contextlib.suppress(ConnectionClosed):
        while True:
            if (await said(connection)) == {"type": "pong", "payload": "are you there"}:
                return True
    return False


def nonsense(draw: random.Random, depth: int = 0) -> Any:
    """Something of JSON that may look like what we speak."""
    words = "id type payload requests request criteria site area since scope n all complete "
    words += "requestIds subscribe extend change limit a s data any version catalog credit ping"
    kind = draw.randrange(9 if depth < 4 else 6)
    if kind < 3:
        return draw.choice(words.split())
    if kind < 6:
        return draw.choice([None, True, -1, 0, 1, 1 << 70, 1.5, 1e300, "", "\x00", "é" * 300])
    if kind == 6:
        return [nonsense(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(words.split()): nonsense(draw, depth + 1) for _ in range(draw.randrange(5))}


def frames(draw: random.Random) -> list[str | bytes]:
    """What one socket says after its opening."""
    found: list[str | bytes] = []
    for _ in range(draw.randrange(1, 12)):
        if draw.randrange(12) == 0:
            found.append(draw.randbytes(draw.randrange(200)))
            continue
        given: Any = {
            "type": draw.choice(["subscribe", "extend", "change", "limit", "request", "complete"]),
            "id": draw.choice(["a", "b", "", "é", nonsense(draw, 3)]),
            "payload": nonsense(draw)
            if draw.randrange(2)
            else {
                draw.choice(["requests", "request", "criteria", "n", "since", "all"]): nonsense(
                    draw
                )
            },
        }
        text = json.dumps(given if draw.randrange(8) else nonsense(draw))
        if draw.randrange(6) == 0:
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(["\ud7ff", '"', "}", "\x00", "\\ud800"]) + text[at:]
        found.append(text)
    return found


async def test_whatever_a_socket_says_it_is_answered_or_closed_with_a_code(
    service: Service,
) -> None:
    """E15. Seeded."""
    seed = seed_of("hostile frames")
    draw = random.Random(seed)
    async with attacked(service) as address:
        for _ in range(250):
            messages = frames(draw)
            async with opened(address) as connection:
                with contextlib.suppress(ConnectionClosed):
                    for one in messages:
                        await connection.send(one)
                if await answers(connection):
                    continue
                code = connection.close_code
                assert code in {4400, 4409, 4429}, (seed, code, messages)


async def raw(address: str, sent: bytes, *, first: bytes = b"") -> bytes:
    """All that a server says to these bytes until it closes; `first` is answered by a head."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        found = b""
        if first:
            writer.write(first)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
            while part := await reader.read(1 << 16):
                found += part
        return found
    finally:
        writer.transport.abort()


def upgrade(address: str, *more: str, path: str = PATH) -> bytes:
    """A handshake of a WebSocket."""
    lines = [
        *(f"GET {path} HTTP/1.1", f"Host: {address}", "Connection: Upgrade", "Upgrade: websocket"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"),
        *(f"Sec-WebSocket-Protocol: {REST}", *more, "", ""),
    ]
    return "\r\n".join(lines).encode()


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    """A frame as a client sends it."""
    return Frame(opcode, data, fin=fin).serialize(mask=True)


async def test_bytes_that_are_no_http_or_no_frames_end_their_connection(service: Service) -> None:
    draw = random.Random(seed_of("hostile bytes"))
    async with attacked(service) as address:
        for _ in range(60):
            found = await raw(address, draw.randbytes(draw.randrange(4, 400)) + b"\r\n\r\n")
            assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 408")), found
        for _ in range(60):
            # A frame that is not masked, or of a reserved kind, is no client's.
            sent = b"\x83" + draw.randbytes(200)
            found = await raw(address, sent, first=upgrade(address))
            assert struct.pack("!H", 1002) in found
        many = [f"X-{number}: x" for number in range(500)]
        for sent in (
            upgrade(address, "X-Long: " + "x" * 20_000),
            upgrade(address, *many),
            upgrade(address, path=PATH + "?" + "x" * 20_000),
            b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * (1 << 20),
        ):
            assert (await raw(address, sent)).startswith(b"HTTP/1.1 400")


async def test_a_message_too_large_or_in_too_many_pieces_closes_its_socket(
    service: Service,
) -> None:
    init = masked(Opcode.TEXT, b'{"type":"connection_init"}')
    async with attacked(service) as address:
        for sent, code in (
            (masked(Opcode.TEXT, b"x" * (2 << 20)), 1009),
            (
                masked(Opcode.TEXT, b"x", fin=False) + masked(Opcode.CONT, b"", fin=False) * 50_000,
                1009,
            ),
            (masked(Opcode.TEXT, b"\xff\xfe"), 1007),
            (masked(Opcode.TEXT, b'{"type":"pong"}') * 50_000, 1008),
        ):
            found = b""
            while not found:
                # What the server says last is lost with what it did not read, now and then.
                found = await raw(address, init + sent, first=upgrade(address))
            assert struct.pack("!H", code) in found, (code, found[-200:])


async def trickled(address: str, begun: bytes, byte: bytes, *, first: bytes = b"") -> bytes:
    """What the server says to who sends a byte now and then, behind `first` and its answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    if first:
        writer.write(first)
        await reader.readuntil(b"\r\n\r\n")

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(byte)
                await writer.drain()
                await asyncio.sleep(0.1)

    writer.write(begun)
    dripping = asyncio.create_task(drip())
    found = b""
    try:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 16):
                found += part
        return found
    finally:
        dripping.cancel()
        writer.transport.abort()


async def test_who_takes_for_ever_to_ask_is_told_that_it_is_too_late(service: Service) -> None:
    """Slow loris: on a request, its body, a second request, the handshake of a WebSocket, and
    what comes behind that."""
    async with attacked(service) as address:
        line = f"GET /health HTTP/1.1\r\nHost: {address}\r\n".encode()
        post = f"POST /health HTTP/1.1\r\nHost: {address}\r\nContent-Length: 9999\r\n\r\n".encode()
        request, body, second, handshake, message = await asyncio.gather(
            trickled(address, line, b"x"),
            trickled(address, post, b"x"),
            trickled(address, line + b"\r\n" + line, b"x"),
            trickled(address, upgrade(address)[:-2], b"x"),
            trickled(address, masked(Opcode.TEXT, b"x" * 9999)[:20], b"x", first=upgrade(address)),
        )
        assert request.startswith(b"HTTP/1.1 408")
        assert body.startswith(b"HTTP/1.1 405")
        assert second.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in second
        assert handshake.startswith(b"HTTP/1.1 408")
        assert struct.pack("!H", 4408) in message


async def test_a_thousand_connections_that_ask_nothing_keep_nobody_out(service: Service) -> None:
    async with attacked(service) as address, AsyncExitStack() as stack:
        host, _, port = address.rpartition(":")
        held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for number in range(1_000):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.transport.abort)
            held.append((reader, writer))
            if number % 100 == 0:
                async with get(address, "/health") as answer:
                    assert answer.status == 200
                await head(address)
        for reader, _ in held:
            assert (await reader.read()).startswith(b"HTTP/1.1 408")


async def test_many_that_connect_at_the_same_moment_and_ask_are_all_answered(
    service: Service,
) -> None:
    """Who asks is not taken for who does not."""

    pid = service.ready["pids"]["serve"]
    async with attacked(service) as address:
        # More than may be half open, fewer than may be open. The server finds all of them at once,
        # however slowly this process connects.
        host, _, port = address.rpartition(":")
        line = f"GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        with standing_still(pid):
            made = await asyncio.gather(
                *(asyncio.open_connection(host, int(port)) for _ in range(HALF_OPEN_MAX + 100))
            )
            for _, writer in made:
                writer.write(line)
        heads = [await reader.readuntil(b"\r\n") for reader, _ in made]
        for _, writer in made:
            writer.transport.abort()
        assert {head.split()[1] for head in heads} <= {b"200", b"503"}


async def test_more_sockets_than_there_may_be_are_told_to_come_back(service: Service) -> None:
    refused = 0
    async with attacked(service) as address, AsyncExitStack() as stack:
        for _ in range(250):
            connection = await stack.enter_async_context(socket(address))
            try:
                await send(connection, "connection_init")
                assert (await said(connection))["type"] == "connection_ack"
            except ConnectionClosed:
                assert connection.close_code == 1013
                refused += 1
        async with get(address, "/health") as answer:
            assert answer.status == 200
        await stack.aclose()
    assert refused


async def test_credit_beyond_counting_is_all_there_can_be(service: Service) -> None:
    async with attacked(service) as address, opened(address) as connection:
        await send(connection, "subscribe", id="s", payload={"requests": [DATA], "credit": 0})
        for count in (1 << 53, (1 << 63) - 1, 1 << 64, int("1" * 400), 1 << 53):
            await connection.send(
                json.dumps({"type": "request", "id": "s", "payload": {"n": count}})
            )
        heard = 0
        while heard < 50:
            heard += "version" in (await said(connection))["payload"]["data"]
        await send(connection, "request", id="s", payload={"n": 0})
        while (error := (await said(connection))["payload"].get("error")) is None:
            pass
        assert error["code"] == "request"
        for wrong in ("1e400", "-1", "1.5"):
            async with opened(address) as other:
                await other.send('{"type":"request","id":"s","payload":{"n":' + wrong + "}}")
                assert (await closed(other))[0] == 4400, wrong


async def test_filters_too_deep_or_too_many_are_refused_and_large_ones_are_served(
    service: Service,
) -> None:
    deep: Any = 1
    for _ in range(800):
        deep = {"a": deep}
    names = [f"name{number}" for number in range(1_000)]
    large = {"entityType": names, "catalog": names, "operation": names, "fields": names}
    wrong: list[dict[str, Any]] = [
        {"criteria": [{}] * 65},
        {"criteria": [{"area": "data", "site": {"entityType": [*names, "one more"]}}]},
        {"criteria": [{"site": {"entityType": "x" * 513}}]},
        {"id": "x" * 257},
        {"since": {"version": 1 << 70}},
    ]
    async with attacked(service) as address, opened(address) as connection:
        for number, given in enumerate(wrong):
            await send(connection, "subscribe", id=f"w{number}", payload=given)
            told = await said(connection)
            assert (told["id"], told["type"]) == (f"w{number}", "error")
            assert told["payload"]["code"] == "request"
            async with get(address, f"/rest/shop/events?request={quote(json.dumps(given))}") as sse:
                assert sse.status == 400
        keys = {"criteria": [{"area": "data", "site": {"entityPrimaryKey": [deep]}}]}
        await connection.send(json.dumps({"type": "subscribe", "id": "d", "payload": keys}))
        assert (await said(connection))["type"] in {"next", "error"}
        many = {"criteria": [{"area": "data", "site": large}] * 16}
        for number in range(20):
            await send(connection, "subscribe", id=f"l{number}", payload=many)
        assert await answers(connection)
        path = f"/rest/shop/events?request={quote('[' * 5_000)}"
        async with get(address, path) as sse:
            assert sse.status == 400


async def test_unknown_ids_are_ignored_or_refused(service: Service) -> None:
    async with attacked(service) as address, opened(address) as connection:
        for number in range(500):
            name = f"unknown{number}"
            await send(connection, "complete", id=name)
            await send(connection, "request", id=name, payload={"n": 1})
            await send(connection, "limit", id=name, payload={"requestIds": [name]})
            await send(connection, "extend", id=name, payload={"requests": [DATA]})
            await send(connection, "change", id=name, payload={"request": DATA})
        assert await answers(connection)


async def flood(address: str, messages: list[bytes]) -> None:
    """Say this again and again and read nothing, until the server ends it."""
    host, _, port = address.rpartition(":")
    unread = plain.socket()
    unread.setsockopt(plain.SOL_SOCKET, plain.SO_RCVBUF, 4096)
    unread.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(unread, (host, int(port)))
        await loop.sock_sendall(unread, upgrade(address))
        await loop.sock_recv(unread, 4096)
        await loop.sock_sendall(unread, masked(Opcode.TEXT, b'{"type":"connection_init"}'))
        with contextlib.suppress(ConnectionError):
            while True:
                for one in messages:
                    await loop.sock_sendall(unread, one)
    finally:
        unread.close()


def text(kind: str, **fields: Any) -> bytes:
    return masked(Opcode.TEXT, json.dumps({"type": kind, **fields}).encode())


@pytest.mark.parametrize(
    "messages",
    [
        [
            text("subscribe", id="s", payload={**DATA, "content": "body"}),
            text("complete", id="s"),
        ],
        [text("subscribe", id=f"s{n}", payload={"since": "x" * 9_000}) for n in range(2_000)],
        [
            text("subscribe", id="s", payload={"requests": []}),
            *[
                text("extend", id="s", payload={"requests": [{"since": "now"}] * 100}),
                text("limit", id="s", payload={"all": True}),
            ]
            * 500,
        ],
        [text("ping", payload="x" * 50_000)],
        [masked(Opcode.PING, b"x" * 125) * 500],
    ],
    ids=["subscribe and complete", "refused", "extend and limit", "ping", "ping frames"],
)
async def test_a_storm_from_who_reads_no_answers_is_held_up_and_ended(
    service: Service, messages: list[bytes]
) -> None:
    """E13: it waits, and nothing gathers; and who takes nothing for long is disconnected."""
    async with attacked(service) as address:
        await asyncio.gather(*(flood(address, messages) for _ in range(4)))


async def test_a_storm_of_subscriptions_whose_answers_are_read_is_served(service: Service) -> None:
    async with attacked(service) as address, opened(address) as connection:
        for number in range(500):
            await send(connection, "subscribe", id=f"s{number}", payload={"since": "now"})
            await send(connection, "complete", id=f"s{number}")
        assert await answers(connection)


async def readers(address: str) -> int:
    """How many subscriptions there are, by the metrics."""
    async with get(address, "/metrics") as answer:
        text = await answer.text()
    found = [line for line in text.splitlines() if line.startswith("penstock_readers{")]
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in found
        if 'protocol="websocket"' in line or 'protocol="sse"' in line
    )


async def test_who_never_reads_is_disconnected_and_costs_the_others_nothing(
    service: Service,
) -> None:
    """E13: over SSE and WebSocket."""
    subscribe = text("subscribe", id="s", payload={**DATA, "content": "body"})
    query = "since=beginning&area=data&content=body"
    async with attacked(service) as address, AsyncExitStack() as stack:
        before = await readers(address)
        events = f"GET /rest/shop/events?{query} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        for number in range(10):
            unread = stack.enter_context(plain.socket())
            unread.setsockopt(plain.SOL_SOCKET, plain.SO_RCVBUF, 4096)
            unread.setblocking(False)
            await loop.sock_connect(unread, (host, int(port)))
            if number % 2:
                await loop.sock_sendall(unread, events)
            else:
                await loop.sock_sendall(unread, upgrade(address))
                await loop.sock_recv(unread, 4096)
                await loop.sock_sendall(unread, text("connection_init") + subscribe)

        async def all_read() -> bool:
            return await readers(address) >= before + 10

        async def all_gone() -> bool:
            return await readers(address) <= before

        await until(all_read)
        await until(all_gone)
