"""One reading of a store from a position on, with the copying of tables woven in. No threads.

`begin`, then `step` again and again: each looks at the store once, in one read transaction, and
returns what there is to say. They block, so whoever has an event loop calls them in a thread.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from msgspec import json, structs, to_builtins

from penstock.errors import (
    PenstockError,
    PositionLostError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.event import AnyEvent, Commit, Fragment, SystemEvent
from penstock.sources.store.config import StoreSourceConfig
from penstock.sources.store.copying import (
    begun_anew,
    followed,
    whole_copy,
    with_tables,
)
from penstock.sources.store.events import Teller
from penstock.sources.store.fit import key_names, require_images, require_same, warn
from penstock.sources.store.positions import Copying, Scope, StorePosition
from penstock.store import (
    CatalogRecord,
    ChangesMissingError,
    Missing,
    Part,
    Recorded,
    Store,
    StreamRecord,
    View,
)
from penstock.store.schema import Stream

logger = structlog.get_logger(__name__)

CHUNK_BYTES_MAX = 4 << 20
"""Of items in one chunk of a copy, as the store has them."""

Item = Commit | Fragment


class Step(NamedTuple):
    """What one look at the store came to."""

    items: list[Item]
    more: bool
    """Whether there is more to say at once; else the next look is due when something is written."""
    begun: bool = False
    """Whether the copies that were asked for are under way from here on."""
    error: PenstockError | None = None
    """To be raised behind the items."""


class Session:
    """Reads from `position` on. `position` is always that of what was returned last."""

    def __init__(self, source: str, config: StoreSourceConfig, db: Store) -> None:
        self._source = source
        self._config = config
        self._scope = config.scope
        self._db = db
        self._teller = Teller(
            source,
            database=config.database_name,
            tenant=config.tenant,
            flat=config.flatten == "dot",
        )
        self._position: StorePosition | None = None
        self._reached = 0
        """Where the reading goes on, which within a commit is not where a restart would."""
        self._fragmented = False
        self._proven = True
        """Whether it is proven that the store is the one that wrote our position."""

    @property
    def position(self) -> StorePosition:
        """Where to go on after what was returned last."""
        assert self._position is not None, "begin comes first"
        return self._position

    # --- the start -------------------------------------------------------------------------------

    def begin(self, known: StorePosition | None) -> list[Item]:
        """Take up `known`, or what `start` says, and return what is said first.

        Raises SourceChangedError for a position of another store, or of this one before it was
        restored, and ConfigError for a table that cannot be captured.
        """
        with self._db.view() as view:
            if known is not None:
                self._proven = require_same(self._source, view, known)
            require_images(self._source, view, self._scope, self._config.tenant)
            warn(self._source, view, self._scope)
            if known is None:
                self._position = self._start(view)
                self._reached = self._position.sequence
                return [self.heartbeat()]
            self._position, self._reached = known, known.sequence
            if known.scope != self._scope:
                return [self._rescoped(view, known, known.scope)]
        return [self.heartbeat()]

    def heartbeat(self) -> Commit:
        """That nothing happened up to here; only where no commit is open."""
        return Commit(source=self._source, position=self.position.text())

    @property
    def settled(self) -> bool:
        """Whether everything that was read has been returned: a position may be said."""
        return not self._fragmented

    def _start(self, view: View) -> StorePosition:
        begun = self._config.start
        here = StorePosition(store=view.store_id, sequence=0, scope=self._scope)
        if begun == "beginning":
            gone = view.missing(after=0, tables=self._scope.__contains__)
            return structs.replace(here, known={one.stream: one.until for one in gone})
        copying = whole_copy(view, self._scope) if begun == "snapshot" else None
        life = view.life(view.sequence)
        return structs.replace(here, sequence=view.sequence, life=life, copying=copying)

    # --- a change of scope -----------------------------------------------------------------------

    def _rescoped(self, view: View, known: StorePosition, before: Scope) -> Commit:
        """What is said of a scope that is not that of the position; takes up the position with it.

        The stream goes on where it was, so that changes of tables that are new to the scope are
        captured from there on. What they held before is copied if `start` says so.
        """
        scope, same = self._scope, before.database == self._scope.database
        names = {table.name for table in view.tables()}
        ever = names | {stream.table for stream in view.streams()}
        added = sorted(one for one in names if one in scope and not (same and one in before))
        removed = sorted(one for one in ever if one in before and not (same and one in scope))
        copied = [one for one in followed(view, scope) if one in added]
        if self._config.start != "snapshot":
            copied = []
        facts: dict[str, object] = {
            "before": to_builtins(before),
            "after": to_builtins(scope),
            "added": [f"{scope.database}.{one}" for one in added],
            "removed": [f"{before.database}.{one}" for one in removed],
            "copied": bool(copied),
            "since": known.place,
        }
        if added and not copied:
            logger.warning(
                "tables are captured that were not; what they held before is not copied",
                source=self._source,
                tables=added,
            )
        identity = f"{known.place}:{json.encode((before, scope)).decode()}"
        event = self._system(view, "scope_changed", identity, facts)
        left = Teller(self._source, database=before.database, tenant=self._config.tenant)
        gaps = [
            self._gap(view, table, identity, reason="scope", until=None, teller=left)
            for table in removed
        ]
        copying = known.copying
        if copying is not None and (removed or not same):
            copying = begun_anew(copying, view, without=removed if same else ())
        if copied:
            copying = with_tables(copying, copied, view)
        gone = view.missing(after=known.sequence, tables=added.__contains__)
        self._position = structs.replace(
            known,
            scope=scope,
            copying=copying,
            known={**known.known, **{one.stream: one.until for one in gone}},
        )
        return Commit(source=self._source, position=self._position.text(), events=(event, *gaps))

    # --- what follows ----------------------------------------------------------------------------

    def step(self, asked: Sequence[tuple[str, ...]] = ()) -> Step:
        """Look once; `asked` are copies that somebody waits for, each of tables (none: of all)."""
        with self._db.view() as view:
            require_images(self._source, view, self._scope, self._config.tenant)
            streams = {stream.id: stream for stream in view.streams()}
            if not self._proven:
                self._proven = True
                missing = view.missing(after=self._reached, tables=self._scope.__contains__)
                return self._lost(view, missing, whole=True)
            try:
                found = view.changes(
                    after=self._reached,
                    known=self.position.known,
                    tables=self._scope.__contains__,
                    without=[one.id for one in streams.values() if not one.view.has_new],
                    records_max=self._config.batch_events_max,
                )
            except ChangesMissingError as trimmed:
                return self._lost(view, trimmed.missing)
            items = list[Item]()
            for part in found.parts:
                try:
                    items += self._part(view, part, streams)
                except UndecodableError as undecodable:
                    return Step(items, more=False, error=undecodable)
            if not found.at_end:
                return Step(items, more=True)
            self._stand(view, view.sequence)
            self._begin_copies(view, asked)
            copying = self.position.copying
            if copying is not None:
                try:
                    items.append(self._copy(view, copying))
                except UndecodableError as undecodable:
                    return Step(items, more=False, error=undecodable)
        return Step(items, more=copying is not None, begun=True)

    def _part(self, view: View, part: Part, streams: dict[int, Stream]) -> Iterable[Item]:
        events, copying = list[AnyEvent](), self.position.copying
        for recorded in part.records:
            change = recorded.change
            if isinstance(change, StreamRecord):
                names = key_names(streams[recorded.stream])
                events += self._teller.changes(change, store_id=view.store_id, names=names)
            else:
                events += self._noted(view, recorded, change, streams)
        if not part.ends:
            self._reached, self._fragmented = part.sequence, True
            return [Fragment(source=self._source, events=tuple(events))] if events else []
        self._stand(view, part.sequence)
        if not events and copying == self.position.copying:
            return []
        position = self.position.text()
        return [Commit(source=self._source, position=position, events=tuple(events))]

    def _stand(self, view: View, sequence: int) -> None:
        """Everything up to `sequence`, where a commit ends, is returned or needs no word."""
        self._reached, self._fragmented = sequence, False
        position = self.position
        if sequence == position.sequence:
            return
        known = {stream: until for stream, until in position.known.items() if until > sequence}
        self._position = structs.replace(
            position, sequence=sequence, life=view.life(sequence), known=known, gap_said=()
        )

    # --- what happens to tables ------------------------------------------------------------------

    def _noted(
        self, view: View, recorded: Recorded, note: CatalogRecord, streams: dict[int, Stream]
    ) -> list[AnyEvent]:
        """What a record of the catalog says to whoever follows the table."""
        table = note.table
        if note.operation == "createTable":
            return self._made(view, recorded, note)
        if note.operation == "dropTable" and (self._was_unfollowed(table.name) or table.streams):
            return [self._teller.schema(recorded, "drop", table, time_ms=note.time_ms)]
        if note.operation == "setTtl" and table.stream is not None:
            return [self._teller.schema(recorded, "modify", table, time_ms=note.time_ms)]
        if note.operation == "disableStream":
            self._copy_without(view, table.name)
            return [self._unknown(recorded, note, "stream_disabled")]
        if note.operation == "enableStream" and note.stream is not None:
            return self._enabled(view, recorded, note, streams.get(note.stream))
        return []

    def _made(self, view: View, recorded: Recorded, note: CatalogRecord) -> list[AnyEvent]:
        """A table was made. Where its name is taken for that of an empty one, since one was dropped
        or everything was copied, what is written before it has a stream is missing."""
        table, position = note.table, self.position
        empty = position.whole or view.dropped(table.name, before=recorded.sequence, followed=True)
        if not empty or view.followed_whole(table, after=recorded.sequence):
            return []
        self._copy_without(view, table.name)
        copying = self.position.copying
        self._position = structs.replace(
            self.position,
            copying=None if copying is None else structs.replace(copying, whole=False),
            unfollowed=(*(one for one in position.unfollowed if one != table.name), table.name),
        )
        return [self._unknown(recorded, note, "no_stream")]

    def _was_unfollowed(self, table: str) -> bool:
        """Take a table off those of which a gap was said because it was made without a stream;
        whether it was one."""
        left = tuple(one for one in self.position.unfollowed if one != table)
        said = left != self.position.unfollowed
        self._position = structs.replace(self.position, unfollowed=left)
        return said

    def _enabled(
        self, view: View, recorded: Recorded, note: CatalogRecord, stream: Stream | None
    ) -> list[AnyEvent]:
        """A stream began: of a table that is wholly in it, or that held something before."""
        table = note.table
        if stream is None:
            return []  # it is forgotten, and what ended it follows
        if self.position.known.get(stream.id, 0) > recorded.sequence:
            # What is missing of it was said, or is no loss: no word of ours may call it whole. But
            # a table of its name that was dropped since is known to be empty, and it is not.
            again = view.dropped(table.name, before=recorded.sequence)
            return [self._unknown(recorded, note, "trimmed")] if again else []
        if not stream.view.has_new:
            return [self._unknown(recorded, note, "no_new_image")]
        if note.empty and table.streams == 1:
            if self._was_unfollowed(table.name) and self._config.start == "snapshot":
                # Only a copy closes a gap.
                self._copy_on(with_tables(self.position.copying, [table.name], view))
            return [self._teller.schema(recorded, "create", table, time_ms=note.time_ms)]
        self._was_unfollowed(table.name)
        if self._config.start != "snapshot":
            return [self._unknown(recorded, note, "stream_enabled")]
        self._copy_on(with_tables(self.position.copying, [table.name], view))
        return []

    def _unknown(self, recorded: Recorded, note: CatalogRecord, reason: str) -> SystemEvent:
        """The gap of a table of which changes, or what it held before, are not in any stream."""
        return self._teller.system(
            "gap",
            f"{reason}:{recorded.position}",
            position=recorded.position,
            time_ms=note.time_ms,
            facts={"from": recorded.position, "to": None, "reason": reason},
            table=note.table.name,
        )

    def _copy_without(self, view: View, table: str) -> None:
        """The table's changes are not seen any more, so no copy of it is good for anything."""
        copying = self.position.copying
        if copying is not None and table in copying.covers:
            self._copy_on(begun_anew(copying, view, without={table}))

    # --- a lost position -------------------------------------------------------------------------

    def _lost(self, view: View, missing: Sequence[Missing], *, whole: bool = False) -> Step:
        """What is said of a loss, once, and how it goes on.

        A gap for each table, or one of everything where it cannot be proven that the rest is ours.
        Where capture stops, the gap's `to` is not known and the position stands, with a note that
        the gap was said. If it goes on later, in another mode, `gap_ended` says both ends.
        """
        position, mode = self.position, self._config.on_position_lost
        if self._fragmented:
            # A gap must not end the transaction that is staged: start over without it.
            raise SourceUnavailableError(
                f"{self._source}: retention removed the rest of a transaction that is being read. "
                f"Nothing of it was kept; capture starts over."
            )
        lost: dict[str, int] = {"": view.sequence} if whole else {}
        for one in [] if whole else sorted(missing, key=lambda one: one.until):
            lost[one.table] = one.until
        to_say = [table for table in lost if mode != "halt" or table not in position.gap_said]
        events = [
            self._gap(
                view,
                table,
                position.place,
                reason="trimmed",
                until=None if mode == "halt" else lost[table],
                ended=table in position.gap_said,
            )
            for table in to_say
        ]
        if mode == "halt":
            self._position = structs.replace(
                position, gap_said=(*position.gap_said, *to_say), copying=position.copying
            )
            tables = ", ".join(f"{table!r}" for table in lost if table)
            error = PositionLostError(
                source=self._source,
                position=position.place,
                detail=f"retention removed changes of {tables or 'more than can be told'}",
            )
            return Step(self._say(events), more=False, error=error)
        copying = position.copying
        again = followed(view, self._scope)
        again = again if whole else tuple(one for one in again if one in lost)
        if copying is not None:
            copying = begun_anew(copying, view, added=again if mode == "snapshot" else ())
        elif mode == "snapshot":
            copying = whole_copy(view, self._scope) if whole else with_tables(None, again, view)
        known = {**position.known, **{one.stream: one.until for one in missing}}
        self._position = structs.replace(position, known=known, copying=copying, gap_said=())
        return Step(self._say(events), more=True)

    def _say(self, events: Sequence[AnyEvent]) -> list[Item]:
        if not events:
            return []
        position = self.position.text()
        return [Commit(source=self._source, position=position, events=tuple(events))]

    def _gap(
        self,
        view: View,
        table: str,
        identity: str,
        *,
        reason: str,
        until: int | None,
        ended: bool = False,
        teller: Teller | None = None,
    ) -> SystemEvent:
        place = self.position.place
        facts: dict[str, object] = {
            "from": place,
            "to": None if until is None else f"{view.store_id}:{until}",
            "reason": reason,
        }
        return (teller or self._teller).system(
            "gap_ended" if ended else "gap",
            f"{reason}:{identity}:{until}",
            position=place,
            time_ms=view.time_ms,
            facts=facts,
            table=table,
        )

    # --- the copying of what is there already ----------------------------------------------------

    def _begin_copies(self, view: View, asked: Sequence[tuple[str, ...]]) -> None:
        """Copy what is asked for, from here on."""
        if not asked:
            return
        copying = self.position.copying
        if all(asked):
            copying = with_tables(copying, [one for tables in asked for one in tables], view)
        elif copying is None or not copying.whole:
            copying = whole_copy(view, self._scope)
        self._position = structs.replace(self.position, copying=copying)

    def _copy(self, view: View, copying: Copying) -> Commit:
        """The next step of a copy: said to start, a chunk, or said to be complete.

        The streams were read to their end in this very view, so no row is older than what was said
        before it, and all that changes it later follows.
        """
        if not copying.announced:
            announcements = copying.announcements + 1
            self._copy_on(structs.replace(copying, announced=True, announcements=announcements))
            return self._said(view, "snapshot_started", copying)
        if not copying.pending:
            whole = copying.whole or self.position.whole
            self._position = structs.replace(self.position, copying=None, whole=whole)
            return self._said(view, "snapshot_completed", copying)
        table = view.table(copying.pending[0])
        events, after, last = list[AnyEvent](), copying.after, True
        if table is not None and table.stream is not None:  # else it was dropped, and that was said
            chunk = view.items(
                table,
                after=after,
                limit=self._config.snapshot_chunk_documents,
                bytes_max=CHUNK_BYTES_MAX,
            )
            copy, time_ms = f"{copying.snapshot}:{copying.copies}", copying.begun_ms
            for item in chunk.items:
                events.append(self._teller.row(item, table, copy=copy, time_ms=time_ms))
            after, last = chunk.after, chunk.last
        self._copy_on(
            structs.replace(
                copying,
                pending=copying.pending[1:] if last else copying.pending,
                after=None if last else after,
                copies=copying.copies + last,
                documents=copying.documents + len(events),
            )
        )
        return Commit(source=self._source, position=self.position.text(), events=tuple(events))

    def _copy_on(self, copying: Copying | None) -> None:
        self._position = structs.replace(self.position, copying=copying)

    def _said(self, view: View, operation: str, copying: Copying) -> Commit:
        ends = operation == "snapshot_completed"
        tables = copying.covers if ends else copying.pending
        facts: dict[str, Any] = {
            "snapshot": copying.snapshot,
            "collections": [f"{self._teller.database}.{table}" for table in tables],
            "documents": copying.documents,
            "whole": copying.whole,
        }
        again = copying.announcements > 0 and not ends
        if again:
            facts["again"] = True
        identity = f"{copying.snapshot}:{copying.announcements}" if again else copying.snapshot
        event = self._system(view, operation, identity, facts)
        return Commit(source=self._source, position=self.position.text(), events=(event,))

    def _system(
        self, view: View, operation: str, identity: str, facts: dict[str, object]
    ) -> SystemEvent:
        place = f"{view.store_id}:{self._reached}"
        return self._teller.system(
            operation, identity, position=place, time_ms=view.time_ms, facts=facts
        )
