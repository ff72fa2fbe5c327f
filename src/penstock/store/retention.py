"""What leaves a stream: by age, count or bytes, oldest first, a few records at a time (F12)."""

import msgspec
import structlog

from penstock.kv import Transaction
from penstock.store.layout import RECORD_OVERHEAD_BYTES, Layout, record_check
from penstock.store.records import decode_stored
from penstock.store.schema import Stream

_log = structlog.get_logger()


def excess(stream: Stream, *, time_ms: int, now_ms: int | None) -> bool:
    """Whether the oldest record, of `time_ms`, has to go. Without `now_ms`, age does not count."""
    kept = stream.retention
    if kept.manual:
        return False
    if kept.records_max is not None and stream.records > kept.records_max:
        return True
    if kept.bytes_max is not None and stream.bytes > kept.bytes_max:
        return True
    if now_ms is None or kept.age_seconds is None:
        return False
    return time_ms < now_ms - kept.age_seconds * 1000


def is_held(stream: Stream, sequence: int) -> bool:
    """Whether a record is kept for a consumer that has not read it."""
    return any(hold.sequence < sequence and stream.bytes <= hold.bytes_max for hold in stream.held)


def prune(
    layout: Layout, txn: Transaction, stream: Stream, *, now_ms: int | None, limit: int
) -> Stream:
    """Remove at most `limit` records that retention does not keep; returns the stream's new head.

    Without `now_ms` (the clock is not to be believed), age removes nothing.
    """
    removed = 0
    while removed < limit:
        oldest = next(layout.records(txn, stream.id, after=stream.trimmed), None)
        if oldest is None:
            break
        sequence, data = oldest
        if is_held(stream, sequence) or not excess(
            stream, time_ms=decode_stored(data).time_ms, now_ms=now_ms
        ):
            break
        stream = remove(layout, txn, stream, sequence, data)
        removed += 1
    return stream


def prune_until(
    layout: Layout, txn: Transaction, stream: Stream, *, until: int, limit: int
) -> Stream:
    """Remove at most `limit` records, up to the sequence `until`; returns the new head."""
    for _ in range(limit):
        oldest = next(layout.records(txn, stream.id, after=stream.trimmed), None)
        if oldest is None or oldest[0] > until:
            break
        stream = remove(layout, txn, stream, *oldest)
    return stream


def remove(layout: Layout, txn: Transaction, stream: Stream, sequence: int, data: bytes) -> Stream:
    """Remove the oldest record; returns the stream's new head."""
    layout.delete_record(txn, stream.id, sequence)
    if stream.held:
        stream = _overrun(stream, sequence)
    return msgspec.structs.replace(
        stream,
        trimmed=sequence,
        trimmed_check=record_check(data),
        records=stream.records - 1,
        bytes=stream.bytes - len(data) - RECORD_OVERHEAD_BYTES,
        removed=stream.removed + 1,
    )


def _overrun(stream: Stream, sequence: int) -> Stream:
    """Remember, and say, for whom a record is removed unread."""
    held = list(stream.held)
    for at, hold in enumerate(held):
        if hold.sequence < sequence and not hold.overrun:
            held[at] = msgspec.structs.replace(hold, overrun=True)
            _log.warning(
                "a consumer's hold was overrun: records that it has not read are removed",
                table=stream.table,
                consumer=hold.consumer,
                hold_bytes_max=hold.bytes_max,
                trimmed=sequence,
            )
    return msgspec.structs.replace(stream, held=tuple(held))
