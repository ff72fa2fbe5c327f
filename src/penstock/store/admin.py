"""What changes tables and streams themselves, inside a write transaction."""

import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.kv import Transaction
from penstock.store.errors import StreamAlreadyEnabledError, StreamNotEnabledError
from penstock.store.indexes import settle_format
from penstock.store.keys import after
from penstock.store.layout import Layout, pack_item, unpack_item
from penstock.store.retention import prune
from penstock.store.schema import Retention, Stream, StreamViewType, Table
from penstock.store.shards import forget
from penstock.store.times import Times
from penstock.store.values import decode_item

_SWEEP_RECORDS: Final = 200
_TTL_ITEMS: Final = 256
"""Items rewritten at once with another time to live: 100 MiB of the largest."""


def enable_stream(
    layout: Layout,
    txn: Transaction,
    table: Table,
    *,
    view: StreamViewType,
    retention: Retention,
    unchanged: bool,
    now_ms: int,
) -> Table:
    """Begin a stream of the table; returns the table with it. Nothing older is in it.

    Raises StreamAlreadyEnabledError.
    """
    if table.stream is not None:
        raise StreamAlreadyEnabledError(
            f"{table.name} has a stream. Nothing was changed. To change its view, disable it and "
            f"enable it anew: readers are told that it is another stream."
        )
    state = layout.state(txn)
    assert state is not None
    state = msgspec.structs.replace(state, streams=state.streams + 1)
    layout.put_state(txn, state)
    taken = {stream.label for stream in layout.streams(txn) if stream.table == table.name}
    label_ms = now_ms
    while (label := _label(label_ms)) in taken:
        label_ms += 1
    stream = Stream(
        id=state.streams,
        table_id=table.id,
        table=table.name,
        view=view,
        unchanged=unchanged,
        retention=retention,
        label=label,
        drawn=uuid.uuid4().hex[:8],
        partition_key=table.partition_key,
        sort_key=table.sort_key,
        created_ms=now_ms,
        first=state.sequence + 1,  # the note that it was enabled
        newest_ms=now_ms,
    )
    layout.put_stream(txn, stream)
    enabled = msgspec.structs.replace(table, stream=stream.id, streams=table.streams + 1)
    prefix = table.prefix
    empty = next(layout.items.items(txn, first=prefix, before=after(prefix)), None) is None
    layout.note(txn, "enableStream", enabled, stream=stream.id, empty=empty, now_ms=now_ms)
    return enabled


def _label(now_ms: int) -> str:
    """DynamoDB's form of a stream's label: YYYY-MM-DDTHH:MM:SS.mmm, UTC."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03d}"


def stream_of(layout: Layout, txn: Transaction, table: Table) -> Stream:
    """The stream of a table, enabled now. Raises StreamNotEnabledError."""
    stream = None if table.stream is None else layout.stream(txn, table.stream)
    if stream is None:
        raise StreamNotEnabledError(
            f"{table.name} has no stream. Enable one with enable_stream; it holds what is written "
            f"from then on."
        )
    return stream


def disable_stream(layout: Layout, txn: Transaction, table: Table, *, now_ms: int) -> Table:
    """End the table's stream, which stays readable; returns the table without it."""
    stream = _close_stream(layout, txn, table, now_ms=now_ms)
    disabled = msgspec.structs.replace(table, stream=None)
    layout.note(txn, "disableStream", disabled, stream=stream.id, now_ms=now_ms)
    return disabled


def drop_table(layout: Layout, txn: Transaction, table: Table, *, now_ms: int) -> None:
    """Forget a table, and end its stream, which stays readable (F19)."""
    if table.stream is not None:
        _close_stream(layout, txn, table, now_ms=now_ms)
    layout.delete_table(txn, table)
    if table.indexes:
        settle_format(layout, txn)
    layout.note(txn, "dropTable", table, stream=table.stream, now_ms=now_ms)


def _close_stream(layout: Layout, txn: Transaction, table: Table, *, now_ms: int) -> Stream:
    stream = stream_of(layout, txn, table)
    closed = msgspec.structs.replace(stream, closed_ms=max(stream.newest_ms, now_ms))
    layout.put_stream(txn, closed)
    return closed


def set_ttl(
    layout: Layout, txn: Transaction, table: Table, attribute: str | None, times: Times
) -> Table:
    """Let items expire at the second that `attribute` says, or never; returns the table so.

    Every item is looked at, in this one transaction.
    """
    while layout.clear_expiry(txn, table.prefix, limit=1000):
        pass
    changed = msgspec.structs.replace(table, ttl_attribute=attribute)
    first: bytes | None = table.prefix
    while first is not None:
        first = _expire_anew(
            layout, txn, changed, first, after(table.prefix), now_ms=times.likely_ms
        )
    layout.note(txn, "setTtl", changed, now_ms=times.now_ms)
    return changed


def _expire_anew(
    layout: Layout,
    txn: Transaction,
    table: Table,
    first: bytes,
    end: bytes | None,
    *,
    now_ms: int,
) -> bytes | None:
    """Have items from the key `first` on expire as the table says; returns where to go on.

    A step at a time: the items of a table may be more than memory holds.
    """
    moved = list[tuple[bytes, bytes]]()
    for key, value in layout.items.items(txn, first=first, before=end):
        current = unpack_item(value)
        expires = table.expires_at(decode_item(current.data), now_ms=now_ms) or 0
        if expires:
            layout.put_expiry(txn, key, expires)
        if expires != current.expires:
            moved.append((key, pack_item(current.version, current.size, expires, current.data)))
            if len(moved) == _TTL_ITEMS:
                break
    for key, value in moved:
        layout.items.put(txn, key, value, new_node=_no_node)
    return after(moved[-1][0]) if len(moved) == _TTL_ITEMS else None


def _no_node() -> int:
    raise AssertionError("the key is there, and so is every node on its way")


def remove_dropped(layout: Layout, txn: Transaction, *, limit: int) -> int:
    """Remove at most `limit` items of dropped tables, and entries of dropped indexes; returns how
    many there were."""
    removed = 0
    for prefix in layout.dropped(txn):
        keys = list[bytes]()
        for key, _ in layout.items.items(txn, first=prefix, before=after(prefix)):
            if len(keys) == limit - removed:
                break
            keys.append(key)
        for key in keys:
            layout.items.delete(txn, key)
        removed += len(keys)
        removed += layout.clear_expiry(txn, prefix, limit=limit - removed)
        if removed >= limit:
            break
        layout.forget_dropped(txn, prefix)
    return removed


def prune_streams(layout: Layout, txn: Transaction, *, now_ms: int | None) -> int:
    """Remove a step of what retention does not keep from every stream; returns how many records.

    A disabled stream of which nothing is left is forgotten, once it is as old as its retention.
    """
    removed = 0
    for stream in layout.streams(txn):
        left = prune(layout, txn, stream, now_ms=now_ms, limit=_SWEEP_RECORDS)
        removed += stream.records - left.records
        forget(layout, txn, left, limit=_SWEEP_RECORDS)
        if left.closed_ms is not None and not left.records and _over(left, now_ms):
            layout.delete_stream(txn, left)
        elif left is not stream:
            layout.put_stream(txn, left)
    _forget_lives(layout, txn)
    return removed


def _forget_lives(layout: Layout, txn: Transaction) -> None:
    """Whoever stands before all that is left has lost more than the proof of where he stood."""
    state = layout.state(txn)
    assert state is not None
    oldest = (stream.trimmed or stream.first for stream in layout.streams(txn))
    layout.forget_lives(txn, until=min(oldest, default=state.forgotten), limit=_SWEEP_RECORDS)


def _over(stream: Stream, now_ms: int | None) -> bool:
    """Whether a disabled stream need not be remembered, so that its readers hear of its end."""
    age = stream.retention.age_seconds
    if age is None:
        return stream.retention.records_max is not None
    return (
        now_ms is not None
        and stream.closed_ms is not None
        and stream.closed_ms < now_ms - age * 1000
    )
