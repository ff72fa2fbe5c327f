"""Which changes are processed: never one that the consumer has not said so of (P30)."""

from hypothesis import given
from hypothesis import strategies as st

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client.change import Change, Cursor, Received, Taken


def message(number: int) -> bytes:
    return pb.Event(id=str(number), progress=str(number), sequence=number).SerializeToString()


def received(first: int, last: int, progress: int | None = None) -> Received:
    """Changes first to last, whose markers are their numbers; the batch's may be later."""
    marker = last if progress is None else progress
    return Received([message(number) for number in range(first, last + 1)], str(marker))


def sequence_of(taken: Taken | None) -> int | None:
    return None if taken is None else Change(taken).sequence


def ask(cursor: Cursor) -> Taken | None:
    """Ask for the next change and take it, where no save is due."""
    cursor.asked()
    return cursor.take()


def test_a_change_is_processed_when_the_next_one_is_asked_for_and_not_before_p30() -> None:
    cursor = Cursor("0")
    cursor.receive(received(1, 2))
    assert sequence_of(ask(cursor)) == 1
    assert cursor.to_save() == "0"
    assert sequence_of(ask(cursor)) == 2
    assert cursor.to_save() == "1"
    assert ask(cursor) is None
    assert cursor.to_save() == "2"


def test_a_marker_that_comes_after_a_change_never_passes_it_unprocessed_p30() -> None:
    cursor = Cursor("0")
    cursor.receive(received(1, 1, progress=7))
    ask(cursor)
    cursor.receive(Received([], "9"))
    assert cursor.to_save() == "0"
    assert ask(cursor) is None
    assert cursor.to_save() == "9"


def test_confirming_by_hand_moves_to_the_change_and_over_what_was_filtered_out_behind_it() -> None:
    cursor = Cursor("0")
    cursor.confirm_on_ask = False
    cursor.receive(received(1, 3, progress=9))
    changes = [ask(cursor) for _ in range(3)]
    assert ask(cursor) is None
    assert cursor.to_save() == "0"
    assert changes[1] is not None
    assert changes[2] is not None
    cursor.confirm(changes[1])
    assert cursor.to_save() == "2"
    cursor.confirm(changes[2])
    assert cursor.to_save() == "9"
    cursor.confirm(changes[1])
    assert cursor.to_save() == "9"


def test_a_reader_reconnects_after_everything_that_it_has_in_hand() -> None:
    cursor = Cursor("0")
    cursor.receive(received(1, 3))
    ask(cursor)
    assert cursor.received == "3"
    assert cursor.to_save() == "0"


def test_asking_alone_hands_nothing_out_however_often_p30() -> None:
    """What is asked for again after a save that failed, or a wait that was given up."""
    cursor = Cursor("0")
    cursor.receive(received(1, 2))
    assert sequence_of(ask(cursor)) == 1
    for _ in range(3):
        cursor.asked()
        assert cursor.to_save() == "1"
    assert sequence_of(cursor.take()) == 2
    assert cursor.to_save() == "1"


def test_what_is_processed_during_a_save_is_unsaved_after_it_p30() -> None:
    cursor = Cursor("0")
    cursor.receive(received(1, 2))
    ask(cursor)
    cursor.asked()
    assert cursor.to_save() == "1"
    assert sequence_of(cursor.take()) == 2
    cursor.asked()
    cursor.saved()
    assert cursor.unsaved
    assert cursor.to_save() == "2"
    cursor.saved()
    assert not cursor.unsaved


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("confirm"), st.integers(0, 9), st.just(0)),
        st.tuples(
            # A save that is due may fail, and who waits for it may give up: then nothing is taken.
            st.sampled_from(["take", "ask", "save begins", "save ends", "save fails"]),
            st.just(0),
            st.just(0),
        ),
    ),
    max_size=60,
)


@given(Steps, st.booleans())
def test_the_saved_marker_is_never_past_an_unprocessed_change_whatever_happens_p30(
    steps: list[tuple[str, int, int]], confirm_on_ask: bool
) -> None:
    """Sequences with a change are dense in what is sent; `skip` more were filtered out behind."""
    cursor = Cursor("0")
    cursor.confirm_on_ask = confirm_on_ask
    sent: list[int] = []
    taken: list[Taken] = []
    processed: set[int] = set()
    head = saved = 0
    saving: int | None = None
    for step, number, skip in steps:
        if step == "receive":
            first, head = head + 1, head + number
            sent.extend(range(first, head + 1))
            head += skip
            cursor.receive(received(first, first + number - 1, progress=head))
        elif step in {"ask", "take"}:
            if confirm_on_ask and taken:
                processed.add(Change(taken[-1]).sequence)
            cursor.asked()
            change = cursor.take() if step == "take" else None
            if change is not None:
                taken.append(change)
                assert Change(change).sequence == sent[len(taken) - 1]
        elif step == "confirm" and number < len(taken):
            cursor.confirm(taken[number])
            processed.update(Change(change).sequence for change in taken[: number + 1])
        elif step == "save begins" and saving is None and cursor.unsaved:
            saving = int(cursor.to_save())
            assert all(sequence in processed for sequence in sent if sequence <= saving)
        elif step == "save ends" and saving is not None:
            cursor.saved()
            assert saving >= saved
            saved, saving = saving, None
        elif step == "save fails":
            saving = None
        assert int(cursor.received) == head
    if saving is not None:
        cursor.saved()
        saved = saving
    # What is not saved now is known to be unsaved, and the last save is of all that is processed.
    last = int(cursor.to_save())
    assert cursor.unsaved or last == saved
    assert all(sequence in processed for sequence in sent if sequence <= last)
    passed = [sequence for sequence in sent if sequence <= last]
    assert processed == set(passed)
