"""From history to the head and back: no hole, no repeat, and nothing that grows."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest

from penstock.errors import LogCorruptError, ServiceUnavailableError
from penstock.subscribe.captures import Hub, Session
from penstock.subscribe.captures import lane as lanes
from penstock.wire import Block
from tests import waiting
from tests.captures.support import (
    Reader,
    add,
    captures,
    finished,
    hubbed,
    rest,
    sequences,
    subscribed,
    until,
)
from tests.flight.blocks import BlockLog, insert
from tests.seeds import seed_of
from tests.waiting import patience

ALL: dict[str, Any] = {"id": "all", "since": "beginning", "criteria": [{"area": "data"}]}


class Slow(Reader):
    """Others get their turn between what was read and its arrival."""

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        await asyncio.sleep(0.002)
        return found


def has_come(hub: Hub, sequence: int) -> bool:
    return hub.place.sequence >= sequence


async def at_the_head(session: Session) -> None:
    """Let a session whose requests have nothing to read come to where it is fed."""
    await session.next()  # its confirmation

    async def is_fed() -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await session.next()
        lanes = session._lanes  # pyright: ignore[reportPrivateUsage]
        return all(lane._listening for lane in lanes)  # pyright: ignore[reportPrivateUsage]

    await waiting.until(is_fed)


@pytest.mark.slow
async def test_whoever_comes_to_the_head_while_it_moves_misses_nothing() -> None:
    """E9."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 20)])
    reader = Slow(log)
    written = 20
    random_ = random.Random(seed_of("captures-head"))

    async def write() -> None:
        nonlocal written
        for _ in range(150):
            log.append([[insert(written)]])
            written += 1
            await asyncio.sleep(random_.random() * 0.008)

    async with hubbed(reader) as hub, asyncio.TaskGroup() as group:
        group.create_task(write())
        while written < 150:
            async with subscribed(reader, ALL, hub=hub) as session:
                found = sequences(await until(session, written + 5))
                assert found == list(range(1, len(found) + 1))


class Overtaken(Reader):
    """The log moves on, and the hub with it, while this reader learns that it is at its end."""

    def __init__(self, log: BlockLog, hub: Hub) -> None:
        super().__init__(log)
        self._blocks = log
        self._hub = hub
        self._left = 3

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found = await super().read(after=after, until=until, bytes_max=bytes_max)
        if not found and self._left:
            self._left -= 1
            self._blocks.append([[insert(after + 1)]])
            await waiting.until(lambda: self._hub.place.sequence > after)
        return found


async def test_whoever_is_overtaken_by_the_hub_reads_on_by_itself() -> None:
    """E9."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 5)])
    async with hubbed(Reader(log)) as hub:
        overtaken = Overtaken(log, hub)
        async with subscribed(overtaken, ALL, hub=hub) as session:
            assert sequences(await until(session, 7)) == list(range(1, 8))


@pytest.mark.slow
async def test_who_does_not_take_what_it_is_offered_holds_little_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E13: beyond the bound it reads on by itself, from its own place."""
    monkeypatch.setattr(lanes, "PENDING_BYTES_MAX", 20_000)
    log = BlockLog()
    reader = Reader(log)
    async with hubbed(reader) as hub, subscribed(reader, ALL, hub=hub) as session:
        await at_the_head(session)
        (lane,) = session._lanes  # pyright: ignore[reportPrivateUsage]
        held: list[int] = []
        for n in range(1, 400):
            log.append([[insert(n)]])
            if n % 20 == 0:
                await waiting.until(partial(has_come, hub, n))
                held.append(lane._pending_bytes)  # pyright: ignore[reportPrivateUsage]
        assert max(held) > 0
        assert max(held) <= 20_000
        assert sequences(await until(session, 399)) == list(range(1, 400))


@pytest.mark.slow
async def test_a_commit_costs_nothing_for_who_cannot_match_it() -> None:
    """E5: of a hundred lanes on one collection only the two are touched that the key is for."""
    log = BlockLog()
    reader = Reader(log)
    async with hubbed(reader) as hub:
        sessions: list[Any] = []
        async with patience():
            for n in range(100):
                site: dict[str, Any] = {"entityPrimaryKey": 1 if n in {3, 97} else n + 2}
                asked = {"id": str(n), "criteria": [{"area": "data", "site": site}]}
                opened = subscribed(reader, asked, hub=hub)
                session = await opened.__aenter__()
                sessions.append((opened, session))
                await at_the_head(session)
            offered = 0
            for _, session in sessions:
                (lane,) = session._lanes
                offer = lane.offer

                def count(*offered_: Any, offer: Any = offer, **more: Any) -> None:
                    nonlocal offered
                    offered += 1
                    offer(*offered_, **more)

                lane.offer = count
            log.append([[insert(1)]])
            for n in (3, 97):
                assert captures(await until(sessions[n][1], 1)) == [((str(n),), 1, "insert")]
            assert offered == 2
            for opened, _ in sessions:
                await opened.__aexit__(None, None, None)


@pytest.mark.slow
async def test_requests_at_random_places_get_each_what_they_would_alone() -> None:
    """E7: requests come, go and join while the log grows; a seed drives it."""
    random_ = random.Random(seed_of("captures-random"))
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 60)])
    reader = Slow(log)
    got: dict[str, list[int]] = {}
    begins: dict[str, int] = {}
    written = 60
    async with hubbed(reader) as hub, subscribed(reader, hub=hub) as session:
        for step in range(120):
            choice = random_.random()
            if choice < 0.25 and len(session.ids) < 8:
                name = f"r{step}"
                begins[name] = random_.randint(1, written - 1)
                since = {"version": begins[name]}
                criteria = [{"area": "data"}]
                await add(session, {"id": name, "since": since, "criteria": criteria})
                got[name] = []
            elif choice < 0.35 and session.ids:
                session.remove(random_.choice(session.ids))
            elif choice < 0.6:
                log.append([[insert(written)], [insert(written + 1)]])
                written += 2
            try:
                async with asyncio.timeout(0.01):
                    outputs = await session.next(count_max=random_.randint(1, 9))
            except TimeoutError:
                continue
            for ids, sequence, _ in captures(outputs):
                for name in ids:
                    got[name].append(sequence)
        for ids, sequence, _ in captures(await rest(session)):
            for name in ids:
                got[name].append(sequence)
        left = session.ids
    for name, found in got.items():
        assert found == list(range(begins[name], begins[name] + len(found)))
        if name in left:
            assert found[-1:] == [written - 1]


class Broken(Reader):
    """Its disk fails, until it is mended."""

    def __init__(self, log: BlockLog, error: Exception) -> None:
        super().__init__(log)
        self.error: Exception | None = error

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        if self.error is not None:
            raise self.error
        return await super().read(after=after, until=until, bytes_max=bytes_max)

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        try:
            async with asyncio.timeout(0.01 if timeout_seconds is not None else None):
                return await super().wait(after=after)
        except TimeoutError:
            return False


@contextlib.asynccontextmanager
async def broken(log: BlockLog, error: Exception) -> AsyncGenerator[tuple[Broken, Hub]]:
    """A hub of a log that fails at once, and who listened to it before was told."""
    reader = Broken(log, error)
    reader.error = None
    hub = Hub(reader, retry_seconds=0.001)
    running = asyncio.create_task(hub.run())
    try:
        async with subscribed(Reader(log), ALL, hub=hub) as session:
            assert sequences(await until(session, 3)) == [1, 2, 3]
            await rest(session)
            reader.error = error
            log.append([[insert(4)]])
            ends: list[Any] = []
            while not ends:
                ends = finished(await session.next())
            assert ends[0].error is hub.failure
            assert session.positions() == {}
        yield reader, hub
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.mark.parametrize("error", [OSError("no disk"), ServiceUnavailableError("not now")])
async def test_a_log_that_cannot_be_read_for_a_while_is_told_and_then_served(
    error: Exception,
) -> None:
    """E14, invariant 8: heartbeats without events would look like an idle log; and whoever
    comes when it is read again misses nothing."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    async with broken(log, error) as (reader, hub):
        assert isinstance(hub.failure, ServiceUnavailableError)
        with pytest.raises(ServiceUnavailableError):
            await add(Session(Reader(log), hub), ALL)
        reader.error = None
        await reading(hub)
        async with subscribed(Reader(log), ALL, hub=hub) as session:
            assert sequences(await until(session, 4)) == [1, 2, 3, 4]
            log.append([[insert(5)]])
            assert sequences(await until(session, 1)) == [5]


async def reading(hub: Hub) -> None:
    """Return once the hub reads again."""
    await waiting.until(lambda: hub.failure is None)


async def failing(hub: Hub) -> None:
    """Return once the hub cannot read."""
    await waiting.until(lambda: hub.failure is not None)


async def test_who_was_told_of_a_failure_is_not_said_to_be_where_the_hub_is_later() -> None:
    """E2: what the hub reads after a failure was offered to nobody who was there before."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    reader = Broken(log, OSError("no disk"))
    reader.error = None
    hub = Hub(reader, retry_seconds=0.001)
    running = asyncio.create_task(hub.run())
    async with subscribed(Reader(log), ALL, hub=hub) as session:
        await until(session, 3)
        await rest(session)
        reader.error = OSError("no disk")
        log.append([[insert(4)]])
        await failing(hub)
        reader.error = None
        await waiting.until(lambda: hub.place.sequence >= 4)
        assert session.positions()["all"].sequence == 3
    running.cancel()
    await asyncio.wait({running})


async def test_a_log_that_no_other_try_can_read_is_told_for_good() -> None:
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 4)])
    error = LogCorruptError("block 7 is not what it was")
    async with broken(log, error) as (reader, hub):
        reader.error = None
        assert hub.failure is error
        with pytest.raises(LogCorruptError):
            await add(Session(Reader(log), hub), ALL)
