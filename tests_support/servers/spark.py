"""A standalone Spark cluster: a master and workers, each a process, as if on their own machines.

    with SparkCluster(workers=2) as cluster:
        spark = SparkSession.builder.master(cluster.url)...

And a Spark Connect server, which is the driver of clients elsewhere. What runs is in the pyspark
package, on the Java that Penstock finds.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from penstock.errors import ConfigError
from penstock.spark.java import java_environment
from tests_support.servers.classes import short_lived
from tests_support.servers.packages import ServerUnavailableError
from tests_support.servers.process import Server

_HIDING: Final = """
set -e
while [ "$1" != -- ]; do mount -t tmpfs none "$1"; shift; done
shift
exec "$@"
"""
# Executors get their code from the driver, and not from what the tests were started with.
_BARE: Final = {
    "SPARK_DAEMON_MEMORY": "192m",
    "SPARK_DAEMON_JAVA_OPTS": short_lived(),
    "PYTHONPATH": "",
}
_START_SECONDS: Final = 200.0
"""Five are enough on a machine that does nothing else."""
_EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkMaster(Server):
    """The master: hands out workers to drivers."""

    NAME = "Spark's master"
    PORTS: ClassVar[int] = 2
    START_SECONDS: ClassVar[float] = _START_SECONDS

    @property
    def url(self) -> str:
        """What a driver gives as its master."""
        return f"spark://127.0.0.1:{self._ports[0]}"

    def workers(self) -> list[dict[str, Any]]:
        """What it says of its workers; nothing while it does not answer."""
        workers: list[dict[str, Any]] = _told(self._ports[1]).get("workers", [])
        return workers

    def _require(self) -> None:
        _home()

    def _prepare(self) -> None:
        """It keeps nothing."""

    def _command(self) -> Sequence[str]:
        return [*_class("master.Master"), *_addresses(self._ports)]

    def _environment(self) -> Mapping[str, str]:
        return {**_environment(), **_BARE}

    def _answers(self) -> bool:
        return _told(self._ports[1]).get("status") == "ALIVE"


class SparkWorker(Server):
    """A worker of one core: runs executors of drivers, as children that end with it."""

    NAME = "Spark's worker"
    PORTS: ClassVar[int] = 2
    START_SECONDS: ClassVar[float] = _START_SECONDS

    def __init__(self, master: SparkMaster, *, hidden: Sequence[Path] = ()) -> None:
        """`hidden` are folders that it and its executors see empty, which takes root."""
        super().__init__()
        self._master = master
        self._hidden = hidden

    def executors(self) -> list[int]:
        """The pids of the executors that run here now."""
        return [pid for pid in _children(self.process.pid) if _is_executor(pid)]

    def _require(self) -> None:
        _home()
        if self._hidden and os.geteuid() != 0:
            raise ServerUnavailableError("only root can hide folders from a worker")
        tried = ["/usr/bin/unshare", "--mount", "true"]
        if self._hidden and subprocess.run(tried, capture_output=True, check=False).returncode:
            raise ServerUnavailableError("this machine lets nobody hide folders from a worker")

    def _prepare(self) -> None:
        (self.folder / "local").mkdir()

    def _command(self) -> Sequence[str]:
        own = ["--cores", "1", "--memory", "768m", "--work-dir", str(self.folder / "work")]
        command = [*_class("worker.Worker"), *_addresses(self._ports), *own, self._master.url]
        return _without(self._hidden, command)

    def _environment(self) -> Mapping[str, str]:
        return {**_environment(), **_BARE, "SPARK_LOCAL_DIRS": str(self.folder / "local")}

    def _answers(self) -> bool:
        return any(
            worker["port"] == self._ports[0] and worker["state"] == "ALIVE"
            for worker in self._master.workers()
        )


class SparkConnectServer(Server):
    """A Spark Connect server, on two cores of this machine and with the Python that starts it."""

    NAME = "Spark Connect"
    START_SECONDS: ClassVar[float] = _START_SECONDS

    @property
    def url(self) -> str:
        """What a client gives as its remote."""
        return f"sc://127.0.0.1:{self._ports[0]}"

    def _require(self) -> None:
        _home()

    def _prepare(self) -> None:
        (self.folder / "local").mkdir()

    def _command(self) -> Sequence[str]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self._ports[0],
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "700m",
            "spark.python.authenticate.socketTimeout": "120s",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": self.folder / "warehouse",
            "spark.ui.enabled": "false",
        }
        command = [str(_home() / "bin" / "spark-submit"), "--master", "local[2]"]
        command += [f"--conf={name}={value}" for name, value in settings.items()]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        return [*command, "spark-internal"]

    def _environment(self) -> Mapping[str, str]:
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return {**_environment(), **python, "SPARK_LOCAL_DIRS": str(self.folder / "local")}

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._ports[0]), timeout=1).close()
        except OSError:
            return False
        return True


class SparkCluster:
    """A master and its workers; stopped, or stopped in part by a test, they leave nothing."""

    def __init__(self, *, workers: int = 2, hidden: Sequence[Path] = ()) -> None:
        self.master = SparkMaster()
        self.workers = [SparkWorker(self.master, hidden=hidden) for _ in range(workers)]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """What a driver gives as its master."""
        return self.master.url

    def executors(self) -> list[int]:
        """The pids of all executors that run now."""
        return [
            pid for worker in self.workers if worker.process.running for pid in worker.executors()
        ]

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.enter_context(self.master)
            for worker in self.workers:
                starting.enter_context(worker)
            self._running = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.close()


@cache
def _home() -> Path:
    """Where Spark is. Raises ServerUnavailableError if it, or a Java for it, is not installed."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerUnavailableError("Spark is not installed. Run pip install 'penstock[spark]'.")
    try:
        java_environment()
    except ConfigError as error:
        raise ServerUnavailableError(str(error)) from error
    return Path(found.origin).parent


def _without(hidden: Sequence[Path], command: Sequence[str]) -> Sequence[str]:
    """`command`, which sees the folders `hidden` empty, and so does whatever it starts."""
    if not hidden:
        return command
    hide = ["/usr/bin/unshare", "--mount", "sh", "-c", _HIDING, "sh"]
    return [*hide, *map(str, hidden), "--", *command]


def _class(name: str) -> list[str]:
    return [str(_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]


def _addresses(ports: Sequence[int]) -> list[str]:
    address, page = map(str, ports)
    return ["--host", "127.0.0.1", "--port", address, "--webui-port", page]


def _environment() -> dict[str, str]:
    return {
        **java_environment(),
        "SPARK_HOME": str(_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _told(port: int) -> dict[str, Any]:
    """What the process tells on its page; nothing while it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/json/", timeout=1) as answer:
            told: dict[str, Any] = json.load(answer)
            return told
    except (OSError, urllib.error.URLError, ValueError):
        return {}


def _is_executor(pid: int) -> bool:
    """Whether it is one; it may end at any moment."""
    try:
        return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _children(parent: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{parent}/task").iterdir())
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []
