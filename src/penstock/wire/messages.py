"""Complete messages: parsed, gathered into batches, and written as JSON."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash
from msgspec import Raw

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Entry,
    Kind,
    Operation,
    SchemaEvent,
    SystemEvent,
    kind_of,
)
from penstock.extjson import relaxed
from penstock.wire.layout import text_field, varint

_OF_THE_DOCUMENT: Final = (
    *("full_document", "update_description", "unchanged", "disambiguated_paths", "origin"),
)
"""The fields that tell what a document is now; a statement does."""


def heartbeat_message(progress: str) -> bytes:
    """An Event with nothing but progress."""
    return text_field(10, progress)


def as_delete(message: bytes) -> bytes:
    """Event bytes that say that the document is gone, for a reader whose it is no longer."""
    event = pb.Event.FromString(message)
    event.operation_type = Operation.DELETE
    for field in _OF_THE_DOCUMENT:
        event.ClearField(field)
    return event.SerializeToString()


def batch_message(messages: Sequence[bytes], progress: str) -> bytes:
    """An EventBatch of ready Event bytes. `progress` is that of the whole batch."""
    parts: list[bytes] = []
    for message in messages:
        parts.append(b"\x0a" + varint(len(message)))
        parts.append(message)
    parts.append(text_field(2, progress))
    return b"".join(parts)


def split_batch(message: bytes) -> tuple[list[bytes], str]:
    """The Event bytes of an EventBatch, unparsed, and its progress.

    Raises ValueError for bytes that are no EventBatch.
    """
    messages: list[bytes] = []
    progress = ""
    at, end = 0, len(message)
    while at < end:
        tag = message[at]
        length, start = _read_varint(message, at + 1)
        at = start + length
        if at > end:
            raise ValueError("an EventBatch is cut short")
        if tag == 0x0A:
            messages.append(message[start:at])
        elif tag == 0x12:
            progress = message[start:at].decode()
        else:
            raise ValueError(f"an EventBatch has no field with the tag {tag}")
    return messages, progress


def content_check(message: bytes) -> int:
    """The content hash of complete Event bytes: over what was captured, without its place.

    What the log stores never has field 13 (commit); what `Block.message` appends begins with it.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        if tag == 13 << 3:
            return xxhash.xxh3_64_intdigest(message[:start])
        kind = tag & 7
        if kind == 0:
            _, at = _read_varint(message, at)
        elif kind == 2:
            length, at = _read_varint(message, at)
            at += length
        else:
            break
    raise ValueError("an Event has no place in the log")


def merged(
    stored: bytes,
    *,
    operation: Operation,
    full_document: bytes | None = None,
    unchanged: Sequence[str] = (),
    full_document_before_change: bytes,
    update_description: bytes,
) -> bytes:
    """What an entry stored, saying what it and the changes before it come to.

    `full_document` and `unchanged` belong together; None leaves both as they are. Only an insert
    is still said to be copied, and no path of a description can be read in several ways.
    """
    event = pb.Event.FromString(stored)
    event.operation_type = operation
    event.snapshot = event.snapshot and operation is Operation.INSERT
    event.full_document_before_change = full_document_before_change
    event.update_description = update_description
    event.disambiguated_paths = b"{}" if update_description else b""
    if full_document is not None:
        event.full_document = full_document
        event.unchanged[:] = unchanged
    return event.SerializeToString()


def unchanged_of(stored: bytes) -> list[str]:
    """The fields that were not sent again, of an entry that has such."""
    return list(pb.Event.FromString(stored).unchanged)


def plain_numbers(message: bytes) -> bytes:
    """Event bytes in the puller's dialect: int64 values plain, as relaxed JSON has them."""
    event = pb.Event.FromString(message)
    event.full_document = relaxed(event.full_document)
    event.update_description = relaxed(event.update_description)
    event.full_document_before_change = relaxed(event.full_document_before_change)
    return event.SerializeToString()


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message):
            raise ValueError("a message is cut short")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def decode_message(message: bytes) -> Entry:
    """The entry of `penstock.v1.Event` bytes; not for a heartbeat."""
    return entry_of(pb.Event.FromString(message))


def entry_of(event: pb.Event) -> Entry:
    """The entry that a parsed message is."""
    return Entry(
        sequence=event.sequence,
        commit=event.commit,
        ordinal=event.ordinal,
        commit_rows=event.commit_rows,
        commit_digest=event.commit_digest,
        ends_commit=event.ends_commit,
        ingested_at=event.ingested_at,
        progress=event.progress,
        event=event_of(event),
        coalesced=event.coalesced,
    )


def event_of(event: pb.Event) -> AnyEvent:
    """The event that a parsed message carries, wherever it stands.

    Raises ValueError for a message that no source could have written.
    """
    kind = int(event.kind)
    if kind == Kind.DATA:
        return _change_of(event)
    of_kind = SchemaEvent if kind == Kind.SCHEMA else SystemEvent
    return of_kind(
        event_id=event.id,
        source=event.source,
        database=event.database,
        tenant=event.tenant,
        collection=event.collection,
        cluster_time=_time_of(event),
        timestamp=event.timestamp,
        position=event.position,
        schema_version=event.schema_version,
        transaction=event.transaction or None,
        origin=_raw(event.origin),
        operation=event.operation_type,
        description=Raw(event.full_document),
    )


def _change_of(event: pb.Event) -> ChangeEvent:
    return ChangeEvent(
        event_id=event.id,
        source=event.source,
        database=event.database,
        tenant=event.tenant,
        collection=event.collection,
        cluster_time=_time_of(event),
        timestamp=event.timestamp,
        position=event.position,
        schema_version=event.schema_version,
        transaction=event.transaction or None,
        origin=_raw(event.origin),
        document_id=event.document_id,
        key=Raw(event.key),
        operation=Operation(event.operation_type),
        full_document=_raw(event.full_document),
        full_document_before_change=_raw(event.full_document_before_change),
        update_description=_raw(event.update_description),
        disambiguated_paths=_raw(event.disambiguated_paths),
        txn_number=event.txn_number if event.HasField("txn_number") else None,
        snapshot=event.snapshot,
        unchanged=tuple(event.unchanged),
        full_document_as_of_event=event.full_document_as_of_event,
    )


def _time_of(event: pb.Event) -> ClusterTime:
    time = event.cluster_time
    return ClusterTime(time.t, time.i)


def _raw(data: bytes) -> Raw | None:
    return Raw(data) if data else None


def to_json(entry: Entry, *, plain_numbers: bool = True) -> bytes:
    """One entry as JSON, in puller.proto's names; `plain_numbers` as its relaxed Extended JSON.

    Absent fields are left out, but `txnNumber` is null outside a transaction (P28). An entry of a
    coalesced window has neither `commitRows` nor `commitDigest`.
    """
    event = entry.event
    fields: dict[str, Any] = {}
    for field, name in _json_names(type(event)):
        value = getattr(event, field)
        if name == "txnNumber" or (value is not None and value != ()):
            fields[name] = value
    fields |= {
        "kind": kind_of(event).name.lower(),
        "sequence": entry.sequence,
        "commit": entry.commit,
        "ordinal": entry.ordinal,
        "endsCommit": entry.ends_commit,
        "ingestedAt": entry.ingested_at,
        "progress": entry.progress,
    }
    if entry.coalesced:
        fields["coalesced"] = entry.coalesced
    else:
        fields["commitRows"] = entry.commit_rows
        fields["commitDigest"] = f"{entry.commit_digest:016x}"
    encoded = msgspec.json.encode(fields)
    return relaxed(encoded) if plain_numbers else encoded


@lru_cache(maxsize=8)
def _json_names(kind: type[AnyEvent]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
