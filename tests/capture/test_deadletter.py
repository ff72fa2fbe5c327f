"""A dead letter and its gap: in one commit, told to whoever it concerns (P6)."""

import pytest
from msgspec import Raw, convert, json, to_builtins

from penstock.capture.breaker import Circuit
from penstock.capture.deadletter import (
    COLLECTION,
    Letter,
    Outstanding,
    Poison,
    replayed,
    settled,
)
from penstock.capture.status import Health, SourceStatus, State, health_of
from penstock.errors import GapError
from penstock.event import AnyEvent, ChangeEvent, ClusterTime, Commit, Operation, event_id
from penstock.log import MemoryLog
from penstock.progress import parse_progress
from penstock.subscribe import Criteria, Delivery, Subscription, deliver, start
from penstock.wire import decode_message

AT = ClusterTime(1_700_000_000, 1)


def poison(position: str = "p1", *, collection: str = "orders") -> Poison:
    return Poison(
        source="shop",
        database="db",
        collection=collection,
        tenant="db",
        operation="insert",
        position=position,
        cluster_time=AT,
        timestamp=1,
        transaction=None,
        reason="the field k, which occurs twice",
        raw=(b"\1\2",),
        key=Raw(b'{"_id":1}'),
        key_raw=b"\3",
    )


def change(collection: str, key: int) -> ChangeEvent:
    return ChangeEvent(
        event_id=event_id("shop", f"{collection}:{key}", 0),
        source="shop",
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=AT,
        timestamp=1,
        position="p",
        document_id=str(key),
        key=Raw(f'{{"_id":{key}}}'.encode()),
        operation=Operation.INSERT,
        full_document=Raw(f'{{"_id":{key}}}'.encode()),
    )


async def delivered(events: tuple[AnyEvent, ...], criteria: Criteria) -> tuple[list[str], bool]:
    """What a reader of a log with one commit gets, and whether it is stopped by a gap."""
    log = MemoryLog()
    oldest = str(await start(log, ""))
    await log.append([Commit(source="shop", position="p", events=events)])
    subscription = Subscription(criteria=criteria, progress=parse_progress(oldest))
    delivery: Delivery = deliver(subscription, await log.read(after=0))
    found = [
        decode_message(block.message(i)).event.operation
        for block, entries in delivery.slices
        for i in entries
    ]
    stopped = isinstance(delivery.gap, GapError)
    await log.close()
    return [str(operation) for operation in found], stopped


@pytest.mark.parametrize(
    ("criteria", "told", "stopped"),
    [
        (Criteria(collections=frozenset({"orders"})), ["insert"], True),
        (Criteria(collections=frozenset({"orders"}), control_events=True), None, False),
        (Criteria(collections=frozenset({"others"})), ["insert"], False),
        (Criteria(collections=frozenset({COLLECTION})), ["insert"], False),
        (Criteria(), ["insert", "insert"], True),
    ],
)
async def test_who_follows_the_collection_learns_of_it_and_nobody_else_is_stopped(
    criteria: Criteria, told: list[str] | None, stopped: bool
) -> None:
    """Rule 2: the next change, or an explicit word; never silence."""
    events = (change("orders", 1), *poison().events(), change("orders", 2), change("others", 3))
    found = await delivered(events, criteria)
    assert found == (told or ["insert", "gap", "insert"], stopped)


async def test_a_gap_of_no_collection_stops_every_reader_of_the_source() -> None:
    events = poison(collection="").events()
    for collections in (frozenset({"orders"}), frozenset({"shop/others"})):
        assert await delivered(events, Criteria(collections=collections)) == ([], True)
    assert await delivered(events, Criteria(collections=frozenset({"other/x"}))) == ([], False)


def test_the_outstanding_letters_are_the_current_rows_of_their_collection() -> None:
    found = Outstanding("shop")
    one, two = poison("p1"), poison("p2")
    found.take([*one.events(), change("orders", 1), *two.events(), *one.events()])
    assert [letter.position for letter in found] == ["p1", "p2"]
    letter = next(iter(found))
    # As it travels to the source and back.
    again = convert(json.decode(json.encode(to_builtins(letter))), type=Letter)
    assert again == letter
    found.take([settled(letter, source="shop", position="p9", at=AT)])
    assert [left.position for left in found] == ["p2"]
    assert two.letter_id in found
    other = Outstanding("elsewhere")
    other.take(two.events())
    assert len(other) == 0


def test_what_is_said_of_a_letter_has_ids_of_its_own() -> None:
    """P2."""
    letter_event, gap = poison().events()
    found = Outstanding("shop")
    found.take([letter_event])
    (letter,) = found
    said = [
        settled(letter, source="shop", position="p9", at=AT),
        replayed(letter, operation="dead_letter_replayed", source="shop", position="p9", at=AT),
    ]
    assert len({event.event_id for event in (letter_event, gap, *said)}) == 4
    assert said[1].collection == "orders"


def test_outstanding_letters_degrade_a_source_that_runs() -> None:
    """P6."""
    running = SourceStatus(
        source="shop", state=State.RUNNING, since_ms=0, circuit=Circuit.CLOSED, dead_letters=1
    )
    assert health_of(running, failures_max=10) is Health.DEGRADED
