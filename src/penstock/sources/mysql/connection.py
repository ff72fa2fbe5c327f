"""Connections to a server: the client library's, what we ask, and what they raise in our words.

PyMySQL opens them (TLS, authentication), and asks; the replication protocol on top is ours.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

import pymysql
from msgspec import Struct
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from penstock.errors import ConfigError, PenstockError, SourceUnavailableError
from penstock.mysql_causes import LACKS_GRANT, code_of
from penstock.mysql_sql.tokens import significant, tokens
from penstock.sources.mysql import failures
from penstock.sources.mysql.answers import any_bytes
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.frames import Algorithm, FramedSocket, Wire
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.statements import cascades

if TYPE_CHECKING:
    Connected = Connection[Any]
else:
    Connected = Connection  # generic to type checkers only

T = TypeVar("T")
CANNOT_READ_BINLOG: Final = 1236
NO_SUCH_SYNTAX: Final = 1064
LOCKED: Final = 1205
"""Somebody has what is asked about locked, for longer than was to be waited."""
NO_TABLE: Final = frozenset({1049, 1146})
"""There is no such table, or database."""
GONE: Final = frozenset({0, 2006, 2013, 2055, 4031})
"""The connection was closed, as for being idle."""


class Facts(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    version: str
    server_id: int
    server_uid: str
    binlog_format: str
    binlog_row_image: str
    binlog_row_metadata: str
    binlog_checksum: str
    gtid_strict_mode: bool
    lower_case_table_names: bool
    """Whether names of tables and databases are in its binlog's rows in lower case."""
    log_bin: bool
    logs_replicated: bool
    """Whether what it replicates from another server is in its binlog, too."""
    gtid_end: str
    """The transactions up to where its binlogs end: gtid_binlog_pos, or gtid_executed."""
    gtid_logged: str
    """All that it ever had, as far as it tells: gtid_binlog_state, or gtid_executed."""
    gtid_purged: str = ""
    """MySQL: those whose binlogs are gone, or never were here."""
    semi_sync: str = ""
    """Whether its commits wait for replicas, ON or OFF; empty where it cannot have them wait."""
    gtid_mode: str = ""
    enforce_gtid_consistency: str = ""
    in_cluster: bool = False
    """Whether it has a library (wsrep_provider) by which it can be a node of a Galera cluster."""

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()


def connect(source: str, config: MysqlSourceConfig, *, read_seconds: float) -> Connected:
    """Open a connection; blocks. An answer that does not come for `read_seconds` is an error.

    Raises ConfigError for what only an operator can mend, SourceUnavailableError for the rest.
    """
    try:
        return _Connection(
            compression=config.compression,
            host=config.host,
            port=config.port,
            user=config.user,
            password=config.password.get_secret_value(),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=config.connect_timeout,
            read_timeout=read_seconds,
            write_timeout=config.connect_timeout,
            program_name="penstock",
            # A definition's texts are quoted as the session's mode has it, but for some of them.
            init_command="SET time_zone = '+00:00', sql_mode = ''",
            ssl=_tls(source, config),
            ssl_disabled=config.tls == "off",
        )
    except (pymysql.MySQLError, OSError) as error:
        raise failures.unreachable(source, config, error) from None
    except RuntimeError as error:
        raise failures.missing_package(source, config, error) from None


class _Connection(Connected):
    """The library's, with frames around its packets once the server knows who we are.

    The library has a place for what comes between: the last of the handshake, before it asks.
    """

    def __init__(self, *, compression: Literal["off"] | Algorithm, **options: Any) -> None:
        self._compression: Literal["off"] | Algorithm = compression
        self._greets = False
        super().__init__(**options)

    def _request_authentication(self) -> None:
        library = cast("Any", super())
        algorithm = self._compression
        if algorithm == "off":
            library._request_authentication()
            return
        here = cast("Any", self)
        flag = _ANNOUNCED[algorithm]
        if not here.server_capabilities & flag:
            raise ConfigError(
                f"the server {here.server_version} does not compress its connections with "
                f"{algorithm}. Nothing was captured, and nothing was skipped. Set "
                f"compression to what it does: zlib with MariaDB, and with MySQL what its "
                f"protocol_compression_algorithms has; or to off."
            )
        here.client_flag |= flag
        self._greets = algorithm == "zstd"
        library._request_authentication()
        here._sock = here._rfile = FramedSocket(here._sock, algorithm)

    def write_packet(self, payload: bytes) -> None:
        """As the library's; our greeting ends with the level that zstd is to have."""
        # One of this length asks for TLS, and the greeting comes behind it.
        if self._greets and len(payload) != _TLS_REQUEST_BYTES:
            self._greets = False
            payload += _ZSTD_LEVEL
        cast("Any", super()).write_packet(payload)


_ANNOUNCED: Final[dict[str, int]] = {"zlib": CLIENT.COMPRESS, "zstd": 1 << 26}
"""The bits by which the two say what they know: CLIENT_ZSTD_COMPRESSION_ALGORITHM is the last."""
_TLS_REQUEST_BYTES: Final = 32
_ZSTD_LEVEL: Final = bytes([3])
"""The server's own default. It says how hard the server tries."""


def _tls(source: str, config: MysqlSourceConfig) -> ssl.SSLContext | None:
    if config.tls == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.certificate is not None:
            context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # as ssl.SSLError is; also while they are renewed, one by one
        why = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise SourceUnavailableError(
            f"{source}: ca, certificate or key cannot be used ({why}). Nothing was skipped; "
            f"capture tries again by itself, with the files as they are then. Correct them, or "
            f"their paths."
        ) from error
    if config.tls == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def ask(connection: Connected, question: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of an answer. Where one has bytes that are no UTF-8, they read as `\\xff`."""
    with any_bytes(connection), connection.cursor() as cursor:
        cursor.execute(question, values or None)
        return list(cast("tuple[tuple[Any, ...], ...]", cursor.fetchall() or ()))


def without_waiting(connection: Connected, question: Callable[[Connected], T]) -> T:
    """Ask, and raise an error of the code LOCKED after a second at most where a table is locked."""
    ((seconds,),) = ask(connection, "SELECT @@lock_wait_timeout")
    ask(connection, "SET lock_wait_timeout = 0")  # MySQL takes it for a second
    try:
        return question(connection)
    finally:
        ask(connection, f"SET lock_wait_timeout = {int(seconds)}")


def facts(connection: Connected) -> Facts:
    """Ask a server about itself."""
    said = {
        str(name).lower(): str(value)
        for name, value in ask(
            connection,
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'server_id', 'server_uid', "
            "'server_uuid', 'binlog_format', 'binlog_row_image', 'binlog_row_metadata', "
            "'binlog_checksum', 'gtid_strict_mode', 'lower_case_table_names', 'log_bin', "
            "'log_slave_updates', 'log_replica_updates', 'wsrep_provider', "
            "'gtid_binlog_pos', 'gtid_binlog_state', 'gtid_mode', 'enforce_gtid_consistency', "
            "'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')",
        )
    }
    executed = purged = ""
    if "mariadb" not in said.get("version", "").lower():
        # Sets are longer than what SHOW shows.
        ((executed, purged),) = ask(
            connection, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged"
        )
    return Facts(
        version=said.get("version", ""),
        server_id=int(said.get("server_id", "0")),
        server_uid=said.get("server_uuid", "") or said.get("server_uid", ""),
        # A MySQL without the setting knows nothing but rows.
        binlog_format=said.get("binlog_format", "ROW").upper(),
        binlog_row_image=said.get("binlog_row_image", "").upper(),
        binlog_row_metadata=said.get("binlog_row_metadata", "").upper(),
        binlog_checksum=said.get("binlog_checksum", "NONE").upper(),
        gtid_strict_mode=said.get("gtid_strict_mode", "") in {"ON", "1"},
        lower_case_table_names=said.get("lower_case_table_names", "0") != "0",
        log_bin=said.get("log_bin", "") in {"ON", "1"},
        logs_replicated=(said.get("log_replica_updates") or said.get("log_slave_updates", ""))
        in {"ON", "1"},
        gtid_end=_one_line(executed) or said.get("gtid_binlog_pos", ""),
        gtid_logged=_one_line(executed) or said.get("gtid_binlog_state", ""),
        gtid_purged=_one_line(purged),
        semi_sync=(
            said.get("rpl_semi_sync_source_enabled", "")
            or said.get("rpl_semi_sync_master_enabled", "")
        ).upper(),
        gtid_mode=said.get("gtid_mode", "").upper(),
        enforce_gtid_consistency=said.get("enforce_gtid_consistency", "").upper(),
        in_cluster=said.get("wsrep_provider", "").lower() not in {"", "none"},
    )


def _one_line(gtids: str) -> str:
    return "".join(gtids.split())


def obstacles(found: Facts, *, partial_rows: bool = False) -> list[tuple[str, str]]:
    """What keeps a server from being captured, each with what mends it.

    With `partial_rows`, its rows may lack columns.
    """
    if not found.log_bin:
        return [("the server writes no binlog", "start it with --log-bin --binlog-format=ROW")]
    wanted = (
        ("binlog_format", found.binlog_format, "ROW"),
        ("binlog_row_image", found.binlog_row_image, "FULL"),
        ("binlog_row_metadata", found.binlog_row_metadata, "FULL"),
    )
    return [
        (
            f"{name} is {value or 'not known to this version'}, and must be {needed}",
            (
                f"SET GLOBAL {name} = '{needed}', in the server's file too; then have the "
                f"applications connect anew, for a session keeps what it began with"
            ),
        )
        for name, value, needed in wanted
        if value != needed and not (partial_rows and name == "binlog_row_image" and value)
    ]


def charsets(connection: Connected, collations: Collection[int]) -> dict[int, str]:
    """The character sets of these collations, by their numbers; without those it does not know."""
    if not collations:
        return {}
    found: dict[int, str] = {}
    # From MariaDB 10.10 on, a collation of several character sets has a number for each, and those
    # are in the second table only. Older servers have no numbers there.
    for view in ("COLLATIONS", "COLLATION_CHARACTER_SET_APPLICABILITY"):
        left = [number for number in collations if number not in found]
        if left and _has_column(connection, view, "ID"):
            rows = ask(
                connection,
                f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view} "  # noqa: S608
                f"WHERE ID IN ({', '.join(map(str, left))}) AND CHARACTER_SET_NAME IS NOT NULL",
            )
            found |= {int(number): str(name) for number, name in rows}
    return found


def characters(connection: Connected, charset: str, ones: Sequence[bytes]) -> dict[bytes, str]:
    """What a server makes of bytes, each one character of a set; empty where it is none, and where
    it becomes one of ASCII's, which it does not count as when it reads a statement."""
    asked = (f"HEX(CONVERT(CONVERT(x'{one.hex()}' USING {charset}) USING utf8mb4))" for one in ones)
    (row,) = ask(connection, f"SELECT {', '.join(asked)}")
    texts = [bytes.fromhex(said or "").decode(errors="replace") for said in row]
    return {
        one: text if len(text) == 1 and not text.isascii() else "\N{REPLACEMENT CHARACTER}"
        for one, text in zip(ones, texts, strict=True)
    }


def _has_column(connection: Connected, view: str, column: str) -> bool:
    return bool(ask(connection, f"SHOW COLUMNS FROM information_schema.{view} LIKE %s", column))


_PERIOD: Final = frozenset({"ROW START", "ROW END"})
"""What MariaDB says of the columns of a version, which are computed of no other."""


class ColumnNow(NamedTuple):
    """What the server says of a column."""

    virtual: bool
    """Whether its values are computed when they are asked. The binlog does not have them computed,
    but holds what happened to be there."""
    expression: str
    """By which they are computed, when they are asked, or when a row is written, also where it only
    says no other value; empty for any other column."""


def column_now(extra: Any, expression: Any, default: Any) -> ColumnNow:
    """A column by three of its facts in information_schema.COLUMNS."""
    computed = "" if expression in _PERIOD else str(expression or "")
    by_default = str(default or "")
    if not computed and "`" in by_default and not by_default.startswith("'"):
        computed = by_default  # DEFAULT (RIGHT(`phone`, 4)), and no text
    return ColumnNow("VIRTUAL" in str(extra).upper(), computed)


def columns_now(connection: Connected, database: str, table: str) -> dict[str, ColumnNow]:
    """The columns of a table, in order; none of a table that is not there any more.

    Raises a MySQLError where we may not see it, which says no word.
    """
    rows = ask(
        connection,
        "SELECT COLUMN_NAME, EXTRA, GENERATION_EXPRESSION, COLUMN_DEFAULT "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
        "ORDER BY ORDINAL_POSITION",
        database,
        table,
    )
    if not rows:
        try:
            ask(connection, f"SELECT 1 FROM {_quoted(database, table)} LIMIT 0")  # noqa: S608
        except pymysql.MySQLError as error:
            if code_of(error) not in NO_TABLE:
                raise
    return {str(name): column_now(*facts) for name, *facts in rows}


def _quoted(database: str, table: str) -> str:
    return ".".join(f"`{one.replace('`', '``')}`" for one in (database, table))


def tables(connection: Connected, scope: Scope) -> list[tuple[str, str]]:
    """The captured tables that are there: databases and names."""
    return [one for one in all_tables(connection) if one in scope]


def all_tables(connection: Connected) -> list[tuple[str, str]]:
    """The tables that this user may see, captured or not: databases and names."""
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
        "WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')",
    )
    return [(str(database), str(name)) for database, name in rows]


_NATIVE_FOREIGN_KEYS: Final = "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'"


def logs_cascades(connection: Connected) -> bool:
    """Whether the server itself, above InnoDB, does what foreign keys say, and logs it.

    MySQL from 9.6 on, unless innodb_native_foreign_keys is ON.
    """
    return ("OFF",) in [row[1:] for row in ask(connection, _NATIVE_FOREIGN_KEYS)]


def cascading(connection: Connected, scope: Scope) -> list[str]:
    """Captured tables of which a foreign key changes rows, which the server does not log.

    From their definitions, which who may SELECT may see; of other users, the lists of constraints
    are empty. A question for each table. None where the server logs that.
    """
    return [] if logs_cascades(connection) else defined_cascades(connection, scope)


def defined_cascades(connection: Connected, scope: Scope) -> list[str]:
    """As `cascading`, whether the server logs that or not."""
    found: list[str] = []
    for database, name in tables(connection, scope):
        try:
            ((_, definition, *_),) = ask(connection, f"SHOW CREATE TABLE {_quoted(database, name)}")
        except pymysql.MySQLError as error:
            if code_of(error) not in NO_TABLE:
                raise
            continue  # it was dropped meanwhile
        if cascades(significant(tokens(str(definition)))):
            found.append(f"{database}.{name}")
    return found


def seconds_now(connection: Connected) -> int:
    """The server's clock, in Unix seconds."""
    ((now,),) = ask(connection, "SELECT UNIX_TIMESTAMP()")
    return int(now)


def binlogs(connection: Connected) -> dict[str, int]:
    """The names of the server's binlogs, oldest first, and their sizes in bytes."""
    return {str(name): int(size) for name, size, *_ in ask(connection, "SHOW BINARY LOGS")}


def binlog_end(connection: Connected) -> tuple[str, int]:
    """Where a MySQL's binlogs end, which is always between two transactions: a file, a place."""
    file, offset, *_ = _binlog_status(connection)
    return str(file), int(offset)


def binlog_filters(connection: Connected) -> tuple[str, str]:
    """What `binlog_do_db` and `binlog_ignore_db` are: names of databases with commas between."""
    _, _, do, ignore, *_ = _binlog_status(connection)
    return str(do or ""), str(ignore or "")


def _binlog_status(connection: Connected) -> tuple[Any, ...]:
    try:
        rows = ask(connection, "SHOW BINARY LOG STATUS")
    except pymysql.MySQLError as error:
        if code_of(error) != NO_SUCH_SYNTAX:
            raise
        rows = ask(connection, "SHOW MASTER STATUS")  # MariaDB, and MySQL before 8.2
    return rows[0]


def oldest_binlog(connection: Connected) -> str | None:
    """The name of the oldest binlog; None if there is none."""
    return next(iter(binlogs(connection)), None)


def gtids_before(connection: Connected, file: str) -> str:
    """The last transaction of each domain before a binlog, as the server writes them."""
    ((text,),) = ask(connection, "SELECT BINLOG_GTID_POS(%s, 4)", file)
    if text is None:
        # It was purged since it was listed.
        raise pymysql.err.OperationalError(1220, "the oldest binlog is gone")
    return str(text)


def translated(source: str, config: MysqlSourceConfig, error: Exception) -> PenstockError:
    """Our error for what the client library raised. Never its message, which may hold a value.

    Blocks: who lacks a grant is told by the account that the server takes us for.
    """
    account = _account(source, config) if code_of(error) in LACKS_GRANT else ""
    return failures.translated(source, config, error, account=account)


def _account(source: str, config: MysqlSourceConfig) -> str:
    """As `account`, by a connection for this alone; empty where none can be had."""
    try:
        connection = connect(source, config, read_seconds=config.connect_timeout)
    except PenstockError:
        return ""
    try:
        return account(connection)
    except (pymysql.MySQLError, OSError):
        return ""
    finally:
        discard(connection)


def account(connection: Connected) -> str:
    """Who the server takes us for: 'user'@'host', which need not be where we come from."""
    return failures.account_of(ask(connection, "SELECT CURRENT_USER()"))


def abort(connection: Connected) -> None:
    """Break a connection off, from any thread: whoever waits for it gets an error."""
    sock = socket_of(connection)
    if sock is not None:
        # One that is broken off already is an OSError. Below TLS, too, another thread may read.
        with contextlib.suppress(OSError):
            under = sock.under if isinstance(sock, FramedSocket) else sock
            socket.socket.shutdown(under, socket.SHUT_RDWR)


def discard(connection: Connected) -> None:
    """Close a connection, whatever state it is in."""
    force_close = cast("Callable[[], None]", cast("Any", connection)._force_close)
    force_close()


def socket_of(connection: Connected) -> Wire | None:
    """The library's socket, from which we read events ourselves."""
    return cast("Wire | None", cast("Any", connection)._sock)
