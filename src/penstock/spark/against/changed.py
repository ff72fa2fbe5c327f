"""What the log named in a stretch: the rows of which nothing can be said meanwhile."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import PipelineError
from penstock.event import Kind
from penstock.progress import Progress
from penstock.spark.loading.window import ends_of
from penstock.spark.table.chunk import INPUT_COLUMNS, Collected, Control, reduce_entries
from penstock.spark.table.plan import DATABASE, KEY, SOURCE
from penstock.spark.table.writing import changes_no_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONTROLS: Final = f"kind IN ({int(Kind.GAP)}, {int(Kind.SCHEMA)})"
_SAID: Final = ("kind", "source", "database", "collection", "key")


class Changed(Struct, frozen=True, kw_only=True):
    """What is not judged."""

    keys: "DataFrame"
    """Rows that changed: KEY, SOURCE, DATABASE and `collection`, each once."""
    ended: frozenset[tuple[str, str]]
    """The (database, collection)s of which no row is the one that it was; without a collection,
    all of the database."""

    def of(self, collection: str) -> "DataFrame":
        """The rows of a collection: KEY, SOURCE, DATABASE."""
        return self.keys.where(self.keys["collection"] == collection).drop("collection")

    def databases(self, collection: str) -> list[str]:
        """Where the collection ended."""
        return sorted({name for name, one in self.ended if one in {"", collection}})


def changed_between(
    spark: "SparkSession",
    pipeline: str,
    options: Mapping[str, str],
    after: Progress,
    until: Progress,
    *,
    path: str,
) -> Changed:
    """What the log named in (after, until]; its keys are written to `path`.

    `options` are those of `format("penstock")`. Raises PipelineError for a gap, and for any other
    event that may have changed every row.
    """
    from pyspark.sql import functions as sql

    stretch = {**options, "startingOffsets": str(after), "endingOffsets": str(until)}
    said = _entries(spark, stretch, _SAID)
    keys = said.where(sql.col("kind") == int(Kind.DATA)).select(
        sql.col("key").alias(KEY),
        sql.col("source").alias(SOURCE),
        sql.col("database").alias(DATABASE),
        "collection",
    )
    keys.distinct().write.parquet(path)
    controls: list[Control] = []
    if not said.where(_CONTROLS).limit(1).isEmpty():
        # Rare, and only now with what they describe.
        rows = _entries(spark, stretch, INPUT_COLUMNS).where(_CONTROLS).toArrow()
        collected = Collected(chunk=reduce_entries(rows), after=0, entries=rows.num_rows)
        controls = collected.controls
    return Changed(
        keys=spark.read.schema(keys.schema).parquet(path), ended=ended_by(pipeline, controls)
    )


def ended_by(pipeline: str, controls: Sequence[Control]) -> frozenset[tuple[str, str]]:
    """The (database, collection)s that these events ended. Raises as `changed_between`. Pure."""
    ended: set[tuple[str, str]] = set()
    for control in controls:
        is_gap = control.kind is Kind.GAP
        if is_gap or not (changes_no_row(control) or control.database):
            said = "that changes are missing" if is_gap else repr(control.operation)
            raise PipelineError(
                f"pipeline {pipeline}: at sequence {control.sequence} the log says {said}, and the "
                f"tables are not there yet: any row may have changed. Nothing was compared. Run "
                f"the pipeline on, and compare then."
            )
        ended.update(ends_of(control))
        if control.operation == "modify" and "columns" not in control.description:
            # Of another shape, rows may have other values, which nobody tells.
            ended.add((control.database, control.collection))
    return frozenset(ended)


def _entries(
    spark: "SparkSession", options: Mapping[str, str], columns: Sequence[str]
) -> "DataFrame":
    from penstock.spark.rows import ENTRY_SCHEMA

    schema = ENTRY_SCHEMA.__class__([ENTRY_SCHEMA[column] for column in columns])
    return spark.read.format("penstock").schema(schema).options(**options).load()
