"""What is written together: whole commits, within limits, and nothing twice or left out."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.packing import Ended, Entry, Packer, Part, Step, Whole
from penstock.errors import IncompleteCommitError


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


def packed(entries: list[Entry], *, events: int, size: int, whole: bool = True) -> list[Step]:
    packer = Packer(events_max=events, bytes_max=size, whole=whole)
    steps = [step for entry in entries for step in packer.add(entry)]
    return [*steps, *packer.end()]


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
        assert step.until.sequence in lasts.values(), "a place in the middle of a commit"
        if isinstance(step, Ended):
            assert step.until.sequence == lasts[staged]
            staged = 0
            continue
        assert not staged, "a batch between the parts of a commit"
        for commit, _ in groupby(entry.commit for entry in step.entries):
            assert seen.setdefault(commit, number) == number
    assert not staged


def test_the_place_behind_what_has_no_record_is_told_too() -> None:
    (step,) = packed(commits([[0, 0], [0]]), events=10, size=100)
    assert isinstance(step, Whole)
    assert (step.entries, step.until.sequence) == ([], 3)


@pytest.mark.parametrize("whole", [True, False])
def test_a_commit_that_lacks_an_entry_is_refused_unless_a_filter_may_have_taken_it(
    whole: bool,
) -> None:
    entries = commits([[5], [5, 5, 5], [5]])
    del entries[2]
    if whole:
        with pytest.raises(IncompleteCommitError):
            packed(entries, events=10, size=100, whole=True)
    else:
        assert packed(entries, events=10, size=100, whole=False)


def test_an_entry_that_was_altered_on_its_way_is_refused_before_its_commit_is_written() -> None:
    entries = commits([[5, 5]])
    entries[1] = entries[1]._replace(check=99)
    packer = Packer(events_max=1, bytes_max=100, whole=False)
    steps = [step for entry in entries for step in packer.add(entry)]
    with pytest.raises(IncompleteCommitError):
        list(packer.end())
    assert [type(step) for step in steps] == [Part], "no part is brought in without its end"
