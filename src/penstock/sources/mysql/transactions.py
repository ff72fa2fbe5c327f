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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from msgspec import structs

from penstock.errors import PenstockError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.mysql.beginnings import BEGINS, BETWEEN, Beginning, beginning
from penstock.sources.mysql.binlog import (
    HARMLESS,
    IGNORABLE_FLAG,
    QUERIES,
    Event,
    EventType,
    MalformedEventError,
    Query,
    ends_statement,
    query,
    rotation,
)
from penstock.sources.mysql.copying import NOTHING, Copying, Effects, Policy, RowsUnknown
from penstock.sources.mysql.events import Place, Teller
from penstock.sources.mysql.held import Held, Numbers, Undone
from penstock.sources.mysql.images import Images
from penstock.sources.mysql.mapped import Compile, MappedTables, of_no_table
from penstock.sources.mysql.origins import DEFAULT_RULES, Origin, OriginRules
from penstock.sources.mysql.partial_rows import partial_changes
from penstock.sources.mysql.payloads import payload_events
from penstock.sources.mysql.positions import Binlog, MysqlPosition
from penstock.sources.mysql.refusals import taken_back, undecodable
from penstock.sources.mysql.rows import ROWS, CompiledTable, changes
from penstock.sources.mysql.schema_events import StatementTeller
from penstock.sources.mysql.shapes import Shapes
from penstock.sources.mysql.standing import Prepared, Standing
from penstock.sources.mysql.statement_texts import Characters, StatementTexts
from penstock.sources.mysql.statements import Created, Dropped, RowsChanged
from penstock.sources.mysql.unlogged_rows import Obstacle, UnloggedRows, unasked
from penstock.sources.mysql.xa import ENDS, Branch, Branches, Written, xa_of

FRAGMENT_BYTES: Final = 8 << 20
"""A transaction that holds more is handed on in fragments."""
_WORDS_MAX: Final = 400
"""More characters than those statements have that begin and end transactions."""
_READ_WHOLE: Final = (tuple, list)
"""What an event comes to that reading does not go on with."""
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
        characters: Characters,
        undone: Undone,
        policy: Policy = NOTHING,
        lowers: bool = False,
        origins: OriginRules = DEFAULT_RULES,
        partial_rows: bool = False,
        misses_cascades: bool = False,
        passes: Sequence[str] = (),
        changes_more: Obstacle = unasked,
    ) -> None:
        """`charset_of` and `characters` are as of `StatementTexts`.

        `undone` is what another reading found out of what was not committed; this one adds to it.
        `lowers`: the server keeps the names of tables in lower case. `origins` says what is told of
        statements. `partial_rows`: rows may lack columns. `misses_cascades` is as of
        `StatementTeller`, `passes` and `changes_more` as of `UnloggedRows`.
        """
        self._source = source
        self._standing = Standing(position)
        self._teller = teller
        self._effects = Effects(policy, position.scope)
        self.shapes = Shapes(position.shapes)
        """What is known of the tables at this place."""
        self._described: dict[tuple[str, str], CompiledTable] = {}
        """The tables whose columns the open transaction tells, at its end."""
        self._images = Images(allowed=partial_rows)
        self._origins = origins
        of_mysql = position.flavour != "mariadb"
        self._texts = StatementTexts(charset_of, characters, of_mysql=of_mysql)
        self._tells = StatementTeller(
            *(teller, origins, position.scope),
            texts=self._texts,
            lowers=lowers,
            misses_cascades=misses_cascades,
            unlogged=UnloggedRows(position.scope, passes, changes_more),
        )
        self._tables = MappedTables(compile_table, position.scope, of_mysql=of_mysql)
        self._file = position.file
        self._offset = 0
        self._until = 0
        """Where the last event ends in its file."""
        self._begun: Beginning | None = None
        self._name = ""
        """Of the transaction: its GTID, or where it begins."""
        self._repeats = False
        """Whether the transaction was told before, and comes again for one that is prepared."""
        self._passes = False
        """Whether nothing of the transaction is of use."""
        self._ended = False
        """Whether that one has come to its end."""
        self._moment = 0
        """Of its first rows or statement, as a position has it; 0 before."""
        self._seconds = 0
        """Of the header of what began it, as another reading of its file says it."""
        self._place: Place | None = None
        self._dropping: Numbers = (0, 0)
        """The events of the open transaction's last statement that dropped tables."""
        self._created: list[tuple[str, str]] = []
        """The tables that statements of the open transaction created."""
        self._collation = 0
        """Of the character set that the transaction's session writes in; 0 if it does not say."""
        self._branches = Branches()
        self._held = Held(undone)
        self._acts = self._acts_by_type()

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._begun is not None and not self._passes

    @property
    def file(self) -> str:
        """The binlog that is read."""
        return self._file

    @property
    def position(self) -> MysqlPosition:
        """Behind the last transaction that ended."""
        return self._standing.position

    @property
    def prepared(self) -> list[str]:
        """The transactions that came, and that a set of GTIDs leaves out for they are prepared."""
        return [] if self._standing.reaches_back else self._branches.names

    @property
    def comes_again(self) -> bool:
        """Whether the server sends what was told before, for what was prepared there."""
        return self._standing.waits

    def standing(self, position: MysqlPosition) -> None:
        """Go on from `position`; only between transactions."""
        assert not self.open
        self.close()
        self._standing = Standing(position)
        self.shapes = Shapes(position.shapes)

    def copied(
        self, copying: Copying | None, keyed: tuple[tuple[str, str], str] | None = None
    ) -> None:
        """A copy beside the stream is so far, and told rows of a table by this key; only between
        transactions."""
        assert not self.open
        if keyed is not None:
            self.shapes.keyed(*keyed)
        shapes = self.position.shapes if keyed is None else self.shapes.kept()
        self._standing.position = structs.replace(self.position, copying=copying, shapes=shapes)

    def close(self) -> None:
        """Keep nothing any more of what waits for its commit."""
        self._branches.close()

    def event(self, event: Event, data: bytes) -> Iterable[Item]:
        """Take the next event, which came as `data`; what is complete, or too large.

        Reading may go on with the iterator, which must come to its end before the next event. Both
        raise UndecodableError for what has no exact form. What was returned before stands.
        """
        if event.end:
            self._until = event.end
        act = self._acts.get(event.type)
        try:
            if self._passes and event.type not in BETWEEN:
                items = self._passed(event)
            elif act is not None:
                items = act(event)
            elif event.type in BEGINS:
                self._begin(event, data)
                return ()
            else:
                items = self._others(event)
        except ValueError as error:
            raise self._refused(event, error) from error
        return items if isinstance(items, _READ_WHOLE) else self._checked(event, items)

    def _checked(self, event: Event, items: Iterable[Item]) -> Iterator[Item]:
        """Of an event that is itself of several."""
        try:
            yield from items
        except ValueError as error:
            raise self._refused(event, error) from error

    def _acts_by_type(self) -> Mapping[int, Callable[[Event], Iterable[Item]]]:
        """What is done with an event, but for those that begin transactions."""
        return {
            **dict.fromkeys(ROWS | {EventType.PARTIAL_UPDATE_ROWS}, self._rows),
            EventType.TABLE_MAP: self._mapped,
            EventType.XID: self._end,
            **dict.fromkeys(QUERIES, self._statement),
            **dict.fromkeys({EventType.ANNOTATE_ROWS, EventType.ROWS_QUERY}, self._stated),
            **dict.fromkeys(HARMLESS, lambda _: ()),
            EventType.ROTATE: self._file_ended,
            EventType.FORMAT_DESCRIPTION: self._file_ended,
            EventType.PREVIOUS_GTIDS: self._file_began,
            EventType.XA_PREPARE: lambda event: self._prepared_now(event.body),
            EventType.TRANSACTION_PAYLOAD: self._unpacked,
        }

    def _others(self, event: Event) -> Iterable[Item]:
        if event.type == EventType.INCIDENT:
            raise MalformedEventError("the server says that it lost changes")
        if event.flags & IGNORABLE_FLAG:
            return ()
        raise MalformedEventError("it is not known here, and may hold rows")

    def _file_ended(self, event: Event) -> Iterable[Item]:
        self._abandon()
        offset = event.end
        if event.type == EventType.ROTATE:
            self._file, offset = rotation(event.body)
        elif event.timestamp:
            self._standing.reads(Binlog(self._file, event.timestamp))
        self._standing.moved(self._file, offset)
        self._tables.forget_numbers()
        return ()

    def _file_began(self, event: Event) -> Iterable[Item]:
        self._standing.moved(self._file, event.end)
        return ()

    # --- a transaction ---------------------------------------------------------------------------

    def _begin(self, event: Event, data: bytes) -> None:
        if self._passes:
            self._forget()
        if self.open:
            raise MalformedEventError(f"a transaction that begins within {self._name}")
        said = self._begun = beginning(event, data)
        self._offset, self._seconds, self._moment = event.begin, event.timestamp, 0
        if event.type == EventType.ANONYMOUS_GTID and not self._standing.in_files:
            raise MalformedEventError("a transaction without a GTID: gtid_mode was not ON")
        self._name = f"{self._file}:{self._offset}" if self._standing.in_files else said.gtid
        self._repeats = self._standing.repeats(self._name)
        self._passes = self._repeats and not said.prepares
        origin = Origin(self._origins, self._file, self._offset)
        origin.by(said.thread)
        self._place = Place(self._name, said.millis, origin)
        self._held.begins((self._name, self._file, self._offset))
        if said.prepares:
            self._begin_branch(said.xid, thread=said.thread, collation=0)

    def _abandon(self) -> None:
        """The file ended: the server died within the transaction, which so never was one."""
        if self._begun is not None and not self._ended:
            self._standing.abandoned()
        if self.open:
            self._branches.abandon()
            self._uncreate()
            self._undo(0)
        if self._begun is not None:
            self._forget()

    def _forget(self) -> None:
        self._held.ends()
        self._begun = self._place = None
        self._passes = self._repeats = self._ended = False
        self.shapes.undone(0)
        if self._described:
            self._described.clear()
        self._effects.forget()
        self._dropping = (0, 0)
        self._created.clear()
        self._collation = 0
        self._images.ends()
        # Each statement describes its tables anew. A server that opens many numbers them all.
        self._tables.forget_numbers()

    def _end(self, _event: Event | None = None, *, also: str | None = None) -> Sequence[Item]:
        if self._begun is None or self._place is None or self._branches.writing is not None:
            raise MalformedEventError("the end of a transaction that did not begin")
        told: list[CompiledTable] = []
        if self._described:
            told = [self._described[table] for table in self.shapes.telling()]
        for table in self.shapes.committed():
            self._effects.add(RowsChanged(table, "rekeyed"))
        copying = self._effects.behind(self.position.copying, self._name, self._place.seconds)
        self._stand(also, shapes=self.shapes.kept(), copying=copying)
        said, events = bool(self._held.handed_on), self._held.hand_on()
        if told:
            # At its end, so that the places of the rows are the same whoever was told what.
            events += tuple(self._teller.shape(one, self._place) for one in told)
        self._forget()
        if not events and not said:
            return ()
        return (Commit(source=self._source, position=self.position.text(), events=events),)

    def _stand(self, also: str | None = None, **facts: Any) -> None:
        """The transaction is behind us."""
        assert self._begun is not None
        if self._standing.in_files and self._until <= self._offset:
            raise MalformedEventError("a binlog's file of more than 4 GiB: no place in it is told")
        self._standing.ended(
            f"{self._file}:{self._until}" if self._standing.in_files else self._name,
            prepared=self._branches.oldest,
            also=also,
            at=self._seconds,
            last=self._begun.gtid,
            moment=self._moment,
            file=self._file,
            offset=self._offset,
            **facts,
        )

    def _undo(self, first: int, until: int | None = None) -> None:
        """The events from the number `first` on were not committed, after all; up to another."""
        assert self._place is not None
        self.shapes.undone(first)
        if self._held.undo(first, self._place.ordinal if until is None else until):
            raise taken_back(self._source, self._name)

    def _rolled_back(self) -> Sequence[Item]:
        """The end of a transaction that was not committed. A table that it dropped stays dropped:
        so a CREATE OR REPLACE TABLE ... SELECT that fails leaves it, and MariaDB logs that."""
        start, until = self._dropping
        self._uncreate()
        self._undo(until)
        self._undo(0, start)
        return self._end()

    def _uncreate(self) -> None:
        """What the open transaction created is not there, as it was not committed."""
        for table in self._created:
            self.shapes.forget(table)

    def _hold(self, events: Sequence[AnyEvent]) -> Sequence[Item]:
        assert self._place is not None
        self._held.add(events, self._place.ordinal - len(events))
        if not self._held.beyond(FRAGMENT_BYTES):
            return ()
        return (Fragment(source=self._source, events=self._held.hand_on()),)

    # --- rows ------------------------------------------------------------------------------------

    def _mapped(self, event: Event) -> Iterable[Item]:
        self._moment = self._moment or event.timestamp
        self._tables.map(event.body)
        if self._branches.writing is not None:
            self._branches.writing.keep(event)
        return ()

    def _rows(self, event: Event) -> Sequence[Item]:
        items = self._changes(event)
        if ends_statement(event.body):
            self._images.ends()
            if self._place is not None:
                self._place.origin.ends()
        return items

    def _changes(self, event: Event) -> Sequence[Item]:
        place = self._place
        if place is None:
            if self._tables.is_of_none(event.body):
                return ()
            raise MalformedEventError("rows outside a transaction")
        table = self._tables.of(event.body)
        if self._branches.writing is not None:
            if table is not None:
                self._branches.writing.keep(event)
            elif ends_statement(event.body):
                self._branches.writing.keep(of_no_table(event))
            return ()
        if table is None:
            return ()
        place.origin.at(event.begin)
        if self.shapes.met(table.name, place.ordinal, varying=bool(table.varying)):
            self._described[table.name] = table
        if self.shapes.keys_anew(table.name, table.keyed, place.ordinal):
            # It has the number of the row behind it, and so goes where that goes: the places of
            # rows do not depend on who was told what before.
            self._held.add([self._rekeyed(table, place)], place.ordinal)
        if event.type == EventType.PARTIAL_UPDATE_ROWS:
            found = partial_changes(event.body, table, self._tables.variant)
        else:
            found = changes(event.type, event.body, table)
            if found.lack:
                self._images.check(found, table.table, self._tables.bodies)
        return self._hold(self._teller.changes(found, table, place))

    def _rekeyed(self, table: CompiledTable, place: Place) -> AnyEvent:
        return self._teller.rekeyed(
            table,
            place.gtid,
            position=f"{place.gtid}:{place.ordinal}",
            seconds=place.seconds,
            between=(place.gtid, place.gtid),
            origin=place.origin.here(),
        )

    # --- transactions within others --------------------------------------------------------------

    def _unpacked(self, payload: Event) -> Iterator[Item]:
        """What a compressed transaction comes to."""
        for event in payload_events(payload.body):
            yield from self.event(event, b"")

    def _xa(self, said: Query) -> Iterable[Item]:
        """A statement about an XA transaction."""
        assert self._begun is not None
        assert self._place is not None
        verb, xid = xa_of(said.text, self._begun)
        match verb:
            case "START":
                self._begun = structs.replace(self._begun, standalone=False)
                self._begin_branch(xid, thread=said.thread, collation=said.collation)
                return ()
            case "END":
                return ()
            case "COMMIT":
                branch = self._branches.taken(xid)
                if branch is None:
                    # It was prepared before we began to read.
                    gap = self._tells.prepared_before(said.text.strip(), self._place)
                    self._effects.add(RowsUnknown())
                    return [*self._hold([gap]), *self._end()]
                return self._committed(branch)
            case "ROLLBACK":
                branch = self._branches.taken(xid)
                if branch is not None:
                    branch.close()
                return self._end(also=None if branch is None else branch.gtid)
            case _:
                raise MalformedEventError(f"an XA {verb} is not known here")

    def _begin_branch(self, xid: str, *, thread: int, collation: int) -> None:
        written = Written(self._file, self._offset, thread, collation)
        prepared = Prepared(self._standing.since(self._name), self._seconds)
        self._branches.begin(Branch(self._source, xid, self._name, written, prepared))

    def _prepared_now(self, body: bytes) -> Iterable[Item]:
        branch = self._branches.ended(body)
        if branch is not None and not self._repeats:
            return self._committed(branch)
        if branch is not None:
            branch.close()
        elif not self._repeats and self._standing.reaches_back:
            self._stand()
        # Not told: what resumes before its commit is to read it again.
        self._forget()
        return ()

    def _committed(self, branch: Branch) -> Iterator[Item]:
        """The rows of an XA transaction, in the place of its commit."""
        assert self._begun is not None
        assert self._place is not None
        self._begun = structs.replace(self._begun, standalone=False)
        self._tables.forget_numbers()
        file, offset, thread, self._collation = branch.written
        self._place.origin.elsewhere(file, offset, thread)
        with closing(branch):
            for event in branch.events():
                yield from self.event(event, b"")
        yield from self._end(also=branch.gtid)

    def _passed(self, event: Event) -> Iterable[Item]:
        """An event of a transaction that was told: only what it says of others is of use."""
        if event.type == EventType.TRANSACTION_PAYLOAD:
            return self._unpacked(event)
        if event.type == EventType.XID:
            self._ended = True
        elif event.type in QUERIES and self._begun is not None:
            said = query(event.body, compressed=event.type == EventType.QUERY_COMPRESSED)
            verb, xid = xa_of(said.text, self._begun)
            self._ended = self._begun.standalone or (verb or said.text.upper()) in ENDS
            self._passes = verb != "START"
            if verb in ENDS:
                self._branches.drop(xid)
            elif verb == "START":
                return self._xa(said)
        return ()

    # --- statements ------------------------------------------------------------------------------

    def _stated(self, event: Event) -> Iterable[Item]:
        """What follows is of a statement, whose text this is."""
        if self._place is None:
            return ()
        if self._branches.writing is not None:
            if self._origins.wants_text or self._images.allowed:
                self._branches.writing.keep(event)
            return ()
        # MySQL has a byte of the length first, which counts no further than 255.
        text = event.body[1:] if event.type == EventType.ROWS_QUERY else event.body
        self._images.stated(text)
        self._place.origin.stated(lambda: self._texts.of_rows(text, self._collation))
        return ()

    def _statement(self, event: Event) -> Iterable[Item]:
        said = query(event.body, compressed=event.type == EventType.QUERY_COMPRESSED)
        if self._begun is None or self._place is None:
            raise MalformedEventError("a statement outside a transaction")
        self._place.origin.by(said.thread)
        self._place.origin.at(event.begin)
        self._collation = said.collation
        self._moment = self._moment or event.timestamp
        text = said.text.strip()
        # A long one is none of these words, and no copy is made of it.
        word = text[:_WORDS_MAX].upper()
        if word.startswith("XA "):
            return self._xa(said)
        if self._branches.writing is not None:
            self._branches.writing.keep(event)
            return ()
        if word == "BEGIN":
            self._moment = 0
            self._begun = structs.replace(self._begun, standalone=False)
            return ()
        if word == "COMMIT":
            return self._end()
        if word == "ROLLBACK":
            return self._rolled_back()
        if word.startswith("ROLLBACK TO "):
            self._undo(self._held.saved(text[len("ROLLBACK TO ") :]))
            return ()
        if word.startswith("SAVEPOINT "):
            self._held.save(text[len("SAVEPOINT ") :], self._place.ordinal)
            return ()
        items: list[Item] = []
        if not self._begun.alters_nothing:
            items += self._altered(said)
        if self._begun.standalone:
            items += self._end()
        return items

    def _altered(self, said: Query) -> Sequence[Item]:
        assert self._place is not None
        first = self._place.ordinal
        events, done = self._tells.statement(said, self._place, self.shapes)
        if any(isinstance(effect, Dropped) for effect in done):
            self._dropping = first, self._place.ordinal
        self._created += [effect.table for effect in done if isinstance(effect, Created)]
        if done:
            self._effects.add(*done)
            self._tables.forget_shapes()
        return self._hold(events)

    def _refused(self, event: Event, error: ValueError) -> PenstockError:
        after = self.position.gtids
        return undecodable(self._source, event.type, error, at=self._place, after=after)
