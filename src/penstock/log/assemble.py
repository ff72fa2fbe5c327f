"""Commits -> blocks in their places. Pure: both logs stand on it, and neither can differ."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.log.layout import on_disk
from penstock.ports import SourceState
from penstock.wire import (
    BLOCK_BYTES,
    CommitSummary,
    EncodedCommit,
    EncodedEvent,
    Placed,
    build_block,
)

_U64 = (1 << 64) - 1


class Item(NamedTuple):
    """A commit, or a part of one, and the staging that it belongs to if it is staged."""

    staging: str
    part: EncodedCommit


class Head(NamedTuple):
    """The newest entry: where the next commit goes."""

    sequence: int
    commit: int
    check: int
    """32 bits of the entry's content hash."""


class Packed(NamedTuple):
    """A finished block and the entries it holds, counted from 1 as its container does."""

    last: int
    rows: int
    data: bytes


def pack_commits(
    commits: Iterable[EncodedCommit], *, after: Head, ingested_at: int
) -> tuple[list[Packed], Head]:
    """Blocks of whole commits that follow `after`, and the new head.

    A block closes at BLOCK_BYTES, wherever in a commit that is. Commits without events are
    heartbeats and take no number.
    """
    sequence, number, check = after
    packed: list[Packed] = []
    placed: list[Placed] = []
    summaries: list[CommitSummary] = []
    size = 0
    for commit in commits:
        if not commit.events:
            continue
        number += 1
        summary = CommitSummary(len(commit.events), commit.digest)
        summaries.append(summary)
        last = len(commit.events) - 1
        for ordinal, event in enumerate(commit.events):
            placed.append(Placed(event, number, ordinal, ordinal == last))
            size += len(event.message) + len(event.index)
            if size >= BLOCK_BYTES:
                sequence += len(placed)
                data = build_block(placed, summaries, ingested_at=ingested_at)
                packed.append(Packed(sequence, len(placed), data))
                placed, size = [], 0
                summaries = [] if ordinal == last else [summary]
        check = commit.events[-1].check & 0xFFFFFFFF
    if placed:
        sequence += len(placed)
        data = build_block(placed, summaries, ingested_at=ingested_at)
        packed.append(Packed(sequence, len(placed), data))
    return packed, Head(sequence, number, check)


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
    held: tuple[EncodedEvent, ...] = ()
    last_timestamp: int = 0


_UNKNOWN = [CommitSummary(0, 0)]
"""A staged block cannot know its commit's rows and digest; its pointer does."""


def stage(staging: Staging, part: EncodedCommit) -> tuple[list[Packed], Staging]:
    """Blocks that are full once `part` is added, and what is staged then. Rows count from 1."""
    if not part.events:
        return [], staging
    events = (*staging.held, *part.events)
    packed: list[Packed] = []
    placed: list[Placed] = []
    rows, size, total, disk_bytes = staging.rows, 0, staging.bytes, staging.disk_bytes
    for event in events[:-1]:
        placed.append(Placed(event, 0, rows + len(placed), False))
        size += len(event.message) + len(event.index)
        if size >= BLOCK_BYTES:
            rows += len(placed)
            data = build_block(placed, _UNKNOWN, ingested_at=0)
            packed.append(Packed(rows, len(placed), data))
            total += len(data)
            disk_bytes += on_disk(len(data))
            placed, size = [], 0
    return packed, Staging(
        extent=staging.extent,
        rows=rows,
        digest=(staging.digest + part.digest) & _U64,
        bytes=total,
        disk_bytes=disk_bytes,
        held=(*(one.event for one in placed), events[-1]),
        last_timestamp=part.last_timestamp or staging.last_timestamp,
    )


class Finished(NamedTuple):
    """A staged commit, complete."""

    block: Packed
    """The last one."""
    summary: CommitSummary
    check: int
    """32 bits of the last entry's content hash."""
    bytes: int


def finish(staging: Staging) -> Finished:
    """Close a staging that has rows: its last block, and what proves the commit complete."""
    last = len(staging.held) - 1
    placed = [
        Placed(event, 0, staging.rows + number, number == last)
        for number, event in enumerate(staging.held)
    ]
    data = build_block(placed, _UNKNOWN, ingested_at=0)
    rows = staging.rows + len(placed)
    return Finished(
        block=Packed(rows, len(placed), data),
        summary=CommitSummary(rows, staging.digest),
        check=staging.held[-1].check & 0xFFFFFFFF,
        bytes=staging.bytes + len(data),
    )


def moved(
    state: SourceState | None,
    source: str,
    *,
    position: str,
    events: int,
    last_timestamp: int,
    now: int,
) -> SourceState:
    """The state of a source after a commit of `events` entries (0: a heartbeat)."""
    return SourceState(
        source=source,
        position=position,
        commits=(state.commits if state else 0) + (1 if events else 0),
        events=(state.events if state else 0) + events,
        last_timestamp=last_timestamp if events else (state.last_timestamp if state else 0),
        moved_at=now,
    )
