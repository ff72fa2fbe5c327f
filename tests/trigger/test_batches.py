"""What becomes of a batch, decided purely."""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.trigger.batches import (
    EVENT_BYTES_MAX,
    InvalidAnswerError,
    Piece,
    Tracker,
    after_failure,
    first_failed,
    take_batch,
    too_old,
)
from penstock.trigger.records import Record, event_of
from tests.seeds import cases

NUMBERS = ["11", "12", "13"]


def record(number: int, *, size: int = 10, arrived: float = 0.0) -> Record:
    return Record(str(number), arrived, b"", b"x" * size)


def numbers_of(records: Sequence[Record]) -> list[int]:
    return [int(one.number) for one in records]


# --- cutting --------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=cases(30))
@given(
    st.lists(st.sampled_from([1, 9, 1 << 21, 3 << 20, EVENT_BYTES_MAX + 5]), max_size=12),
    st.integers(1, 5),
)
def test_batches_hold_every_record_once_and_none_is_too_large(sizes: list[int], most: int) -> None:
    waiting = deque(record(number, size=size) for number, size in enumerate(sizes))
    found = list[int]()
    while waiting:
        batch = take_batch(waiting, count_max=most)
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or len(event_of(batch)) <= EVENT_BYTES_MAX
        found += numbers_of(batch)
    assert found == list(range(len(sizes)))


# --- answers --------------------------------------------------------------------------------------


def item(number: Any) -> Any:
    return {"batchItemFailures": [{"itemIdentifier": number}]}


@pytest.mark.parametrize(
    "answer", [None, "", {}, {"batchItemFailures": []}, {"batchItemFailures": None}]
)
def test_an_answer_without_failures_is_success(answer: Any) -> None:
    assert first_failed(answer, NUMBERS, is_reporting=True) is None
    assert first_failed(answer, NUMBERS, is_reporting=False) is None


@pytest.mark.parametrize(
    "answer",
    [
        item(""),
        item(None),
        item(12),
        item("99"),
        item(["11"]),
        item({}),
        {"batchItemFailures": [{"identifier": "11"}]},
        {"batchItemFailures": ["11"]},
        {"batchItemFailures": "11"},
        {"batchItemFailures": [{"itemIdentifier": "11"}, {"itemIdentifier": ""}]},
        {"batchitemfailures": []},
        {"statusCode": 200},
        "done",
        [],
        0,
    ],
)
def test_an_answer_that_says_nothing_clear_fails_the_whole_batch(answer: Any) -> None:
    with pytest.raises(InvalidAnswerError):
        first_failed(answer, NUMBERS, is_reporting=True)


def test_failures_that_nobody_asked_for_are_no_success() -> None:
    """Lambda would pass the records; a forgotten option must not lose them."""
    with pytest.raises(InvalidAnswerError, match="report_batch_item_failures"):
        first_failed(item("12"), NUMBERS, is_reporting=False)
    assert first_failed({"statusCode": 200}, NUMBERS, is_reporting=False) is None


@given(st.sets(st.integers(0, 19), min_size=1), st.randoms())
def test_the_lowest_sequence_number_that_failed_counts(
    failed: set[int], chance: random.Random
) -> None:
    numbers = [str(10**20 + place) for place in range(20)]
    told = [{"itemIdentifier": numbers[place]} for place in failed]
    chance.shuffle(told)
    answer = {"batchItemFailures": told, "more": 1}
    assert first_failed(answer, numbers, is_reporting=True) == min(failed)


# --- what follows a failure -----------------------------------------------------------------------


@given(
    st.integers(1, 40),
    st.sets(st.integers(0, 39)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
)
def test_every_record_is_handled_or_given_up_once_and_in_order(
    count: int, bad: set[int], bisect: bool, is_reporting: bool, retries_max: int
) -> None:
    """Whatever fails; with bisect no good record is given up."""
    pending = deque([Piece(tuple(record(number) for number in range(count)))])
    ended, given_up = list[int](), list[int]()
    tries = dict.fromkeys(range(count), 0)
    while pending:
        piece = pending.popleft()
        numbers = numbers_of(piece.records)
        for number in numbers:
            tries[number] += 1
        wrong = [place for place, number in enumerate(numbers) if number in bad]
        if not wrong:
            ended += numbers
            continue
        failed = wrong[0] if is_reporting else 0
        ended += numbers[:failed]
        then = after_failure(piece, failed, bisect=bisect, retries_max=retries_max)
        pending.extendleft(reversed(then.pieces))
        if then.discarded is not None:
            ended += numbers_of(then.discarded.records)
            given_up += numbers_of(then.discarded.records)
    assert ended == list(range(count))
    assert bad & set(range(count)) <= set(given_up)
    if bisect:
        assert set(given_up) <= bad
    assert all(tries[number] > retries_max for number in given_up if number in bad or not bisect)


def test_a_retry_is_of_the_same_batch_and_for_ever_without_a_limit() -> None:
    piece = Piece(tuple(record(number) for number in range(3)))
    for failures in range(1, 100):
        then = after_failure(piece, 0, bisect=False, retries_max=-1)
        assert then.discarded is None
        (piece,) = then.pieces
        assert (numbers_of(piece.records), piece.failures) == ([0, 1, 2], failures)


def test_only_leading_records_are_too_old() -> None:
    records = [record(1, arrived=10), record(2, arrived=20), record(3, arrived=5)]
    assert too_old(records, now_seconds=100, age_seconds_max=None) == 0
    assert too_old(records, now_seconds=100, age_seconds_max=85) == 1
    assert too_old(records, now_seconds=100, age_seconds_max=1) == 3


# --- the checkpoint -------------------------------------------------------------------------------


@given(st.integers(1, 30), st.randoms())
def test_the_checkpoint_is_behind_the_lowest_that_is_unfinished(
    count: int, chance: random.Random
) -> None:
    tracker, finished, reached = Tracker(), set[int](), -1
    for number in range(count):
        tracker.add(str(number))
    order = list(range(count))
    chance.shuffle(order)
    while order:
        some = [order.pop() for _ in range(min(len(order), chance.randint(1, 4)))]
        finished |= set(some)
        moved = tracker.finish([str(number) for number in some])
        lowest = min(set(range(count)) - finished, default=count)
        if moved is not None:
            assert int(moved) > reached
            reached = int(moved)
        assert reached == lowest - 1
    assert len(tracker) == 0
