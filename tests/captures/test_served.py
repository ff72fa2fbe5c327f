"""Capture subscriptions in a whole service; and clients that mean no good."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from penstock.serve.captures.protocol import ClosingError, parse_message
from penstock.testing.contracts.capturing import singles
from tests.captures.sockets import captured_by, closed, filled, get, opened, said, send, socket
from tests.cli.service import SHOP, Service, configure

words: st.SearchStrategy[Any] = st.sampled_from(
    ["connection_init", "ping", "subscribe", "extend", "change", "limit", "request", "complete"]
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["requests", "n", "id", "all", "credit"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({}, optional={"type": words | values, "id": values, "payload": values})
    | values
)
def test_whatever_is_said_is_understood_or_a_bad_message(message: Any) -> None:
    try:
        parse_message(json.dumps(message))
    except ClosingError as error:
        assert error.code == 4400  # noqa: PT017


@given(st.text() | st.binary())
def test_what_is_no_message_is_a_bad_message(text: str | bytes) -> None:
    with pytest.raises(ClosingError):
        parse_message(text)


async def test_one_subscription_too_many_is_told_which_limit_it_met() -> None:
    async with (
        filled(1, subscriptions_max=1) as (_, service),
        captured_by(service) as address,
        get(address, "/rest/shop/events") as first,
        get(address, "/rest/shop/events") as second,
    ):
        assert (first.status, second.status) == (200, 503)
        message = (await second.body())["error"]["message"]
        assert "subscriptions_max under [serve.captures]" in message


@pytest.mark.slow
async def test_half_open_sockets_and_broken_ones_disturb_nobody() -> None:
    """A bound on sockets, a wait for their opening; and healthy clients notice nothing."""
    options = {"subscriptions_max": 50, "init_timeout": 0.3}
    async with (
        filled(1, **options) as (log, service),
        captured_by(service) as address,
        opened(address) as healthy,
    ):
        asked = {"criteria": [{"area": "data"}]}
        await send(healthy, "subscribe", id="a", payload=asked)
        assert "confirmed" in (await said(healthy))["payload"]["data"]
        codes: list[int] = []

        async def silent() -> None:
            try:
                async with socket(address) as connection:
                    codes.append((await closed(connection))[0])
            except InvalidStatus as refusal:
                codes.append(refusal.response.status_code)

        waiting = asyncio.gather(*(silent() for _ in range(100)))
        for at in range(2, 12):
            await log.append(singles(at, at))
        seen: list[int] = []
        while len(seen) < 10:
            data = (await said(healthy))["payload"]["data"]
            if "version" in data:
                seen.append(data["version"])
        assert seen == list(range(2, 12))
        await waiting
        # Too late with the opening, one socket too many, and one connection too many.
        assert set(codes) == {4408, 1013, 503}
        assert len(codes) == 100
        assert service.subscriptions == 1


@pytest.mark.slow
async def test_the_service_serves_captures_beside_its_health(tmp_path: Path) -> None:
    """Over every HTTP transport, with the host that it asks for; and says when it stops."""
    with Service(configure(tmp_path, SHOP.format(rate=100))) as service:
        address = service.ready["http"]
        async with get(address, "/rest/shop/events?area=data&completeAfter=3") as answer:
            kinds = [(await answer.event())["event"] for _ in range(5)]
            assert [one for one in kinds if one != "maintenance"][:4] == [
                *("confirmed", "capture", "capture", "capture"),
            ]
        async with get(address, "/rest/shop/changes?area=data&limit=3") as answer:
            assert len((await answer.json())["changes"]) >= 3
        async with get(address, "/rest/shop/changes", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 400
        async with opened(address) as connection:
            await send(connection, "subscribe", id="a", payload={"criteria": [{"area": "data"}]})
            while "version" not in (await said(connection))["payload"]["data"]:
                pass
            service.process.send_signal(signal.SIGTERM)
            while (message := await said(connection))["type"] != "error":
                pass
            assert message["payload"]["code"] == "service.unavailable"


@pytest.mark.slow
def test_captures_can_be_turned_off(tmp_path: Path) -> None:
    text = SHOP.format(rate=100) + "[serve.captures]\nenabled = false\n"

    async def ask(address: str) -> int:
        async with get(address, "/rest/shop/changes") as answer:
            return answer.status

    with Service(configure(tmp_path, text)) as service:
        assert asyncio.run(ask(service.ready["http"])) == 404
