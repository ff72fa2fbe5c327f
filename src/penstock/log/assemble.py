"""Commits -> blocks in their places. Pure: both logs stand on it, and neither can differ."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import LogError
from penstock.log.layout import on_disk
from penstock.ports import SourceState
from penstock.wire import (
    BLOCK_BYTES,
    COMMIT,
    NOTHING,
    CommitSummary,
    Encoded,
    EncodedCommits,
    build_block,
    histories,
    history_after,
    joined,
    places_of,
    summaries_of,
)

_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1


class Item(NamedTuple):
    """Commits, or a part of one, and the staging that they belong to if they are staged."""

    staging: str
    part: EncodedCommits


class Head(NamedTuple):
    """The newest entry: where the next commit goes."""

    sequence: int
    commit: int
    check: int
    """That its marker has: the sum (see `wire.layout`) behind it."""


class Packed(NamedTuple):
    """A finished block and the entries it holds, counted from 1 as its container does."""

    last: int
    rows: int
    data: bytes


def block_ends(events: Encoded) -> list[int]:
    """Where each block of `events` ends that is full: at the entry that makes it BLOCK_BYTES."""
    ends = events.ends + np.arange(1, len(events) + 1) * events.index.itemsize
    stops: list[int] = []
    stop = reached = 0
    while len(events) and int(ends[-1]) - reached >= BLOCK_BYTES:
        stop = int(np.searchsorted(ends, reached + BLOCK_BYTES)) + 1
        stops.append(stop)
        reached = int(ends[stop - 1])
    return stops


def pack_commits(
    several: Iterable[EncodedCommits], *, after: Head, ingested_at: int
) -> tuple[list[Packed], Head]:
    """Blocks of whole commits that follow `after`, and the new head.

    A block closes at BLOCK_BYTES, wherever in a commit that is. Commits without events are
    heartbeats and take no number.
    """
    given = [commits for commits in several if commits.rows]
    if not given:
        return [], after
    events = joined([commits.events for commits in given])
    rows = [count for commits in given for count in commits.rows]
    summaries, places = summaries_of(events, rows), places_of(rows)
    packed: list[Packed] = []
    start, check = 0, after.check
    for stop in (*block_ends(events), len(events)):
        if stop == start:
            continue
        first, last = int(places["commit"][start]), int(places["commit"][stop - 1])
        data = build_block(
            events.cut(start, stop),
            places[start:stop],
            summaries[first : last + 1],
            first_commit=after.commit + 1 + first,
            ingested_at=ingested_at,
            before=check,
        )
        packed.append(Packed(after.sequence + stop, stop - start, data))
        commits = places["commit"][start:stop].astype(np.int64) + after.commit + 1
        check = int(histories(check, events.checks[start:stop], commits)[-1])
        start = stop
    return packed, Head(after.sequence + len(events), after.commit + len(rows), check)


class Staging(NamedTuple):
    """A commit that is being staged: what its blocks hold, and the rows not yet in one.

    At least the newest row is held back, because only its commit's end says whether it ends it.
    """

    extent: int
    rows: int = 0
    """Rows in finished blocks."""
    digest: int = 0
    """Of all rows, those held back too."""
    bytes: int = 0
    disk_bytes: int = 0
    """What the finished blocks take up in whole pages."""
    held: Encoded = NOTHING
    last_timestamp: int = 0


_UNKNOWN = np.zeros(1, COMMIT)
"""A staged block cannot know its commit's rows and digest; its pointer does."""


def _staged_block(events: Encoded, *, rows: int, digest: int, ends: bool) -> Packed:
    """A block of a staged commit that has `rows` of `digest` before; `ends` says whether these are
    its last."""
    count = len(events)
    if rows + count > _U32:
        raise LogError(
            f"a transaction has more than {_U32} changes, which the log cannot number. Nothing "
            f"of it was kept. Make it smaller at the source, or exclude its collections."
        )
    places = places_of([count])
    places["ordinal"] += rows
    places["ends"][-1] = ends
    data = build_block(events, places, _UNKNOWN, first_commit=0, ingested_at=0, before=digest)
    return Packed(rows + count, count, data)


def _digest(events: Encoded) -> int:
    return int(events.checks.sum(dtype=np.uint64))


def _digest_before(staging: Staging) -> int:
    """The digest of the rows in finished blocks."""
    return (staging.digest - _digest(staging.held)) & _U64


def stage(staging: Staging, part: EncodedCommits) -> tuple[list[Packed], Staging]:
    """Blocks that are full once `part` is added, and what is staged then. Rows count from 1."""
    if not len(part.events):
        return [], staging
    events = joined([staging.held, part.events])
    packed: list[Packed] = []
    start, rows, digest = 0, staging.rows, _digest_before(staging)
    for stop in block_ends(events):
        if stop == len(events):
            break
        full = events.cut(start, stop)
        packed.append(_staged_block(full, rows=rows, digest=digest, ends=False))
        digest = (digest + _digest(full)) & _U64
        start, rows = stop, rows + stop - start
    return packed, Staging(
        extent=staging.extent,
        rows=rows,
        digest=(staging.digest + part.digest) & _U64,
        bytes=staging.bytes + sum(len(block.data) for block in packed),
        disk_bytes=staging.disk_bytes + sum(on_disk(len(block.data)) for block in packed),
        held=events.cut(start, len(events)).owned(),
        last_timestamp=part.last_timestamp or staging.last_timestamp,
    )


class Finished(NamedTuple):
    """A staged commit, complete."""

    block: Packed
    """The last one."""
    summary: CommitSummary
    bytes: int

    def head(self, after: Head) -> Head:
        """The new head, once it follows `after`."""
        rows, digest = self.summary
        commit = after.commit + 1
        check = history_after(after.check, commit=commit, digest=digest)
        return Head(after.sequence + rows, commit, check)


def finish(staging: Staging) -> Finished:
    """Close a staging that has rows: its last block, and what proves the commit complete."""
    block = _staged_block(
        staging.held, rows=staging.rows, digest=_digest_before(staging), ends=True
    )
    return Finished(
        block=block,
        summary=CommitSummary(block.last, staging.digest),
        bytes=staging.bytes + len(block.data),
    )


def moved(
    state: SourceState | None,
    source: str,
    *,
    position: str,
    commits: int = 0,
    events: int = 0,
    last_timestamp: int = 0,
    now: int,
) -> SourceState:
    """The state of a source after so many `commits` that have `events`; 0: a heartbeat."""
    return SourceState(
        source=source,
        position=position,
        commits=(state.commits if state else 0) + commits,
        events=(state.events if state else 0) + events,
        last_timestamp=last_timestamp if events else (state.last_timestamp if state else 0),
        moved_at=now,
    )
