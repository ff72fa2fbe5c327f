"""What goes out: the oracle is the plain filter over all entries; no cut may change it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import GapError, LogCorruptError, StreamChangedError
from penstock.event import AnyEvent, ChangeEvent, Commit, Entry
from penstock.progress import Progress
from penstock.subscribe import Criteria, Delivery, Subscription, batches, deliver
from penstock.wire import Block, decode_message
from tests.subscribe.events import LOG_ID, blocks_of, change, commit, one_each, schema, system

START = Progress(LOG_ID, 0, 0)


def marker_of(block: Block, i: int) -> Progress:
    return block.place(i)


def entries_of(delivery: Delivery) -> list[Entry]:
    return [
        decode_message(message)
        for block, entries in delivery.slices
        for message in block.messages(entries)
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[Block]:
    """A random log: sources, collections, control events, transactions and block cuts."""
    appends: list[list[Commit]] = []
    position = 0
    for _ in range(draw(st.integers(1, 5))):
        commits: list[Commit] = []
        for _ in range(draw(st.integers(1, 3))):
            source = draw(st.sampled_from(["shop", "erp"]))
            events: list[AnyEvent] = []
            for ordinal in range(draw(st.integers(1, 4))):
                position += 1
                collection = draw(st.sampled_from(["orders", "lines", "a/b"]))
                what = draw(st.sampled_from(["change"] * 6 + ["schema", "rename", "started"]))
                if what == "change":
                    events.append(
                        change(position, collection=collection, source=source, ordinal=ordinal)
                    )
                elif what == "started":
                    events.append(system(position, what, source=source))
                else:
                    operation = "create" if what == "schema" else what
                    events.append(schema(position, operation, collection=collection, source=source))
            commits.append(commit(*events))
        appends.append(commits)
    return blocks_of(appends)


names = st.sampled_from(["orders", "lines", "shop/orders", "erp/lines", "a/b", "nothing"])
criteria = st.builds(
    Criteria,
    collections=st.frozensets(names, max_size=3),
    sources=st.frozensets(st.sampled_from(["shop", "erp"]), max_size=1),
    control_events=st.booleans(),
)


def wanted_by(criteria: Criteria, entry: Entry) -> bool:
    """The filter, entry by entry and without the block: the oracle."""
    event = entry.event
    if criteria.sources and event.source not in criteria.sources:
        return False
    exact = not criteria.collections or bool(
        {event.collection, f"{event.source}/{event.collection}"} & criteria.collections
    )
    if isinstance(event, ChangeEvent):
        return exact
    if not criteria.control_events:
        return False
    whole_source = not criteria.collections or any(
        "/" not in name or name.split("/")[0] == event.source for name in criteria.collections
    )
    if not event.collection or event.operation == "rename":
        return whole_source or exact
    return exact


@given(logs(), criteria, st.data())
def test_a_reader_gets_exactly_what_it_asked_for_from_any_place_in_log_order_p1_p29(
    blocks: list[Block], wished: Criteria, data: st.DataObject
) -> None:
    everything = [entry for block in blocks for entry in block.entries()]
    after = data.draw(st.integers(0, len(everything)))
    place = START
    if after:
        entry = everything[after - 1]
        block = next(one for one in blocks if one.last_sequence >= entry.sequence)
        place = marker_of(block, entry.sequence - block.first_sequence)
    rest = [one.narrow(after=after) for one in blocks if one.last_sequence > after]

    delivery = deliver(Subscription(criteria=wished, progress=place), rest)

    assert entries_of(delivery) == [
        entry for entry in everything[after:] if wanted_by(wished, entry)
    ]
    assert delivery.gap is None
    assert delivery.progress.sequence == len(everything)


@given(logs(), criteria, st.integers(1, 7), st.sampled_from([1, 300, 2000, 1 << 20]))
def test_batches_hold_every_entry_once_within_both_limits_and_their_markers_pass_nothing(
    blocks: list[Block], wished: Criteria, events_max: int, bytes_max: int
) -> None:
    delivery = deliver(Subscription(criteria=wished, progress=START), blocks)
    found = list(batches(delivery, events_max=events_max, bytes_max=bytes_max))

    sent = [decode_message(message) for batch in found for message in batch.messages]
    assert sent == entries_of(delivery)
    for number, batch in enumerate(found):
        assert len(batch.messages) <= events_max
        assert len(batch.messages) == 1 or sum(map(len, batch.messages)) <= bytes_max
        is_last = number == len(found) - 1
        last = decode_message(batch.messages[-1]).progress
        assert batch.progress == (str(delivery.progress) if is_last else last)


def test_a_filter_that_matches_nothing_still_advances_invariant_5() -> None:
    blocks = blocks_of([one_each(1, 9)])
    wished = Criteria(collections=frozenset({"nothing"}))
    delivery = deliver(Subscription(criteria=wished, progress=START), blocks)
    assert delivery == Delivery(progress=marker_of(blocks[0], 8))


def gap_log() -> list[Block]:
    return blocks_of([[*one_each(1, 3), commit(system(4, "gap")), *one_each(5, 6)]])


def test_a_gap_ends_the_stream_of_who_did_not_ask_after_everything_before_it_invariant_4() -> None:
    blocks = gap_log()
    delivery = deliver(Subscription(criteria=Criteria(), progress=START), blocks)
    assert [entry.sequence for entry in entries_of(delivery)] == [1, 2, 3]
    assert delivery.progress == marker_of(blocks[0], 2)
    assert isinstance(delivery.gap, GapError)
    assert delivery.gap.after == str(marker_of(blocks[0], 3))
    assert "the oplog was cut" in str(delivery.gap)


def test_a_reader_goes_on_after_the_gap_with_the_marker_it_was_given() -> None:
    blocks = gap_log()
    place = marker_of(blocks[0], 3)
    delivery = deliver(
        Subscription(criteria=Criteria(), progress=place), [blocks[0].narrow(after=4)]
    )
    assert [entry.sequence for entry in entries_of(delivery)] == [5, 6]
    assert delivery.gap is None


def test_a_gap_is_an_entry_in_its_place_for_who_asked_p19() -> None:
    wished = Criteria(control_events=True)
    delivery = deliver(Subscription(criteria=wished, progress=START), gap_log())
    assert [entry.event.__class__.__name__ for entry in entries_of(delivery)] == [
        *["ChangeEvent"] * 3,
        "SystemEvent",
        *["ChangeEvent"] * 2,
    ]


@pytest.mark.parametrize(
    ("collections", "concerned"),
    [({"orders"}, True), ({"shop/orders"}, True), ({"erp/orders"}, False)],
)
def test_a_gap_of_one_source_concerns_only_who_may_follow_that_source(
    collections: set[str], concerned: bool
) -> None:
    wished = Criteria(collections=frozenset(collections))
    delivery = deliver(Subscription(criteria=wished, progress=START), gap_log())
    assert (delivery.gap is not None) is concerned


def test_a_gap_as_the_first_entry_leaves_the_reader_where_it_was() -> None:
    delivery = deliver(
        Subscription(criteria=Criteria(), progress=START), blocks_of([[commit(system(1, "gap"))]])
    )
    assert delivery.progress == START
    assert delivery.slices == ()


@pytest.mark.parametrize("missing", [0, 1])
def test_entries_missing_from_the_log_are_an_error_never_a_silence(missing: int) -> None:
    blocks = blocks_of([one_each(1, 2), one_each(3, 4), one_each(5, 6)])
    rest: Sequence[Block] = blocks[:missing] + blocks[missing + 1 :]
    with pytest.raises(LogCorruptError, match="missing"):
        deliver(Subscription(criteria=Criteria(), progress=START), rest)


def test_a_log_that_was_replaced_under_a_reader_ends_its_stream() -> None:
    with pytest.raises(StreamChangedError):
        deliver(
            Subscription(criteria=Criteria(), progress=START),
            blocks_of([one_each(1, 2)], log_id=LOG_ID + 1),
        )


def test_one_event_larger_than_a_batch_may_be_travels_alone() -> None:
    large = change(2, document={"text": "x" * 5000})
    blocks = blocks_of([[commit(change(1)), commit(large), commit(change(3))]])
    delivery = deliver(Subscription(criteria=Criteria(), progress=START), blocks)
    found = list(batches(delivery, events_max=100, bytes_max=1000))
    assert [len(batch.messages) for batch in found] == [1, 1, 1]
    assert [len(batch.messages[0]) > 1000 for batch in found] == [False, True, False]
