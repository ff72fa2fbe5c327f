"""Tables in ranges of their keys, for others to read at once: what `ReadsRanges` promises. Blocks.

A range is read chunk by chunk, as a copy reads it (`penstock.sources.mysql.chunks`): each in a
transaction of its own, whose snapshot has all that is before a position of the log. No stream need
be read for that, for the server says it (docs/decisions/0034). Rows are told as those of a copy:
the same values as the stream's (invariant 9).

Where a table does not divide, it is one range, read in one transaction.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pymysql
from msgspec import Struct

from penstock.errors import (
    ConfigError,
    SourceChangedError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.event import ChangeEvent
from penstock.mysql_causes import code_of
from penstock.ports import KeyRange, Listing, RangeRows
from penstock.sources.mysql import moments
from penstock.sources.mysql.agreement import seen
from penstock.sources.mysql.chunks import ChunkReader, Opened
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    NO_TABLE,
    Connected,
    ask,
    facts,
    obstacles,
    translated,
)
from penstock.sources.mysql.copying import Name
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.moments import KnownXas, NotNowError
from penstock.sources.mysql.positions import Flavour, MysqlPosition, Server
from penstock.sources.mysql.row_readers import UnreadableTableError
from penstock.sources.mysql.selecting import Key, Selection, Span, quoted
from penstock.sources.mysql.splitting import Splitter, expected_rows

T = TypeVar("T")
RANGE_BYTES: Final = 32 << 20
"""A range is about so large, or less."""
PATIENCE_SECONDS: Final = 10.0
"""So long it is tried to read what cannot be read at this moment."""
_CHANGED: Final = moments.PASSING | NO_TABLE | {1054, 1176}
"""The table is locked, or another one than it was: it is gone, or a column, or the key."""
_AGAIN_SECONDS: Final = 0.02
_AGAIN_SECONDS_MAX: Final = 1.0
_ROW_BYTES: Final = (
    "SELECT AVG_ROW_LENGTH FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


class Edge(Struct, frozen=True):
    """A key, as a range is bounded by it."""

    key: str
    """Which key that is: a place in another one is none in it."""
    at: Key


class _Reading(NamedTuple):
    """A table that does not divide, in the midst of its transaction."""

    name: Name
    opened: Opened
    number: int
    """Rows that were read."""
    read_at: str


class RangeReader:
    """Reads ranges by a connection of its own. Blocks; one thread at a time."""

    def __init__(self, source: str, config: MysqlSourceConfig) -> None:
        self._source = source
        self._config = config
        self._reader = ChunkReader(source, config)
        self._teller = Teller(source, tenant=config.tenant)
        self._position: MysqlPosition | None = None
        """The one as of which was read last,"""
        self._seconds = 0
        """and when that was asked for first, by the server's clock in Unix seconds."""
        self._reading: _Reading | None = None

    def ranges(self, database: str, collection: str, *, rows: int, known: MysqlPosition) -> Listing:
        """As `ReadsRanges.ranges`."""
        return self._when_it_can(known, lambda: self._listing(database, collection, rows, known))

    def read(self, part: KeyRange, *, known: MysqlPosition) -> RangeRows:
        """As `ReadsRanges.read_range`."""
        if part.after is not None and self._reading is not None:
            return self._continued(part)
        return self._when_it_can(known, lambda: self._rows(part, known))

    def close(self) -> None:
        """Let go of the connection; harmless when there is none."""
        self._reading = None
        self._reader.discard()

    # --- which ranges there are -----------------------------------------------------------------

    def _listing(self, database: str, collection: str, rows: int, known: MysqlPosition) -> Listing:
        obstacle = self._reader.asked(lambda by: moments.no_copies(by, known.flavour))
        if obstacle is not None:
            why, remedy = obstacle
            raise ConfigError(f"{self._source}: {why}. Nothing was read. What to do: {remedy}.")
        found: list[KeyRange] = []
        for name in self._names(database, collection):
            found += self._split(name, rows)
        return Listing(ranges=tuple(found), read_at=self._now(known.flavour))

    def _names(self, database: str, collection: str) -> list[Name]:
        """The captured tables that are so named. A table that is not among them had another name
        at a place of the binlog that is looked up behind this."""
        names = self._reader.tables()
        while (again := self._reader.tables()) != names:
            names = again  # a rename may hide both names from who looks just then
        if collection:
            databases = [database] if database else self._reader.asked(_databases)
            for name in ((one, collection) for one in databases):
                if name in self._config.scope and name not in names:
                    self._reader.asked(partial(_require_absent, name=name))
        return [one for one in names if database in {"", one[0]} and collection in {"", one[1]}]

    def _split(self, name: Name, rows: int) -> list[KeyRange]:
        selection = self._reader.described(name)
        if selection is None:
            return []  # it was dropped since
        database, collection = name
        edges: list[bytes | None] = [None]
        if selection.divides:
            shape = selection.definition.shape
            splitter = Splitter(selection, first_row=self._first_row, expected=self._expected)
            rows = min(rows, max(1, RANGE_BYTES // max(1, self._row_bytes(name))))
            edges += [_encode(Edge(shape, key)) for key in splitter.edges(rows=rows)]
        return [
            KeyRange(database=database, collection=collection, start=start, stop=stop)
            for start, stop in zip(edges, [*edges[1:], None], strict=True)
        ]

    def _first_row(self, statement: str) -> Sequence[Any] | None:
        return next(iter(self._reader.asked(lambda by: ask(by, statement))), None)

    def _expected(self, statement: str) -> int:
        return self._reader.asked(lambda by: expected_rows(by, statement))

    def _row_bytes(self, name: Name) -> int:
        """Of a row, about."""
        rows = self._reader.asked(lambda by: ask(by, _ROW_BYTES, *name))
        return int(rows[0][0] or 0) if rows else 0

    # --- rows -----------------------------------------------------------------------------------

    def _rows(self, part: KeyRange, known: MysqlPosition) -> RangeRows:
        name = (part.database, part.collection)
        opened = self._reader.open(name, known.told())
        selection = opened.selection
        if selection is None:
            return RangeRows(events=(), rest=None, read_at=self._now(known.flavour))
        if not selection.divides:
            if part != KeyRange(database=part.database, collection=part.collection):
                raise NotNowError("it is read in one transaction, which ended or was another key's")
            self._reading = _Reading(name, opened, 0, self._now(known.flavour))
            return self._portion(part)
        shape = selection.definition.shape
        span = Span(
            _key_of(part.after, shape), _key_of(part.start, shape), _key_of(part.stop, shape)
        )
        portion, _ = self._reader.chunk(opened, span)
        rest = None
        if not portion.last:
            after = _encode(Edge(shape, selection.place(portion.rows[-1])))
            rest = KeyRange(
                database=part.database, collection=part.collection, stop=part.stop, after=after
            )
        events = self._told(selection, portion.rows, first=0)
        self._reader.close()
        return RangeRows(
            events=events,
            rest=rest,
            read_at=self._now(known.flavour),
            varying=selection.compiled.varying,
        )

    def _portion(self, part: KeyRange) -> RangeRows:
        """The next rows of a table that does not divide."""
        reading, self._reading = self._reading, None
        assert reading is not None
        assert self._position is not None
        if part.after not in {None, str(reading.number).encode()}:
            raise NotNowError("it is read in one transaction, which has ended")
        selection = reading.opened.selection
        assert selection is not None
        portion = self._reader.portion(reading.opened)
        events = self._told(selection, portion.rows, first=reading.number)
        varying = selection.compiled.varying
        if portion.last:
            self._reader.close()
            read_at = self._now(self._position.flavour)
            return RangeRows(events=events, rest=None, read_at=read_at, varying=varying)
        self._reading = reading._replace(number=reading.number + len(events))
        rest = KeyRange(
            database=part.database,
            collection=part.collection,
            after=str(self._reading.number).encode(),
        )
        return RangeRows(events=events, rest=rest, read_at=reading.read_at, varying=varying)

    def _told(
        self, selection: Selection, rows: Sequence[tuple[Any, ...]], *, first: int
    ) -> tuple[ChangeEvent, ...]:
        """The rows as those of a copy. Raises UndecodableError."""
        assert self._position is not None
        events: list[ChangeEvent] = []
        for number, row in enumerate(rows, first):
            try:
                event = self._teller.row(
                    selection.document(row),
                    selection.compiled,
                    copy=self._position.gtids,
                    number=number,
                    seconds=self._seconds,
                )
            except ValueError as error:
                what = str(error)
                if isinstance(error, UnicodeDecodeError):
                    what = f"text that is not of its character set, {error.encoding}"
                where = ".".join(selection.definition.table)
                if selection.divides:
                    where += f" (its key is {', '.join(selection.place(row))})"
                raise self._undecodable(f"a row of {where}: {what}") from None
            events.append(event)
        return tuple(events)

    def _undecodable(self, what: str) -> UndecodableError:
        return UndecodableError(
            source=self._source,
            what=what,
            position="of a first load or a comparison",
            safe="It was read beside the stream, for what goes no further now; capture goes on, "
            "and what a first load wrote before is in the tables",
            remedy="Correct the row or the table at the source, or leave the table or the column "
            "out (`exclude`, `columns.exclude`), and start the pipeline again. And please report "
            "it with the type named here.",
        )

    # --- which server, and when -----------------------------------------------------------------

    def _when_it_can(self, known: MysqlPosition, act: Callable[[], T]) -> T:
        """What `act` returns, as soon as the server can say it as of a position."""
        until, pause = time.monotonic() + PATIENCE_SECONDS, _AGAIN_SECONDS

        def attempt() -> T:
            self._identify(known)
            return act()

        while True:
            try:
                return self._ours(attempt)
            except NotNowError as error:
                self._drop()
                if time.monotonic() > until:
                    raise self._unavailable(error) from None
            time.sleep(pause)
            pause = min(2 * pause, _AGAIN_SECONDS_MAX)

    def _continued(self, part: KeyRange) -> RangeRows:
        """The next rows of a table whose transaction is under way."""
        try:
            return self._ours(lambda: self._portion(part))
        except NotNowError as error:
            self._drop()
            raise self._unavailable(error) from None

    def _ours(self, act: Callable[[], T]) -> T:
        """What `act` returns; what the client library raises, in our words."""
        try:
            return act()
        except UnreadableTableError as error:
            raise self._undecodable(str(error)) from None
        except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
            if code_of(error) in _CHANGED:
                raise NotNowError(f"the server says {code_of(error)}: {error.args[-1]}") from None
            self.close()
            raise translated(self._source, self._config, error) from None

    def _identify(self, known: MysqlPosition) -> None:
        """Have the very server of the position, and all of the position in its binlog.

        Each time: the connection may be another one than the last.
        """
        found = self._reader.asked(facts)
        server = Server(found.server_id, found.server_uid)
        if server != known.server:
            raise SourceChangedError(
                source=self._source, expected=str(known.server), found=str(server)
            )
        if unfit := obstacles(found):
            why, remedy = unfit[0]
            raise ConfigError(f"{self._source}: {why}. Nothing was read. What to do: {remedy}.")
        logged = found.gtid_logged
        if known.flavour == "mysql_files":
            logged = self._now(known.flavour)
        strange = known.told().unknown(logged)
        if strange is not None:
            raise NotNowError(f"its binlog has not got to {strange} yet, which the log has")
        if self._position is None or self._position.gtids != known.gtids:
            self._seconds = self._reader.seconds()
            # Whatever is listed from here on may have ended before the position.
            self._reader.xas = KnownXas()
        self._position = known

    def _now(self, flavour: Flavour) -> str:
        """A place of the binlog at or behind all that anybody can see."""
        return self._reader.asked(lambda by: seen(by, flavour))

    def _drop(self) -> None:
        self._reading = None
        self._reader.close()

    def _unavailable(self, why: NotNowError) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"{self._source}: rows cannot be read as of the log's place at this moment: {why}. "
            f"Nothing was mixed, and what a first load wrote before is in the tables. If this "
            f"comes again and again, look at what is named here."
        )


def _require_absent(connection: Connected, name: Name) -> None:
    """Have no statement under way that gives a table this name, or takes it away, and that is not
    in the binlog yet. Raises NotNowError."""
    try:
        ask(connection, f"SELECT {moments.touch(connection)} 1 FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
    except pymysql.MySQLError as error:
        if code_of(error) in moments.PASSING:
            raise NotNowError(f"{'.'.join(name)} is being altered") from None
        if code_of(error) not in NO_TABLE:
            raise


def _databases(connection: Connected) -> list[str]:
    rows = ask(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return [str(name) for (name,) in rows]


def _encode(edge: Edge) -> bytes:
    return msgspec.json.encode(edge)


def _key_of(edge: bytes | None, shape: str) -> Key | None:
    """The key of an edge. Raises NotNowError for one of another key than the table has now."""
    if edge is None:
        return None
    found = msgspec.json.decode(edge, type=Edge)
    if found.key != shape:
        raise NotNowError("its key was altered since it was divided, which the log tells soon")
    return found.at
