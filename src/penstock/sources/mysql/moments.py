"""Where in a binlog a snapshot is, as far as a server says, and what is surely in it. Blocks.

MariaDB begins a transaction together with a snapshot of its binlog and says where that is: all that
is before the place is in it, and nothing else. MySQL says nothing of the kind, so the snapshot is
between two marks:

- *All that the stream has told is in it.* A server sends a transaction before others see it. MySQL
  takes it into `gtid_executed` behind the moment at which they do: so the set is read first, and
  has all that was told, or there is no snapshot yet. Without GTIDs, the place where the binlog ends
  is read first; then all commits that are under way must end. Each of them holds a metadata lock
  of the kind COMMIT from before it is written to the binlog until it is seen, which
  `performance_schema.metadata_locks` lists.
- *All that is in it is before a place of the binlog*: before anybody sees a transaction it is
  written there. So the place where the binlog ends is read behind the snapshot.

What is between the two marks may be in the snapshot or not. Each of these transactions is told
before the place, so rows that they change are theirs to tell, whatever was read of them.
Sources: the MariaDB documentation, "Enhancements for START TRANSACTION WITH CONSISTENT SNAPSHOT";
the MySQL manual, "The metadata_locks Table"; the MySQL source, MYSQL_BIN_LOG::ordered_commit (the
stages of a commit, and the call of Gtid_state::update_commit_group) and ha_commit_trans.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from penstock.errors import ConfigError
from penstock.sources.mysql.binlog import Gtid, xid_text
from penstock.sources.mysql.connection import Connected, ask, binlog_end, binlogs
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.places import OFFSETS, Place
from penstock.sources.mysql.positions import Domains, Flavour, Told, parse_gtids

IDLE_SECONDS: Final = 30
"""The server ends a transaction of ours in which we do nothing for so long."""
TOUCH_MILLIS: Final = 50
"""How long to wait for a table that somebody has locked, where a server cannot but wait."""
PASSING: Final = frozenset({1205, 1412, 1220, 1927, 3024})
"""The table is locked, which nobody waits for, or newer than the snapshot; the binlog at the
snapshot was purged; we were idle for too long."""
_WRITE_SECONDS: Final = 3600
"""As long as the log may take no more rows of a table that is read in one transaction."""
_COMMITS_SECONDS: Final = 0.2
"""How long to wait for commits that are under way, before others are told of the stream."""
_XAS_MAX: Final = 10_000
"""As many XA COMMITs as are surely not under way at once: each has a session of its own."""
_XAS_NAMED: Final = 5
_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    f"SET SESSION sql_mode = '', sql_select_limit = DEFAULT, net_write_timeout = {_WRITE_SECONDS}",
)
_SETTINGS_OF_MARIADB: Final = (
    "SET SESSION max_statement_time = 0, lock_wait_timeout = 0",
    f"SET SESSION idle_transaction_timeout = {IDLE_SECONDS}",
)
_SETTINGS_OF_MYSQL: Final = (
    # What waits for no longer than a second is its shortest: see `touch`.
    f"SET SESSION max_execution_time = 0, lock_wait_timeout = 1, wait_timeout = {IDLE_SECONDS}",
    # An index that queries do not use is a key of rows all the same.
    "SET SESSION optimizer_switch = 'use_invisible_indexes=on'",
)
_GENERATED_KEYS: Final = "show_gipk_in_create_table_and_information_schema"
_FIRST_EVENT: Final = 4
_EVENTS_AT_ONCE: Final = 8
_GTID: Final = re.compile(r"GTID (\d+-\d+-\d+)")
BEGIN: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_LOCKS: Final = "wait/lock/metadata/sql/mdl"
_CONSUMER: Final = "global_instrumentation"
_COMMITS: Final = (
    "SELECT OBJECT_INSTANCE_BEGIN, OWNER_THREAD_ID, OWNER_EVENT_ID "
    "FROM performance_schema.metadata_locks WHERE OBJECT_TYPE = 'COMMIT'"
)
_LOST: Final = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN "
    "('Performance_schema_metadata_lock_lost', 'Performance_schema_thread_instances_lost') "
    "AND Value <> '0'"
)
NO_COPIES: Final = (
    (
        "tables of a MySQL without GTIDs are copied only where its performance_schema lists all "
        "metadata locks, for nothing else says which transactions a snapshot has"
    ),
    (
        f"set gtid_mode = ON and begin a new source; or performance_schema = ON with the "
        f"instrument {_LOCKS} and the consumer {_CONSUMER}, and enough room for locks and threads "
        f"(Performance_schema_..._lost); or leave 'snapshot' out of start and on_position_lost"
    ),
)
"""An obstacle, of who wants copies."""


class NotNowError(Exception):
    """What was to be read cannot be at this moment, and can be a little later; its text says why.

    What is waited for may not end by itself, so whoever waits for long says so.
    """


class Moment(NamedTuple):
    """A place of the binlog, and what was known when it was looked up."""

    place: Place
    is_told: bool
    """Whether the stream had told all that is before the place."""
    behind: Gtid | None = None
    """The first transaction behind the place; None if there was none yet, or it was not asked."""


class Begun(NamedTuple):
    """A snapshot that has all that the stream had told."""

    moment: Moment | None
    """Where it is exactly; None: not behind a place that is looked up later."""
    doubts: Callable[[str], bool]
    """Whether it may lack a transaction that is before that place, by its name."""


def everything(_: str) -> bool:
    """What is in doubt where nothing is known."""
    return True


class KnownXas:
    """What a stream has read of MariaDB's XA transactions: which are prepared, and which ended.

    An XA COMMIT is in the binlog before InnoDB commits it, and a snapshot is between the two as it
    likes: the one thing that it lacks before its place. Until then XA RECOVER lists it, as it lists
    what is only prepared. Of one that ended in this stream, and is listed, it is waited for; and so
    it is of one of which this stream has read nothing, and that was listed when it was asked first:
    an earlier session may have told its commit. Any other that is listed was prepared since.
    """

    def __init__(self) -> None:
        self._gtids: dict[str, str] = {}
        """Of those that ended, the last ones: by the name of the transaction, in their order;"""
        self._ends = set[str]()
        """and these alone."""
        self._prepared = set[str]()
        self._strange: set[str] | None = None
        """Those that may have ended in an earlier session; None: nobody has asked yet."""

    def passed(self, xid: str, gtid: Gtid, *, prepares: bool) -> None:
        """The next transaction prepares the XA transaction of that name, or ends it."""
        self._ends.discard(self._gtids.pop(xid, ""))
        if prepares:
            self._prepared.add(xid)
            return
        self._prepared.discard(xid)
        self._gtids[xid] = str(gtid)
        self._ends.add(str(gtid))
        if len(self._gtids) > _XAS_MAX:
            self._ends.discard(self._gtids.pop(next(iter(self._gtids))))

    def require_seen(self, connection: Connected) -> None:
        """Raise NotNowError while others may not see what one of them did.

        Not while the stream still reads again what was told before it: what is prepared there may
        have ended there.
        """
        if self._strange is not None and not self._strange and not self._gtids:
            return
        rows = ask(connection, "XA RECOVER")
        listed = {xid_text(data, int(first), int(form)) for form, first, _, data in rows}
        strange = listed if self._strange is None else listed & self._strange
        self._strange = strange - self._prepared - self._gtids.keys()
        if listed & self._gtids.keys():
            raise NotNowError("an XA transaction is being committed")
        if self._strange:
            names = ", ".join(sorted(self._strange)[:_XAS_NAMED])
            raise NotNowError(
                f"{len(self._strange)} XA transactions were prepared before capture began, or are "
                f"being committed: {names}. XA RECOVER lists them: commit or roll back what waits"
            )

    def doubts(self, gtid: str) -> bool:
        """Whether that is the commit of one, which a snapshot from before may lack."""
        return gtid in self._ends


def is_mariadb(connection: Connected) -> bool:
    """Whether that is the server of a connection."""
    return "mariadb" in str(cast("Any", connection).get_server_info()).lower()


def prepare(connection: Connected) -> None:
    """Make a connection one that snapshots can be taken by."""
    own = _SETTINGS_OF_MARIADB if is_mariadb(connection) else _SETTINGS_OF_MYSQL
    for setting in (*_SETTINGS, *own):
        ask(connection, setting)
    if ask(connection, "SHOW SESSION VARIABLES LIKE %s", _GENERATED_KEYS):
        ask(connection, f"SET SESSION {_GENERATED_KEYS} = ON")


def touch(connection: Connected) -> str:
    """What to put behind a SELECT that must not wait for a lock: MySQL waits a second at least."""
    return "" if is_mariadb(connection) else f"/*+ MAX_EXECUTION_TIME({TOUCH_MILLIS}) */"


def begin(connection: Connected, told: Told, xas: KnownXas) -> Begun:
    """Begin a transaction whose snapshot has all of `told`. Raises NotNowError."""
    if isinstance(told, Domains):
        xas.require_seen(connection)
        return Begun(_begun_exactly(connection, told), xas.doubts)
    doubts = _executed(connection, told) if isinstance(told, GtidSet) else _committed(connection)
    ask(connection, BEGIN)
    return Begun(None, doubts)


def now(connection: Connected, told: Told) -> Moment:
    """Behind everything that anybody can see. Raises NotNowError."""
    if isinstance(told, Domains):
        ((file, offset, *_),) = ask(connection, "SHOW BINLOG STATUS")
        return Moment(_place(str(file), int(offset)), _has(told, connection))
    file, offset = binlog_end(connection)
    place = _place(file, offset)
    if isinstance(told, FilePlace):
        return Moment(place, Place.of(told.file, told.offset) >= place)
    # Of what anybody sees and is not executed, the server still says that it is being committed.
    ((owned, executed),) = ask(connection, "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed")
    return Moment(place, not owned and told.lacks(GtidSet.parse(executed)) is None)


def _place(file: str, offset: int) -> Place:
    if offset >= OFFSETS:
        raise NotNowError("a place of the binlog beyond 4 GiB of one file")
    return Place.of(file, offset)


# --- MariaDB --------------------------------------------------------------------------------------


def _begun_exactly(connection: Connected, told: Domains) -> Moment:
    ask(connection, BEGIN)
    said = dict(ask(connection, "SHOW SESSION STATUS LIKE 'Binlog_snapshot_%'"))
    file, offset = str(said["Binlog_snapshot_file"]), int(said["Binlog_snapshot_position"])
    behind = first_behind(connection, file, offset)
    if behind is not None and told.has(str(behind)):
        raise NotNowError("the stream has told what the snapshot lacks")
    return Moment(_place(file, offset), _has(told, connection), behind)


def _has(told: Domains, connection: Connected) -> bool:
    ((text,),) = ask(connection, "SELECT @@gtid_binlog_pos")
    return all(told.has(str(gtid)) for gtid in parse_gtids(str(text)).values())


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
        names = names or list(binlogs(connection))
        later = names[names.index(file) + 1 :] if file in names else list[str]()
        if not later:
            return None
        file, offset = later[0], _FIRST_EVENT


# --- MySQL ----------------------------------------------------------------------------------------


def _executed(connection: Connected, told: GtidSet) -> Callable[[str], bool]:
    """What others see now, which has all of `told`; whether it lacks a transaction."""
    ((text,),) = ask(connection, "SELECT @@GLOBAL.gtid_executed")
    executed = GtidSet.parse(text)
    if executed.lacks(told) is not None:
        raise NotNowError("the stream has told what is not executed yet")
    return lambda name: not executed.has(name)


def _committed(connection: Connected) -> Callable[[str], bool]:
    """Wait until all that is in the binlog is seen by others; whether it lacks a transaction."""
    require_locks(connection)
    end = Place.of(*binlog_end(connection))
    under_way = _commits(connection)
    until = time.monotonic() + _COMMITS_SECONDS
    while under_way := under_way and under_way & _commits(connection):
        if time.monotonic() > until:
            raise NotNowError("commits are under way")

    def lacks(name: str) -> bool:
        begins = FilePlace.parse(name)
        return Place.of(begins.file, begins.offset) >= end

    return lacks


def _commits(connection: Connected) -> frozenset[tuple[object, ...]]:
    return frozenset(ask(connection, _COMMITS))


def require_locks(connection: Connected) -> None:
    """Raise ConfigError where a MySQL does not list all of its metadata locks."""
    obstacle = no_copies(connection, "mysql_files")
    if obstacle is not None:
        why, remedy = obstacle
        raise ConfigError(
            f"{why}. Nothing more was copied, and nothing was skipped. What to do: {remedy}."
        )


def no_copies(connection: Connected, flavour: Flavour) -> tuple[str, str] | None:
    """Why tables cannot be copied beside a stream whose places are such, and what mends it."""
    if flavour != "mysql_files":
        return None
    said = ask(
        connection,
        "SELECT ENABLED FROM performance_schema.setup_instruments WHERE NAME = %s "
        "UNION ALL SELECT ENABLED FROM performance_schema.setup_consumers WHERE NAME = %s",
        *(_LOCKS, _CONSUMER),
    )
    return None if said == [("YES",), ("YES",)] and not ask(connection, _LOST) else NO_COPIES
