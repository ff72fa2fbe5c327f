"""Tidy all tables of a pipeline now, whether or not it is due.

The pipeline may run meanwhile. A changelog is only added to. A table is merged into: of two commits
at the same time the later one is refused. A pipeline writes again then, and a table that is not
tidied is said to be so; no row is lost or there twice.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark.config import ChangelogPipelineConfig, LakePipelineConfig, ViewPipelineConfig
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.lake import KeptTable, seen_lake
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.upkeep import Tidied, tidy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tidy_pipeline(
    pipeline: str, config: LakePipelineConfig, *, spark: "SparkSession | None" = None
) -> Iterator[Tidied]:
    """Join small files and delete old ones, of each table that is there, one after the other.

    `spark` does it where tables are in a catalog; no other needs it. What the log of a table has
    forgotten, or never knew, goes too, but for tables in a catalog. Raises as `seen_lake`.
    """
    torn: Callable[[], int] | None = None
    if isinstance(config, ChangelogPipelineConfig):
        from penstock.spark.changelog.formats import format_of

        torn = format_of(pipeline, config).leftovers
    for table in _tables(pipeline, config, spark):
        if table.version >= 0:
            # What a changelog's batches have left is looked for once, with its first table.
            yield tidy(pipeline, config, table, leftovers=_leftovers(table, config, torn))
            torn = None


def _leftovers(
    table: KeptTable, config: LakePipelineConfig, torn: Callable[[], int] | None
) -> Callable[[], int] | None:
    """What deletes files that the log of `table` does not name, with those of torn batches."""
    if not isinstance(table, Table):
        return None
    sweep = partial(table.sweep, older_seconds=config.history)
    return sweep if torn is None else lambda: torn() + sweep()


def _tables(
    pipeline: str, config: LakePipelineConfig, spark: "SparkSession | None"
) -> Iterator[KeptTable]:
    """The pipeline's tables, each once."""
    if isinstance(config, ViewPipelineConfig):
        from penstock.spark.views import tables_of

        yield Table(config.path, storage_options=secrets(config.storage_options))
        yield from _tables(pipeline, tables_of(config), spark)
        return
    lake = seen_lake(config, pipeline, spark)
    standing = StandingTable(config, pipeline, lake)
    yield from lake.all([*config.collections, *standing.collections()])
