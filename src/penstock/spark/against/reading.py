"""The rows of a source, written once to a scratch folder as the columns of their table."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct

from penstock.errors import PipelineError, UndecodableError
from penstock.ports import KeyRange, Listing
from penstock.spark.against.fitting import DOUBTFUL, compared_schema, fitted
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.reading import OpenSource, ReadableSource, Reading
from penstock.spark.progress import StepTeller
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import reduce_entries
from penstock.spark.table.comparing import UNFIT
from penstock.spark.tasks import counted_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART: Final = "_penstock_part"
_READ_AT: Final = "_penstock_read_at"


class SourceRows(Struct, frozen=True, kw_only=True):
    """What was read of a collection."""

    rows: "DataFrame"
    """The columns `compared_schema`, UNFIT and DOUBTFUL; read from where they were written."""
    read_at: frozenset[str]
    """When its ranges were read, in the source's own words."""


async def listings_of(
    source: ReadableSource, config: TablePipelineConfig, position: str, tell: StepTeller
) -> list[Listing]:
    """All ranges of what the pipeline follows, listed before any of them is read."""
    rows, found = config.first_load_rows, list[Listing]()
    # Without names the source says which there are, all at once.
    total = len(config.collections) or None
    try:
        for collection in config.collections or ("",):
            tell("dividing", done=len(found), total=total, collection=collection)
            found.append(await source.ranges("", collection, rows=rows, position=position))
    finally:
        await source.close()
    return found


def read_collections(
    spark: "SparkSession",
    ranges: Sequence[KeyRange],
    tables: Mapping[str, pa.Schema],
    open_source: OpenSource,
    *,
    position: str,
    path: str,
    tell: StepTeller,
) -> dict[str, SourceRows]:
    """The rows of `ranges` by collection: of each that is in `tables`, which have these schemas.

    As `read_rows`. `tell` is told how many ranges are read.
    """
    found: dict[str, SourceRows] = {}
    before = 0
    for number, (collection, table) in enumerate(tables.items()):
        own = [part for part in ranges if part.collection == collection]
        told = partial(tell, "reading", total=len(ranges), collection=collection)
        told(done=before)
        count = partial(_told_of, told, before, len(own))
        with counted_tasks(spark, count if tell.heard else None):
            found[collection] = read_rows(
                *(spark, own, open_source),
                position=position,
                table=table,
                path=f"{path}/rows-{number}",
            )
        before += len(own)
        told(done=before)
    return found


def _told_of(told: Callable[..., None], before: int, ranges: int, tasks: int) -> None:
    # A task for each range; then some more, which look at what was written.
    told(done=before + min(tasks, ranges))


def read_rows(
    spark: "SparkSession",
    ranges: Sequence[KeyRange],
    open_source: OpenSource,
    *,
    position: str,
    table: pa.Schema,
    path: str,
) -> SourceRows:
    """All rows of `ranges` as of `position` of the log or newer, each range by a task of its own.

    `table` is the schema of the table that they belong in; they are written to `path`, so that
    whatever looks at them again sees the same read. Raises what the source raises, as Spark hands
    it on.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.pandas.types import from_arrow_schema

    said = _schema(table)
    columns = from_arrow_schema(said)
    if ranges:
        work = partial(
            _read, ranges=list(ranges), open_source=open_source, position=position, table=table
        )
        count = len(ranges)
        read = spark.range(0, count, 1, count).mapInArrow(work, columns)
        read.write.parquet(path)
        written = spark.read.schema(columns).parquet(path)
    else:
        written = spark.createDataFrame([], columns)
    ended = written.where(sql.col(_READ_AT).isNotNull()).select(_PART, _READ_AT).collect()
    if sorted(one[_PART] for one in ended) != list(range(len(ranges))):
        raise PipelineError(
            f"of {len(ranges)} ranges of the source {len(ended)} are found at {path}. Nothing was "
            f"compared. Name a path that driver and workers can read and write: --scratch."
        )
    rows = written.where(sql.col(_READ_AT).isNull()).drop(_PART, _READ_AT)
    return SourceRows(rows=rows, read_at=frozenset(one[_READ_AT] for one in ended))


def _schema(table: pa.Schema) -> pa.Schema:
    """Rows; and one for each range, which says only when it was read."""
    return arrow.schema(
        [
            *compared_schema(table),
            pa.field(UNFIT, pa.list_(pa.string())),
            pa.field(DOUBTFUL, pa.bool_()),
            pa.field(_PART, pa.int64()),
            pa.field(_READ_AT, pa.string()),
        ]
    )


def _read(
    batches: Iterable[pa.RecordBatch],
    *,
    ranges: Sequence[KeyRange],
    open_source: OpenSource,
    position: str,
    table: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    schema = _schema(table)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            assert number is not None
            reading = Reading(number, ranges[number], open_source, position)
            for entries in reading.batches():
                rows = fitted(reduce_entries(arrow.Table.from_batches([entries])), table)
                columns = [
                    rows[one.name].combine_chunks()
                    if one.name in rows.column_names
                    else arrow.nulls(rows.num_rows, one.type)
                    for one in schema
                ]
                yield arrow.RecordBatch.from_arrays(columns, schema=schema)
            if reading.inexact:
                row = reading.inexact[0]
                raise UndecodableError(
                    source=row.source,
                    what=f"{row.reason} (its key is {row.key})",
                    position=position,
                    safe="Nothing was changed, and nothing is said of the tables",
                    remedy="Correct or delete the document at the source, and compare again.",
                )
            end = {_PART: number, _READ_AT: reading.read_at}
            yield arrow.RecordBatch.from_pylist([end], schema=schema)
