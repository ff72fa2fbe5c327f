"""Until when somebody may follow captures, and how many at a time: on every transport."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from websockets.exceptions import InvalidStatus

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.errors import UnauthenticatedError
from tests.access.capturing import (
    ALL_OF_IT,
    headers,
    shop,
    socket,
)
from tests.access.support import Clock, Service, bearer, issue, revoke, service
from tests.captures.grpc_client import CAPTURES, SUBSCRIBE, request_of
from tests.captures.sockets import Events, closed, get, said, send
from tests.subscribe.events import change, commit
from tests.waiting import until

pytestmark = pytest.mark.slow


async def followed(served: Service, transport: str, token: str, begun: asyncio.Event) -> Any:
    """Follow until the server ends it; how it ended."""
    if transport == "websocket":
        async with socket(served, token) as connection:
            await send(connection, "connection_init")
            assert (await said(connection))["type"] == "connection_ack"
            await send(connection, "subscribe", id="s", payload=ALL_OF_IT)
            assert (await said(connection))["payload"]["data"]["confirmed"]
            begun.set()
            return await closed(connection)
    if transport == "sse":
        path = "/rest/shop/events?since=beginning"
        async with get(served.http, path, headers=headers(token)) as answer:
            assert (await answer.event())["event"] == "confirmed"
            begun.set()
            return await _cut(answer)
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        untyped: Any = channel
        call = untyped.unary_stream(SUBSCRIBE)(
            pb.CaptureSubscribeRequest(requests=[request_of(ALL_OF_IT)]).SerializeToString(),
            metadata=bearer(token),
        )
        try:
            assert await call.read()
            begun.set()
            while True:
                await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()


async def _cut(answer: Events) -> str:
    try:
        while True:
            await answer.event()
    except asyncio.IncompleteReadError:
        return "cut"
    except EOFError:
        return "whole"
    except ValueError:
        # An empty line in place of a chunk's size: the connection is closed.
        return "cut"


ENDS: dict[str, Any] = {
    "websocket": (4401, "access.unauthenticated"),
    "sse": "cut",
    "grpc": (grpc.StatusCode.UNAUTHENTICATED, str(UnauthenticatedError())),
}


@pytest.mark.parametrize("transport", ENDS)
async def test_who_is_revoked_while_it_follows_is_ended_and_the_others_are_not(
    tmp_path: Path, transport: str
) -> None:
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one"), issue(tokens, "other")
    async with shop(tmp_path) as served:
        begun, stays = asyncio.Event(), asyncio.Event()
        following = asyncio.create_task(followed(served, transport, one, begun))
        staying = asyncio.create_task(followed(served, transport, other, stays))
        await begun.wait()
        await stays.wait()
        revoke(tokens, "one")
        assert await following == ENDS[transport]
        assert not staying.done()
        staying.cancel()
        await asyncio.wait({staying})


@pytest.mark.parametrize("transport", ENDS)
async def test_whose_token_is_over_while_it_follows_is_ended_in_the_same_way(
    tmp_path: Path, transport: str
) -> None:
    wall = Clock()
    token = issue(tmp_path / "access.json", "brief", expires_at=wall.now + 2.0)
    async with shop(tmp_path, wall=wall) as served:
        begun = asyncio.Event()
        following = asyncio.create_task(followed(served, transport, token, begun))
        await begun.wait()
        wall.now += 2.0
        assert await following == ENDS[transport]


@pytest.mark.parametrize("transport", ["websocket", "sse", "grpc"])
async def test_who_is_revoked_and_takes_nothing_is_ended_too(
    tmp_path: Path, transport: str
) -> None:
    tokens = tmp_path / "access.json"
    token = issue(tokens, "slow")
    async with service(tmp_path) as served:
        for position in range(1, 9):
            large = change(position, document={"_id": 1, "x": "x" * (4 << 20)})
            await served.log.append([commit(large)])
        async with contextlib.AsyncExitStack() as stack:
            if transport == "sse":
                path = "/rest/shop/events?since=beginning&content=body"
                await stack.enter_async_context(get(served.http, path, headers=headers(token)))
            elif transport == "grpc":
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(served.grpc))
                untyped: Any = channel
                untyped.unary_stream(SUBSCRIBE)(
                    pb.CaptureSubscribeRequest(
                        requests=[request_of(ALL_OF_IT)]
                    ).SerializeToString(),
                    metadata=bearer(token),
                )
            else:
                connection = await stack.enter_async_context(socket(served, token, max_queue=1))
                await send(connection, "connection_init")
                await send(connection, "subscribe", id="s", payload=ALL_OF_IT)
            await until(lambda: served.captures.subscriptions != 0)
            revoke(tokens, "slow")
            await until(lambda: not (served.access.visitors or served.captures.subscriptions))


async def test_who_begins_to_follow_too_often_waits_and_the_others_do_not(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one"), issue(tokens, "other")
    path = "/rest/shop/events?since=beginning"
    async with shop(tmp_path, requests_per_second=0.01, requests_burst=3) as served:
        for transport in ENDS:
            begun = asyncio.Event()
            following = asyncio.create_task(followed(served, transport, one, begun))
            await begun.wait()
            following.cancel()
            await asyncio.wait({following})
        async with get(served.http, path, headers=headers(one)) as answer:
            assert (answer.status, int(answer.headers["retry-after"]) > 1) == (429, True)
        with pytest.raises(InvalidStatus) as caught:
            await followed(served, "websocket", one, asyncio.Event())
        assert caught.value.response.status_code == 429
        code, sentence = await followed(served, "grpc", one, asyncio.Event())
        assert (code, "0.01 a second" in sentence) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        async with get(served.http, path, headers=headers(other)) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("transport", ["websocket", "grpc"])
async def test_what_one_client_says_is_read_at_its_pace(tmp_path: Path, transport: str) -> None:
    """So many a second, over any two: of thirty at ten a second the last waits for two."""
    token = issue(tmp_path / "access.json", "one")
    serve = {"captures": {"messages_per_second": 10}}
    async with service(tmp_path, serve=serve) as served:
        began = time.monotonic()
        if transport == "websocket":
            async with socket(served, token) as connection:
                await send(connection, "connection_init")
                for number in range(30):
                    await send(connection, "ping", payload=number)
                while (await said(connection)).get("payload") != 29:
                    pass
        else:
            async with grpc.aio.insecure_channel(served.grpc) as channel:
                untyped: Any = channel
                call = untyped.stream_stream(CAPTURES)(metadata=bearer(token))
                for number in range(30):
                    ping = pb.CaptureCommand(reference=str(number), ping=pb.CapturePing())
                    await call.write(ping.SerializeToString())
                last = ""
                while last != "29":
                    message = pb.CaptureMessage.FromString(await call.read())
                    last = message.outputs[-1].pong.reference
                call.cancel()
        assert time.monotonic() - began > 1.5


async def test_who_has_no_token_is_refused_once_it_has_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that writes when its call ends would take it for broken, and never learn why."""
    issue(tmp_path / "access.json", "one")
    monkeypatch.setattr("penstock.serve.access.calls._FIRST_SECONDS_MAX", 60)
    async with service(tmp_path) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        untyped: Any = channel
        call = untyped.stream_stream(CAPTURES)(metadata=bearer("no token"))
        await asyncio.sleep(0.1)
        assert not call.done()
        await call.write(b"")
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        # Whoever sends nothing does not stay for it.
        monkeypatch.setattr("penstock.serve.access.calls._FIRST_SECONDS_MAX", 0)
        call = untyped.stream_stream(CAPTURES)(metadata=bearer("no token"))
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_ticket_opens_each_stream_once_and_ends_with_its_token(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token = issue(tokens, "browser", collections=("shop/orders",))
    page = "https://app.example"
    async with shop(tmp_path, origins=(page,)) as served:

        async def ticket() -> str:
            async with get(served.http, "/ticket", headers=headers(token), method="POST") as answer:
                given: str = (await answer.body())["ticket"]
                return given

        given = await ticket()
        path = f"/rest/shop/events?since=beginning&ticket={given}"
        async with get(served.http, path, headers={"Origin": page}) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == page
        async with get(served.http, path) as answer:
            assert answer.status == 401
        # A page of nobody's: its browser tells it nothing, and no socket is opened.
        path = f"/rest/shop/events?ticket={await ticket()}"
        async with get(served.http, path, headers={"Origin": "https://evil.example"}) as answer:
            assert "access-control-allow-origin" not in answer.headers
        query = f"?ticket={await ticket()}"
        with pytest.raises(InvalidStatus) as caught:
            async with socket(served, None, query, origin="https://evil.example"):
                pass
        assert caught.value.response.status_code == 401
        async with socket(served, None, f"?ticket={await ticket()}", origin=page) as connection:
            await send(connection, "connection_init")
            assert (await said(connection))["type"] == "connection_ack"
            revoke(tokens, "browser")
            assert (await closed(connection))[0] == 4401


async def test_one_client_has_its_connections_and_no_more(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one"), issue(tokens, "other")
    path = "/rest/shop/events?since=beginning"
    async with (
        shop(tmp_path, connections_max=1) as served,
        get(served.http, path, headers=headers(one)) as first,
    ):
        assert first.status == 200
        async with get(served.http, path, headers=headers(one)) as second:
            assert (second.status, second.headers["retry-after"]) == (429, "1")
        with pytest.raises(InvalidStatus) as caught:
            async with socket(served, one):
                pass
        assert caught.value.response.status_code == 429
        async with get(served.http, path, headers=headers(other)) as another:
            assert another.status == 200
