"""Event -> protobuf bytes with an index into them -> block. Pure, and the hot path of capture."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import msgspec
import xxhash
from msgspec import Raw, Struct

from penstock.event import AnyEvent, ChangeEvent, ClusterTime, SchemaEvent, SystemEvent, kind_of
from penstock.wire.layout import (
    CELL_FIELDS,
    COMMIT_PACK,
    FLAG_AS_OF_EVENT,
    FLAG_LONG,
    FLAG_SNAPSHOT,
    FLAG_TXN,
    HEADER,
    HEADER_CHECKED,
    INDEX_PACK,
    LAYOUT_VERSION,
    OPERATION_CODES,
    PLACE_PACK,
    U64,
    Stream,
    tables_check,
    tag,
    text_field,
    varint,
)

_hash = xxhash.xxh3_64_intdigest


class EncodedEvent(Struct, frozen=True, gc=False):
    """An event as the log stores it, before it has a place."""

    stream: Stream
    message: bytes
    index: bytes
    check: int
    """XXH3-64 of `message`: its content hash."""


class EncodedCommit(NamedTuple):
    """The entries of a commit, or of a fragment of one, with what proves them complete."""

    source: str
    position: str | None
    """None for a fragment."""
    events: list[EncodedEvent]
    digest: int
    """Sum of the events' checks, modulo 2**64."""
    bytes: int
    last_timestamp: int


class Placed(Struct, frozen=True, gc=False):
    """An encoded event with its place, ready for a block."""

    event: EncodedEvent
    commit: int
    ordinal: int
    ends_commit: bool


class CommitSummary(NamedTuple):
    """What proves a commit complete: how many entries it has, and the sum of their checks."""

    rows: int
    digest: int


class _Shared(Struct, frozen=True):
    """What the events of one stream with one operation have in common."""

    stream: Stream
    prefix: bytes
    """The leading fields of the message."""
    key_seed: int
    """What tells this stream's keys from another's in the key hash."""
    code: int
    kind: int
    flags: int


_HEADS_MAX = 2048


def _heads(number: int) -> list[bytes]:
    """Tag and length of a length-delimited field, by length; at 0 the tag alone."""
    return [tag(number, 2) + (varint(length) if length else b"") for length in range(_HEADS_MAX)]


_CELL_HEADS = tuple(_heads(number) for number in CELL_FIELDS)
_TIMESTAMP = tag(9, 0)
_TXN_NUMBER = tag(11, 0)
_SCHEMA_VERSION = tag(17, 0)
_LONG = b'{"$numberLong"'


@lru_cache(maxsize=4096)
def _shared(
    source: str,
    database: str,
    tenant: str,
    collection: str,
    operation: str,
    kind: int,
    snapshot: bool,
    as_of_event: bool,
) -> _Shared:
    stream = Stream(source, database, tenant, collection)
    prefix = b"".join(
        (
            text_field(12, source),
            text_field(25, database),
            text_field(2, tenant),
            text_field(3, collection),
            text_field(5, operation),
            tag(22, 0) + varint(kind) if kind else b"",
            tag(18, 0) + b"\1" if snapshot else b"",
            tag(23, 0) + b"\1" if as_of_event else b"",
        )
    )
    code = OPERATION_CODES[operation] if kind == 0 else 0
    flags = (FLAG_SNAPSHOT if snapshot else 0) | (FLAG_AS_OF_EVENT if as_of_event else 0)
    return _Shared(stream, prefix, _hash(msgspec.json.encode(stream)), code, kind, flags)


@lru_cache(maxsize=256)
def _time_head(t: int, width: int) -> bytes:
    """The cluster time field up to its counter, which takes `width` bytes."""
    inner = tag(1, 0) + varint(t) + tag(2, 0)
    return tag(8, 2) + varint(len(inner) + width) + inner


def _times(time: ClusterTime, timestamp: int) -> bytes:
    counter = varint(time.i)
    return _time_head(time.t, len(counter)) + counter + _TIMESTAMP + varint(timestamp)


def encode_event(event: AnyEvent) -> EncodedEvent:
    """Encode one event: its protobuf bytes, and the index that points into them.

    Raises UnicodeEncodeError for text with a lone surrogate, which has no encoding, and
    struct.error or ValueError for a number that its field cannot hold.
    """
    if isinstance(event, ChangeEvent):
        return _encode_change(event)
    return _encode_control(event)


def _encode_change(event: ChangeEvent) -> EncodedEvent:
    shared = _shared(
        event.source,
        event.database,
        event.tenant,
        event.collection,
        event.operation._value_,
        0,
        event.snapshot,
        event.full_document_as_of_event,
    )
    flags = shared.flags
    txn = event.txn_number
    tail = _times(event.cluster_time, event.timestamp)
    if txn is None:
        txn = 0
    else:
        flags |= FLAG_TXN
        tail += _TXN_NUMBER + varint(txn)
    unchanged = 0
    if event.unchanged:
        names = b"".join([_item(19, name) for name in event.unchanged])
        unchanged, tail = len(names), names + tail
    transaction = event.transaction
    cells = (
        event.event_id.encode(),
        event.document_id.encode(),
        event.key,
        event.full_document,
        event.full_document_before_change,
        event.update_description,
        event.position.encode(),
        transaction.encode() if transaction else None,
        event.disambiguated_paths,
    )
    return _assemble(event, shared, cells, tail, flags, txn, unchanged)


def _encode_control(event: SchemaEvent | SystemEvent) -> EncodedEvent:
    shared = _shared(
        event.source,
        event.database,
        event.tenant,
        event.collection,
        event.operation,
        int(kind_of(event)),
        False,
        False,
    )
    transaction = event.transaction
    cells = (
        event.event_id.encode(),
        None,
        None,
        event.description,
        None,
        None,
        event.position.encode(),
        transaction.encode() if transaction else None,
        None,
    )
    return _assemble(event, shared, cells, _times(event.cluster_time, event.timestamp), 0, 0, 0)


def _item(number: int, value: str) -> bytes:
    """An element of a repeated string field, which is written even when it is empty."""
    data = value.encode()
    return tag(number, 2) + varint(len(data)) + data


def _assemble(
    event: AnyEvent,
    shared: _Shared,
    cells: tuple[bytes | Raw | None, ...],
    tail: bytes,
    flags: int,
    txn: int,
    unchanged: int,
) -> EncodedEvent:
    """`tail` starts with `unchanged` bytes of the fields of that name."""
    key = cells[2]
    at = len(shared.prefix)
    parts: list[bytes | Raw] = [shared.prefix]
    places: list[int] = []
    for value, heads in zip(cells, _CELL_HEADS, strict=True):
        if value:
            length = len(value)
            head = heads[length] if length < _HEADS_MAX else heads[0] + varint(length)
            at += len(head)
            parts.append(head)
            parts.append(value)
            places.append(at)
            places.append(length)
            at += length
        else:
            places.append(at)
            places.append(0)
    version = event.schema_version
    if version:
        tail += _SCHEMA_VERSION + varint(version)
    parts.append(tail)
    message = b"".join(parts)
    # A lone `$` is found far faster than the whole pattern, and most documents have none.
    if b"$" in message and _LONG in message:
        flags |= FLAG_LONG
    check = _hash(message)
    time = event.cluster_time
    index = INDEX_PACK.pack(
        check,
        len(message),
        shared.code,
        shared.kind,
        flags,
        0 if key is None else _hash(key, shared.key_seed),
        event.timestamp,
        txn,
        time.t,
        time.i,
        version,
        len(shared.prefix),
        unchanged,
        *places,
    )
    return EncodedEvent(shared.stream, message, index, check)


def encode_commit(
    source: str, events: Sequence[AnyEvent], *, position: str | None
) -> EncodedCommit:
    """Encode the events of a commit (or of a fragment: `position` None) with their digest."""
    encoded = [encode_event(event) for event in events]
    return EncodedCommit(
        source=source,
        position=position,
        events=encoded,
        digest=sum([event.check for event in encoded]) & U64,
        bytes=sum([len(event.message) + len(event.index) for event in encoded]),
        last_timestamp=events[-1].timestamp if events else 0,
    )


def build_block(
    placed: Sequence[Placed], commits: Sequence[CommitSummary], *, ingested_at: int
) -> bytes:
    """One block of consecutive entries. `commits` lists the commits they belong to, in order.

    Commit numbers inside are relative to the first entry's, which the header keeps.
    """
    first_commit = placed[0].commit
    streams: dict[Stream, int] = {}
    number = streams.setdefault
    pack = PLACE_PACK.pack
    messages = [one.event.message for one in placed]
    ends = list(accumulate([len(message) for message in messages]))
    places = [
        pack(
            start,
            one.commit - first_commit,
            one.ordinal,
            number(one.event.stream, len(streams)),
            one.ends_commit,
        )
        for one, start in zip(placed, (0, *ends), strict=False)
    ]
    stream_table = msgspec.json.encode(list(streams))
    tables = b"".join(
        (
            *(COMMIT_PACK.pack(rows, digest) for rows, digest in commits),
            *places,
            *[one.event.index for one in placed],
            stream_table,
        )
    )
    head = HEADER.pack(
        LAYOUT_VERSION,
        len(placed),
        len(commits),
        len(stream_table),
        ends[-1],
        first_commit,
        ingested_at,
        0,
    )[:HEADER_CHECKED]
    check = tables_check(head, tables).to_bytes(8, "little")
    return b"".join((head, check, tables, *messages))
