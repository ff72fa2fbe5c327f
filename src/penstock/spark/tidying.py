"""Tidy all tables of a pipeline now, without Spark and whether or not it is due.

A changelog is only added to, and can be tidied while its pipeline runs. A table is merged into: if
the pipeline commits at the same time, one of the two is refused, and nothing is lost or repeated.
"""

from collections.abc import Iterator

from penstock.spark.config import (
    ChangelogPipelineConfig,
    LakePipelineConfig,
    TablePipelineConfig,
    ViewPipelineConfig,
)
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.upkeep import Tidied, tidy


def tidy_pipeline(pipeline: str, config: LakePipelineConfig) -> Iterator[Tidied]:
    """Join small files and delete old ones, of each table that is there, one after the other."""
    leftovers = None
    if isinstance(config, ChangelogPipelineConfig):
        from penstock.spark.changelog.formats import format_of

        leftovers = format_of(pipeline, config).leftovers
    storage = secrets(config.storage_options)
    for path in _paths(pipeline, config):
        table = Table(path, storage_options=storage)
        if table.version >= 0:
            # What a changelog's batches have left is looked for once, with its first table.
            yield tidy(pipeline, config, table, leftovers=leftovers)
            leftovers = None


def _paths(pipeline: str, config: LakePipelineConfig) -> list[str]:
    """Where the pipeline's tables are, each once."""
    if isinstance(config, ViewPipelineConfig):
        from penstock.spark.views import tables_of

        return [config.path, *_paths(pipeline, tables_of(config))]
    names = [*config.collections, *StandingTable(config, pipeline).collections()]
    paths = [config.table_path(name) for name in names]
    paths.append(config.rejects_path)
    if isinstance(config, TablePipelineConfig):
        paths.append(config.load_path)
    return list(dict.fromkeys([*paths, config.standing_path]))
