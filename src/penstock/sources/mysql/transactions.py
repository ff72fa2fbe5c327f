"""A binlog's events to commits: a transaction stays whole, and nothing of it is left out. Pure.

A transaction is what follows a GTID event, up to its XID or COMMIT; or, where the GTID says that it
stands alone, its one statement. Transactions of a binlog follow one another and never mix. What is
in a transaction and is not understood stops capture, by its type and position (invariant 10, S1).

A binlog also has what never was committed, and says so only behind it: rows up to a ROLLBACK, rows
between a SAVEPOINT and the ROLLBACK TO it (where the transaction wrote to a table that cannot be
rolled back, whose rows are a transaction of their own), and at a file's end what a server was
writing when it was killed. What of that is held is dropped. What was handed on as a fragment cannot
be taken back: it is remembered, and reading begins again without it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Final

from msgspec import structs

from penstock.errors import PenstockError, SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.mysql import statements
from penstock.sources.mysql.binlog import (
    IGNORABLE_FLAG,
    Begun,
    Event,
    EventType,
    Gtid,
    MalformedEventError,
    Query,
    begins_at,
    begun,
    gtid_of,
    query,
    rotation,
)
from penstock.sources.mysql.charsets import statement_text
from penstock.sources.mysql.events import Place, Teller, weight
from penstock.sources.mysql.origins import Origin, OriginRules
from penstock.sources.mysql.positions import MysqlPosition, gtids_text, parse_gtids
from penstock.sources.mysql.rows import (
    ROWS,
    CompiledTable,
    UnreadableTableError,
    changes,
    ends_statement,
    refers_to,
)
from penstock.sources.mysql.tables import Table, parse_table, table_id

FRAGMENT_BYTES: Final = 8 << 20
"""A transaction that holds more is handed on in fragments."""
_TABLES_MAX: Final = 4096
"""Tables, as of one place, that are kept compiled."""
_WORDS_MAX: Final = 400
"""More characters than those statements have that begin and end transactions."""
_NO_TABLE: Final = frozenset({0x00FFFFFF, 0xFFFFFFFF})
"""What rows refer to that only say that a statement ends; the first may be a table's, too."""

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
    }
)
"""Those that hold no row and end nothing. Statements that need some of them are refused."""

_QUERIES: Final = frozenset({EventType.QUERY, EventType.QUERY_COMPRESSED})
_TEXTS: Final = frozenset({EventType.ANNOTATE_ROWS, EventType.ROWS_QUERY})
_DEFAULT_ORIGINS: Final = OriginRules()
Compile = Callable[[Table], CompiledTable]
Undone = dict[str, list[tuple[int, int]]]
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
        lowers: bool = False,
        origins: OriginRules = _DEFAULT_ORIGINS,
    ) -> None:
        """`charset_of` names the character set of a collation; empty where there is none.

        `undone` is what another reading found out of what was not committed; this one adds to it.
        `lowers`: the server keeps the names of tables in lower case. `origins` says what is told of
        statements.
        """
        self._source = source
        self._base = position
        self._gtids = parse_gtids(position.gtids)
        self._teller = teller
        self._compile = compile_table
        self._charset_of = charset_of
        self._lowers = lowers
        self._undone = undone
        self._origins = origins
        self._tables: dict[int, bytes] = {}
        self._known: dict[bytes, Table | CompiledTable] = {}
        """By TABLE_MAP: what is made of it; a Table if nobody captures it."""
        self._file = position.file
        self._offset = 0
        self._begun: Begun | None = None
        self._gtid: Gtid | None = None
        self._place: Place | None = None
        self._collation = 0
        """Of the character set that the transaction's session writes in; 0 if it does not say."""
        self._held: list[AnyEvent] = []
        self._held_bytes = 0
        self._numbers: list[int] = []
        """Of the events that are held."""
        self._handed_on = 0
        """Up to which number events were handed on, as fragments."""
        self._savepoints: dict[str, int] = {}
        """By name: the number of the first event after it."""
        self.fragmented = False
        """Whether fragments of the open transaction were handed on."""

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._gtid is not None

    @property
    def _copy(self) -> str:
        """Which transaction this is. Its name alone may be given again, to one that is committed,
        when the server died within it."""
        return f"{self._gtid} {self._file}:{self._offset}"

    @property
    def position(self) -> MysqlPosition:
        """Behind the last transaction that ended."""
        return self._base

    def standing(self, position: MysqlPosition) -> None:
        """Go on from `position`; only between transactions."""
        assert not self.open
        self._base = position
        self._gtids = parse_gtids(position.gtids)

    def event(self, event: Event, data: bytes) -> Sequence[Item]:
        """Take the next event, which came as `data`; returns what is complete, or too large.

        Raises UndecodableError for what has no exact form. What was returned before stands.
        """
        try:
            return self._event(event, data)
        except UnreadableTableError as error:
            raise self._undecodable(str(error)) from error
        except UnicodeDecodeError as error:
            raise self._undecodable(
                f"text that is not of its character set, {error.encoding}"
            ) from error
        except ValueError as error:
            name = EventType(event.type).name if event.type in set(EventType) else "unknown"
            raise self._undecodable(f"an event of type {event.type} ({name}): {error}") from error

    def _event(self, event: Event, data: bytes) -> Sequence[Item]:
        kind = event.type
        if kind in ROWS:
            return self._rows(event, data)
        if kind == EventType.TABLE_MAP:
            self._tables[table_id(event.body)] = event.body[6:]
            return ()
        if kind == EventType.GTID:
            self._begin(event, data)
            return ()
        if kind == EventType.XID:
            return self._end()
        if kind in _QUERIES:
            return self._statement(event, data)
        if kind in _TEXTS:
            self._stated(event)
            return ()
        if kind in {EventType.ROTATE, EventType.FORMAT_DESCRIPTION}:
            # A file ended: the server died within the transaction, which so never was one.
            self._abandon()
            if kind == EventType.ROTATE:
                self._file = rotation(event.body).file
            self._tables.clear()
            return ()
        if kind in _HARMLESS:
            return ()
        if kind == EventType.INCIDENT:
            raise MalformedEventError("the server says that it lost changes")
        if kind == EventType.XA_PREPARE:
            raise MalformedEventError("XA transactions are not captured")
        if event.flags & IGNORABLE_FLAG:
            return ()
        raise MalformedEventError("it is not known here, and may hold rows")

    # --- a transaction ---------------------------------------------------------------------------

    def _begin(self, event: Event, data: bytes) -> None:
        if self.open:
            raise MalformedEventError(f"a transaction that begins within {self._gtid}")
        said = begun(event.body)
        self._gtid, self._begun = gtid_of(event, data), said
        self._offset = event.end - len(data)
        origin = Origin(self._origins, self._file, self._offset)
        origin.by(said.thread)
        self._place = Place(str(self._gtid), event.timestamp, origin)
        if said.xa_prepared or said.xa_completed:
            raise MalformedEventError("XA transactions are not captured")

    def _abandon(self) -> None:
        """The file ended: the server died within the transaction, which so never was one."""
        if self.open:
            self._undo(0)
            self._forget()

    def _forget(self) -> None:
        if self._undone:
            self._undone.pop(self._copy, None)
        self._gtid = self._begun = self._place = None
        self._held, self._numbers, self._held_bytes, self._handed_on = [], [], 0, 0
        self._savepoints.clear()
        self._collation = 0
        # Each statement describes its tables anew. A server that opens many numbers them all.
        self._tables.clear()
        self.fragmented = False

    def _end(self) -> Sequence[Item]:
        if self._gtid is None or self._place is None:
            raise MalformedEventError("the end of a transaction that did not begin")
        self._gtids[self._gtid.domain] = self._gtid
        gtids = gtids_text(self._gtids.values())
        self._base = structs.replace(
            self._base,
            gtids=gtids,
            at=self._place.seconds,
            last=str(self._gtid),
            file=self._file,
            offset=self._offset,
            gap_said=False,
        )
        said = bool(self._held) or self.fragmented
        events = tuple(self._held)
        self._forget()
        if not said:
            return ()
        return (Commit(source=self._source, position=self._base.text(), events=events),)

    def _undo(self, first: int) -> None:
        """The events from the number `first` on were not committed, after all."""
        assert self._place is not None
        keep = bisect_left(self._numbers, first)
        self._held_bytes -= sum(map(weight, self._held[keep:]))
        del self._held[keep:], self._numbers[keep:]
        if first >= self._handed_on:
            return
        known = self._undone.setdefault(self._copy, [])
        numbers = (first, self._place.ordinal)
        if numbers not in known:
            known.append(numbers)
            raise SourceUnavailableError(
                f"{self._source}: a part of the transaction {self._gtid} was read that the server "
                f"then took back. Nothing of it was kept; capture starts over without it."
            )

    def _hold(self, events: Sequence[AnyEvent]) -> Sequence[Item]:
        assert self._place is not None
        first_number = self._place.ordinal - len(events)
        numbers: Sequence[int] = range(first_number, first_number + len(events))
        undone = self._undone.get(self._copy) if self._undone else None
        if undone:
            kept = [not any(first <= one < until for first, until in undone) for one in numbers]
            events, numbers = list(compress(events, kept)), list(compress(numbers, kept))
        self._held += events
        self._numbers += numbers
        self._held_bytes += sum(map(weight, events))
        if self._held_bytes <= FRAGMENT_BYTES:
            return ()
        held, self._handed_on = tuple(self._held), self._numbers[-1] + 1
        self._held, self._numbers, self._held_bytes = [], [], 0
        self.fragmented = True
        return (Fragment(source=self._source, events=held),)

    # --- rows ------------------------------------------------------------------------------------

    def _rows(self, event: Event, data: bytes) -> Sequence[Item]:
        items = self._changes(event, data)
        if self._place is not None and ends_statement(event.body):
            self._place.origin.ends()
        return items

    def _changes(self, event: Event, data: bytes) -> Sequence[Item]:
        kind, body = event.type, event.body
        which = refers_to(body)
        mapped = self._tables.get(which)
        if mapped is None and which in _NO_TABLE:
            return ()
        if self._place is None:
            raise MalformedEventError("rows outside a transaction")
        if mapped is None:
            raise MalformedEventError("rows of a table that was not described")
        known = self._known.get(mapped)
        if known is None:
            if len(self._known) >= _TABLES_MAX:
                self._known.clear()
            table = parse_table(bytes(6) + mapped)
            captured = (table.database, table.name) in self._base.scope
            known = self._known[mapped] = self._compile(table) if captured else table
        if not isinstance(known, CompiledTable):
            return ()
        self._place.origin.at(begins_at(event, data))
        events: list[AnyEvent] = []
        tell, place = self._teller.change, self._place
        for change in changes(kind, body, known):
            events += tell(change, known, place)
        return self._hold(events)

    # --- statements ------------------------------------------------------------------------------

    def _stated(self, event: Event) -> None:
        """What follows is of a statement, whose text this is."""
        if self._place is None:
            return
        # MySQL has a byte of the length first, which counts no further than 255.
        text = event.body[1:] if event.type == EventType.ROWS_QUERY else event.body
        self._place.origin.stated(lambda: self._decoded(text)[0])

    def _statement(self, event: Event, data: bytes) -> Sequence[Item]:
        said = query(event.body, compressed=event.type == EventType.QUERY_COMPRESSED)
        if self._gtid is None or self._begun is None or self._place is None:
            raise MalformedEventError("a statement outside a transaction")
        self._place.origin.by(said.thread)
        self._collation = said.collation
        text = said.text.strip()
        # A long one is none of these words, and no copy is made of it.
        word = text[:_WORDS_MAX].upper()
        if word == "BEGIN":
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
            items += self._effects(said, begins_at(event, data))
        if self._begun.standalone:
            items += self._end()
        return items

    def _effects(self, said: Query, offset: int | None) -> Sequence[Item]:
        assert self._place is not None
        text, known = self._text(said)
        self._place.origin.stated(lambda: text)
        self._place.origin.at(offset)
        events: list[AnyEvent] = []
        changed = False
        for effect in statements.effects(text, database=said.database, lowers=self._lowers):
            changed = True
            named = known and "\N{REPLACEMENT CHARACTER}" not in repr(effect)
            if not named and not isinstance(effect, statements.RowsAsStatement):
                events += self._told(statements.Unclear(), text)
                break
            events += self._told(effect, text)
        self._place.origin.ends()
        if changed:
            # What a table is may hang on more than its TABLE_MAP says.
            self._known.clear()
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

    def _told(self, effect: statements.Effect, text: str) -> Sequence[AnyEvent]:
        """The events of one effect."""
        scope = self._base.scope
        shown = self._origins.shown(text)
        facts = {} if shown is None else {"statement": shown}
        assert self._place is not None
        if isinstance(effect, statements.RowsAsStatement):
            raise MalformedEventError(
                f"{effect.verb} as a statement: its session had another binlog_format than ROW"
            )
        if isinstance(effect, statements.Unclear):
            return [self._gap(("", ""), "unclear_statement", facts)]
        if isinstance(effect, statements.DatabaseDropped):
            return [self._teller.schema("dropDatabase", (effect.database, ""), self._place, facts)]
        if isinstance(effect, statements.Renamed):
            return self._renamed(effect, facts)
        if effect.table not in scope:
            return ()
        if isinstance(effect, statements.RowsChanged):
            return [self._gap(effect.table, "unlogged_rows", {**facts, "how": effect.how})]
        words = {
            statements.Created: ("create",),
            statements.Dropped: ("drop",),
            statements.Emptied: ("drop", "create"),
            statements.Altered: ("modify",),
        }[type(effect)]
        if isinstance(effect, statements.Emptied):
            facts["truncated"] = "true"
        return [self._teller.schema(word, effect.table, self._place, facts) for word in words]

    def _renamed(self, effect: statements.Renamed, facts: dict[str, str]) -> Sequence[AnyEvent]:
        scope = self._base.scope
        assert self._place is not None
        database, name = effect.to
        if effect.table in scope:
            return [
                self._teller.schema(
                    "rename",
                    effect.table,
                    self._place,
                    {
                        **facts,
                        "to": {"db": database, "coll": name},
                        "targetCaptured": effect.to in scope,
                    },
                )
            ]
        if effect.to in scope:
            # Its rows were never told.
            dropped = self._teller.schema("drop", effect.to, self._place, facts)
            return [dropped, self._gap(effect.to, "renamed_into_scope", facts)]
        return ()

    def _gap(self, table: tuple[str, str], reason: str, facts: dict[str, str]) -> AnyEvent:
        assert self._place is not None
        position, ordinal = self._place.next()
        return self._teller.system(
            "gap",
            f"{reason}:{self._place.gtid}:{ordinal}",
            position=position,
            seconds=self._place.seconds,
            facts={"from": self._place.gtid, "to": self._place.gtid, "reason": reason, **facts},
            table=table,
            origin=self._place.origin.of(ordinal),
        )

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
