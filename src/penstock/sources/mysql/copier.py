"""A copy beside a stream: says when it may read, what it may say, and where that belongs.

Between two transactions, a session asks for the `next` thing to say of the copy that its position
has, and takes up the copy that comes with it. Before each transaction it asks whether the stream
has to `stop` there, because what was read belongs before it. A chunk is held, within its bounds,
while the stream reads up to it; nothing else waits for that, and nothing is locked. A table that
does not divide is opened, and if the stream does not get there soon, closed until it has.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.errors import UndecodableError
from penstock.event import AnyEvent, ChangeEvent, Commit, Fragment, SchemaEvent
from penstock.sources.mysql.binlog import (
    Event,
    EventType,
    Gtid,
    begun,
    ends_or_prepares_xa,
    gtid_of,
)
from penstock.sources.mysql.chunks import ChunkReader, Opened, Portion
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.copying import (
    Copying,
    Name,
    again,
    announced,
    looked_up,
    read,
    restarted,
    whole_copy,
    with_tables,
)
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.late import Late
from penstock.sources.mysql.moments import KnownXas, Moment, NotNowError
from penstock.sources.mysql.places import Reach
from penstock.sources.mysql.positions import MysqlPosition
from penstock.sources.mysql.row_readers import UnreadableTableError
from penstock.sources.mysql.selecting import Selection, Span

OPEN_SECONDS_MAX: Final = 1.0
"""How long a table that does not divide is kept open for the stream to get there."""
DOUBTED_MAX: Final = 100_000
"""So many rows of a table that does not divide may change between the two marks of its reading."""
_POLL_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 0.02
_AGAIN_SECONDS_MAX: Final = 1.0
"""How long until what could not be read is tried again: twice as long each time."""


class Next(NamedTuple):
    """What to say, and the copy behind it."""

    events: Sequence[AnyEvent]
    copying: Copying | None
    keyed: tuple[Name, str] | None = None
    """The table whose rows are among them, or which they say to have another key now, and by what
    its rows are known. None where they hold no row: what was told by no key has none."""


class _Held:
    """What was read, or opened, and is not said yet."""

    def __init__(self, copying: Copying, opened: Opened) -> None:
        self.copying = copying
        """As it was when it was read; another one, and this is of no use."""
        self.opened = opened
        self.moment = opened.moment
        self.due = False
        """The stream is where it belongs."""
        self.rows: dict[bytes, ChangeEvent] = {}
        """Of a chunk, by key."""
        self.then: Copying | None = None
        """The copy behind the chunk; None: of a table that does not divide, and is still open,"""
        self.since = 0.0
        """since when;"""
        self.doubted: set[bytes] = set()
        """and the keys of rows that the stream told, which what is read may be older than."""

    def tells(self, event: ChangeEvent) -> bool:
        """Take what the stream tells of a row of the table; whether what is held is of use yet."""
        if not self.opened.doubts(str(event.transaction)):
            return True
        key = bytes(event.key)
        if self.then is None:
            self.doubted.add(key)
            return len(self.doubted) <= DOUBTED_MAX and not event.unchanged
        # Of what it lacks, only the row that is held may be known.
        row = self.rows.pop(key, None)
        return row is None or not event.unchanged


class Copier:
    """The copy of one session. Blocks; one thread at a time."""

    def __init__(
        self,
        source: str,
        config: MysqlSourceConfig,
        teller: Teller,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._teller = teller
        self._clock = clock
        self._reader = ChunkReader(source, config)
        self._reach = Reach()
        self._held: _Held | None = None
        self._again_at = 0.0
        self._again_seconds = _AGAIN_SECONDS
        self._late = Late(source)
        self._shaped: set[tuple[Name, str]] = set()
        """Tables, each with the copy, whose columns were told."""
        self._not_before: Moment | None = None
        """No table that does not divide is opened before the stream was read up to here."""

    @property
    def reading(self) -> bool:
        """Whether a table is under way that is read in one transaction, so that nothing else may
        be said before it ends."""
        held = self._held
        return held is not None and held.due and held.then is None

    @property
    def wait_seconds(self) -> float | None:
        """How long the stream may be waited for before `next` is due; None: as long as it takes."""
        if self._held is not None:
            return _POLL_SECONDS if self._held.then is None else None
        left = self._again_at - self._clock()
        return left if left > 0 else None

    # --- what the session tells ------------------------------------------------------------------

    def passed(self, event: Event, data: bytes) -> None:
        """The stream has read this event, which came as `data`."""
        self._reach.passed(event)
        if event.type == EventType.GTID and ends_or_prepares_xa(event.body):
            said = begun(event.body)
            self._reader.xas.passed(said.xid, gtid_of(said, data), prepares=said.xa_prepared)

    def lost(self) -> None:
        """The stream goes on behind what nobody has read."""
        self._reader.xas = KnownXas()

    @property
    def holds(self) -> bool:
        """Whether something is held, so that the stream may have to stop."""
        return self._held is not None

    def told(self, item: Commit | Fragment) -> None:
        """The stream says this."""
        held = self._held
        if held is None:
            return
        name = held.opened.name
        for event in item.events:
            if isinstance(event, ChangeEvent):
                if (event.database, event.collection) == name and not held.tells(event):
                    # It is read again, once the stream has told what is in doubt.
                    self._not_before = held.moment
                    self._waits(name, "rows that were read of it changed meanwhile")
                    self._drop()
                    return
            elif isinstance(event, SchemaEvent) and (
                event.database == name[0] and event.collection in {"", name[1]}
            ):
                self._waits(name, "it was altered meanwhile")
                self._drop()
                return

    def stops(self, gtid: Gtid | None) -> bool:
        """Whether what is held belongs before this transaction, the stream's next.

        None: one of MySQL's, behind which no place is known by its name.
        """
        held = self._held
        if held is not None and not held.due:
            named = gtid is not None and gtid == held.moment.behind
            held.due = named or self._reach.is_at(held.moment.place)
        return held is not None and held.due

    # --- what is copied --------------------------------------------------------------------------

    def asked(self, copying: Copying | None, requests: Sequence[Sequence[Name]]) -> Copying | None:
        """The copy with what is asked for, each time tables, or none for all of them."""
        if not requests:
            return copying
        if all(requests):
            names = [one for request in requests for one in request]
            return with_tables(copying, names, seconds=self.seconds())
        if copying is not None and copying.whole:
            return copying
        return self.everything()

    def seconds(self) -> int:
        """The server's clock, in Unix seconds."""
        return self._reader.seconds()

    def everything(self) -> Copying:
        """A copy of all that is captured, and there, now."""
        return whole_copy(self._reader.tables(), seconds=self.seconds())

    def next(
        self,
        position: MysqlPosition,
        *,
        comes_again: bool = False,
        key_of: Callable[[Name], str | None] = lambda _: None,
    ) -> Next | None:
        """What to say at `position`, where the stream stands; None: nothing yet.

        No rows are read while the stream `comes_again` to where it stood: which XA transactions
        ended before is not known yet. `key_of` says by what the rows of a table were told last;
        where they have another key now, that is a gap, and the table begins again.

        Raises UndecodableError for a table or a row that has no exact form.
        """
        copying = position.copying
        if copying is None:
            self._drop()
            return None
        if copying.anew:
            there = self._reader.tables()
            return Next((), looked_up(copying, there, seconds=self.seconds()))
        if not copying.announced:
            return self._said("snapshot_started", position, copying, announced(copying))
        if not copying.pending:
            return self._said("snapshot_completed", position, copying, None)
        try:
            return self._rows(position, copying, comes_again=comes_again, key_of=key_of)
        except NotNowError as error:
            self._drop()
            self._waits(copying.pending[0], str(error))
            self._again_at = self._clock() + self._again_seconds
            self._again_seconds = min(2 * self._again_seconds, _AGAIN_SECONDS_MAX)
            return None
        except (UnreadableTableError, UnicodeDecodeError, ValueError) as error:
            raise self._undecodable(copying, error) from error

    def _rows(
        self,
        position: MysqlPosition,
        copying: Copying,
        *,
        comes_again: bool,
        key_of: Callable[[Name], str | None],
    ) -> Next | None:
        held = self._held
        if held is not None and held.copying != copying:
            self._drop()
            held = None
        if held is None:
            if comes_again:
                self._waits(copying.pending[0], "the stream is read again to where it stood")
                return None
            held = self._opened(position, copying)
            if held is None:
                return None
        if not held.due:
            held.due = self._reach.is_at(held.moment.place)
        if held.due:
            selection = held.opened.selection
            if selection is None:
                return self._told_rows(held, None, position)
            keyed = held.opened.name, selection.compiled.keyed
            if key_of(held.opened.name) not in {None, keyed[1]}:
                return self._rekeyed(position, copying, selection, keyed)
            return self._told_rows(held, keyed, position)
        if held.then is None and self._clock() - held.since > OPEN_SECONDS_MAX:
            self._not_before = held.moment
            self._waits(copying.pending[0], "it has no key, and the stream is too far behind it")
            self._drop()
        return None

    def _waits(self, table: Name, why: str) -> None:
        """Nothing could be told of it."""
        self._late.said(".".join(table), why, self._clock())

    def _opened(self, position: MysqlPosition, copying: Copying) -> _Held | None:
        """Read the next chunk, or open the next table; None: not now."""
        before = self._not_before
        if self._clock() < self._again_at:
            return None
        if before is not None and not self._reach.is_at(before.place):
            return None
        self._not_before = None
        opened = self._reader.open(copying.pending[0], position.told())
        held = self._held = _Held(copying, opened)
        selection = opened.selection
        if selection is None:
            held.then = read(copying, 0, after=None, key="", last=True)
        elif selection.divides:
            self._chunk(held, selection)
        else:
            held.since = self._clock()
        if held.then is not None:
            self._reader.close()
        held.due = held.moment.is_told
        if not held.due and self._reach.place is None and held.moment.behind is None:
            # Nobody could tell when the stream is there. It has more to say, and then it is known.
            self._drop()
            return None
        self._again_seconds = _AGAIN_SECONDS
        return held

    def _chunk(self, held: _Held, selection: Selection) -> None:
        copying, shape = held.copying, selection.definition.shape
        if copying.after is not None and copying.key != shape:
            copying = restarted(copying)
        portion, held.moment = self._reader.chunk(held.opened, Span(after=copying.after))
        events = self._events(copying, selection, portion)
        held.rows = {bytes(event.key): event for event in events}
        after = selection.place(portion.rows[-1]) if portion.rows else None
        held.then = read(copying, len(events), after=after, key=shape, last=portion.last)

    def _rekeyed(
        self,
        position: MysqlPosition,
        copying: Copying,
        selection: Selection,
        keyed: tuple[Name, str],
    ) -> Next:
        """Rows of the table were told by another key, maybe since the copy began."""
        self._drop()
        event = self._teller.rekeyed(
            selection.compiled,
            f"{copying.snapshot}:{copying.copies}:{keyed[1]}",
            position=position.gtids,
            seconds=max(copying.begun, position.at),
            between=(position.gtids, position.gtids),
        )
        return Next((event,), again(copying, keyed[0]), keyed)

    def _told_rows(
        self, held: _Held, keyed: tuple[Name, str] | None, position: MysqlPosition
    ) -> Next:
        self._late.read()
        selection = held.opened.selection
        if held.then is not None:
            self._held = None
            rows = list(held.rows.values())
            told = self._with_columns(rows, held.copying, selection, position)
            return Next(told, held.then, keyed if rows else None)
        assert selection is not None
        portion = self._reader.portion(held.opened)
        events = self._events(held.copying, selection, portion)
        held.copying = read(held.copying, len(events), after=None, key="", last=portion.last)
        if portion.last:
            self._drop()
        rows = [one for one in events if bytes(one.key) not in held.doubted]
        told = self._with_columns(rows, held.copying, selection, position)
        return Next(told, held.copying, keyed if rows else None)

    def _with_columns(
        self,
        rows: Sequence[ChangeEvent],
        copying: Copying,
        selection: Selection | None,
        position: MysqlPosition,
    ) -> Sequence[AnyEvent]:
        """The rows, and before the first ones of a table what not each of them says of it."""
        if not rows or selection is None or not selection.compiled.varying:
            return rows
        table, copy = selection.compiled.name, f"{copying.snapshot}:{copying.copies}"
        if (table, copy) in self._shaped:
            return rows
        self._shaped.add((table, copy))
        columns = self._teller.copied_shape(
            selection.compiled,
            copy=copy,
            position=position.gtids,
            seconds=max(copying.begun, position.at),
        )
        return [columns, *rows]

    def _events(
        self, copying: Copying, selection: Selection, portion: Portion
    ) -> list[ChangeEvent]:
        copy = f"{copying.snapshot}:{copying.copies}"
        tell, number = self._teller.row, copying.documents
        return [
            tell(
                selection.document(row),
                selection.compiled,
                copy=copy,
                number=number + i,
                seconds=copying.begun,
            )
            for i, row in enumerate(portion.rows)
        ]

    def _said(
        self, operation: str, position: MysqlPosition, copying: Copying, then: Copying | None
    ) -> Next:
        ends = then is None
        facts: dict[str, object] = {
            "snapshot": copying.snapshot,
            "collections": [".".join(one) for one in (copying.covers if ends else copying.pending)],
            "documents": copying.documents,
            "whole": copying.whole,
        }
        again = copying.announcements > 0 and not ends
        if again:
            facts["again"] = True
        event = self._teller.system(
            operation,
            f"{copying.snapshot}:{copying.announcements}" if again else copying.snapshot,
            position=position.gtids,
            seconds=max(copying.begun, position.at),
            facts=facts,
        )
        return Next((event,), then)

    def _undecodable(self, copying: Copying, error: Exception) -> UndecodableError:
        table = ".".join(copying.pending[0])
        what = str(error)
        if isinstance(error, UnicodeDecodeError):
            what = f"text that is not of its character set, {error.encoding}"
        return UndecodableError(
            source=self._source,
            what=f"a row of {table} for a copy: {what}",
            position=f"snapshot {copying.snapshot}",
            remedy="Nothing is lost: the stream goes on from here. Leaving the table out "
            "(`exclude`) lets the others go on; else please report it with the type named here.",
        )

    # --- the end ---------------------------------------------------------------------------------

    def _drop(self) -> None:
        """What is held is of no use any more."""
        held, self._held = self._held, None
        if held is not None and held.then is None:
            self._reader.close()

    def abort(self) -> None:
        """Have whoever reads return with an error; from any thread."""
        self._reader.abort()

    def close(self) -> None:
        """Let go of the connection; harmless when there is none."""
        self._held = None
        self._reader.discard()
