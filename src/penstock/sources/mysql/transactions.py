"""A binlog's events to commits: a transaction stays whole, and nothing of it is left out. Pure.

A transaction is what follows a GTID event, up to its XID or COMMIT; or, where the GTID says that it
stands alone (MariaDB) or no BEGIN follows (MySQL), its one statement. Transactions of a binlog
follow one another and never mix. What is in a transaction and is not understood stops capture, by
its type and position (invariant 10, S1).

A binlog also has what never was committed, and says so only behind it: rows up to a ROLLBACK, rows
between a SAVEPOINT and the ROLLBACK TO it (where the transaction wrote to a table that cannot be
rolled back, whose rows are a transaction of their own), and at a file's end what a server was
writing when it was killed. What of that is held is dropped. What was handed on as a fragment cannot
be taken back: it is remembered, and reading begins again without it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final

from msgspec import structs

from penstock.errors import PenstockError, SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.mysql.beginnings import BEGINS, Beginning, beginning
from penstock.sources.mysql.binlog import (
    HARMLESS,
    IGNORABLE_FLAG,
    Event,
    EventType,
    MalformedEventError,
    Query,
    ends_statement,
    query,
    rotation,
)
from penstock.sources.mysql.copying import NOTHING, Copying, Policy, after_statement
from penstock.sources.mysql.events import Place, Teller
from penstock.sources.mysql.held import Held, Numbers
from penstock.sources.mysql.images import Images
from penstock.sources.mysql.mapped import Compile, MappedTables, of_no_table
from penstock.sources.mysql.origins import Origin, OriginRules
from penstock.sources.mysql.partial_rows import partial_changes
from penstock.sources.mysql.payloads import payload_events
from penstock.sources.mysql.positions import MysqlPosition
from penstock.sources.mysql.rows import ROWS, CompiledTable, UnreadableTableError, changes
from penstock.sources.mysql.schema_events import StatementTeller
from penstock.sources.mysql.shapes import Shapes
from penstock.sources.mysql.statements import Effect
from penstock.sources.mysql.xa import Branch, Branches, Written

FRAGMENT_BYTES: Final = 8 << 20
"""A transaction that holds more is handed on in fragments."""
_WORDS_MAX: Final = 400
"""More characters than those statements have that begin and end transactions."""
_ROWS: Final = ROWS | {EventType.PARTIAL_UPDATE_ROWS}
_QUERIES: Final = frozenset({EventType.QUERY, EventType.QUERY_COMPRESSED})
_TEXTS: Final = frozenset({EventType.ANNOTATE_ROWS, EventType.ROWS_QUERY})
_DEFAULT_ORIGINS: Final = OriginRules()
Undone = dict[str, list[Numbers]]
"""By transaction and where it was read: the events, from one number up to another, that were not
committed."""
Item = Commit | Fragment


class Transactions:
    """Groups one stream's events, in order, into commits."""

    def __init__(
        self,
        source: str,
        position: MysqlPosition,
        *,
        teller: Teller,
        compile_table: Compile,
        charset_of: Callable[[int], str],
        undone: Undone,
        policy: Policy = NOTHING,
        lowers: bool = False,
        origins: OriginRules = _DEFAULT_ORIGINS,
        partial_rows: bool = False,
    ) -> None:
        """`charset_of` names the character set of a collation; empty where there is none.

        `undone` is what another reading found out of what was not committed; this one adds to it.
        `lowers`: the server keeps the names of tables in lower case. `origins` says what is told of
        statements. `partial_rows`: rows may lack columns.
        """
        self._source = source
        self._base = position
        self._gtids = position.told()
        self._teller = teller
        self._policy = policy
        self._effects_told: list[Effect] = []
        """What statements of the open transaction do to tables."""
        self.shapes = Shapes(position.shapes)
        """What is known of the tables at this place."""
        self._described: dict[tuple[str, str], CompiledTable] = {}
        """The tables whose columns the open transaction tells, at its end."""
        self._images = Images(allowed=partial_rows)
        self._undone = undone
        self._origins = origins
        self._tells = StatementTeller(
            teller, origins, position.scope, charset_of=charset_of, lowers=lowers
        )
        self._tables = MappedTables(
            compile_table, position.scope, of_mysql=position.flavour != "mariadb"
        )
        self._file = position.file
        self._offset = 0
        self._until = 0
        """Where the last event ends in its file."""
        self._begun: Beginning | None = None
        self._name = ""
        """Of the transaction: its GTID, or where it begins."""
        self._seconds = 0
        """Of the header of what began it, as another reading of its file says it."""
        self._place: Place | None = None
        self._collation = 0
        """Of the character set that the transaction's session writes in; 0 if it does not say."""
        self._branches = Branches()
        self._held = Held()
        self._savepoints: dict[str, int] = {}
        """By name: the number of the first event after it."""

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._begun is not None

    @property
    def _copy(self) -> str:
        """Which transaction this is. Its name alone may be given again, to one that is committed,
        when the server died within it."""
        return f"{self._name} {self._file}:{self._offset}"

    @property
    def _in_files(self) -> bool:
        return self._base.flavour == "mysql_files"

    @property
    def position(self) -> MysqlPosition:
        """Behind the last transaction that ended."""
        return self._base

    def standing(self, position: MysqlPosition) -> None:
        """Go on from `position`; only between transactions."""
        assert not self.open
        self.close()
        self._base = position
        self._gtids = position.told()
        self.shapes = Shapes(position.shapes)

    def copied(self, copying: Copying | None) -> None:
        """A copy beside the stream is so far; only between transactions."""
        assert not self.open
        self._base = structs.replace(self._base, copying=copying)

    def close(self) -> None:
        """Keep nothing any more of what waits for its commit."""
        self._branches.close()

    def event(self, event: Event, data: bytes) -> Iterator[Item]:
        """Take the next event, which came as `data`; what is complete, or too large.

        The iterator goes on reading, and must come to its end before the next event. It raises
        UndecodableError for what has no exact form. What was returned before stands.
        """
        try:
            yield from self._event(event, data)
        except UnreadableTableError as error:
            raise self._undecodable(str(error)) from error
        except UnicodeDecodeError as error:
            raise self._undecodable(
                f"text that is not of its character set, {error.encoding}"
            ) from error
        except ValueError as error:
            name = EventType(event.type).name if event.type in set(EventType) else "unknown"
            raise self._undecodable(f"an event of type {event.type} ({name}): {error}") from error

    def _event(self, event: Event, data: bytes) -> Iterable[Item]:
        kind = event.type
        if event.end:
            self._until = event.end
        if kind in _ROWS:
            return self._rows(event)
        if kind == EventType.TABLE_MAP:
            self._tables.map(event.body)
            if self._branches.writing is not None:
                self._branches.writing.keep(event)
            return ()
        if kind in BEGINS:
            self._begin(event, data)
            return ()
        if kind == EventType.XID:
            return self._end()
        if kind in _QUERIES:
            return self._statement(event)
        if kind in _TEXTS:
            self._stated(event)
            return ()
        if kind in {EventType.ROTATE, EventType.FORMAT_DESCRIPTION}:
            # A file ended: the server died within the transaction, which so never was one.
            self._abandon()
            offset = event.end
            if kind == EventType.ROTATE:
                self._file, offset = rotation(event.body)
            self._move(offset)
            self._tables.forget_numbers()
            return ()
        if kind == EventType.PREVIOUS_GTIDS:
            self._move(event.end)
            return ()
        if kind in HARMLESS:
            return ()
        if kind == EventType.INCIDENT:
            raise MalformedEventError("the server says that it lost changes")
        if kind == EventType.XA_PREPARE:
            return self._prepared_now(event.body)
        if kind == EventType.TRANSACTION_PAYLOAD:
            return self._unpacked(event.body)
        if event.flags & IGNORABLE_FLAG:
            return ()
        raise MalformedEventError("it is not known here, and may hold rows")

    def _move(self, offset: int) -> None:
        """Between transactions, so far: who is at a file's end need not keep the file."""
        if self._in_files and offset:
            self._gtids.add(f"{self._file}:{offset}")
            self._base = structs.replace(self._base, gtids=self._gtids.text())

    # --- a transaction ---------------------------------------------------------------------------

    def _begin(self, event: Event, data: bytes) -> None:
        if self.open:
            raise MalformedEventError(f"a transaction that begins within {self._name}")
        said = self._begun = beginning(event, data)
        self._offset, self._seconds = event.begin, event.timestamp
        anonymous = event.type == EventType.ANONYMOUS_GTID
        if anonymous and not self._in_files:
            raise MalformedEventError("a transaction without a GTID: gtid_mode was not ON")
        self._name = f"{self._file}:{self._offset}" if self._in_files else said.gtid
        origin = Origin(self._origins, self._file, self._offset)
        origin.by(said.thread)
        self._place = Place(self._name, said.millis, origin)
        if said.is_xa:
            raise MalformedEventError("XA transactions are not captured")

    def _abandon(self) -> None:
        """The file ended: the server died within the transaction, which so never was one."""
        if self.open:
            self._branches.abandon()
            self._undo(0)
            self._forget()

    def _forget(self) -> None:
        if self._undone:
            self._undone.pop(self._copy, None)
        self._begun = self._place = None
        self._held = Held()
        self._savepoints.clear()
        self.shapes.undone(0)
        self._described.clear()
        self._effects_told.clear()
        self._collation = 0
        self._images.ends()
        # Each statement describes its tables anew. A server that opens many numbers them all.
        self._tables.forget_numbers()

    def _end(self) -> Sequence[Item]:
        if self._begun is None or self._place is None:
            raise MalformedEventError("the end of a transaction that did not begin")
        if self._in_files and self._until <= self._offset:
            raise MalformedEventError("a binlog's file of more than 4 GiB: no place in it is told")
        self._gtids.add(f"{self._file}:{self._until}" if self._in_files else self._name)
        told = [self._described[table] for table in self.shapes.telling()]
        self.shapes.committed()
        copying = after_statement(
            self._base.copying,
            self._effects_told,
            scope=self._base.scope,
            policy=self._policy,
            snapshot=self._name,
            seconds=self._place.seconds,
        )
        self._base = structs.replace(
            self._base,
            gtids=self._gtids.text(),
            at=self._seconds,
            last=self._begun.gtid,
            file=self._file,
            offset=self._offset,
            gap_said=False,
            shapes=self.shapes.kept(),
            copying=copying,
        )
        said, events = bool(self._held.handed_on), self._held.hand_on()
        # At its end, so that the places of the rows are the same whoever was told what.
        events += tuple(self._teller.shape(one, self._place) for one in told)
        self._forget()
        if not events and not said:
            return ()
        return (Commit(source=self._source, position=self._base.text(), events=events),)

    def _undo(self, first: int) -> None:
        """The events from the number `first` on were not committed, after all."""
        assert self._place is not None
        self.shapes.undone(first)
        if not self._held.undo(first):
            return
        known = self._undone.setdefault(self._copy, [])
        numbers = (first, self._place.ordinal)
        if numbers not in known:
            known.append(numbers)
            raise SourceUnavailableError(
                f"{self._source}: a part of the transaction {self._name} was read that the server "
                f"then took back. Nothing of it was kept; capture starts over without it."
            )

    def _hold(self, events: Sequence[AnyEvent]) -> Sequence[Item]:
        assert self._place is not None
        undone = self._undone.get(self._copy, ()) if self._undone else ()
        self._held.add(events, self._place.ordinal - len(events), undone=undone)
        if not self._held.beyond(FRAGMENT_BYTES):
            return ()
        return (Fragment(source=self._source, events=self._held.hand_on()),)

    # --- rows ------------------------------------------------------------------------------------

    def _rows(self, event: Event) -> Sequence[Item]:
        items = self._changes(event)
        if ends_statement(event.body):
            self._images.ends()
            if self._place is not None:
                self._place.origin.ends()
        return items

    def _changes(self, event: Event) -> Sequence[Item]:
        nobody = self._tables.is_of_none(event.body)
        if self._place is None:
            if nobody:
                return ()
            raise MalformedEventError("rows outside a transaction")
        table = None if nobody else self._tables.of(event.body)
        if self._branches.writing is not None:
            if table is not None:
                self._branches.writing.keep(event)
            elif ends_statement(event.body):
                self._branches.writing.keep(of_no_table(event))
            return ()
        if table is None:
            return ()
        self._place.origin.at(event.begin)
        name = (table.table.database, table.table.name)
        if self.shapes.met(name, self._place.ordinal):
            self._described[name] = table
        if event.type == EventType.PARTIAL_UPDATE_ROWS:
            found = partial_changes(event.body, table, self._tables.variant)
        else:
            found = changes(event.type, event.body, table)
            self._images.check(found, table.table, self._tables.bodies)
        events: list[AnyEvent] = []
        tell, place = self._teller.change, self._place
        for change in found:
            events += tell(change, table, place)
        return self._hold(events)

    # --- transactions within others --------------------------------------------------------------

    def _unpacked(self, body: bytes) -> Iterator[Item]:
        """What a compressed transaction comes to."""
        for event in payload_events(body):
            yield from self.event(event, b"")

    def _xa(self, said: Query, text: str) -> Iterable[Item]:
        """A statement about an XA transaction, whose name comes last, always written alike."""
        assert self._begun is not None
        assert self._place is not None
        verb, _, xid = text[len("XA ") :].partition(" ")
        match verb.upper():
            case "START":
                if self._in_files:
                    raise MalformedEventError("XA transactions are captured by GTIDs only")
                self._begun = self._begun._replace(standalone=False)
                where = Written(self._file, self._offset, said.thread, said.collation)
                self._branches.begin(Branch(self._source, xid, self._name, where))
                return ()
            case "END":
                return ()
            case "COMMIT":
                branch = self._branches.taken(xid)
                if branch is None:
                    # It was prepared before we began to read.
                    gap = self._tells.prepared_before(text, self._place)
                    return [*self._hold([gap]), *self._end()]
                return self._committed(branch)
            case "ROLLBACK":
                branch = self._branches.taken(xid)
                if branch is not None:
                    branch.close()
                    self._gtids.add(branch.gtid)
                return self._end()
            case _:
                raise MalformedEventError(f"an XA {verb} is not known here")

    def _prepared_now(self, body: bytes) -> Iterable[Item]:
        branch = self._branches.ended(body)
        if branch is not None:
            return self._committed(branch)
        # Not told: what resumes before its commit is to read it again.
        self._forget()
        return ()

    def _committed(self, branch: Branch) -> Iterator[Item]:
        """The rows of an XA transaction, in the place of its commit."""
        assert self._place is not None
        self._tables.forget_numbers()
        file, offset, thread, self._collation = branch.written
        self._place.origin.elsewhere(file, offset, thread)
        with closing(branch):
            for event in branch.events():
                yield from self.event(event, b"")
        self._gtids.add(branch.gtid)
        yield from self._end()

    # --- statements ------------------------------------------------------------------------------

    def _stated(self, event: Event) -> None:
        """What follows is of a statement, whose text this is."""
        if self._place is None:
            return
        if self._branches.writing is not None:
            if self._origins.wants_text or self._images.allowed:
                self._branches.writing.keep(event)
            return
        # MySQL has a byte of the length first, which counts no further than 255.
        text = event.body[1:] if event.type == EventType.ROWS_QUERY else event.body
        self._images.stated(text)
        self._place.origin.stated(lambda: self._tells.text(text, self._collation)[0])

    def _statement(self, event: Event) -> Iterable[Item]:
        said = query(event.body, compressed=event.type == EventType.QUERY_COMPRESSED)
        if self._begun is None or self._place is None:
            raise MalformedEventError("a statement outside a transaction")
        self._place.origin.by(said.thread)
        self._place.origin.at(event.begin)
        self._collation = said.collation
        text = said.text.strip()
        # A long one is none of these words, and no copy is made of it.
        word = text[:_WORDS_MAX].upper()
        if word.startswith("XA "):
            return self._xa(said, text)
        if self._branches.writing is not None:
            self._branches.writing.keep(event)
            return ()
        if word == "BEGIN":
            self._begun = self._begun._replace(standalone=False)
            return ()
        if word == "COMMIT":
            return self._end()
        if word == "ROLLBACK":
            self._undo(0)
            return self._end()
        if word.startswith("ROLLBACK TO "):
            name = text[len("ROLLBACK TO ") :].casefold()
            if name not in self._savepoints:
                raise MalformedEventError("a ROLLBACK TO a SAVEPOINT that was not set")
            self._undo(self._savepoints[name])
            return ()
        if word.startswith("SAVEPOINT "):
            # Their case does not count: another one of the name takes the place of the first.
            self._savepoints[text[len("SAVEPOINT ") :].casefold()] = self._place.ordinal
            return ()
        items: list[Item] = []
        if not self._begun.alters_nothing:
            items += self._effects(said)
        if self._begun.standalone:
            items += self._end()
        return items

    def _effects(self, said: Query) -> Sequence[Item]:
        assert self._place is not None
        events, done = self._tells.statement(said, self._place, self.shapes)
        if done:
            self._effects_told += done
            self._tables.forget_shapes()
        return self._hold(events)

    def _undecodable(self, what: str) -> PenstockError:
        where = self._place
        position = f"{where.gtid}:{where.ordinal}" if where else f"after {self._base.gtids}"
        return UndecodableError(
            source=self._source,
            what=what,
            position=position,
            remedy="Nothing is lost while the server keeps its binlogs. If the message names a "
            "setting, correct it and start the source again with a new copy or position; if it "
            "names a table, leaving it out (`exclude`) lets the others go on; else please report "
            "it with the type named here.",
        )
