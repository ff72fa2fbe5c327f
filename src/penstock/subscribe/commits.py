"""Commits in a log, found by number."""

from collections.abc import Callable

from penstock.errors import AheadError, TrimmedError
from penstock.ports import Bounds, LogReader
from penstock.progress import Progress
from penstock.subscribe.resume import oldest
from penstock.wire import Block


async def first_where(
    log: LogReader, bounds: Bounds, holds: Callable[[Block, int], bool]
) -> int | None:
    """The first sequence that `holds`, for a property that all later ones have too."""
    low, high = bounds.trimmed + 1, bounds.head + 1
    while low < high:
        middle = (low + high) // 2
        block = await entry_at(log, middle)
        if holds(block, block.start):
            high = middle
        else:
            low = middle + 1
    return low if low <= bounds.head else None


async def entry_at(log: LogReader, sequence: int) -> Block:
    """The block of one entry, which alone is in view."""
    (block, *_) = await log.read(after=sequence - 1, until=sequence, bytes_max=1)
    return block


async def end_of(log: LogReader, commit: int) -> Progress:
    """The last entry of a commit: what follows it is exactly the later commits.

    Raises TrimmedError if some of those are gone, AheadError if the log has not come to it.
    """
    bounds = await log.bounds()
    if commit > bounds.head_commit:
        raise AheadError(sequence=commit, head=bounds.head_commit)
    if commit == bounds.head_commit:
        return Progress(bounds.log_id, bounds.head, bounds.head_check)
    first = await first_where(log, bounds, lambda block, i: block.commit(i) > commit)
    if first is None:  # all of the log is gone, but for its end
        raise TrimmedError(oldest=str(oldest(bounds)))
    if first == bounds.trimmed + 1:
        block = await entry_at(log, first)
        if block.commit(block.start) > commit + 1:
            raise TrimmedError(oldest=str(oldest(bounds)))
        return Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
    block = await entry_at(log, first - 1)
    return block.place(block.start)


async def commit_of(log: LogReader, sequence: int) -> int:
    """The commit that the entry at `sequence` ends; 0 at sequence 0.

    Raises TrimmedError where nobody can tell any more.
    """
    bounds = await log.bounds()
    if sequence == bounds.head:
        return bounds.head_commit
    if sequence == bounds.trimmed:
        block = await entry_at(log, sequence + 1)
        return block.commit(block.start) - 1
    block = await entry_at(log, sequence)
    return block.commit(block.start)
