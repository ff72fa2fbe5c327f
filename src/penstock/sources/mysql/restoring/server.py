"""The server that is restored to: what its tables hold, and running statements in one session.

Its answers to errors are never shown: they hold values. What is shown is the code and the record.
"""

import re
import ssl
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from msgspec import Struct
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor, SSCursor

from penstock.audit.fold import Document, Name
from penstock.causes import Cause, Outlook
from penstock.errors import AuditError, ConfigError
from penstock.mysql_causes import LACKS_GRANT, Login, cause, code_of
from penstock.sources.mysql.connection import Connected, account, ask
from penstock.sources.mysql.restoring.columns import (
    KNOWN,
    ServerColumn,
    ServerTable,
    asked,
    enum_values,
    from_server,
    quoted,
)
from penstock.sources.mysql.restoring.sql import (
    BEGIN,
    COMMIT,
    HEAD,
    SQL_MODE,
    Statement,
    setting,
    where,
)

PASSWORD: Final = "PENSTOCK_TARGET_PASSWORD"  # noqa: S105 - the name of a variable
_CONNECT_SECONDS: Final = 10
_TOGETHER: Final = 200
_ENDS_TRANSACTION: Final = frozenset({1205, 1213})
"""Lock wait and deadlock: the server has rolled the transaction back, or a part of it."""
_HELD: Final = (
    "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s UNION ALL "
    "SELECT 1 FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = %s UNION ALL "
    "SELECT 1 FROM information_schema.EVENTS WHERE EVENT_SCHEMA = %s LIMIT 1"
)
"""What a database has in it."""
_NOTHING: Final = "Nothing was changed"
_TRUNCATED: Final = 1265
_OLD_SYNTAX: Final = 1287


class Target(Struct, frozen=True, kw_only=True):
    """Where a server is, and whom to be there."""

    host: str
    port: int
    user: str
    tls: str = "off"
    ca: str | None = None


def target_of(dsn: str) -> Target:
    """The server that `mysql://user@host:port?tls=verify&ca=FILE` names.

    Raises ConfigError for anything else, and for a password in it: whoever may list processes
    would see it.
    """
    try:
        parts = urlsplit(dsn)
        port = parts.port or 3306
    except ValueError:
        parts, port = urlsplit(""), 0
    options = dict(parse_qsl(parts.query))
    if parts.password is not None:
        raise ConfigError(
            f"the target has a password in it, which whoever lists processes sees. Nothing was "
            f"done. Set it in the environment as {PASSWORD}, and change it if it was real."
        )
    known = parts.scheme in {"mysql", "mariadb"} and parts.username and parts.hostname
    tls = options.pop("tls", "off")
    ca = options.pop("ca", None)
    if not known or options or parts.path not in {"", "/"} or tls not in {"off", "verify"}:
        raise ConfigError(
            "the target is not mysql://user@host:port, with ?tls=verify and &ca=FILE where the "
            "connection is to be encrypted. Nothing was done."
        )
    return Target(
        host=str(parts.hostname), port=port, user=unquote(str(parts.username)), tls=tls, ca=ca
    )


def _context(target: Target) -> ssl.SSLContext | None:
    if target.tls != "verify":
        return None
    try:
        return ssl.create_default_context(cafile=target.ca)
    except OSError as error:
        raise ConfigError(
            f"the target: ca, the file {target.ca}, cannot be used "
            f"({error.strerror or type(error).__name__}). Nothing was changed. Correct its path."
        ) from None


class Failure(Struct, frozen=True, kw_only=True):
    """A statement that did not do what it must."""

    about: str
    what: str


class Server:
    """One session of a server, begun with HEAD."""

    def __init__(self, target: Target, password: str) -> None:
        """Connects. Raises ConfigError where that cannot be."""
        tls = _context(target)
        self._login = Login(
            host=target.host,
            port=target.port,
            user=target.user,
            tls=tls is not None,
            seconds=_CONNECT_SECONDS,
        )
        try:
            self._db: Connected = pymysql.connect(
                host=target.host,
                port=target.port,
                user=target.user,
                password=password,
                charset="utf8mb4",
                autocommit=True,
                # An UPDATE that finds its row and changes nothing is none that missed it.
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=_CONNECT_SECONDS,
                program_name="penstock",
                ssl=tls,
                ssl_disabled=tls is None,
            )
            for line in HEAD:
                ask(self._db, line)
        except (pymysql.MySQLError, OSError) as error:
            found = cause(error, self._login, granting="")
            raise ConfigError(
                f"the target: {found.what}. Nothing was changed. {found.remedy} The password comes "
                f"from {PASSWORD}."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(pymysql.MySQLError, OSError):
            self._db.close()

    # --- what is there ---------------------------------------------------------------------------

    def facts(self, name: Name) -> ServerTable | None:
        """A table's columns and key; None if there is none. Raises AuditError for a column of a
        type that is not known here."""
        rows = self._ask(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, EXTRA, GENERATION_EXPRESSION, "
            "IS_NULLABLE "
            "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
            "ORDER BY ORDINAL_POSITION",
            *name,
        )
        if not rows:
            return None
        key = self._ask(
            "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND "
            "TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
            *name,
        )
        columns: list[ServerColumn] = []
        for column, data_type, declared, extra, expression, nullable in rows:
            kind = str(data_type).lower()
            if kind not in KNOWN:
                raise AuditError(
                    f"the column {column} of {'.'.join(name)} is of the type {kind}, which is not "
                    f"known here. Nothing was changed."
                )
            # A default that is an expression is one value of many, and none that is computed.
            said = str(extra).upper().replace("DEFAULT_GENERATED", "")
            columns.append(
                ServerColumn(
                    name=str(column),
                    type=kind,
                    values=enum_values(str(declared)) if kind == "enum" else (),
                    required=str(nullable).upper() == "NO",
                    computed=bool(expression) or "GENERATED" in said,
                    updates_itself="ON UPDATE" in said,
                )
            )
        return ServerTable(columns=tuple(columns), key=tuple(str(one) for (one,) in key))

    def triggers(self, names: Sequence[Name]) -> list[str]:
        """The triggers of tables, which would change more than is told here."""
        found = self._ask(
            "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_NAME "
            "FROM information_schema.TRIGGERS"
        )
        return [f"{db}.{table}: {name}" for db, table, name in found if (db, table) in set(names)]

    def rows(self, name: Name, facts: ServerTable) -> Generator[Document]:
        """All rows of a table, as a trail keeps values; not held in memory.

        The session does nothing else until it is exhausted or closed.
        """
        yield from self._select(name, facts, "")

    def rows_of(
        self, name: Name, facts: ServerTable, keys: Sequence[Document]
    ) -> Generator[Document]:
        """The rows of these keys that are there; as `rows`."""
        for start in range(0, len(keys), _TOGETHER):
            tests = [f"({where(name, key)})" for key in keys[start : start + _TOGETHER]]
            yield from self._select(name, facts, f" WHERE {' OR '.join(tests)}")

    def _select(self, name: Name, facts: ServerTable, which: str) -> Generator[Document]:
        columns = facts.written
        question = f"SELECT {', '.join(map(asked, columns))} FROM {quoted(*name)}{which}"  # noqa: S608
        try:
            with self._db.cursor(SSCursor) as cursor:
                cursor.execute(question)
                for row in cast("Iterable[tuple[Any, ...]]", cursor):
                    yield {
                        column.name: from_server(column, value)
                        for column, value in zip(columns, row, strict=True)
                    }
        except (pymysql.MySQLError, OSError) as error:
            found = self._cause(error)
            raise AuditError(
                f"{'.'.join(name)} cannot be read: {found.what}. Nothing was changed. "
                f"{found.remedy}"
            ) from None

    def has_database(self, name: str) -> bool:
        """Whether there is a database of this name."""
        return bool(
            self._ask("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", name)
        )

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return ask(self._db, question, *values)
        except (pymysql.MySQLError, OSError) as error:
            found = self._cause(error)
            raise AuditError(
                f"the target does not answer a question: {found.what}. What was committed to it "
                f"stands. {found.remedy}"
            ) from None

    def _cause(self, error: Exception) -> Cause:
        """Of an error in this session; who lacks a grant is told by the server's own name."""
        granting = ""
        if code_of(error) in LACKS_GRANT:
            with suppress(pymysql.MySQLError, OSError):
                granting = f"GRANT ALL ON *.* TO {account(self._db)}"
        return cause(error, self._login, granting=granting)

    # --- doing -----------------------------------------------------------------------------------

    def run(
        self,
        statements: Iterable[Statement],
        *,
        on_done: Callable[[Statement], None] = lambda _: None,
        on_failure: Callable[[Failure], None] | None = None,
    ) -> None:
        """Run statements in order, each before the next is asked for.

        The first that does not do what it must ends it: its transaction is rolled back, and
        AuditError raised. With `on_failure`, that is told of it, and the next one is run. What
        `statements` raises says that nothing was changed only where that is so.
        """
        stands = False
        try:
            for statement in statements:
                failure = self._failure_of(statement)
                if failure is not None:
                    if on_failure is None:
                        raise AuditError(
                            f"{failure.about}: {failure.what}. Its transaction was rolled back; "
                            f"those before it stand."
                        )
                    on_failure(failure)
                else:
                    stands = stands or statement.alters or statement is COMMIT
                on_done(statement)
        except BaseException as error:
            with suppress(pymysql.MySQLError, OSError):
                self._db.rollback()
            if stands and isinstance(error, AuditError):
                said = str(error).replace(_NOTHING, "What was done before stands")
                raise AuditError(said) from error
            raise

    def drop_empty(self, name: Name) -> bool:
        """Drop a table without rows; whether it is gone."""
        table = quoted(*name)
        try:
            if ask(self._db, f"SELECT 1 FROM {table} LIMIT 1"):  # noqa: S608
                return False
            ask(self._db, f"DROP TABLE {table}")
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def drop_empty_database(self, name: str) -> bool:
        """Drop a database that has nothing in it; whether there is none of this name."""
        try:
            if ask(self._db, _HELD, name, name, name):
                return False
            ask(self._db, f"DROP DATABASE IF EXISTS {quoted(name)}")
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def transaction(self, statements: Iterable[Statement], prove: Callable[[], None]) -> None:
        """Run statements in one transaction, have `prove` look at what they did, and commit.

        If either raises, nothing was changed.
        """

        def proved() -> Iterator[Statement]:
            yield BEGIN
            yield from statements
            prove()
            yield COMMIT

        self.run(proved())

    @contextmanager
    def _in_mode(self, cursor: Cursor, mode: str) -> Generator[None]:
        """A part that is run in an sql_mode; what follows it is run in SQL_MODE, also where the
        server refused it."""
        if mode == SQL_MODE:
            yield
            return
        cursor.execute(setting(mode))
        try:
            yield
        finally:
            cursor.execute(setting(SQL_MODE))

    def _failure_of(self, statement: Statement) -> Failure | None:
        try:
            with self._db.cursor(Cursor) as cursor, self._in_mode(cursor, statement.mode):
                cursor.execute(statement.text)
                found = cursor.rowcount
                if statement.unlisted:
                    cursor.execute("SHOW WARNINGS")
                    warnings = cast("Sequence[tuple[Any, ...]]", cursor.fetchall())
                    if not all(_expected(one, statement.unlisted) for one in warnings):
                        return Failure(about=statement.about, what="a value did not fit")
        except (pymysql.MySQLError, OSError) as error:
            code, found_out = code_of(error), self._cause(error)
            if code in _ENDS_TRANSACTION or not code or code >= 2000:
                # What follows would be of a transaction that has lost its beginning.
                raise AuditError(
                    f"{statement.about}: {found_out.what}. Its transaction was rolled back; those "
                    f"before it stand. {found_out.remedy}"
                ) from None
            what = found_out.what
            if found_out.outlook is Outlook.REFUSED:
                what += f". {found_out.remedy}"
            return Failure(about=statement.about, what=what)
        if statement.rows is not None and found != statement.rows:
            what = f"it found {found} rows, not {statement.rows}: the table is not as it was then"
            return Failure(about=statement.about, what=what)
        return None


def _expected(warning: tuple[Any, ...], columns: tuple[str, ...]) -> bool:
    """Whether a warning is that an ENUM got the empty text that is no value of it, or of no value:
    to MySQL, VALUES() is old, and MariaDB has nothing newer."""
    _, code, message = warning
    if code == _OLD_SYNTAX:
        return True
    named = re.search(r"column .*?([^'`]+)['`]* at row", str(message))
    return code == _TRUNCATED and named is not None and named[1] in columns
