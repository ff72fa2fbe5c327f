"""A Spark session on this machine, set up for change streams."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
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
    # Each pipeline of a driver gets its share.
    "spark.scheduler.mode": "FAIR",
}
"""What a session is set up with unless its user says otherwise."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "WARN",
}
"""The same, on this machine alone."""

_DEFAULT = re.compile(r"(spark\.[^\s=:]+)\s*[\s=:]\s*(.*)")


def users_own(environment: Mapping[str, str]) -> dict[str, str]:
    """What the user of this process tells Spark: in `spark-defaults.conf` of SPARK_CONF_DIR or
    SPARK_HOME, and, where `spark-submit` started it, there."""
    if "PYSPARK_GATEWAY_PORT" in environment:
        from pyspark import SparkConf

        return dict(SparkConf().getAll())
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    if not folder:
        return {}
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    found = [_DEFAULT.fullmatch(line.strip()) for line in lines]
    return {one[1]: one[2].strip() for one in found if one}


def chosen_settings(
    master: str | None, settings: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """What a new session is given. Pure: `settings` win over the user's `own`, which Spark reads by
    itself, and those over ours."""
    master = master or settings.get("spark.master") or own.get("spark.master", "local[*]")
    ours = {**SETTINGS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    if master.startswith("local"):
        ours.update(LOCAL_SETTINGS)
    else:
        del ours["spark.sql.shuffle.partitions"]  # it is of the cluster's size
    missing = {name: value for name, value in ours.items() if name not in own}
    return {**missing, **settings, "spark.master": master}


def local_session(
    *,
    app_name: str = "penstock",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The running session, or a new one: on this machine, unless `master`, `settings` or what the
    user tells Spark (`users_own`) name another master. `settings` win over what the user tells
    Spark, and that over SETTINGS.

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
    chosen = chosen_settings(master, settings or {}, users_own(os.environ))
    builder = SparkSession.builder.appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
