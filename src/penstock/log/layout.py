"""What the log's LMDB values mean: keys, the state, and the pointer to an extent.

    meta       format, log id, state, ancestors, base, restored
    entries    last sequence (u64), rows (u32) -> a block, or a pointer to an extent
    positions  source name -> SourceState
    extents    extent id (u64), last row (u64), rows (u32) -> a block of a staged commit;
               row 0 exists once the extent is published

Keys are big-endian, so that `set_range(after + 1)` lands on the block that holds the entry, and
the rows in the key say where a block begins without reading it. A value of `entries` that starts
with one of POINTERS is a pointer; any other is a block, whose first byte is its layout version.
"""

import struct
from typing import Final, NamedTuple

import msgspec

from penstock.ports import Ancestor, Bounds, SourceState
from penstock.wire import CommitSummary, Extent

FORMAT: Final = 1
META: Final = b"meta"
ENTRIES: Final = b"entries"
POSITIONS: Final = b"positions"
EXTENTS: Final = b"extents"
DATABASES: Final = (META, ENTRIES, POSITIONS, EXTENTS)

FORMAT_KEY: Final = b"format"
LOG_ID_KEY: Final = b"log_id"
STATE_KEY: Final = b"state"
ANCESTORS_KEY: Final = b"ancestors"
BASE_KEY: Final = b"base"
RESTORED_KEY: Final = b"restored"

POINTER: Final = 0xFE
POINTERS: Final = (POINTER, 0xFF)
"""The second is one whose blocks are not chained, so that it knows nothing of what is before."""
_POINTER = struct.Struct("<B3xIQQQQqQ")
_STATE = struct.Struct("<QQQQQ")
_ENTRY_KEY = struct.Struct(">QI")
_ROW_KEY = struct.Struct(">QQI")
_U64 = struct.Struct(">Q")

pack_u64 = _U64.pack


def unpack_u64(value: bytes) -> int:
    number: int = _U64.unpack(value)[0]
    return number


def on_disk(size: int) -> int:
    """About what a value takes up: LMDB gives one of more than half a page pages of its own."""
    return size + 24 if size < 2000 else -(-(size + 16) // 4096) * 4096


def entry_key(last_sequence: int, rows: int) -> bytes:
    return _ENTRY_KEY.pack(last_sequence, rows)


class Place(NamedTuple):
    """The entries that a value of `entries` holds."""

    first: int
    last: int


def place_of(key: bytes) -> Place:
    last, rows = _ENTRY_KEY.unpack(key)
    return Place(last - rows + 1, last)


def row_key(extent: int, last_row: int, rows: int) -> bytes:
    """Rows of an extent count from 1; `last_row` 0 is the mark of a published extent."""
    return _ROW_KEY.pack(extent, last_row, rows)


def extent_key(extent: int) -> bytes:
    """The first key that an extent can have."""
    return _ROW_KEY.pack(extent, 0, 0)


class Rows(NamedTuple):
    """The rows of an extent that one of its blocks holds."""

    extent: int
    first: int
    last: int


def rows_of(key: bytes) -> Rows:
    extent, last, rows = _ROW_KEY.unpack(key)
    return Rows(extent, last - rows + 1, last)


class State(NamedTuple):
    """Where the log begins and ends; one value, written with every group commit."""

    head: int = 0
    head_commit: int = 0
    head_check: int = 0
    trimmed: int = 0
    trimmed_check: int = 0

    def pack(self) -> bytes:
        return _STATE.pack(*self)

    def bounds(self, log_id: int, ancestors: tuple[Ancestor, ...], *, base: int = 0) -> Bounds:
        return Bounds(
            log_id=log_id,
            trimmed=self.trimmed,
            trimmed_check=self.trimmed_check,
            head=self.head,
            head_commit=self.head_commit,
            head_check=self.head_check,
            ancestors=ancestors,
            base=base,
        )


def state_of(value: bytes) -> State:
    return State(*_STATE.unpack(value))


class Pointer(NamedTuple):
    """A published extent: one commit, standing in the log at its last sequence."""

    before: int
    """The sum (see `wire.layout`) behind the commit before; 0 where blocks are not chained."""
    extent: int
    rows: int
    digest: int
    commit: int
    ingested_at: int
    stored_bytes: int

    def pack(self) -> bytes:
        return _POINTER.pack(POINTER, *self)

    @property
    def facts(self) -> Extent:
        """What its blocks do not know."""
        summary = CommitSummary(self.rows, self.digest)
        return Extent(self.commit, summary, self.ingested_at, self.before)


def pointer_of(value: bytes) -> Pointer | None:
    """The pointer, or None when the value is a block."""
    return Pointer(*_POINTER.unpack(value)[1:]) if value[0] in POINTERS else None


_decode_source = msgspec.json.Decoder(SourceState).decode
_decode_ancestors = msgspec.json.Decoder(tuple[Ancestor, ...]).decode


def pack_source(state: SourceState) -> bytes:
    return msgspec.json.encode(state)


def source_of(value: bytes) -> SourceState:
    return _decode_source(value)


def pack_ancestors(ancestors: tuple[Ancestor, ...]) -> bytes:
    return msgspec.json.encode(ancestors)


def ancestors_of(value: bytes | None) -> tuple[Ancestor, ...]:
    return _decode_ancestors(value) if value else ()
