"""Reading chunks of rows, each as of a known place of the binlog, without a lock on anything.

A chunk is read in a transaction WITH CONSISTENT SNAPSHOT. Where in the binlog that is, the server
says exactly (MariaDB) or between two marks (MySQL): `penstock.sources.mysql.moments` knows. That
holds for tables of InnoDB. What else there is to know:

- *Nothing that was told is missing from it.* A server sends a transaction to its replicas a moment
  before it is seen by others (with semi-synchronous replication, until a replica has answered). A
  snapshot that may lack one is too old, and another one is taken later.
- *What is in doubt is told.* Rows that change between the marks are those of the stream; whoever
  holds the chunk drops them.
- *The table is the one of that place.* Its definition is read before the snapshot, and again once
  the transaction has touched the table, from when on no statement can change it. If they differ, or
  the server says that the table is newer than the snapshot, another one is taken. Of MySQL, the
  second definition is the snapshot's too; so its place is looked up behind the touch, and whoever
  holds the chunk drops it for a statement on the table that is told before.
- *A table that is not there was gone by then*: another snapshot, taken after that was seen, is the
  place up to which the stream may have told of it.
- *Tables of other engines* (MyISAM, Aria) have no snapshots, and show a change before the binlog
  has it. Their chunk is read at some moment between the snapshot before and a place that is looked
  up after it; whoever holds it drops the rows that the stream tells up to there.

The transaction ends with the chunk, so nothing is held while nobody asks for the next one. A table
that cannot be divided is read in one transaction, begun once the stream has read up to near it;
then ALTER waits for its end, as it does for any SELECT.
Source: the MariaDB documentation, "START TRANSACTION" (WITH CONSISTENT SNAPSHOT); the MySQL manual,
"Consistent Nonlocking Reads", and "Optimizer Hints" for the time that a SELECT may take.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pymysql
from pymysql.cursors import SSCursor

from penstock.errors import RequestError
from penstock.mysql_causes import code_of
from penstock.sources.mysql import moments
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    GONE,
    NO_TABLE,
    Connected,
    abort,
    ask,
    column_now,
    connect,
    discard,
    seconds_now,
    tables,
    translated,
)
from penstock.sources.mysql.copying import Name
from penstock.sources.mysql.moments import Begun, Moment, NotNowError
from penstock.sources.mysql.positions import Flavour, Told
from penstock.sources.mysql.row_readers import UnreadableTableError
from penstock.sources.mysql.selecting import (
    WHOLE,
    ColumnFacts,
    Definition,
    KeyPart,
    Selection,
    Span,
    quoted,
)

T = TypeVar("T")
CHUNK_BYTES_MAX: Final = 4 << 20
"""Of values in one chunk, as the server sends them; a single row may be larger."""
_READ_SECONDS_MIN: Final = 60.0
_NO_COLUMN: Final = 1054
"""The table has lost a column since the snapshot, of which its definition is. The next snapshot has
another definition; if it has not, the server does not read what it describes."""
_NO_COLUMN_TIMES_MAX: Final = 10
_PRIMARY: Final = "PRIMARY"
_WITH_SNAPSHOTS: Final = frozenset({"innodb"})
_TABLE: Final = (
    "SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)
_COLUMNS: Final = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, "
    "GENERATION_EXPRESSION, COLUMN_DEFAULT FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_TABLE_TYPES: Final = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})
_START: Final = "ROW START"
_END: Final = "ROW END"
_HIDDEN: Final = {_START: "row_start", _END: "row_end"}
"""Of a table whose versions were declared without columns of its own."""


class Opened(NamedTuple):
    """A table in a transaction."""

    name: Name
    selection: Selection | None
    """None: there is no such table."""
    moment: Moment
    told: Told
    """What the stream had told."""
    doubts: Callable[[str], bool] = moments.everything
    """Whether what is read may lack a transaction that is before the moment, by its name."""
    at_once: bool = True
    """Whether all that is read is of one moment, up to this one. Else it is of any, later too."""


class Portion(NamedTuple):
    """Rows that follow one another."""

    rows: list[tuple[Any, ...]]
    last: bool
    """Whether no more follow."""


class ChunkReader:
    """Reads tables by a connection of its own. Blocks; one thread at a time.

    Raises NotNowError, what the client library raises, and UnreadableTableError.
    """

    def __init__(self, source: str, config: MysqlSourceConfig) -> None:
        self._source = source
        self._config = config
        self._rules = config.columns.rules
        self._connection: Connected | None = None
        self._cursor: SSCursor | None = None
        self._known: Definition | None = None
        """The table that was read last, as it was then."""
        self._limit = config.snapshot_chunk_documents
        self._no_column_times = 0
        """How often in a row a column of one definition was not there."""
        self.xas = moments.KnownXas()
        """What the stream has read."""

    def tables(self) -> list[Name]:
        """The captured tables that are there, in order. Ends a transaction: MariaDB leaves tables
        out that are being altered, with a mere warning, for who has another one locked."""
        self.close()
        return sorted(self.asked(lambda by: tables(by, self._config.scope)))

    def seconds(self) -> int:
        """The server's clock, in Unix seconds."""
        return self.asked(seconds_now)

    def described(self, name: Name) -> Selection | None:
        """How rows of a table are read now; None if there is none. Ends a transaction."""
        self.close()
        found = self.asked(lambda _: self._defined(name))
        return None if found is None else Selection(found, rules=self._rules)

    def asked(self, question: Callable[[Connected], T]) -> T:
        """Ask between two transactions; by another connection if this one was idle for too long."""
        try:
            return question(self._connected())
        except pymysql.MySQLError as error:
            if code_of(error) not in GONE:
                raise
            self.discard()
            return question(self._connected())

    # --- a transaction ---------------------------------------------------------------------------

    def open(self, name: Name, told: Told) -> Opened:
        """Begin a transaction that reads a table, and that `close` ends.

        What is read has all of `told`, which the stream has told.
        """
        try:
            before = self._known
            if before is None or before.table != name:
                before = self._known = self._defined(name)
            begun = self._begin(told)
            found = self._touched(name)
        except NotNowError:
            self.close()
            raise
        except pymysql.MySQLError as error:
            self._not_now(error)
            raise
        if found is None:
            self._known = None
            return Opened(name, None, self._now(told), told)
        if found != before:
            # The next snapshot is of what it is now.
            self._known = found
            self._no_column_times = 0
            self.close()
            raise NotNowError("its definition changed meanwhile")
        selection = Selection(found, rules=self._rules)
        if found.engine.lower() not in _WITH_SNAPSHOTS:
            doubts = moments.everything if begun.moment is not None else begun.doubts
            return Opened(name, selection, self._now(told), told, doubts, at_once=False)
        # Else a moment at which nobody can alter the table any more.
        return Opened(name, selection, begun.moment or self._now(told), told, begun.doubts)

    def chunk(self, opened: Opened, span: Span) -> tuple[Portion, Moment]:
        """The first rows of a span of a table that divides, and of which moment.

        Those of a table without snapshots are of some time up to then.
        """
        assert opened.selection is not None
        limit = self._limit
        self._select(opened.selection.statement(span, limit))
        rows, size = self._taken(limit + 1)
        cut = self._cursor is not None
        if cut:
            self.discard()
        if rows:
            # Rows of this size fill half a chunk, so that one is seldom cut.
            fitting = CHUNK_BYTES_MAX * len(rows) // max(2 * size, 1)
            self._limit = min(max(fitting, 1), self._config.snapshot_chunk_documents)
        portion = Portion(rows, last=not cut and len(rows) < limit)
        return portion, opened.moment if opened.at_once else self._now(opened.told)

    def portion(self, opened: Opened) -> Portion:
        """The next rows of a table that does not divide, all in this one transaction."""
        assert opened.selection is not None
        if self._cursor is None:
            self._select(opened.selection.statement(WHOLE, None))
        rows, _ = self._taken(self._config.snapshot_chunk_documents)
        return Portion(rows, last=self._cursor is None)

    def close(self) -> None:
        """End the transaction."""
        if self._cursor is not None:
            self.discard()
        elif self._connection is not None:
            try:
                ask(self._connection, "ROLLBACK")
            except pymysql.MySQLError:
                self.discard()  # it was only to be ended

    def discard(self) -> None:
        """Let go of the connection; harmless when there is none."""
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            discard(connection)

    def abort(self) -> None:
        """Have whoever reads return with an error; from any thread."""
        connection = self._connection
        if connection is not None:
            abort(connection)

    # --- what it consists of ---------------------------------------------------------------------

    def _begin(self, told: Told) -> Begun:
        """Take a snapshot that has all of `told`."""
        return moments.begin(self._connected(), told, self.xas)

    def _now(self, told: Told) -> Moment:
        """Behind everything that anybody can see."""
        try:
            return moments.now(self._connected(), told)
        except NotNowError:
            self.close()
            raise

    def _touched(self, name: Name) -> Definition | None:
        """The table as it is to the end of this transaction; None if it is not there."""
        connection = self._connected()
        try:
            ask(connection, f"SELECT {moments.touch(connection)} 1 FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
        except pymysql.MySQLError as error:
            if code_of(error) in NO_TABLE:
                return None
            raise
        if not ask(connection, _TABLE, *name):
            # It came since the snapshot, of which this answer is.
            raise NotNowError("it came since the snapshot")
        return self._defined(name)

    def _defined(self, name: Name) -> Definition | None:
        """The table as the server describes it; None if there is none that has rows of its own."""
        connection = self._connected()
        found = ask(connection, _TABLE, *name)
        if not found or found[0][0] not in _TABLE_TYPES:
            return None
        ((kind, engine),) = found
        described = ask(connection, _COLUMNS, *name)
        try:
            index = ask(connection, f"SHOW INDEX FROM {quoted(name)}")
        except pymysql.MySQLError as error:
            if code_of(error) in NO_TABLE:
                return None
            raise
        return defined(name, str(engine), described, index, versioned=kind != "BASE TABLE")

    def _select(self, statement: str) -> None:
        cursor = self._connected().cursor(SSCursor)
        try:
            cursor.execute(statement)
        except pymysql.MySQLError as error:
            self._not_now(error)
            raise
        self._no_column_times = 0
        self._cursor = cursor

    def _taken(self, rows_max: int) -> tuple[list[tuple[Any, ...]], int]:
        """Rows up to a chunk's size, and their bytes; the cursor is let go of at their end."""
        assert self._cursor is not None
        rows: list[tuple[Any, ...]] = []
        size = 0
        try:
            while len(rows) < rows_max and size < CHUNK_BYTES_MAX:
                row = self._cursor.fetchone()
                if row is None:
                    self._cursor = None
                    break
                rows.append(row)
                size += sum(len(value) for value in row if value is not None)
        except pymysql.MySQLError as error:
            self._not_now(error)
            raise
        return rows, size

    def _not_now(self, error: pymysql.MySQLError) -> None:
        """Raise NotNowError for what another snapshot, or another moment, mends."""
        code = code_of(error)
        if code == _NO_COLUMN:
            self._no_column_times += 1
            self.close()
            if self._no_column_times < _NO_COLUMN_TIMES_MAX:
                raise NotNowError("it has lost a column since the snapshot")
            raise UnreadableTableError(
                f"the server describes a column that it then does not read ({error.args[-1]})"
            ) from error
        if code in GONE:
            self.discard()
        if code in GONE or code in moments.PASSING:
            self.close()
            raise NotNowError(f"the server says {code}: {error.args[-1]}") from None

    def _connected(self) -> Connected:
        if self._connection is None:
            seconds = max(self._config.connect_timeout, _READ_SECONDS_MIN)
            connection = connect(self._source, self._config, read_seconds=seconds)
            self._connection = connection
            # Everything as the server sends it: bytes, or text that is ASCII.
            connection.decoders = {}
            moments.prepare(connection)
        return self._connection


def defined(
    name: Name,
    engine: str,
    described: Sequence[tuple[Any, ...]],
    index: Sequence[tuple[Any, ...]],
    *,
    versioned: bool,
) -> Definition:
    """A table of the server's answers. Virtual columns are left out, as they are of a binlog. Pure.

    Its key is the primary one, or the first that is unique and without NULL, which then is known by
    its name; of a table that is versioned, with the end of a version.
    """
    columns = [
        ColumnFacts(str(one), str(kind), str(whole), charset, collation)
        for one, kind, whole, charset, collation, extra, *_ in described
        if "VIRTUAL" not in str(extra).upper()
    ]
    found, parts = _key(index, {column.name for column in columns})
    if versioned:
        said = {str(row[6]): str(row[0]) for row in described if row[6] in _HIDDEN}
        if not said:
            stamp = ("timestamp", "timestamp(6)", None, None)
            columns += [ColumnFacts(hidden, *stamp) for hidden in _HIDDEN.values()]
        end = said.get(_END, _HIDDEN[_END])
        if parts and all(part.name != end for part in parts):
            parts.append(KeyPart(end, partial=False))
    computed = {
        str(one): facts.expression
        for one, _, _, _, _, *said in described
        if (facts := column_now(*said)).expression
    }
    return Definition(*name, engine, tuple(columns), found, tuple(parts), versioned, computed)


def _key(index: Sequence[tuple[Any, ...]], there: Collection[str]) -> tuple[str, list[KeyPart]]:
    """The index by which rows are known, of columns that are `there`, and these in its order."""
    parts: dict[str, list[KeyPart]] = {}
    unfit: set[str] = set()
    for _, not_unique, named, _, column, _, _, prefix, _, nullable, kind, *_ in index:
        of_index = str(named)
        parts.setdefault(of_index, []).append(KeyPart(str(column), partial=prefix is not None))
        if int(not_unique) or nullable == "YES" or kind == "HASH" or column not in there:
            unfit.add(of_index)
        if prefix is not None and of_index != _PRIMARY:
            unfit.add(of_index)
    if _PRIMARY in parts:
        return _PRIMARY, parts[_PRIMARY]
    for of_index, columns in parts.items():
        if of_index not in unfit:
            return of_index, columns
    return "", []


def captured_tables(source: str, config: MysqlSourceConfig, flavour: Flavour) -> list[Name]:
    """The captured tables that are there, in order; by a connection for this alone.

    Raises SourceError where the server does not answer, RequestError where its tables cannot be
    copied beside a stream whose places are of this flavour.
    """
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        obstacle = moments.no_copies(connection, flavour)
        if obstacle is not None:
            why, remedy = obstacle
            raise RequestError(f"{source}: {why}. Nothing was copied. What to do: {remedy}.")
        return sorted(tables(connection, config.scope))
    except (pymysql.MySQLError, OSError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)
