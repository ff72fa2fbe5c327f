"""Consumers by name: how far each has come in a table's stream, and what is kept for it.

A checkpoint lies in the store, so it is as durable as what it is about. It says that everything up
to its position was handled, and is moved only from where its consumer left it: two consumers of one
name are told, not mixed.

A consumer may have records *held* for it: retention by age, count or bytes leaves what it has not
read as long as the stream has no more than its `hold_bytes_max`. Beyond that retention goes on, the
consumer is marked `overrun`, and its next read raises TrimmedDataError (F12).

A copy of a store (`Store.backup`) knows consumers that may have come further in the store it was
copied from. Their checkpoints are marked `restored` when the copy is first written to.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from penstock.kv import Transaction
from penstock.store.errors import (
    AheadOfStreamError,
    CheckpointConflictError,
    RefusedError,
    StreamChangedError,
)
from penstock.store.layout import Layout, State
from penstock.store.records import decode_stored
from penstock.store.schema import Consumer, Hold, Stream
from penstock.store.streams import ConsumerInfo, Position, horizon, latest, stream_id

NAME_BYTES_MAX = 128
CONSUMERS_MAX = 1000
"""Of one table."""

Start = Literal["trim_horizon", "latest"]


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Where a consumer stands."""

    position: str
    """Everything up to it was handled."""
    restored: bool
    """Whether the store is a backup's, so that the consumer may have handled what is not in it."""


def refuse_name(name: str) -> None:
    """Raise RefusedError for what is no consumer's name."""
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise RefusedError(
            f"a consumer's name has between 1 and {NAME_BYTES_MAX} bytes. Nothing was changed."
        )


def register(
    layout: Layout,
    txn: Transaction,
    state: State,
    stream: Stream,
    name: str,
    *,
    start: Start,
    hold_bytes_max: int | None,
    now_ms: int,
) -> Checkpoint:
    """A consumer's checkpoint in the streams of a table, made in `stream` if there is none."""
    refuse_name(name)
    if hold_bytes_max is not None and hold_bytes_max <= 0:
        raise RefusedError("hold_bytes_max must be more than 0. Nothing was changed.")
    found = layout.consumer(txn, stream.table, name)
    if found is None:
        if len(layout.consumers(txn, stream.table)) >= CONSUMERS_MAX:
            raise RefusedError(
                f"{stream.table} has {CONSUMERS_MAX} consumers, and no more are allowed. Nothing "
                f"was changed. Forget those that are gone (forget_consumer)."
            )
        position = latest(state, stream) if start == "latest" else horizon(state, stream)
        found = Consumer(
            name=name,
            table=stream.table,
            position=str(position),
            stream=stream.id,
            sequence=position.sequence,
            read=stream.removed + (stream.records if start == "latest" else 0),
            saved_ms=now_ms,
        )
    changed = msgspec.structs.replace(found, hold_bytes_max=hold_bytes_max)
    layout.put_consumer(txn, changed)
    _hold(layout, txn, changed)
    return Checkpoint(position=changed.position, restored=changed.restored)


def save(
    layout: Layout,
    txn: Transaction,
    state: State,
    streams: list[Stream],
    name: str,
    *,
    table: str,
    position: Position,
    expected: str | None,
    now_ms: int,
) -> None:
    """Move a checkpoint. `streams` are the table's.

    Raises CheckpointConflictError when it is not at `expected`, StreamChangedError for a position
    of no stream of the table, and AheadOfStreamError.
    """
    refuse_name(name)
    found = layout.consumer(txn, table, name)
    actual = None if found is None else found.position
    if actual != expected or found is None:
        raise CheckpointConflictError(table, name, expected=expected, actual=actual)
    stream = next((one for one in streams if stream_id(state, one) == position.stream_id), None)
    if stream is None:
        raise StreamChangedError(
            f"{table}: the position is of none of the table's streams. The checkpoint of {name!r} "
            f"was not moved."
        )
    if position.sequence > state.sequence:
        raise AheadOfStreamError(
            f"{table}: sequence {position.sequence} was never written; the newest is "
            f"{state.sequence}. The checkpoint of {name!r} was not moved."
        )
    moved = msgspec.structs.replace(
        found,
        position=str(position),
        stream=stream.id,
        sequence=position.sequence,
        read=_read(layout, txn, stream, found, position.sequence),
        saved_ms=now_ms,
        restored=False,
    )
    layout.put_consumer(txn, moved)
    if found.stream != stream.id:
        _release(layout, txn, found)
    _hold(layout, txn, moved)


def _read(layout: Layout, txn: Transaction, stream: Stream, found: Consumer, sequence: int) -> int:
    """How many records of the stream, from its first on, lie at or before a sequence."""
    if sequence >= (stream.latest or 0):
        return stream.removed + stream.records
    after, read = stream.trimmed, stream.removed
    if found.stream == stream.id and after <= found.sequence <= sequence:
        after, read = found.sequence, found.read
    for passed, _ in layout.records(txn, stream.id, after=after):
        if passed > sequence:
            break
        read += 1
    return read


def forget(layout: Layout, txn: Transaction, table: str, name: str) -> bool:
    """Forget a consumer; False when there was none."""
    found = layout.consumer(txn, table, name)
    if found is None:
        return False
    layout.delete_consumer(txn, found)
    _release(layout, txn, found)
    return True


def _hold(layout: Layout, txn: Transaction, consumer: Consumer) -> None:
    """Have the stream keep what the consumer has not read, as far as it asks for that."""
    stream = layout.stream(txn, consumer.stream)
    if stream is None:
        return
    held = tuple(one for one in stream.held if one.consumer != consumer.name)
    if consumer.hold_bytes_max is not None:
        hold = Hold(
            consumer=consumer.name,
            sequence=consumer.sequence,
            bytes_max=consumer.hold_bytes_max,
        )
        held = (*held, hold)
    if held != stream.held:
        layout.put_stream(txn, msgspec.structs.replace(stream, held=held))


def _release(layout: Layout, txn: Transaction, consumer: Consumer) -> None:
    _hold(layout, txn, msgspec.structs.replace(consumer, hold_bytes_max=None))


def mark_restored(layout: Layout, txn: Transaction) -> None:
    """The store is a copy: every consumer may have handled what is not in it."""
    for consumer in layout.consumers(txn, None):
        layout.put_consumer(txn, msgspec.structs.replace(consumer, restored=True))


def infos(layout: Layout, txn: Transaction, stream: Stream, *, now_ms: int) -> list[ConsumerInfo]:
    """The table's consumers, by name, seen from that stream."""
    overrun = {hold.consumer for hold in stream.held if hold.overrun}
    found = list[ConsumerInfo]()
    for one in layout.consumers(txn, stream.table):
        current = one.stream == stream.id
        after = max(one.sequence, stream.trimmed) if current else stream.trimmed
        oldest = next(layout.records(txn, stream.id, after=after), None)
        lag_ms = 0 if oldest is None else max(0, now_ms - decode_stored(oldest[1]).time_ms)
        written = stream.removed + stream.records
        found.append(
            ConsumerInfo(
                name=one.name,
                sequence=one.sequence,
                lag_records=written - one.read if current else written,
                lag_ms=lag_ms,
                saved_ms=one.saved_ms,
                hold_bytes_max=one.hold_bytes_max,
                overrun=one.name in overrun or (current and written - one.read > stream.records),
                current=current,
            )
        )
    return found
