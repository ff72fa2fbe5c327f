"""Every table's changes as one story, and the items that they have led to, as of one moment.

The store counts its records over all streams, so their sequences are the order of its commits, and
a reader of many tables needs one number to know where it stands. The catalog's own records (a table
made or dropped, a stream enabled or disabled) have theirs in the same order.

What retention has removed behind a reader's place is never passed over: `View.changes` raises
ChangesMissingError, with the tables, unless it is told that they are known to be missing (`known`).
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

from penstock.kv import Transaction
from penstock.store.conditions import Condition
from penstock.store.errors import (
    AheadOfStreamError,
    ChangesMissingError,
    Missing,
    TransactionError,
)
from penstock.store.indexes import read_range
from penstock.store.keys import after as behind
from penstock.store.layout import (
    CATALOG,
    CatalogRecord,
    Layout,
    State,
    decode_note,
    record_check,
    unpack_item,
)
from penstock.store.queries import ItemPage, Range, get_all, read_page
from penstock.store.records import StreamRecord, decode_stored, record_of
from penstock.store.schema import Index, Stream, Table
from penstock.store.shards import Shard, shards
from penstock.store.streams import Page, Position, horizon, latest, read, stream_id
from penstock.store.values import Item, decode_item

RECORDS_MAX: Final = 1000
BYTES_MAX: Final = 1 << 20

Change = StreamRecord | CatalogRecord


class Recorded(NamedTuple):
    """One record, in its place in the store."""

    sequence: int
    stream: int
    """0: the catalog's."""
    position: str
    """The stream, the sequence and a check of the record: no other record of any store has it."""
    change: Change


class Part(NamedTuple):
    """A commit, or as much of one as was wanted at once."""

    commit: int
    records: list[Recorded]
    sequence: int
    """What to go on after. Where the commit ends, its last sequence, of whichever table."""
    ends: bool
    """Whether the commit ends with it."""


class Changes(NamedTuple):
    """What follows a place."""

    parts: list[Part]
    """Whole commits, but one that is too large comes alone and in parts."""
    sequence: int
    """What to go on after; it moves though nothing came."""
    at_end: bool
    """Whether this was all, as of the view."""


class Chunk(NamedTuple):
    """Items of a table that follow each other by key."""

    items: list[Item]
    after: bytes | None
    """What to go on after."""
    last: bool
    """Whether the table ends here."""


class View:
    """A store as of one moment. Made by `Store.view`."""

    def __init__(self, layout: Layout, txn: Transaction, state: State) -> None:
        self._layout = layout
        self._inside: Transaction | None = txn
        """None behind the block."""
        self._state = state

    @property
    def _txn(self) -> Transaction:
        if self._inside is None:
            raise TransactionError(
                "the view is over: it is of use only inside its block. Nothing was read. Begin "
                "another one with view()."
            )
        return self._inside

    def end(self) -> None:
        """Its block ends: whatever is yet to be read raises TransactionError."""
        self._inside = None

    @cached_property
    def _streams(self) -> list[Stream]:
        return self._layout.streams(self._txn)

    @property
    def store_id(self) -> str:
        """The store's own name, which its backups share."""
        return self._state.id

    @property
    def sequence(self) -> int:
        """The newest record's; 0 before the first. Always the end of a commit."""
        return self._state.sequence

    @property
    def time_ms(self) -> int:
        """The time of the newest record of any stream; 0 before the first."""
        return max((stream.newest_ms for stream in self._streams), default=0)

    def tables(self) -> list[Table]:
        """All tables, by name."""
        return self._layout.tables(self._txn)

    def table(self, name: str) -> Table | None:
        """A table's schema; None when there is no such table."""
        return self._layout.table(self._txn, name)

    def streams(self) -> list[Stream]:
        """All streams that are enabled, or of which something is left, in their order."""
        return self._streams

    def life(self, sequence: int) -> str:
        """As `Layout.life`: who wrote the record of that sequence."""
        return self._layout.life(self._txn, sequence)

    def lives(self) -> list[tuple[int, str]]:
        """As `Layout.lives`."""
        return self._layout.lives(self._txn)

    # --- changes ---------------------------------------------------------------------------------

    def missing(
        self,
        *,
        after: int,
        known: Mapping[int, int] | None = None,
        tables: Callable[[str], bool] = lambda _: True,
    ) -> list[Missing]:
        """What was written behind `after` and is not there any more, stream by stream.

        `known` says, by stream, up to which sequence that need not be told: each found one's
        `until`, once it was dealt with. Of a stream that was disabled, emptied and forgotten it can
        only be told that it may have held something behind `after`.
        """
        known = known or {}
        found = [
            Missing(stream.table, stream.id, stream.trimmed)
            for stream in self._streams
            if tables(stream.table) and stream.trimmed > max(after, known.get(stream.id, 0))
        ]
        if self._state.forgotten <= after:
            return found
        there = {stream.id for stream in self._streams}
        for sequence, data in self._layout.records(self._txn, CATALOG, after=after):
            note = decode_note(data)
            ended = note.stream if note.operation != "enableStream" else None
            if ended is None or ended in there or not tables(note.table.name):
                continue
            if known.get(ended, 0) < sequence:
                found.append(Missing(note.table.name, ended, sequence))
        return found

    def changes(
        self,
        *,
        after: int,
        known: Mapping[int, int] | None = None,
        tables: Callable[[str], bool] = lambda _: True,
        without: Collection[int] = (),
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> Changes:
        """The records behind `after` of all tables for which `tables` holds, commit by commit.

        Streams `without` are left out. A page ends with a commit, once it has `records_max` records
        or `bytes_max` bytes; a commit that alone has more comes in parts, and the last says `ends`.

        Raises ChangesMissingError, as `missing`, and AheadOfStreamError for a sequence that was
        never written.
        """
        if after > self.sequence:
            raise AheadOfStreamError(
                f"sequence {after} was never written in this store, whose newest is "
                f"{self.sequence}: it is of another store, or of this one before it was restored "
                f"from a backup. Nothing was read. Copy the tables again, and go on from there."
            )
        lost = self.missing(after=after, known=known, tables=tables)
        if lost:
            raise ChangesMissingError(lost, after=after)
        parts, held = list[Part](), list[Recorded]()
        count = size = end = 0
        for recorded, commit, last, bytes_ in self._merged(after, tables, without):
            if held and last != end:
                parts.append(Part(_commit(held[0]), held, end, ends=True))
                held = []
                if count >= records_max or size >= bytes_max:
                    return Changes(parts, parts[-1].sequence, at_end=False)
            full = count >= records_max or (count and size + bytes_ > bytes_max)
            if held and full:
                if not parts:
                    parts.append(Part(commit, held, held[-1].sequence, ends=False))
                return Changes(parts, parts[-1].sequence, at_end=False)
            held.append(recorded)
            count, size, end = count + 1, size + bytes_, last
        if held:
            parts.append(Part(_commit(held[0]), held, end, ends=True))
        return Changes(parts, self.sequence, at_end=True)

    def _merged(
        self, after: int, tables: Callable[[str], bool], without: Collection[int]
    ) -> Iterator[tuple[Recorded, int, int, int]]:
        """Records in order, each with its commit, the last sequence of that, and its bytes."""
        wanted = [
            self._of_stream(stream, after)
            for stream in self._streams
            if tables(stream.table)
            and stream.id not in without
            and stream.latest is not None
            and stream.latest > after
        ]
        for sequence, number, data, stream in heapq.merge(
            self._catalog(after), *wanted, key=itemgetter(0)
        ):
            if stream is None:
                note = decode_note(data)
                if tables(note.table.name):
                    position = str(Position(f"{self.store_id}.0", sequence, record_check(data)))
                    recorded = Recorded(sequence, number, position, note)
                    yield recorded, note.commit, sequence, len(data)
                continue
            name = stream_id(self._state, stream)
            position = str(Position(name, sequence, record_check(data)))
            change = record_of(
                data, sequence=sequence, stream=stream, stream_id=name, position=position
            )
            last = sequence - change.ordinal + change.commit_records - 1
            yield Recorded(sequence, number, position, change), change.commit, last, len(data)

    def _of_stream(
        self, stream: Stream, after: int
    ) -> Iterator[tuple[int, int, bytes, Stream | None]]:
        for sequence, data in self._layout.records(self._txn, stream.id, after=after):
            yield sequence, stream.id, data, stream

    def _catalog(self, after: int) -> Iterator[tuple[int, int, bytes, Stream | None]]:
        for sequence, data in self._layout.records(self._txn, CATALOG, after=after):
            yield sequence, CATALOG, data, None

    def dropped(self, name: str, *, before: int, followed: bool = False) -> bool:
        """Whether a table of that name was dropped before a sequence; `followed`: one that had a
        stream once. Reads the catalog up to there."""
        for sequence, note in self._notes(after=0):
            if sequence >= before:
                break
            dropped = note.operation == "dropTable" and note.table.name == name
            if dropped and (note.table.streams or not followed):
                return True
        return False

    def followed_whole(self, table: Table, *, after: int) -> bool:
        """Whether the first stream of a table, which was made at `after`, found it empty."""
        enabled = (
            note
            for _, note in self._notes(after=after)
            if note.operation == "enableStream" and note.table.id == table.id
        )
        first = next(enabled, None)
        return first is not None and first.empty

    def _notes(self, *, after: int) -> Iterator[tuple[int, CatalogRecord]]:
        for sequence, data in self._layout.records(self._txn, CATALOG, after=after):
            yield sequence, decode_note(data)

    def time_of(self, *, stream: int, after: int) -> int | None:
        """When a stream's next record behind `after` was written; None when there is none."""
        stored = next(self._layout.records(self._txn, stream, after=after), None)
        return None if stored is None else decode_stored(stored[1]).time_ms

    # --- one stream ------------------------------------------------------------------------------

    def shards(self, stream: Stream) -> list[Shard]:
        """A stream's shards, oldest first (`penstock.store.shards`)."""
        return shards(self._layout, self._txn, stream)

    def horizon(self, stream: Stream) -> Position:
        """Where the oldest record that is left of a stream follows."""
        return horizon(self._state, stream)

    def latest(self, stream: Stream) -> Position:
        """Where only what is yet to be written into a stream follows."""
        return latest(self._state, stream)

    def read(
        self, stream: Stream, *, after: Position, until: int | None, limit: int, bytes_max: int
    ) -> Page:
        """At most `limit` records of a stream behind `after`, up to the sequence `until`.

        Raises as `Store.get_stream_records`.
        """
        return read(
            self._layout,
            self._txn,
            self._state,
            stream,
            after=after,
            until=until,
            limit=limit,
            bytes_max=bytes_max,
        )

    def before_time(self, stream: Stream, time_ms: int) -> int:
        """The sequence behind which the stream's records of `time_ms` or later follow."""
        low, high = max(stream.first, stream.trimmed), stream.latest or stream.first
        while low < high:
            middle = (low + high) // 2
            found = next(self._layout.records(self._txn, stream.id, after=middle), None)
            if found is None or decode_stored(found[1]).time_ms >= time_ms:
                high = middle
            else:
                low = found[0]
        return low

    # --- items -----------------------------------------------------------------------------------

    def get(self, table: Table, key: Item, *, now_ms: int) -> Item | None:
        """The item of a key; None when there is none. Raises what a key is refused with."""
        return get_all(self._layout, self._txn, table, [key], now_ms=now_ms)[0]

    def page(
        self,
        table: Table,
        keys: Range,
        *,
        now_ms: int,
        limit: int | None = None,
        start: Item | None = None,
        reverse: bool = False,
        condition: Condition | None = None,
        stops: bool = False,
    ) -> ItemPage:
        """The items of a range of keys (`queries.read_page`)."""
        return read_page(
            self._layout,
            self._txn,
            table,
            keys,
            now_ms=now_ms,
            limit=limit,
            start=start,
            reverse=reverse,
            condition=condition,
            stops=stops,
        )

    def index_page(
        self,
        table: Table,
        index: Index,
        keys: Range,
        *,
        now_ms: int,
        limit: int | None = None,
        start: Item | None = None,
        reverse: bool = False,
        condition: Condition | None = None,
        seen: Callable[[Item], Item] | None = None,
        stops: bool = False,
    ) -> ItemPage:
        """The items of a range of an index's keys (`indexes.read_range`)."""
        return read_range(
            self._layout,
            self._txn,
            table,
            index,
            keys,
            now_ms=now_ms,
            limit=limit,
            start=start,
            reverse=reverse,
            condition=condition,
            seen=seen,
            stops=stops,
        )

    def size(self, keys: Range, *, items_max: int) -> tuple[int, Range | None]:
        """DynamoDB's bytes of the first items of a range of keys, and the range of the others.

        At most `items_max` are looked at; None: these were all.
        """
        size = 0
        found = self._layout.items.items(self._txn, first=keys.first, before=keys.before)
        for number, (key, value) in enumerate(found):
            if number == items_max:
                return size, Range(key, keys.before)
            size += unpack_item(value).size
        return size, None

    def beside(self, table: Table) -> bytes | None:
        """What a server keeps with a table; None when it keeps nothing."""
        return self._layout.beside(self._txn, table)

    def items(self, table: Table, *, after: bytes | None, limit: int, bytes_max: int) -> Chunk:
        """At most `limit` items of a table whose keys follow `after`, and at the least one.

        Those that have expired and are not removed yet come too: as long as their removal is not a
        record, they are there to whoever reads the streams, and a clock that is wrong may hide what
        is not too old at all (F8, F11).
        """
        prefix = table.prefix
        if after is None or not after.startswith(prefix):
            after = None  # of another table, which had the name before
        first = prefix if after is None else behind(after) or after
        found, size = list[Item](), 0
        for key, value in self._layout.items.items(self._txn, first=first, before=behind(prefix)):
            if len(found) == limit or (found and size + len(value) > bytes_max):
                return Chunk(found, after, last=False)
            found.append(decode_item(unpack_item(value).data))
            size, after = size + len(value), key
        return Chunk(found, after, last=True)


def _commit(recorded: Recorded) -> int:
    return recorded.change.commit
