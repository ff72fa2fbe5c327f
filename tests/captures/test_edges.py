"""Where a transaction begins and ends, and the markers that its edges have."""

import asyncio
from typing import Any

import pytest

from penstock.log.memory import MemoryLog
from penstock.progress import parse_progress
from penstock.subscribe.captures import Boundary
from penstock.subscribe.captures import lane as lanes
from penstock.wire import Block
from tests.captures.support import Reader, add, captures, hubbed, rest, subscribed, until
from tests.flight.blocks import BlockLog, insert
from tests.subscribe.events import one_each

BOTH: list[dict[str, Any]] = [{"area": "infrastructure"}, {"area": "data"}]


@pytest.mark.parametrize("blocks", ["one", "many"])
async def test_a_beginning_has_the_place_right_before_its_first_entry(blocks: str) -> None:
    """E4: not one long before, from which all that was filtered out would be read again."""
    log = MemoryLog()
    commits = [*one_each(1, 10), *one_each(11, 12, source="erp")]
    for part in [commits] if blocks == "one" else [[one] for one in commits]:
        await log.append(part)
    criteria = [{"area": "infrastructure", "site": {"catalog": "erp"}}]
    asked = {"id": "a", "since": "beginning", "criteria": criteria}
    async with subscribed(log, asked, credit=1) as session:
        (begin,) = [one for one in await until(session, 1) if isinstance(one, Boundary)]
        assert begin.begins
        assert parse_progress(begin.progress).sequence == 10
        assert session.positions()["a"].sequence == 10
    async with subscribed(log, {**asked, "since": {"progress": begin.progress}}) as session:
        assert [kind for _, _, kind in captures(await rest(session))] == [
            *("begin", "commit"),
            *("begin", "commit"),
        ]


async def test_a_beginning_that_comes_live_has_the_place_right_before_its_first_entry() -> None:
    log = MemoryLog()
    await log.append(one_each(1, 3))
    async with subscribed(log, {"id": "a", "criteria": BOTH}) as session:
        for at in (4, 5):
            await log.append(one_each(at, at))
        found = await until(session, 6)
    begins = [one.progress for one in found if isinstance(one, Boundary) and one.begins]
    assert [parse_progress(one).sequence for one in begins] == [3, 4]


class Held(Reader):
    """What it reads arrives when it is let go."""

    def __init__(self, log: BlockLog) -> None:
        super().__init__(log)
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        self.asked.set()
        await self.free.wait()
        return found


async def test_who_joins_while_a_transaction_is_counted_misses_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E7, E9: also where what was offered is taken back meanwhile, so that the lane stands still
    at the place of who joins."""
    monkeypatch.setattr(lanes, "PENDING_BYTES_MAX", 30_000)
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    held = Held(log)
    async with (
        hubbed(Reader(log)) as hub,
        subscribed(held, {"id": "a", "criteria": BOTH}, hub=hub) as session,
    ):
        await rest(session)
        (lane,) = session._lanes  # pyright: ignore[reportPrivateUsage]

        def is_fed() -> bool:
            return lane._listening  # pyright: ignore[reportPrivateUsage]

        assert is_fed()
        held.asked.clear()
        held.free.clear()
        log.append([[insert(n) for n in range(4, 24)]])  # in three blocks
        asking = asyncio.create_task(until(session, 22))
        await held.asked.wait()
        while is_fed():
            log.append([[insert(n)] for n in range(100, 200)])
            await asyncio.sleep(0.01)
        assert not lane.pending
        place = str(lane.place())
        await add(
            session, {"id": "b", "since": {"progress": place}, "criteria": [{"area": "data"}]}
        )
        held.free.set()
        found = captures(await asking)
        while ("b", 23) not in {(name, at) for ids, at, _ in found for name in ids}:
            found += captures(await session.next())
    got = [at for ids, at, kind in found if "b" in ids and kind == "insert"]
    assert got[:20] == list(range(4, 24))
