"""What the engine asks of its adapters. Each port has two real implementations.

Every method is async and leaves threads to the adapter. A block is `penstock.wire.Block`.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from penstock.wire import Block


class Ancestor(Struct, frozen=True, kw_only=True):
    """A log that this one goes on from: they agree up to `head`, and only so far."""

    log_id: int
    head: int
    """Markers of the ancestor up to this sequence resume here; later ones are refused."""
    gone: bool = False
    """It was lost with its disk: what it held is not in this log, which begins above `head`."""


class Bounds(Struct, frozen=True, kw_only=True):
    """What a log holds: the sequences in (trimmed, head]."""

    log_id: int
    """64 random bits, new with every log and with every restore of one."""
    trimmed: int
    """Sequence of the last entry that retention removed; 0 when none was. Never moves back."""
    trimmed_check: int
    """The 32-bit check of the place `trimmed` (0 when none): a marker there still resumes."""
    head: int
    """Sequence of the newest visible entry; 0 in an empty log."""
    head_commit: int
    head_check: int
    """The 32-bit check of the place `head`; 0 in an empty log."""
    ancestors: tuple[Ancestor, ...] = ()
    """The logs that this one goes on from, nearest first."""
    base: int = 0
    """This log began above this sequence: what its ancestors held up to here was never in it.
    Markers of ancestors below it resume at it, and the gaps that follow it say what is missing."""


class Hold(Struct, frozen=True, kw_only=True):
    """What retention leaves alone for a while: somebody is about to need it."""

    sequence: int
    """Entries after this one stay"""
    until_ms: int
    """to this time, in Unix milliseconds,"""
    bytes_max: int
    """while the log takes at most so much more than `retention_bytes`: never more than a quarter
    of that."""
    oldest: bool = False
    """Where retention has passed `sequence`, what is left is held: somebody is about to begin with
    the oldest entry, whichever that is."""


class SourceState(Struct, frozen=True, kw_only=True):
    """What the log knows of a source; written in the same transaction as its events."""

    source: str
    position: str
    commits: int
    events: int
    last_timestamp: int
    """Unix milliseconds of the source's clock at its last event; 0 before the first."""
    moved_at: int
    """Unix milliseconds when the position was last moved (a heartbeat moves it too)."""


class Above(Struct, frozen=True, kw_only=True):
    """Where a new log begins, when the log before it is gone: above what was published of it."""

    head: int
    """The published sequence: the first entry follows it."""
    head_commit: int
    head_check: int
    ancestors: tuple[Ancestor, ...]
    """The log that is gone, then its own ancestors."""
    sources: tuple[SourceState, ...]
    """Where each source goes on."""
    gaps: tuple[SystemEvent, ...]
    """What the new log says first, each a commit of its own: what it does not hold."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A published copy: where one log and all its sources stood at one moment.

    It may lag the log and never leads it, for it says only what was durable when it was made: every
    entry up to `sequence` was, and each position was reached with no entry after `sequence`.
    """

    instance: str
    """The service's name; whoever replaces its machine takes the same one."""
    log_id: int
    writer: str
    """Names the process that published it: drawn at every start, so that one finds out that another
    took its place."""
    sequence: int
    commit: int
    check: int
    """The 32-bit check of the place `sequence`; 0 at sequence 0."""
    ancestors: tuple[Ancestor, ...] = ()
    sources: tuple[SourceState, ...] = ()
    past_sources: tuple[str, ...] = ()
    """Sources that the instance's log has entries of, but no position any more."""
    published_at: int
    """Unix milliseconds of the publisher's clock."""


class Kept(NamedTuple):
    """A published copy as a store keeps it."""

    checkpoint: Checkpoint
    revision: int
    """Of this copy; another one has another, whatever it says."""


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps one published copy for each instance, away from the log's disk.

    Every method answers or raises within the store's configured time: CheckpointUnavailableError
    when it does not answer (a write may have been kept then), CheckpointStoreError when it answers
    with what no retry mends.
    """

    async def read(self, instance: str) -> Kept | None:
        """The copy that was written last."""
        ...

    async def write(self, checkpoint: Checkpoint, *, replacing: int | None) -> int:
        """Keep `checkpoint` in place of the revision `replacing`, and return its own revision.

        None: there must be no copy yet. Raises CheckpointConflictError, with nothing changed, when
        another one is there: of two processes that write at once, one is refused.
        """
        ...

    async def clear(self, instance: str) -> None:
        """Forget the instance's copy; nothing happens if there is none."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class LogReader(Protocol):
    """Reads a log, in the writing process or in another one."""

    async def bounds(self) -> Bounds: ...

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """Blocks that cover the entries with `after` < sequence <= `until`, oldest first.

        Exact at both ends: `Block.start`/`Block.stop` narrow the first and last one. Stops after
        about `bytes_max` bytes, but returns at least one block if there is one; an empty list
        means that `after` is the head. Holds no transaction after it returns.
        Raises TrimmedError if retention removed an entry that the reader has not seen, AheadError
        if `after` is beyond the head.
        """
        ...

    async def check_at(self, sequence: int) -> int | None:
        """The 32-bit check of all that is told up to `sequence`, by which a marker proves itself.

        It is the same however the entries lie in blocks, and another one in a log with another
        history. The trim watermark still has its check; 0 at sequence 0. None for what the log
        does not hold any more, or not yet.
        """
        ...

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """Return True once the head is beyond `after`, False at the timeout. Never polls alone."""
        ...

    async def sources(self) -> list[SourceState]: ...


@runtime_checkable
class ChangeLog(LogReader, Protocol):
    """The durable, ordered log. One writer; any number of readers."""

    async def append(self, batch: Sequence[Commit | Fragment]) -> None:
        """Make `batch` durable: entries and the positions of their sources in one write.

        Returns only when it would survive a power cut (invariant 1). Order is kept. A failure
        leaves nothing of the batch visible, and the positions where they were; batches of that
        source that wait behind a failed one fail too, so that none overtakes it.
        Fragments are staged, and stay invisible until their source's next Commit.
        Raises LogFullError when there is no space, with nothing lost.
        """
        ...

    async def position(self, source: str) -> str | None:
        """Where `source` resumes: the position of its last durable commit."""
        ...

    async def abandon(self, source: str) -> None:
        """Drop what `source` has staged: it will send that commit again from its start.

        Needs no space, so a full log refuses it no more than an empty one.
        """
        ...

    async def set_position(self, source: str, position: str | None) -> None:
        """Move a source by hand (None forgets it); only while it is not captured."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class ChangeSource(Protocol):
    """One upstream.

    A source yields commits in commit order and resumes exactly after `position`. It raises a
    SourceError: transient ones are retried by the supervisor from the durable position, others
    stop the source. `changes` may be called again after it failed; each call is a new session.
    """

    name: str

    def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        """Commits after `position` (None: where the configuration says to start).

        Yields an empty Commit at least every `heartbeat_seconds` while nothing changes, as soon
        as the source tells a newer position to resume from.
        """
        ...

    async def acknowledge(self, position: str) -> None:
        """Called once everything up to `position` is durable in the log; never earlier."""
        ...

    async def close(self) -> None:
        """Let go of connections; harmless when there are none. `changes` may come after it."""
        ...


@runtime_checkable
class Rewinds(Protocol):
    """A source that can go back to what it still has; beside ChangeSource, and optional."""

    async def rewound(self, position: str, *, to: str | None, by_seconds: float | None) -> str:
        """A place before `position` from which everything can still be captured, as a position.

        Exactly one is given: `to`, an earlier position of the source, or of one of its events, or
        `by_seconds`, counted back by the source's own clock. Never inside a transaction: at or
        before what was asked for (so what happened there may come again too), never after. Raises
        RequestError for what is no earlier place of this source, or one that the source no longer
        has, and SourceError when it does not answer.
        """
        ...

    def told_at(self, position: str) -> int:
        """The source's time at a position of its own, in Unix milliseconds: nothing that it tells
        from there on is older."""
        ...


@runtime_checkable
class Moves(Protocol):
    """A source whose positions say more than a place; beside ChangeSource, and optional."""

    def moved(self, position: str, *, before: str | None) -> str:
        """What to keep where somebody has the source go on from `position` and not from `before`.

        There is a gap then, or another log, and what a copy told before that proves nothing. So a
        copy that either of the two is in the middle of begins anew at `position`. Asks nobody.
        Raises RequestError for what is no position of this kind of source.
        """
        ...

    def is_copying(self, position: str) -> bool:
        """Whether a source that stands at `position` is in the middle of a copy."""
        ...


@runtime_checkable
class Copies(Protocol):
    """A source that copies what is there while it streams; beside ChangeSource, and optional."""

    async def copy(self, names: Sequence[str], *, known: Collection[tuple[str, str]]) -> list[str]:
        """Begin a copy of the collections `names` (none: of everything that is captured).

        `known` are (database, collection)s that the log has told of: one of them may be named that
        is not there any more. Returns the collections, as `database.collection`, once a crash
        cannot stop the copy. Rows come between snapshot_started and snapshot_completed. Raises
        RequestError for what is not captured, and when the source itself is not; SourceError when
        it does not answer.
        """
        ...


@runtime_checkable
class NamesThings(Protocol):
    """A source whose settings name what is to be captured; beside ChangeSource, and optional."""

    async def unmatched(self) -> list[str]:
        """A sentence for each setting that names nothing which is there, with the nearest names;
        none, and no question to the source, where no setting names anything.

        May be asked while changes are read. Raises SourceError when the source does not answer.
        """
        ...


@runtime_checkable
class Retains(Protocol):
    """A source that discards its history by itself; beside ChangeSource, and optional."""

    async def seconds_to_loss(self, position: str) -> float | None:
        """How far `position` is from the oldest change that the source still holds, in seconds of
        its own clock; 0 when it is older, None when the source cannot tell or has lost nothing yet.

        May be asked while changes are read. Raises SourceError when the source does not answer.
        """
        ...


class KeyRange(Struct, frozen=True, kw_only=True):
    """Rows of a collection whose keys follow each other; keys are in a form of the source's own."""

    database: str
    collection: str
    start: bytes | None = None
    """The first key; None: from the collection's first."""
    stop: bytes | None = None
    """The key that is not in it any more; None: to the collection's last."""
    after: bytes | None = None
    """Up to this key they were read."""


class Listing(Struct, frozen=True, kw_only=True):
    """What there is to read."""

    ranges: tuple[KeyRange, ...]
    read_at: str
    """A time of the source at or after the listing; opaque text."""


class InexactRow(Struct, frozen=True, kw_only=True):
    """A row that has no exact form."""

    source: str
    database: str
    collection: str
    key: str
    """As text; its bytes in hex where it has no exact form either."""
    reason: str
    """What it is that has none: types and fields, never a value."""


class RangeRows(Struct, frozen=True, kw_only=True):
    """Some rows of a range, as a snapshot tells them."""

    events: tuple[ChangeEvent, ...]
    inexact: tuple[InexactRow, ...] = ()
    """Rows of which no more is told than that they are there: of a source whose stream goes on
    behind such a change."""
    rest: KeyRange | None
    """What is left to read."""
    read_at: str
    """A time of the source at or after the read; opaque text."""
    varying: Mapping[str, str] = {}
    """Fields whose values differ in shape, with the type that the source declares for them, as its
    events say it."""


@runtime_checkable
class ReadsRanges(Protocol):
    """A source whose rows others may read by ranges of keys; beside ChangeSource, and optional.

    `position` is one of the source in the log: what is read is as of it, or newer. Whoever reads
    must tell the changes that follow `position` in the log after the rows, or leave out rows of
    keys that these name. Where an event behind `position` ends a collection, or defines it anew,
    ranges and rows that were asked for before say nothing any more.
    """

    def require_readable(self) -> None:
        """Raise ConfigError where its settings alone say that rows and changes would not agree.
        Asks nobody."""
        ...

    async def ranges(self, database: str, collection: str, *, rows: int, position: str) -> Listing:
        """Ranges of about `rows` rows, which together are all of the collection, each key once.

        Without a database, or a collection, those of all that is captured; none if there is none.
        Raises ConfigError where rows and changes would not agree, SourceChangedError for another
        server than that of `position`, and SourceError.
        """
        ...

    async def read_range(self, part: KeyRange, *, position: str) -> RangeRows:
        """The next rows of `part`: values as those of the stream. Raises as `ranges` does, and
        UndecodableError for a row that has no exact form, where the stream stops at one too."""
        ...

    def has_told(self, position: str, read_at: str) -> bool:
        """Whether all that was committed up to `read_at` is told before `position`. Asks nobody."""
        ...
