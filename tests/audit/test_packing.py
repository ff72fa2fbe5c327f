"""What is written together: whole commits, within limits, and nothing twice or left out."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.packing import (
    Ended,
    Entry,
    Packer,
    Part,
    Step,
    Stride,
    Tally,
    Whole,
    strides,
)
from penstock.errors import AuditError, IncompleteCommitError


def commits(sizes: list[list[int]]) -> list[Entry]:
    """Entries of commits; a size of 0 is an entry without a record."""
    made: list[Entry] = []
    for commit, bytes_of in enumerate(sizes, 1):
        first = len(made) + 1
        digest = sum(range(first, first + len(bytes_of))) & ((1 << 64) - 1)
        for number, size in enumerate(bytes_of, first):
            record = b"x" * size if size else None
            made.append(Entry(number, number, commit, len(bytes_of), digest, f"e{number}", record))
    return made


def packed(
    entries: list[Entry], *, events: int, size: int, tallies: list[Tally] | None = None
) -> list[Step]:
    packer = Packer(events_max=events, bytes_max=size, tallies=tallies)
    steps = [step for entry in entries for step in packer.add(entry)]
    return [*steps, *packer.end()]


def tallied(entries: list[Entry]) -> list[Tally]:
    """What is to come, if it is these."""
    return [
        Tally(commit, len(mine), sum(entry.check for entry in mine))
        for commit, group in groupby(entries, lambda entry: entry.commit)
        if (mine := list(group))
    ]


some_commits = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), max_size=20)


@given(some_commits, st.integers(1, 8), st.integers(10, 60))
def test_every_record_is_written_once_in_order_and_within_the_limits(
    sizes: list[list[int]], events: int, size: int
) -> None:
    entries = commits(sizes)
    steps = packed(entries, events=events, size=size)
    written = [one for step in steps if not isinstance(step, Ended) for one in step.entries]
    assert written == [entry for entry in entries if entry.record is not None]
    for step in steps:
        if isinstance(step, Ended):
            continue
        assert len(step.entries) <= events
        assert len(step.entries) <= 1 or sum(one.size for one in step.entries) <= size


@given(some_commits, st.integers(1, 8), st.integers(10, 60))
def test_a_commit_is_in_one_batch_or_in_parts_that_end_with_it(
    sizes: list[list[int]], events: int, size: int
) -> None:
    """A19: nobody is shown a part of a transaction."""
    entries = commits(sizes)
    lasts = {entry.commit: entry.sequence for entry in entries}
    seen: dict[int, int] = {}
    staged = 0
    for number, step in enumerate(packed(entries, events=events, size=size)):
        if isinstance(step, Part):
            (staged,) = {entry.commit for entry in step.entries}
            continue
        assert step.until in lasts.values(), "a place in the middle of a commit"
        if isinstance(step, Ended):
            assert step.until == lasts[staged]
            staged = 0
            continue
        assert not staged, "a batch between the parts of a commit"
        for commit, _ in groupby(entry.commit for entry in step.entries):
            assert seen.setdefault(commit, number) == number
    assert not staged


def test_the_place_behind_what_has_no_record_is_told_too() -> None:
    (step,) = packed(commits([[0, 0], [0]]), events=10, size=100)
    assert isinstance(step, Whole)
    assert (step.entries, step.until) == ([], 3)


def test_a_commit_that_lacks_an_entry_is_refused() -> None:
    entries = commits([[5], [5, 5, 5], [5]])
    del entries[2]
    with pytest.raises(IncompleteCommitError):
        packed(entries, events=10, size=100)


@given(some_commits, st.data())
def test_what_a_filter_leaves_out_is_told_from_what_was_lost(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    """A commit of which nothing came is missed too."""
    entries = commits(sizes)
    kept = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    wanted = [entry for entry, keep in zip(entries, kept, strict=True) if keep]
    tallies = tallied(wanted)
    steps = packed(wanted, events=4, size=60, tallies=tallies)
    written = [one for step in steps if not isinstance(step, Ended) for one in step.entries]
    assert written == [entry for entry in wanted if entry.record is not None]
    if wanted:
        lost = data.draw(st.integers(0, len(wanted) - 1))
        with pytest.raises(IncompleteCommitError):
            packed([*wanted[:lost], *wanted[lost + 1 :]], events=4, size=60, tallies=tallies)
    others = [entry for entry, keep in zip(entries, kept, strict=True) if not keep]
    if others:
        more = sorted([*wanted, data.draw(st.sampled_from(others))])
        with pytest.raises(IncompleteCommitError):
            packed(more, events=4, size=60, tallies=tallies)


def test_a_gap_that_the_reader_made_is_in_no_commit() -> None:
    (lone,) = commits([[5]])
    assert packed([lone._replace(commit=-1)], events=10, size=100, tallies=[])
    with pytest.raises(IncompleteCommitError):
        packed([lone], events=10, size=100, tallies=[])


def test_of_what_the_log_has_no_more_nothing_is_refused() -> None:
    """Retention took it behind the reading of it: what came of it is written."""
    entries = commits([[5, 5], [5, 5], [5, 5]])
    del entries[1]
    unknown = Tally(2, None)
    tallies = [unknown, *tallied(entries[3:])]
    assert len(packed(entries, events=10, size=100, tallies=tallies)) == 1
    assert packed([], events=10, size=100, tallies=[unknown]) == []
    del entries[-1]
    with pytest.raises(IncompleteCommitError):
        packed(entries, events=10, size=100, tallies=tallies)


def test_an_entry_that_was_altered_on_its_way_is_refused_before_its_commit_is_written() -> None:
    entries = commits([[5, 5]])
    entries[1] = entries[1]._replace(check=99)
    packer = Packer(events_max=1, bytes_max=100)
    steps = [step for entry in entries for step in packer.add(entry)]
    with pytest.raises(IncompleteCommitError):
        list(packer.end())
    assert [type(step) for step in steps] == [Part], "no part is brought in without its end"


@pytest.mark.parametrize("again", [1, 2])
def test_an_entry_out_of_its_order_is_refused_before_a_place_moves_back(again: int) -> None:
    first, second, *_ = entries = commits([[1], [1], [1]])
    packer = Packer(events_max=10, bytes_max=100)
    for entry in (first, second):
        assert list(packer.add(entry)) == []
    with pytest.raises(AuditError, match="out of its order"):
        list(packer.add(entries[again - 1]))


@given(some_commits, st.integers(1, 8), st.integers(10, 60), st.integers(1, 20), st.booleans())
def test_what_becomes_visible_together_is_in_order_and_within_the_limits(
    sizes: list[list[int]], events: int, size: int, most: int, fails: bool
) -> None:
    """Before an error is told, what came before it is written."""
    steps = packed(commits(sizes), events=events, size=size)

    def told() -> Iterator[Step]:
        yield from steps
        if fails:
            raise AuditError("a gap")

    found: list[Stride] = []
    with pytest.raises(AuditError) if fails else nullcontext():
        for stride in strides(told(), events_max=most, bytes_max=3 * size):
            found.append(stride)  # noqa: PERF402 - what came before an error is kept
    flat: list[Step] = []
    for stride in found:
        if isinstance(stride, Ended):
            flat.append(stride)
            continue
        flat += stride.steps
        entries = [entry for step in stride.steps for entry in step.entries]
        assert len(stride.steps) == 1 or len(entries) <= most
        assert len(stride.steps) == 1 or sum(entry.size for entry in entries) <= 3 * size
        assert all(type(step) is type(stride.steps[0]) for step in stride.steps)
    assert flat == steps
    for one, other in pairwise(found):
        assert type(one) is not type(other) or not _fit(one, other, most, 3 * size)


def _fit(one: Stride, other: Stride, most: int, size: int) -> bool:
    """Whether the first step of a stride would have had room in the one before."""
    if isinstance(one, Ended) or isinstance(other, Ended):
        return False
    entries = [entry for step in [*one.steps, other.steps[0]] for entry in step.entries]
    return len(entries) <= most and sum(entry.size for entry in entries) <= size
