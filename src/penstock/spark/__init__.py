"""Penstock in Spark: `format("penstock")`, and the pipelines built on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to this session.

    Needed only where Spark does not find the package by itself: a session that was first asked
    for a data source before the package was installed, or a Spark Connect client.
    """
    from penstock.spark.datasource import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
