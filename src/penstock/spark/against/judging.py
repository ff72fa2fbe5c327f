"""The rows of one collection, as the source and as the table has them: which must be equal."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Set
from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock.progress import Progress
from penstock.spark.against.changed import Changed
from penstock.spark.against.fitting import DOUBTFUL, compared_schema
from penstock.spark.against.reading import SourceRows
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.arrow import arrow
from penstock.spark.table.comparing import (
    IDENTITY,
    UNFIT,
    Compared,
    compare_rows,
    repair_rows,
)
from penstock.spark.table.judging import rejected_rows
from penstock.spark.table.lake import Folders, KeptTable
from penstock.spark.table.plan import DATABASE, KEY, OWN_COLUMNS, REJECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS: Final = [*IDENTITY]
_ROW_KEY: Final = '{"_row":'
"""So begins the key of a row that is known by all that it holds."""


def judged(
    spark: "SparkSession",
    pipeline: str,
    config: TablePipelineConfig,
    collection: str,
    read: SourceRows,
    kept: KeptTable,
    changed: Changed,
    *,
    until: Progress,
    ranges: int,
    listed_max: int,
    repair_in: Set[str] | None,
) -> Compared:
    """What of the table `kept` is not as the rows that were `read`, but for what `changed`.

    `until` is the place of the log up to which rejects count. With `repair_in`, what differs is
    made right; extra rows only in these databases. Raises as `repair_rows`.
    """
    from pyspark.sql import functions as sql

    side = kept.side()
    table = side.schema()
    schema = compared_schema(table)
    there = side.rows(spark, arrow.schema([*schema, OWN_COLUMNS.field(REJECTED)]))
    wanted = _each_once(read.rows)
    touched, ended = changed.of(collection), changed.databases(collection)
    named = wanted.select(*_KEYS).union(there.select(*_KEYS))
    meanwhile = named.join(touched, _KEYS, "left_semi")
    meanwhile = meanwhile.union(named.where(sql.col(DATABASE).isin(ended))).distinct()

    def settled(rows: "DataFrame") -> "DataFrame":
        return rows.join(touched, _KEYS, "left_anti").where(~sql.col(DATABASE).isin(ended))

    wanted, there = settled(wanted), settled(there)
    stale = there.where(sql.col(REJECTED).isNotNull()).select(*_KEYS)
    refused = stale.join(wanted, _KEYS, "left_semi")
    absent = wanted.where(DOUBTFUL).select(*_KEYS).join(there, _KEYS, "left_anti")
    rejects = Folders(config, pipeline).rejects().side()
    known = rejected_rows(spark, rejects, pipeline, collection, until.sequence)
    if known is not None:
        refused = refused.union(absent.join(known.select(*_KEYS), _KEYS, "left_semi"))
    refused = refused.distinct().persist()
    try:
        wanted = wanted.join(refused, _KEYS, "left_anti").drop(DOUBTFUL)
        there = there.join(refused, _KEYS, "left_anti").drop(REJECTED)
        there = there.withColumn(UNFIT, sql.array().cast("array<string>"))
        found = compare_rows(collection, wanted, there, ranges=ranges, listed_max=listed_max)
        found = structs.replace(found, changed=meanwhile.count(), rejected=refused.count())
        if repair_in is None or not found.differences:
            return found
        return repair_rows(
            pipeline,
            found,
            wanted,
            there,
            side,
            kept,
            fields={field.name: field for field in table},
            until=until,
            ranges=ranges,
            databases=repair_in,
        )
    finally:
        refused.unpersist()


def _each_once(rows: "DataFrame") -> "DataFrame":
    """Equal rows of a table without a key are one row, as in the stream."""
    from pyspark.sql import functions as sql

    keyless = rows.where(sql.col(KEY).startswith(_ROW_KEY)).limit(1)
    return rows if keyless.isEmpty() else rows.dropDuplicates(_KEYS)
