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
from typing import Final

from msgspec import structs

from penstock.errors import PenstockError, SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.mysql import statements
from penstock.sources.mysql.beginnings import BEGINS, Beginning, beginning
from penstock.sources.mysql.binlog import (
    IGNORABLE_FLAG,
    Event,
    EventType,
    MalformedEventError,
    Query,
    query,
    rotation,
)
from penstock.sources.mysql.charsets import statement_text
from penstock.sources.mysql.copying import NOTHING, Copying, Policy, after_statement
from penstock.sources.mysql.definitions import defined
from penstock.sources.mysql.events import Place, Teller
from penstock.sources.mysql.held import Held, Numbers
from penstock.sources.mysql.images import Images
from penstock.sources.mysql.mapped import NO_TABLE, Compile, MappedTables
from penstock.sources.mysql.origins import Origin, OriginRules
from penstock.sources.mysql.partial_rows import partial_changes
from penstock.sources.mysql.payloads import payload_events
from penstock.sources.mysql.positions import MysqlPosition
from penstock.sources.mysql.rows import ROWS, CompiledTable, UnreadableTableError, changes
from penstock.sources.mysql.schema_events import StatementTeller
from penstock.sources.mysql.shapes import Shapes
from penstock.sources.mysql.xa import Branch, Written, is_one_phase

FRAGMENT_BYTES: Final = 8 << 20
"""A transaction that holds more is handed on in fragments."""
_WORDS_MAX: Final = 400
"""More characters than those statements have that begin and end transactions."""
_HARMLESS: Final = frozenset(
    {
        EventType.STOP,
        EventType.INTVAR,
        EventType.RAND,
        EventType.USER_VAR,
        EventType.HEARTBEAT,
        EventType.IGNORABLE,
        EventType.BINLOG_CHECKPOINT,
        EventType.GTID_LIST,
        EventType.TRANSACTION_CONTEXT,
        EventType.VIEW_CHANGE,
        EventType.HEARTBEAT_V2,
    }
)
"""Those that hold no row and end nothing. Statements that need some of them are refused."""

_NEVER_PACKED: Final = BEGINS | {
    EventType.TRANSACTION_PAYLOAD,
    EventType.FORMAT_DESCRIPTION,
    EventType.ROTATE,
}
"""Those that a compressed transaction cannot have."""

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
        self._charset_of = charset_of
        self._policy = policy
        self._effects_told: list[statements.Effect] = []
        """What statements of the open transaction do to tables."""
        self._lowers = lowers
        self.shapes = Shapes(position.shapes)
        """What is known of the tables at this place."""
        self._shaped: dict[tuple[str, str], int] = {}
        """The tables whose columns the open transaction tells: before which number."""
        self._images = Images(allowed=partial_rows)
        self._undone = undone
        self._origins = origins
        self._tells = StatementTeller(teller, origins, position.scope)
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
        self._branch: Branch | None = None
        """The XA transaction whose rows come now."""
        self._branches: dict[str, Branch] = {}
        """By name: those that are prepared."""
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
        if self._branch is not None:
            self._branch.drop()
        for branch in self._branches.values():
            branch.drop()
        self._branches.clear()

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
        if kind in ROWS or kind == EventType.PARTIAL_UPDATE_ROWS:
            return self._rows(event)
        if kind == EventType.TABLE_MAP:
            self._tables.map(event.body)
            if self._branch is not None:
                self._branch.keep(event)
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
            if kind == EventType.ROTATE:
                self._file, offset = rotation(event.body)
                self._move(offset)
            else:
                self._move(event.end)
            self._tables.forget_numbers()
            return ()
        if kind == EventType.PREVIOUS_GTIDS:
            self._move(event.end)
            return ()
        if kind in _HARMLESS:
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
        if said.millis >= 1000 << 32:
            raise MalformedEventError("a moment of commit beyond the year 2106")
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
            if self._branch is not None:
                self._branch.drop()
            self._branch = None
            self._undo(0)
            self._forget()

    def _forget(self) -> None:
        if self._undone:
            self._undone.pop(self._copy, None)
        self._begun = self._place = None
        self._held = Held()
        self._savepoints.clear()
        self._shaped.clear()
        self._effects_told.clear()
        self._collation = 0
        self._images.ends()
        # Each statement describes its tables anew. A server that opens many numbers them all.
        self._tables.forget_numbers()

    def _end(self) -> Sequence[Item]:
        if self._begun is None or self._place is None:
            raise MalformedEventError("the end of a transaction that did not begin")
        if self._in_files and self._until <= self._offset:
            raise MalformedEventError(
                "a binlog's file of more than 4 GiB, of which no place is told"
            )
        self._gtids.add(f"{self._file}:{self._until}" if self._in_files else self._name)
        for table in self._shaped:
            self.shapes.told(table)
        copying = self._base.copying
        if self._effects_told:
            copying = after_statement(
                copying,
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
        fragmented, events = bool(self._held.handed_on), self._held.hand_on()
        self._forget()
        if not events and not fragmented:
            return ()
        return (Commit(source=self._source, position=self._base.text(), events=events),)

    def _undo(self, first: int) -> None:
        """The events from the number `first` on were not committed, after all."""
        assert self._place is not None
        self._shaped = {table: number for table, number in self._shaped.items() if number < first}
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
        if _ends_statement(event.body):
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
        if self._branch is not None:
            if table is not None:
                self._branch.keep(event)
            elif _ends_statement(event.body):
                self._branch.keep(_of_no_table(event))
            return ()
        if table is None:
            return ()
        self._place.origin.at(event.begin)
        self._tell_shape(table)
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

    def _tell_shape(self, compiled: CompiledTable) -> None:
        """Tell the columns of a table before its first row since it was created or altered."""
        table = (compiled.table.database, compiled.table.name)
        if table in self._shaped or not self.shapes.is_untold(table):
            return
        assert self._place is not None
        event = self._teller.shape(compiled, self._place)
        self._shaped[table] = self._place.ordinal
        self._held.add([event], self._place.ordinal, undone=())

    # --- transactions within others --------------------------------------------------------------

    def _unpacked(self, body: bytes) -> Iterator[Item]:
        """What a compressed transaction comes to."""
        for event in payload_events(body):
            if event.type in _NEVER_PACKED:
                raise MalformedEventError(f"a compressed event of type {event.type}")
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
                if self._branch is not None:
                    raise MalformedEventError("an XA transaction that begins within another")
                self._begun = self._begun._replace(standalone=False)
                where = Written(self._file, self._offset, said.thread, said.collation)
                self._branch = Branch(self._source, xid, self._name, where)
                return ()
            case "END":
                return ()
            case "COMMIT":
                branch = self._branches.pop(xid, None)
                if branch is None:
                    # It was prepared before we began to read.
                    gap = self._tells.prepared_before(text, self._place)
                    return [*self._hold([gap]), *self._end()]
                return self._committed(branch)
            case "ROLLBACK":
                branch = self._branches.pop(xid, None)
                if branch is not None:
                    branch.drop()
                    self._gtids.add(branch.gtid)
                return self._end()
            case _:
                raise MalformedEventError(f"an XA {verb} is not known here")

    def _prepared_now(self, body: bytes) -> Iterable[Item]:
        branch, self._branch = self._branch, None
        if branch is None:
            raise MalformedEventError("an XA transaction that did not begin")
        if is_one_phase(body):
            return self._committed(branch)
        if branch.xid in self._branches:
            branch.drop()
            raise MalformedEventError("an XA transaction whose name another one has")
        self._branches[branch.xid] = branch
        # Not told: what resumes before its commit is to read it again.
        self._forget()
        return ()

    def _committed(self, branch: Branch) -> Iterator[Item]:
        """The rows of an XA transaction, in the place of its commit."""
        assert self._place is not None
        self._tables.forget_numbers()
        file, offset, thread, self._collation = branch.written
        self._place.origin.elsewhere(file, offset, thread)
        for event in branch.events():
            yield from self.event(event, b"")
        self._gtids.add(branch.gtid)
        yield from self._end()

    # --- statements ------------------------------------------------------------------------------

    def _stated(self, event: Event) -> None:
        """What follows is of a statement, whose text this is."""
        if self._place is None:
            return
        if self._branch is not None:
            if self._origins.wants_text or self._images.allowed:
                self._branch.keep(event)
            return
        # MySQL has a byte of the length first, which counts no further than 255.
        text = event.body[1:] if event.type == EventType.ROWS_QUERY else event.body
        self._images.stated(text)
        self._place.origin.stated(lambda: self._decoded(text)[0])

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
        if self._branch is not None:
            self._branch.keep(event)
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
            items += self._effects(said, event.begin)
        if self._begun.standalone:
            items += self._end()
        return items

    def _effects(self, said: Query, begin: int) -> Sequence[Item]:
        assert self._place is not None
        text, known = self._text(said)
        self._place.origin.stated(lambda: text)
        self._place.origin.at(begin)
        events: list[AnyEvent] = []
        changed = False
        database, lowers, escapes = said.database, self._lowers, said.escapes
        effects = statements.effects(text, database=database, lowers=lowers, escapes=escapes)
        after = defined(
            text, database=database, known=self.shapes.virtual, lowers=lowers, escapes=escapes
        )
        for effect in effects:
            changed = True
            named = known and "\N{REPLACEMENT CHARACTER}" not in repr(effect)
            if not named and not isinstance(effect, statements.RowsAsStatement):
                self._effects_told.append(statements.Unclear())
                events += self._tells.told(statements.Unclear(), text, self._place)
                self.shapes.alter(statements.Unclear(), {})
                break
            self._effects_told.append(effect)
            events += self._tells.told(effect, text, self._place)
            self.shapes.alter(effect, dict([after] if after else []))
        self._place.origin.ends()
        if changed:
            self._tables.forget_shapes()
        return self._hold(events)

    def _text(self, said: Query) -> tuple[str, bool]:
        """A statement's text, and whether we know the character set in which its session wrote it.

        What is not of it, as a literal in its own, is replaced.
        """
        if said.text.isascii():
            return said.text, True
        return self._decoded(said.text.encode(errors="surrogateescape"))

    def _decoded(self, data: bytes) -> tuple[str, bool]:
        """As `_text`. MariaDB does not say the character set of what changed rows."""
        if data.isascii():
            return data.decode(), True
        return statement_text(data, self._charset_of(self._collation) if self._collation else "")

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


_ENDS_STATEMENT: Final = 0x01
_NOBODY: Final = max(NO_TABLE).to_bytes(6, "little")


def _ends_statement(body: bytes) -> bool:
    """Whether the last of a statement's rows are in these."""
    return bool(body[6] & _ENDS_STATEMENT) if len(body) > 6 else False


def _of_no_table(event: Event) -> Event:
    """What is left of rows that nobody captures: that their statement ends."""
    return event._replace(body=_NOBODY + event.body[6:8])
