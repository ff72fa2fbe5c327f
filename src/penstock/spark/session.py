"""The Spark session of a driver, set up for change streams: on this machine or on a cluster."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError
from penstock.spark.interpreter import python_environment
from penstock.spark.java import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The variable with which spark-submit tells a program where its JVM is."""
_DECIDED: Final = (
    *("spark.driver.memory", "spark.driver.cores", "spark.driver.extra", "spark.driver.default"),
    *("spark.jars", "spark.submit."),
)
"""What only spark-submit itself can do, by its names' beginnings: it starts the driver's JVM."""
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
"""What a session is set up with unless its user says otherwise, wherever the pipeline runs."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "WARN",
    # On a cluster, executors may find this package in their tasks only.
    "spark.python.daemon.module": "penstock.spark.daemon",
}
"""The same, on this machine alone: on a cluster, executors must reach the driver."""

_HERE: Final = "local[*,4]"
"""This machine. As on a cluster, what one of its Python processes did that died is done again: at
most four times, so that work of which they always die ends."""
_LOOKED_UP: Final = (
    *("functions", "PythonUtils", "PythonErrorUtils", "PythonSQLUtils", "PythonRDD", "SerDeUtil"),
    *("SimplePythonFunction", "py4j.reflection.TypeUtil"),
)
"""The classes that PySpark names other than as the JVM does, in each use of a DataFrame."""
_DEFAULT = re.compile(r"(spark\.[^\s=:]+)\s*[\s=:]\s*(.*)")


def users_own(environment: Mapping[str, str]) -> dict[str, str]:
    """What the user of this process tells Spark in `spark-defaults.conf` of SPARK_CONF_DIR or
    SPARK_HOME."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    if not folder:
        return {}
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = [_DEFAULT.fullmatch(line.strip()) for line in lines]
    return {one[1]: one[2].strip() for one in found if one}


def chosen_settings(
    master: str | None, settings: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """What a new session is given. Pure: `settings` win over the user's `own`, which Spark reads by
    itself, and those over ours."""
    master = master or settings.get("spark.master") or own.get("spark.master", _HERE)
    ours = {**SETTINGS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    if on_this_machine(master):
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
    """The session of this process, which is the driver: the first of those that run, or a new one.

    `master` is where the work is done, as Spark writes it; without it that is what `settings`,
    spark-submit or `users_own` say, else this machine. A new session has SETTINGS, and
    LOCAL_SETTINGS on this machine; what the user tells Spark wins over them, and `settings` over
    all. A running one keeps what it was started with, but for `settings`. A JVM that is started
    here ends with this process, and not by a SIGTERM of its own.

    Where no spark-submit has done so, it sets what `java_environment` says and, if not set,
    PYSPARK_DRIVER_PYTHON and, on this machine, PYSPARK_PYTHON, as `python_environment` says, for
    this process and its children.
    Raises ConfigError if there is no Java, for another master than spark-submit was told, for one
    of `settings` that comes too late, and for a Spark Connect server, also where the active session
    is of one.
    """
    if master is not None and master.startswith("sc://"):
        raise _no_driver(master)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        require_driver(running)
        # Not the active one: that is whichever was given rows last, also one made for one batch.
        return _with(SparkSession.builder.getOrCreate(), settings or {})
    if _SUBMITTED in os.environ:
        return _submitted(master, settings or {})
    chosen = chosen_settings(master, settings or {}, users_own(os.environ))
    named = ["PYSPARK_DRIVER_PYTHON"]
    if on_this_machine(chosen["spark.master"]):
        # Workers find what this process finds.
        named.append("PYSPARK_PYTHON")
    os.environ.update(java_environment())
    left = [name for name in named if name not in os.environ]
    running_jvm = SparkContext._gateway is not None  # pyright: ignore[reportPrivateUsage]
    os.environ.update(python_environment(left, running_jvm=running_jvm))
    builder = SparkSession.builder.appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    _outlast_sigterm(session)
    _look_classes_up_once(session)
    return session


def _outlast_sigterm(session: "SparkSession") -> None:
    """Have the JVM that this process started ignore SIGTERM.

    systemd and `timeout` send it to all processes at once, and we still need the JVM for the batch
    under way. It ends with us, however that comes: its standard input is a pipe of ours.
    """
    jvm: Any = session._jvm  # pyright: ignore[reportPrivateUsage]
    signals = jvm.sun.misc
    signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def _look_classes_up_once(session: "SparkSession") -> None:
    """Keep the classes of the JVM that PySpark asks for again in each use.

    Py4J seeks such a name in package after package, and for each that has it not the JVM looks into
    all of Spark's jars: 0.2 to 0.6 ms each time, and as much again for a part of a name with dots.
    """
    jvm: Any = session._jvm  # pyright: ignore[reportPrivateUsage]
    for name in _LOOKED_UP:
        place = jvm
        for part in name.split("."):
            found = getattr(place, part)
            setattr(place, part, found)
            place = found


def require_driver(spark: "SparkSession") -> None:
    """Raise ConfigError for the session of a Spark Connect client: its driver is elsewhere."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise _no_driver("this session")


def _no_driver(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is of Spark Connect, and a pipeline runs in the driver itself: there it writes, "
        f"and keeps its place. Nothing was read or written. Run it with spark-submit, or with "
        f"another --master; Spark Connect reads and streams with format('penstock')."
    )


def on_this_machine(master: str) -> bool:
    """Whether the work is done where the driver is, with its files in reach."""
    return master.startswith("local")


def _submitted(master: str | None, settings: Mapping[str, str]) -> "SparkSession":
    """The session that spark-submit, which started this process, has asked for."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # What spark-submit was told is in the JVM. Much of it is fixed once there is a session.
    SparkContext._ensure_initialized()  # pyright: ignore[reportPrivateUsage]
    new = SparkContext._active_spark_context is None  # pyright: ignore[reportPrivateUsage]
    told = SparkConf()
    asked = told.get("spark.master")
    master = master or settings.get("spark.master")
    if master not in {None, asked}:
        raise ConfigError(
            f"spark-submit was told the master {asked}, and this program {master}. Nothing was "
            f"read or written. Say it to spark-submit alone."
        )
    late = [name for name, value in settings.items() if told.get(name) != value]
    if late := [name for name in sorted(late) if name.startswith(_DECIDED)]:
        raise ConfigError(
            f"the driver was started by spark-submit, and cannot be given {', '.join(late)} any "
            f"more. Nothing was read or written. Say it to spark-submit, with --conf."
        )
    ours = {name: value for name, value in SETTINGS.items() if not told.contains(name)}
    builder = SparkSession.builder
    for name, value in {**ours, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    return session if new else _with(session, settings)


def _with(session: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """The session with these settings. Raises ConfigError where it is too late for one."""
    from pyspark.errors import AnalysisException

    late: list[str] = []
    for name, value in settings.items():
        if session.conf.get(name, None) != value:
            try:
                session.conf.set(name, value)
            except AnalysisException:
                late.append(name)
    if late:
        raise ConfigError(
            f"the Spark session was there already, and cannot be given {', '.join(sorted(late))} "
            f"any more. Nothing was read or written. Set it where the session is made."
        )
    return session
