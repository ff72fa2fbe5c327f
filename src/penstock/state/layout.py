"""What lies where in the environment of the current state, and how its keys and values are written.

    meta         what is applied: the marker of the log, the format; and what readings hold of it
    sources      per source: what is known of it as a whole                  (SourceFacts)
    collections  per (source, database, collection): what is known of it     (CollectionFacts)
    rows         number of a collection + key of a row -> sequence, Row
    before       number of a reading + the key in `rows` -> the row as the reading has it
    dropped      numbers of collections whose rows are still to be removed

A collection has a number, and its rows lie under it: a rename gives the number another name and a
drop forgets it, however many rows there are. The rows of a forgotten number are removed in steps.
"""

import struct
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

META: Final = b"meta"
SOURCES: Final = b"sources"
COLLECTIONS: Final = b"collections"
ROWS: Final = b"rows"
BEFORE: Final = b"before"
DROPPED: Final = b"dropped"
DATABASES: Final = (META, SOURCES, COLLECTIONS, ROWS, BEFORE, DROPPED)

FORMAT: Final = 1
APPLIED_KEY: Final = b"applied"
HOLDS_KEY: Final = b"holds"

_NUMBER: Final = struct.Struct(">Q")
_KEY_BYTES_MAX: Final = 480
"""LMDB takes keys of 511 bytes; a number, or two, stand before ours."""
_PREFIX_BYTES: Final = 440
_HASH_BYTES: Final = 16
NUMBER_BYTES: Final = _NUMBER.size


class Applied(Struct, frozen=True, kw_only=True, array_like=True):
    """How much of the log the state has; written with the rows."""

    format: int
    log_id: int
    sequence: int
    check: int
    """The 32-bit check of the place."""
    ends_commit: bool
    """False within a commit too large for one write: no reading begins there."""
    next_number: int
    """For the next collection."""
    renames_since: int | None = None
    """Renames behind this sequence are remembered; None in what an older Penstock wrote."""


class Name(NamedTuple):
    """Which collection."""

    source: str
    database: str
    collection: str

    def __str__(self) -> str:
        return f"{self.source}/{self.database}.{self.collection}"


class Gap(Struct, frozen=True, kw_only=True):
    """Changes of a source that were lost, and not made good yet."""

    sequence: int
    from_: str | None
    to: str | None
    reason: str
    timestamp: int
    """Of the entry that told it."""
    collection: str = ""
    """Of which alone they were, as `database.collection`; empty: of any."""


class Copy(Struct, frozen=True, kw_only=True):
    """A snapshot under way."""

    snapshot: str
    since: int
    """The sequence of its first announcement."""


class Renamed(Struct, frozen=True, array_like=True):
    """A rename, which the state may be behind while a reader of the log is not there yet."""

    sequence: int
    old: Name
    new: Name | None
    """None: a name that is not captured."""


class SourceFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a source as a whole."""

    whole_since: int = 0
    """A whole copy was complete at this sequence and nothing was lost since: a collection that
    is first heard of later is wholly in the log. 0: not so."""
    gaps: tuple[Gap, ...] = ()
    copy: Copy | None = None
    renames: tuple[Renamed, ...] = ()
    """Oldest first; the newest of them, where there are too many."""


class Doubt(Struct, frozen=True, array_like=True):
    """A change that could not be decoded, and that does not say which row it was of."""

    letter: str
    """Its dead letter, whose replay dispels it; empty where only a copy does."""
    sequence: int


class CollectionFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a collection."""

    number: int
    since: int
    """The sequence at which it was first heard of, or at which it was last known to be empty."""
    complete: bool = False
    """Every row that it has is here, but for `doubts`."""
    doubts: tuple[Doubt, ...] = ()
    """Oldest first. A copy that began after one dispels it."""
    left: bool = False
    """It is not captured any more, and its rows are what they were; or it cannot be captured."""
    lost: int = 0
    """The sequence of the last gap of it alone: a copy that began before proves nothing of it."""
    snapshot: str | None = None
    """The copy that it is part of, or that waits for its deletes to be told."""
    copied_since: int = 0
    """From this sequence on that copy tells its rows: what is not newer at its end is gone."""
    copied: bool = False
    """The copy is complete, and what it did not find is still to be told as deleted."""
    copied_t: int = 0
    copied_i: int = 0
    copied_timestamp: int = 0
    """The source's clock at the end of the copy."""
    varying: dict[str, str] = {}
    """The fields whose values differ in shape, with the type that the source declares. Empty where
    it declares none, where that is not known, and in what an older Penstock wrote."""
    varying_since: int = 0
    """The sequence of the event from which on it declares so."""

    @property
    def whole(self) -> bool:
        """Every row that it has is here."""
        return self.complete and not self.doubts


class Row(Struct, frozen=True, array_like=True):
    """The last change of a row, and the document after it."""

    document: bytes | None
    """None when it is not known: a change came without it and could not be applied."""
    document_id: str
    tenant: str
    event_id: str
    t: int
    i: int
    timestamp: int
    as_of_event: bool
    key: bytes = b""
    """The whole key, where the one in the database is shortened."""


_row_encoder: Final = msgspec.msgpack.Encoder()
_row_decoder: Final = msgspec.msgpack.Decoder(Row)


def number_key(number: int) -> bytes:
    """Where the rows of a collection, or what a reading keeps, begin."""
    return _NUMBER.pack(number)


def number_of(key: bytes) -> int:
    return int(_NUMBER.unpack_from(key)[0])


def row_key(number: int, key: bytes) -> tuple[bytes, bool]:
    """Where a row lies; True if its key was shortened, so that the row must hold it.

    JSON has no zero byte, so a shortened key is never equal to a whole one.
    """
    if len(key) <= _KEY_BYTES_MAX:
        return _NUMBER.pack(number) + key, False
    digest = blake2b(key, digest_size=_HASH_BYTES).digest()
    return _NUMBER.pack(number) + key[:_PREFIX_BYTES] + b"\0" + digest, True


def pack_row(sequence: int, row: Row) -> bytes:
    """The value of a row: its sequence first, so that it can be read alone."""
    return _NUMBER.pack(sequence) + _row_encoder.encode(row)


def sequence_of(value: bytes) -> int:
    """The sequence of the row's last change."""
    return int(_NUMBER.unpack_from(value)[0])


def unpack_row(value: bytes) -> Row:
    return _row_decoder.decode(value[NUMBER_BYTES:])


def key_in(place: bytes, row: Row) -> bytes:
    """The key of a row that lies at `place`, as JSON."""
    return row.key or place[NUMBER_BYTES:]


def name_key(name: Name) -> bytes:
    """Where a collection's facts lie. Names have no zero byte, and are not longer than keys may be.

    Source: MongoDB limits a namespace to 255 bytes, MySQL and PostgreSQL each name to 64.
    """
    return "\0".join(name).encode()


def name_of(key: bytes) -> Name:
    return Name(*key.decode().split("\0"))
