"""The entries of a changelog, for Spark's tasks to read and compare with those of the log.

Of `format = "parquet"` the files that count are those that a reader of the folder sees, whatever
the manifest lists: a file that somebody copied there says its entries twice.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.errors import PipelineError
from penstock.spark.changelog.entries import DATE, NULL_FOLDER, partition_fields
from penstock.spark.changelog.folder import Folder
from penstock.spark.changelog.writing import file_schema
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.table.arrow import arrow
from penstock.spark.table.comparing import By
from penstock.spark.table.delta import secrets
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.side import Side
from penstock.spark.transform.config import ELEMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTS_PER_CORE: Final = 4


def by_sequence(until: int, *, exploded: bool) -> By:
    """How rows are told apart: by their sequences, and divided by these, up to `until`; and where
    there are such, by their elements."""
    return By(
        identity=("sequence", ELEMENT) if exploded else ("sequence",),
        element=ELEMENT if exploded else None,
        key="key",
        source="source",
        database="database",
        sequence="sequence",
        until=until,
    )


def columns_of(config: ChangelogPipelineConfig) -> pa.Schema:
    """The columns that readers see, those of the folders last."""
    own = file_schema(exploded=bool(config.explodes))
    columns: pa.Schema = arrow.schema([*own, *partition_fields(config.partition_by)])
    return columns


def side_of(config: ChangelogPipelineConfig, table: KeptTable) -> Side:
    """The changelog as of now, whose commits are those of `table`."""
    if config.format == "delta":
        return table.side()
    storage = secrets(config.storage_options)
    return FilesSide(
        path=config.path,
        version=table.version,
        storage=storage,
        names=tuple(seen_files(Folder(config.path, storage_options=storage))),
        columns=columns_of(config),
    )


def seen_files(folder: Folder) -> list[str]:
    """The Parquet files that a reader of the folder looks at, by name."""
    names = sorted(name for name, _ in folder.files())
    return [
        name
        for name in names
        if name.endswith(".parquet") and not any(one[:1] in {".", "_"} for one in name.split("/"))
    ]


class FilesSide(Struct, frozen=True, kw_only=True):
    """Plain files, read by tasks, as a `Side`."""

    path: str
    version: int
    """Of the manifest."""
    storage: Mapping[str, str]
    names: tuple[str, ...]
    columns: pa.Schema

    def schema(self) -> pa.Schema:
        """As `Side.schema`."""
        return self.columns

    def rows(self, spark: "SparkSession", schema: pa.Schema | None = None) -> "DataFrame":
        """As `Side.rows`."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = schema or self.columns
        parts = spark.sparkContext.defaultParallelism * _PARTS_PER_CORE
        work = partial(_read, side=self, parts=parts, schema=schema)
        return spark.range(0, parts, 1, parts).mapInArrow(work, from_arrow_schema(schema))


def _read(
    batches: Iterable[pa.RecordBatch], *, side: FilesSide, parts: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The entries of every `parts`th file, for each number that is given."""
    folder = Folder(side.path, storage_options=side.storage)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for name in side.names[number::parts]:
                yield from _entries(folder, name, schema)


def _entries(folder: Folder, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        folders = values_of(name)
        with folder.open(name) as stream:
            for rows in pq.ParquetFile(stream).iter_batches():
                yield arrow.RecordBatch.from_arrays(
                    [_column(rows, field, folders) for field in schema], schema=schema
                )
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise PipelineError(
            f"the file {name} of the changelog cannot be read as one of Penstock's. Nothing was "
            f"changed. Bring it back from a backup; or take it away, and have what is missing then "
            f"written again, with `penstock pipeline verify --repair`."
        ) from error


def _column(rows: pa.RecordBatch, field: Any, folders: Mapping[str, Any]) -> Any:
    if field.name in folders:
        return arrow.repeat(arrow.scalar(folders[field.name], field.type), rows.num_rows)
    if field.name not in rows.schema.names:
        return arrow.nulls(rows.num_rows, field.type)
    return rows[field.name].cast(field.type)


def values_of(name: str) -> dict[str, Any]:
    """The values of the columns that the folders of a file are. Raises ValueError for a date that
    is none."""
    pairs = (step.partition("=") for step in name.split("/")[:-1])
    values: dict[str, Any] = {
        column: None if value == NULL_FOLDER else value for column, _, value in pairs
    }
    if values.get(DATE) is not None:
        values[DATE] = date.fromisoformat(values[DATE])
    return values
