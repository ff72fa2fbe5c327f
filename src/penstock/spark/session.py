"""A Spark session on this machine, set up for change streams."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.java import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"

SETTINGS: Final[Mapping[str, str]] = {
    # State larger than memory, and checkpoints that write only what changed.
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Cuts the floor of a micro-batch from 140 to 83 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # On a machine that does much else a worker may need longer to start than Spark's 15 seconds.
    "spark.python.authenticate.socketTimeout": "120s",
    # An instant means the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "WARN",
}
"""What `local_session` sets unless told otherwise; all but the last six suit a cluster too."""


def local_session(
    *,
    app_name: str = "penstock",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The running session, or a new one on this machine with SETTINGS; `settings` win over them.

    A running session keeps what it was started with, but for `settings`. A new one sets what
    `java_environment` says, and PYSPARK_PYTHON where it is not set, for this process and its
    children. Raises ConfigError if there is no Java.
    """
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        for name, value in (settings or {}).items():
            running.conf.set(name, value)
        return running
    os.environ.update(java_environment())
    # Workers find what this process finds.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cores = os.cpu_count() or 1
    chosen = {**SETTINGS, "spark.sql.shuffle.partitions": str(cores), **(settings or {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
