"""A stream as shards, one behind the other: where one ends and the next begins is kept for good.

One shard is open and takes every record. With the first record of a transaction that finds it older
or larger than `ShardLimits` allow, it is sealed, in that very transaction, and the next one begins:
so whoever was told of a shard's range was told the truth. The sweep seals one that has records and
is old though nothing is written. A shard's parent is the one before it.

The head of a stream holds its open shard, and each sealed one is a row of its own, so writes do not
pay for how many there are. A sealed shard is forgotten once retention has emptied the one behind it
too: until then a reader that stands at its end has missed nothing.
"""

from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.kv import Transaction
from penstock.store.layout import Layout, SealedShard
from penstock.store.schema import Stream

HOUR_SECONDS: Final = 3600


class ShardLimits(Struct, frozen=True, kw_only=True):
    """When a shard is sealed: with the first record that comes once either is reached, or by the
    sweep."""

    age_seconds: float = 4 * HOUR_SECONDS
    bytes_max: int = 128 << 20
    """Of records, as `Stream.bytes` counts them."""


class Shard(NamedTuple):
    """A part of a stream, with every record from `first` up to `last`."""

    number: int
    """From 1, in the stream's order."""
    parent: int | None
    """The number of the one before, though it may be forgotten."""
    first: int
    """Not behind its first record's sequence. Never changes."""
    last: int | None
    """The sequence of its last record; None while it is open. Never changes once it is said."""
    begun_ms: int
    life: str = ""
    """Who wrote the store's sequence before `first`, as the store said when the shard began: so two
    stores that were one do not have the same shard behind what only one of them wrote. Empty for
    the first of a stream, and for what an older Penstock began. Never changes."""


def is_due(stream: Stream, limits: ShardLimits, *, time_ms: int) -> bool:
    """Whether a record of `time_ms` is to begin a new shard."""
    if not stream.shard_bytes:
        return False  # an empty shard can take it
    begun_ms = stream.shard_ms or stream.created_ms
    return stream.shard_bytes >= limits.bytes_max or time_ms >= begun_ms + limits.age_seconds * 1000


def seal(layout: Layout, txn: Transaction, stream: Stream, *, first: int, time_ms: int) -> Stream:
    """End the open shard at the stream's newest record; the next begins with `first`."""
    current = _open(stream)
    assert stream.latest is not None, "an empty shard is never sealed"
    sealed = SealedShard(current.first, stream.latest, current.begun_ms, current.life)
    layout.put_shard(txn, stream.id, current.number, sealed)
    return msgspec.structs.replace(
        stream,
        shard=current.number + 1,
        shard_first=first,
        shard_ms=time_ms,
        shard_bytes=0,
        shard_life=layout.life(txn, first - 1),
    )


def seal_idle(layout: Layout, txn: Transaction, limits: ShardLimits, *, time_ms: int) -> None:
    """End every open shard that is due; the next begins with the store's next sequence."""
    state = layout.state(txn)
    if state is None:
        return
    for stream in layout.streams(txn):
        if stream.closed_ms is None and is_due(stream, limits, time_ms=time_ms):
            begun_ms = max(stream.newest_ms, time_ms)
            first = state.sequence + 1
            layout.put_stream(txn, seal(layout, txn, stream, first=first, time_ms=begun_ms))


def shards(layout: Layout, txn: Transaction, stream: Stream) -> list[Shard]:
    """The shards of a stream, oldest first, from the one before the first that holds anything on.

    That of a stream that ended is not open: its `last` is its newest record's, or `first` if it
    never had one.
    """
    last = _open(stream)
    if stream.closed_ms is not None:
        end = last.first if stream.latest is None else max(last.first, stream.latest)
        last = last._replace(last=end)
    sealed = [
        Shard(number, number - 1 or None, one.first, one.last, one.begun_ms, one.life)
        for number, one in layout.shards(txn, stream.id)
    ]
    found = [*sealed, last]
    gone = _gone(found, stream)
    return found[gone:]


def forget(layout: Layout, txn: Transaction, stream: Stream, *, limit: int) -> None:
    """Forget at most `limit` sealed shards that `shards` does not show any more."""
    sealed = [
        Shard(number, None, one.first, one.last, one.begun_ms)
        for number, one in layout.shards(txn, stream.id, limit=limit + 1)
    ]
    for shard in sealed[: min(limit, _gone([*sealed, _open(stream)], stream))]:
        layout.delete_shard(txn, stream.id, shard.number)


def _open(stream: Stream) -> Shard:
    return Shard(
        stream.shard,
        stream.shard - 1 or None,
        stream.shard_first or stream.first,
        None,
        stream.shard_ms or stream.created_ms,
        stream.shard_life,
    )


def _gone(found: list[Shard], stream: Stream) -> int:
    """How many shards at the beginning have a next one of which nothing is left."""
    emptied = sum(one.last is not None and one.last <= stream.trimmed for one in found)
    return max(emptied - 1, 0)
