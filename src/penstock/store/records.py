"""A stream's records: what is stored of one, and what a reader gets."""

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.store.schema import Stream, StreamViewType
from penstock.store.values import Item, decode_item

TTL_IDENTITY: Final = {"type": "Service", "principal_id": "dynamodb.amazonaws.com"}
"""Who removed an item that expired, in DynamoDB's words (F8)."""


class EventType(StrEnum):
    """What happened to an item."""

    INSERT = "Insert"
    MODIFY = "Modify"
    REMOVE = "Remove"


_NIL: Final = Raw(b"\xc0")
_EVENTS: Final = (EventType.INSERT, EventType.MODIFY, EventType.REMOVE)


class Stored(Struct, frozen=True, array_like=True):
    """A record as it lies in the stream, under its sequence."""

    event: Literal[0, 1, 2]
    commit: int
    ordinal: int
    commit_records: int
    time_ms: int
    expired: bool
    size: int
    """DynamoDB's SizeBytes: keys, and the images that the record holds."""
    keys: Raw
    old: Raw
    """An item, or nil."""
    new: Raw


class StreamRecord(Struct, frozen=True, kw_only=True):
    """One change of one item.

    Every record has a sequence of its own. The records of one write transaction share `commit`, in
    which `ordinal` counts from 0 to `commit_records` - 1 in the order of the operations (F1, F7).
    """

    sequence_number: int
    event_type: EventType
    table_name: str
    keys: Item
    old_image: Item | None = None
    """The item before the change, keys too; None when there was none or the view leaves it out."""
    new_image: Item | None = None
    timestamp: int
    """Milliseconds since the epoch. Never falls within a stream."""
    commit: int
    ordinal: int
    commit_records: int
    user_identity: dict[str, str] | None = None
    """Who removed the item, where that was not a user: `TTL_IDENTITY` for one that expired."""
    stream_id: str
    """Of which stream: another one after the stream was disabled and enabled again (F10)."""
    view: StreamViewType
    size_bytes: int
    position: str
    """What to go on after: the stream, the sequence, and a check of the record."""


def event_number(event: EventType) -> Literal[0, 1, 2]:
    """The number by which an event is stored."""
    return 0 if event is EventType.INSERT else 1 if event is EventType.MODIFY else 2


def encode_record(record: Stored) -> bytes:
    """The bytes of a record."""
    return _encoder.encode(record)


def decode_stored(data: bytes) -> Stored:
    """A record as `encode_record` wrote it."""
    return _decoder.decode(data)


def raw_image(data: bytes | None) -> Raw:
    """An item's bytes as a record holds them; None for no item."""
    return _NIL if data is None else Raw(data)


def _image(raw: Raw) -> Item | None:
    return None if raw == _NIL else decode_item(bytes(raw))


def record_of(
    data: bytes, *, sequence: int, stream: Stream, stream_id: str, position: str
) -> StreamRecord:
    """What a reader gets of a stored record."""
    stored = decode_stored(data)
    identity: dict[str, Any] | None = dict(TTL_IDENTITY) if stored.expired else None
    return StreamRecord(
        sequence_number=sequence,
        event_type=_EVENTS[stored.event],
        table_name=stream.table,
        keys=decode_item(bytes(stored.keys)),
        old_image=_image(stored.old),
        new_image=_image(stored.new),
        timestamp=stored.time_ms,
        commit=stored.commit,
        ordinal=stored.ordinal,
        commit_records=stored.commit_records,
        user_identity=identity,
        stream_id=stream_id,
        view=stream.view,
        size_bytes=stored.size,
        position=position,
    )


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Stored)
