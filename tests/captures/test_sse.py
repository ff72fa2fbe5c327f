"""Capture subscriptions as server-sent events."""

import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts import CaptureServerContract
from penstock.testing.contracts.captures_base import append_large
from penstock.testing.contracts.capturing import CaptureEndpoint, changed, committed, singles
from tests.captures.sockets import (
    Events,
    EventsEndpoint,
    captured_by,
    filled,
    get,
    web_server,
)
from tests.children import lines_of

pytestmark = pytest.mark.slow


class TestServerSentEvents(CaptureServerContract):
    can_change: ClassVar[bool] = False
    has_credits: ClassVar[bool] = False

    @asynccontextmanager
    async def serving(self, service: CaptureService) -> AsyncGenerator[CaptureEndpoint]:
        async with web_server(service, scope_of=lambda _, __: self.scope) as address:
            yield EventsEndpoint(address)


async def versions(answer: Events, count: int) -> list[int]:
    """Of the next captures."""
    found: list[int] = []
    while len(found) < count:
        event = await answer.event()
        if event["event"] == "capture":
            found.append(json.loads(event["data"])["version"])
    return found


async def test_a_request_can_be_written_as_parameters() -> None:
    async with filled(3) as (log, service), captured_by(service) as address:
        await log.append([committed(changed(4, collection="lines", key="5"))])
        for query, expected in (
            ("since=beginning&area=data&entityType=orders", [1, 2, 3]),
            ("since=beginning&area=data&entityType=orders&entityType=lines", [1, 2, 3, 4]),
            ("sinceVersion=2&area=data", [2, 3, 4]),
            ("sinceTransaction=2&area=data", [3, 4]),
            ("since=beginning&area=data&entityPrimaryKey=2&entityPrimaryKey=%225%22", [2, 4]),
            ("sinceTimestamp=1700000003000&area=data", [3, 4]),
            ("sinceTimestamp=2023-11-14T22:13:23Z&area=data", [3, 4]),
            ("since=beginning&area=data&completeAfter=1", [1]),
        ):
            async with get(address, f"/rest/shop/events?{query}") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert await versions(answer, len(expected)) == expected, query


async def test_what_cannot_be_meant_is_refused_with_a_status() -> None:
    async with filled(1) as (_, service), captured_by(service) as address:
        for query, word in (
            ("entitytype=orders", "entitytype"),
            ("since=now&sinceVersion=1", "since"),
            ("request=[]", "object of JSON"),
            ("request={}&id=a", "request"),
            ("sinceVersion=-1", "sinceVersion"),
            ("id=a&id=b", "id"),
            ("beforeImages=yes", "beforeImages"),
            ("catalog=erp", "this endpoint is of shop"),
        ):
            async with get(address, f"/rest/shop/events?{query}") as answer:
                assert answer.status == 400, query
                error = (await answer.body())["error"]
                assert error["code"] == "request"
                assert word in error["message"]


async def test_who_connects_again_goes_on_behind_the_last_event() -> None:
    """Last-Event-ID wins over what the URL says, also that of a maintenance event."""
    async with filled(4) as (log, service), captured_by(service) as address:
        path = "/rest/shop/events?since=beginning&area=data"
        async with get(address, path) as answer:
            while json.loads((event := await answer.event())["data"]).get("version") != 2:
                pass
            while (later := await answer.event())["event"] != "maintenance":
                pass
        async with get(address, path, headers={"Last-Event-ID": event["id"]}) as answer:
            assert await versions(answer, 2) == [3, 4]
        await log.append(singles(5, 5))
        request = quote(json.dumps({"scope": {"area": "data", "since": "beginning"}}))
        marker = {"Last-Event-ID": later["id"]}
        async with get(address, f"/rest/shop/events?request={request}", headers=marker) as answer:
            assert await versions(answer, 1) == [5]


async def test_a_place_that_is_gone_or_ahead_has_its_status() -> None:
    """E1, E8: a browser does not try again then."""
    async with filled(0) as (log, service), captured_by(service) as address:
        for at in range(1, 20):
            await log.append(singles(at, at))
        await log.trim(10)
        async with get(address, "/rest/shop/events?sinceVersion=3") as answer:
            assert answer.status == 410
            oldest = (await answer.body())["error"]["oldest"]
        async with get(address, f"/rest/shop/events?since={oldest}&area=data") as answer:
            assert answer.status == 200
            assert len(await versions(answer, 9)) == 9
        async with get(address, "/rest/shop/events?since=nonsense") as answer:
            assert (answer.status, (await answer.body())["error"]["code"]) == (400, "MALFORMED")


async def test_of_several_requests_only_what_all_got_has_an_id() -> None:
    async with filled(3) as (_, service), captured_by(service) as address:
        one = quote(json.dumps({"id": "one", "since": "beginning", "criteria": [{"area": "data"}]}))
        two = quote(json.dumps({"id": "two", "since": {"version": 9}}))
        path = f"/rest/shop/events?request={one}&request={two}"
        async with get(address, path) as answer:
            kinds: list[str] = []
            while "maintenance" not in kinds or "capture" not in kinds:
                event = await answer.event()
                kinds.append(event["event"])
                assert ("id" in event) == (event["event"] in {"maintenance", "confirmed"})
            assert kinds[:2] == ["confirmed", "confirmed"]


def url(*requests: dict[str, Any]) -> str:
    asked = "&".join(f"request={quote(json.dumps(one))}" for one in requests)
    return f"/rest/shop/events?{asked}"


async def heard(
    address: str, path: str, *, stop: int | None = None, last: str = ""
) -> tuple[list[tuple[int, int, tuple[str, ...]]], str, int]:
    """The captures by version, index and ids, up to the end or to so many events; the last id, as
    a browser keeps it; and the status."""
    found: list[tuple[int, int, tuple[str, ...]]] = []
    headers = {"Last-Event-ID": last} if last else None
    async with get(address, path, headers=headers) as answer:
        if answer.status != 200:
            return found, last, answer.status
        with contextlib.suppress(EOFError):
            while stop is None or stop:
                event = await answer.event()
                if event["event"] != "maintenance":
                    stop = None if stop is None else stop - 1
                last = event.get("id", last)
                data = json.loads(event["data"])
                if event["event"] in {"capture", "transaction"}:
                    found.append((data["version"], data["index"], tuple(data["requestIds"])))
        return found, last, 200


async def test_an_id_before_the_end_of_a_transaction_never_skips_it() -> None:
    """E4: wherever the connection breaks, also behind the last entry, and however much is asked
    for: all of it comes, what is counted is counted once, and a browser is told of the end."""
    async with filled(0) as (log, service), captured_by(service) as address:
        for at in (1, 5, 9):
            rows = [changed(at + n, ordinal=n) for n in range({1: 1, 5: 3, 9: 2}[at])]
            await log.append([committed(*rows)])
        every = [(1, 0), (1, 1), (1, 2), *((2, n) for n in range(5)), *((3, n) for n in range(4))]
        for count in (len(every), 7, 3):
            asked = {"id": "a", "since": "beginning", "completeAfter": count}
            for stop in range(1, count + 2):
                found, last, _ = await heard(address, url(asked), stop=stop)
                more, over, _ = await heard(address, url(asked), last=last)
                got = sorted({(version, index) for version, index, _ in found + more})
                assert got == every[:count], (count, stop)
                assert over == "x"
                assert (await heard(address, url(asked), last=over))[2] == 204


async def test_of_several_requests_each_goes_on_where_it_was_and_none_that_is_over() -> None:
    """E7, E8: counts go on, and who waits for a version waits on."""
    async with filled(3) as (log, service), captured_by(service) as address:
        data = [{"area": "data"}]
        two = {"id": "two", "since": "beginning", "completeAfter": 2, "criteria": data}
        five = {"id": "five", "since": "beginning", "completeAfter": 5, "criteria": data}
        later = {"id": "later", "since": {"version": 5}, "completeAfter": 1, "criteria": data}
        path = url(two, five, later)
        async with get(address, path) as answer:
            last = ""
            while not last.startswith("x,") or "*2," not in last:
                last = (await answer.event()).get("id", last)
        assert last.endswith(",")
        await log.append([*singles(4, 4), *singles(5, 5)])
        found, last, _ = await heard(address, path, last=last)
        assert {(version, name) for version, _, ids in found for name in ids} == {
            *((4, "five"), (5, "five"), (5, "later")),
        }
        assert last == "x,x,x"
        assert (await heard(address, path, last=last))[2] == 204


async def test_who_asked_for_what_comes_now_misses_nothing_between_two_connections() -> None:
    """E9: the confirmation has an id already."""
    async with filled(1) as (log, service), captured_by(service) as address:
        path = url({"id": "a", "completeAfter": 1, "criteria": [{"area": "data"}]})
        _, last, _ = await heard(address, path, stop=1)
        await log.append(singles(2, 2))
        found, _, _ = await heard(address, path, last=last)
        assert found == [(2, 1, ("a",))]


async def test_an_id_of_another_url_is_refused() -> None:
    async with filled(2) as (_, service), captured_by(service) as address:
        one = {"id": "a", "since": "beginning", "completeAfter": 2, "criteria": [{"area": "data"}]}
        _, last, _ = await heard(address, url(one), stop=2)
        for path, given in (
            (url(one, {"id": "b"}), last),
            (url({**one, "completeAfter": 0}), last),
            (url(one), last.replace("*1", "*9")),
            (url(one), last.replace("*1", "*-1")),
            (url(one), "nonsense"),
        ):
            assert (await heard(address, path, last=given))[2] == 400, path


async def test_who_never_reads_is_disconnected() -> None:
    """Liveness: it holds its place for no longer than it may."""
    async with filled(0, liveness_timeout=0.5) as (log, service), captured_by(service) as address:
        path = "/rest/shop/events?since=beginning&area=data&content=body"
        async with get(address, path):
            assert service.subscriptions == 1
            await append_large(log, 800)
            while service.subscriptions:
                await append_large(log, 1)


async def test_head_and_curl_are_answered() -> None:
    async with filled(2) as (_, service), captured_by(service) as address:
        async with get(address, "/rest/shop/events", method="HEAD") as answer:
            assert answer.status == 200
        url = f"http://{address}/rest/shop/events?since=beginning&area=data&completeAfter=2"
        told = await lines_of("curl", "-sSN", "--max-time", "60", url)
    kinds = [line.removeprefix("event: ") for line in told if "event: " in line]
    assert [kind for kind in kinds if kind != "maintenance"] == [
        *("confirmed", "capture", "capture", "finished"),
    ]
