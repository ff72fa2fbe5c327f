"""History in pages: what a subscription tells, cut between transactions."""

import random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from penstock.errors import GapError, TrimmedError
from penstock.event import Commit
from penstock.log.memory import MemoryLog
from penstock.progress import Progress, parse_progress
from penstock.subscribe.captures import Boundary, Captured, parse_request
from penstock.subscribe.captures.pages import Page, Pages
from penstock.subscribe.captures.rendering import boundary_json, capture_json
from penstock.testing.contracts.capturing import changed, committed, singles, told
from tests.captures.sockets import captured_by, filled, get
from tests.captures.support import Reader, rest, subscribed
from tests.flight.blocks import BlockLog, insert
from tests.subscribe.events import change, commit, schema, system


def said(outputs: Any) -> list[dict[str, Any]]:
    """Captures and edges as clients get them."""
    found: list[dict[str, Any]] = []
    for one in outputs:
        if isinstance(one, Captured):
            found.append(msgspec.json.decode(capture_json(one)))
        elif isinstance(one, Boundary):
            found.append(msgspec.json.decode(boundary_json(one)))
    return found


async def held(pages: Pages, page: Page) -> list[dict[str, Any]]:
    return said([one async for piece in pages.captures(page) for one in piece])


async def forward(pages: Pages, place: Progress) -> list[list[dict[str, Any]]]:
    """Every page behind a place."""
    found: list[list[dict[str, Any]]] = []
    while True:
        page = await pages.after(place)
        assert page.after == place
        found.append(await held(pages, page))
        place = page.until
        if page.last:
            return found


async def backward(pages: Pages, place: Progress) -> list[list[dict[str, Any]]]:
    """Every page up to a place, in the log's order."""
    found: list[list[dict[str, Any]]] = []
    while True:
        page = await pages.before(place)
        assert page.until == place
        found.insert(0, await held(pages, page))
        place = page.after
        if page.first:
            return found


def history(draw: random.Random) -> list[list[Commit]]:
    """Appends of commits of any size; some entries are no data."""
    appends: list[list[Commit]] = []
    at = 0
    for _ in range(draw.randint(1, 12)):
        commits: list[Commit] = []
        for _ in range(draw.randint(1, 6)):
            events: list[Any] = []
            for ordinal in range(draw.choice([1, 1, 2, 5, 300])):
                at += 1
                collection = draw.choice(["orders", "lines"])
                if draw.random() < 0.05:
                    events.append(schema(at, "modify", collection=collection))
                else:
                    events.append(change(at, collection=collection, ordinal=ordinal, key=at % 7))
            commits.append(commit(*events))
        appends.append(commits)
    return appends


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
async def test_pages_in_both_directions_are_the_stream_cut_between_transactions(seed: int) -> None:
    """E4, E11: whatever the filter, the size of a page and what may be read for one."""
    draw = random.Random(seed)
    log = MemoryLog()
    for append in history(draw):
        await log.append(append)
    criteria = draw.choice(
        [
            [],
            [{"area": "data"}],
            [{"area": "data", "site": {"entityType": "lines", "entityPrimaryKey": [3]}}],
            [{"area": "schema"}],
            [{"area": "infrastructure"}],
            [{"area": "data", "site": {"entityType": "none"}}],
        ]
    )
    asked = {"id": "a", "since": "beginning", "criteria": criteria, "content": "body"}
    async with subscribed(log, asked) as session:
        whole = said(await rest(session))
    limit, bytes_max = draw.choice([1, 3, 50]), draw.choice([1, 50_000, 1 << 30])
    request = parse_request({"id": "a", "criteria": criteria, "content": "body"}, new_id=str)
    pages = Pages(log, request, limit=limit, bytes_max=bytes_max)
    bounds = await log.bounds()
    head = Progress(bounds.log_id, bounds.head, bounds.head_check)
    for found in (
        await forward(pages, Progress(bounds.log_id, 0, 0)),
        await backward(pages, head),
    ):
        assert [one for page in found for one in page] == whole
        versions = [{one["version"] for one in page} for page in found]
        assert sum(map(len, versions)) == len({one["version"] for one in whole})
        for page in found:
            data = [one for one in page if one["area"] != "infrastructure"]
            last = {one["version"] for one in data}
            assert len(data) <= limit + 300, last


async def test_a_page_that_found_nothing_says_where_to_go_on() -> None:
    """E5: what is read for one page is bounded."""
    log = MemoryLog()
    for at in range(1, 60):
        await log.append([commit(change(at, document={"_id": at, "text": "x" * 100_000}))])
    await log.append([commit(change(60, collection="lines"))])
    criteria = [{"area": "data", "site": {"entityType": "lines"}}]
    pages = Pages(
        log, parse_request({"id": "a", "criteria": criteria}, new_id=str), limit=5, bytes_max=1
    )
    place, empty = Progress((await log.bounds()).log_id, 0, 0), 0
    while not (found := await held(pages, page := await pages.after(place))):
        assert page.until.sequence > place.sequence
        place, empty = page.until, empty + 1
    assert empty
    assert [one["version"] for one in found] == [60]


async def test_a_gap_ends_the_pages_of_who_did_not_ask_to_be_told() -> None:
    log = MemoryLog()
    for one in (change(1), system(2, "gap"), change(3)):
        await log.append([commit(one)])
    blind = parse_request({"id": "a", "criteria": [{"area": "data"}]}, new_id=str)
    pages = Pages(log, blind, limit=5, bytes_max=1 << 20)
    bounds = await log.bounds()
    page = await pages.after(Progress(bounds.log_id, 0, 0))
    assert [one["version"] for one in await held(pages, page)] == [1]
    assert not page.last
    with pytest.raises(GapError) as raised:
        await pages.after(page.until)
    behind = await pages.after(parse_progress(raised.value.after))
    assert [one["version"] for one in await held(pages, behind)] == [3]
    back = await pages.before(behind.until)
    assert [one["version"] for one in await held(pages, back)] == [3]
    with pytest.raises(GapError):
        await pages.before(back.after)
    informed = parse_request({"id": "a", "criteria": [{"area": "system"}]}, new_id=str)
    every = Pages(log, informed, limit=5, bytes_max=1 << 20)
    page = await every.after(Progress(bounds.log_id, 0, 0))
    assert [one["operation"] for one in await held(every, page)] == ["gap"]


async def test_a_page_that_retention_takes_is_an_error() -> None:
    """E1."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 60)])
    reader = Reader(log)
    request = parse_request({"id": "a", "criteria": [{"area": "data"}]}, new_id=str)
    pages = Pages(reader, request, limit=10, bytes_max=1 << 20)
    page = await pages.after(log.marker(0))
    log.trim(30)
    with pytest.raises(TrimmedError):
        await held(pages, page)
    with pytest.raises(TrimmedError):
        await pages.after(page.after)
    assert len([one for part in await backward(pages, log.marker(59)) for one in part]) == 29


async def test_history_is_read_by_following_its_links() -> None:
    async with filled(7) as (log, service), captured_by(service) as address:
        await log.append([committed(*(changed(8, ordinal=n, key=n) for n in range(5)))])
        await log.append([committed(changed(9, source="erp"))])

        async def walk(path: str, link: str) -> list[list[int]]:
            found: list[list[int]] = []
            while True:
                async with get(address, path) as answer:
                    assert answer.status == 200, path
                    page = await answer.json()
                found.append([one["version"] for one in page["changes"]])
                if page["last"] if link == "next" else page[link] is None:
                    return found
                path = page[link]

        assert await walk("/rest/shop/changes?area=data&limit=3", "next") == [
            *([1, 2, 3], [4, 5, 6], [7, 8, 8, 8, 8, 8], []),
        ]
        assert await walk("/rest/shop/changes?area=data&limit=3&before=now", "previous") == [
            *([8, 8, 8, 8, 8], [5, 6, 7], [2, 3, 4], [1]),
        ]
        assert await walk("/rest/shop/changes?area=data&sinceVersion=7", "next") == [
            [7, 8, 8, 8, 8, 8]
        ]
        request = quote('{"criteria":[{"area":"data","site":{"entityPrimaryKey":3}}]}')
        assert await walk(f"/rest/shop.db/changes?request={request}&limit=1", "next") == [
            *([3], [8], []),
        ]


async def test_a_page_that_cannot_be_is_refused_with_its_status() -> None:
    """E1: 410 with the oldest; E8: 409."""
    async with filled(0) as (log, service), captured_by(service) as address:
        for at in range(1, 20):
            await log.append(singles(at, at))
        async with get(address, "/rest/shop/changes?area=data&limit=2") as answer:
            early = (await answer.json())["next"]
        await log.trim(10)
        await log.append([committed(told(20, "gap"))])
        ahead = Progress((await log.bounds()).log_id, 1000, 0)
        for path, status, code in (
            (early, 410, "TRIMMED"),
            ("/rest/shop/changes?sinceVersion=3", 410, "TRIMMED"),
            (f"/rest/shop/changes?after={ahead}", 409, "AHEAD"),
            ("/rest/shop/changes?sinceVersion=900", 409, "AHEAD"),
            ("/rest/shop/changes?area=data&before=now", 410, "GAP"),
            ("/rest/shop/changes?limit=5000", 400, "request"),
            ("/rest/shop/changes?limit=x", 400, "request"),
            ("/rest/shop/changes?completeAfter=2", 400, "request"),
            ("/rest/shop/changes?before=now&sinceVersion=12", 400, "request"),
            ("/rest/shop/changes?after=nonsense", 400, "MALFORMED"),
        ):
            async with get(address, path) as answer:
                error = (await answer.body())["error"]
                assert (answer.status, error["code"]) == (status, code), path
                assert ("oldest" in error) == (code == "TRIMMED")
