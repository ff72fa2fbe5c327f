"""The rows of one collection, as the log applied anew and as the table has them.

They must be equal, but for one thing: what a table is follows from the log and from where batches
ended. A batch is reduced to each row's last change, and only these decide how columns widen, and so
which values are rejected. Batches of the log applied anew end elsewhere. So it is applied to the
columns that the table has (`begin_as`), rows are compared as values of those columns, and a row of
which one side has rejected the last change, and the other not, is set apart: neither is wrong.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct, structs

from penstock.progress import Progress
from penstock.spark.table.arrow import arrow
from penstock.spark.table.comparing import IDENTITY, UNFIT, Compared, compare_rows, repair_rows
from penstock.spark.table.kinds import stated_kind
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.plan import DATABASE, KEY, OWN_COLUMNS, REJECTED, SEQUENCE, SOURCE
from penstock.spark.table.rejects import VIEW_STEP
from penstock.spark.table.side import Side
from penstock.spark.table.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEYS: Final = [*IDENTITY]
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
_FLOATS: Final = frozenset({"float", "double"})
_EXACT_DOUBLE: Final = 1 << 53


class Told(Struct, frozen=True, kw_only=True):
    """A table and its rejects, at a version of each."""

    rows: Side
    rejects: Side


def begin_as(
    beside: KeptTable, table: KeptTable, pipeline: str, *, own: pa.Schema = OWN_COLUMNS
) -> None:
    """Give `beside`, which has nothing yet, the columns of `table`, and `own` beside them.

    A column only widens, so it holds what it ever took, with one exception: a whole double that
    came to a column of integers, which is one of decimals now. A column that does not say so itself
    may not be as Penstock made it, and refuse what it has: it is left out.
    """
    if table.version < 0:
        return
    columns = [one for one in table.schema if stated_kind(one) is not None]
    nothing = arrow.schema([*own, *columns]).empty_table()
    beside.append(nothing, Stamp(pipeline=pipeline, log_id=None, after=0, until=0, batch=0))


def judged_by_log(
    spark: "SparkSession",
    pipeline: str,
    collection: str,
    anew: Told,
    kept: KeptTable,
    rejects: Side,
    *,
    until: Progress,
    ranges: int,
    listed_max: int,
    repair: bool,
) -> Compared:
    """What of the table `kept`, whose rejects are `rejects`, is not as the log applied `anew`.

    `until` is the place of the log up to which rejects count. With `repair`, what differs is made
    right, as far as the table's columns hold it. Raises as `repair_rows`.
    """
    side = kept.side()
    wanted, there = alike(anew.rows.rows(spark), side.rows(spark))
    apart = _apart(
        wanted,
        there,
        rejected_rows(spark, anew.rejects, pipeline, collection, until.sequence),
        rejected_rows(spark, rejects, pipeline, collection, until.sequence),
    )
    count = 0
    try:
        if apart is not None:
            apart = apart.persist()
            count = apart.count()
        if apart is not None and count:
            wanted = wanted.join(apart, _KEYS, "left_anti")
            there = there.join(apart, _KEYS, "left_anti")
        found = compare_rows(collection, wanted, there, ranges=ranges, listed_max=listed_max)
        found = structs.replace(found, rejected=count)
        if not repair or not found.differences:
            return found
        fields = {one.name: one for one in (*anew.rows.schema(), *side.schema())}
        return repair_rows(
            pipeline, found, wanted, there, side, kept, fields=fields, until=until, ranges=ranges
        )
    finally:
        if apart is not None:
            apart.unpersist()


def _apart(
    wanted: "DataFrame",
    there: "DataFrame",
    rejected_anew: "DataFrame | None",
    rejected: "DataFrame | None",
) -> "DataFrame | None":
    """The rows that are not judged: _KEYS, each once; None where it is plain that there is none.

    Those that both have, and that are stale on one side. And those that one side lacks since it
    rejected the very change that is the other's last one: any other it lacks for another reason.
    """
    from pyspark.sql import functions as sql

    stale = sql.col(REJECTED).isNotNull()
    first = wanted.where(stale).select(*_KEYS).union(there.where(stale).select(*_KEYS))
    apart: list[DataFrame] = []
    # Most tables have no such row, and so to look for the first takes one reading of each anyhow.
    # Counted they take one job, and none of Spark's Python workers is cut off, which ends it.
    if first.count():
        for rows in (wanted, there):
            first = first.join(rows.select(*_KEYS), _KEYS, "left_semi")
        apart.append(first)
    for rows, others, refused in ((there, wanted, rejected_anew), (wanted, there, rejected)):
        if refused is None or not refused.count():
            continue
        # An event that moves rows gives them another database, and a sequence of its own.
        same = [KEY, SOURCE, SEQUENCE]
        last = rows.select(*_KEYS, sql.greatest(SEQUENCE, REJECTED).alias(SEQUENCE))
        only = last.join(refused.select(*same), same, "left_semi").select(*_KEYS)
        apart.append(only.join(others.select(*_KEYS), _KEYS, "left_anti"))
    return reduce(lambda one, other: one.union(other), apart).distinct() if apart else None


def rejected_rows(
    spark: "SparkSession", rejects: Side, pipeline: str, collection: str, until: int
) -> "DataFrame | None":
    """The changes of a collection's rows that are in the rejects up to `until`, not replayed: KEY,
    SOURCE, DATABASE and SEQUENCE; None where nothing ever was rejected."""
    from pyspark.sql import functions as sql

    if rejects.version < 0:
        return None
    names = ("key", "source", "database", "sequence")
    said = (*names, "collection", "pipeline", "operation_type")
    schema = rejects.schema()
    kept = [*said, *(name for name in ("state", "step") if name in schema.names)]
    rows = rejects.rows(spark, arrow.schema([schema.field(name) for name in kept]))
    # What a rename moved is noted with the event, which has the collection's old name.
    here = (sql.col("collection") == collection) | (sql.col("operation_type") == "rename")
    conditions = [here, sql.col("pipeline") == pipeline, sql.col("sequence") <= until]
    if "state" in kept:
        conditions.append(sql.col("state").isNull())
    if "step" in kept:
        # What a view's query cannot compute is in the rows.
        conditions.append(~sql.col("step").eqNullSafe(VIEW_STEP))
    both = reduce(lambda one, other: one & other, conditions)
    own = (KEY, SOURCE, DATABASE, SEQUENCE)
    return rows.where(both).select(
        *(sql.col(name).alias(column) for name, column in zip(names, own, strict=True))
    )


def alike(
    wanted: "DataFrame", there: "DataFrame", *, stale_fits: bool = False
) -> tuple["DataFrame", "DataFrame"]:
    """Both with the same columns: those of `there`, as its types, and any other of `wanted`.

    UNFIT says what cannot be written there: values of `wanted` that a column of `there` does not
    hold exactly, and, by the column that says so, a row whose last change was rejected, unless
    `stale_fits`.
    """
    from pyspark.sql import functions as sql

    own, other = dict(wanted.dtypes), dict(there.dtypes)
    stale = sql.col(REJECTED).isNotNull() & sql.lit(not stale_fits)
    unfit = [sql.when(stale, sql.lit(REJECTED))]
    columns: list[Column] = []
    for name in dict.fromkeys([*there.columns, *wanted.columns]):
        column = sql.col(f"`{name}`")
        if name not in own:
            column = sql.lit(None).cast(other[name])
        elif name in other and own[name] != other[name]:
            value, (column, fits) = column, _held(column, own[name], other[name])
            unfit.append(sql.when(value.isNotNull() & ~fits, sql.lit(name)))
        columns.append(column.alias(name))
    wanted = wanted.select(*columns, sql.array_compact(sql.array(*unfit)).alias(UNFIT))
    there = there.select(
        *(
            (sql.col(f"`{name}`") if name in other else sql.lit(None).cast(own[name])).alias(name)
            for name in wanted.columns[:-1]
        ),
        sql.array().cast("array<string>").alias(UNFIT),
    )
    return wanted, there


def _held(value: "Column", own: str, other: str) -> tuple["Column", "Column"]:
    """`value`, of the type `own`, as one of `other`; and whether that is exact."""
    from pyspark.sql import functions as sql

    if not all(one in _NUMBERS or one.startswith("decimal") for one in (own, other)):
        return sql.lit(None).cast(other), sql.lit(False)
    tried = value.try_cast(other)
    back, was = tried.try_cast(own), value
    if own in _FLOATS:
        # To Spark 0.0 is -0.0.
        back, was = back.cast("string"), was.cast("string")
    same = back == was
    if (own in _FLOATS) != (other in _FLOATS):
        # Spark's own way back makes of 0.1 a tenth, and of 2^63 the greatest integer.
        whole = value.try_cast("bigint").try_cast(own) == value
        same = same & whole & value.between(-_EXACT_DOUBLE, _EXACT_DOUBLE)
    fits = sql.coalesce(same, sql.lit(False))
    return sql.when(fits, tried), fits
