"""What lies where in a block, and the pieces of protobuf's encoding that we write by hand.

    header   version, counts, section lengths, first commit, ingest time, check  (HEADER)
    before   what is before the block                                            (BEFORE)
    commits  rows and digest of each commit that the block touches               (COMMIT)
    places   per entry: start, commit, ordinal, stream, whether it ends a commit (PLACE)
    index    per entry: hashes, times, operation, and where each cell lies       (INDEX)
    streams  JSON: the distinct [source, database, tenant, collection]
    payload  the entries' protobuf bytes, one after the other

All numbers are little-endian. A commit may lie in several blocks, and a block may hold many.

The header's check is XXH3-64 over the tables (before to streams), seeded with that of the header
before it; each entry's check in the index is XXH3-64 over its bytes. Together they cover a block.

A progress marker proves more than its entry: the 32 bits that it has are a sum over all entries up
to it, each by its check and the number of its commit (`_weights`). So two logs that tell
other things, or the same things in another order, have other markers at the same sequence. A block
has that sum as it is before its first entry; a block of a staged commit, whose number nobody knows
yet, has the plain sum of its commit's checks. Blocks of layout 2 have neither: the markers of their
entries are the low 32 bits of the entry's own check, and the sum goes on from the last of them.

Varints: protobuf.dev/programming-guides/encoding.
"""

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.event import Operation

BLOCK_BYTES: Final = 64 << 10
"""A block is closed once its entries reach this; a single larger entry is a block of its own."""

LAYOUT_VERSION: Final = 3
UNCHAINED: Final = 2
"""The layout whose markers prove their own entry and nothing before it. It is read, and written for
entries that consumers have such markers of."""

HEADER = struct.Struct("<B3xIIIIQqQ")
"""Version; counts of entries and commits; bytes of streams and of payload; first commit; ingest
time in Unix milliseconds; check."""

HEADER_CHECKED: Final = HEADER.size - 8
"""The bytes of the header before its check."""

BEFORE: Final = struct.Struct("<Q")
"""Follows the header, but for blocks of layout UNCHAINED."""

COMMIT = np.dtype([("rows", "<u8"), ("digest", "<u8")])
COMMIT_PACK = struct.Struct("<QQ")

PLACE = np.dtype(
    [("start", "<u4"), ("commit", "<u4"), ("ordinal", "<u4"), ("stream", "<u2"), ("ends", "<u2")]
)
PLACE_PACK = struct.Struct("<IIIHH")

CELLS: Final = (
    "event_id",
    "document_id",
    "key",
    "full_document",
    "full_document_before_change",
    "update_description",
    "position",
    "transaction",
    "disambiguated_paths",
    "origin",
)
"""The variable fields that the index points at; the first is also the first in the message."""

CELL_FIELDS: Final = (1, 4, 26, 6, 16, 7, 20, 27, 24, 32)
"""The field numbers of CELLS."""

# `head` is the bytes of a message before its first cell; `unchanged` those of the fields of that
# name, which follow the last cell.
INDEX = np.dtype(
    [
        ("check", "<u8"),
        ("length", "<u4"),
        ("operation", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("key_hash", "<u8"),
        ("timestamp", "<i8"),
        ("txn_number", "<i8"),
        ("t", "<u4"),
        ("i", "<u4"),
        ("schema_version", "<u8"),
        ("head", "<u4"),
        ("unchanged", "<u4"),
        ("cells", "<u4", (len(CELLS), 2)),
    ]
)
INDEX_PACK = struct.Struct(f"<QIBBHQqqIIQII{2 * len(CELLS)}I")
INDEX_HEAD = struct.Struct("<QI")
"""The first columns of INDEX: check and length."""

assert PLACE_PACK.size == PLACE.itemsize  # a layout that disagrees must not load
assert INDEX_PACK.size == INDEX.itemsize
assert COMMIT_PACK.size == COMMIT.itemsize

FLAG_SNAPSHOT: Final = 1
FLAG_AS_OF_EVENT: Final = 2
FLAG_TXN: Final = 4
FLAG_LONG: Final = 8
"""Holds a wrapped int64, which the service of puller.proto writes plain."""

OPERATIONS: Final = ("", *(operation.value for operation in Operation))
"""The operation of a data entry, by its code in the index; 0 means the message has the word."""
OPERATION_CODES: Final = {operation: code for code, operation in enumerate(OPERATIONS)}

U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1


class Stream(NamedTuple):
    """Whose events these are; filters decide once a stream, not once an entry."""

    source: str
    database: str
    tenant: str
    collection: str


def tables_check(header: bytes | memoryview, tables: bytes | memoryview) -> int:
    """The check of a block's header (its first HEADER_CHECKED bytes) and tables."""
    return xxhash.xxh3_64_intdigest(tables, seed=xxhash.xxh3_64_intdigest(header))


def _weights(commits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What the check of an entry counts in the sum that its marker has, by its commit's number.

    Odd, so that no bit of a check is lost; otherwise any numbers will do that are as good as
    random, and can be computed for whole blocks.
    """
    mixed = commits * _MIX_FIRST
    mixed ^= mixed >> _HALF
    mixed *= _MIX_SECOND
    return (mixed >> _HALF) | _ODD


_MIX_FIRST = np.uint64(0x9E3779B97F4A7C15)
_MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)
_ODD = np.uint64(1)


def histories(
    before: int, checks: NDArray[np.uint64], commits: NDArray[np.integer[Any]]
) -> NDArray[np.uint32]:
    """Per entry of those that follow `before`, the sum behind it."""
    weights = _weights(commits.astype(np.uint64))
    return (np.cumsum(checks * weights) + np.uint64(before)).astype(np.uint32)


def history_after(before: int, *, commit: int, digest: int) -> int:
    """The sum behind a commit, or a part of it, that has `digest` and follows `before`."""
    weight = int(_weights(np.array([commit], np.uint64))[0])
    return (before + digest * weight) & U32


# --- protobuf ---------------------------------------------------------------------------------


def _plain_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_MAX: Final = 1 << 14
_SHORT: Final = [_plain_varint(value) for value in range(_SHORT_MAX)]
# The low 14 bits of a longer varint: two bytes that both say that more follow.
_LOW: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_SHORT_MAX)]
_high = lru_cache(maxsize=4096)(_plain_varint)


def varint(value: int) -> bytes:
    """A protobuf varint; a negative number is its 64-bit two's complement."""
    if 0 <= value < _SHORT_MAX:
        return _SHORT[value]
    value &= U64
    # Times and sequences of neighbours share their high bits, so these are nearly always cached.
    return _LOW[value & 0x3FFF] + _high(value >> 14)


def tag(number: int, wire_type: int) -> bytes:
    """A field's tag: 0 = varint, 1 = 64 bits, 2 = length-delimited."""
    return _plain_varint(number << 3 | wire_type)


def text_field(number: int, value: str) -> bytes:
    """A string field; empty, as proto3 has it, when the string is."""
    data = value.encode()
    return tag(number, 2) + varint(len(data)) + data if data else b""
