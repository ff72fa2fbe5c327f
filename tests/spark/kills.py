"""What a user deploys, to be killed part by part: a service, one driver of pipelines to every kind
of destination, its executors, and the databases that they write to."""

import json
import os
import random
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineStatus
from penstock.sources.script import COLLECTIONS
from penstock.spark.config import PipelineConfig
from penstock.spark.destinations import config_class
from tests.cli.service import spawn
from tests.e2e.processes import Process, Service
from tests.spark.cluster import ROOT, SMALL
from tests.spark.replica.support import MongoReplica, PostgresReplica
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet, PostgresServer, SparkCluster, free_ports

VICTIMS = ("driver", "executor", "service", "destination")
NAMES = ("table", "history", "changelog", "view", "postgres", "mongodb", "audit")
"""Of the pipelines: one for every kind of destination."""
SOURCE = "shop"
QUERY = (
    "SELECT c.rating, count(*) AS orders, sum(o.total) AS total, min(o.total) AS least, "
    "max(o.status) AS last "
    "FROM orders o LEFT JOIN customers c ON o.customer = c._id GROUP BY c.rating"
)
_SETTINGS = {
    **SMALL,
    "spark.driver.memory": "1g",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "spark.ui.showConsoleProgress": "false",
    # Few rows: to compile their plans would take longer than to run them.
    "spark.sql.codegen.wholeStage": "false",
}
_TRAIL = "kills_trail"
_EVENTS_PER_SECOND = 40
_LAST_TRANSACTIONS = 300
"""Of the source, when nothing is killed any more: as fast as the log takes them."""


class Deployment:
    """All that runs, and where it writes."""

    def __init__(
        self,
        cluster: SparkCluster | None,
        postgres: PostgresServer,
        mongo: MongoReplicaSet,
        folder: Path,
        dice: random.Random,
    ) -> None:
        """Without a cluster the driver works by itself, and Python processes are its executors."""
        self.seed = dice.randrange(1000)
        """Of the story that the source tells."""
        self.postgres = PostgresReplica(postgres.create("kills"))
        self._mongo_uri = mongo.uri
        self.mongo = MongoReplica(mongo.uri, "kills")
        (flight,) = free_ports(1)
        self.flight = f"127.0.0.1:{flight}"
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.folder = folder
        self._written = self._pipelines(mongo.uri)
        self._config = folder / "penstock.toml"
        self.service = Service(self._config, folder)
        command = ["-m", "penstock.cli", "pipeline", "run", "--config", str(self._config)]
        master = "local[2,4]" if cluster is None else cluster.url
        self.driver = Process("driver", [*command, "--json", "--master", master], folder)
        self._cluster = cluster
        self._dice = dice

        def restart_postgres() -> None:
            postgres.kill()
            postgres.restart()

        def restart_mongo() -> None:
            mongo.kill(0)
            mongo.restart(0)

        servers = [restart_postgres, restart_mongo]
        dice.shuffle(servers)
        self._servers = cycle(servers)

    @property
    def pipelines(self) -> dict[str, PipelineConfig]:
        """By name."""
        return {
            name: config_class(one["to"]).model_validate(one) for name, one in self._written.items()
        }

    def start(self) -> None:
        self._configure(pace=_EVENTS_PER_SECOND)
        self.service.start()
        self.service.fact("ready")
        self.driver.start()

    def stop(self) -> None:
        for process in (self.driver, self.service):
            if process.running:
                process.kill()
        self.mongo.close()

    def kill(self, victim: str) -> None:
        """kill -9, and start it again, as an operator's init system or Spark itself would."""
        match victim:
            case "driver" | "service":
                process = self.driver if victim == "driver" else self.service
                process.kill()
                process.start()
            case "executor":
                wait_until(self._kill_executor, "an executor", diagnose=self.driver.tail)
            case _:
                next(self._servers)()
        self.kills[victim] += 1

    def _kill_executor(self) -> bool:
        """Kill one; whether there was one: they end by themselves, too."""
        for pid in self._dice.sample(found := self._executors(), len(found)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _executors(self) -> list[int]:
        """The pids of those that do the work."""
        if self._cluster is not None:
            return self._cluster.executors()
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if _is_worker(folder, of=self.driver.pid)
        ]

    def batches(self, pipeline: str) -> int:
        """How many with changes in them the driver of this life has applied for it."""
        assert self.driver.running, self.driver.tail()
        assert "pipeline failed" not in self.driver.log_path.read_text(), self.driver.tail()
        facts = list(self.driver.facts)
        return sum(1 for fact in facts if fact.get("pipeline") == pipeline and fact["entries"])

    def end(self) -> int:
        """Have the source end, and all pipelines reach its end; how many transactions it told."""
        self.service.fact("ready")  # it may just have been killed; before, SIGTERM is the end of it
        assert self.service.stop() == 0
        told = int(self._position().partition(":")[2]) + _LAST_TRANSACTIONS
        self._configure(pace=0, transactions=told)
        self.service.start()
        wait_until(
            lambda: self._position() == f"{self.seed}:{told}",
            "the source to end",
            diagnose=self.service.tail,
        )
        wait_until(self._at_the_end, "the end", diagnose=self.driver.tail, moving=self._places)
        assert self.driver.stop() == 0, self.driver.tail()
        return told

    def trail(self) -> list[dict[str, Any]]:
        """The records of the audit trail."""
        with MongoClient[dict[str, Any]](self._mongo_uri) as client:
            return list(client[_TRAIL]["row_changes"].find().sort("at", 1))

    def known(self) -> list[PipelineStatus]:
        """What the service says of the pipelines."""
        with LogClient(self.flight) as client:
            return client.pipelines()

    def _at_the_end(self) -> bool:
        self.batches("")  # no pipeline has failed
        with LogClient(self.flight) as client:
            head = client.bounds().head
        return [place for _, place in self._places()] == [head] * len(self._written)

    def _places(self) -> list[tuple[str, int]]:
        return [(one.pipeline, one.sequence) for one in self.known()]

    def _position(self) -> str:
        """Where the source is, as the log says; whether or not the service runs."""
        said = spawn("checkpoint", "show", "--config", str(self._config), "--json")
        assert said.code == 0, said
        return str(json.loads(said.out)["sources"][0]["position"])

    def _configure(self, *, pace: float, transactions: int | None = None) -> None:
        tables: dict[str, dict[str, Any]] = {
            "log": {"path": str(self.folder / "log"), "free_bytes_min": 0},
            f"sources.{SOURCE}": {
                "type": "script",
                "seed": self.seed,
                "events_per_second": pace,
                **({"transactions": transactions} if transactions else {}),
            },
            "serve": {"grpc": "127.0.0.1:0", "flight": self.flight, "http": "127.0.0.1:0"},
            "spark": {json.dumps(name): value for name, value in _SETTINGS.items()},
            **{f"pipelines.{name}": one for name, one in self._written.items()},
        }
        # What JSON writes for text, numbers and lists of them, TOML reads.
        lines = [
            f"[{table}]\n" + "".join(f"{name} = {json.dumps(one)}\n" for name, one in said.items())
            for table, said in tables.items()
        ]
        self._config.write_text("".join(lines))

    def _pipelines(self, mongo: str) -> dict[str, dict[str, Any]]:
        every = {"collections": list(COLLECTIONS)}
        away = {"answer_seconds": 5, "retry_first": 0.05, "circuit_seconds": 0.5}
        # Files are joined and removed all the time, so that a driver dies in the midst of it.
        lake = {"compact_every": 4, "vacuum_every": 4}
        said: dict[str, dict[str, Any]] = {
            "table": {**every, **lake},
            "history": {**every, **lake},
            "changelog": lake,
            "view": {"query": QUERY, **lake},
            "postgres": {"to": "replicate", "uri": self.postgres.uri, **every, **away},
            "mongodb": {"to": "replicate", "uri": self.mongo.uri, **every, **away},
            "audit": {"uri": mongo, "database": _TRAIL, **away},
        }
        batches = {"trigger": 0.2, "max_events_per_batch": 3000}
        return {
            name: {
                "to": name,
                "source": SOURCE,
                **batches,
                **({"path": str(self.folder / name)} if "compact_every" in one else {}),
                **one,
            }
            for name, one in said.items()
        }


def _is_worker(process: Path, *, of: int) -> bool:
    """Whether it is a Python process that Spark does its work in, of the driver `of`."""
    try:
        session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
        return session == of and b"pyspark.daemon" in (process / "cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def deployment(
    cluster: SparkCluster | None,
    postgres: PostgresServer,
    mongo: MongoReplicaSet,
    folder: Path,
    dice: random.Random,
) -> Generator[Deployment]:
    """Started, and stopped whatever happens."""
    deployed = Deployment(cluster, postgres, mongo, folder, dice)
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()
