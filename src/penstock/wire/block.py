"""A stored block, read: where it stands, and its entries as messages."""

import struct
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogCorruptError, LogFormatError
from penstock.event import Entry, Kind
from penstock.progress import Progress
from penstock.wire.build import CommitSummary
from penstock.wire.layout import (
    BEFORE,
    CELLS,
    COMMIT,
    COMMIT_PACK,
    FLAG_LONG,
    FLAG_SNAPSHOT,
    HEADER,
    HEADER_CHECKED,
    INDEX,
    INDEX_HEAD,
    INDEX_PACK,
    LAYOUT_VERSION,
    PLACE,
    PLACE_PACK,
    UNCHAINED,
    Stream,
    histories,
    history_after,
    tables_check,
    tag,
    text_field,
    varint,
)
from penstock.wire.messages import decode_message, plain_numbers


class Extent(NamedTuple):
    """What a block of a staged commit does not know of it."""

    commit: int
    summary: CommitSummary
    ingested_at: int
    before: int
    """The sum (see `wire.layout`) behind the commit before; of no meaning for layout UNCHAINED."""


class Outline(NamedTuple):
    """Facts of some entries, one array element each."""

    key_hash: NDArray[np.uint64]
    """Of stream and key: equal where both are, and once in 2**64 where they are not."""
    operation: NDArray[np.uint8]
    """A place in layout.OPERATIONS; 0 for a control event."""
    control: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    """A row of a snapshot."""
    document: NDArray[np.bool_]
    """Has a full document, though perhaps not all fields of it."""
    partial: NDArray[np.bool_]
    """Names fields that the full document lacks because they were not sent again."""
    before: NDArray[np.bool_]
    """Has the image before."""
    stream: NDArray[np.uint16]
    """A place in the block's `streams`."""
    key: NDArray[np.int64]
    """Where in the block's `data` the key starts and ends."""
    update: NDArray[np.int64]
    """Where the update's description does."""


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
        extent: Extent | None = None,
    ) -> None:
        """`first_sequence` is that of entry 0. `extent` says what the header of a block of a staged
        commit does not.

        Raises LogFormatError for a newer layout, LogCorruptError when the block is cut short or
        its header or tables were altered. Altered documents are found by
        `wire.verify_block`.
        """
        if data[:1] not in _VERSIONS:
            raise _unreadable(data, first_sequence)
        try:
            version, count, commits, stream_bytes, payload_bytes, first_commit, taken, check = (
                HEADER.unpack_from(data)
            )
            chained = version != UNCHAINED
            before = BEFORE.unpack_from(data, HEADER.size)[0] if chained else None
        except struct.error:
            raise _unreadable(data, first_sequence) from None
        self.data = data
        self.log_id = log_id
        self.first_sequence = first_sequence
        self.start = 0
        self.stop: int = count
        self._count: int = count
        self.first_commit: int = first_commit
        self.ingested_at: int = taken
        self._extent = None if extent is None else extent.summary
        self.before: int | None = before
        """The sum (see `wire.layout`) before entry 0; None for layout UNCHAINED."""
        self._commits_at = HEADER.size + (BEFORE.size if chained else 0)
        self._places_at = self._commits_at + COMMIT_PACK.size * commits
        self._index_at = self._places_at + PLACE_PACK.size * count
        self._streams_at = self._index_at + INDEX_PACK.size * count
        self.payload: int = self._streams_at + stream_bytes
        view = memoryview(data)
        if len(data) != self.payload + payload_bytes or check != tables_check(
            view[:HEADER_CHECKED], view[HEADER.size : self.payload]
        ):
            raise _unreadable(data, first_sequence)
        if extent is not None:
            self.first_commit, self.ingested_at = extent.commit, extent.ingested_at
            if before is not None:
                self.before = history_after(extent.before, commit=extent.commit, digest=before)

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

    # --- places ---------------------------------------------------------------------------------

    @cached_property
    def streams(self) -> list[Stream]:
        return _streams(self.data[self._streams_at : self.payload])

    @cached_property
    def summary_table(self) -> bytes:
        """Per commit that the block touches: its rows and digest (layout.COMMIT)."""
        if self._extent is not None:
            return COMMIT_PACK.pack(*self._extent)
        return self.data[self._commits_at : self._places_at]

    @property
    def summaries(self) -> NDArray[np.void]:
        """`summary_table` as an array, by commit number less `first_commit`."""
        return np.frombuffer(self.summary_table, COMMIT)

    @property
    def places_in_view(self) -> bytes:
        """Per entry in view: where it stands (layout.PLACE)."""
        start = self._places_at + self.start * PLACE_PACK.size
        return self.data[start : start + len(self) * PLACE_PACK.size]

    @property
    def index_in_view(self) -> bytes:
        """Per entry in view: what it holds (layout.INDEX)."""
        start = self._index_at + self.start * INDEX_PACK.size
        return self.data[start : start + len(self) * INDEX_PACK.size]

    @cached_property
    def places(self) -> NDArray[np.void]:
        """Per entry of the whole block: where it stands (layout.PLACE)."""
        return np.frombuffer(self.data, PLACE, self._count, self._places_at)

    @cached_property
    def index(self) -> NDArray[np.void]:
        """Per entry of the whole block: what it holds (layout.INDEX)."""
        return np.frombuffer(self.data, INDEX, self._count, self._index_at)

    def _place(self, i: int) -> tuple[int, int, int, int, int]:
        """Start, commit (from the first), ordinal, stream and whether it ends the commit."""
        place: tuple[int, int, int, int, int] = PLACE_PACK.unpack_from(
            self.data, self._places_at + i * PLACE_PACK.size
        )
        return place

    def _head(self, i: int) -> tuple[int, int]:
        """Check and length."""
        head: tuple[int, int] = INDEX_HEAD.unpack_from(
            self.data, self._index_at + i * INDEX_PACK.size
        )
        return head

    @property
    def last_sequence(self) -> int:
        """Sequence of the last entry in view."""
        return self.first_sequence + self.stop - 1

    @property
    def last_commit(self) -> int:
        return self.commit(self.stop - 1)

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def ends_commit(self, i: int) -> bool:
        return bool(self._place(i)[4])

    def check(self, i: int) -> int:
        """The content hash of an entry (64 bits)."""
        return self._head(i)[0]

    def key_hash(self, i: int) -> int:
        return int(self.index["key_hash"][i])

    def commit(self, i: int) -> int:
        return self.first_commit + self._place(i)[1]

    def ordinal(self, i: int) -> int:
        return self._place(i)[2]

    def stream(self, i: int) -> Stream:
        return self.streams[self._place(i)[3]]

    def stream_numbers(self) -> NDArray[np.uint16]:
        """Per entry of the whole block, the index into `streams`."""
        return self.places["stream"]

    def kinds(self) -> NDArray[np.uint8]:
        """Per entry of the whole block, its `Kind`."""
        return self.index["kind"]

    def kind(self, i: int) -> Kind:
        return Kind(int(self.index["kind"][i]))

    def timestamp(self, i: int) -> int:
        return int(self.index["timestamp"][i])

    @cached_property
    def _histories(self) -> list[int]:
        """Per entry of the whole block, the check that its marker has."""
        own = self.index["check"]
        if self.before is not None:
            commits = self.places["commit"].astype(np.int64) + self.first_commit
            own = histories(self.before, own, commits)
        found: list[int] = own.astype(np.uint32).tolist()
        return found

    def history(self, i: int) -> int:
        """The check that the marker of entry `i` has: 32 bits of all that the log tells up to it.

        Of the entry alone, where the block is of layout UNCHAINED.
        """
        return self._histories[i]

    def behind_commit(self, i: int, before: int) -> int | None:
        """The check of the place behind the commit of entry `i`, wherever that ends; `before` is
        that of the place before the commit. None where the block is of layout UNCHAINED."""
        if self.before is None:
            return None
        number = self._place(i)[1]
        _, digest = COMMIT_PACK.unpack_from(self.summary_table, number * COMMIT_PACK.size)
        return history_after(before, commit=self.first_commit + number, digest=digest)

    def place(self, i: int) -> Progress:
        """The place behind entry `i`, in view or not."""
        return Progress(self.log_id, self.first_sequence + i, self.history(i))

    def progress(self, i: int) -> str:
        """The marker to save once entry `i` is processed."""
        return str(self.place(i))

    def cell(self, i: int, name: str) -> bytes:
        """The bytes of the variable field `name` (one of layout.CELLS); empty if it is absent."""
        at = self._index_at + i * INDEX_PACK.size + _CELLS_AT[name]
        start, length = _CELL.unpack_from(self.data, at)
        start += self.payload + self._place(i)[0]
        return self.data[start : start + length]

    def outline(self, entries: Sequence[int]) -> "Outline":
        """What the index says of `entries`: enough to know which of them need decoding."""
        chosen = np.asarray(entries, np.intp)
        index, places = self.index[chosen], self.places[chosen]
        cells = index["cells"].astype(np.int64)
        cells[:, :, 0] += places["start"].astype(np.int64)[:, None] + self.payload
        lengths = cells[:, :, 1] != 0
        cells[:, :, 1] += cells[:, :, 0]
        return Outline(
            key_hash=index["key_hash"],
            operation=index["operation"],
            control=index["kind"] != 0,
            copied=index["flags"] & FLAG_SNAPSHOT != 0,
            document=lengths[:, CELLS.index("full_document")],
            partial=index["unchanged"] != 0,
            before=lengths[:, CELLS.index("full_document_before_change")],
            stream=places["stream"],
            key=cells[:, CELLS.index("key")],
            update=cells[:, CELLS.index("update_description")],
        )

    # --- messages -------------------------------------------------------------------------------

    def stored(self, i: int) -> bytes:
        """The entry's protobuf bytes as stored: without sequence, commit and progress."""
        start = self.payload + self._place(i)[0]
        return self.data[start : start + self._head(i)[1]]

    def message(self, i: int) -> bytes:
        """The complete `penstock.v1.Event` bytes of entry `i`, ready to send."""
        return next(self.messages((i,)))

    def messages(self, entries: Iterable[int]) -> Iterator[bytes]:
        """`message` of many entries, in the order given."""
        # Written out rather than called: this runs once for every entry and every reader.
        data, payload, first = self.data, self.payload, self.first_sequence
        places_at, place_bytes = self._places_at, PLACE_PACK.size
        index_at, index_bytes = self._index_at, INDEX_PACK.size
        place, length_of, tail = PLACE_PACK.unpack_from, _LENGTH.unpack_from, _MARKER.pack
        checks = self._histories
        marker = _marker_field(self.log_id)
        ingested = _INGESTED_AT + varint(self.ingested_at) + _ORDINAL
        current, shared = -1, b""
        for i in entries:
            start, number, ordinal, _, ends = place(data, places_at + i * place_bytes)
            (length,) = length_of(data, index_at + i * index_bytes)
            if number != current:
                current, shared = number, self._commit_fields(number) + ingested
            start += payload
            sequence = first + i
            yield b"".join(
                (
                    data[start : start + length],
                    shared,
                    varint(ordinal),
                    _ENDS_COMMIT if ends else b"",
                    _SEQUENCE,
                    varint(sequence),
                    marker,
                    b2a_base64(tail(sequence, checks[i]), newline=False).translate(_URL_SAFE),
                )
            )

    def _commit_fields(self, number: int) -> bytes:
        """The fields that the entries of one commit share: its number, rows and digest."""
        rows, digest = COMMIT_PACK.unpack_from(self.summary_table, number * COMMIT_PACK.size)
        return b"".join(
            (
                _COMMIT,
                varint(self.first_commit + number),
                _COMMIT_ROWS,
                varint(rows),
                _COMMIT_DIGEST,
                digest.to_bytes(8, "little"),
            )
        )

    def standing(
        self,
        entries: Iterable[int],
        merged: Mapping[int, tuple[int, bytes | None]],
        *,
        progress: str,
        ends_commit: bool = False,
    ) -> Iterator[bytes]:
        """The messages of entries that stand for changes, each for itself and those before it.

        `merged` says by sequence for how many, and what replaces what the entry says (not where it
        stands); who is not in it stands for itself. All have one marker. Rows and digest of their
        commits are left out, because changes of those are.
        """
        tail = (_ENDS_COMMIT if ends_commit else b"") + text_field(10, progress) + _SEQUENCE
        ingested = _INGESTED_AT + varint(self.ingested_at) + _ORDINAL
        for i in entries:
            sequence = self.first_sequence + i
            changes, stored = merged.get(sequence, _ITSELF)
            start, number, ordinal, _, _ = self._place(i)
            if stored is None:
                start += self.payload
                stored = self.data[start : start + self._head(i)[1]]
            yield b"".join(
                (
                    stored,
                    _COMMIT,
                    varint(self.first_commit + number),
                    ingested,
                    varint(ordinal),
                    tail,
                    varint(sequence),
                    _COALESCED,
                    varint(changes),
                )
            )

    def seed_message(self, i: int) -> bytes:
        """The puller's dialect: the same bytes, but int64 values plain as relaxed JSON has them."""
        return next(self.seed_messages((i,)))

    def seed_messages(self, entries: Sequence[int]) -> Iterator[bytes]:
        """`seed_message` of many entries, in the order given."""
        flags = self.index["flags"]
        for i, message in zip(entries, self.messages(entries), strict=True):
            yield plain_numbers(message) if flags[i] & FLAG_LONG else message

    def entries(self) -> Iterator[Entry]:
        """The entries in view, decoded."""
        return map(decode_message, self.messages(range(self.start, self.stop)))


_VERSIONS = frozenset(bytes((version,)) for version in (UNCHAINED, LAYOUT_VERSION))
_COMMIT = tag(13, 0)
_COMMIT_ROWS = tag(15, 0)
_COMMIT_DIGEST = tag(28, 1)
_INGESTED_AT = tag(21, 0)
_ORDINAL = tag(14, 0)
_ENDS_COMMIT = tag(29, 0) + b"\1"
_SEQUENCE = tag(30, 0)
_COALESCED = tag(31, 0)
_ITSELF = (1, None)
_CELL = struct.Struct("<II")
_CELLS_AT = {  # the last field of INDEX
    name: INDEX.itemsize - _CELL.size * (len(CELLS) - number) for number, name in enumerate(CELLS)
}
# A marker is the base64 of version, log id, sequence and check. The first two are 9 bytes, which is
# 12 whole characters, so they are written once, and the other 12 bytes for each entry.
_MARKER = struct.Struct(">QI")
_LENGTH = struct.Struct("<8xI")
"""The length of an entry: see INDEX."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


@lru_cache(maxsize=16)
def _marker_field(log_id: int) -> bytes:
    """The progress field up to where a marker's sequence starts."""
    start = str(Progress(log_id, 0, 0))[:12]
    return tag(10, 2) + varint(28) + start.encode()


@lru_cache(maxsize=256)
def _streams(table: bytes) -> list[Stream]:
    return msgspec.json.decode(table, type=list[Stream])


def _unreadable(data: bytes, first_sequence: int) -> LogFormatError | LogCorruptError:
    """Why `data` is no block of this version."""
    if data and data[:1] != b"\0" and data[:1] not in _VERSIONS:
        return LogFormatError(
            f"the block at {first_sequence} has layout {data[0]}; this Penstock reads {UNCHAINED} "
            f"and {LAYOUT_VERSION}. Nothing was changed; use the version that wrote it."
        )
    return LogCorruptError(
        f"the block at {first_sequence} is damaged: its header, tables or length are not what was "
        f"written. Nothing was changed, and what lies before it is safe. Restore the log from a "
        f"backup, or set the log aside and capture again."
    )
