"""Every call of every endpoint: who is let in, how large it may be, and what it leaves behind."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow.flight as fl
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client.flight import LogClient, PipelineReport
from penstock.clocks import SystemClock
from penstock.errors import AheadError, RequestError, StreamChangedError
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.access import Access, AccessConfig
from penstock.serve.access.actions import ACTIONS, GRPC_BYTES_MAX, kept_of
from penstock.serve.config import ServeConfig
from penstock.serve.consumers import TOLD, Consumers
from penstock.serve.dynamodb.captured.index import CapturedIndex
from penstock.serve.dynamodb.captured.operations import CAPTURED_OPERATIONS
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.requests import DESCRIBE_ENDPOINTS
from penstock.serve.dynamodb.server import serving_captured
from penstock.serve.flight import FlightServer
from tests.access.support import ALL, Service, bearer, issue, service
from tests.captures.graphql import GRAPHQL
from tests.captures.sockets import REST
from tests.serve.calls import failure
from tests.zero.endpoint import served as zero_served

pytestmark = pytest.mark.slow

GRANTS: dict[str, dict[str, Any] | None] = {
    "stranger": None,
    "orders": {"sources": ("shop",), "collections": ("orders",)},
    "schema": {"verbs": ("schema",)},
    "shop": {"verbs": ALL, "sources": ("shop",)},
    "operator": {"verbs": ("admin",)},
    "everything": {"verbs": ALL},
}
KNOWN = {"orders", "schema", "shop", "operator", "everything"}
READERS = {"orders", "shop", "everything"}
FOLLOWERS = {"schema", *READERS}
OPERATORS = {"operator", "everything"}
WHOLE = {"shop", "everything"}


def promised(name: str) -> set[str]:
    """Whom a call is to be answered to."""
    protocol, _, call = name.partition(" ")
    if "/grpc." in call or name in {"http health", "http ready", "dynamodb alive"}:
        return {"stranger", *KNOWN}
    if name in {"http metrics", "flight order"}:
        return OPERATORS
    if name == "flight report":
        return WHOLE
    if protocol == "flight" or name in {"http snapshot", "websocket zero"}:
        return READERS
    followed = {"captures", "system captures", "changes", "events", "entities", "graphql"}
    if call in followed or "CaptureService" in call:
        return FOLLOWERS
    return KNOWN


PATHS = {
    "http health": "/health",
    "http ready": "/ready",
    "http metrics": "/metrics",
    "http snapshot": "/snapshot",
    "http ticket": "/ticket",
    "http openapi": "/rest/openapi.json",
    "http entities": "/rest/shop/entities/orders/1",
    "http changes": "/rest/shop/changes",
    "http events": "/rest/shop/events",
    "http graphql": "/graphql",
    "http zero": "/changes/v0/stream",
    "websocket system captures": "/rest/system/change-captures",
    "websocket captures": "/rest/shop/change-captures",
    "websocket graphql": "/graphql",
    "websocket zero": "/changes/v0/stream?appID=app&shardNum=0&publications=",
}


CAPTURED = CapturedConfig(address="127.0.0.1:0")
LIMITS = {
    "serve.captures.message_bytes_max": ServeConfig().captures.message_bytes_max,
    "serve.dynamodb.request_bytes_max": CAPTURED.request_bytes_max,
}
"""By the settings that the table names."""


def tokens_in(folder: Path) -> dict[str, str | None]:
    """A token for each of GRANTS."""
    return {
        name: None if grant is None else issue(folder / "access.json", name, **grant)
        for name, grant in GRANTS.items()
    }


async def over_grpc(address: str, name: str, token: str | None) -> bool:
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    async with grpc.aio.insecure_channel(address) as channel:
        untyped: Any = channel
        # No message of any method: whoever is let in is told so.
        metadata = None if token is None else bearer(token)
        call = untyped.unary_stream(name.removeprefix("grpc "))(b"\xff", metadata=metadata)
        code = await call.code()
        assert code is not grpc.StatusCode.UNIMPLEMENTED
        return code not in refused


def shown(token: str | None) -> fl.FlightCallOptions:
    """What shows a token over Flight."""
    headers: list[Any] = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return fl.FlightCallOptions(headers=headers)


async def over_flight(address: str, name: str, token: str | None) -> bool:
    kind = name.removeprefix("flight ")
    options = shown(token)

    def ask() -> bool:
        with fl.connect(f"grpc://{address}") as client:
            try:
                if kind == "get":
                    client.do_get(fl.Ticket(b"{"), options).read_all()
                else:
                    list(client.do_action(fl.Action(kind, b"{"), options))
            except (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError):
                return False
            except fl.FlightServerError:
                return True  # it was no request
        return True

    return await asyncio.to_thread(ask)


async def over_http(address: str, name: str, token: str | None) -> bool:
    asked = urllib.request.Request(f"http://{address}{PATHS[name]}")
    if name in {"http ticket", "http graphql"}:
        asked.method, asked.data = "POST", b"{}"
        asked.add_header("Content-Type", "application/json")
    if token is not None:
        asked.add_header("Authorization", f"Bearer {token}")

    def ask() -> int:
        try:
            with urllib.request.urlopen(asked) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    status = await asyncio.to_thread(ask)
    assert status not in {404, 405, 500}
    return status not in {401, 403}


async def over_websocket(address: str, name: str, token: str | None) -> bool:
    """A socket of captures asks once more in its first message, and says there who is refused."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    protocols: Any = {"websocket graphql": [GRAPHQL], "websocket zero": None}.get(name, [REST])
    try:
        async with connect(
            f"ws://{address}{PATHS[name]}", subprotocols=protocols, additional_headers=headers
        ) as socket:
            if protocols is not None:
                await socket.send(json.dumps({"type": "connection_init"}))
                await socket.recv()
            socket.transport.abort()
    except InvalidStatus as refused:
        return refused.response.status_code not in {401, 403}
    except ConnectionClosed as closed:
        return closed.rcvd is not None and closed.rcvd.code not in {4401, 4403}
    return True


async def over_dynamodb(address: str, name: str, token: str | None) -> bool:
    asked = urllib.request.Request(f"http://{address}/")
    if name != "dynamodb alive":
        asked.method, asked.data = "POST", b"{}"
        asked.add_header("X-Amz-Target", name.removeprefix("dynamodb "))
    if token is not None:
        asked.add_header("X-Amz-Security-Token", token)

    def ask() -> str:
        try:
            with urllib.request.urlopen(asked) as answer:
                return str(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read())

    said = await asyncio.to_thread(ask)
    assert "UnknownOperation" not in said
    return "UnrecognizedClient" not in said and "AccessDenied" not in said


ASKING: dict[str, Callable[[str, str, str | None], Awaitable[bool]]] = {
    "grpc": over_grpc,
    "flight": over_flight,
    "http": over_http,
    "websocket": over_websocket,
    "dynamodb": over_dynamodb,
}


async def let_in(address: str, name: str, tokens: dict[str, str | None]) -> set[str]:
    """Whom a call is answered to."""
    ask = ASKING[name.partition(" ")[0]]
    return {who for who, token in tokens.items() if await ask(address, name, token)}


@asynccontextmanager
async def shop(folder: Path) -> AsyncGenerator[Service]:
    async with service(folder, requests_burst=100_000, refusals_per_second=100_000) as served:
        yield served


async def test_every_call_is_answered_to_those_alone_who_may_make_it(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    async with shop(tmp_path) as served:
        addresses = {
            "grpc": served.grpc,
            "flight": served.flight,
            "http": served.http,
            "websocket": served.http,
        }
        for name in ACTIONS:
            address = addresses.get(name.partition(" ")[0])
            if address is not None and not name.endswith(" zero"):
                assert (name, await let_in(address, name, tokens)) == (name, promised(name))


async def test_every_call_of_zero_is_answered_to_those_alone_who_may_make_it(
    tmp_path: Path,
) -> None:
    tokens = tokens_in(tmp_path)
    access = Access(AccessConfig(tokens=tmp_path / "access.json"))
    async with zero_served(tmp_path / "log", access=access) as served:
        for name in ("http zero", "websocket zero"):
            found = await let_in(served.address, name, tokens)
            # What it serves is whole tables, which a token of one collection may lack.
            assert found - {"orders"} == promised(name) - {"orders"}


async def test_every_call_of_dynamodb_streams_is_answered_to_those_alone_who_may_make_it(
    tmp_path: Path,
) -> None:
    tokens = tokens_in(tmp_path)
    access = Access(AccessConfig(tokens=tmp_path / "access.json"))
    names = [name for name in ACTIONS if name.startswith("dynamodb ")]
    assert {name.removeprefix("dynamodb ") for name in names} == {
        *CAPTURED_OPERATIONS,
        DESCRIBE_ENDPOINTS,
        "alive",
    }
    async with captured(tmp_path, access) as address:
        for name in names:
            assert (name, await let_in(address, name, tokens)) == (name, promised(name))


@asynccontextmanager
async def captured(folder: Path, access: Access) -> AsyncGenerator[str]:
    """DynamoDB Streams of an empty log."""
    async with LmdbLog(LogConfig(path=folder / "log", free_bytes_min=0)) as log:
        index = CapturedIndex(log, folder / "index", CAPTURED, clock=SystemClock())
        async with serving_captured(log, index, CAPTURED, access=access) as address:
            yield address


# --- sizes --------------------------------------------------------------------------------------


def test_every_call_has_a_size_or_a_setting_that_says_it_or_reads_nothing() -> None:
    for name, action in ACTIONS.items():
        by_call = name.startswith(("grpc ", "flight "))
        assert (action.bytes_max is not None) == by_call, name
        assert not action.setting or (action.setting in LIMITS and not by_call), name


async def answers_unread(address: str, name: str, token: str) -> bool:
    """Whether a call is answered without its body, of which nothing ever comes."""
    method = "POST" if name == "http ticket" else "GET"
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    try:
        writer.write(
            f"{method} {PATHS.get(name, '/')} HTTP/1.1\r\nHost: {address}\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {1 << 30}\r\n\r\n".encode()
        )
        return (await reader.readline()).startswith(b"HTTP/1.1 ")
    finally:
        writer.close()
        await writer.wait_closed()


async def refuses_larger(address: str, name: str, token: str) -> bool:
    """Whether a message of a byte more than its setting allows is refused for its size."""
    headers, body = {"Authorization": f"Bearer {token}"}, b"x" * (LIMITS[ACTIONS[name].setting] + 1)
    protocol, _, call = name.partition(" ")
    if protocol == "websocket":
        spoken: Any = {"graphql": [GRAPHQL], "zero": None}.get(call, [REST])
        url = f"ws://{address}{PATHS[name]}"
        async with connect(url, subprotocols=spoken, additional_headers=headers) as socket:
            with suppress(ConnectionClosed):
                await socket.send(body.decode())
            await socket.wait_closed()
        return socket.close_code == 1009
    headers |= {"Content-Type": "application/json", "X-Amz-Target": call}
    path = PATHS.get(name, "/")
    asked = urllib.request.Request(f"http://{address}{path}", body, headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, asked)
    with refused.value as answer:
        return answer.code == 413


async def is_bounded(address: str, name: str, token: str) -> bool:
    """Whether no more of a message is taken than the table says."""
    bounds = refuses_larger if ACTIONS[name].setting else answers_unread
    return await bounds(address, name, token)


async def test_no_call_over_http_or_a_websocket_takes_more_than_its_setting_allows(
    tmp_path: Path,
) -> None:
    token = issue(tmp_path / "access.json", "all", verbs=ALL)
    access = Access(AccessConfig(tokens=tmp_path / "access.json"))
    async with shop(tmp_path) as served:
        for name in ACTIONS:
            if name.startswith(("http ", "websocket ")) and not name.endswith(" zero"):
                assert await is_bounded(served.http, name, token), name
    async with zero_served(tmp_path / "zero", access=access) as zero:
        for name in ("http zero", "websocket zero"):
            assert await is_bounded(zero.address, name, token), name


async def test_no_call_of_dynamodb_streams_takes_more_than_its_setting_allows(
    tmp_path: Path,
) -> None:
    token = issue(tmp_path / "access.json", "all", verbs=ALL)
    access = Access(AccessConfig(tokens=tmp_path / "access.json"))
    async with captured(tmp_path, access) as address:
        for name in ACTIONS:
            if name.startswith("dynamodb "):
                assert await is_bounded(address, name, token), name


@pytest.mark.parametrize("name", [name for name in ACTIONS if name.startswith("grpc ")])
async def test_a_message_over_grpc_that_is_too_large_is_refused(tmp_path: Path, name: str) -> None:
    token = issue(tmp_path / "access.json", "reader")
    async with service(tmp_path, flights=False) as served:
        # Compressed, it is small on the wire.
        own = ACTIONS[name].bytes_max
        assert own is not None
        for length in (own + 1, GRPC_BYTES_MAX + 1, 64 << 20):
            async with grpc.aio.insecure_channel(
                served.grpc, compression=grpc.Compression.Gzip
            ) as channel:
                untyped: Any = channel
                method = untyped.unary_stream(name.removeprefix("grpc "))
                code, _, _ = await failure(method(b"\0" * length, metadata=bearer(token)))
                allowed = {
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                }
                assert code in allowed


async def test_a_request_over_flight_that_is_too_large_is_refused(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "all", verbs=ALL)
    options = shown(token)

    def send(address: str, kind: str, body: bytes) -> None:
        with fl.connect(f"grpc://{address}") as client:
            # Little is taken before a call was let in.
            list(client.do_action(fl.Action("bounds", b""), options))
            if kind == "get":
                client.do_get(fl.Ticket(body), options).read_all()
            else:
                list(client.do_action(fl.Action(kind, body), options))

    async with service(tmp_path) as served:
        for name, action in ACTIONS.items():
            kind = name.removeprefix("flight ")
            if kind != name:
                assert action.bytes_max is not None
                body = b"x" * (action.bytes_max + 1)
                with pytest.raises(fl.FlightServerError, match=f"may have {action.bytes_max:,}"):
                    await asyncio.to_thread(send, served.flight, kind, body)


async def test_a_consumer_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path, flights=False, tokens=None) as served:
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            untyped: Any = channel
            request = pb.SubscribeRequest(consumer_id="x" * 201).SerializeToString()
            call = untyped.unary_stream("/penstock.v1.PullerService/Subscribe")(request)
            code, said, _ = await failure(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "200" in said


def test_reports_are_their_reporters_own_and_bounded_and_forgotten() -> None:
    kept, now_ms = kept_of("flight report"), 1_700_000_000_000
    consumers = Consumers(now_ms=lambda: now_ms)
    consumers.report("payments", "pipeline", 90, "token:crm")
    consumers.report("payments", "pipeline", 5, "token:shop")
    consumers.report("payments", "pipeline", 70, TOLD)
    said = {one.who: one.sequence for one in consumers.status().reported}
    assert said == {"token:crm": 90, "token:shop": 5, TOLD: 70}
    with pytest.raises(RequestError, match="200 characters"):
        consumers.report("x" * 201, "pipeline", 5, "token:crm")
    for number in range(kept.of_one_max - 1):
        consumers.report(f"query {number}", "pipeline", 5, "token:crm")
    with pytest.raises(RequestError, match="one more"):
        consumers.report("one more", "pipeline", 5, "token:crm")
    consumers.report("payments", "pipeline", 91, "token:crm")
    for number in range(kept.names_max - kept.of_one_max - 1):
        consumers.report("query", "pipeline", 5, f"token:{number}")
    with pytest.raises(RequestError, match="one more"):
        consumers.report("query", "pipeline", 5, "token:another")
    assert kept.days is not None
    now_ms += int(kept.days * 86_400_000) + 1
    consumers.report("query", "pipeline", 5, "token:another")
    assert [one.who for one in consumers.status().reported] == ["token:another"]


async def test_a_report_of_a_place_that_is_not_of_this_log_is_refused(tmp_path: Path) -> None:
    log = MemoryLog()
    bounds = await log.bounds()
    heard: list[int] = []
    server = FlightServer(log, on_report=lambda said, _: heard.append(said.sequence))
    server.start()

    def tell(log_id: int, sequence: int) -> None:
        report = PipelineReport(pipeline="orders", log_id=log_id, sequence=sequence)
        with LogClient(server.address, patience_seconds=0) as client:
            client.report(report)

    try:
        with pytest.raises(StreamChangedError):
            await asyncio.to_thread(tell, bounds.log_id + 1, 0)
        with pytest.raises(AheadError):
            await asyncio.to_thread(tell, bounds.log_id, bounds.head + 1)
        await asyncio.to_thread(tell, bounds.log_id, bounds.head)
        assert heard == [bounds.head]
    finally:
        await asyncio.to_thread(server.stop)
        await log.close()
