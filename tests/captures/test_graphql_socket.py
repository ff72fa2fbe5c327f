"""GraphQL over WebSocket: the subprotocol, its limits, and operations beside each other."""

import asyncio
import json
import logging
import socket as sockets
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from penstock.errors import RequestError
from penstock.serve.captures.graphql.endpoint import graphql_endpoint
from penstock.serve.captures.graphql.executing import execute
from penstock.serve.captures.graphql.following import Client
from penstock.serve.captures.graphql.messages import Operation
from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.serve.captures.service import CaptureService
from penstock.serve.config import ServeConfig
from penstock.serve.http import Told, serve_http
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.telemetry import SERVE_REGISTRY
from penstock.testing.contracts.captures_base import append_large
from penstock.testing.contracts.capturing import singles
from tests.captures.graphql import answered_by, ended, graphql_server, opened, socket, subscribe
from tests.captures.sockets import closed, filled, said, send
from tests.waiting import PATIENCE_SECONDS, timeouts_of, turns, until

LIVE = "subscription { onDataChange { progress } }"
ALL = "subscription { onDataChange(since: {beginning: true}) { ... on Change { version } } }"


async def test_every_breach_of_the_protocol_has_its_close_code() -> None:
    """E15: 4400, 4401, 4409, 4429; another subprotocol, 4406, the legacy one too."""
    async with filled(0) as (_, service), answered_by(service) as address:
        follow = {"type": "subscribe", "id": "a", "payload": {"query": LIVE}}
        init = {"type": "connection_init"}
        breaches: tuple[tuple[list[Any], int], ...] = (
            (["no json"], 4400),
            (["[" * 100_000], 4400),
            ([[]], 4400),
            ([{"type": "connection_init", "payload": []}], 4400),
            ([init, {"type": "nonsense", "id": "a"}], 4400),
            ([init, {"type": ["subscribe"], "id": "a"}], 4400),
            ([init, {"type": "start", "id": "a", "payload": {"query": LIVE}}], 4400),
            ([init, {"type": "subscribe", "payload": {"query": LIVE}}], 4400),
            ([init, {"type": "subscribe", "id": ["a"], "payload": {"query": LIVE}}], 4400),
            ([init, {"type": "subscribe", "id": "a"}], 4400),
            ([init, {"type": "subscribe", "id": "a", "payload": {"query": 5}}], 4400),
            ([init, {**follow, "payload": {"query": LIVE, "variables": []}}], 4400),
            ([init, [follow]], 4400),
            ([b"\x00\xff"], 4400),
            ([follow], 4401),
            ([init, follow, follow], 4409),
            ([init, init], 4429),
        )
        for messages, code in breaches:
            async with socket(address) as connection:
                for one in messages:
                    await connection.send(one if isinstance(one, str | bytes) else json.dumps(one))
                assert (await closed(connection))[0] == code, messages
        for other in (None, [Subprotocol("graphql-ws")]):
            async with socket(address, subprotocols=other) as connection:
                assert (await closed(connection))[0] == 4406


async def test_a_silent_socket_is_closed_after_the_configured_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E15: 4408; pings do not count as an opening."""
    expire = timeouts_of(monkeypatch, 77.0)
    async with (
        filled(0, init_timeout=77.0) as (_, service),
        answered_by(service) as address,
        socket(address) as connection,
    ):
        await send(connection, "ping", payload={"n": 1})
        assert await said(connection) == {"type": "pong", "payload": {"n": 1}}
        expire()
        assert (await closed(connection))[0] == 4408


async def test_who_may_connect_is_asked_with_what_was_sent_in_the_opening() -> None:
    """E15: 4403, and nothing else is told."""

    def of_token(_: HTTPConnection, opening: Mapping[str, Any]) -> Scope:
        if opening.get("token") != "right":
            raise RequestError("who are you?")
        return EVERYTHING

    async with (
        filled(1) as (_, service),
        service.running(),
        graphql_server(service, scope_of=of_token) as address,
    ):
        for payload in ({}, {"token": "wrong"}):
            async with socket(address) as connection:
                await send(connection, "connection_init", payload=payload)
                assert await closed(connection) == (4403, "Forbidden")
        async with socket(address) as connection:
            await send(connection, "connection_init", payload={"token": "right"})
            assert await said(connection) == {"type": "connection_ack"}


async def test_names_of_other_hosts_and_pages_of_other_origins_cannot_connect() -> None:
    """In the service as it is served."""
    async with filled(0) as (_, service), service.running():
        told: Any = Told(
            health=None,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            ready=None,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            metrics=None,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            captures=service,
            graphql=GraphqlRoutes(service),
        )
        async with await serve_http(ServeConfig(http="127.0.0.1:0"), told) as server:
            async with opened(server.address):
                pass
            for options, status in (
                ({"additional_headers": {"Host": "evil.example"}}, 400),
                ({"origin": "http://evil.example"}, 401),
                ({"origin": "null"}, 401),
            ):
                with pytest.raises(InvalidStatus) as refused:
                    async with socket(server.address, **options):
                        pass
                assert refused.value.response.status_code == status


async def test_a_message_too_large_closes_its_socket_alone() -> None:
    async with (
        filled(1, message_bytes_max=2048) as (_, service),
        answered_by(service) as address,
        opened(address) as connection,
        opened(address) as other,
    ):
        await send(connection, "ping", payload={"x": "x" * 4096})
        assert (await closed(connection))[0] == 1009
        await send(other, "ping")
        assert await said(other) == {"type": "pong"}


async def test_operations_share_a_socket_and_end_alone() -> None:
    """A free id is free; unknown ids are ignored; queries are answered beside subscriptions."""
    async with (
        filled(2) as (log, service),
        answered_by(service) as address,
        opened(address) as connection,
    ):
        await send(connection, "complete", id="unknown")
        for name in "ab":
            await subscribe(connection, ALL, name)
        seen: dict[str, list[str]] = {"a": [], "b": []}
        while seen != {"a": ["1", "2"], "b": ["1", "2"]}:
            await note(connection, seen)
        await send(connection, "complete", id="a")
        await subscribe(connection, "{ status { version } }", "a")
        answers: list[dict[str, Any]] = []
        while len(answers) < 2:
            message = await said(connection)
            if message["id"] == "a" and message.get("payload") != {"data": {"onDataChange": {}}}:
                answers.append(message)
        status = {"data": {"status": {"version": "2"}}}
        assert answers == [
            {"id": "a", "type": "next", "payload": status},
            {"id": "a", "type": "complete"},
        ]
        await log.append(singles(3, 3))
        while len(seen["b"]) < 3:
            await note(connection, seen)
        assert seen["a"] == ["1", "2"]
        assert service.subscriptions == 1


async def note(connection: Any, seen: dict[str, list[str]]) -> None:
    message = await said(connection)
    item = message["payload"]["data"]["onDataChange"]
    if item:
        seen[message["id"]].append(item["version"])


async def test_an_operation_completes_after_its_count() -> None:
    async with (
        filled(3) as (_, service),
        answered_by(service) as address,
        opened(address) as connection,
    ):
        query = ALL.replace("true}", "true}, completeAfter: 2")
        for _ in range(2):
            await subscribe(connection, query)
            assert await ended(connection) == {"id": "s", "type": "complete"}
        assert service.subscriptions == 0


@pytest.mark.slow
async def test_a_thousand_operations_on_one_socket_are_refused_above_the_limit() -> None:
    """The others go on, and another socket notices nothing."""
    async with (
        filled(1, requests_max=10, messages_per_second=10_000) as (log, service),
        answered_by(service) as address,
        opened(address) as connection,
        opened(address) as other,
    ):
        await subscribe(other, ALL, "other")
        for number in range(1_000):
            await subscribe(connection, LIVE, f"o{number}")
        refused: list[str] = []
        while len(refused) < 990:
            message = await said(connection)
            if message["type"] == "error":
                assert "at most 10 operations" in message["payload"][0]["message"]
                refused.append(message["id"])
        assert refused == [f"o{number}" for number in range(10, 1_000)]
        await until(lambda: service.subscriptions >= 11)
        await log.append(singles(2, 2))
        seen: dict[str, list[str]] = {"other": []}
        while seen["other"] != ["1", "2"]:
            await note(other, seen)
        assert service.subscriptions == 11


async def test_what_is_wrong_with_an_operation_ends_it_alone() -> None:
    async with (
        filled(1) as (_, service),
        answered_by(service) as address,
        opened(address) as connection,
    ):
        for query, words in (
            ("subscription {", "no GraphQL at line 1"),
            ("subscription { onNothing { progress } }", "onNothing"),
            ("subscription { onDataChange { progress } onSystemChange { progress } }", "one"),
            ("fragment a on Item { progress }", "not one operation"),
            ("{ a: status { version } } { b: status { version } }", "not one operation"),
            ("mutation { a }", "mutation"),
            ('subscription { onDataChange(since: {progress: "x"}) { progress } }', "marker"),
            ("subscription { onDataChange(since: {index: 4}) { progress } }", "since.index"),
        ):
            await subscribe(connection, query)
            message = await ended(connection)
            assert message["type"] == "error", query
            assert words in message["payload"][0]["message"]
            assert message["payload"][0]["extensions"]["code"] in {"request", "MALFORMED"}
        await send(connection, "ping")
        assert await said(connection) == {"type": "pong"}


def published() -> float:
    labels = {"protocol": "graphql"}
    return SERVE_REGISTRY.get_sample_value("penstock_events_published_total", labels) or 0.0


async def test_a_result_is_made_only_when_the_last_was_taken() -> None:
    """Back-pressure: what the socket does not take stays in the log (E13)."""
    async with filled(200) as (_, service), service.running():
        endpoint = await graphql_endpoint(service)
        schema = await endpoint.schema(EVERYTHING)
        client = Client(service=service, scope=EVERYTHING)
        config = service.config.graphql
        results = execute(schema, Operation(ALL), client, config, may_subscribe=True)
        before = published()
        async with aclosing(results):
            for _ in range(6):  # the confirmation, and five captures
                await anext(results)
            await turns(20)
            assert published() == before + 5
            assert service.subscriptions == 1
        assert service.subscriptions == 0


@pytest.mark.slow
async def test_who_asks_and_takes_no_answers_is_not_read_on() -> None:
    """What is kept of its operations is bounded; and all are answered once it reads."""
    count = 1_000
    options: dict[str, Any] = {
        "messages_per_second": 1_000_000,
        "requests_max": 10_000,
        "types": {"orders": {f"field{n}": "Int" for n in range(200)}},
        "liveness_timeout": PATIENCE_SECONDS,
    }
    async with (
        filled(0, **options) as (_, service),
        answered_by(service) as address,
        opened(address, ping_interval=None, sock=narrow(address)) as connection,
    ):

        async def ask() -> None:
            for number in range(count):
                await subscribe(connection, "{ types { fields { name type } } }", f"o{number}")

        asking = asyncio.create_task(ask())
        most, still, before = 0, 0, 0
        while still < 50:
            await asyncio.sleep(0.01)
            now = len(asyncio.all_tasks())
            still, before = (still + 1 if now == before else 0), now
            most = max(most, now)
        assert most < 60
        ends: list[str] = []
        while len(ends) < count:
            message = await said(connection)
            if message["type"] == "complete":
                ends.append(message["id"])
        await asking
        assert ends == [f"o{number}" for number in range(count)]


@pytest.mark.slow
async def test_a_socket_that_breaks_while_many_send_ends_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Answers of several operations wait for room then."""
    async with (
        filled(0, liveness_timeout=PATIENCE_SECONDS) as (log, service),
        answered_by(service) as address,
    ):
        await append_large(log, 300)
        async with opened(address, sock=narrow(address)) as connection:
            await subscribe(connection, UNTYPED)
            await still_standing()
            for number in range(10):
                await subscribe(connection, "{ nothing }", f"o{number}")
            await still_standing()
        await until(lambda: not service.subscriptions)
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


async def still_standing() -> None:
    """Wait until nothing more is published."""
    still, before = 0, -1.0
    while still < 30:
        await asyncio.sleep(0.01)
        now = published()
        still, before = (still + 1 if now == before else 0), now


UNTYPED = """subscription { onDataChangeUntyped(since: {beginning: true}) {
    ... on UntypedChange { version body } } }"""


def narrow(address: str) -> sockets.socket:
    """A connection that holds little on its way."""
    host, _, port = address.rpartition(":")
    found = sockets.socket()
    found.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1 << 14)
    found.connect((host, int(port)))
    return found


async def test_of_all_operations_of_a_socket_one_makes_what_it_sends() -> None:
    """Who takes nothing makes the server hold one item, however many operations it has."""
    async with filled(5) as (_, service), service.running():
        schema = await (await graphql_endpoint(service)).schema(EVERYTHING)
        client = Client(service=service, scope=EVERYTHING, writing=asyncio.Lock())
        config = service.config.graphql
        one, two = (
            execute(schema, Operation(ALL), client, config, may_subscribe=True) for _ in range(2)
        )
        async with aclosing(one), aclosing(two):
            await anext(one)
            before = published()
            waiting = asyncio.create_task(anext(two))
            await turns(100)
            assert not waiting.done()
            following = asyncio.create_task(anext(one))
            await waiting
            await turns(100)
            assert not following.done()
            assert published() == before
            await two.aclose()
            await following
            while published() == before:  # on a busy machine a heartbeat may come first
                await anext(one)
            assert published() == before + 1


@pytest.mark.slow
async def test_who_ends_what_waits_for_room_lets_the_others_go_on() -> None:
    async with (
        filled(0, liveness_timeout=PATIENCE_SECONDS) as (log, service),
        answered_by(service) as address,
    ):
        await append_large(log, 300)
        async with opened(address, sock=narrow(address)) as connection:
            for number in range(10):
                await subscribe(connection, UNTYPED, f"o{number}")
            await until(lambda: service.subscriptions >= 10)
            await still_standing()
            for number in range(9):
                await send(connection, "complete", id=f"o{number}")
            received: list[str] = []
            while "300" not in received:
                message = await said(connection)
                item = message["payload"]["data"]["onDataChangeUntyped"]
                if item and message["id"] == "o9":
                    received.append(item["version"])
            assert received == [str(number) for number in range(1, 301)]


async def test_who_connects_too_much_is_told_to_come_later() -> None:
    async with (
        filled(0, subscriptions_max=2) as (_, service),
        answered_by(service) as address,
        opened(address),
        opened(address),
        opened(address),
        socket(address) as connection,
    ):
        assert (await closed(connection))[0] == 1013


async def test_a_service_that_stops_ends_operations_then_the_socket() -> None:
    async with filled(1) as (log, other):
        service = CaptureService(log, lambda: other.config)
        async with graphql_server(service) as address, opened(address) as connection:
            async with service.running():
                await subscribe(connection, LIVE)
                await said(connection)
            message = await ended(connection)
            assert message["payload"][0]["extensions"]["code"] == "service.unavailable"
            assert (await closed(connection))[0] == 1012
