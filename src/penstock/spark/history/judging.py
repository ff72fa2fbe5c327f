"""The versions of one collection, as the log applied anew and as the history has them.

They must be equal, but for one thing, as tables of current rows (`penstock.spark.table.judging`):
columns widen as batches end, and so a value may be rejected in one and fit in the other. Where one
side has no version for that reason, the one before ends elsewhere, and what comes next may begin a
version or belong to one. So where one side alone has rejected a change, the versions around it are
set apart, from the one that was open then until both have begun another.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock.progress import Progress
from penstock.spark.history.columns import FROM_SEQUENCE, IDENTITY, OPERATION, TO_SEQUENCE
from penstock.spark.history.delta import VersionTable
from penstock.spark.table.arrow import arrow
from penstock.spark.table.comparing import (
    UNFIT,
    By,
    Compared,
    compare_rows,
    differing_rows,
    refuse_moved,
    too_many,
)
from penstock.spark.table.judging import Told, alike, rejected_rows
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE, SOURCE
from penstock.spark.table.side import Side
from penstock.spark.table.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSIONS: Final = By(identity=IDENTITY, begins=FROM_SEQUENCE)
"""How versions are told apart."""

_ROW: Final = [KEY, SOURCE, DATABASE]
_CHANGE: Final = [KEY, SOURCE, SEQUENCE]
"""What tells a rejected change: an event that moves rows gives them another database."""
_VERSION: Final = [*IDENTITY]


def judged_versions(
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
    """What of the history `kept`, whose rejects are `rejects`, is not as the log applied `anew`.

    `until` is the place of the log up to which rejects count. With `repair`, what differs is made
    right in one commit, as far as the history's columns hold it, but for more than REPAIRED_MAX.
    Raises PipelineError where the history has moved on; then nothing of it was changed.
    """
    assert isinstance(kept, VersionTable)
    side = kept.side()
    wanted, there = alike(anew.rows.rows(spark), side.rows(spark), stale_fits=True)
    refused_anew = _refused(
        wanted, rejected_rows(spark, anew.rejects, pipeline, collection, until.sequence)
    ).persist()
    known = rejected_rows(spark, rejects, pipeline, collection, until.sequence)
    refused = _refused(there, known).persist()
    apart = _apart(wanted, there, refused_anew, refused).persist()
    try:
        count = apart.count() if _differ(refused_anew, refused) else 0
        if count:
            wanted = wanted.join(apart, _VERSION, "left_anti")
            there = there.join(apart, _VERSION, "left_anti")
        found = compare_rows(
            collection, wanted, there, ranges=ranges, listed_max=listed_max, by=VERSIONS
        )
        found = structs.replace(found, rejected=count)
        if not repair or not found.differences:
            return found
        if (left := too_many(found)) is not None:
            return left
        rows = differing_rows(wanted, there, ranges=ranges, by=VERSIONS)
        fields = {one.name: one for one in (*anew.rows.schema(), *side.schema())}
        fitting = wanted.where(f"size({UNFIT}) = 0").drop(UNFIT)
        right = fitting.join(rows.select(*_VERSION), _VERSION, "left_semi").toArrow()
        extra = rows.where("what = 'extra'").select(*_VERSION).toArrow()
        schema = arrow.schema([fields[name] for name in right.column_names])
        refuse_moved(pipeline, collection, kept, side)
        at = kept.applied(pipeline, log_id=None)
        # One that is gone is made again, with everything up to there.
        end, log_id = (at, None) if kept.version >= 0 else (until.sequence, until.log_id)
        stamp = Stamp(pipeline=pipeline, log_id=log_id, after=at, until=end, batch=0)
        kept.mend_wider(right.cast(schema), extra, stamp)
        return structs.replace(found, repaired=right.num_rows + extra.num_rows)
    finally:
        for frame in (apart, refused_anew, refused):
            frame.unpersist()


def _differ(refused_anew: "DataFrame", refused: "DataFrame") -> bool:
    """Whether one side alone has rejected a change."""
    one = refused_anew.join(refused, _CHANGE, "left_anti").count()
    return bool(one or refused.join(refused_anew, _CHANGE, "left_anti").count())


def _apart(
    wanted: "DataFrame",
    there: "DataFrame",
    refused_anew: "DataFrame",
    refused: "DataFrame",
) -> "DataFrame":
    """The versions that are not judged, for one side alone has rejected a change there: IDENTITY,
    each once. The changes that the sides rejected are as `_refused` gives them."""
    from pyspark.sql import functions as sql

    begun = wanted.unionByName(there).where(f"`{OPERATION}` = 'rename'")
    begun = begun.select(*_ROW, sql.col(FROM_SEQUENCE).alias(SEQUENCE))
    spans = _until(refused_anew, refused, begun, wanted, there).union(
        _until(refused, refused_anew, begun, wanted, None)
    )
    open_then = sql.col(TO_SEQUENCE).isNull() | (sql.col(TO_SEQUENCE) >= sql.col("_at"))
    before = sql.col("_end").isNull() | (sql.col(FROM_SEQUENCE) < sql.col("_end"))
    versions = wanted.select(*_VERSION, TO_SEQUENCE).union(there.select(*_VERSION, TO_SEQUENCE))
    return versions.join(spans, _ROW).where(open_then & before).select(*_VERSION).distinct()


def _refused(versions: "DataFrame", rejected: "DataFrame | None") -> "DataFrame":
    """The changes that one side rejected, as its rejects and its versions say: _ROW and SEQUENCE,
    each once."""
    from pyspark.sql import functions as sql

    said = versions.where(sql.col(REJECTED).isNotNull())
    said = said.select(*_ROW, sql.col(REJECTED).alias(SEQUENCE))
    if rejected is not None:
        said = said.union(rejected.select(*_ROW, SEQUENCE))
    return said.distinct()


def _moved_stale(versions: "DataFrame") -> "DataFrame":
    """What a rename brought of rows for which a change was rejected before: _ROW and SEQUENCE.

    The rejected change that such a row names is the last one, of both sides perhaps: whether it is
    what others before have made of it, nobody knows.
    """
    from pyspark.sql import functions as sql

    begun = versions.where(f"`{OPERATION}` = 'rename'").select(*_VERSION, REJECTED)
    ended = versions.where(f"`{REJECTED}` IS NOT NULL")
    ended = ended.select(KEY, SOURCE, sql.col(TO_SEQUENCE).alias(FROM_SEQUENCE))
    found = begun.join(ended, [KEY, SOURCE, FROM_SEQUENCE], "left_semi").select(*_VERSION)
    # Of another collection, the version before is in another history.
    known = begun.where(f"`{REJECTED}` < `{FROM_SEQUENCE}`").select(*_VERSION)
    return found.union(known).select(*_ROW, sql.col(FROM_SEQUENCE).alias(SEQUENCE))


def _until(
    refused: "DataFrame",
    others: "DataFrame",
    begun: "DataFrame",
    wanted: "DataFrame",
    there: "DataFrame | None",
) -> "DataFrame":
    """From which place to which a row is not judged: _ROW, `_at`, and `_end`, null for the end.

    Of the changes that are in `refused` alone, and of what `_moved_stale` finds. Where the log
    applied anew took one, the next version of `wanted` differs from what that change told, and so
    both sides begin it. Where it is the one that rejected it, its next version begins with whatever
    came next: the other side has that one only if it told anything new, and else surely the one
    behind; so `there` is asked.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    alone = refused.join(others, _CHANGE, "left_anti")
    # A row that a rename moved was rejected under its old name.
    moved = begun.join(alone.select(*_CHANGE), _CHANGE, "left_semi")
    alone = alone.unionByName(moved)
    if there is not None:
        alone = alone.unionByName(_moved_stale(wanted.unionByName(there)))
    alone = alone.distinct().withColumnRenamed(SEQUENCE, "_at")
    begins = wanted.select(*_VERSION)
    if there is None:
        begins = begins.withColumn("_both", sql.lit(True))
    else:
        both = there.select(*_VERSION).distinct().withColumn("_both", sql.lit(True))
        begins = begins.join(both, _VERSION, "left")
    later = alone.join(begins, _ROW).where(sql.col(FROM_SEQUENCE) > sql.col("_at"))
    number = sql.row_number().over(Window.partitionBy(*_ROW, "_at").orderBy(FROM_SEQUENCE))
    ends = later.withColumn("_number", number).where("_both OR _number = 2")
    ends = ends.groupBy(*_ROW, "_at").agg(sql.min(FROM_SEQUENCE).alias("_end"))
    return alone.join(ends, [*_ROW, "_at"], "left").select(*_ROW, "_at", "_end")
