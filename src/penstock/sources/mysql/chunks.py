"""Reading chunks of rows, each as of a known place of the binlog, without a lock on anything.

A chunk is read in a transaction WITH CONSISTENT SNAPSHOT. MariaDB begins it together with one of
its binlog: `Binlog_snapshot_file` and `_position` say behind which transaction it stands, exactly.
That holds for tables of InnoDB. What else there is to know:

- *Nothing that was told is missing from it.* A server sends a transaction to its replicas a moment
  before it is seen by others (with semi-synchronous replication, until a replica has answered). So
  the first transaction behind the snapshot is looked up in the binlog; if the stream has told it
  already, the snapshot is too old, and another one is taken later.
- *The table is the one of that place.* Its definition is read before the snapshot, and again once
  the transaction has touched the table, from when on no statement can change it. If they differ, or
  the server says that the table is newer than the snapshot, another one is taken.
- *A table that is not there was gone by then*: another snapshot, taken after that was seen, is the
  place up to which the stream may have told of it.
- *Tables of other engines* (MyISAM, Aria) have no snapshots, and show a change before the binlog
  has it. Their chunk is read at some moment between the snapshot before and one that is taken after
  it; whoever holds it drops the rows that the stream tells up to there.

The transaction ends with the chunk, so nothing is held while nobody asks for the next one. A table
that cannot be divided is read in one transaction, begun once the stream has read up to near it;
then ALTER waits for its end, as it does for any SELECT.
Source: the MariaDB documentation, "START TRANSACTION" (WITH CONSISTENT SNAPSHOT) and "Enhancements
for START TRANSACTION WITH CONSISTENT SNAPSHOT".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.cursors import SSCursor

from penstock.sources.mysql.binlog import Gtid
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    GONE,
    NO_TABLE,
    Connected,
    abort,
    ask,
    binlogs,
    code_of,
    connect,
    discard,
    tables,
    translated,
)
from penstock.sources.mysql.copying import Name
from penstock.sources.mysql.places import OFFSETS, Place
from penstock.sources.mysql.positions import parse_gtids
from penstock.sources.mysql.selecting import (
    ColumnFacts,
    Definition,
    KeyPart,
    Selection,
    quoted,
)

CHUNK_BYTES_MAX: Final = 4 << 20
"""Of values in one chunk, as the server sends them; a single row may be larger."""
_READ_SECONDS_MIN: Final = 60.0
_IDLE_SECONDS: Final = 30
"""The server ends a transaction of ours in which we do nothing for so long."""
_WRITE_SECONDS: Final = 3600
"""As long as the log may take no more rows of a table that is read in one transaction."""
_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION sql_mode = '', sql_select_limit = DEFAULT, max_statement_time = 0",
    f"SET SESSION lock_wait_timeout = 0, net_write_timeout = {_WRITE_SECONDS}",
    f"SET SESSION idle_transaction_timeout = {_IDLE_SECONDS}",
)
_PASSING: Final = frozenset({1205, 1412, 1220, 1927})
"""The table is locked, which nobody waits for, or newer than the snapshot; the binlog at the
snapshot was purged; we were idle for too long."""
_PRIMARY: Final = "PRIMARY"
_FIRST_EVENT: Final = 4
_WITH_SNAPSHOTS: Final = frozenset({"innodb"})
_EVENTS_AT_ONCE: Final = 8
_GTID: Final = re.compile(r"GTID (\d+-\d+-\d+)")
_TABLE: Final = (
    "SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)
_COLUMNS: Final = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, "
    "GENERATION_EXPRESSION FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_TABLE_TYPES: Final = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})
_START: Final = "ROW START"
_END: Final = "ROW END"
_HIDDEN: Final = {_START: "row_start", _END: "row_end"}
"""Of a table whose versions were declared without columns of its own."""


class NotNowError(Exception):
    """What was to be read cannot be at this moment, and can be a little later."""


class Moment(NamedTuple):
    """A place of the binlog, and what was known when it was looked up."""

    place: Place
    gtids: dict[int, Gtid]
    """The last transactions of the binlog a moment later."""
    behind: Gtid | None = None
    """The first transaction behind the place; None if there was none yet, or it was not asked."""


class Opened(NamedTuple):
    """A table in a transaction."""

    name: Name
    selection: Selection | None
    """None: there is no such table."""
    moment: Moment
    exact: bool
    """Whether all that is read is as of that moment. Else it is of later ones."""


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

    def tables(self) -> list[Name]:
        """The captured tables that are there, in order."""
        return sorted(tables(self._connected(), self._config.scope))

    def seconds(self) -> int:
        """The server's clock, in Unix seconds."""
        ((now,),) = ask(self._connected(), "SELECT UNIX_TIMESTAMP()")
        return int(now)

    # --- a transaction ---------------------------------------------------------------------------

    def open(self, name: Name, told: dict[int, Gtid]) -> Opened:
        """Begin a transaction that reads a table, and that `close` ends.

        `told` are the last transactions that the stream has told: what is read has all of them.
        """
        try:
            before = self._known
            if before is None or before.table != name:
                before = self._known = self._defined(name)
            moment = self._begin(told)
            found = self._touched(name)
        except pymysql.MySQLError as error:
            self._not_now(error)
            raise
        if found is None:
            self._known = None
            return Opened(name, None, self._now(), exact=True)
        if found != before:
            # The next snapshot is of what it is now.
            self._known = found
            self.close()
            raise NotNowError
        exact = found.engine.lower() in _WITH_SNAPSHOTS
        # A moment at which nobody can alter the table any more.
        selection = Selection(found, rules=self._rules)
        return Opened(name, selection, moment if exact else self._now(), exact)

    def chunk(self, opened: Opened, after: tuple[str, ...] | None) -> tuple[Portion, Moment]:
        """The next rows of a table that divides, behind the key `after`, and of which moment.

        Those of a table without snapshots are of some time up to then.
        """
        assert opened.selection is not None
        limit = self._limit
        self._select(opened.selection.statement(after, limit))
        rows, size = self._taken(limit + 1)
        cut = self._cursor is not None
        if cut:
            self.discard()
        if rows:
            # Rows of this size fill half a chunk, so that one is seldom cut.
            fitting = CHUNK_BYTES_MAX * len(rows) // max(2 * size, 1)
            self._limit = min(max(fitting, 1), self._config.snapshot_chunk_documents)
        portion = Portion(rows, last=not cut and len(rows) < limit)
        return portion, opened.moment if opened.exact else self._now()

    def portion(self, opened: Opened) -> Portion:
        """The next rows of a table that does not divide, all in this one transaction."""
        assert opened.selection is not None
        if self._cursor is None:
            self._select(opened.selection.statement(None, None))
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

    def _begin(self, told: dict[int, Gtid]) -> Moment:
        """Take a snapshot that has all of `told`."""
        connection = self._connected()
        ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        said = dict(ask(connection, "SHOW SESSION STATUS LIKE 'Binlog_snapshot_%'"))
        file, offset = str(said["Binlog_snapshot_file"]), int(said["Binlog_snapshot_position"])
        behind = first_behind(connection, file, offset)
        too_old = behind is not None and is_told(behind, told)
        if too_old or offset >= OFFSETS:
            self.close()
            raise NotNowError
        return Moment(Place.of(file, offset), _last(connection), behind)

    def _now(self) -> Moment:
        """Behind everything that anybody can see."""
        connection = self._connected()
        ((file, offset, *_),) = ask(connection, "SHOW BINLOG STATUS")
        if int(offset) >= OFFSETS:
            self.close()
            raise NotNowError
        return Moment(Place.of(str(file), int(offset)), _last(connection))

    def _touched(self, name: Name) -> Definition | None:
        """The table as it is to the end of this transaction; None if it is not there."""
        connection = self._connected()
        try:
            ask(connection, f"SELECT 1 FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
        except pymysql.MySQLError as error:
            if code_of(error) in NO_TABLE:
                return None
            raise
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
        if code in GONE:
            self.discard()
        if code in GONE or code in _PASSING:
            self.close()
            raise NotNowError from None

    def _connected(self) -> Connected:
        if self._connection is None:
            seconds = max(self._config.connect_timeout, _READ_SECONDS_MIN)
            connection = connect(self._source, self._config, read_seconds=seconds)
            self._connection = connection
            # Everything as the server sends it: bytes, or text that is ASCII.
            connection.decoders = {}
            for setting in _SETTINGS:
                ask(connection, setting)
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
        for one, kind, whole, charset, collation, extra, _ in described
        if "VIRTUAL" not in str(extra).upper()
    ]
    found, parts = _key(index)
    if versioned:
        said = {str(row[6]): str(row[0]) for row in described if row[6] in _HIDDEN}
        if not said:
            stamp = ("timestamp", "timestamp(6)", None, None)
            columns += [ColumnFacts(hidden, *stamp) for hidden in _HIDDEN.values()]
        end = said.get(_END, _HIDDEN[_END])
        if parts and all(part.name != end for part in parts):
            parts.append(KeyPart(end, partial=False))
    return Definition(*name, engine, tuple(columns), found, tuple(parts), versioned)


def _key(index: Sequence[tuple[Any, ...]]) -> tuple[str, list[KeyPart]]:
    """The index by which rows are known, and its columns in its order."""
    parts: dict[str, list[KeyPart]] = {}
    unfit: set[str] = set()
    for _, not_unique, named, _, column, _, _, prefix, _, nullable, kind, *_ in index:
        of_index = str(named)
        parts.setdefault(of_index, []).append(KeyPart(str(column), partial=prefix is not None))
        if int(not_unique) or nullable == "YES" or kind == "HASH" or column is None:
            unfit.add(of_index)
        if prefix is not None and of_index != _PRIMARY:
            unfit.add(of_index)
    if _PRIMARY in parts:
        return _PRIMARY, parts[_PRIMARY]
    for of_index, columns in parts.items():
        if of_index not in unfit:
            return of_index, columns
    return "", []


def first_behind(connection: Connected, file: str, offset: int) -> Gtid | None:
    """The first transaction that a server's binlogs have at or behind a place; None without one."""
    names: list[str] | None = None
    while True:
        events = ask(
            connection,
            f"SHOW BINLOG EVENTS IN %s FROM {offset} LIMIT {_EVENTS_AT_ONCE}",
            file,
        )
        for _, _, kind, _, end, info in events:
            found = _GTID.search(str(info)) if kind == "Gtid" else None
            if found is not None:
                return Gtid.parse(found[1])
            offset = int(end)
        if len(events) == _EVENTS_AT_ONCE:
            continue
        names = names or binlogs(connection)
        later = names[names.index(file) + 1 :] if file in names else list[str]()
        if not later:
            return None
        file, offset = later[0], _FIRST_EVENT


def is_told(gtid: Gtid, told: Mapping[int, Gtid]) -> bool:
    """Whether a transaction is among those up to the last ones of each domain."""
    last = told.get(gtid.domain)
    return last is not None and last.sequence >= gtid.sequence


def _last(connection: Connected) -> dict[int, Gtid]:
    ((text,),) = ask(connection, "SELECT @@gtid_binlog_pos")
    return parse_gtids(str(text))


def captured_tables(source: str, config: MysqlSourceConfig) -> list[Name]:
    """The captured tables that are there, in order; by a connection for this alone.

    Raises SourceError where the server does not answer.
    """
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        return sorted(tables(connection, config.scope))
    except (pymysql.MySQLError, OSError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)
