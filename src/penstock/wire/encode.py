"""Events -> protobuf bytes, with an index into them. Pure, and the hot path of capture.

Events are encoded many at a time and column by column: it is bytecode that costs here, and `map`,
`zip` and numpy run down a column without any. Blocks are cut from the columns (`build.py`).
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from msgspec import Raw, Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from penstock.event import AnyEvent, ChangeEvent, ClusterTime, SchemaEvent, SystemEvent, kind_of
from penstock.wire.layout import (
    CELL_FIELDS,
    FLAG_AS_OF_EVENT,
    FLAG_LONG,
    FLAG_SNAPSHOT,
    FLAG_TXN,
    INDEX,
    OPERATION_CODES,
    Stream,
    tag,
    text_field,
    varint,
)

_hash = xxhash.xxh3_64_intdigest


class Encoded:
    """Encoded events, one after the other. Not to be changed."""

    __slots__ = ("ends", "index", "payload", "streams")

    def __init__(
        self, payload: bytes | memoryview, index: NDArray[np.void], streams: Sequence[Stream]
    ) -> None:
        self.payload = payload
        """Their messages."""
        self.index = index
        """INDEX: checks and lengths among others."""
        self.streams = streams
        self.ends: NDArray[np.int64] = index["length"].cumsum(dtype=np.int64)
        """Where each message ends in `payload`."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def bytes(self) -> int:
        """What messages and index take up."""
        return len(self.payload) + self.index.nbytes

    @property
    def checks(self) -> NDArray[np.uint64]:
        """Of each, the XXH3-64 of its message: its content hash."""
        return self.index["check"]

    def cut(self, start: int, stop: int) -> "Encoded":
        """Those from number `start` up to, but without, `stop`: a view, which keeps all alive."""
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop else 0
        payload = memoryview(self.payload)[first:last]
        return Encoded(payload, self.index[start:stop], self.streams[start:stop])

    def owned(self) -> "Encoded":
        """The same, as bytes of its own."""
        return Encoded(bytes(self.payload), self.index.copy(), self.streams)


NOTHING: Final = Encoded(b"", np.empty(0, INDEX), ())


def joined(several: Sequence[Encoded]) -> Encoded:
    """One after the other; none are NOTHING."""
    several = [one for one in several if len(one)]
    if len(several) < 2:
        return several[0] if several else NOTHING
    return Encoded(
        b"".join([one.payload for one in several]),
        np.concatenate([one.index for one in several]),
        [stream for one in several for stream in one.streams],
    )


class EncodedCommits(NamedTuple):
    """Commits of one source, one after the other; or a part of one commit."""

    source: str
    position: str | None
    """After the last commit; None for a part that does not end its commit."""
    events: Encoded
    rows: list[int]
    """How many events each commit has. Heartbeats, which have none, are left out."""
    last_timestamp: int
    """Of the last event; 0 without one."""

    @property
    def digest(self) -> int:
        """The sum of all checks, modulo 2**64."""
        return int(self.events.checks.sum())


class EncodedEvent(Struct, frozen=True, gc=False):
    """One event as the log stores it, before it has a place."""

    stream: Stream
    message: bytes
    index: bytes

    @property
    def check(self) -> int:
        """XXH3-64 of `message`: its content hash."""
        return int.from_bytes(self.index[:8], "little")


class _Shared(NamedTuple):
    """What the events of one stream with one operation have in common."""

    stream: Stream
    prefix: bytes
    """The leading fields of the message."""
    row: bytes
    """_SHARED."""
    key_seed: int
    """What tells this stream's keys from another's in the key hash."""


_SHARED = np.dtype([("head", "<u4"), ("operation", "u1"), ("kind", "u1"), ("flags", "<u2")])
_SHARED_PACK = struct.Struct("<IBBH")

_ENDING = np.dtype(
    [
        *(("timestamp", "<i8"), ("txn_number", "<i8"), ("t", "<u4"), ("i", "<u4")),
        *(("schema_version", "<u8"), ("flags", "<u2")),
    ]
)
_ENDING_PACK = struct.Struct("<qqIIQH")
assert _SHARED_PACK.size == _SHARED.itemsize
assert _ENDING_PACK.size == _ENDING.itemsize

_HEADS_MAX: Final = 2048


def _heads(number: int) -> list[bytes]:
    """Tag and length of a length-delimited field, by length; nothing at 0, which is not written."""
    return [b"", *(tag(number, 2) + varint(length) for length in range(1, _HEADS_MAX))]


_CELL_HEADS = tuple(_heads(number) for number in CELL_FIELDS)
_CELL_TAGS = tuple(tag(number, 2) for number in CELL_FIELDS)
_HEAD_BYTES_MIN = np.array([[len(tag) + 1] for tag in _CELL_TAGS], np.uint32)
_LENGTH_GROWS: Final = (1 << 7, 1 << 14, 1 << 21, 1 << 28)
"""The lengths from which on their varint takes another byte."""
_TIMESTAMP = tag(9, 0)
_TXN_NUMBER = tag(11, 0)
_SCHEMA_VERSION = tag(17, 0)
_LONG = b'{"$numberLong"'
_DOLLAR = ord("$")

# The order in which `encode` takes the fields of an event.
_COMMON = (
    *("event_id", "source", "database", "tenant", "collection"),
    *("cluster_time", "timestamp", "position", "schema_version", "transaction", "origin"),
)
_CHANGED = (
    *("document_id", "key", "operation", "full_document", "full_document_before_change"),
    *("update_description", "disambiguated_paths", "txn_number"),
    *("snapshot", "unchanged", "full_document_as_of_event"),
)
_CONTROL = ("operation", "description")
assert ChangeEvent.__struct_fields__ == (*_COMMON, *_CHANGED)
assert SchemaEvent.__struct_fields__ == SystemEvent.__struct_fields__ == (*_COMMON, *_CONTROL)


@lru_cache(maxsize=4096)
def _shared(
    names: tuple[str, str, str, str], operation: str, kind: int, snapshot: bool, as_of_event: bool
) -> _Shared:
    stream = Stream(*names)
    prefix = b"".join(
        (
            text_field(12, stream.source),
            text_field(25, stream.database),
            text_field(2, stream.tenant),
            text_field(3, stream.collection),
            text_field(5, operation),
            tag(22, 0) + varint(kind) if kind else b"",
            tag(18, 0) + b"\1" if snapshot else b"",
            tag(23, 0) + b"\1" if as_of_event else b"",
        )
    )
    code = OPERATION_CODES[operation] if kind == 0 else 0
    flags = (FLAG_SNAPSHOT if snapshot else 0) | (FLAG_AS_OF_EVENT if as_of_event else 0)
    row = _SHARED_PACK.pack(len(prefix), code, kind, flags)
    return _Shared(stream, prefix, row, _key_seed(stream))


def _key_seed(stream: Stream) -> int:
    return _hash(msgspec.json.encode(stream))


def key_hash(stream: Stream, key: bytes) -> int:
    """What the index has of a key: equal where stream and key are."""
    return _hash(key, _key_seed(stream))


@lru_cache(maxsize=256)
def _time_head(t: int, width: int) -> bytes:
    """The cluster time field up to its counter, which takes `width` bytes."""
    inner = tag(1, 0) + varint(t) + tag(2, 0)
    return tag(8, 2) + varint(len(inner) + width) + inner


def _endings(
    times: Sequence[ClusterTime],
    timestamps: Sequence[int],
    versions: Sequence[int],
    txn_numbers: Sequence[int | None],
) -> tuple[list[bytes], NDArray[np.void]]:
    """Of each event the fields after its last cell, and _ENDING; neighbours often share both."""
    fields: list[bytes] = []
    rows: list[bytes] = []
    # Timestamps first: they are the cheapest to compare, and nearly always say it.
    before: object = None
    field = row = b""
    for one in zip(timestamps, versions, txn_numbers, times, strict=True):
        if one != before:
            before = one
            timestamp, version, txn_number, time = one
            t, i = time.t, time.i
            counter = varint(i)
            field = b"".join((_time_head(t, len(counter)), counter, _TIMESTAMP, varint(timestamp)))
            flags = 0
            if txn_number is not None:
                flags = FLAG_TXN
                field += _TXN_NUMBER + varint(txn_number)
            if version:
                field += _SCHEMA_VERSION + varint(version)
            row = _ENDING_PACK.pack(timestamp, txn_number or 0, t, i, version, flags)
        fields.append(field)
        rows.append(row)
    return fields, np.frombuffer(b"".join(rows), _ENDING)


def _as_change(event: SchemaEvent | SystemEvent) -> tuple[Any, ...]:
    """The fields of a control event, in the places of a change's."""
    *common, operation, description = astuple(event)
    return (*common, "", b"", operation, description, None, None, None, None, False, (), False)


def _names(unchanged: tuple[str, ...]) -> bytes:
    """A repeated string field, whose elements are written even when they are empty."""
    names = [name.encode() for name in unchanged]
    return b"".join([tag(19, 2) + varint(len(name)) + name for name in names])


def _cells(columns: Sequence[Sequence[Raw | bytes | None]]) -> tuple[list[Any], NDArray[np.uint32]]:
    """The columns that spell the cells out, tags and lengths among them; and the cells' lengths.

    A cell that is empty or None is not written.
    """
    spelt: list[Any] = []
    sizes = np.zeros((len(columns), len(columns[0])), np.uint32)
    for number, column in enumerate(columns):
        if not any(column):
            continue
        values = [value or b"" for value in column] if None in column else column
        lengths = list(map(len, values))  # type: ignore[arg-type]
        sizes[number] = lengths
        heads, field = _CELL_HEADS[number], _CELL_TAGS[number]
        if max(lengths) < _HEADS_MAX:
            spelt.append([heads[length] for length in lengths])
        else:
            spelt.append(
                [
                    heads[length] if length < _HEADS_MAX else field + varint(length)
                    for length in lengths
                ]
            )
        spelt.append(values)
    return spelt, sizes


def _places(head: NDArray[np.uint32], sizes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Where each cell begins in its message, which has `head` bytes before the first."""
    longest = int(sizes.max())
    before = (sizes > 0) * _HEAD_BYTES_MIN
    for length in _LENGTH_GROWS:
        if length <= longest:
            before += sizes >= length
    ends = (before + sizes).cumsum(axis=0, dtype=np.uint32)
    return ends - sizes + head


def _index(
    shared: NDArray[np.void], endings: NDArray[np.void], sizes: NDArray[np.uint32]
) -> NDArray[np.void]:
    """The columns of INDEX that are not taken from messages, keys and names."""
    index = np.empty(len(shared), INDEX)
    for name in ("head", "operation", "kind"):
        index[name] = shared[name]
    for name in ("timestamp", "txn_number", "t", "i", "schema_version"):
        index[name] = endings[name]
    index["flags"] = shared["flags"] | endings["flags"]
    index["cells"][:, :, 0] = _places(shared["head"], sizes).T
    index["cells"][:, :, 1] = sizes.T
    return index


def encode(events: Sequence[AnyEvent]) -> Encoded:
    """Encode events: of each its protobuf bytes, and the index that points into them.

    Raises UnicodeEncodeError for text with a lone surrogate, which has no encoding, and
    struct.error, OverflowError or ValueError for a number that its field cannot hold.
    """
    if not events:
        return NOTHING
    kinds = [0 if isinstance(event, ChangeEvent) else kind_of(event).value for event in events]
    rows = [
        astuple(event) if isinstance(event, ChangeEvent) else _as_change(event) for event in events
    ]
    # What a subclass adds comes last, and is not stored.
    columns = tuple(zip(*rows, strict=False))[: len(_COMMON) + len(_CHANGED)]
    # fmt: off
    (
        ids, sources, databases, tenants, collections,
        times, timestamps, positions, versions, transactions, origins,
        names, keys, operations, documents, documents_before, updates, paths, txn_numbers,
        snapshots, unchanged, as_of_event,
    ) = columns
    # fmt: on
    streams = zip(sources, databases, tenants, collections, strict=True)
    shared = map(_shared, streams, operations, kinds, snapshots, as_of_event)
    filed, prefixes, shared_rows, seeds = zip(*shared, strict=True)
    endings, ending_rows = _endings(times, timestamps, versions, txn_numbers)
    spelt, sizes = _cells(
        (
            [text.encode() for text in ids],
            [text.encode() for text in names],
            keys,
            documents,
            documents_before,
            updates,
            [text.encode() for text in positions],
            [text.encode() if text else b"" for text in transactions],
            paths,
            origins,
        )
    )
    missing = [[_names(fields) for fields in unchanged]] if any(unchanged) else []
    messages = list(map(b"".join, zip(prefixes, *spelt, *missing, endings, strict=True)))

    payload = b"".join(messages)
    index = _index(np.frombuffer(b"".join(shared_rows), _SHARED), ending_rows, sizes)
    index["check"] = list(map(_hash, messages))
    index["length"] = list(map(len, messages))
    index["key_hash"] = list(map(_hash, keys, seeds))
    if any(kinds):
        index["key_hash"][index["kind"] != 0] = 0
    index["unchanged"] = list(map(len, missing[0])) if missing else 0
    # A lone `$` is found far faster than the whole pattern, and `find` faster than `in`.
    wrapped = [_DOLLAR in message and message.find(_LONG) >= 0 for message in messages]
    if any(wrapped):
        index["flags"] |= np.where(wrapped, FLAG_LONG, 0).astype(np.uint16)
    return Encoded(payload, index, filed)


def encode_event(event: AnyEvent) -> EncodedEvent:
    """Encode one event, as `encode` does; `encode` is far faster at many."""
    one = encode((event,))
    return EncodedEvent(one.streams[0], bytes(one.payload), one.index.tobytes())


def encode_commit(
    source: str, events: Sequence[AnyEvent], *, position: str | None
) -> EncodedCommits:
    """Encode the events of one commit, or of a part of one: `position` None."""
    return EncodedCommits(
        source=source,
        position=position,
        events=encode(events),
        rows=[len(events)] if events else [],
        last_timestamp=events[-1].timestamp if events else 0,
    )
