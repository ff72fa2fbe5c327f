"""Events to append, and what a reader makes of a log: shared by the log's contracts."""

from collections.abc import Sequence

from msgspec import Raw, Struct

from penstock.event import ChangeEvent, ClusterTime, Entry, Operation, event_id
from penstock.ports import LogReader
from penstock.wire import verify_block

LONG_AGO = 1_000_000_000
"""Seconds since the epoch; what a source may call now."""


def change(
    source: str, position: str, ordinal: int = 0, *, bytes_: int = 40, time: int = LONG_AGO
) -> ChangeEvent:
    """An insert whose document is `bytes_` long; its id says source, position and ordinal."""
    return ChangeEvent(
        event_id=event_id(source, position, ordinal),
        source=source,
        database="shop",
        tenant="shop",
        collection="orders",
        cluster_time=ClusterTime(time, ordinal),
        timestamp=time * 1000,
        position=position,
        document_id=f"{source}/{position}/{ordinal}",
        key=Raw(b'{"_id":%d}' % ordinal),
        operation=Operation.INSERT,
        full_document=Raw(b'{"text":"%s"}' % (b"x" * max(0, bytes_ - 11))),
    )


def changes(
    source: str, position: str, count: int, *, start: int = 0, bytes_: int = 40
) -> tuple[ChangeEvent, ...]:
    """`count` events of one commit, with ordinals from `start`."""
    return tuple(
        change(source, position, ordinal, bytes_=bytes_) for ordinal in range(start, start + count)
    )


class Seen(Struct, frozen=True):
    """What matters of an entry that was read."""

    sequence: int
    commit: int
    ordinal: int
    rows: int
    ends: bool
    source: str
    document_id: str


def seen(entry: Entry) -> Seen:
    """The short form of an entry."""
    event = entry.event
    assert isinstance(event, ChangeEvent)
    return Seen(
        entry.sequence,
        entry.commit,
        entry.ordinal,
        entry.commit_rows,
        entry.ends_commit,
        event.source,
        event.document_id,
    )


async def read_all(
    log: LogReader, *, after: int = 0, until: int | None = None, bytes_max: int = 1 << 20
) -> list[Entry]:
    """Every entry in (`after`, `until`], read as a follower does; the sequences are checked."""
    entries: list[Entry] = []
    while blocks := await log.read(after=after, until=until, bytes_max=bytes_max):
        for block in blocks:
            verify_block(block)
            for entry in block.entries():
                after += 1
                assert entry.sequence == after, f"entry {entry.sequence} where {after} was due"
                entries.append(entry)
    return entries


async def read_seen(log: LogReader, *, after: int = 0, until: int | None = None) -> list[Seen]:
    """`read_all`, in short."""
    return [seen(entry) for entry in await read_all(log, after=after, until=until)]


def require_whole_commits(entries: Sequence[Entry]) -> None:
    """Fail unless `entries` are whole commits, numbered densely, with their rows and digests."""
    at = 0
    while at < len(entries):
        rows = entries[at].commit_rows
        commit = entries[at : at + rows]
        assert [entry.ordinal for entry in commit] == list(range(rows)), "a commit in part"
        assert {entry.commit for entry in commit} == {
            entries[0].commit + _commits_before(entries, at)
        }
        assert [entry.ends_commit for entry in commit] == [False] * (rows - 1) + [True]
        at += rows


def _commits_before(entries: Sequence[Entry], at: int) -> int:
    return sum(entry.ends_commit for entry in entries[:at])
