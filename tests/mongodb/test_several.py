"""Several sources in one service: one log, one order, and none disturbs another (P11, P14, P29)."""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

import pytest
from pymongo import MongoClient

from penstock.capture import Backoff, Supervised, Supervisor
from penstock.capture.status import State
from penstock.client import follow_log
from penstock.event import ChangeEvent, Entry
from penstock.log import MemoryLog
from penstock.ports import LogReader
from penstock.sources.mongodb import MongoSource
from tests.mongodb.support import config, folded, stored_rows
from tests.waiting import until
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
IDS: list[Any] = ["a", "a/b", "b:a", 5, "5", "orders/a"]
"""In every source; those that a separator would make one of, and those that look the same."""
ROUNDS = 40


class Clock:
    def now_ms(self) -> int:
        return 0

    def steady_seconds(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Upstream(NamedTuple):
    """A source and where it comes from."""

    source: str
    uri: str
    database: str


@contextlib.asynccontextmanager
async def capturing(log: MemoryLog, *upstreams: Upstream) -> AsyncGenerator[Supervisor]:
    """Capture, as the service does."""
    sources = [
        MongoSource(up.source, config(up.uri, database=up.database, heartbeat_seconds=0.2))
        for up in upstreams
    ]
    supervisor = Supervisor(
        log,
        [Supervised(source=source, silence_seconds_max=60) for source in sources],
        clock=Clock(),
        rng=random.Random(1),
        backoff=Backoff(first_seconds=0.05, longest_seconds=0.2, breaker_seconds=0.2),
    )
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def entries(log: LogReader, *, after: int = 0) -> list[Entry]:
    """What the log holds, in its order."""
    found: list[Entry] = []
    while blocks := await log.read(after=after):
        for block in blocks:
            found += block.entries()
        after = found[-1].sequence
    return found


async def entries_until(log: LogReader, reached: Callable[[list[Entry]], bool]) -> list[Entry]:
    """What the log holds, once it is so."""

    async def held() -> list[Entry] | None:
        found = await entries(log)
        return found if reached(found) else None

    return await until(held)


def changes(found: list[Entry], source: str) -> list[ChangeEvent]:
    return [
        entry.event
        for entry in found
        if isinstance(entry.event, ChangeEvent) and entry.event.source == source
    ]


def write(up: Upstream, seed: int) -> None:
    """Changes to the same collection and the same keys as in every other source."""
    rng = random.Random(seed)
    with Client(up.uri) as client:
        orders = client[up.database]["orders"]
        for n in range(ROUNDS):
            key = rng.choice(IDS)
            if rng.random() < 0.2:
                orders.delete_one({"_id": key})
            elif rng.random() < 0.3:
                with client.start_session() as session, session.start_transaction():
                    for number, one in enumerate(rng.sample(IDS, 3)):
                        document = {"n": n, "part": number, "by": up.source}
                        orders.replace_one({"_id": one}, document, upsert=True, session=session)
            else:
                orders.replace_one({"_id": key}, {"n": n, "by": up.source}, upsert=True)
        orders.insert_one({"_id": "last", "by": up.source})


@pytest.fixture
def upstreams(
    mongo: MongoReplicaSet, mongo6027: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> list[Upstream]:
    """Three sources: two databases of one server, and one of another, under the same name."""
    with Client(mongo6027.uri) as other:
        other.drop_database(mongo_database)
        other[mongo_database].create_collection("orders")
    found = [
        Upstream("east", mongo.uri, mongo_database),
        Upstream("west", mongo6027.uri, mongo_database),
        Upstream("north", mongo.uri, f"{mongo_database}_north"),
    ]
    for up in (found[0], found[2]):
        mongo_client[up.database].create_collection("orders")
    return found


async def test_three_sources_become_one_order_that_is_the_same_live_and_replayed(
    upstreams: list[Upstream],
) -> None:
    """P29, P11, P14: total order per source, order per document for everyone, nothing mixed, and
    one marker that covers them all."""
    log = MemoryLog()
    live: list[tuple[str, str]] = []
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")

    async def follow_live() -> None:
        lasts = 0
        async with follow_log(log, control_events=True, coalescing=None) as following:
            following_since.set()
            async for change in following:
                live.append((change.entry.event.event_id, change.progress))
                lasts += change.document_id == "last"
                if lasts == len(upstreams):
                    return

    async with capturing(log, *upstreams) as supervisor:
        await until(lambda: all(s.state is State.RUNNING for s in supervisor.status()))
        following_since = asyncio.Event()
        following = asyncio.create_task(follow_live())
        await following_since.wait()
        writers = [
            asyncio.to_thread(write, up, seed + number) for number, up in enumerate(upstreams)
        ]
        await asyncio.gather(*writers)
        await following
    found = await entries(log)
    assert [entry.sequence for entry in found] == list(range(1, len(found) + 1))
    replayed = [entry.event.event_id for entry in found]
    first = replayed.index(live[0][0])
    assert [event_id for event_id, _ in live] == replayed[first:]

    for up in upstreams:
        own = changes(found, up.source)
        assert {change.database for change in own} == {up.database}
        times = [(change.cluster_time, change.position) for change in own]
        assert times == sorted(times), "the order of the source's own log"
        written: dict[bytes, list[int]] = defaultdict(list)
        for change in own:
            if change.full_document is not None and change.document_id != "last":
                assert f'"by":"{up.source}"'.encode() in bytes(change.full_document)
                number = bytes(change.full_document).split(b'"n":')[1].split(b",")[0]
                written[bytes(change.key)].append(int(number))
        assert all(numbers == sorted(numbers) for numbers in written.values())
        with Client(up.uri) as client:
            assert folded([*own]) == stored_rows(client[up.database], ["orders"])
    # Two keys that look alike are two, and equal ones of two sources are two as well.
    identities = {
        (e.event.source, e.event.database, e.event.collection, bytes(e.event.key))
        for e in found
        if isinstance(e.event, ChangeEvent)
    }
    assert len(identities) == len(upstreams) * (len(IDS) + 1)

    for _ in range(5):
        place = random.Random(seed).randrange(len(live))
        async with follow_log(log, after=live[place][1], control_events=True) as resumed:
            rest = [await anext(resumed) for _ in range(len(live) - place - 1)]
        assert [change.entry.event.event_id for change in rest] == [
            event_id for event_id, _ in live[place + 1 :]
        ]
    await log.close()


async def test_a_source_that_is_down_does_not_hold_up_the_others_and_catches_up(
    upstreams: list[Upstream], start_mongo: Callable[..., MongoReplicaSet]
) -> None:
    """Invariant 8: its own changes come when it is back, each once."""
    doomed = start_mongo()
    down = Upstream("south", doomed.uri, "shop")
    log = MemoryLog()

    with Client(doomed.uri, w="majority", journal=True) as client:
        client["shop"].create_collection("orders")
        async with capturing(log, down, *upstreams[:2]) as supervisor:
            await until(lambda: all(s.state is State.RUNNING for s in supervisor.status()))
            client["shop"]["orders"].insert_one({"_id": "before"})
            doomed.kill(0)
            await until(
                lambda: {s.source: s.state for s in supervisor.status()}["south"] is State.RETRYING,
            )
            for up in upstreams[:2]:
                await asyncio.to_thread(write, up, 7)
            await entries_until(
                log, lambda es: sum(getattr(e.event, "document_id", "") == "last" for e in es) == 2
            )
            now = {s.source: s.state for s in supervisor.status()}
            assert now == {"south": State.RETRYING, "east": State.RUNNING, "west": State.RUNNING}
            await asyncio.to_thread(doomed.restart, 0)
            client["shop"]["orders"].insert_one({"_id": "after"})
            found = await entries_until(log, lambda es: len(changes(es, "south")) >= 2)
    assert [change.document_id for change in changes(found, "south")] == ["before", "after"]
    await log.close()


async def test_a_marker_at_an_event_of_a_source_that_is_gone_still_resumes(
    upstreams: list[Upstream],
) -> None:
    """P14: a marker is a place in the log, whatever sources there are now; one that is added later
    begins where it is added."""
    log = MemoryLog()
    east, west, _ = upstreams
    async with capturing(log, east) as supervisor:
        await until(lambda: supervisor.status()[0].state is State.RUNNING)
        await asyncio.to_thread(write, east, 1)
        found = await entries_until(
            log, lambda es: [one.document_id for one in changes(es, "east")][-1:] == ["last"]
        )
    marker = found[-1].progress
    async with capturing(log, west) as supervisor:
        await until(lambda: supervisor.status()[0].state is State.RUNNING)
        await asyncio.to_thread(write, west, 2)
        async with follow_log(log, after=marker, control_events=False) as following:
            change = await anext(following)
            assert change.entry.event.source == "west"
    await log.close()
