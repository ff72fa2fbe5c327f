"""The npm package graphql-ws as it is, over ws: it follows, completes, and goes on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.contracts.capturing import singles
from tests.captures.graphql import answered_by
from tests.captures.sockets import filled
from tests.children import lines_of
from tests.serve.nodejs import NODE, installed
from tests.waiting import until

pytestmark = pytest.mark.server


@pytest.fixture(scope="session")
def project() -> Path:
    """The Node project, installed."""
    with installed(Path(__file__).parent / "node_graphql") as home:
        return home


async def follow(
    project: Path, address: str, *, after: str = "", count: int, cut: int = 0
) -> list[dict[str, Any]]:
    """What it says; the last is how it ended."""
    arguments = ("follow.mjs", f"ws://{address}/graphql", after, str(count), str(cut))
    return [json.loads(line) for line in await lines_of(NODE, *arguments, cwd=project)]


def expected(first: int, last: int) -> list[dict[str, Any]]:
    return [{"version": str(n), "document": {"_id": n, "at": n}} for n in range(first, last + 1)]


async def test_it_follows_completes_and_goes_on_from_what_it_saved(project: Path) -> None:
    async with filled(12) as (_, service), answered_by(service) as address:
        *first, ended = await follow(project, address, count=7)
        assert first == expected(1, 7)
        assert ended["completed"]
        await until(lambda: not service.subscriptions)
        *rest, _ = await follow(project, address, after=ended["saved"], count=5)
        assert rest == expected(8, 12)


async def test_it_connects_again_by_itself_and_misses_and_repeats_nothing(project: Path) -> None:
    async with filled(20) as (log, service), answered_by(service) as address:
        following = asyncio.create_task(follow(project, address, count=40, cut=10))
        for at in range(21, 41):
            await log.append(singles(at, at))
        *found, ended = await following
        assert found == expected(1, 40)
        assert ended["connections"] == 2


async def test_it_is_told_why_a_marker_does_not_resume(project: Path) -> None:
    async with filled(3) as (_, service), answered_by(service) as address:
        assert await follow(project, address, after="nonsense", count=1) == [
            {"refused": {"code": "MALFORMED"}}
        ]
