"""How Spark is asked about a Delta table of its catalog, and told what to write."""

# Spark's Java objects have no types, and the stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from msgspec import Struct

from penstock.spark.raised import is_overtaken
from penstock.spark.table.arrow import arrow
from penstock.spark.table.kinds import FIELD, METADATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

APP: Final = "spark.databricks.delta.write.txnAppId"
VERSION: Final = "spark.databricks.delta.write.txnVersion"
SAID: Final = "spark.databricks.delta.commitInfo.userMetadata"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Other readers know no other instants of the year 1, or take them for another calendar's.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # A text means itself, whatever is in it (`spark_sql`).
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.variable.substitute": "false",
    # How long replaced files are kept is the pipeline's setting `history`.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
CHANGES: Final = "penstock_changes"
"""What rows are called in SQL that are `given`."""
_ROWS_MAX: Final = 10_000
_TASK_BYTES: Final = 16 << 20
_NAMED: Final = (METADATA.decode(), FIELD.decode())


def own_session(spark: "SparkSession") -> "SparkSession":
    """A session of the same driver that has the settings of `spark`, and ours; no other has what is
    set in it from now on."""
    session = spark.newSession()
    has = session.conf.getAll
    for name, value in spark.conf.getAll.items():
        if has.get(name) != value and session.conf.isModifiable(name):
            session.conf.set(name, value)
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    for name in (APP, VERSION, SAID):
        session.conf.unset(name)
    return session


def spark_sql(expression: str) -> str:
    """An expression of standard SQL as Spark reads it: there, a backslash in a text escapes."""
    return expression.replace("\\", "\\\\")


@contextmanager
def told(session: "SparkSession", says: Mapping[str, str]) -> Generator[None]:
    """The session has these settings, while the block runs."""
    try:
        for name, value in says.items():
            session.conf.set(name, value)
        yield
    finally:
        for name in says:
            session.conf.unset(name)


@contextmanager
def given(session: "SparkSession", rows: pa.Table) -> Generator[None]:
    """The rows are CHANGES in SQL, while the block runs."""
    frame_of(session, rows).createOrReplaceTempView(CHANGES)
    try:
        yield
    finally:
        session.catalog.dropTempView(CHANGES)


def run_again(write: Callable[[], object], *, tries: int) -> None:
    """Write, and again where another commit has made it impossible."""
    for left in reversed(range(tries)):
        try:
            write()
        except Exception as error:
            if not left or not is_overtaken(error):
                raise
        else:
            return


def history(session: "SparkSession", table: str, *, commits: int) -> list["Row"]:
    """What the last commits of a table say of themselves; newest first."""
    if not commits:
        return []
    return session.sql(f"DESCRIBE HISTORY {table} LIMIT {commits}").collect()


class Seen(Struct, frozen=True, kw_only=True):
    """A Delta table at one version."""

    version: int
    schema: pa.Schema
    properties: dict[str, str]
    snapshot: Any
    """Delta's own object."""

    @classmethod
    def of(cls, session: "SparkSession", catalog: str, schema: str, table: str) -> Self | None:
        """The table as it is now; None if there is none.

        Raises NotDeltaError for one that is none of Delta's.
        """
        gateway: Any = session._sc._gateway
        jvm: Any = gateway.jvm
        spaces = gateway.new_array(jvm.java.lang.String, 1)
        spaces[0] = schema
        identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(spaces, table)
        with _plugin(session, catalog) as plugin:
            if not plugin.tableExists(identifier):
                return None
            found = plugin.loadTable(identifier)
            if not str(found.getClass().getSimpleName()).startswith("DeltaTable"):
                raise NotDeltaError
            snapshot = found.update()
        metadata = snapshot.metadata()
        return cls(
            version=int(snapshot.version()),
            schema=columns_of(str(metadata.schema().json())),
            properties=dict(
                jvm.scala.jdk.javaapi.CollectionConverters.asJava(metadata.configuration())
            ),
            snapshot=snapshot,
        )

    def transaction(self, app: str) -> int | None:
        """The version of an app transaction, if it has one."""
        found = self.snapshot.transactions().get(app)
        return int(found.get()) if found.isDefined() else None


class NotDeltaError(Exception):
    """The table is not one of Delta Lake's."""


def require_delta(session: "SparkSession", catalog: str) -> None:
    """Raise NotDeltaError for Spark's own catalog without Delta's in it, where no Delta table is
    seen as one; and as Spark does where it cannot load the catalog, as without its jars."""
    with _plugin(session, catalog) as plugin:
        if plugin.getClass().getSimpleName() == "V2SessionCatalog":
            raise NotDeltaError


@contextmanager
def _plugin(session: "SparkSession", catalog: str) -> Generator[Any]:
    """What Spark has for a catalog, while the block runs.

    Which that is the thread's active session says, in place of the one that is asked; and a thread
    that has none, as one of Python's, is told of Spark's own catalog without Delta's in it.
    """
    jvm: Any = session._jvm
    jsession: Any = session._jsparkSession
    known: Any = type(session)._get_j_spark_session_class(jvm)
    before = known.getActiveSession()
    known.setActiveSession(jsession)
    try:
        yield jsession.sessionState().catalogManager().catalog(catalog)
    finally:
        if before.isDefined():
            known.setActiveSession(before.get())
        else:
            known.clearActiveSession()


def columns_of(schema: str) -> pa.Schema:
    """Spark's schema, as JSON, in Arrow, with what its columns say of the documents' fields."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = StructType.fromJson(json.loads(schema))
    fields = to_arrow_schema(struct, timezone="UTC")
    return arrow.schema(
        [
            arrow.field(
                column.name,
                fields.field(at).type,
                nullable=column.nullable,
                metadata={
                    name.encode(): str(value).encode()
                    for name, value in column.metadata.items()
                    if name in _NAMED
                },
            )
            for at, column in enumerate(struct.fields)
        ]
    )


def schema_of(columns: pa.Schema) -> "StructType":
    """The same columns as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    struct = from_arrow_schema(columns)
    return StructType(
        [
            StructField(
                column.name,
                column.dataType,
                column.nullable,
                {
                    name.decode(): value.decode()
                    for name, value in (columns.field(at).metadata or {}).items()
                },
            )
            for at, column in enumerate(struct.fields)
        ]
    )


def frame_of(session: "SparkSession", rows: pa.Table) -> "DataFrame":
    """The rows, in the driver, for what Spark does next."""
    schema = schema_of(rows.schema)
    if not rows.num_rows:
        return session.createDataFrame([], schema)
    # A task carries one such batch of them, and Spark sends none that is more than 128 MiB.
    most = max(1, min(_ROWS_MAX, rows.num_rows * _TASK_BYTES // max(1, rows.nbytes)))
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(most))
    return session.createDataFrame(rows, schema)
