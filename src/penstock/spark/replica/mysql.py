"""MySQL and MariaDB as destinations."""

# Names of tables and columns are quoted by the dialect; values are never in the text.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
import ssl
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pymysql
from msgspec import structs
from numpy.typing import NDArray

from penstock.causes import Outlook
from penstock.errors import ConfigError, DestinationError
from penstock.mysql_causes import Login, cause, quoted
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import COLUMNS, PLACES, REJECTS, TABLES
from penstock.spark.replica.dialect import (
    CORRECT_IT,
    JSON_COMMENT,
    TEXTS,
    SqlColumn,
    SqlTable,
    Values,
)
from penstock.spark.replica.mysql_commits import Commits
from penstock.spark.replica.mysql_connection import connect, connect_seconds, parsed
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.kinds import ARROW_TYPES, Kind
from penstock.spark.table.plan import Naming, Unwritable
from penstock.spark.table.room import Room

_TYPES: Final = {
    Kind.BOOL: "tinyint(1)",
    Kind.INT32: "int",
    Kind.INT64: "bigint",
    Kind.DOUBLE: "double",
    Kind.DECIMAL: "decimal(38,18)",
    Kind.STRING: "longtext",
    Kind.OBJECT_ID: "longtext",
    Kind.TIMESTAMP: "datetime(6)",
    Kind.BINARY: "longblob",
    Kind.JSON: "longtext",
}
_KINDS: Final = {
    **{declared: kind for kind, declared in _TYPES.items() if kind not in TEXTS},
    "longtext": Kind.STRING,
    "varchar": Kind.STRING,
    "varbinary": Kind.BINARY,
}
_WIDTH: Final = re.compile(r"^(int|bigint)\(\d+\)$")
_KEY_CHARACTERS_MAX: Final = 768
"""InnoDB's 3072 bytes of an index entry, in utf8mb4."""
_STATEMENT_BYTES: Final = 1 << 20
_PASSING: Final = frozenset(
    {0, 2003, 2006, 2013, 2055, 4031}  # no connection, or not any more
    | {1040, 1053, 1080, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317}
    | {1927, 1290, 1836, 1021, 1114, 3100, 3167}
)
"""Source: the error references of MySQL and MariaDB. Too many connections, shutting down, a lost
connection, a lock, a deadlock, killed; read-only for now; a full disk."""
_TOO_WIDE: Final = 1118
_REJECT_ID: Final = "id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY"
"""No group of servers, and no server that is told to, takes rows without a primary key."""
_THERE_BY_NOW: Final = frozenset({1060, 1068})
"""A column of that name, a primary key: somebody else has just added it."""
_LARGE: Final = TEXTS | {Kind.BINARY, Kind.UNFIT}
_ELSEWHERE: Final = 41
_ELSEWHERE_MARIADB: Final = 21
"""What a row keeps of a value that may be on pages of its own, in bytes: where it is, with its
length; MySQL takes its beginning, of the same length, into account too."""
_BYTES: Final = {
    Kind.BOOL: 1,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.DOUBLE: 8,
    Kind.TIMESTAMP: 8,
    Kind.DECIMAL: 17,
}
_ROW_BYTES_MAX: Final = 8126 - 64
"""Half of a page of InnoDB's, of 16 KiB, less what it has for itself."""


def one_case(name: str) -> str:
    """A name as all others that a server takes for the same one, letter by letter.

    MySQL and older MariaDBs compare in small letters, newer MariaDBs in capitals.
    """
    raised = (one.upper() if len(one.upper()) == 1 else one for one in name)
    return "".join(one.lower()[0] for one in raised)


class MysqlDialect:
    """Tables of one database."""

    errors = pymysql.MySQLError
    naming = Naming(
        own=(),
        forbidden={},
        room=Room(1000),
        bytes_max=64,
        unwritable=Unwritable(
            re.compile(r"[\0\U00010000-\U0010ffff]|[ \t-\r]\Z"),
            "a NUL, a character beyond U+FFFF, or white space at its end",
        ),
        reserved=re.compile("db_row_id|db_trx_id|db_roll_ptr|fts_doc_id", re.IGNORECASE),
        one_case=one_case,
    )

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig) -> None:
        """Raises ConfigError for a URI that cannot be read, and where neither it nor the
        configuration names a database."""
        self._pipeline = pipeline
        self._config = config
        self._uri = parsed(pipeline, config)
        self._database = config.database or unquote(self._uri.path.lstrip("/"))
        self._collation = "utf8mb4_bin"
        self._elsewhere = _ELSEWHERE
        self._commits = Commits(pipeline)
        if not self._database:
            raise ConfigError(
                f"pipeline {pipeline}: neither its uri nor `database` names a database. Nothing "
                f"was started."
            )
        if self._uri.query:
            raise ConfigError(
                f"pipeline {pipeline}: its uri has settings behind a '?', which are not known "
                f"here. Nothing was started. For TLS set tls, ca, certificate and key."
            )

    def connect(self) -> Any:
        """As `Dialect.connect`."""
        connection = connect(self._pipeline, self._config, self._uri, self._database)
        mariadb = "mariadb" in str(connection.server_version).lower()
        # Texts that differ in case, accents or blanks at their end are others.
        self._collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        self._elsewhere = _ELSEWHERE_MARIADB if mariadb else _ELSEWHERE
        return connection

    def room(self, key_limits: Sequence[int | None]) -> Room:
        """As `Dialect.room`. A bit of each column says whether it is null."""
        widths = {
            kind: 8 * (self._elsewhere if kind in _LARGE else _BYTES[kind]) + 1 for kind in Kind
        }
        key = sum(2 + min(4 * limit, 256) for limit in key_limits if limit is not None)
        return Room(self.naming.room.columns_max, widths, 8 * (_ROW_BYTES_MAX - key))

    def passes(self, error: Exception) -> bool:
        """As `Dialect.passes`."""
        if isinstance(error, pymysql.err.InterfaceError):
            return True
        if _is_untrusted(error):
            return False
        return bool(error.args) and error.args[0] in _PASSING

    def too_large(self, error: Exception) -> DestinationError | None:
        """As `Dialect.too_large`."""
        return self._commits.refusal_of(error)

    def committed(self) -> None:
        """As `Dialect.committed`."""
        self._commits.succeed()

    def is_too_wide(self, error: Exception) -> bool:
        """As `Dialect.is_too_wide`."""
        return bool(error.args) and error.args[0] == _TOO_WIDE

    def is_there(self, error: Exception) -> bool:
        """As `Dialect.is_there`."""
        return bool(error.args) and error.args[0] in _THERE_BY_NOW

    def cause(self, error: Exception) -> tuple[str, str]:
        """As `Dialect.cause`."""
        login = Login(
            host=self._uri.hostname or "127.0.0.1",
            port=self._uri.port or 3306,
            user=unquote(self._uri.username or ""),
            tls=self._config.tls not in {None, "off"},
            seconds=connect_seconds(self._config),
        )
        user = f"{quoted(login.user)}@'HOST'"
        granting = f"GRANT ALL ON {_quoted(self._database)}.* TO {user}"
        found = cause(error, login, granting=granting)
        return found.what, found.remedy if found.outlook is not Outlook.OTHER else CORRECT_IT

    def own_tables(self) -> Iterator[str]:
        """As `Dialect.own_tables`."""
        kept = f"ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {self._collation}"
        name = self.table
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(PLACES)} (pipeline varchar(190) PRIMARY KEY, "
            "source varchar(190) NOT NULL, collections longtext NOT NULL, epoch bigint NOT NULL, "
            "progress varchar(64) NOT NULL, sequence bigint NOT NULL, "
            f"written timestamp NOT NULL DEFAULT now()) {kept}"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(TABLES)} (name varchar(64) PRIMARY KEY, "
            "pipeline varchar(190) NOT NULL, `database` text NOT NULL, collection text NOT NULL, "
            f"key_forms text) {kept}"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(COLUMNS)} (table_name varchar(64), "
            f"column_name varchar(64), PRIMARY KEY (table_name, column_name)) {kept}"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(REJECTS)} ({_REJECT_ID}, "
            "pipeline varchar(190) NOT NULL, sequence bigint NOT NULL, table_name varchar(64), "
            "source text, `database` text, collection text, `key` longtext, "
            "operation_type varchar(190), field text, reason text NOT NULL, "
            "full_document longtext, update_description longtext, "
            f"healed bigint, KEY stale (pipeline, table_name, healed)) {kept}"
        )

    def renew_own_tables(self, cursor: Any) -> None:
        """As `Dialect.renew_own_tables`: once, rejects had no primary key."""
        cursor.execute(
            "SELECT 1 FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY'",
            (self._database, REJECTS),
        )
        if cursor.fetchone() is not None:
            return
        try:
            with cursor.connection.unhurried():
                statement = f"ALTER TABLE {self.table(REJECTS)} ADD COLUMN {_REJECT_ID} FIRST"
                cursor.execute(statement, ())
        except pymysql.MySQLError as error:
            if not error.args or error.args[0] not in _THERE_BY_NOW:
                raise

    def table(self, name: str) -> str:
        """As `Dialect.table`."""
        return _doubled(f"{_quoted(self._database)}.{_quoted(name)}")

    def quoted(self, name: str) -> str:
        """As `Dialect.quoted`."""
        return _doubled(_quoted(name))

    def _literally(self, table: str) -> str:
        """A table's name in a statement with its values in it."""
        return f"{_quoted(self._database)}.{_quoted(table)}"

    def describe(self, cursor: Any, table: str) -> SqlTable | None:
        """As `Dialect.describe`."""
        place = (self._database, table)
        cursor.execute(
            "SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            place,
        )
        found = cursor.fetchone()
        if found is None:
            return None
        problems: list[str] = []
        if found != ("BASE TABLE", "InnoDB"):
            problems.append("it is no table of InnoDB, and so without transactions")
        # Nobody alters it from here to the transaction's end.
        cursor.execute(f"SELECT 1 FROM {self.table(table)} LIMIT 0", ())
        cursor.execute(
            "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND "
            "EXTRA NOT LIKE '%%auto_increment%%', EXTRA LIKE '%%GENERATED%%' AND "
            "EXTRA NOT LIKE '%%DEFAULT_GENERATED%%', COLUMN_COMMENT, CHARACTER_MAXIMUM_LENGTH, "
            "COLLATION_NAME, IS_NULLABLE = 'YES' OR EXTRA LIKE '%%auto_increment%%' "
            "FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            place,
        )
        columns: list[SqlColumn] = []
        collations: dict[str, str | None] = {}
        for name, declared, required, generated, comment, limit, *rest in cursor.fetchall():
            if not generated:
                collations[name], takes_null = rest
                column = _column(name, declared, comment, limit, collations[name])
                columns.append(
                    structs.replace(column, required=bool(required), takes_null=bool(takes_null))
                )
        cursor.execute(
            # What is no column is an expression, and tells no rows apart by a column.
            "SELECT INDEX_NAME, COALESCE(GROUP_CONCAT(HEX(COLUMN_NAME)), ''), "
            "MAX(SUB_PART) IS NULL AND COUNT(COLUMN_NAME) = COUNT(*) "
            "FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND "
            "NON_UNIQUE = 0 GROUP BY INDEX_NAME",
            place,
        )
        unique, indexes = list[frozenset[str]](), cursor.fetchall()
        if len(indexes) > 1:
            # An upsert would find another row by it, and write over that.
            listed = ", ".join(sorted(index for index, _, _ in indexes))
            problems.append(f"it has a second unique index: {listed}")
        for _, coded, whole in indexes:
            names = [bytes.fromhex(one).decode() for one in str(coded).split(",") if one]
            if whole:
                unique.append(frozenset(names))
            loose = [one for one in names if collations.get(one) not in {None, self._collation}]
            if loose:
                problems.append(
                    f"the texts of its key are not told apart exactly: {', '.join(loose)} should "
                    f"have the collation {self._collation}"
                )
        return SqlTable(columns=tuple(columns), unique=tuple(unique), problems=tuple(problems))

    def create(self, table: str, columns: Sequence[tuple[str, Kind]], key: Sequence[str]) -> str:
        """As `Dialect.create`."""
        limit = self.key_limit(len(key))
        named = ", ".join(
            self._defined(name, kind, limit if name in key else None) for name, kind in columns
        )
        keys = ", ".join(map(self.quoted, key))
        return (
            f"CREATE TABLE {self.table(table)} ({named}, PRIMARY KEY ({keys})) ENGINE=InnoDB "
            f"ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COLLATE {self._collation}"
        )

    def _defined(self, name: str, kind: Kind, limit: int | None) -> str:
        declared = _TYPES[kind]
        if limit is not None and kind in TEXTS | {Kind.BINARY}:
            declared = f"{'varbinary' if kind is Kind.BINARY else 'varchar'}({limit})"
        collate = f" CHARACTER SET utf8mb4 COLLATE {self._collation}" if kind in TEXTS else ""
        required = " NOT NULL" if limit is not None else " NULL"
        comment = f" COMMENT '{JSON_COMMENT}'" if kind is Kind.JSON else ""
        return f"{self.quoted(name)} {declared}{collate}{required}{comment}"

    def add(self, table: str, name: str, kind: Kind) -> Sequence[str]:
        """As `Dialect.add`."""
        return (f"ALTER TABLE {self.table(table)} ADD COLUMN {self._defined(name, kind, None)}",)

    def widen(self, table: str, name: str, kind: Kind, *, key: bool) -> str:
        """As `Dialect.widen`."""
        defined = self._defined(name, kind, 1 if key else None)  # no text is wider than another
        return f"ALTER TABLE {self.table(table)} MODIFY COLUMN {defined}"

    def unfit(self, kind: Kind, column: Column) -> tuple[NDArray[np.bool_], str] | None:
        """As `Dialect.unfit`."""
        if kind is not Kind.DOUBLE:
            return None
        values = compute.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
        mask = ~np.isfinite(values) | ((values == 0) & np.signbit(values))
        return (mask, "NaN, an infinity or -0.0, which MySQL does not keep") if mask.any() else None

    def key_bytes_max(self) -> int:
        """As `Dialect.key_bytes_max`."""
        return 4 * _KEY_CHARACTERS_MAX

    def key_limit(self, keys: int) -> int | None:
        """As `Dialect.key_limit`."""
        return min(255, _KEY_CHARACTERS_MAX // keys)

    def upsert(
        self, cursor: Any, table: str, columns: Sequence[Values], key: Sequence[str]
    ) -> None:
        """As `Dialect.upsert`."""
        names = ", ".join(_quoted(one.name) for one in columns)
        others = [one.name for one in columns if one.name not in key] or [key[0]]
        done = ", ".join(f"{_quoted(name)} = VALUES({_quoted(name)})" for name in others)
        for rows in _slices(cursor, columns):
            cursor.execute(
                f"INSERT INTO {self._literally(table)} ({names}) VALUES {rows} "
                f"ON DUPLICATE KEY UPDATE {done}"
            )

    def delete(self, cursor: Any, table: str, key: Sequence[Values]) -> None:
        """As `Dialect.delete`."""
        for condition in _conditions(cursor, key):
            cursor.execute(f"DELETE FROM {self._literally(table)} WHERE {condition}")

    def select(
        self, cursor: Any, table: str, columns: Sequence[SqlColumn], key: Sequence[Values]
    ) -> list[tuple[Any, ...]]:
        """As `Dialect.select`."""
        wanted = ", ".join(_quoted(one.name) for one in columns)
        rows: list[tuple[Any, ...]] = []
        for condition in _conditions(cursor, key):
            cursor.execute(f"SELECT {wanted} FROM {self._literally(table)} WHERE {condition}")
            rows += cursor.fetchall()
        return rows

    def unhurried(self, connection: Any) -> AbstractContextManager[None]:
        """As `Dialect.unhurried`."""
        unhurried: AbstractContextManager[None] = connection.unhurried()
        return unhurried

    def begin_moment(self, connection: Any, tables: Sequence[str]) -> None:
        """As `Dialect.begin_moment`."""
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION READ ONLY")
            for one in tables:
                # Nothing is read by it, so the moment is behind it: nobody alters them by then.
                cursor.execute(f"SELECT 1 FROM {self._literally(one)} LIMIT 0")

    def stream(
        self, connection: Any, table: str, columns: Sequence[SqlColumn]
    ) -> Generator[tuple[Any, ...]]:
        """As `Dialect.stream`."""
        wanted = ", ".join(_quoted(one.name) for one in columns)
        with connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(f"SELECT {wanted} FROM {self._literally(table)}")
            yield from cursor

    def read(self, kind: Kind, values: Sequence[Any]) -> Column:
        """As `Dialect.read`."""
        if kind is Kind.BOOL:
            values = [None if one is None else bool(one) for one in values]
        if kind is Kind.TIMESTAMP:
            naive = arrow.array(values, pa.timestamp("us"))
            return naive.cast(ARROW_TYPES[kind])
        return arrow.array(values, ARROW_TYPES[kind])


def _is_untrusted(error: Exception) -> bool:
    """Whether the server's certificate is none that `ca` or this machine trusts."""
    return isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _doubled(name: str) -> str:
    """For a statement with places for values, which begin with "%"."""
    return name.replace("%", "%%")


def _column(
    name: str,
    declared: str,
    comment: str,
    limit: int | None,
    collation: str | None,
) -> SqlColumn:
    plain = _WIDTH.sub(r"\1", declared.lower())
    limited = plain.startswith(("varchar(", "varbinary("))
    kind = _KINDS.get(plain.partition("(")[0] if limited else plain)
    if kind in TEXTS and not (collation or "").startswith("utf8mb4_"):
        kind, declared = None, f"{declared} COLLATE {collation}"
    if kind is Kind.STRING and comment == JSON_COMMENT:
        kind = Kind.JSON
    return SqlColumn(
        name=name,
        kind=kind,
        declared=declared,
        limit=int(limit) if limited and limit is not None else None,
    )


def _texts(cursor: Any, columns: Sequence[Values]) -> Iterator[tuple[str, ...]]:
    """The values of each row, as SQL."""
    escape = cursor.connection.escape
    lists: list[list[str]] = []
    for one in columns:
        column: Any = one.column
        if one.kind is Kind.TIMESTAMP:
            column = column.cast(pa.timestamp("us"))
        lists.append([escape(value) for value in column.to_pylist()])
    yield from zip(*lists, strict=True)


def _slices(cursor: Any, columns: Sequence[Values]) -> Iterator[str]:
    """Rows as SQL, a MiB at most at a time; a larger row alone."""
    bytes_max = min(_STATEMENT_BYTES, cursor.connection.statement_bytes_max // 2)
    held: list[str] = []
    size = 0
    for values in _texts(cursor, columns):
        row = f"({','.join(values)})"
        more = len(row.encode())
        if held and size + more > bytes_max:
            yield ",".join(held)
            held, size = [], 0
        held.append(row)
        size += more
    if held:
        yield ",".join(held)


def _conditions(cursor: Any, key: Sequence[Values]) -> Iterator[str]:
    """Conditions for the rows with these keys, of a few hundred each."""
    rows = list(_texts(cursor, key))
    names = [_quoted(one.name) for one in key]
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        if len(names) == 1:
            yield f"{names[0]} IN ({','.join(row[0] for row in part)})"
        else:
            yield " OR ".join(
                "(" + " AND ".join(f"{n} = {v}" for n, v in zip(names, row, strict=True)) + ")"
                for row in part
            )
