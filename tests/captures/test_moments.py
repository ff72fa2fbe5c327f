"""What happens at the very moment at which a subscription, or the hub, waits for the log."""

import asyncio
from typing import Any

import pytest

from penstock.ports import Bounds
from penstock.subscribe.captures import Captured, CaptureRequest, Confirmed, Hub, parse_request
from penstock.wire import Block
from tests.captures.support import Reader, add, hubbed, rest, sequences, subscribed
from tests.flight.blocks import BlockLog, insert

DATA = [{"area": "data"}]


def request(given: dict[str, Any]) -> CaptureRequest:
    return parse_request(given, new_id=lambda: "")


class Slow(Reader):
    """A log whose answers arrive when they are let go; each question is told."""

    def __init__(self, log: BlockLog) -> None:
        super().__init__(log)
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def bounds(self) -> Bounds:
        self.asked.set()
        await self.free.wait()
        return await super().bounds()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        self.asked.set()
        await self.free.wait()
        return found


@pytest.mark.slow
async def test_who_joins_while_the_hub_leaps_over_what_was_trimmed_misses_nothing() -> None:
    """E1, E7: the hub stood before all that is left, and asks where the log ends; who came to the
    head meanwhile gets what is appended before the answer."""
    log = BlockLog()
    log.append([[insert(1)]])
    slow = Slow(log)
    hub = Hub(slow)
    running = asyncio.create_task(hub.run())
    await hub.ready()
    log.append([[insert(n)] for n in (2, 3)])
    log.trim(2)
    slow.free.clear()
    slow.asked.clear()
    await slow.asked.wait()
    async with subscribed(Reader(log), {"id": "a", "criteria": DATA}, hub=hub) as session:
        await rest(session)  # it stands at the head, which the hub has not reached
        log.append([[insert(4)]])
        slow.free.set()
        log.append([[insert(5)]])
        assert sequences(await rest(session)) == [4, 5]
    running.cancel()
    await asyncio.wait({running})


async def test_a_confirmation_comes_first_also_of_who_joins_while_the_log_is_read() -> None:
    """E9: a request that is taken over by a lane which is reading gets nothing before it is
    confirmed."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    slow = Slow(log)
    async with (
        hubbed(Reader(log)) as hub,
        subscribed(slow, hub=hub) as session,
    ):
        await add(session, {"id": "a", "since": "beginning", "criteria": DATA})
        await session.next()  # the confirmation
        slow.asked.clear()
        slow.free.clear()
        asking = asyncio.create_task(session.next())
        await slow.asked.wait()
        slow.free.set()
        await add(session, {"id": "b", "since": "beginning", "criteria": DATA})
        found = await asking
        while not any("b" in one.ids for one in found if isinstance(one, Captured)):
            found += await session.next()
    said = [one.id if isinstance(one, Confirmed) else "capture" for one in found]
    assert said == ["b", "capture", "capture", "capture"]


async def test_a_lane_that_ends_while_it_reads_does_not_listen_for_ever() -> None:
    """E13: who adds and removes requests again and again leaves nothing behind in the hub."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    slow = Slow(log)
    async with (
        hubbed(Reader(log)) as hub,
        subscribed(slow, hub=hub) as session,
    ):
        for ended in ("removed", "closed"):
            await add(session, {"id": "a", "criteria": DATA})
            await session.next()
            slow.asked.clear()
            slow.free.clear()
            asking = asyncio.create_task(session.next())
            await slow.asked.wait()
            if ended == "removed":
                session.remove("a")
            else:
                session.close()
            slow.free.set()
            await asyncio.wait({asking})
            assert (asking.exception() is None) == (ended == "removed")
            assert not list(hub._routes)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"version": 4, "index": 3}, {"timestamp": 1_700_000_000_012}])
async def test_who_waits_for_a_start_is_not_before_it_while_others_get_what_comes_first(
    asked: dict[str, Any],
) -> None:
    """E4: two requests share a lane. What is saved of the one, and what it goes on with when it is
    changed, is not what the other still gets of the same block."""
    log = BlockLog(block_events=20)
    log.append([[insert(n)] for n in range(1, 4)])
    async with (
        hubbed(Reader(log)) as hub,
        subscribed(Reader(log), {"id": "a", "criteria": DATA}, hub=hub) as session,
    ):
        await add(session, {"id": "b", "since": asked, "criteria": DATA})
        await rest(session)
        log.append([[insert(n) for n in range(10, 15)]])  # sequences 4 to 8; b wants 6 to 8
        found = await session.next(count_max=1)
        assert sequences(found) == [4]
        assert "b" not in session.positions()
        await session.change(request({"id": "b", "criteria": DATA}))
        found = await rest(session)
        got = [one for one in found if isinstance(one, Captured) and "b" in one.ids]
        assert sequences(got) == [6, 7, 8]
        assert session.positions()["b"].sequence == 8


@pytest.mark.slow
async def test_who_is_changed_behind_its_start_goes_on_from_where_it_is() -> None:
    """Also where the time goes back behind the start: that has come once."""
    log = BlockLog(block_events=20)
    log.append([[insert(n)] for n in range(1, 4)])
    async with (
        hubbed(Reader(log)) as hub,
        subscribed(Reader(log), hub=hub) as session,
    ):
        since = {"timestamp": 1_700_000_000_012}
        await add(session, {"id": "b", "since": since, "criteria": DATA})
        await rest(session)
        log.append([[insert(n) for n in (10, 11, 12, 5, 6)]])
        assert sequences(await session.next(count_max=1)) == [6]
        assert session.positions()["b"].sequence == 6
        await session.change(request({"id": "b", "criteria": DATA}))
        assert sequences(await rest(session)) == [7, 8]
