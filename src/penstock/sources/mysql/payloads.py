"""Transactions that come compressed, as one event (`binlog_transaction_compression`). Pure.

They are taken apart as a stream: of what is unpacked, no more than an event is held at a time.
Source: the MySQL source documentation, mysql::binlog::event::Transaction_payload_event.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.sources.mysql.beginnings import BEGINS
from penstock.sources.mysql.binlog import (
    HEADER,
    HEADER_BYTES,
    Event,
    EventType,
    MalformedEventError,
    lenenc,
)

_END, _SIZE, _COMPRESSION, _WHOLE_SIZE = range(4)
_ZSTD, _NONE = 0, 255
EVENT_BYTES_MAX: Final = 1 << 30
"""As much as a server puts into one event."""
_NEVER_PACKED: Final = BEGINS | {
    EventType.TRANSACTION_PAYLOAD,
    EventType.FORMAT_DESCRIPTION,
    EventType.ROTATE,
}
"""Those that a compressed transaction cannot have."""


class _Payload(NamedTuple):
    """What says how it is packed."""

    compression: int
    data: bytes


def payload_events(body: bytes) -> Iterator[Event]:
    """The events of a TRANSACTION_PAYLOAD event, in order; they have no checksums of their own.

    Raises MalformedEventError, where the iterator comes to what is broken.
    """
    payload = _payload(body)
    source: pa.NativeFile = pa.BufferReader(payload.data)
    if payload.compression == _ZSTD:
        source = pa.CompressedInputStream(source, "zstd")
    elif payload.compression != _NONE:
        raise MalformedEventError(f"a transaction compressed by method {payload.compression}")
    try:
        while header := _read(source, HEADER_BYTES):
            if len(header) < HEADER_BYTES:
                raise MalformedEventError("a compressed transaction that ends within an event")
            timestamp, kind, _, size, _, flags = HEADER.unpack(header)
            if kind in _NEVER_PACKED:
                raise MalformedEventError(f"a compressed event of type {kind}")
            if not HEADER_BYTES <= size <= EVENT_BYTES_MAX:
                raise MalformedEventError(f"a compressed transaction with an event of {size} bytes")
            inner = _read(source, size - HEADER_BYTES)
            if len(inner) != size - HEADER_BYTES:
                raise MalformedEventError("a compressed transaction that ends within an event")
            yield Event(kind, timestamp, 0, flags, inner)  # what it says of its place is of none
    except OSError as error:
        raise MalformedEventError("a compressed transaction that zstd does not take") from error


def _payload(body: bytes) -> _Payload:
    at, size, compression = 0, -1, _NONE
    while True:
        kind, at = lenenc(body, at)
        if kind == _END:
            break
        length, at = lenenc(body, at)
        value = body[at : at + length]
        if len(value) != length:
            raise MalformedEventError("a compressed transaction whose head is broken")
        at += length
        if kind == _SIZE:
            size, _ = lenenc(value, 0)
        elif kind == _COMPRESSION:
            compression, _ = lenenc(value, 0)
        elif kind != _WHOLE_SIZE:
            raise MalformedEventError(f"a compressed transaction with the unknown field {kind}")
    if size != len(body) - at:
        raise MalformedEventError(f"a compressed transaction of {len(body) - at} bytes, not {size}")
    return _Payload(compression, body[at:])


def _read(source: pa.NativeFile, size: int) -> bytes:
    """So many bytes, or what is left of them."""
    parts: list[bytes] = []
    left = size
    while left and (part := source.read(left)):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
