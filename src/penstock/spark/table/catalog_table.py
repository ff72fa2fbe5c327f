"""Delta tables through Spark and the catalog of its session: what is applied, and how far.

A commit of rows carries one app transaction, as delta-rs writes it: the pipeline, and the sequence
that the table has with this commit. Delta itself passes over a commit whose sequence the table has
already, so only what is behind it is ever written under one. It carries no second one, so which log
a table is of is a property of it, as is the pipeline and what the table keeps: they come with the
commit that makes it, before any row. A table without them is somebody else's, and left alone.

Columns are added, and made wider, in commits of their own before the rows: they alter no value, and
when the batch comes again there is nothing left to do.
"""

# Names are quoted, and texts are literals.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open, and Spark's those of its Java objects.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import (
    ConfigError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
)
from penstock.spark.raised import is_overtaken
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import Stamp, app_id, of_stream, text
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    REJECTED,
    SEQUENCE,
    SOURCE,
    STALE,
)
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.sparks import (
    APP,
    SAID,
    VERSION,
    NotDeltaError,
    Seen,
    frame_of,
    schema_of,
    spark_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES: Final = "penstock_changes"
_LITERALS_MAX: Final = 500
"""Beyond so many keys they are joined, not named."""
_PIPELINE: Final = "penstock.pipeline"
_LOG: Final = "penstock.log"
_KEEPS: Final = "penstock.keeps"
_TRIES: Final = 5
_EXISTS: Final = "TABLE_OR_VIEW_ALREADY_EXISTS"
_LEFT: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


class CatalogTable:
    """One Delta table of a pipeline in a catalog, as it is now; a `KeptTable`."""

    def __init__(
        self,
        session: "SparkSession",
        name: tuple[str, str, str],
        *,
        pipeline: str,
        keeps: str,
        own: pa.Schema,
    ) -> None:
        """`keeps` is what for: a table that is there and does not say so is refused. `own` are the
        columns that it is made with.

        Raises PipelineChangedError for such a table, ConfigError for one that is none of Delta's.
        """
        self.path = ".".join(name)
        self._name = name
        self._sql = ".".join(f"`{part}`" for part in name)
        self._session = session
        self._pipeline = pipeline
        self._keeps = keeps
        self._own = own
        self._seen: Seen | None = None
        self.reload()
        self._opened = self.version

    def reload(self) -> None:
        """As `KeptTable.reload`."""
        try:
            self._seen = Seen.of(self._session, *self._name)
        except NotDeltaError:
            raise ConfigError(
                f"pipeline {self._pipeline}: {self.path} is there, and is no Delta table as Spark "
                f"sees it. Nothing was written. Move it away, or give the pipeline another "
                f"catalog; if it is one, set the session up as docs/how-to/tables.md shows."
            ) from None
        if self._seen is None:
            return
        says = [self._seen.properties.get(name) for name in (_PIPELINE, _KEEPS)]
        if says != [self._pipeline, self._keeps]:
            whose = f"of pipeline {says[0]}, {says[1]}" if says[0] else "no table of Penstock's"
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"{self.path} is there and is {whose}, not its {self._keeps}",
                remedy="or move the table away",
                new="catalog",
            )

    def applied(self, pipeline: str, *, log_id: int | None) -> int:
        """As `KeptTable.applied`."""
        if self._seen is None:
            return 0
        known = self._seen.properties.get(_LOG)
        if log_id is not None and known != f"{log_id:016x}":
            made = f"log {known}" if known else "no log that it names"
            raise StreamChangedError(
                f"the table {self.path} was made from {made}, and this is log "
                f"{log_id:016x}; move the table away or give the pipeline another catalog"
            )
        return self._seen.transaction(app_id(pipeline)) or 0

    @property
    def version(self) -> int:
        """As `KeptTable.version`."""
        return -1 if self._seen is None else self._seen.version

    @property
    def commits(self) -> range:
        """As `KeptTable.commits`."""
        return range(self._opened + 1, self.version + 1)

    @property
    def schema(self) -> pa.Schema:
        """As `KeptTable.schema`."""
        columns = [] if self._seen is None else list(self._seen.schema)
        return arrow.schema([one for one in columns if one.name not in OWN_COLUMNS.names])

    # --- reading --------------------------------------------------------------------------------

    def rows(self, keys: Sequence[str]) -> pa.Table:
        """As `KeptTable.rows`."""
        if self._seen is None or not keys:
            return self._own.empty_table()
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        frame = self._session.sql(self._select())
        if len(keys) <= _LITERALS_MAX:
            frame = frame.where(F.col(KEY).isin(list(keys)))
        else:
            wanted = arrow.table({KEY: arrow.array(keys, pa.string())})
            frame = frame.join(F.broadcast(frame_of(self._session, wanted)), KEY, "left_semi")
        return self._shaped(frame.toArrow())

    def stream(self, source: str, database: str) -> pa.Table:
        """As `KeptTable.stream`."""
        return self._found(of_stream(source, database))

    def scan(self, predicate: str | None = None) -> Iterator[pa.RecordBatch]:
        """As `KeptTable.scan`; all at once in memory."""
        yield from self._found(predicate).to_batches()

    def _found(self, predicate: str | None) -> pa.Table:
        if self._seen is None:
            return self._own.empty_table()
        return self._shaped(self._session.sql(self._select(predicate)).toArrow())

    def _select(self, predicate: str | None = None) -> str:
        """At the version that was seen: what is read and how far that is are of one commit."""
        where = "" if predicate is None else f" WHERE {spark_sql(predicate)}"
        return f"SELECT * FROM {self._sql} VERSION AS OF {self.version}{where}"

    def _shaped(self, rows: pa.Table) -> pa.Table:
        assert self._seen is not None
        schema = self._seen.schema
        return arrow.Table.from_arrays(
            [rows[field.name].cast(field.type) for field in schema], schema=schema
        )

    # --- writing --------------------------------------------------------------------------------

    def merge(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.merge`. A row that has a newer change already stays as it is."""
        columns = [name for name in changes.column_names if name != OPERATION]
        self._fit(changes.schema, log_id=stamp.log_id)
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (KEY, DATABASE, SOURCE))
        values = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names = ", ".join(f"`{name}`" for name in columns)
        newer = f"s.`{SEQUENCE}` > t.`{SEQUENCE}`"
        with self._given(changes):
            self._commit(
                f"MERGE INTO {self._sql} AS t USING {_CHANGES} AS s ON {same} "
                f"WHEN MATCHED AND s.`{OPERATION}` = {DELETE} AND {newer} THEN DELETE "
                f"WHEN MATCHED AND s.`{OPERATION}` = {STALE} "
                f"THEN UPDATE SET `{REJECTED}` = s.`{REJECTED}` "
                f"WHEN MATCHED AND s.`{OPERATION}` = {PUT} AND {newer} THEN UPDATE SET {values} "
                f"WHEN NOT MATCHED AND s.`{OPERATION}` = {PUT} "
                f"THEN INSERT ({names}) VALUES ({', '.join(f's.`{name}`' for name in columns)})",
                stamp,
                place=stamp.until,
            )

    def rewrite(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.rewrite`: `merge` widens columns, too."""
        self.merge(changes, stamp)

    def replace(self, rows: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.replace`. Raises PipelineError if another process did so since `reload`."""
        place = self.applied(self._pipeline, log_id=None) + 1
        self.make()
        self._put("OVERWRITE", rows, stamp, place=place)

    def append(self, rows: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.append`. Raises PipelineError if another process did so since `reload`:
        whoever adds has looked what is there."""
        place = self.applied(self._pipeline, log_id=None) + 1
        self._fit(rows.schema, log_id=stamp.log_id)
        self._put("INTO", rows, stamp, place=place)

    def _put(self, how: str, rows: pa.Table, stamp: Stamp, *, place: int) -> None:
        """Insert rows, as the `place`th who does so: of two who have seen the same table the second
        is passed over, and raises."""
        names = ", ".join(f"`{name}`" for name in rows.column_names)
        before, mark = self.version, secrets.token_hex(8)
        with self._given(rows):
            self._commit(
                f"INSERT {how} {self._sql} ({names}) SELECT {names} FROM {_CHANGES}",
                stamp,
                place=place,
                mark=mark,
            )
        since = self._session.sql(f"DESCRIBE HISTORY {self._sql} LIMIT {self.version - before}")
        said = [str(row["userMetadata"]) for row in since.select("userMetadata").collect()]
        if not any(mark in one for one in said):
            raise _overtaken(self._pipeline)

    def empty(self, predicate: str, stamp: Stamp | None) -> None:
        """As `KeptTable.empty`."""
        if self._seen is not None:
            statement = f"DELETE FROM {self._sql} WHERE {spark_sql(predicate)}"
            # Where nothing is to be deleted Delta commits nothing, and the place stays.
            place = None if stamp is None else stamp.until
            self._commit(statement, stamp, place=place, always=False)

    def relabel(self, predicate: str, values: Mapping[str, str], stamp: Stamp) -> None:
        """As `KeptTable.relabel`."""
        if self._seen is not None:
            said = ", ".join(f"`{name}` = {spark_sql(value)}" for name, value in values.items())
            statement = f"UPDATE {self._sql} SET {said} WHERE {spark_sql(predicate)}"
            self._commit(statement, stamp, place=stamp.until)

    def make(self, *, log_id: int | None = None) -> None:
        """Have the table, with its own columns and no row; bound to a log, if one is given."""
        if self._seen is not None:
            return
        says = {_PIPELINE: self._pipeline, _KEEPS: self._keeps}
        if log_id is not None:
            says[_LOG] = f"{log_id:016x}"
        columns = ", ".join(
            f"`{one.name}` {one.dataType.simpleString()}{'' if one.nullable else ' NOT NULL'}"
            for one in schema_of(self._own).fields
        )
        properties = ", ".join(f"{text(name)} = {text(value)}" for name, value in says.items())
        try:
            self._session.sql(
                f"CREATE TABLE {self._sql} ({columns}) USING delta "
                f"TBLPROPERTIES ({spark_sql(properties)})"
            )
        except Exception as error:
            if _LEFT in str(error):
                raise PipelineError(
                    f"pipeline {self._pipeline}: the catalog has no table {self.path}, and where "
                    f"it would be there are files, as a driver leaves them that is killed while "
                    f"it makes the table. Nothing was written. Look at them; if there are no rows, "
                    f"remove that folder, and start the pipeline again."
                ) from error
            if _EXISTS not in str(error):
                raise
        self.reload()

    # --- looking after --------------------------------------------------------------------------

    def compact(self) -> tuple[int, int]:
        """As `KeptTable.compact`."""
        if self._seen is None:
            return 0, 0
        (done,) = self._session.sql(f"OPTIMIZE {self._sql}").select("metrics.*").collect()
        self.reload()
        return int(done["numFilesRemoved"]), int(done["numFilesAdded"])

    def vacuum(self, *, history_seconds: float) -> int:
        """As `KeptTable.vacuum`; how many Spark does not tell."""
        if self._seen is not None:
            hours = max(1, math.ceil(history_seconds / 3600))
            # Only what commits have replaced: what another writer has not committed yet stays.
            self._session.sql(f"VACUUM {self._sql} LITE RETAIN {hours} HOURS")
            self.reload()
        return 0

    # --- helpers --------------------------------------------------------------------------------

    def _fit(self, wanted: pa.Schema, *, log_id: int | None) -> None:
        """Have all columns of `wanted`, wide enough. No value changes."""
        self.make(log_id=log_id)
        assert self._seen is not None
        has = self._seen.schema
        fields = [field for field in wanted if field.name != OPERATION]
        new = [field for field in fields if field.name not in has.names]
        wider = {
            field.name: field
            for field in fields
            if field.name in has.names and has.field(field.name).type != field.type
        }
        if wider:
            self._widen(wider)
        if new:
            columns = schema_of(arrow.schema([*self._seen.schema, *new]))
            frame = self._session.createDataFrame([], columns)
            frame.write.format("delta").mode("append").option("mergeSchema", "true").saveAsTable(
                self._sql
            )
        if wider or new:
            self.reload()

    def _widen(self, wider: Mapping[str, "pa.Field[Any]"]) -> None:
        """Write all rows anew, with these columns as they are here.

        Raises PipelineError if another process altered the columns, or wrote rows, since `reload`.
        """
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        assert self._seen is not None
        place, has = self.applied(self._pipeline, log_id=None), self._seen.schema
        self.reload()
        is_same = self._seen.schema.equals(has, check_metadata=True)
        if not is_same or self.applied(self._pipeline, log_id=None) != place:
            raise _overtaken(self._pipeline)
        columns = schema_of(arrow.schema([wider.get(field.name, field) for field in has]))
        # Of no version: Delta reads what its own commit replaces, and no other commit is lost.
        frame = self._session.table(self._sql).select(
            *(
                F.col(f"`{one.name}`").cast(one.dataType).alias(one.name, metadata=one.metadata)
                for one in columns.fields
            )
        )
        frame.writeTo(self._sql).option("overwriteSchema", "true").overwrite(F.lit(True))
        self.reload()

    @contextmanager
    def _given(self, rows: pa.Table) -> Generator[None]:
        """The rows have a name in SQL, while the block runs."""
        frame_of(self._session, rows).createOrReplaceTempView(_CHANGES)
        try:
            yield
        finally:
            self._session.catalog.dropTempView(_CHANGES)

    def _commit(
        self,
        statement: str,
        stamp: Stamp | None,
        *,
        place: int | None = None,
        always: bool = True,
        mark: str = "",
    ) -> None:
        """One commit; with `place`, it and how far the table is then, or neither. With `mark`, that
        is in its history.

        What another's commit made impossible, as one that joins files, is tried again: Delta passes
        over what is there already. Raises PipelineError if the table is not there afterwards, but
        where there was nothing to commit and that need not `always` be done.
        """
        conf, before = self._session.conf, self.version
        told = {} if stamp is None else stamp.said()
        if mark:
            told["penstock.write"] = mark
        says = {SAID: msgspec.json.encode(told).decode()} if told else {}
        if place is not None:
            says |= {APP: app_id(self._pipeline), VERSION: str(place)}
        try:
            for name, value in says.items():
                conf.set(name, value)
            self._run(statement, tries=1 if place is None else _TRIES)
        finally:
            for name in says:
                conf.unset(name)
        self.reload()
        nothing = not always and self.version == before
        if place is None or nothing:
            return
        if self.applied(self._pipeline, log_id=None) < place:
            raise PipelineError(
                f"pipeline {self._pipeline}: Spark wrote {self.path} and did not say in it how far "
                f"it has come, as Delta Lake 2.4 and later do. The batch is applied again when the "
                f"pipeline is started. Use Delta's own jars of 4.4.0 or later."
            )

    def _run(self, statement: str, *, tries: int) -> None:
        for left in reversed(range(tries)):
            try:
                self._session.sql(statement)
            except Exception as error:
                if not left or not is_overtaken(error):
                    raise
            else:
                return


def _overtaken(pipeline: str) -> PipelineError:
    return PipelineError(
        f"pipeline {pipeline}: another process wrote where it stands at the same time. Nothing of "
        f"the batch was written twice. Run one driver per pipeline; then start it again."
    )
