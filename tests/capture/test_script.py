"""What the simulated shop promises: one seed tells one story, from any place in it."""

import asyncio
import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture import PumpLimits, pump
from penstock.errors import SourceChangedError
from penstock.event import ChangeEvent, Commit, Operation, SchemaEvent
from penstock.log import MemoryLog
from penstock.sources.script import COLLECTIONS, ScriptSource, ScriptSourceConfig, Shop
from penstock.wire import encode_event
from tests.capture.doubles import entries
from tests.seeds import cases

UNPACED = 0.0


def shop(seed: int = 1, note_bytes: int = 0) -> Shop:
    return Shop(
        source="shop",
        database="shop",
        seed=seed,
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        note_bytes=note_bytes,
    )


def source(*, transactions: int | None, seed: int = 1, rate: float = UNPACED) -> ScriptSource:
    return ScriptSource(
        "shop",
        ScriptSourceConfig(seed=seed, transactions=transactions, events_per_second=rate),
    )


def story(seed: int, transactions: int) -> Iterable[Commit]:
    told = shop(seed)
    return (told.transaction(n) for n in range(1, transactions + 1))


@given(seed=st.integers(0, 2**63), n=st.integers(1, 10**9))
def test_a_transaction_is_the_same_whenever_it_is_told(seed: int, n: int) -> None:
    """P26: the event ids and the source's time too, so that a recapture is the same bytes."""
    told = shop(seed)
    told.transaction(n + 1)
    first, again = told.transaction(n), shop(seed).transaction(n)
    assert first == again
    assert [encode_event(event).message for event in first.events] == [
        encode_event(event).message for event in again.events
    ]


def test_another_seed_tells_another_story() -> None:
    assert list(story(1, 300)) != list(story(2, 300))


@pytest.mark.slow
@settings(max_examples=cases(10))
@given(seed=st.integers(0, 1000))
def test_applying_the_changes_in_order_never_contradicts_itself(seed: int) -> None:
    """Inserts are new, updates and deletes find their document, and an update says what it does."""
    tables: dict[str, dict[str, dict[str, object]]] = {name: {} for name in COLLECTIONS}
    for commit in story(seed, 450):
        for event in commit.events:
            if isinstance(event, ChangeEvent):
                apply(tables[event.collection], event)
        if len(commit.events) > 1:
            check_totals(tables)


def apply(table: dict[str, dict[str, object]], event: ChangeEvent) -> None:
    key = event.document_id
    assert (key in table) == (event.operation is not Operation.INSERT)
    if event.operation is Operation.DELETE:
        del table[key]
        return
    assert event.full_document is not None
    after = json.loads(bytes(event.full_document))
    if event.update_description is not None:
        assert event.operation is Operation.UPDATE
        updated = json.loads(bytes(event.update_description))["updatedFields"]
        expected = json.loads(json.dumps(table[key]))
        for path, value in updated.items():
            *parents, leaf = path.split(".")
            place = expected
            for parent in parents:
                place = place[parent]
            place[leaf] = value
        assert expected == after
    assert json.loads(bytes(event.key)).items() <= after.items()
    table[key] = after


def check_totals(tables: dict[str, dict[str, dict[str, object]]]) -> None:
    """After every commit the lines of an order add up to its total, and have an order."""
    totals: dict[str, int] = {}
    for line in tables["order_lines"].values():
        order = line["order"]["$oid"]  # type: ignore[index]
        totals[order] = totals.get(order, 0) + line["amount"]  # type: ignore[operator]
    assert totals == {key: order["total"] for key, order in tables["orders"].items()}


def test_the_story_has_everything_that_a_reader_must_cope_with() -> None:
    commits = list(story(1, 6_000))
    events = [event for commit in commits for event in commit.events]
    operations = {event.operation for event in events if isinstance(event, ChangeEvent)}
    assert operations == set(Operation)
    assert {event.operation for event in events if isinstance(event, SchemaEvent)} == {
        "create",
        "createIndexes",
    }
    assert any(len(commit.events) == 1 for commit in commits)
    assert any(len(commit.events) > 3 for commit in commits)
    # Two changes to one document in one transaction (P2), each with an id of its own.
    assert any(
        len({event.document_id for event in commit.events if isinstance(event, ChangeEvent)})
        < len(commit.events)
        for commit in commits
        if len(commit.events) > 3
    )
    assert len({event.event_id for event in events}) == len(events)


def test_only_a_transaction_of_many_changes_has_a_transaction_number() -> None:
    for commit in story(1, 300):
        numbers = {event.txn_number for event in commit.events if isinstance(event, ChangeEvent)}
        assert len(numbers) <= 1
        if len(commit.events) > 1 and numbers:
            assert None not in numbers


@pytest.mark.slow
@settings(max_examples=cases(25))
@given(seed=st.integers(0, 2**32))
async def test_a_resume_is_exact_wherever_capture_was_cut(seed: int) -> None:
    """Invariant 2."""
    rng = random.Random(seed)
    log = MemoryLog()
    total = 150
    while True:
        told = source(transactions=min(total, rng.randrange(1, 2 * total)))
        await pump(told, log, limits=PumpLimits(batch_events_max=rng.randrange(1, 20)))
        position = await log.position("shop")
        if position == f"1:{total}":
            break
    held = [entry.event.event_id for entry in await entries(log)]
    assert held == [event.event_id for commit in story(1, total) for event in commit.events]


def test_the_tables_are_known_at_every_transaction() -> None:
    tables = shop().state_at(500)
    assert set(tables) == set(COLLECTIONS)
    applied: dict[str, dict[str, bytes]] = {name: {} for name in COLLECTIONS}
    for commit in story(1, 500):
        for event in commit.events:
            if not isinstance(event, ChangeEvent):
                continue
            if event.full_document is None:
                applied[event.collection].pop(event.document_id)
            else:
                applied[event.collection][event.document_id] = bytes(event.full_document)
    assert tables == applied


async def test_the_position_of_another_shop_is_refused() -> None:
    """S6: another server under the same name is not mixed in."""
    with pytest.raises(SourceChangedError, match="seed 1"):
        await anext(source(transactions=1, seed=2).changes(position="1:5"))


async def test_a_slow_shop_says_that_it_is_quiet() -> None:
    """P21, invariant 5: an empty commit at least every heartbeat, with the position unmoved."""
    slow = ScriptSource(
        "shop", ScriptSourceConfig(events_per_second=0.001, heartbeat_seconds=0.001)
    )
    told = slow.changes(position=None)
    items = [await anext(told) for _ in range(6)]
    await told.aclose()  # type: ignore[attr-defined]
    assert [len(item.events) for item in items] == [0, 3, 0, 0, 0, 0]
    assert {item.position for item in items[1:]} == {"1:1"}


async def test_the_pace_is_the_configured_one() -> None:
    """At 2000 events a second, 100 events cannot take less than 50 ms of the loop's time."""
    loop = asyncio.get_running_loop()
    started, events = loop.time(), 0
    async for item in source(transactions=None, rate=2_000.0).changes(position=None):
        events += len(item.events)
        if events > 100:
            break
    assert loop.time() - started >= 0.04


@pytest.mark.parametrize("note_bytes", [0, 1000])
def test_documents_are_as_long_as_asked(note_bytes: int) -> None:
    event = shop(note_bytes=note_bytes).transaction(2).events[0]
    assert isinstance(event, ChangeEvent)
    assert event.full_document is not None
    document = json.loads(bytes(event.full_document))
    assert len(document.get("note", "")) == note_bytes
