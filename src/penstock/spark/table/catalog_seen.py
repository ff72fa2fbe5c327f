"""A Delta table of a catalog as it was seen: whose it is, how far it is, and its rows there."""

# Names are quoted, and texts are literals.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open, and Spark's those of its Java objects.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import ConfigError, PipelineChangedError, StreamChangedError
from penstock.spark.table.arrow import arrow
from penstock.spark.table.features import constraints
from penstock.spark.table.owner import RECENT_COMMITS, Commit, is_short
from penstock.spark.table.plan import KEY, OWN_COLUMNS
from penstock.spark.table.side import CatalogSide
from penstock.spark.table.sparks import NotDeltaError, Seen, frame_of, history, spark_sql
from penstock.spark.table.stamp import app_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LITERALS_MAX: Final = 500
"""Beyond so many keys they are joined, not named."""
PIPELINE: Final = "penstock.pipeline"
LOG: Final = "penstock.log"
KEEPS: Final = "penstock.keeps"


class SeenTable:
    """What is read of a `CatalogTable`."""

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
        says = [self._seen.properties.get(name) for name in (PIPELINE, KEEPS)]
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
        known = self._seen.properties.get(LOG)
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

    def is_taken_back(self) -> bool:
        """As `KeptTable.is_taken_back`."""
        since = 0 if self._seen is None else RECENT_COMMITS
        return is_short(
            [
                Commit(
                    version=one["version"],
                    at_ms=int(one["timestamp"].timestamp() * 1000),
                    operation=str(one["operation"]),
                    parameters=one["operationParameters"] or {},
                    is_ours="penstock.pipeline" in str(one["userMetadata"]),
                )
                for one in history(self._session, self._sql, commits=since)
            ]
        )

    @property
    def schema(self) -> pa.Schema:
        """As `KeptTable.schema`."""
        columns = [] if self._seen is None else list(self._seen.schema)
        return arrow.schema([one for one in columns if one.name not in OWN_COLUMNS.names])

    @property
    def constraints(self) -> Mapping[str, str]:
        """As `KeptTable.constraints`."""
        return {} if self._seen is None else constraints(self._seen.properties)

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

    def scan(self, predicate: str | None = None) -> Iterator[pa.RecordBatch]:
        """As `KeptTable.scan`; all at once in memory."""
        if self._seen is not None:
            rows = self._session.sql(self._select(predicate)).toArrow()
            yield from self._shaped(rows).to_batches()

    def has(self, predicate: str) -> bool:
        """As `KeptTable.has`."""
        if self._seen is None:
            return False
        return bool(self._session.sql(f"{self._select(predicate)} LIMIT 1").collect())

    def side(self) -> CatalogSide:
        """As `KeptTable.side`."""
        columns = self._own if self._seen is None else self._seen.schema
        return CatalogSide(table=self._sql, version=self.version, columns=columns)

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
