"""Whatever happens to a collection, each of its changes is in one stream, and no stream spans a
loss."""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.serve.dynamodb.captured.changes import views_of
from penstock.serve.dynamodb.captured.facts import Book, Limits, Stream, tail_of
from penstock.serve.dynamodb.captured.names import Name
from penstock.serve.dynamodb.config import VIEWS, ViewType
from tests.serve.dynamodb.changes import said
from tests.subscribe.events import schema

NAME: Final = Name("shop", "db", "orders")
CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    "insert": {"operation_type": "insert", "after": True},
    "update": {"operation_type": "update", "after": True, "before": True},
    "without before": {"operation_type": "update", "after": True},
    "without after": {"operation_type": "update", "before": True},
    "bare": {"operation_type": "update"},
    "delete": {"operation_type": "delete", "before": True},
    "bare delete": {"operation_type": "delete"},
    "other key": {"operation_type": "insert", "after": True, "key": b'{"_id":1,"r":1}'},
    "no key": {"operation_type": "insert", "after": True, "key": b"{}"},
}
LOSSES: Final = ("gap", "gap_ended", "rewound", "drop", "truncate")
STEPS = st.lists(
    st.sampled_from([*CHANGES, *CHANGES, *LOSSES, "harmless", "old", "trimmed", "kept"])
    | st.tuples(st.sampled_from([None, *VIEWS])),
    max_size=40,
)


def event_of(
    operation_type: str, after: bool = False, before: bool = False, key: bytes = b'{"_id":1}'
) -> pb.Event:
    """A change of the collection, with the images that are asked for."""
    return pb.Event(
        source=NAME.source,
        database=NAME.database,
        collection=NAME.collection,
        key=key,
        operation_type=operation_type,
        full_document=b'{"_id":1}' if after else b"",
        full_document_as_of_event=after,
        full_document_before_change=b'{"_id":1}' if before else b"",
    )


class Played:
    """A book, and what happened."""

    def __init__(self) -> None:
        self.wish: ViewType | None = None
        self.sequence = 0
        self.changes = dict[int, frozenset[ViewType]]()
        self.losses = list[int]()
        self.told = dict[int, tuple[int, ViewType]]()
        """By change, the stream and the view that it was to be read under."""
        self.book = self.again(())

    def again(self, streams: Any, **kept: Any) -> Book:
        """The book after a restart."""
        limits = Limits(10, 1 << 30)
        return Book(streams, limits=limits, wished=lambda _: self.wish, lacking={}, **kept)

    def do(self, step: str | tuple[ViewType | None]) -> None:
        now_ms = 1000
        if isinstance(step, tuple):
            (self.wish,) = step
            kept = self.book
            self.book = self.again(
                kept.streams.values(), next_number=kept.next_number, label_ms=kept.label_ms
            )
            self.book.configured(read=self.sequence, now_ms=now_ms)
            return
        if step == "kept":
            self.book.taken()
            return
        if step == "old":
            self.book.roll(read=self.sequence, check=1, now_ms=now_ms + 10 * self.sequence)
            return
        self.sequence += 1
        if step in CHANGES:
            event = event_of(**CHANGES[step])
            if step == "no key":
                self.losses.append(self.sequence)
            else:
                self.changes[self.sequence] = views_of(event)
            self.book.change(
                event, self.sequence, before=1, check=1, size=1, begins_commit=True, now_ms=now_ms
            )
        elif step == "trimmed":
            self.losses.append(self.sequence)
            self.book.interrupted(read=self.sequence - 1, first=self.sequence + 1, now_ms=now_ms)
        elif step == "harmless":
            self.book.control(schema(1, "createIndexes"), self.sequence, now_ms=now_ms)
        else:
            self.losses.append(self.sequence)
            control = schema(1, step) if step in {"drop", "truncate"} else said(1, step)
            self.book.control(control, self.sequence, now_ms=now_ms)

    def has(self, sequence: int) -> Stream:
        """The stream that has a change. There is one, and one shard of it."""
        (found,) = (one for one in self.book.streams.values() if within(one, sequence))
        (shard,) = (one for one in found.shards if within(one, sequence))
        if found.stalled is None or sequence < found.stalled:
            assert found.view in self.changes[sequence]
            assert shard.newest >= sequence
        return found

    def holds(self) -> None:
        streams = sorted(self.book.streams.values(), key=lambda one: one.number)
        assert len({tail_of(one) for one in streams}) == len(streams)
        assert sorted(one.label_ms for one in streams) == [one.label_ms for one in streams]
        assert [one.first for one in streams] == sorted(one.first for one in streams)
        for sequence in self.changes:
            stream = self.has(sequence)
            if stream.stalled is None or sequence < stream.stalled:
                told = (stream.number, stream.view)
                assert self.told.setdefault(sequence, told) == told
        for stream in streams:
            assert not [one for one in self.losses if stream.first < one and within(stream, one)]


def within(one: Any, sequence: int) -> bool:
    """Whether a stream, or a shard, has a sequence."""
    return one.first <= sequence and (one.last is None or sequence <= one.last)


@given(STEPS)
def test_every_change_is_told_once_under_one_view_and_no_stream_spans_a_loss(
    steps: list[str | tuple[ViewType | None]],
) -> None:
    played = Played()
    for step in [*steps, (None,)]:
        played.do(step)
        played.holds()
    # Under the best view that there is, nothing waits any more.
    assert played.told.keys() == played.changes.keys()


def test_losses_in_a_row_are_one_end_for_who_was_told_of_nothing_between_them() -> None:
    """A source whose changes all become dead letters does not fill the list of streams."""
    played = Played()
    played.do("insert")
    for _ in range(100):
        played.do("gap")
    assert [one.first for one in played.book.streams.values()] == [1, 101]
    played.do("kept")
    for _ in range(100):
        played.do("gap")
    assert [one.first for one in played.book.streams.values()] == [1, 101, 201]
    played.do("insert")
    played.holds()
