"""Readers that share a stream: together they have every document, each in one place (P24)."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import RequestError
from penstock.event import ChangeEvent, Operation
from penstock.extjson import encode
from penstock.progress import Progress
from penstock.subscribe import Criteria, Subscription, deliver
from penstock.subscribe.deliver import Window
from penstock.subscribe.shards import Shards, shards_of
from penstock.wire import Block
from tests.seeds import cases
from tests.subscribe.events import LOG_ID, blocks_of, change, commit, one_each, system

BEGINNING = Progress(LOG_ID, 0, 0)


def received(blocks: Sequence[Block], shards: Shards | None) -> list[pb.Event]:
    """The events that a reader of `shards` gets of a whole log."""
    subscription = Subscription(criteria=Criteria(shards=shards), progress=BEGINNING)
    delivery = deliver(subscription, blocks)
    assert delivery.progress.sequence == blocks[-1].last_sequence
    make = delivery.made(Block.messages, Window.messages)
    return [
        pb.Event.FromString(message)
        for block, entries in delivery.slices
        for message in make(block, entries)
    ]


def fold(events: Iterable[pb.Event]) -> dict[bytes, Any]:
    """The documents that a reader has in the end."""
    rows: dict[bytes, Any] = {}
    for event in events:
        if event.operation_type == Operation.DELETE:
            rows.pop(event.key, None)
        elif event.full_document:
            rows[event.key] = msgspec.json.decode(event.full_document)
    return rows


def sharings(blocks: Sequence[Block], by: Sequence[str], count: int) -> list[dict[bytes, Any]]:
    return [fold(received(blocks, shards_of(by, count, [one]))) for one in range(count)]


class Story:
    """A collection whose documents come, move between regions and go."""

    def __init__(self, seed: int, *, images: bool) -> None:
        self._dice = random.Random(seed)
        self._images = images
        self.rows: dict[int, dict[str, Any]] = {}
        self.commits = [commit(self._next(position)) for position in range(1, 80)]

    def _next(self, position: int) -> ChangeEvent:
        key = self._dice.randrange(12)
        old = self.rows.get(key)
        if old is None:
            return self._says(position, key, Operation.INSERT, {"n": position, **self._region()})
        choice = self._dice.randrange(5)
        if choice == 0:
            del self.rows[key]
            return self._says(position, key, Operation.DELETE, None, old=old)
        if choice == 1:
            new = {"n": position, **self._region()}
            return self._says(position, key, Operation.REPLACE, new, old=old)
        touched = {"n": position} if choice < 4 else self._region() or {"region": None}
        new = {name: value for name, value in {**old, **touched}.items() if name != "_id"}
        update: dict[str, Any] = {"updatedFields": touched, "removedFields": []}
        return self._says(position, key, Operation.UPDATE, new, old=old, update=update)

    def _region(self) -> dict[str, Any]:
        return self._dice.choice([{}, {"region": "eu"}, {"region": "us"}, {"region": 7}])

    def _says(
        self,
        position: int,
        key: int,
        operation: Operation,
        new: dict[str, Any] | None,
        *,
        old: dict[str, Any] | None = None,
        update: dict[str, Any] | None = None,
    ) -> ChangeEvent:
        document = None if new is None else {"_id": key, **new}
        if document is not None:
            self.rows[key] = document
        made = change(position, key=key, operation=operation, document=document or {})
        return structs.replace(
            made,
            full_document=None if document is None else encode(document),
            full_document_before_change=encode(old) if self._images and old else None,
            update_description=encode(update) if update else None,
        )


@pytest.mark.slow
@settings(max_examples=cases(40))
@given(
    seed=st.integers(0, 1 << 32),
    images=st.booleans(),
    by=st.sampled_from([["region"], ["document.region"], ["tenant", "region"], ["region", "n"]]),
    count=st.integers(1, 5),
)
def test_p24_by_a_field_that_changes_every_document_is_with_one_reader_in_the_end(
    seed: int, images: bool, by: list[str], count: int
) -> None:
    story = Story(seed, images=images)
    blocks = blocks_of([[one] for one in story.commits])
    shared = sharings(blocks, by, count)
    together = {key: row for rows in shared for key, row in rows.items()}
    assert sum(map(len, shared)) == len(together), "two readers have the same document"
    assert together == fold(received(blocks, None))
    assert len(together) == len(story.rows)


@pytest.mark.slow
@settings(max_examples=cases(20))
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 5))
@pytest.mark.parametrize("by", [["documentId"], ["source"], ["tenant", "documentId"]])
def test_by_what_never_changes_every_event_goes_to_one_reader_deletes_included(
    by: list[str], seed: int, count: int
) -> None:
    blocks = blocks_of([[one] for one in Story(seed, images=False).commits])
    got = [received(blocks, shards_of(by, count, [one])) for one in range(count)]
    sequences = sorted(event.sequence for events in got for event in events)
    assert sequences == [event.sequence for event in received(blocks, None)]
    raw = {event.sequence: event for event in received(blocks, None)}
    assert all(event == raw[event.sequence] for events in got for event in events)


def test_a_document_that_moves_is_a_delete_to_the_reader_it_leaves() -> None:
    moves = structs.replace(
        change(2, key=1, operation=Operation.UPDATE, document={"_id": 1, "region": "us"}),
        update_description=encode({"updatedFields": {"region": "us"}, "removedFields": []}),
    )
    stays = structs.replace(
        change(3, key=1, operation=Operation.UPDATE, document={"_id": 1, "region": "us", "n": 2}),
        update_description=encode({"updatedFields": {"n": 2}, "removedFields": []}),
    )
    first = change(1, key=1, document={"_id": 1, "region": "eu"})
    blocks = blocks_of([[commit(first)], [commit(moves)], [commit(stays)]])
    said = [
        [event.operation_type for event in received(blocks, shards_of(["region"], 2, [one]))]
        for one in range(2)
    ]
    assert sorted(said) == [["insert", "delete"], ["update", "update"]]
    leaver = shards_of(["region"], 2, [said.index(["insert", "delete"])])
    delete = received(blocks, leaver)[1]
    assert not delete.full_document
    assert not delete.update_description


@pytest.mark.parametrize("by", [["region"], ["documentId"]])
def test_by_a_field_a_gap_ends_the_stream_for_those_who_take_control_events_too(
    by: list[str],
) -> None:
    """P19, P24: what was deleted unseen and is inserted again goes to its new shard alone, and
    would stay with the old one for ever. By key both are one shard, and copied rows heal it."""
    before = change(1, key=1, document={"_id": 1, "region": "eu"})
    again = change(3, key=1, document={"_id": 1, "region": "us"})
    blocks = blocks_of([[commit(before)], [commit(system(2, "gap"))], [commit(again)]])
    (gap,) = (entry for entry in blocks[1].entries())
    for one in range(2):
        criteria = Criteria(shards=shards_of(by, 2, [one]), control_events=True)
        delivery = deliver(Subscription(criteria=criteria, progress=BEGINNING), blocks)
        if by == ["region"]:
            assert delivery.gap is not None
            assert delivery.gap.after == gap.progress
            assert delivery.progress.sequence == 1
        else:
            assert delivery.gap is None
            assert gap.sequence in {
                block.first_sequence + i for block, entries in delivery.slices for i in entries
            }


def test_ids_of_different_types_and_values_with_slashes_are_different_shards_keys() -> None:
    """The design joins values with "/", so ("a/b", "c") and ("a", "b/c") were one."""
    story = [
        commit(change(1, collection="a/b", source="c")),
        commit(change(1, collection="a", source="b/c")),
    ]
    blocks = blocks_of([story])
    spread = {
        tuple(len(received(blocks, shards_of(["collection", "source"], count, [one])))
              for one in range(count))
        for count in range(2, 40)
    }  # fmt: skip
    assert any(max(one) == 1 for one in spread)


def test_the_shard_of_a_document_is_the_same_in_every_version() -> None:
    """Readers keep what their shards hold: another number would leave it with the wrong one."""
    blocks = blocks_of([one_each(1, 8)])
    numbers = {
        event.document_id: one
        for one in range(4)
        for event in received(blocks, shards_of(["tenant", "documentId"], 4, [one]))
    }
    assert numbers == {"1": 0, "2": 3, "3": 0, "4": 3, "5": 3, "6": 2, "7": 2, "8": 1}


@pytest.mark.parametrize(
    ("by", "count", "ids", "said"),
    [
        ([], 2, [0], "shard_by is empty"),
        (["tenant"], 0, [0], "shard_count is 0"),
        (["tenant"], 1025, [0], "from 1 to 1024"),
        (["tenant"], 2, [], "shard_ids is empty"),
        (["tenant"], 2, [1, 1], "a shard twice"),
        (["tenant"], 2, [2], "numbered from 0 to 1"),
        (["tenant", "tenant"], 2, [0], "a name twice"),
        ([""], 2, [0], "an empty one"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(
    by: list[str], count: int, ids: list[int], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        shards_of(by, count, ids)


def test_no_shards_asked_for_are_all() -> None:
    assert shards_of([], 0, []) is None
