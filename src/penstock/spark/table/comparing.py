"""Two tables compared by ranges of the keys' hash, in Spark's tasks, at a version of each."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from penstock.errors import PipelineError
from penstock.progress import Progress
from penstock.spark.table.arrow import Field, arrow, compute
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    REJECTED,
    SEQUENCE,
    SOURCE,
)
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.side import Side
from penstock.spark.table.stamp import Stamp

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IDENTITY: Final = (KEY, SOURCE, DATABASE)
UNFIT: Final = "_penstock_unfit"
"""Of rows that are expected: the names of those of their values that no column holds."""
_TIMES: Final = "(times)"
"""How often a row is there. No field of a document has a column of that name."""

NO_ELEMENT: Final = -1
REPAIRED_MAX: Final = 1_000_000
"""So many rows of a table are repaired at most: they go through the driver's memory at once."""


class By(Struct, frozen=True, kw_only=True):
    """How the rows of a table are told apart, and divided: by the names of columns."""

    identity: tuple[str, ...] = IDENTITY
    begins: str | None = None
    """Where a row begins, if one key has several."""
    key: str = KEY
    source: str = SOURCE
    database: str = DATABASE
    sequence: str = SEQUENCE
    element: str | None = None
    """Which element a row is of, if it can be of one; NO_ELEMENT for none."""
    until: int | None = None
    """Divided by the first of `identity`, numbers from 1 up to this; without it by the hash."""

    def range(self, ranges: int) -> "Column":
        """Which of `ranges` a row is in."""
        from pyspark.sql import functions as sql

        if self.until is not None:
            width = max(1, -(-self.until // ranges))
            return sql.floor((sql.col(self.identity[0]) - 1) / width)
        return sql.pmod(sql.xxhash64(*self.identity), sql.lit(ranges))


ROWS: Final = By()
"""Rows of current state."""


class Difference(Struct, frozen=True, kw_only=True):
    """A row that is not what it should be."""

    key: str
    """Empty, as what follows, for an entry of a changelog that has none."""
    source: str
    database: str
    what: str
    """`missing`, `extra`, `different`, or `repeated`: there more than once."""
    columns: tuple[str, ...] = ()
    """Those that differ."""
    sequence: int | None = None
    """Of the row's last change, by the log; None for an extra one."""
    from_sequence: int | None = None
    """Of the change that opened it, where rows have versions."""
    element: int | None = None
    """Which one of its entry, for a row of an element."""


class Compared(Struct, frozen=True, kw_only=True):
    """What was found in one table."""

    collection: str
    rows: int
    """By the log, or by the source."""
    found: int
    """In the table."""
    ranges: int
    ranges_differing: int
    differences: int
    listed: tuple[Difference, ...] = ()
    """The first of them."""
    repaired: int = 0
    """How many of them are made right."""
    changed: int = 0
    """Of the source alone: rows that are not judged, for they changed meanwhile."""
    rejected: int = 0
    """Rows that are not judged either, for their last change is in the rejects: those of the table,
    or, compared with the log, those of the log applied anew. Neither are in `rows` and `found`."""
    untold: int = 0
    """Of a changelog alone: entries that are not judged, for the log has them no more, or the
    pipeline has their collection no more."""
    judged: bool = True
    """Whether its rows were compared at all; `left` says why not."""
    left: str = ""
    """Why what is left was not repaired, and what to do; empty where that goes without saying."""


def set_apart(collection: str, *, sequence: int) -> Compared:
    """What to say of one into which a rename, at `sequence`, brought rows that nobody can tell."""
    return Compared(
        collection=collection,
        rows=0,
        found=0,
        ranges=0,
        ranges_differing=0,
        differences=0,
        judged=False,
        left=f"{collection} was not compared, and nothing of it was changed: at sequence "
        f"{sequence} a rename brought rows there, and with the collections and steps of today the "
        f"log does not tell what they were. To have it compared, begin it anew with "
        f"on_gap = 'record', and have the collection copied again: penstock snapshot.",
    )


def compare_rows(
    collection: str,
    wanted: "DataFrame",
    there: "DataFrame",
    *,
    ranges: int,
    listed_max: int,
    by: By = ROWS,
) -> Compared:
    """What of the rows `there` is not as `wanted`; both have the same columns, those of `by` among
    them, and are the same however often they are looked at."""
    sums, found = _sums(wanted, ranges, by), _sums(there, ranges, by)
    differing = _unequal(sums, found)
    compared = Compared(
        collection=collection,
        rows=sum(count for count, _ in sums.values()),
        found=sum(count for count, _ in found.values()),
        ranges=ranges,
        ranges_differing=len(differing),
        differences=0,
    )
    if not differing:
        return compared
    rows = _differing(wanted, there, ranges, differing, by).cache()
    try:
        first = rows.orderBy(*by.identity).limit(listed_max).collect()
        return structs.replace(
            compared, differences=rows.count(), listed=tuple(_difference(row, by) for row in first)
        )
    finally:
        rows.unpersist()


def differing_rows(
    wanted: "DataFrame", there: "DataFrame", *, ranges: int, by: By = ROWS
) -> "DataFrame":
    """The rows that differ, as `compare_rows` counts them, each once: the columns of `by`, and
    `what` and `columns` as Difference has them."""
    sums, found = _sums(wanted, ranges, by), _sums(there, ranges, by)
    return _differing(wanted, there, ranges, _unequal(sums, found), by)


def too_many(compared: Compared) -> Compared | None:
    """What to say where more rows differ than are repaired; None where they can be."""
    if compared.differences <= REPAIRED_MAX:
        return None
    return structs.replace(
        compared,
        left=f"Of {compared.collection} more than {REPAIRED_MAX:,} rows differ, which is more than "
        f"are repaired at once: nothing of it was changed. Begin anew in another place. Or, where "
        f"the log has all of it from its beginning, remove that table, and have it made again: "
        f"start = 'oldest'.",
    )


def repair_rows(
    pipeline: str,
    compared: Compared,
    wanted: "DataFrame",
    there: "DataFrame",
    actual: Side,
    table: KeptTable,
    *,
    fields: Mapping[str, Field],
    until: Progress,
    ranges: int,
    databases: Collection[str] | None = None,
) -> Compared:
    """Make the rows of `actual`, which is `table` as it was, that differ as they should be, in one
    commit.

    What is there more than once is left, what no column holds, and an extra row that says of itself
    that it is stale; with `databases`, an extra row of any other. Rows without a sequence of their
    own are as of where the table is. One that is gone is made of its log,
    with everything up to `until`. Of more than REPAIRED_MAX none is repaired. Raises PipelineError
    where the table has moved on.
    """
    from pyspark.sql import functions as sql

    if (left := too_many(compared)) is not None:
        return left
    rows = differing_rows(wanted, there, ranges=ranges).where("what <> 'repeated'")
    if UNFIT in wanted.columns:
        wanted = wanted.where(sql.size(UNFIT) == 0).drop(UNFIT)
    right = wanted.join(rows.where("what <> 'extra'").select(*IDENTITY), [*IDENTITY], "left_semi")
    extra = rows.where("what = 'extra'").select(*IDENTITY, sql.lit(0).alias(SEQUENCE))
    if REJECTED in there.columns:
        stale = there.where(sql.col(REJECTED).isNotNull()).select(*IDENTITY)
        extra = extra.join(stale, [*IDENTITY], "left_anti")
    if databases is not None:
        extra = extra.where(sql.col(DATABASE).isin([*databases]))
    changes = (
        right.withColumn(OPERATION, sql.lit(PUT).cast("tinyint"))
        .unionByName(extra.withColumn(OPERATION, sql.lit(DELETE).cast("tinyint")), True)
        .toArrow()
    )
    refuse_moved(pipeline, compared.collection, table, actual)
    at = table.applied(pipeline, log_id=None)
    if not changes.num_rows:
        return compared
    for name in set(OWN_COLUMNS.names).difference(changes.column_names):
        changes = changes.append_column(name, arrow.nulls(changes.num_rows, fields[name].type))
    # A column that the table gets with this says, as any, what it holds.
    known = [fields.get(one.name, one) for one in changes.schema]
    columns = [changes[one.name].cast(one.type) for one in known]
    at_sequence = changes.schema.get_field_index(SEQUENCE)
    end, log_id = (at, None) if table.version >= 0 else (until.sequence, until.log_id)
    columns[at_sequence] = compute.fill_null(columns[at_sequence], end)
    stamp = Stamp(pipeline=pipeline, log_id=log_id, after=at, until=end, batch=0)
    table.merge(arrow.table(columns, schema=arrow.schema(known)), stamp)
    return structs.replace(compared, repaired=changes.num_rows)


def refuse_moved(pipeline: str, collection: str, table: KeptTable, actual: Side) -> None:
    """See the table as it is now. Raises PipelineError where it has moved on from `actual`."""
    table.reload()
    if table.version != actual.version:
        raise PipelineError(
            f"the table of {collection} has moved on while it was looked at. Nothing of it was "
            f"changed. Stop pipeline {pipeline}, and repair it then."
        )


def _sums(frame: "DataFrame", ranges: int, by: By) -> dict[int, tuple[int, Any]]:
    """Rows and the sum of their hashes, by range."""
    from pyspark.sql import functions as sql

    # The hash passes over nulls: whether there is one is hashed, too.
    types = dict(frame.dtypes)
    parts = [part for name in sorted(types) for part in _parts(name, types[name])]
    hashed = frame.select(
        by.range(ranges).alias("range"), sql.xxhash64(*parts).cast("decimal(38,0)").alias("hash")
    )
    rows = hashed.groupBy("range").agg(sql.count("*").alias("rows"), sql.sum("hash").alias("sum"))
    return {row["range"]: (row["rows"], row["sum"]) for row in rows.collect()}


def _unequal(sums: dict[int, Any], found: dict[int, Any]) -> list[int]:
    return sorted(one for one in {*sums, *found} if sums.get(one) != found.get(one))


def _parts(name: str, of_type: str) -> tuple["Column", "Column"]:
    column = _exact(f"`{name}`", of_type)
    return column, column.isNull()


def _exact(name: str, of_type: str) -> "Column":
    """A column whose values are equal only where they are the same: to Spark 0.0 is -0.0, and both
    have one hash. NaN is NaN."""
    from pyspark.sql import functions as sql

    column = sql.col(name)
    return column.cast("string") if of_type in {"double", "float"} else column


def _differing(
    wanted: "DataFrame", there: "DataFrame", ranges: int, numbers: list[int], by: By
) -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    inside = by.range(ranges).isin(numbers)
    times = Window.partitionBy(*by.identity)
    left = wanted.where(inside).alias("w")
    right = there.where(inside).withColumn(_TIMES, sql.count("*").over(times)).alias("t")
    same = reduce(
        lambda one, other: one & other,
        [sql.col(f"w.`{name}`") == sql.col(f"t.`{name}`") for name in by.identity],
    )
    types = dict(wanted.dtypes)
    differ = [
        sql.when(~_exact(f"w.`{name}`", of).eqNullSafe(_exact(f"t.`{name}`", of)), sql.lit(name))
        for name, of in types.items()
        if name not in {*by.identity, UNFIT}
    ]
    columns = sql.array_compact(sql.array(*differ))
    if UNFIT in types:
        columns = sql.array_distinct(sql.concat(columns, sql.col(f"w.{UNFIT}")))
    first = by.identity[0]
    here, gone = sql.col(f"t.`{first}`").isNull(), sql.col(f"w.`{first}`").isNull()
    what = (
        sql.when(here, sql.lit("missing"))
        .when(gone, sql.lit("extra"))
        .when(sql.col(f"t.{_TIMES}") > 1, sql.lit("repeated"))
        .when(sql.size(columns) > 0, sql.lit("different"))
    )
    told = [
        sql.coalesce(sql.col(f"w.`{name}`"), sql.col(f"t.`{name}`")).alias(name)
        for name in dict.fromkeys([*by.identity, by.key, by.source, by.database])
    ]
    if by.sequence not in by.identity:
        last = sql.col(f"w.`{by.sequence}`") if by.sequence in types else sql.lit(None)
        told.append(last.cast("long").alias(by.sequence))
    found = left.join(right, same, "full_outer").select(
        *told,
        what.alias("what"),
        sql.when(here | gone, sql.array().cast("array<string>"))
        .otherwise(columns)
        .alias("columns"),
    )
    return found.where("what IS NOT NULL").dropDuplicates([*by.identity])


def _difference(row: Any, by: By) -> Difference:
    return Difference(
        key=row[by.key] or "",
        source=row[by.source] or "",
        database=row[by.database] or "",
        what=row["what"],
        columns=tuple(row["columns"] or ()),
        sequence=row[by.sequence],
        from_sequence=None if by.begins is None else row[by.begins],
        element=None if by.element is None or row[by.element] == NO_ELEMENT else row[by.element],
    )
