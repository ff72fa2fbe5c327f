"""Delta tables through Spark and the catalog of its session: what is applied, and how far.

A commit of rows carries one app transaction, as delta-rs writes it: the pipeline, and the sequence
that the table has with this commit. Delta itself passes over a commit whose sequence the table has
already, so only what is behind it is ever written under one. It carries no second one, so which log
a table is of is a property of it, as is the pipeline and what the table keeps: they come with the
commit that makes it, before any row. A table without them is somebody else's, and left alone.

What mends rows as of where the table is cannot be under that app transaction: Delta would pass over
it. It is written by whoever knows that no pipeline runs; the table's history tells afterwards
whether that was so.

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
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import PipelineError
from penstock.spark.causes import is_called
from penstock.spark.table.arrow import arrow
from penstock.spark.table.catalog_seen import KEEPS, LOG, PIPELINE, SeenTable
from penstock.spark.table.committing import TRIES, UPKEEP
from penstock.spark.table.delta import text
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    REJECTED,
    SEQUENCE,
    SOURCE,
    STALE,
)
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.sparks import (
    APP,
    CHANGES,
    SAID,
    VERSION,
    given,
    history,
    run_again,
    schema_of,
    spark_sql,
    told,
)
from penstock.spark.table.stamp import Stamp, app_id
from penstock.spark.table.statistics import STATISTICS, statistics_of

_EXISTS: Final = "TABLE_OR_VIEW_ALREADY_EXISTS"
_LEFT: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


class CatalogTable(SeenTable):
    """One Delta table of a pipeline in a catalog, as it is now; a `KeptTable`."""

    def merge(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.merge`. A row that has a newer change already stays as it is."""
        if stamp.moves:
            self._merge(changes, stamp)
            return
        with self._alone(stamp):
            self._merge(changes, None)

    def _merge(self, changes: pa.Table, stamp: Stamp | None) -> None:
        """Without a stamp, as the rows are given, whatever is there."""
        columns = [name for name in changes.column_names if name != OPERATION]
        self._fit(changes.schema, log_id=None if stamp is None else stamp.log_id)
        newer = "" if stamp is None else f"AND s.`{SEQUENCE}` > t.`{SEQUENCE}` "
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (KEY, DATABASE, SOURCE))
        values = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names = ", ".join(f"`{name}`" for name in columns)
        with given(self._session, changes):
            self._commit(
                f"MERGE INTO {self._sql} AS t USING {CHANGES} AS s ON {same} "
                f"WHEN MATCHED AND s.`{OPERATION}` = {DELETE} {newer}THEN DELETE "
                f"WHEN MATCHED AND s.`{OPERATION}` = {STALE} "
                f"THEN UPDATE SET `{REJECTED}` = s.`{REJECTED}` "
                f"WHEN MATCHED AND s.`{OPERATION}` = {PUT} {newer}THEN UPDATE SET {values} "
                f"WHEN NOT MATCHED AND s.`{OPERATION}` = {PUT} "
                f"THEN INSERT ({names}) VALUES ({', '.join(f's.`{name}`' for name in columns)})",
                stamp,
                place=None if stamp is None else stamp.until,
            )

    @contextmanager
    def _alone(self, stamp: Stamp) -> Generator[None]:
        """In the block rows are written as of where the table was seen to be.

        Raises PipelineError if another process has written since: then nothing is; or does so in
        the block, which is known when it ends.
        """
        seen, mark = self.version, secrets.token_hex(8)
        self.reload()
        if self._seen is None:
            raise PipelineError(
                f"pipeline {self._pipeline}: the table {self.path} is not there. Nothing was "
                f"written. Have it made from the log again: penstock pipeline reset "
                f"{self._pipeline} --to oldest."
            )
        if self._has_others(seen, mark):
            raise PipelineError(
                f"the table {self.path} has moved on while it was looked at. Nothing of it was "
                f"changed. Stop pipeline {self._pipeline}, and do it again then."
            )
        with told(self._session, {SAID: _said(stamp, mark)}):
            yield
        self.reload()
        if self._has_others(seen, mark):
            raise PipelineError(
                f"pipeline {self._pipeline}: another process wrote {self.path} while rows were "
                f"mended there. No change is missing, but a row that it deleted meanwhile may be "
                f"there again. Run one driver per pipeline, and none while rows are mended; then "
                f"compare the table: penstock pipeline verify {self._pipeline}."
            )

    def insert(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.insert`."""
        self.merge(changes, stamp)

    def _has_others(self, seen: int, mark: str) -> bool:
        """Whether others have changed rows since a version; our own commits say the mark."""
        if self.version < seen:
            return True
        since = history(self._session, self._sql, commits=self.version - seen)
        return any(
            mark not in str(one["userMetadata"]) and one["operation"] not in UPKEEP for one in since
        )

    def rewrite(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.rewrite`: `merge` widens columns, too."""
        self.merge(changes, stamp)

    def replace(self, rows: pa.Table, stamp: Stamp) -> None:
        """As `KeptTable.replace`. Raises PipelineError if another process did so since `reload`."""
        place = self.applied(self._pipeline, log_id=None) + 1
        self.make()
        self._add_columns(rows.schema)
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
        with given(self._session, rows):
            self._commit(
                f"INSERT {how} {self._sql} ({names}) SELECT {names} FROM {CHANGES}",
                stamp,
                place=place,
                mark=mark,
            )
        since = history(self._session, self._sql, commits=self.version - before)
        if not any(mark in str(one["userMetadata"]) for one in since):
            raise _overtaken(self._pipeline)

    def empty(self, predicate: str, stamp: Stamp | None) -> None:
        """As `KeptTable.empty`."""
        if self._seen is None:
            return
        statement = f"DELETE FROM {self._sql} WHERE {spark_sql(predicate)}"
        if stamp is None:
            self._commit(statement, None)
            return
        self._commit(statement, stamp, place=stamp.until, always=False)
        if self.applied(self._pipeline, log_id=None) < stamp.until:
            # Where nothing is to be deleted Delta commits nothing, and the place is to be stored.
            nothing = f"INSERT INTO {self._sql} SELECT * FROM {self._sql} WHERE false"
            self._commit(nothing, stamp, place=stamp.until)

    def relabel(self, predicate: str, values: Mapping[str, str], stamp: Stamp) -> None:
        """As `KeptTable.relabel`."""
        if self._seen is not None:
            said = ", ".join(f"`{name}` = {spark_sql(value)}" for name, value in values.items())
            statement = f"UPDATE {self._sql} SET {said} WHERE {spark_sql(predicate)}"
            self._commit(statement, stamp, place=stamp.until if stamp.moves else None)

    def make(self, *, log_id: int | None = None) -> None:
        """Have the table, with its own columns and no row; bound to a log, if one is given."""
        if self._seen is not None:
            return
        says = {
            PIPELINE: self._pipeline,
            KEEPS: self._keeps,
            STATISTICS: statistics_of(self._own),
        }
        if log_id is not None:
            says[LOG] = f"{log_id:016x}"
        columns = ", ".join(
            f"`{one.name}` {one.dataType.simpleString()}{'' if one.nullable else ' NOT NULL'}"
            for one in schema_of(self._own).fields
        )
        try:
            self._session.sql(
                f"CREATE TABLE {self._sql} ({columns}) USING delta "
                f"TBLPROPERTIES ({_properties(says)})"
            )
        except Exception as error:
            if is_called(error, _LEFT):
                raise PipelineError(
                    f"pipeline {self._pipeline}: the catalog has no table {self.path}, and where "
                    f"it would be there are files, as a driver leaves them that is killed while "
                    f"it makes the table. Nothing was written. Look at them; if there are no rows, "
                    f"remove that folder, and start the pipeline again."
                ) from error
            if not is_called(error, _EXISTS):
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
        """As `KeptTable.vacuum`; 0 too where Delta does not write down how many."""
        if self._seen is None:
            return 0
        hours, before = max(1, math.ceil(history_seconds / 3600)), self.version
        # Only what commits have replaced: what another writer has not committed yet stays.
        self._session.sql(f"VACUUM {self._sql} LITE RETAIN {hours} HOURS")
        self.reload()
        since = history(self._session, self._sql, commits=self.version - before)
        metrics = [one["operationMetrics"] or {} for one in since]
        return sum(int(one.get("numDeletedFiles", 0)) for one in metrics)

    # --- helpers --------------------------------------------------------------------------------

    def _fit(self, wanted: pa.Schema, *, log_id: int | None) -> None:
        """Have all columns of `wanted`, wide enough. No value changes."""
        self.make(log_id=log_id)
        assert self._seen is not None
        has = self._seen.schema
        fields = [field for field in wanted if field.name != OPERATION]
        wider = {
            field.name: field
            for field in fields
            if field.name in has.names and has.field(field.name).type != field.type
        }
        self._add_columns(fields)
        self._state_statistics(wider)
        if wider:
            self._widen(wider)

    def _state_statistics(self, wider: Mapping[str, "pa.Field[Any]"]) -> None:
        """As `state_statistics`, of the columns as they will be; files that are there stay."""
        assert self._seen is not None
        says = statistics_of(
            arrow.schema([wider.get(field.name, field) for field in self._seen.schema])
        )
        if self._seen.properties.get(STATISTICS) == says:
            return
        said = _properties({STATISTICS: says})
        self._session.sql(f"ALTER TABLE {self._sql} SET TBLPROPERTIES ({said})")
        self.reload()

    def _add_columns(self, fields: Iterable["pa.Field[Any]"]) -> None:
        """Have those of the columns that are new. No row changes."""
        assert self._seen is not None
        has = self._seen.schema
        new = [field for field in fields if field.name not in has.names]
        if not new:
            return
        frame = self._session.createDataFrame([], schema_of(arrow.schema([*has, *new])))
        frame.write.format("delta").mode("append").option("mergeSchema", "true").saveAsTable(
            self._sql
        )
        self.reload()

    def _widen(self, wider: Mapping[str, "pa.Field[Any]"]) -> None:
        """Write all rows anew, with these columns as they are here.

        Raises PipelineError if another process altered the columns, or wrote rows, since `reload`.
        """
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        assert self._seen is not None
        place, has = self.applied(self._pipeline, log_id=None), self._seen.schema
        columns = schema_of(arrow.schema([wider.get(field.name, field) for field in has]))

        def write() -> None:
            self.reload()
            assert self._seen is not None
            is_same = self._seen.schema.equals(has, check_metadata=True)
            if not is_same or self.applied(self._pipeline, log_id=None) != place:
                raise _overtaken(self._pipeline)
            # Of no version: Delta reads what its own commit replaces, and no other commit is lost.
            frame = self._session.table(self._sql).select(
                *(
                    F.col(f"`{one.name}`").cast(one.dataType).alias(one.name, metadata=one.metadata)
                    for one in columns.fields
                )
            )
            frame.writeTo(self._sql).option("overwriteSchema", "true").overwrite(F.lit(True))

        run_again(write, tries=TRIES)
        self.reload()

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
        where Delta need not `always` commit.
        """
        says = {} if stamp is None else {SAID: _said(stamp, mark)}
        if place is not None:
            says |= {APP: app_id(self._pipeline), VERSION: str(place)}
        with told(self._session, says):
            run_again(lambda: self._session.sql(statement), tries=1 if place is None else TRIES)
        self.reload()
        if place is None or not always:
            return
        if self.applied(self._pipeline, log_id=None) < place:
            raise PipelineError(
                f"pipeline {self._pipeline}: Spark wrote {self.path} and did not say in it how far "
                f"it has come, as Delta Lake 2.4 and later do. The batch is applied again when the "
                f"pipeline is started. Use Delta's own jars of 4.4.0 or later."
            )


def _properties(says: Mapping[str, str]) -> str:
    """Properties of a table, as Spark's SQL has them."""
    return spark_sql(", ".join(f"{text(name)} = {text(value)}" for name, value in says.items()))


def _said(stamp: Stamp, mark: str) -> str:
    """What a commit says of itself in the table's history."""
    said = {**stamp.said(), **({"penstock.write": mark} if mark else {})}
    return msgspec.json.encode(said).decode()


def _overtaken(pipeline: str) -> PipelineError:
    return PipelineError(
        f"pipeline {pipeline}: another process wrote where it stands at the same time. Nothing of "
        f"the batch was written twice. Run one driver per pipeline; then start it again."
    )
