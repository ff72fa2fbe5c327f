"""The index of all lanes, against asking each lane by itself; and the hub that routes by it."""

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import RequestError
from penstock.event import AnyEvent, ChangeEvent, Commit, Operation
from penstock.extjson import encode
from penstock.log.memory import MemoryLog
from penstock.progress import Progress, parse_progress
from penstock.subscribe.captures import Boundary, Hub, Session, parse_request
from penstock.subscribe.captures import lane as lane_module
from penstock.subscribe.captures import routing as routes
from penstock.subscribe.captures.lane import Lane
from penstock.subscribe.captures.matching import Match, Matcher, Plan
from penstock.subscribe.captures.routing import Routes
from penstock.subscribe.captures.since import Start
from penstock.subscribe.scope import EVERYTHING, Grant, Scope, Verb
from penstock.wire import Block, Stream, key_shown
from tests import waiting
from tests.captures.support import (
    add,
    captures,
    finished,
    hubbed,
    rest,
    sequences,
    subscribed,
    until,
)
from tests.seeds import cases
from tests.subscribe.events import blocks_of, change, commit, one_each, schema, system
from tests.waiting import turns

_numbers = itertools.count(1)

SCOPES = [
    EVERYTHING,
    Scope((Grant(verbs=frozenset(Verb), collections=frozenset({"orders"})),)),
    Scope((Grant(hidden=frozenset({"_id"})),), b"secret"),
    Scope((Grant(hidden=frozenset({"city"})),), b"secret"),
]


class Asked:
    """A lane that only says what it wants."""

    def __init__(self, asked: Sequence[list[dict[str, Any]]], scope: Scope, *, gated: bool) -> None:
        requests = [parse_request({"criteria": one}, new_id=lambda: "r") for one in asked]
        self.matcher = Matcher(requests, scope)
        self.gated = gated

    def plan(self, stream: Stream) -> Plan:
        return self.matcher.plan(stream)

    def takes_all(self) -> bool:
        return self.gated

    def takes_edges(self) -> bool:
        return bool(self.matcher.infrastructure)


@st.composite
def changes(draw: st.DrawFn, position: int, ordinal: int) -> ChangeEvent:
    operation = draw(st.sampled_from(list(Operation)))
    documents: list[dict[str, object]] = [{"_id": 1, "city": "B", "a": {"b": 1}}, {"n": 1}]
    key = draw(st.integers(1, 4))
    event = change(
        position,
        key=key,
        ordinal=ordinal,
        collection=draw(st.sampled_from(["orders", "lines"])),
        operation=operation,
        document=draw(st.sampled_from(documents)),
    )
    described = draw(
        st.sampled_from([{"city": 1}, {"a.b": 1, "n": 2}, {"a": 4}, {"city.zip": 3}, {}])
    )
    update = encode({"updatedFields": described, "removedFields": []})
    wide = draw(st.booleans())
    return structs.replace(
        event,
        key=encode({"_id": key, "part": 1}) if wide else event.key,
        update_description=update if operation is Operation.UPDATE else None,
    )


@st.composite
def appended(draw: st.DrawFn, *, others: bool = True) -> list[Commit]:
    """What one append has: often a block of whole commits."""
    commits: list[Commit] = []
    for _ in range(draw(st.integers(1, 3))):
        events: list[AnyEvent] = []
        for ordinal in range(draw(st.integers(1, 4))):
            position = next(_numbers)
            if others and draw(st.integers(0, 12)) == 0:
                events.append(schema(position) if draw(st.booleans()) else system(position))
            else:
                events.append(draw(changes(position, ordinal)))
        commits.append(commit(*events))
    return commits


@st.composite
def criteria(draw: st.DrawFn) -> dict[str, Any]:
    site: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "catalog": st.sampled_from(["shop", "shop.other", "any"]),
                "entityType": st.sampled_from(["orders", "lines", "none"]),
                "operation": st.sampled_from(["insert", "delete", "UPSERT", ["update", "REMOVE"]]),
            },
        )
    )
    area = draw(st.sampled_from([None, "data", "data", "data", "schema", "infrastructure"]))
    if area == "infrastructure":
        return {"area": area, "site": {"catalog": site.get("catalog", "any")}}
    if area != "schema" and draw(st.booleans()):
        keys = st.sampled_from([1, 2, 3.0, {"_id": 4}, {"_id": 2, "part": 1}, "1"])
        site["entityPrimaryKey"] = draw(st.lists(keys, min_size=1, max_size=3))
    if area != "schema" and draw(st.booleans()):
        fields = st.sampled_from(["n", "a", "a.b", "a.c", "city.zip", "other"])
        site["fields"] = draw(st.sampled_from([["any"], [draw(fields)], [draw(fields), "n"]]))
    return {"area": area, "site": site}


@st.composite
def lanes(draw: st.DrawFn) -> Asked:
    asked = draw(st.lists(st.lists(criteria(), min_size=1, max_size=2), min_size=1, max_size=2))
    return Asked(asked, draw(st.sampled_from(SCOPES)), gated=draw(st.integers(0, 9)) == 0)


def by_asking(lane: Asked, block: Block) -> list[Match]:
    return lane.matcher.select(block)


def has_edges_for(lane: Asked, block: Block) -> bool:
    return any(lane.matcher.headers(block.stream(i)) for i in range(block.start, block.stop))


def by_index(lane: Asked, block: Block, found: Any) -> list[Match]:
    return lane.matcher.select(block, found[lane]) if lane in found else []


@pytest.mark.slow
@given(st.data())
@settings(max_examples=cases(150))
def test_the_index_finds_exactly_what_asking_each_lane_finds(data: st.DataObject) -> None:
    """E5, E7: with lanes that come and go between the blocks, and masks that change keys."""
    index = Routes[Asked]()
    live: list[Asked] = []
    coming = st.lists(lanes(), max_size=3)
    appends = data.draw(st.lists(appended(), min_size=1, max_size=5))
    for block in blocks_of(appends):
        for lane in data.draw(coming):
            index.add(lane)
            live.append(lane)
        if len(live) > 0 and data.draw(st.booleans()):
            index.remove(live.pop(data.draw(st.integers(0, len(live) - 1))))
        start = data.draw(st.integers(0, len(block) - 1))
        for seen in (block, block.narrow(after=block.first_sequence + start - 1)):
            found = index.interested(seen)
            assert set(found) <= set(live)
            for lane in live:
                assert by_index(lane, seen, found) == by_asking(lane, seen)
                if lane.gated or has_edges_for(lane, seen):
                    assert found[lane] is None


@pytest.mark.parametrize("kept_max", [1, 2])
def test_an_index_that_forgets_streams_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, kept_max: int
) -> None:
    """However many streams there are."""
    monkeypatch.setattr(routes, "_STREAMS_MAX", kept_max)
    index = Routes[Asked]()
    names = ["a", "b", "c"]
    asked = {
        name: Asked([[{"area": "data", "site": {"entityType": name}}]], EVERYTHING, gated=False)
        for name in names
    }
    for lane in asked.values():
        index.add(lane)
    for number, name in enumerate(itertools.chain(*[names] * 4), start=1):
        if name == "a":
            index.remove(asked["c"])
            index.add(asked["c"])
        (block,) = blocks_of([[commit(change(number, collection=name))]])
        assert set(index.interested(block)) == {asked[name]}


def test_a_lane_that_comes_and_goes_often_leaves_nothing_behind() -> None:
    index = Routes[Asked]()
    one = Asked([[{"area": "data", "site": {"entityPrimaryKey": 1}}]], EVERYTHING, gated=False)
    (block,) = blocks_of([[commit(change(1))]])
    for _ in range(500):
        index.add(one)
        assert list(index.interested(block)) == [one]
        index.remove(one)
        assert not index.interested(block)
    assert len(index._joins) < 200  # pyright: ignore[reportPrivateUsage]


def _of_each_kind() -> Iterator[tuple[dict[str, Any], bool]]:
    """A site, and whether an insert of order 1 may be for it."""
    yield {"entityPrimaryKey": 1}, True
    yield {"entityPrimaryKey": 2}, False
    yield {"entityPrimaryKey": 1, "operation": "delete"}, False
    yield {"operation": "insert"}, True
    yield {"operation": "delete"}, False
    yield {"fields": ["at"]}, True
    yield {"fields": ["other"]}, False
    yield {"fields": ["at"], "operation": "update"}, False
    yield {"entityType": "lines"}, False
    yield {"catalog": "elsewhere"}, False


def test_an_entry_is_looked_up_by_operation_key_and_fields() -> None:
    """E5: who cannot match is not asked, whether it names another key, operation or field."""
    (block,) = blocks_of([[commit(change(1))]])
    for site, expected in _of_each_kind():
        index = Routes[Asked]()
        lane = Asked([[{"area": "data", "site": site}]], EVERYTHING, gated=False)
        index.add(lane)
        assert (lane in index.interested(block)) is expected, site


def test_a_key_is_looked_up_as_its_reader_sees_it() -> None:
    """By the name that stands for it, and not by a guess at what is hidden."""
    scope = SCOPES[2]
    (block,) = blocks_of([[commit(change(1))]])
    mask = scope.mask(block.stream(0))
    assert mask is not None
    stream, stored = block.stream(0), block.cell(0, "key")
    shown, _ = key_shown(stored, mask, (stream.source, stream.database, stream.collection))
    for key, expected in ((json.loads(shown), [0]), (1, None)):
        site = {"entityPrimaryKey": key}
        lane = Asked([[{"area": "data", "site": site}]], scope, gated=False)
        index = Routes[Asked]()
        index.add(lane)
        assert index.interested(block).get(lane) == expected
        assert bool(by_asking(lane, block)) is bool(expected)


def test_edges_are_for_whose_catalog_has_a_part_of_the_transaction() -> None:
    """E5, E11: but of a transaction that goes beyond the block, nobody knows yet what it has."""
    criteria = [{"area": "infrastructure", "site": {"catalog": "elsewhere"}}]
    lane = Asked([criteria], EVERYTHING, gated=False)
    index = Routes[Asked]()
    index.add(lane)
    (block,) = blocks_of([[commit(*(change(n, ordinal=n) for n in range(4)))]])
    assert lane not in index.interested(block)
    for part in (block.narrow(after=1), block.narrow(after=0, until=3)):
        assert index.interested(part)[lane] is None


# --- the hub and whole sessions -------------------------------------------------------------------


ORDERS: dict[str, Any] = {"criteria": [{"area": "data", "site": {"entityType": "orders"}}]}


class Client:
    """A session, and what its requests should have got by now."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked: dict[str, list[dict[str, Any]]] = {}
        self.expected: list[tuple[tuple[str, ...], int, str]] = []

    def append(self, blocks: list[Block]) -> None:
        """Ask each request by itself for each entry."""
        matchers = {
            name: Matcher([parse_request({"criteria": one}, new_id=lambda: "r")])
            for name, one in self.asked.items()
        }
        for block in blocks:
            chosen = {name: {one.i for one in of.select(block)} for name, of in matchers.items()}
            for i, entry in enumerate(block.entries(), start=block.start):
                names = tuple(sorted(name for name, those in chosen.items() if i in those))
                if names:
                    event: Any = entry.event
                    sequence = block.first_sequence + i
                    self.expected.append((names, sequence, str(event.operation)))


_of_data = criteria().filter(lambda one: one["area"] == "data")


@given(st.data())
@settings(max_examples=cases(40))
def test_sessions_that_are_fed_get_what_each_request_means(data: st.DataObject) -> None:
    """E5, E7: requests are added, changed and removed in the middle, and what several of one
    session match comes once, with exactly their ids."""
    asyncio.run(_fed(data))


async def _fed(data: st.DataObject) -> None:
    log = MemoryLog()
    await log.append(one_each(1, 1))
    async with hubbed(log) as hub, subscribed(log, hub=hub) as one, subscribed(log, hub=hub) as two:
        clients = [Client(one), Client(two)]
        for step in range(data.draw(st.integers(2, 6))):
            for client in clients:
                if data.draw(st.booleans()):
                    await _settled(client, hub, log)
                    await _changed(data, client)
                else:
                    await _added(data, client, f"r{step}")
                await _settled(client, hub, log)
            after = (await log.bounds()).head
            for append in data.draw(st.lists(appended(others=False), min_size=1, max_size=3)):
                await log.append(append)
            blocks = await log.read(after=after)
            for client in clients:
                client.append(blocks)
        for client in clients:
            await _settled(client, hub, log)


_wanted = st.lists(_of_data, min_size=1, max_size=2)


async def _added(data: st.DataObject, client: Client, name: str) -> None:
    """Also while others have not taken what is theirs."""
    client.asked[name] = data.draw(_wanted)
    await add(client.session, {"id": name, "criteria": client.asked[name]})


async def _changed(data: st.DataObject, client: Client) -> None:
    if not client.asked:
        return
    name = data.draw(st.sampled_from(sorted(client.asked)))
    if data.draw(st.booleans()):
        del client.asked[name]
        client.session.remove(name)
    else:
        client.asked[name] = data.draw(_wanted)
        given = {"id": name, "criteria": client.asked[name]}
        await client.session.change(parse_request(given, new_id=str))


async def _settled(client: Client, hub: Hub, log: MemoryLog) -> None:
    """Let a session take all there is, and hold it against what it should be."""
    head = (await log.bounds()).head
    await waiting.until(lambda: hub.place.sequence >= head)
    found: list[Any] = []
    while True:
        taking = asyncio.ensure_future(client.session.next())
        await turns(20)
        if not taking.done():
            taking.cancel()
            await asyncio.wait({taking})
            break
        found += taking.result()
    assert captures(found) == client.expected
    assert all(one.error is None for one in finished(found))
    client.expected = []
    places = client.session.positions()
    assert set(places) == set(client.asked)
    assert all(place.sequence == head for place in places.values())


# --- who idles ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_is_safe_for_an_idle_request_moves_on_and_never_back() -> None:
    """E2, E5: though its client takes nothing when at last something is for it."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    asked = {"id": "a", "criteria": [{"area": "data", "site": {"entityPrimaryKey": 500}}]}
    async with hubbed(log) as hub, subscribed(log, asked, hub=hub, credit=1) as session:
        await rest(session)  # and it listens
        session._credits = 0  # pyright: ignore[reportPrivateUsage]
        places: list[int] = []
        for one in (*one_each(2, 40), *one_each(500, 500), *one_each(41, 60)):
            await log.append([one])
            await waiting.until(lambda: hub.place.sequence == log.bounds_now().head)
            places.append(session.positions()["a"].sequence)
        assert places == [min(n, 40) for n in range(2, 62)]
        session.request(1)
        assert sequences(await session.next()) == [41]


@pytest.mark.slow
async def test_the_beginning_that_ends_a_long_rest_has_the_place_before_it() -> None:
    """E5, E11: though nothing before it was for this request."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    asked = {"id": "a", "criteria": [{"area": "infrastructure", "site": {"catalog": "erp"}}]}
    async with hubbed(log) as hub, subscribed(log, asked, hub=hub) as session:
        await rest(session)  # and it listens
        for one in (*one_each(2, 40), *one_each(41, 41, source="erp")):
            await log.append([one])
        begin, *_ = [one for one in await rest(session) if isinstance(one, Boundary)]
        assert begin.begins
        assert parse_progress(begin.progress).sequence == 40


async def test_who_takes_late_takes_more_at_once_and_no_more_than_it_may() -> None:
    """E13: what is there is handed out together, whatever the blocks it came in."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    async with hubbed(log) as hub, subscribed(log, {"id": "a", **ORDERS}, hub=hub) as session:
        await rest(session)  # and it listens
        for one in one_each(2, 11):
            await log.append([one])
        await waiting.until(lambda: hub.place.sequence >= 11)
        assert sequences(await session.next(count_max=3)) == [2, 3, 4]
        (lane,) = session._lanes  # pyright: ignore[reportPrivateUsage]
        assert not lane.ready
        assert sequences(await session.next()) == [5, 6, 7, 8, 9, 10, 11]


@pytest.mark.slow
async def test_who_is_removed_is_not_named_by_what_was_ready_for_it() -> None:
    """E7, E14: nothing that it matches comes behind its end."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    async with hubbed(log) as hub, subscribed(log, {"id": "a", **ORDERS}, hub=hub) as session:
        await add(session, {"id": "b", **ORDERS})
        await rest(session)  # and both listen
        await log.append(one_each(2, 4))
        assert captures(await session.next(count_max=1)) == [(("a", "b"), 2, "insert")]
        session.remove("b")
        assert captures(await rest(session)) == [(("a",), 3, "insert"), (("a",), 4, "insert")]


@pytest.mark.slow
async def test_who_stays_gets_what_is_its_own_after_another_was_removed() -> None:
    """E7: what was ready for the other is forgotten, and not its place among the requests."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    lines = {"criteria": [{"area": "data", "site": {"entityType": "lines"}}]}
    async with hubbed(log) as hub, subscribed(log, {"id": "a", **ORDERS}, hub=hub) as session:
        await add(session, {"id": "b", **lines})
        await rest(session)  # and both listen
        await log.append([*one_each(2, 3), *one_each(4, 4, collection="lines")])
        assert captures(await session.next(count_max=1)) == [(("a",), 2, "insert")]
        session.remove("a")
        await log.append(one_each(5, 5, collection="lines"))
        found = [*captures(await rest(session))]
        assert found == [(("b",), 4, "insert"), (("b",), 5, "insert")]


async def test_who_is_ahead_of_the_hub_gets_only_what_lies_behind_its_place() -> None:
    """E4, E9: also of a block that it has had a part of."""
    log = MemoryLog()
    await log.append(one_each(1, 4))
    (block,) = await log.read(after=0)
    had = parse_progress(block.progress(1))
    request = parse_request({"id": "a", **ORDERS}, new_id=str)
    lane = Lane({"a": request}, Start(after=had), hub=Hub(log), scope=EVERYTHING, wake=lambda: None)
    lane.offer(block, [0, 1, 2, 3], before=Progress(block.log_id, 0, 0))
    assert await lane.advance(log)
    assert [block.first_sequence + one.i for one in lane.ready] == [3, 4]


async def test_who_is_offered_too_much_after_a_long_rest_reads_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E5, E13: not from where it last got something, which retention may have removed."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    asked = {"id": "a", "criteria": [{"area": "data", "site": {"entityPrimaryKey": [500, 501]}}]}
    async with hubbed(log) as hub, subscribed(log, asked, hub=hub, credit=1) as session:
        await rest(session)  # and it listens
        session._credits = 0  # pyright: ignore[reportPrivateUsage]
        await log.append(one_each(2, 40))
        await waiting.until(lambda: hub.place.sequence >= 40)
        monkeypatch.setattr(lane_module, "PENDING_BYTES_MAX", 1)
        await log.append(one_each(500, 501))
        await waiting.until(lambda: hub.place.sequence >= 42)
        assert session.positions()["a"].sequence == 40
        session.request(10)
        assert [n for _, n, _ in captures(await rest(session))] == [41, 42]


class Unfit(Lane):
    """It cannot say what it wants."""

    def plan(self, stream: Stream) -> Plan:
        raise OverflowError(stream.collection)


async def test_a_lane_that_cannot_say_what_it_wants_fails_alone() -> None:
    """Invariant 8: whoever else listens gets all that is for it, of the same block, too."""
    log = MemoryLog()
    await log.append(one_each(1, 1))
    async with hubbed(log) as hub, subscribed(log, hub=hub) as good:
        await add(good, {"id": "a", **ORDERS})
        await rest(good)
        start = Start(after=hub.place)
        request = parse_request({"id": "b", **ORDERS}, new_id=str)
        unfit = Unfit({"b": request}, start, hub=hub, scope=EVERYTHING, wake=lambda: None)
        assert not await unfit.advance(log)
        await log.append(one_each(2, 2))
        assert sequences(await until(good, 1)) == [2]
        assert hub.failure is None
        with pytest.raises(RequestError, match="cannot be looked up"):
            await unfit.advance(log)
        await log.append(one_each(3, 3))
        assert sequences(await until(good, 1)) == [3]
        assert unfit.place().sequence == 1
        assert not unfit.pending
