"""The block: the one layout in which entries are stored and from which every reader is served.

A block is 1..N entries, about 64 KiB. An event is encoded once, when the log takes it, to the bytes
of the protobuf message `penstock.v1.Event`; each server takes from the block what it needs: gRPC
slices, JSON splices, Flight gathers columns. Nothing stored says sequence, commit or progress: the
log's key and the header say where a block stands, and `Block.messages` appends them when sending.

    header   version, flags, counts, first commit, ingest time, section starts   (HEADER)
    commits  rows and digest of each commit that the block touches               (COMMIT)
    places   per entry: start, commit, ordinal, stream, whether it ends a commit  (PLACE)
    index    per entry: hashes, times, operation, and where each cell lies        (INDEX)
    streams  JSON: the distinct [source, database, tenant, collection]
    payload  the entries' protobuf bytes, one after the other

All numbers are little-endian. A commit may lie in several blocks, and a block may hold many.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from msgspec import Raw
from numpy.typing import NDArray

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import LogCorruptError, LogFormatError
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
from penstock.progress import LAYOUT as PROGRESS_LAYOUT
from penstock.progress import VERSION as PROGRESS_VERSION
from penstock.progress import Progress

BLOCK_BYTES: Final = 64 << 10
"""A block is closed once its entries reach this; a single larger entry is a block of its own."""

_VERSION: Final = 1
HEADER = struct.Struct("<BBHIIIQqII")
COMMIT = np.dtype([("rows", "<u8"), ("digest", "<u8")])
PLACE = np.dtype(
    [("start", "<u4"), ("commit", "<u4"), ("ordinal", "<u4"), ("stream", "<u2"), ("ends", "<u2")]
)
CELLS: Final = (
    "event_id",
    "document_id",
    "key",
    "full_document",
    "full_document_before_change",
    "update_description",
    "position",
    "transaction",
)
INDEX = np.dtype(
    [
        ("check", "<u8"),
        ("key_hash", "<u8"),
        ("timestamp", "<i8"),
        ("txn_number", "<i8"),
        ("length", "<u4"),
        ("t", "<u4"),
        ("i", "<u4"),
        ("schema_version", "<u4"),
        ("operation", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("cells", "<u4", (len(CELLS), 2)),
    ]
)
_INDEX_PACK = struct.Struct(f"<QQqqIIIIBBH{2 * len(CELLS)}I")
assert _INDEX_PACK.size == INDEX.itemsize  # noqa: S101 - a layout that disagrees must not load

_FLAG_SNAPSHOT = 1
_FLAG_AS_OF_EVENT = 2
_FLAG_TXN = 4
_FLAG_LISTS = 8  # has `unchanged` or `disambiguated_paths`
_FLAG_LONG = 16  # holds a wrapped int64, which the seed's protocol writes plain

_OPERATIONS: Final = ("", *(operation.value for operation in Operation))
_OPERATION_CODES = {operation: code for code, operation in enumerate(_OPERATIONS) if operation}
_U64 = (1 << 64) - 1

ARROW_SCHEMA: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("commit", pa.int64()),
        ("ordinal", pa.int32()),
        ("commit_rows", pa.int64()),
        ("commit_digest", pa.uint64()),
        ("check", pa.uint64()),
        ("ends_commit", pa.bool_()),
        ("kind", pa.int8()),
        ("operation_type", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("tenant", pa.string()),
        ("collection", pa.string()),
        ("event_id", pa.string()),
        ("document_id", pa.string()),
        ("key", pa.string()),
        ("key_hash", pa.uint64()),
        ("full_document", pa.string()),
        ("full_document_before_change", pa.string()),
        ("update_description", pa.string()),
        ("position", pa.string()),
        ("transaction", pa.string()),
        ("timestamp", pa.int64()),
        ("cluster_time_t", pa.int64()),
        ("cluster_time_i", pa.int64()),
        ("txn_number", pa.int64()),
        ("schema_version", pa.int64()),
        ("snapshot", pa.bool_()),
        ("full_document_as_of_event", pa.bool_()),
        ("unchanged", pa.list_(pa.string())),
        ("ingested_at", pa.int64()),
    ]
)
"""The columns of an entry, for Flight and Spark. Documents are JSON text; times are Unix ms."""


class Stream(NamedTuple):
    """Whose events these are; filters decide once a stream, not once an entry."""

    source: str
    database: str
    tenant: str
    collection: str


class EncodedEvent(NamedTuple):
    """An event as the log stores it, before it has a place."""

    stream: Stream
    message: bytes
    index: bytes
    check: int


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


# --- encoding ---------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    """A protobuf varint; a negative number is its 64-bit two's complement."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


_HEADS_MAX = 2048


def _heads(number: int) -> list[bytes]:
    tag = _tag(number, 2)
    return [tag + _varint(length) for length in range(_HEADS_MAX)]


_CELL_FIELDS: Final = (1, 4, 26, 6, 16, 7, 20, 27)  # the numbers of CELLS
_CELL_HEADS: Final = tuple((_tag(number, 2), _heads(number)) for number in _CELL_FIELDS)


def _text(number: int, value: str) -> bytes:
    data = value.encode()
    return _tag(number, 2) + _varint(len(data)) + data if data else b""


@lru_cache(maxsize=4096)
def _prefix(
    stream: Stream, operation: str, kind: int, snapshot: bool, as_of: bool
) -> tuple[bytes, bytes]:
    """The fields that many events share, and the stream's salt for the key hash."""
    message = b"".join(
        (
            _text(12, stream.source),
            _text(25, stream.database),
            _text(2, stream.tenant),
            _text(3, stream.collection),
            _text(5, operation),
            _tag(22, 0) + _varint(kind) if kind else b"",
            _tag(18, 0) + b"\1" if snapshot else b"",
            _tag(23, 0) + b"\1" if as_of else b"",
        )
    )
    return message, "\0".join((*stream, "")).encode()


@lru_cache(maxsize=1024)
def _times(t: int, i: int, timestamp: int) -> bytes:
    inner = (_tag(1, 0) + _varint(t) if t else b"") + (_tag(2, 0) + _varint(i) if i else b"")
    head = _tag(8, 2) + _varint(len(inner)) + inner
    return head + _tag(9, 0) + _varint(timestamp) if timestamp else head


def encode_event(event: AnyEvent) -> EncodedEvent:
    """Encode one event: its protobuf bytes, and the index that points into them."""
    stream = Stream(event.source, event.database, event.tenant, event.collection)
    time = event.cluster_time
    if isinstance(event, ChangeEvent):
        operation: str = event.operation.value
        kind, flags = 0, 0
        prefix, salt = _prefix(
            stream, operation, 0, event.snapshot, event.full_document_as_of_event
        )
        full = event.full_document
        before = event.full_document_before_change
        update = event.update_description
        key: Raw | bytes = event.key
        document_id = event.document_id.encode()
        key_hash = xxhash.xxh3_64_intdigest(salt + bytes(key))
        tail = _times(time.t, time.i, event.timestamp)
        txn = 0
        if event.txn_number is not None:
            txn = event.txn_number
            flags |= _FLAG_TXN
            tail += b"\x58" + _varint(txn)
        if event.unchanged or event.disambiguated_paths is not None:
            flags |= _FLAG_LISTS
            tail += b"".join(_text(19, name) for name in event.unchanged)
            if event.disambiguated_paths is not None:
                paths = bytes(event.disambiguated_paths)
                tail += _tag(24, 2) + _varint(len(paths)) + paths
        if event.snapshot:
            flags |= _FLAG_SNAPSHOT
        if event.full_document_as_of_event:
            flags |= _FLAG_AS_OF_EVENT
    else:
        operation = event.operation
        kind, flags, txn, key_hash = int(kind_of(event)), 0, 0, 0
        prefix, _ = _prefix(stream, operation, kind, False, False)
        full, before, update, key, document_id = event.description, None, None, b"", b""
        tail = _times(time.t, time.i, event.timestamp)
    if event.schema_version:
        tail += _tag(17, 0) + _varint(event.schema_version)

    parts: list[Any] = [prefix]
    cells: list[int] = []
    at = len(prefix)
    values = (
        event.event_id.encode(),
        document_id,
        key,
        full,
        before,
        update,
        event.position.encode(),
        event.transaction.encode() if event.transaction else b"",
    )
    for (tag, heads), value in zip(_CELL_HEADS, values, strict=True):
        data = value if type(value) is bytes else b"" if value is None else bytes(value)
        length = len(data)
        if length:
            head = heads[length] if length < _HEADS_MAX else tag + _varint(length)
            parts.append(head)
            parts.append(data)
            at += len(head)
        cells.append(at)
        cells.append(length)
        at += length
    parts.append(tail)
    message = b"".join(parts)
    if b'{"$numberLong"' in message:
        flags |= _FLAG_LONG
    check = xxhash.xxh3_64_intdigest(message)
    index = _INDEX_PACK.pack(
        check,
        key_hash,
        event.timestamp,
        txn,
        len(message),
        time.t,
        time.i,
        event.schema_version,
        _OPERATION_CODES.get(operation, 0) if kind == 0 else 0,
        kind,
        flags,
        *cells,
    )
    return EncodedEvent(stream, message, index, check)


def encode_commit(
    source: str, events: Sequence[AnyEvent], *, position: str | None
) -> EncodedCommit:
    """Encode the events of a commit (or of a fragment: `position` None) with their digest."""
    encoded = [encode_event(event) for event in events]
    return EncodedCommit(
        source=source,
        position=position,
        events=encoded,
        digest=sum(event.check for event in encoded) & _U64,
        bytes=sum(len(event.message) + len(event.index) for event in encoded),
        last_timestamp=events[-1].timestamp if events else 0,
    )


class Placed(NamedTuple):
    """An encoded event with its place, ready for a block."""

    event: EncodedEvent
    commit: int
    ordinal: int
    ends_commit: bool


class CommitSummary(NamedTuple):
    """What proves a commit complete: how many entries it has, and the sum of their checks."""

    rows: int
    digest: int


def build_block(
    placed: Sequence[Placed], commits: Sequence[CommitSummary], *, ingested_at: int
) -> bytes:
    """One block of consecutive entries. `commits` lists the commits they belong to, in order.

    Commit numbers inside are relative to the first entry's, which the header keeps.
    """
    first_commit = placed[0].commit
    streams: dict[Stream, int] = {}
    starts = accumulate((len(one.event.message) for one in placed), initial=0)
    places = b"".join(
        _PLACE_PACK(
            start,
            one.commit - first_commit,
            one.ordinal,
            streams.setdefault(one.event.stream, len(streams)),
            one.ends_commit,
        )
        for one, start in zip(placed, starts, strict=False)
    )
    stream_table = msgspec.json.encode(list(streams))
    commit_table = b"".join(_COMMIT_PACK(summary.rows, summary.digest) for summary in commits)
    header = HEADER.pack(
        _VERSION,
        0,
        0,
        len(placed),
        len(commits),
        len(stream_table),
        first_commit,
        ingested_at,
        0,
        0,
    )
    return b"".join(
        (
            header,
            commit_table,
            places,
            *(one.event.index for one in placed),
            stream_table,
            *(one.event.message for one in placed),
        )
    )


_PLACE_PACK = struct.Struct("<IIIHH").pack
_COMMIT_PACK = struct.Struct("<QQ").pack


# --- reading ----------------------------------------------------------------------------------


class Block:
    """A view of one stored block, standing at its place in the log.

    Entries are addressed by position `start <= i < stop` inside the block; a narrowed block shares
    the bytes. Immutable: any number of readers and threads may share it.
    """

    def __init__(
        self,
        data: bytes,
        *,
        log_id: int,
        first_sequence: int,
        extent: tuple[int, CommitSummary, int] | None = None,
    ) -> None:
        """`first_sequence` is that of entry 0. `extent` = (commit, summary, ingest time) for a
        block of a staged commit, whose own header knows none of them.

        Raises LogFormatError for a newer layout, LogCorruptError for one that cannot be.
        """
        try:
            version, _, _, count, commits, stream_bytes, first_commit, ingested_at, _, _ = (
                HEADER.unpack_from(data)
            )
        except struct.error as error:
            raise LogCorruptError(f"the block before {first_sequence} is cut short") from error
        if version != _VERSION:
            raise LogFormatError(
                f"the block at {first_sequence} has layout {version}; this Penstock reads "
                f"{_VERSION}. Nothing was changed; use the version that wrote it."
            )
        self.data = data
        self.log_id = log_id
        self.first_sequence = first_sequence
        self.start = 0
        self.stop: int = count
        at = HEADER.size
        self._commits = np.frombuffer(data, COMMIT, commits, at)
        at += COMMIT.itemsize * commits
        self._places = np.frombuffer(data, PLACE, count, at)
        at += PLACE.itemsize * count
        self._index = np.frombuffer(data, INDEX, count, at)
        at += INDEX.itemsize * count
        self._stream_table = (at, at + stream_bytes)
        self.payload = at + stream_bytes
        self.first_commit: int = first_commit
        self.ingested_at: int = ingested_at
        if extent is not None:
            self.first_commit, summary, self.ingested_at = extent
            self._commits = np.array([tuple(summary)], COMMIT)

    def narrow(self, *, after: int, until: int | None = None) -> "Block":
        """This block with only the entries in (`after`, `until`]."""
        narrowed = object.__new__(Block)
        narrowed.__dict__.update(self.__dict__)
        narrowed.start = max(self.start, after + 1 - self.first_sequence)
        if until is not None:
            narrowed.stop = min(self.stop, until + 1 - self.first_sequence)
        return narrowed

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    @cached_property
    def streams(self) -> list[Stream]:
        start, stop = self._stream_table
        return [Stream(*row) for row in msgspec.json.decode(self.data[start:stop])]

    @property
    def last_sequence(self) -> int:
        """Sequence of the last entry in view."""
        return self.first_sequence + self.stop - 1

    @property
    def last_commit(self) -> int:
        return self.first_commit + int(self._places["commit"][self.stop - 1])

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def ends_commit(self, i: int) -> bool:
        return bool(self._places["ends"][i])

    def check(self, i: int) -> int:
        """The content hash of an entry (64 bits)."""
        return int(self._index["check"][i])

    def key_hash(self, i: int) -> int:
        return int(self._index["key_hash"][i])

    def commit(self, i: int) -> int:
        return self.first_commit + int(self._places["commit"][i])

    def ordinal(self, i: int) -> int:
        return int(self._places["ordinal"][i])

    def stream(self, i: int) -> Stream:
        return self.streams[int(self._places["stream"][i])]

    def stream_numbers(self) -> NDArray[np.uint16]:
        """Per entry of the whole block, the index into `streams`."""
        return self._places["stream"]

    def kinds(self) -> NDArray[np.uint8]:
        return self._index["kind"]

    def kind(self, i: int) -> Kind:
        return Kind(int(self._index["kind"][i]))

    def timestamp(self, i: int) -> int:
        return int(self._index["timestamp"][i])

    def progress(self, i: int) -> str:
        """The marker to save once entry `i` is processed."""
        return str(Progress(self.log_id, self.first_sequence + i, self.check(i) & 0xFFFFFFFF))

    def stored(self, i: int) -> bytes:
        """The entry's protobuf bytes as stored: without sequence, commit and progress."""
        start = self.payload + int(self._places["start"][i])
        return self.data[start : start + int(self._index["length"][i])]

    def message(self, i: int) -> bytes:
        """The complete `penstock.v1.Event` bytes of entry `i`, ready to send."""
        return self.stored(i) + self._suffixes[i].tobytes()

    def messages(self, entries: Iterable[int]) -> Iterator[bytes]:
        """`message` of many entries, in the order given."""
        data, payload, suffixes = self.data, self.payload, self._suffixes
        starts = (self._places["start"] + payload).tolist()
        lengths = self._index["length"].tolist()
        raw, width = suffixes.tobytes(), suffixes.shape[1]
        for i in entries:
            start = starts[i]
            yield data[start : start + lengths[i]] + raw[i * width : (i + 1) * width]

    def seed_message(self, i: int) -> bytes:
        """The puller's dialect: the same bytes, but int64 values plain as relaxed JSON has them."""
        message = self.message(i)
        if not int(self._index["flags"][i]) & _FLAG_LONG:
            return message
        event = pb.Event.FromString(message)
        event.full_document = relaxed(event.full_document)
        event.update_description = relaxed(event.update_description)
        event.full_document_before_change = relaxed(event.full_document_before_change)
        return event.SerializeToString()

    @cached_property
    def _suffixes(self) -> NDArray[np.uint8]:
        """Per entry, the protobuf fields that say where it stands; all of one width.

        Varints are padded to the widest of the block, which protobuf allows, so that the whole
        table is a few numpy operations whoever reads it.
        """
        count = len(self._places)
        sequences = np.arange(count, dtype=np.uint64) + np.uint64(self.first_sequence)
        commits = self._places["commit"].astype(np.uint64) + np.uint64(self.first_commit)
        summaries = self._commits[self._places["commit"]]
        markers = _progress_text(self.log_id, sequences, self._index["check"])
        ingested = np.full(count, self.ingested_at, np.uint64)
        columns = [
            *_varint_columns(13, commits),
            *_varint_columns(14, self._places["ordinal"].astype(np.uint64)),
            *_varint_columns(15, summaries["rows"]),
            _constant(_tag(28, 1), count),
            np.ascontiguousarray(summaries["digest"]).view(np.uint8).reshape(count, 8),
            *_varint_columns(21, ingested),
            *_varint_columns(29, self._places["ends"].astype(np.uint64)),
            *_varint_columns(30, sequences),
            _constant(_tag(10, 2) + bytes([markers.shape[1]]), count),
            markers,
        ]
        return np.concatenate(columns, axis=1)

    def entries(self) -> Iterator[Entry]:
        """The entries in view, decoded."""
        for i in range(self.start, self.stop):
            yield decode_message(self.message(i))

    def to_arrow(self, selected: NDArray[np.intp] | None = None) -> pa.RecordBatch:
        """The entries in view (or of them the `selected` positions, ascending) as ARROW_SCHEMA.

        Cells are gathered by Arrow over the block's own bytes; no entry is parsed.
        """
        rows = np.arange(self.start, self.stop) if selected is None else selected
        return _to_arrow(self, rows)


def _varint_columns(number: int, values: NDArray[np.uint64]) -> list[NDArray[np.uint8]]:
    tag = _constant(_tag(number, 0), len(values))
    width = max(1, (int(values.max(initial=0)).bit_length() + 6) // 7)
    out = np.empty((len(values), width), np.uint8)
    for place in range(width):
        byte = (values >> np.uint64(7 * place)) & np.uint64(0x7F)
        out[:, place] = byte | np.uint64(0x80 if place < width - 1 else 0)
    return [tag, out]


def _constant(data: bytes, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(data, np.uint8), (count, len(data)))


_ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)


def _progress_text(
    log_id: int, sequences: NDArray[np.uint64], checks: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """The text of many markers at once: what `str(Progress(...))` says, as bytes."""
    count = len(sequences)
    packed = np.empty((count, PROGRESS_LAYOUT.size), np.uint8)
    packed[:, :9] = np.frombuffer(struct.pack(">BQ", PROGRESS_VERSION, log_id), np.uint8)
    packed[:, 9:17] = sequences.astype(">u8").view(np.uint8).reshape(count, 8)
    low = (checks & np.uint64(0xFFFFFFFF)).astype(">u4")
    packed[:, 17:] = low.view(np.uint8).reshape(count, 4)
    three = packed.reshape(count, -1, 3).astype(np.uint32)
    bits = three[:, :, 0] << 16 | three[:, :, 1] << 8 | three[:, :, 2]
    sextets = np.stack([bits >> shift & 63 for shift in (18, 12, 6, 0)], axis=2)
    return _ALPHABET[sextets.reshape(count, -1)]


def _gather(block: Block, rows: NDArray[np.intp], cell: int) -> pa.Array:
    """One variable-length column: a string array over the block's bytes, then `take`.

    Its offsets alternate between the bytes before a cell and the cell, so that cell k of the rows
    is element 2k + 1; an empty cell is null.
    """
    index = block._index[rows]
    starts = block._places["start"][rows] + index["cells"][:, cell, 0] + block.payload
    lengths = index["cells"][:, cell, 1]
    offsets = np.empty(2 * len(rows) + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = starts + lengths
    whole = pa.StringArray.from_buffers(
        2 * len(rows), pa.py_buffer(offsets), pa.py_buffer(block.data)
    )
    wanted = pa.array(np.arange(1, 2 * len(rows), 2), mask=lengths == 0)
    return whole.take(wanted)


def _to_arrow(block: Block, rows: NDArray[np.intp]) -> pa.RecordBatch:
    places, index = block._places[rows], block._index[rows]
    flags = index["flags"]
    summaries = block._commits[places["commit"]]
    streams = pa.array(places["stream"].astype(np.int32))
    operations = pa.array(_OPERATIONS).take(pa.array(index["operation"].astype(np.int32)))
    unchanged: list[list[str]] = [[]] * len(rows)
    control = np.flatnonzero(index["kind"] != 0)
    lists = np.flatnonzero(flags & _FLAG_LISTS)
    if len(control):
        words = operations.to_pylist()
        for row in control.tolist():
            words[row] = pb.Event.FromString(block.stored(int(rows[row]))).operation_type
        operations = pa.array(words, pa.string())
    for row in lists.tolist():
        unchanged[row] = list(pb.Event.FromString(block.stored(int(rows[row]))).unchanged)
    cells = {name: _gather(block, rows, number) for number, name in enumerate(CELLS)}
    columns: dict[str, Any] = {
        "sequence": rows + block.first_sequence,
        "commit": places["commit"].astype(np.int64) + block.first_commit,
        "ordinal": places["ordinal"].astype(np.int32),
        "commit_rows": summaries["rows"].astype(np.int64),
        "commit_digest": summaries["digest"],
        "check": index["check"],
        "ends_commit": places["ends"] != 0,
        "kind": index["kind"].astype(np.int8),
        "operation_type": operations,
        "key_hash": index["key_hash"],
        "timestamp": index["timestamp"],
        "cluster_time_t": index["t"].astype(np.int64),
        "cluster_time_i": index["i"].astype(np.int64),
        "txn_number": pa.array(index["txn_number"], mask=(flags & _FLAG_TXN) == 0),
        "schema_version": index["schema_version"].astype(np.int64),
        "snapshot": (flags & _FLAG_SNAPSHOT) != 0,
        "full_document_as_of_event": (flags & _FLAG_AS_OF_EVENT) != 0,
        "unchanged": pa.array(unchanged, pa.list_(pa.string())),
        "ingested_at": np.full(len(rows), block.ingested_at, np.int64),
        **cells,
    }
    for number, name in enumerate(Stream._fields):
        table = pa.array([stream[number] for stream in block.streams], pa.string())
        columns[name] = table.take(streams)
    return pa.RecordBatch.from_arrays(
        [_as_array(columns[name]) for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA
    )


def _as_array(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)


# --- messages ---------------------------------------------------------------------------------


def heartbeat_message(progress: str) -> bytes:
    """An Event with nothing but progress."""
    return _text(10, progress)


def batch_message(messages: Sequence[bytes], progress: str) -> bytes:
    """An EventBatch of ready Event bytes. `progress` is that of the whole batch."""
    parts: list[bytes] = []
    for message in messages:
        parts.append(b"\x0a" + _varint(len(message)))
        parts.append(message)
    parts.append(_text(2, progress))
    return b"".join(parts)


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
        event=_event_of(event),
    )


def _event_of(event: pb.Event) -> AnyEvent:
    common: dict[str, Any] = {
        "event_id": event.id,
        "source": event.source,
        "database": event.database,
        "tenant": event.tenant,
        "collection": event.collection,
        "cluster_time": ClusterTime(event.cluster_time.t, event.cluster_time.i),
        "timestamp": event.timestamp,
        "position": event.position,
        "schema_version": event.schema_version,
        "transaction": event.transaction or None,
    }
    if event.kind == Kind.SCHEMA:
        return SchemaEvent(
            **common, operation=event.operation_type, description=Raw(event.full_document)
        )
    if event.kind in (Kind.GAP, Kind.SYSTEM):
        return SystemEvent(
            **common, operation=event.operation_type, description=Raw(event.full_document)
        )
    return ChangeEvent(
        **common,
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


def _raw(data: bytes) -> Raw | None:
    return Raw(data) if data else None


def to_json(entry: Entry, *, plain_numbers: bool = True) -> bytes:
    """One entry as JSON, in the seed's names; `plain_numbers` as its relaxed Extended JSON.

    Absent fields are left out, but `txnNumber` is null outside a transaction (P28).
    """
    event = entry.event
    body = {name: getattr(event, field) for field, name in _json_names(type(event))}
    fields = {
        name: value
        for name, value in body.items()
        if name == "txnNumber" or (value is not None and value not in ((), ""))
    }
    fields |= {
        "kind": kind_of(event).name.lower(),
        "sequence": entry.sequence,
        "commit": entry.commit,
        "ordinal": entry.ordinal,
        "commitRows": entry.commit_rows,
        "commitDigest": f"{entry.commit_digest:016x}",
        "endsCommit": entry.ends_commit,
        "ingestedAt": entry.ingested_at,
        "progress": entry.progress,
    }
    encoded = msgspec.json.encode(fields)
    return relaxed(encoded) if plain_numbers else encoded


@lru_cache(maxsize=8)
def _json_names(kind: type[AnyEvent]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
