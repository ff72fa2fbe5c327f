"""The words everyone shares: events, and the commits that hold them.

An event is what a source says; the log adds where it stands (sequence, commit, ordinal).
Documents travel as `Json`: the bytes of type-preserving Extended JSON (see `penstock.extjson`),
encoded once at the source's door and never re-encoded on the way to a reader.
"""

from enum import IntEnum, StrEnum

import xxhash
from msgspec import Raw, Struct, field

Json = Raw
"""Encoded JSON, spliced as it is into whatever carries it."""


class Kind(IntEnum):
    """What sort of event an entry is; the numbers are those of the wire."""

    DATA = 0
    HEARTBEAT = 1
    GAP = 2
    SCHEMA = 3
    SYSTEM = 4


class Operation(StrEnum):
    """What happened to a document or row."""

    INSERT = "insert"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"


class ClusterTime(Struct, frozen=True, order=True):
    """The source's own clock: seconds since the epoch and a counter within the second.

    Shared by every event of a transaction, so it is never an order key: `sequence` is.
    """

    t: int = field(name="T")
    i: int = field(name="I", default=0)


class TruncatedArray(Struct, frozen=True, rename="camel"):
    """An array that an update cut to its first `new_size` elements."""

    field: str
    new_size: int


_COPIED = frozenset({Operation.INSERT, Operation.DELETE})


class Event(Struct, frozen=True, kw_only=True, rename="camel"):
    """What every event says, whatever its kind. Frozen: every reader shares this object."""

    event_id: str
    """H(source, position, ordinal): the same however often the event is captured."""
    source: str
    database: str
    tenant: str
    collection: str
    """Empty for an event about a whole database or source."""
    cluster_time: ClusterTime
    timestamp: int
    """Unix milliseconds, from the source's clock; the same on every capture (P26)."""
    position: str
    """The source's own coordinate of this event; opaque."""
    schema_version: int = 0
    """The version of the collection's schema that the event was decoded with; 0 = not kept."""
    transaction: str | None = None
    """The source's own name of the transaction (GTID, lsid:txnNumber); None outside one."""
    origin: Json | None = None
    """An object: how the source wrote the event, as far as it says: file, offset, thread,
    statement, actor, ...; docs/reference/fields.md has the names."""


class ChangeEvent(Event, frozen=True, kw_only=True, rename="camel"):
    """One committed change to one document or row."""

    document_id: str
    """The key as text, for people; `key` is the identity (5 and "5" differ only there)."""
    key: Json
    """The key as an ordered object, types kept."""
    operation: Operation = field(name="operationType")
    full_document: Json | None = None
    """The document after the change; None for a delete, or where the source did not send it."""
    full_document_before_change: Json | None = None
    update_description: Json | None = None
    """{updatedFields, removedFields, truncatedArrays}; only an update may say it."""
    disambiguated_paths: Json | None = None
    txn_number: int | None = None
    snapshot: bool = False
    """Of a copy, not a change that was seen: a row (an insert), or one that it proved to be gone
    (a delete)."""
    unchanged: tuple[str, ...] = ()
    """Fields that `full_document` lacks because the source did not resend them."""
    full_document_as_of_event: bool = False
    """True when `full_document` is the state right after this event; False for a later look-up."""

    def __post_init__(self) -> None:
        if self.operation is Operation.DELETE and self.full_document is not None:
            raise ValueError(f"delete of {self.document_id} carries a full document")
        if self.update_description is not None and self.operation is not Operation.UPDATE:
            raise ValueError(f"{self.operation} of {self.document_id} describes an update")
        if self.snapshot and self.operation not in _COPIED:
            raise ValueError(f"{self.operation} of {self.document_id} says it was copied")


class SchemaEvent(Event, frozen=True, kw_only=True, rename="camel"):
    """A change of shape, in its place among the data: create, drop, rename, DDL, invalidate."""

    operation: str = field(name="operationType")
    """The source's own word: create, drop, rename, dropDatabase, modify, createIndexes, ..."""
    description: Json = field(name="fullDocument", default=Raw(b"{}"))
    """What the source said about it."""


class SystemEvent(Event, frozen=True, kw_only=True, rename="camel"):
    """Something Penstock says of a source: gap, started, stopped, snapshot_started, ..."""

    operation: str = field(name="operationType")
    description: Json = field(name="fullDocument", default=Raw(b"{}"))
    """For a gap: {source, from, to, reason}; `to` is null where capture stopped at it. Otherwise
    the facts of the operation."""

    @property
    def kind(self) -> Kind:
        return Kind.GAP if self.operation == "gap" else Kind.SYSTEM


AnyEvent = ChangeEvent | SchemaEvent | SystemEvent


class Commit(Struct, frozen=True, kw_only=True):
    """One transaction of one source, whole: it becomes visible whole or not at all.

    Without events it is a heartbeat: it moves the source's position and takes no number.
    """

    source: str
    position: str
    """Where the source resumes once this commit is durable."""
    events: tuple[AnyEvent, ...] = ()
    as_of_ms: int | None = None
    """Unix milliseconds up to which the source has told everything, where a heartbeat says so.

    Not stored: it is what capture's lag is counted from.
    """


class Fragment(Struct, frozen=True, kw_only=True):
    """The next events of a commit too large to hold at once.

    Fragments of a source are staged in order and stay invisible until that source's next
    `Commit`, whose events end the same transaction and whose position resumes after it.
    """

    source: str
    events: tuple[AnyEvent, ...]


class Entry(Struct, frozen=True, kw_only=True):
    """An event in its place in the log."""

    sequence: int
    """Dense over the whole log, from 1."""
    commit: int
    """Dense, from 1; all entries of a commit share it."""
    ordinal: int
    """The place inside the commit, from 0."""
    commit_rows: int
    """How many entries the commit has."""
    commit_digest: int
    """Sum, modulo 2**64, of the content hashes of the commit's entries."""
    ends_commit: bool
    ingested_at: int
    """Unix milliseconds when the log took it."""
    progress: str
    """The marker to save once this entry is processed, and to send back as `after`."""
    event: AnyEvent
    coalesced: int = 0
    """How many changes this entry stands for, itself the last of them; 0 = as captured.

    An entry that says more than 0 came in a coalesced window, which does not prove its commits:
    `commit_rows` and `commit_digest` are 0, and `ends_commit` says of the window's last entry that
    all up to it is whole commits."""


def kind_of(event: AnyEvent) -> Kind:
    """The kind that an event has on the wire."""
    if isinstance(event, ChangeEvent):
        return Kind.DATA
    return Kind.SCHEMA if isinstance(event, SchemaEvent) else event.kind


def event_id(source: str, position: str, ordinal: int) -> str:
    """The identity of an event: 32 hex digits, the same however often it is captured (P2).

    `ordinal` tells apart the events that a source files under one position.
    """
    # The length keeps apart names and positions that meet at another place.
    return xxhash.xxh3_128_hexdigest(f"{len(source)}:{source}{position}:{ordinal}".encode())
