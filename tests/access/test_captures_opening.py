"""A token in connection_init: who has it is let in as with the header, and nobody else is."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from penstock.progress import parse_progress
from tests.access.capturing import events, headers, shop
from tests.access.certificates import Authority
from tests.access.support import ALL, Service, issue, revoke, service
from tests.access.test_tls import tls_of, trusting
from tests.captures.graphql import GRAPHQL
from tests.captures.sockets import REST, closed, said, send
from tests.waiting import until

pytestmark = pytest.mark.slow

PATHS = {"graphql": "graphql", "websocket": "rest/system/change-captures"}
TRANSPORTS = pytest.mark.parametrize("transport", PATHS)


@asynccontextmanager
async def socket(
    served: Service, transport: str, *, token: str | None = None, query: str = "", **more: Any
) -> AsyncGenerator[ClientConnection]:
    async with connect(
        f"ws{'s' if 'ssl' in more else ''}://{served.http}/{PATHS[transport]}{query}",
        subprotocols=[GRAPHQL if transport == "graphql" else REST],
        additional_headers=headers(token),
        **more,
    ) as connection:
        try:
            yield connection
        finally:
            connection.transport.abort()


async def opened(connection: ClientConnection, payload: Any) -> None:
    await send(connection, "connection_init", payload=payload)
    assert (await said(connection))["type"] == "connection_ack"


HEAD = sum(len(one.events) for one in events())
"""Where the log ends."""


async def follow(connection: ClientConnection, transport: str) -> list[str]:
    """The collections of all there is."""
    if transport == "graphql":
        fields = "__typename progress ... on Change { entityType }"
        query = f"subscription {{ onDataChange(since: {{beginning: true}}) {{ {fields} }} }}"
        await send(connection, "subscribe", id="s", payload={"query": query})
    else:
        asked = {"since": "beginning", "criteria": [{"area": "data"}]}
        await send(connection, "subscribe", id="s", payload=asked)
    found = list[str]()
    while True:
        data = (await said(connection))["payload"]["data"]
        item = data.get("onDataChange", data)
        if item.get("__typename") == "Maintenance" or "maintenance" in item:
            progress = item.get("maintenance", item).get("progress")
            if progress and parse_progress(progress).sequence >= HEAD:
                return found
        if "entityType" in item:
            found.append(item["entityType"])


def record_of(path: Path) -> list[tuple[str, bool, str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(one["who"], one["allowed"], one.get("code", "")) for one in lines]


async def recorded(path: Path, count: int) -> list[tuple[str, bool, str]]:
    """The lines of the record, once there are so many."""
    await until(lambda: len(record_of(path)) >= count)
    return record_of(path)


FORMS: tuple[Callable[[str], dict[str, str]], ...] = (
    lambda token: {"token": token},
    lambda token: {"authorization": f"Bearer {token}"},
    lambda token: {"Authorization": f"bearer {token}"},
)


@TRANSPORTS
async def test_a_token_of_the_opening_shows_what_its_grants_allow(
    tmp_path: Path, transport: str
) -> None:
    """It is recorded, and never logged."""
    record = tmp_path / "record.jsonl"
    token = issue(tmp_path / "access.json", "orders", collections=("shop/orders",))
    with capture_logs() as logs:
        async with shop(tmp_path, record=record) as served:
            for form in FORMS:
                async with socket(served, transport) as connection:
                    await opened(connection, form(token))
                    assert set(await follow(connection, transport)) == {"orders"}
            await until(lambda: not served.access.visitors)
    assert record_of(record) == [("token:orders", True, "")] * len(FORMS)
    assert token not in record.read_text()
    assert token not in repr(logs)


@TRANSPORTS
async def test_whoever_brings_no_valid_token_is_forbidden_and_recorded(
    tmp_path: Path, transport: str
) -> None:
    tokens, record = tmp_path / "access.json", tmp_path / "record.jsonl"
    right = issue(tokens, "right")
    over, gone = issue(tokens, "over", expires_at=1.0), issue(tokens, "gone")
    revoke(tokens, "gone")
    wrong = issue(tmp_path / "another.json", "right")
    openings: tuple[Any, ...] = (
        {},
        None,
        {"token": None},
        {"token": ""},
        {"token": 5},
        {"token": [right]},
        {"token": f"{right}\u0100"},
        {"token": wrong},
        {"token": over},
        {"token": gone},
        {"authorization": right},
        {"authorization": f"Basic {right}"},
        {"authorization": {"Bearer": right}},
        {"authorization": "Bearer nonsense", "token": right},
        {"ticket": right},
    )
    with capture_logs() as logs:
        async with shop(tmp_path, record=record) as served:
            for payload in openings:
                async with socket(served, transport) as connection:
                    await send(connection, "connection_init", payload=payload)
                    assert await closed(connection) == (4403, "Forbidden"), payload
            await recorded(record, len(openings))
    assert record_of(record) == [("", False, "access.unauthenticated")] * len(openings)
    assert not any(one in repr(logs) for one in (right, wrong, over, gone))


@TRANSPORTS
async def test_who_may_follow_nothing_is_forbidden(tmp_path: Path, transport: str) -> None:
    record = tmp_path / "record.jsonl"
    token = issue(tmp_path / "access.json", "operator", verbs=("admin",))
    async with shop(tmp_path, record=record) as served, socket(served, transport) as connection:
        await send(connection, "connection_init", payload={"token": token})
        assert await closed(connection) == (4403, "Forbidden")
    assert record_of(record)[1:] == [("token:operator", False, "access.forbidden")]


@TRANSPORTS
async def test_who_never_says_who_it_is_gets_nothing_and_is_recorded(
    tmp_path: Path, transport: str
) -> None:
    """E15: 4401 for who asks before; and who goes away is recorded too."""
    record = tmp_path / "record.jsonl"
    issue(tmp_path / "access.json", "right")
    async with shop(tmp_path, record=record) as served:
        async with socket(served, transport) as connection:
            payload = {"query": "subscription { onDataChange { progress } }"}
            await send(connection, "subscribe", id="s", payload=payload)
            assert (await closed(connection))[0] == 4401
        async with socket(served, transport) as connection:
            await send(connection, "ping")
            assert (await said(connection))["type"] == "pong"
        assert await recorded(record, 2) == [("", False, "access.unauthenticated")] * 2
        assert served.captures.subscriptions == 0


@TRANSPORTS
async def test_who_says_nothing_is_sent_away_and_is_recorded(
    tmp_path: Path, transport: str
) -> None:
    """E15: 4408."""
    record = tmp_path / "record.jsonl"
    issue(tmp_path / "access.json", "right")
    async with shop(tmp_path, record=record, captures={"init_timeout": 0.2}) as served:
        async with socket(served, transport) as connection:
            assert (await closed(connection))[0] == 4408
        assert await recorded(record, 1) == [("", False, "access.unauthenticated")]


@TRANSPORTS
async def test_what_the_handshake_brought_counts_before_the_opening(
    tmp_path: Path, transport: str
) -> None:
    tokens = tmp_path / "access.json"
    orders = issue(tokens, "orders", collections=("orders",))
    lines = issue(tokens, "lines", collections=("lines",))
    wrong = issue(tmp_path / "another.json", "wrong")
    async with shop(tmp_path) as served:
        async with socket(served, transport, token=orders) as connection:
            await opened(connection, {"token": lines})
            assert set(await follow(connection, transport)) == {"orders"}
        ticket, _ = served.access.ticket(served.access._known(_brought(orders)))  # type: ignore[arg-type]
        async with socket(served, transport, query=f"?ticket={ticket}") as connection:
            await opened(connection, {"token": lines})
            assert set(await follow(connection, transport)) == {"orders"}
        with pytest.raises(InvalidStatus) as refused:
            async with socket(served, transport, token=wrong):
                pass
        assert refused.value.response.status_code == 401


def _brought(token: str) -> Any:
    from penstock.serve.access import Presented

    return Presented(authorization=f"Bearer {token}")


@TRANSPORTS
async def test_where_strangers_are_served_a_token_shows_no_more_than_its_own(
    tmp_path: Path, transport: str
) -> None:
    token = issue(tmp_path / "access.json", "orders", collections=("orders",))
    async with shop(tmp_path, required=False) as served:
        for payload, seen in (({"token": token}, {"orders"}), ({}, {"orders", "lines"})):
            async with socket(served, transport) as connection:
                await opened(connection, payload)
                assert set(await follow(connection, transport)) == seen
        async with socket(served, transport) as connection:
            await send(connection, "connection_init", payload={"token": "wrong"})
            assert (await closed(connection))[0] == 4403


@TRANSPORTS
async def test_who_is_revoked_or_over_is_ended_and_the_others_are_not(
    tmp_path: Path, transport: str
) -> None:
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one", verbs=ALL), issue(tokens, "other", verbs=ALL)
    async with (
        shop(tmp_path) as served,
        socket(served, transport) as first,
        socket(served, transport) as second,
    ):
        for connection, token in ((first, one), (second, other)):
            await opened(connection, {"token": token})
            assert await follow(connection, transport)
        revoke(tokens, "one")
        assert await closed(first) == (4401, "access.unauthenticated")
        await send(second, "ping")
        while (await said(second))["type"] != "pong":
            pass
        await until(lambda: served.captures.subscriptions <= 1)


@TRANSPORTS
async def test_who_has_not_said_who_it_is_holds_a_place_of_its_address(
    tmp_path: Path, transport: str
) -> None:
    """And then one of its own; both are free again once it is gone."""
    token = issue(tmp_path / "access.json", "one")
    async with shop(tmp_path, connections_max=1) as served:
        async with socket(served, transport) as first:
            with pytest.raises(InvalidStatus) as refused:
                async with socket(served, transport):
                    pass
            assert refused.value.response.status_code == 429
            await opened(first, {"token": token})
            async with socket(served, transport) as second:
                await send(second, "connection_init", payload={"token": token})
                assert await closed(second) == (1013, "Try again later")
            assert served.access.visitors == 1
        await until(lambda: not served.access.visitors)
        async with socket(served, transport) as third:
            await opened(third, {"token": token})


@TRANSPORTS
async def test_openings_of_one_client_are_limited_and_so_are_refusals(
    tmp_path: Path, transport: str
) -> None:
    tokens = tmp_path / "access.json"
    token, other = issue(tokens, "one"), issue(tokens, "other")
    limits: dict[str, Any] = {
        "requests_per_second": 0.001,
        "requests_burst": 1,
        "refusals_per_second": 0.001,
    }
    async with shop(tmp_path, **limits) as served:
        for payload, code in (
            ({"token": token}, 0),
            ({"token": token}, 1013),
            ({"token": "wrong"}, 4403),
            ({"token": "wrong"}, 1013),
            ({"token": other}, 0),
        ):
            async with socket(served, transport) as connection:
                if not code:
                    await opened(connection, payload)
                    continue
                await send(connection, "connection_init", payload=payload)
                assert (await closed(connection))[0] == code


@TRANSPORTS
async def test_a_token_of_the_opening_counts_before_a_certificate(
    tmp_path: Path, transport: str
) -> None:
    authority = Authority()
    tokens, record = tmp_path / "access.json", tmp_path / "record.jsonl"
    issue(tokens, "app", subject="app.example", collections=("lines",))
    orders = issue(tokens, "orders", collections=("orders",))
    serve = {
        "tls": tls_of(tmp_path, authority, mutual=True),
        "captures": {"maintenance_interval": 0.1},
    }
    async with service(tmp_path, serve=serve, record=record) as served:
        await served.log.append(events())
        for name, payload, seen in (
            ("app.example", {}, {"lines"}),
            ("app.example", {"token": orders}, {"orders"}),
            ("other.example", {"token": orders}, {"orders"}),
            ("app.example", {"token": "wrong"}, None),
            ("other.example", {}, None),
        ):
            files = authority.sign(name).write(tmp_path, name)
            async with socket(served, transport, ssl=trusting(authority, files)) as connection:
                if seen is not None:
                    await opened(connection, payload)
                    assert set(await follow(connection, transport)) == seen
                    continue
                await send(connection, "connection_init", payload=payload)
                assert await closed(connection) == (4403, "Forbidden")
    assert [who for who, *_ in record_of(record)] == [
        "certificate:app",
        "token:orders",
        "token:orders",
        "",
        "",
    ]


@TRANSPORTS
async def test_a_page_of_another_origin_cannot_even_open(tmp_path: Path, transport: str) -> None:
    token = issue(tmp_path / "access.json", "one")
    page: Any = "https://app.example"
    async with shop(tmp_path, origins=(page,)) as served:
        evil: Any = "https://evil.example"
        with pytest.raises(InvalidStatus) as refused:
            async with socket(served, transport, origin=evil):
                pass
        assert refused.value.response.status_code == 401
        async with socket(served, transport, origin=page) as connection:
            await opened(connection, {"token": token})
