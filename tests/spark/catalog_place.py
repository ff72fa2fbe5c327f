"""Places in the catalog of a Spark that has Delta's jars, for the cases that need one."""

# Spark's stubs leave types open.
# pyright: reportUnknownMemberType=false

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.config import TablePipelineConfig, table_name_of
from penstock.spark.table.lake import Lake, lake_of
from tests.spark.catalogs import delta_session, in_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMAS = itertools.count()


def session_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One for all cases of the process, whichever module asks first."""
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    session = delta_session(tmp_path_factory.mktemp("lake"))
    yield session
    session.stop()


class CatalogPlace:
    """A schema."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark
        self.schema = f"sales_{next(_SCHEMAS)}"
        spark.sql(f"CREATE SCHEMA {self.schema}")

    def config(self, *collections: str, **more: Any) -> TablePipelineConfig:
        return in_catalog(self.schema, *collections, **more)

    def lake(self, config: TablePipelineConfig, name: str = "p") -> Lake:
        lake = lake_of(config, name, self.spark)
        lake.check()
        return lake

    def path(self, config: TablePipelineConfig, table: str) -> str:
        name = f"penstock_{table}_p" if table in {"rejects", "standing"} else table_name_of(table)
        (row,) = self.spark.sql(f"DESCRIBE DETAIL {self.schema}.{name}").collect()
        return str(row["location"])
