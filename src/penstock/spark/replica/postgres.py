"""PostgreSQL as a destination."""

# Names of tables and columns are quoted by the dialect; values are never in the text.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray
from psycopg import pq
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.datetime import TimestamptzLoader

from penstock.causes import Cause, Outlook
from penstock.errors import DestinationError
from penstock.postgres_causes import Login, cause
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
from penstock.spark.replica.uris import is_host, unusable
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.kinds import ARROW_TYPES, Kind
from penstock.spark.table.plan import Naming, Unwritable
from penstock.spark.table.room import Room

_TYPES: Final = {
    Kind.BOOL: "boolean",
    Kind.INT32: "integer",
    Kind.INT64: "bigint",
    Kind.DOUBLE: "double precision",
    Kind.DECIMAL: "numeric(38,18)",
    Kind.STRING: "text",
    Kind.OBJECT_ID: "text",
    Kind.TIMESTAMP: "timestamp with time zone",
    Kind.BINARY: "bytea",
    Kind.JSON: "json",
}
_KINDS: Final = {
    **{declared: kind for kind, declared in _TYPES.items() if kind is not Kind.OBJECT_ID},
    "numeric": Kind.DECIMAL,
    "character varying": Kind.STRING,
}
_ROWS: Final = 2000
"""In one statement."""
_SESSION: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "extra_float_digits": "3",  # as many as make the same double again
    "array_nulls": "on",  # else a null in an array of values is the text "NULL"
    "standard_conforming_strings": "on",  # else libpq escapes bytes once more than the server reads
    "row_security": "off",  # a policy is then an error, and hides no row
    # Who cancels a statement is a person, then.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""What a role, a database or an URI may have set, and values or our SQL depend on."""
_MAKING: Final = 0x70656E73746F636B
"""The advisory lock of whoever makes our own tables."""
_KEY_BYTES_MAX: Final = 2000
"""A B-tree's entry is a third of a page at most."""
_TOO_WIDE: Final = "54000"
"""Of a row that does not fit a page, even with its longest values elsewhere."""
_THERE_BY_NOW: Final = "42701"
"""A column of that name: somebody else has just added it."""


class PostgresDialect:
    """Tables of one schema."""

    errors = psycopg.Error
    naming = Naming(
        own=(),
        forbidden={},
        room=Room(1500),
        bytes_max=63,
        unwritable=Unwritable(re.compile(r"\0| \Z"), "a NUL, or a blank at its end"),
        reserved=re.compile("tableoid|[xc]min|[xc]max|ctid"),
    )

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig) -> None:
        """Raises ConfigError for a URI that cannot be read."""
        if not _is_usable(config.uri.get_secret_value()):
            raise unusable(pipeline)
        self._pipeline = pipeline
        self._config = config
        self._schema = config.database or "public"

    def connect(self) -> Any:
        """As `Dialect.connect`."""
        config = self._config
        tls: dict[str, Any] = {}
        if config.tls is not None:
            modes = {"off": "disable", "unverified": "require", "verify": "verify-full"}
            tls["sslmode"] = modes[config.tls]
        files = {"sslrootcert": config.ca, "sslcert": config.certificate, "sslkey": config.key}
        tls |= {name: str(path) for name, path in files.items() if path is not None}
        connection: Any = psycopg.connect(
            config.uri.get_secret_value(),
            connect_timeout=max(2, int(min(config.answer_seconds, 30))),
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=int(config.answer_seconds * 1000),
            application_name=f"penstock {self._pipeline}"[:60],
            client_encoding="utf8",
            **tls,
        )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"the database has the encoding {encoding}, which not every text fits",
                remedy="Give it a database with the encoding UTF8.",
            )
        try:
            _settle(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def room(self, key_limits: Sequence[int | None]) -> Room:  # noqa: ARG002
        """As `Dialect.room`."""
        return self.naming.room

    def passes(self, error: Exception) -> bool:
        """As `Dialect.passes`."""
        return self._cause(error).outlook is Outlook.AWAY

    def too_large(self, error: Exception) -> None:
        """As `Dialect.too_large`: a transaction is as large as it is."""

    def committed(self) -> None:
        """As `Dialect.committed`."""

    def is_too_wide(self, error: Exception) -> bool:
        """As `Dialect.is_too_wide`."""
        assert isinstance(error, psycopg.Error)
        return error.sqlstate == _TOO_WIDE

    def is_there(self, error: Exception) -> bool:
        """As `Dialect.is_there`."""
        assert isinstance(error, psycopg.Error)
        return error.sqlstate == _THERE_BY_NOW

    def cause(self, error: Exception) -> tuple[str, str]:
        """As `Dialect.cause`."""
        found = self._cause(error)
        return found.what, found.remedy if found.outlook is not Outlook.OTHER else CORRECT_IT

    def _cause(self, error: Exception) -> Cause:
        assert isinstance(error, psycopg.Error)
        told = _defaults() | conninfo_to_dict(self._config.uri.get_secret_value())
        host, port = told.get("host") or "this machine", told.get("port") or 5432
        user = str(told.get("user", ""))
        login = Login(
            where=f"PostgreSQL at {host}:{port}",
            user=user,
            database=str(told.get("dbname") or user),
            schema=self._schema,
        )
        return cause(error, login)

    def own_tables(self) -> Iterator[str]:
        """As `Dialect.own_tables`."""
        name = self.table
        # Two that make the same table at the same moment would fail, IF NOT EXISTS or not.
        yield f"SELECT pg_advisory_xact_lock({_MAKING})"
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(PLACES)} (pipeline text PRIMARY KEY, "
            "source text NOT NULL, collections text NOT NULL, epoch bigint NOT NULL, "
            "progress text NOT NULL, sequence bigint NOT NULL, "
            "written timestamp with time zone NOT NULL DEFAULT now())"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(TABLES)} (name text PRIMARY KEY, "
            "pipeline text NOT NULL, database text NOT NULL, collection text NOT NULL, "
            "key_forms text)"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(COLUMNS)} (table_name text, column_name text, "
            "PRIMARY KEY (table_name, column_name))"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {name(REJECTS)} (pipeline text NOT NULL, "
            "sequence bigint NOT NULL, table_name text, source text, database text, "
            "collection text, key text, operation_type text, field text, reason text NOT NULL, "
            "full_document text, update_description text, healed bigint)"
        )
        yield (
            f"CREATE INDEX IF NOT EXISTS _penstock_rejects_stale ON {name(REJECTS)} "
            "(pipeline, table_name) WHERE healed IS NULL"
        )

    def renew_own_tables(self, cursor: Any) -> None:
        """As `Dialect.renew_own_tables`: they are."""

    def table(self, name: str) -> str:
        """As `Dialect.table`."""
        return f"{_quoted(self._schema)}.{_quoted(name)}"

    def quoted(self, name: str) -> str:
        """As `Dialect.quoted`."""
        return _quoted(name)

    def describe(self, cursor: Any, table: str) -> SqlTable | None:
        """As `Dialect.describe`."""
        found = cursor.execute(
            "SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            (self._schema, table),
        ).fetchone()
        if found is None:
            return None
        oid, relkind = found
        columns = cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND "
            "attidentity = '', attgenerated <> '' OR attidentity = 'a', "
            "col_description(attrelid, attnum), NOT attnotnull FROM pg_attribute "
            "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (oid,),
        ).fetchall()
        loose = cursor.execute(
            "SELECT DISTINCT a.attname FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]) "
            "JOIN pg_collation c ON c.oid = a.attcollation "
            "WHERE i.indrelid = %s AND i.indisunique AND NOT c.collisdeterministic ORDER BY 1",
            (oid,),
        ).fetchall()
        unique = cursor.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid",
            (oid,),
        ).fetchall()
        problems = [] if relkind in {"r", "p"} else ["it is no table"]
        if loose:
            problems.append(
                f"the texts of its key are not told apart exactly: "
                f"{', '.join(name for (name,) in loose)} should have a deterministic collation"
            )
        return SqlTable(
            columns=tuple(
                structs.replace(
                    _column(name, declared, comment), required=required, takes_null=nullable
                )
                for name, declared, required, generated, comment, nullable in columns
                if not generated
            ),
            unique=tuple(frozenset(names) for (names,) in unique),
            problems=tuple(problems),
        )

    def create(self, table: str, columns: Sequence[tuple[str, Kind]], key: Sequence[str]) -> str:
        """As `Dialect.create`."""
        named = ", ".join(f"{_quoted(name)} {_type(kind, name in key)}" for name, kind in columns)
        keys = ", ".join(map(_quoted, key))
        comments = "".join(
            f"; COMMENT ON COLUMN {self.table(table)}.{_quoted(name)} IS '{JSON_COMMENT}'"
            for name, kind in columns
            if kind is Kind.JSON and name in key
        )
        return f"CREATE TABLE {self.table(table)} ({named}, PRIMARY KEY ({keys})){comments}"

    def add(self, table: str, name: str, kind: Kind) -> Sequence[str]:
        """As `Dialect.add`."""
        return (f"ALTER TABLE {self.table(table)} ADD COLUMN {_quoted(name)} {_TYPES[kind]}",)

    def widen(self, table: str, name: str, kind: Kind, *, key: bool) -> str:
        """As `Dialect.widen`."""
        declared = _type(kind, key)
        return f"ALTER TABLE {self.table(table)} ALTER COLUMN {_quoted(name)} TYPE {declared}"

    def unfit(self, kind: Kind, column: Column) -> tuple[NDArray[np.bool_], str] | None:
        """As `Dialect.unfit`."""
        if kind not in {Kind.STRING, Kind.OBJECT_ID}:
            return None  # JSON writes a NUL as an escape, and that type keeps its text
        found = compute.fill_null(compute.match_substring(column, "\0"), False)
        mask: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return (mask, "text with a NUL, which PostgreSQL does not keep") if mask.any() else None

    def key_bytes_max(self) -> int:
        """As `Dialect.key_bytes_max`."""
        return _KEY_BYTES_MAX

    def key_limit(self, keys: int) -> int | None:  # noqa: ARG002
        """As `Dialect.key_limit`."""
        return None

    def upsert(
        self, cursor: Any, table: str, columns: Sequence[Values], key: Sequence[str]
    ) -> None:
        """As `Dialect.upsert`."""
        names = ", ".join(_quoted(one.name) for one in columns)
        taken = ", ".join(
            f"u.c{at}" + ("::json" if one.kind is Kind.JSON and one.name not in key else "")
            for at, one in enumerate(columns)
        )
        others = [_quoted(one.name) for one in columns if one.name not in key]
        done = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        statement = (
            f"INSERT INTO {self.table(table)} ({names}) SELECT {taken} FROM {_unnested(columns)} "
            f"ON CONFLICT ({', '.join(map(_quoted, key))}) DO "
            + (f"UPDATE SET {done}" if done else "NOTHING")
        )
        for values in _slices(columns):
            cursor.execute(statement.encode(), values)

    def delete(self, cursor: Any, table: str, key: Sequence[Values]) -> None:
        """As `Dialect.delete`."""
        same = _same(key)
        statement = f"DELETE FROM {self.table(table)} t USING {_unnested(key)} WHERE {same}"
        for values in _slices(key):
            cursor.execute(statement.encode(), values)

    def select(
        self, cursor: Any, table: str, columns: Sequence[SqlColumn], key: Sequence[Values]
    ) -> list[tuple[Any, ...]]:
        """As `Dialect.select`."""
        source = f"{self.table(table)} t JOIN {_unnested(key)} ON {_same(key)}"
        statement = f"SELECT {_listed(columns)} FROM {source}"
        rows: list[tuple[Any, ...]] = []
        for values in _slices(key):
            rows += cursor.execute(statement.encode(), values).fetchall()
        return rows

    def unhurried(self, connection: Any) -> AbstractContextManager[None]:  # noqa: ARG002
        """As `Dialect.unhurried`."""
        return nullcontext()

    def begin_moment(self, connection: Any, tables: Sequence[str]) -> None:
        """As `Dialect.begin_moment`."""
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        if tables:
            # Before anything is read: a table that is rewritten behind that moment seems empty.
            listed = ", ".join(map(self.table, tables))
            connection.execute(f"LOCK TABLE {listed} IN ACCESS SHARE MODE".encode(), ())

    def stream(
        self, connection: Any, table: str, columns: Sequence[SqlColumn]
    ) -> Generator[tuple[Any, ...]]:
        """As `Dialect.stream`."""
        with connection.cursor(name="penstock_rows") as cursor:
            cursor.adapters.register_loader("timestamptz", _InstantLoader)
            statement = f"SELECT {_listed(columns)} FROM {self.table(table)} t"
            yield from cursor.execute(statement.encode(), ())

    def read(self, kind: Kind, values: Sequence[Any]) -> Column:
        """As `Dialect.read`."""
        column: Column = arrow.array(values, ARROW_TYPES[kind])
        return column


def _is_usable(uri: str) -> bool:
    """Whether libpq can take it apart, and servers can be what it finds in it."""
    try:
        told = conninfo_to_dict(uri)
    except psycopg.ProgrammingError:
        return False
    hosts, ports = (str(told.get(name) or "").split(",") for name in ("host", "port"))
    # A "/" in a password ends what is then taken for a host and its port.
    astray = "user" not in told and "@" in str(told.get("dbname"))
    return (
        not astray
        # What begins with these is a socket's, and no name.
        and all(one.startswith(("/", "@")) or is_host(one) for one in hosts)
        and all(not one or (one.isdecimal() and int(one) in range(1, 1 << 16)) for one in ports)
    )


def _defaults() -> dict[str, Any]:
    """What libpq takes of the environment and the system where the URI does not say it."""
    found = pq.Conninfo.get_defaults()
    return {one.keyword.decode(): one.val.decode() for one in found if one.val}


def _settle(connection: Any) -> None:
    """Have a session in which values are what they are, and a commit is on the disk."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW search_path")
        (path,) = cursor.fetchone()
        cursor.execute("SHOW synchronous_commit")
        (durable,) = cursor.fetchone()
        # Before all else: nobody's own functions and operators are taken for the server's.
        settings = {"search_path": ", ".join(filter(None, ("pg_catalog", path))), **_SESSION}
        if durable == "off":
            settings["synchronous_commit"] = "on"
        for name, value in settings.items():
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    connection.commit()


class _InstantLoader(Loader):
    """Leaves what Python has no instant for, as infinity, as it is written."""

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        self._instants = TimestamptzLoader(oid, context)

    def load(self, data: Any) -> Any:
        try:
            return self._instants.load(data)
        except psycopg.DataError:
            return bytes(data)


def _quoted(name: str) -> str:
    # "%" begins a place for a value in psycopg's statements.
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _type(kind: Kind, key: bool) -> str:
    return "text" if key and kind is Kind.JSON else _TYPES[kind]


def _column(name: str, declared: str, comment: str | None) -> SqlColumn:
    kind = _KINDS.get(declared)
    if kind is Kind.STRING and comment == JSON_COMMENT:
        kind = Kind.JSON
    limit = None
    if declared.startswith("character varying("):
        kind, limit = Kind.STRING, int(declared.partition("(")[2].rstrip(")"))
    return SqlColumn(name=name, kind=kind, declared=declared, limit=limit)


def _unnested(columns: Sequence[Values]) -> str:
    arrays = ", ".join(f"%s::{_array_type(one.kind)}[]" for one in columns)
    names = ", ".join(f"c{number}" for number in range(len(columns)))
    return f"unnest({arrays}) AS u({names})"


def _array_type(kind: Kind) -> str:
    return "text" if kind is Kind.JSON else "numeric" if kind is Kind.DECIMAL else _TYPES[kind]


def _listed(columns: Sequence[SqlColumn]) -> str:
    return ", ".join(
        f"t.{_quoted(one.name)}" + ("::text" if one.kind in TEXTS else "") for one in columns
    )


def _same(key: Sequence[Values]) -> str:
    return " AND ".join(f"t.{_quoted(one.name)} = u.c{at}" for at, one in enumerate(key))


def _slices(columns: Sequence[Values]) -> Iterator[list[list[Any]]]:
    """A few rows at a time, as a list for each column."""
    count = len(columns[0].column)
    size = sum(one.column.nbytes for one in columns)
    rows = max(1, min(_ROWS, int(count * (8 << 20) / max(size, 1))))
    for start in range(0, count, rows):
        yield [_python(one.kind, one.column.slice(start, rows)) for one in columns]


def _python(kind: Kind, column: Any) -> list[Any]:
    if kind is Kind.DECIMAL and not isinstance(column.type, pa.Decimal128Type):
        column = column.cast(ARROW_TYPES[kind])
    values: list[Any] = column.to_pylist()
    return values
