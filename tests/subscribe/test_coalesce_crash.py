"""A reader of windows ends where a reader of every change ends, however often it crashes (P8)."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.event import AnyEvent, ChangeEvent, Commit, Entry
from penstock.extjson import encode
from penstock.progress import Progress
from penstock.subscribe import Coalescing, Criteria, InsertDelete
from penstock.wire import Block, decode_message
from tests.seeds import cases
from tests.subscribe.deltas import documents, updates
from tests.subscribe.events import blocks_of, commit, schema, system
from tests.subscribe.windows import (
    ALWAYS,
    START,
    State,
    deliveries,
    entries_sent,
    event,
    folded,
    marker,
)

pytestmark = pytest.mark.slow


class Place(NamedTuple):
    """Where a document lives. Other places have documents of the same id."""

    source: str
    tenant: str
    collection: str
    key: Any


PLACES = [
    Place("shop", "db", "orders", 1),
    Place("shop", "db", "orders", "1"),
    Place("shop", "other", "orders", 1),
    Place("erp", "db", "orders", 1),
    Place("shop", "db", "a/b", "c"),
    Place("shop", "db", "a", "b/c"),
]
COLUMNS = ("n", "big")
ALL = Criteria(control_events=True)


class History:
    """What a database commits, and the truth that its events tell."""

    def __init__(self, draw: st.DrawFn, *, lasting_deltas: bool, renames: bool) -> None:
        self._draw = draw
        self._what = ["change"] * 12 + ["system", "schema"] + ["rename"] * 3 * renames
        self._lasting_deltas = lasting_deltas
        self._truth: dict[Place, Any] = {}
        self._doomed: set[Place] = set()
        """Looked up after they were gone: until their delete, only deltas are told (P25)."""
        self._position = 0

    def next(self) -> AnyEvent:
        self._position += 1
        what = self._draw(st.sampled_from(self._what))
        if what == "system":
            return system(self._position)
        if what == "schema":
            return schema(self._position)
        if what == "rename":
            return self._rename(*self._draw(st.permutations(["orders", "a", "a/b"]))[:2])
        return self._change(self._draw(st.sampled_from(PLACES)))

    def rest(self) -> list[AnyEvent]:
        """The deletes that are still owed."""
        owed = sorted(self._doomed, key=str)
        for place in owed:
            del self._truth[place]
        self._position += len(owed)
        return [self._event(place, "delete") for place in owed]

    def _rename(self, old: str, new: str) -> AnyEvent:
        """Of a collection of shop's db, onto what has the new name."""

        def renamed(place: Place) -> Place | None:
            if (place.source, place.tenant) != ("shop", "db") or place.collection not in (old, new):
                return place
            return place._replace(collection=new) if place.collection == old else None

        truth = {renamed(place): document for place, document in self._truth.items()}
        self._truth = {place: document for place, document in truth.items() if place}
        self._doomed = {place for one in self._doomed if (place := renamed(one))}
        return schema(self._position, "rename", collection=old, to=new)

    def _change(self, place: Place) -> AnyEvent:
        if place in self._doomed:
            if self._draw(st.booleans()):
                return self._bare(place)
            self._doomed.discard(place)
            del self._truth[place]
            return self._event(place, "delete")
        if place not in self._truth:
            self._truth[place] = self._document(place)
            return self._event(place, "insert", document=self._truth[place])
        operation = self._draw(st.sampled_from(["update"] * 4 + ["bare", "replace", "delete"]))
        if operation == "bare" and place.source == "shop":
            if not self._lasting_deltas:
                self._doomed.add(place)
            return self._bare(place)
        if operation == "delete":
            del self._truth[place]
            return self._event(place, "delete")
        if operation == "replace":
            self._truth[place] = self._document(place)
            return self._event(place, "replace", document=self._truth[place])
        return self._row_update(place) if place.source == "erp" else self._update(place)

    def _document(self, place: Place) -> Any:
        if place.source == "erp":
            return {name: self._draw(st.integers(0, 9)) for name in COLUMNS}
        return self._draw(documents)

    def _update(self, place: Place) -> AnyEvent:
        description, after = self._draw(updates(self._truth[place]))
        self._truth[place] = after
        return self._event(place, "update", document=after, update=description)

    def _bare(self, place: Place) -> AnyEvent:
        description, self._truth[place] = self._draw(updates(self._truth[place]))
        return self._event(place, "update", update=description)

    def _row_update(self, place: Place) -> AnyEvent:
        """As a relational source says it: columns that did not change may be left out."""
        changed = self._draw(st.sets(st.sampled_from(COLUMNS)))
        row = {**self._truth[place], **dict.fromkeys(changed, self._position)}
        self._truth[place] = row
        unchanged = [name for name in COLUMNS if name not in changed and self._draw(st.booleans())]
        document = {name: value for name, value in row.items() if name not in unchanged}
        return self._event(place, "update", document=document, unchanged=tuple(unchanged))

    def _event(self, place: Place, operation: str, **fields: Any) -> ChangeEvent:
        made = event(self._position, operation, **fields)
        return structs.replace(
            made,
            source=place.source,
            tenant=place.tenant,
            collection=place.collection,
            document_id=str(place.key),
            key=encode({"_id": place.key}),
        )


@st.composite
def logs(
    draw: st.DrawFn, *, lasting_deltas: bool = False, renames: bool = False, size: int = 24
) -> list[Block]:
    """A log of many changes of few documents; commits and blocks cut it anywhere."""
    history = History(draw, lasting_deltas=lasting_deltas, renames=renames)
    events = [history.next() for _ in range(draw(st.integers(2, size)))]
    if not lasting_deltas:
        events += history.rest()
    appends: list[list[Commit]] = [[]]
    cut: st.SearchStrategy[bool] = st.booleans()
    while events:
        rows = draw(st.integers(1, 4))
        appends[-1].append(commit(*events[:rows]))
        events = events[rows:]
        if draw(cut) and events:
            appends.append([])
    return blocks_of(appends)


def windows(insert_delete: InsertDelete = "delete") -> st.SearchStrategy[Coalescing]:
    return st.builds(
        Coalescing,
        threshold=st.sampled_from([0, 0, 0, 3]),
        window_events=st.integers(1, 30),
        window_bytes=st.sampled_from([1, 1 << 20]),
        insert_delete=st.just(insert_delete),
    )


def marker_at(blocks: Sequence[Block], sequence: int) -> Progress:
    for block in blocks:
        if block.first_sequence <= sequence <= block.last_sequence:
            return block.place(sequence - block.first_sequence)
    return START


def states(blocks: Sequence[Block]) -> list[State]:
    """The state after each entry of the log, as a reader of every change has it."""
    found: list[State] = [{}]
    for block in blocks:
        for entry in block.entries():
            found.append(folded(found[-1], [entry]))
    return found


async def crash_everywhere(
    blocks: Sequence[Block], start: int, coalescing: Coalescing, again: Coalescing | None
) -> None:
    """Read from `start`, crash after each number of events, and resume as `again` says.

    The marker saved is that of the last event processed: no consumer may save a later one. State
    and marker are saved together.
    """
    truth = states(blocks)
    sent = await entries_sent(blocks, coalescing, after=marker_at(blocks, start), criteria=ALL)
    assert folded(truth[start], sent) == truth[-1]
    for crash in range(len(sent) + 1):
        state = folded(truth[start], sent[:crash])
        saved = marker(sent[crash - 1]) if crash else marker_at(blocks, start)
        rest = await entries_sent(blocks, again, after=saved, criteria=ALL)
        assert folded(state, rest) == truth[-1], (start, crash)


@settings(max_examples=cases(30))
@given(logs(renames=True), windows(), st.one_of(st.none(), windows()), st.data())
def test_from_every_place_with_a_crash_at_every_point_the_state_is_that_of_the_raw_stream_p8(
    blocks: list[Block], coalescing: Coalescing, again: Coalescing | None, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, blocks[-1].last_sequence))
    asyncio.run(crash_everywhere(blocks, start, coalescing, again))


@pytest.mark.parametrize("append", [1, 9])
async def test_a_rename_that_was_processed_never_comes_again_onto_what_followed_it_p8(
    append: int,
) -> None:
    """Else the rows that were inserted under the old name would move, and stay there."""

    def of_a(position: int, operation: str, key: int) -> ChangeEvent:
        made = event(position, operation, key, document={"at": position})
        return structs.replace(made, collection="a")

    events: list[AnyEvent] = [
        of_a(1, "insert", 1),
        of_a(2, "update", 1),
        schema(3, "rename", collection="a", to="b"),
        of_a(4, "insert", 2),
        of_a(5, "insert", 3),
        of_a(6, "update", 3),
        of_a(7, "insert", 4),
    ]
    commits = [commit(one) for one in events]
    blocks = blocks_of([commits[at : at + append] for at in range(0, len(commits), append)])
    for start in range(len(events)):
        await crash_everywhere(blocks, start, ALWAYS, ALWAYS)
    sent = await entries_sent(blocks, criteria=ALL)
    assert [one.coalesced for one in sent] == [2, 0, 1, 2, 1]


@settings(max_examples=cases(30))
@given(logs(lasting_deltas=True), windows(), st.data())
def test_deltas_alone_come_to_the_same_state_from_every_place_p10(
    blocks: list[Block], coalescing: Coalescing, data: st.DataObject
) -> None:
    """Without a crash: a delta that is applied twice is not the one that the source said."""
    start = data.draw(st.integers(0, blocks[-1].last_sequence))
    truth = states(blocks)
    sent = asyncio.run(entries_sent(blocks, coalescing, after=marker_at(blocks, start)))
    assert folded(truth[start], sent) == truth[-1]


@settings(max_examples=cases(25))
@given(logs(), windows("skip"), st.data())
def test_skip_comes_to_the_same_state_as_long_as_nothing_is_processed_twice_p9(
    blocks: list[Block], coalescing: Coalescing, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, blocks[-1].last_sequence))
    truth = states(blocks)
    sent = asyncio.run(entries_sent(blocks, coalescing, after=marker_at(blocks, start)))
    assert folded(truth[start], sent) == truth[-1]


@pytest.mark.parametrize("mode", ["delete", "skip"])
async def test_after_a_crash_skip_leaves_a_ghost_and_delete_does_not_p9(mode: InsertDelete) -> None:
    """The reader had processed the insert, and had not saved that it had."""
    blocks = blocks_of(
        [[commit(event(1, "insert", document={"n": 1}))], [commit(event(2, "delete"))]]
    )
    insert = await entries_sent(blocks[:1], None)
    rest = await entries_sent(blocks, structs.replace(ALWAYS, insert_delete=mode))
    state = folded(folded({}, insert), rest)
    assert len(state) == (1 if mode == "skip" else 0)


@settings(max_examples=cases(25))
@given(logs(), windows())
def test_every_change_is_sent_or_stood_for_exactly_once_in_log_order(
    blocks: list[Block], coalescing: Coalescing
) -> None:
    sent = asyncio.run(entries_sent(blocks, coalescing))
    sequences = [entry.sequence for entry in sent]
    assert sequences == sorted(set(sequences))
    changes = sum(isinstance(one.event, ChangeEvent) for block in blocks for one in block.entries())
    assert sum(max(1, entry.coalesced) for entry in sent) == changes


@settings(max_examples=cases(25))
@given(logs(), windows())
def test_markers_of_a_window_stand_at_its_start_until_its_last_event_p8(
    blocks: list[Block], coalescing: Coalescing
) -> None:
    place = START
    for delivery in asyncio.run(deliveries(blocks, coalescing)):
        entries: list[Entry] = []
        if delivery.window is not None:
            assert delivery.window.start >= place
            for block, positions in delivery.slices:
                entries += map(_decoded, delivery.window.messages(block, positions))
            *before, last = entries
            assert {marker(one) for one in before} <= {delivery.window.start}
            assert marker(last) == delivery.progress
        place = delivery.progress


def _decoded(message: bytes) -> Entry:
    entry = decode_message(message)
    assert entry.coalesced >= 1
    return entry
