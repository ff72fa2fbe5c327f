"""A table as of one version, for Spark's tasks to read."""

# Names are quoted.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import Struct

from penstock.errors import PipelineError
from penstock.spark.table.arrow import arrow
from penstock.spark.table.plan import OWN_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTS_PER_CORE: Final = 4


class Side(Protocol):
    """A table as of one version; one that is not there has no rows."""

    @property
    def version(self) -> int:
        """Which; -1 for one that is not there."""
        ...

    def schema(self) -> pa.Schema:
        """All of its columns."""
        ...

    def rows(self, spark: "SparkSession", schema: pa.Schema | None = None) -> "DataFrame":
        """Its rows, read by tasks; of the columns of `schema` where one is given, as its types."""
        ...


class CatalogSide(Struct, frozen=True, kw_only=True):
    """A table in a catalog, read by Spark; `table` is its name in SQL."""

    table: str
    version: int
    columns: pa.Schema

    def schema(self) -> pa.Schema:
        """As `Side.schema`."""
        return self.columns

    def rows(self, spark: "SparkSession", schema: pa.Schema | None = None) -> "DataFrame":
        """As `Side.rows`."""
        from pyspark.sql import functions as sql
        from pyspark.sql.pandas.types import from_arrow_schema

        struct = from_arrow_schema(schema or self.columns)
        if self.version < 0:
            return spark.createDataFrame([], struct)
        rows = spark.sql(f"SELECT * FROM {self.table} VERSION AS OF {self.version}")
        return rows.select(
            *(sql.col(f"`{one.name}`").cast(one.dataType).alias(one.name) for one in struct)
        )


class FolderSide(Struct, frozen=True, kw_only=True):
    """A table in a folder, read with delta-rs by tasks."""

    path: str
    version: int
    storage: dict[str, str]

    def opened(self) -> DeltaTable | None:
        """The table; None where there is none. Raises PipelineError where that version is gone."""
        if self.version < 0:
            return None
        try:
            return DeltaTable(self.path, version=self.version, storage_options=self.storage or None)
        except DeltaError as error:
            raise self.gone() from error

    def gone(self) -> PipelineError:
        """What to say of files that are not there any more."""
        return PipelineError(
            f"version {self.version} of the table {self.path} cannot be read any more, while it is "
            f"compared. Nothing was changed. Compare again; if its files are deleted too soon for "
            f"that, raise the pipeline's setting `history`."
        )

    def schema(self) -> pa.Schema:
        """As `Side.schema`."""
        table = self.opened()
        return OWN_COLUMNS if table is None else arrow.schema(table.schema().to_arrow())

    def rows(self, spark: "SparkSession", schema: pa.Schema | None = None) -> "DataFrame":
        """As `Side.rows`."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = schema or self.schema()
        parts = spark.sparkContext.defaultParallelism * _PARTS_PER_CORE
        work = partial(_read, side=self, parts=parts, schema=schema)
        return spark.range(0, parts, 1, parts).mapInArrow(work, from_arrow_schema(schema))


def _read(
    batches: Iterable[pa.RecordBatch], *, side: FolderSide, parts: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of every `parts`th file, for each number that is given."""
    table = side.opened()
    if table is None:
        return
    dataset: Any = table.to_pyarrow_dataset()
    files: list[Any] = sorted(dataset.get_fragments(), key=attrgetter("path"))
    try:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in files[number::parts]:
                    for rows in file.to_batches(schema=dataset.schema, columns=schema.names):
                        columns = [rows[field.name].cast(field.type) for field in schema]
                        yield arrow.RecordBatch.from_arrays(columns, schema=schema)
    except FileNotFoundError as error:
        raise side.gone() from error
