"""A Spark with Delta's own jars and a catalog on this machine.

catalogs.py ENDPOINT FOLDER SCHEMA KILL: a pipeline into it, to be killed; with `advance` it kills
itself, once a batch is in its tables and before the row beside them says so.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.config import TablePipelineConfig
from penstock.spark.progress import PipelineProgress
from penstock.spark.run import run_pipeline
from penstock.spark.session import local_session
from penstock.spark.table.standing import StandingTable
from tests.spark.few_rows import FEW_ROWS
from tests_support.servers import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_session(folder: Path, **settings: str) -> "SparkSession":
    """A session whose managed tables lie in `folder`."""
    return local_session(
        app_name="catalog",
        master="local[2]",
        settings={
            **FEW_ROWS,
            "spark.driver.memory": "900m",
            "spark.jars": ",".join(map(str, DELTA.paths())),
            "spark.log.level": "OFF",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            # Few rows: what makes many fast takes longer than they do.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.adaptive.enabled": "false",
            **settings,
        },
    )


def in_catalog(schema: str, *collections: str, **more: Any) -> TablePipelineConfig:
    """A pipeline into a schema."""
    return TablePipelineConfig(
        source="shop", collections=collections or ("orders",), catalog=schema, **more
    )


def say(progress: PipelineProgress) -> None:
    print(progress.sequence, flush=True)


def kill_self(*_: object, **__: object) -> None:
    """As a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    endpoint, folder, schema, kill = sys.argv[1:]
    spark = delta_session(
        Path(folder),
        **{
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={folder}/metastore;create=true"
            ),
        },
    )
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")  # pyright: ignore[reportUnknownMemberType]
    if kill == "advance":
        StandingTable.advance = kill_self  # type: ignore[method-assign]
    run_pipeline(
        "p",
        in_catalog(schema, "orders", "lines", max_events_per_batch=60),
        endpoint,
        spark=spark,
        once=True,
        on_progress=say,
    )
