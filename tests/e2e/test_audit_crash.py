"""The audit trail's promise, kept through kill -9 of everything: binlog == trail == tables.

Seeded writers work on a real MariaDB or MySQL while the service, each of its processes, the Spark
driver, MongoDB and that server are killed at random. What the binlog holds is told by the server's
own tool.
"""

import hashlib
import random
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.audit.fold import decoded
from tests.children import MODULE, Child
from tests.e2e.processes import Process, Service
from tests.e2e.trail import check_transactions, folded, row_changes
from tests.mysql import programs
from tests.mysql.killing import compared, contents, logged
from tests.mysql.support import run
from tests.seeds import seed_of
from tests.waiting import wait_until
from tests_support.servers import (
    MariaDbServer,
    MongoReplicaSet,
    MySqlServer,
    SqlServer,
    free_ports,
)

VICTIMS = ("service", "capture", "driver", "server", "mongo")
WRITERS = "tests.mysql.programs"
BATCH = 60
BIG = 0.002


class Deployment:
    """One server, one service, one Spark driver, and the MongoDB that keeps the trail."""

    def __init__(self, server: SqlServer, mongo: MongoReplicaSet, folder: Path) -> None:
        self.server = server
        self.mongo = mongo
        (flight,) = free_ports(1)
        config = folder / "penstock.toml"
        config.write_text(
            f"""
            [log]
            path = "{folder}/log"
            [sources.db]
            type = "mysql"
            port = {server.port}
            user = "root"
            start = "beginning"
            include = ["d.*"]
            heartbeat_seconds = 0.5
            heartbeat_deadline_seconds = 20
            [serve]
            grpc = "127.0.0.1:0"
            flight = "127.0.0.1:{flight}"
            http = "127.0.0.1:0"
            [pipelines.trail]
            to = "audit"
            source = "db"
            uri = "{mongo.uri}"
            batch_events = {BATCH}
            max_events_per_batch = 2000
            trigger = 0.2
            answer_seconds = 2
            retry_attempts = 2
            circuit_seconds = 0.5
            """
        )
        self.service = Service(config, folder)
        command = ["-m", "penstock.cli", "pipeline", "run", "trail", "--config", str(config)]
        self.driver = Process("driver", [*command, "--json"], folder)
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.client: MongoClient[dict[str, Any]] = MongoClient(
            mongo.uri, serverSelectionTimeoutMS=60_000
        )

    def start(self) -> None:
        self.service.start()
        self.service.fact("ready")
        self.driver.start()

    def stop(self) -> None:
        for process in (self.driver, self.service):
            if process.running:
                process.kill()
        self.client.close()

    def kill(self, victim: str) -> None:
        """kill -9, and start it again, as an operator's init system would."""
        match victim:
            case "capture":
                self.service.kill_role(victim)
            case "server":
                programs.kill(self.server)
            case "mongo":
                self.mongo.kill(0)
                self.mongo.restart(0)
            case _:
                process = self.service if victim == "service" else self.driver
                process.kill()
                process.start()
        self.kills[victim] += 1

    def at(self) -> int:
        """How far the trail has come, as its head says."""
        head = self.client["audit"]["binlog_offsets"].find_one({"_id": "db"})
        return 0 if head is None else int(head["at"])

    def records(self) -> list[dict[str, Any]]:
        found = self.client["audit"]["row_changes"].find({"at": {"$lte": self.at()}})
        return [self.whole(record) for record in found.sort("at", 1)]

    def whole(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record with its values, wherever they lie."""
        if "spilled" not in record:
            return record
        pieces = self.client["audit"]["row_changes_spilled"].find(
            {"_id": {"$regex": f"^{record['_id']}:"}}
        )
        in_order = sorted(pieces, key=lambda piece: int(piece["_id"].rpartition(":")[2]))
        data = b"".join(piece["data"] for piece in in_order)
        assert hashlib.sha256(data).digest() == record["spilled"]["sha256"]
        return {**record, **decoded(data)}

    def has_row(self, key: int) -> bool:
        """Whether the trail has the insert of that row of `plain`."""
        wanted = {"meta.tbl": "plain", "meta.pk.id": key, "at": {"$lte": self.at()}}
        return self.client["audit"]["row_changes"].find_one(wanted) is not None


@contextmanager
def deployment(server: SqlServer, mongo: MongoReplicaSet, folder: Path) -> Generator[Deployment]:
    with ExitStack() as stack:
        deployed = Deployment(server, mongo, folder)
        stack.callback(deployed.stop)
        deployed.start()
        yield deployed


def crash_run(
    server: SqlServer, mongo: MongoReplicaSet, folder: Path, *, kills: int, seed: int
) -> None:
    """Kill each victim `kills` times while writers write; then compare everything."""
    rng = random.Random(seed)
    plan = list(VICTIMS) * kills
    rng.shuffle(plan)
    with server.connect() as db:
        programs.prepare(db)
    with deployment(server, mongo, folder) as deployed:
        for victim in plan:
            if victim == "driver":
                # One that is always killed while it starts would prove nothing.
                before = deployed.at()
                wait_until(
                    partial(_further, deployed, before), "the trail", diagnose=deployed.driver.tail
                )
            # In bursts: else a slow machine has ever more to catch up with.
            writing = (WRITERS, "write", server.port, rng.getrandbits(32), BIG)
            with Child(*MODULE, *writing) as writer:
                writer.says(rng.randrange(20, 100))
                deployed.kill(victim)
                writer.says(rng.randrange(5, 20))
        with server.connect() as db:
            for xid in programs.prepared(db):
                run(db, f"XA COMMIT '{xid}'")
            many = ", ".join(f"({-2 - number}, 0, 'of many')" for number in range(2 * BATCH))
            run(db, f"INSERT INTO d.plain VALUES {many}")
            run(db, "INSERT INTO d.plain VALUES (-1, 0, 'the last')")
        deployed.service.fact("ready")
        wait_until(
            lambda: deployed.has_row(-1),
            "the end",
            diagnose=deployed.driver.tail,
            moving=deployed.at,
        )
        assert deployed.driver.stop() == 0
        assert deployed.service.stop() == 0
        records = deployed.records()
        print(f"kills {deployed.kills}, records {len(records)}")
        compare(server, records, staged=deployed.client["audit"]["row_changes_staging"])


def _further(deployed: Deployment, before: int) -> bool:
    return deployed.at() > before


def compare(server: SqlServer, records: list[dict[str, Any]], *, staged: Any) -> None:
    """Every row change of the binlog, once, in order, whole; and what they add up to."""
    assert [record["at"] for record in records] == list(range(1, len(records) + 1))
    assert len({record["_id"] for record in records}) == len(records)
    check_transactions([record for record in records if record["txn"]["id"] is not None])
    assert not [record for record in records if record["op"] == "gap"]
    assert staged.count_documents({"status": "committed"}), "no commit was larger than a batch"
    with server.connect() as db:
        assert list(row_changes(records)) == list(logged(server, db))
        for table, rows in folded(records, (*programs.TABLES, "xa")).items():
            assert compared(rows) == compared(contents(db, table)), table


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_row_change_is_in_the_trail_once_after_kill_9_of_everything(
    start_mariadb: Callable[..., MariaDbServer],
    start_mongo: Callable[..., MongoReplicaSet],
    tmp_path: Path,
) -> None:
    """A1, A2, A3, A7, A13, A18, A19, A20; S5, S6: a kill of each."""
    server = start_mariadb(options=["--innodb-log-file-size=64M"])
    crash_run(server, start_mongo(), tmp_path, kills=1, seed=seed_of("audit-crash"))


@pytest.mark.spark
@pytest.mark.soak
def test_the_same_of_mysql(
    start_mysql: Callable[..., MySqlServer],
    start_mongo: Callable[..., MongoReplicaSet],
    tmp_path: Path,
) -> None:
    """A1, A2, A3, A7, A13, A18, A19, A20; S5, S6: a kill of each; compressed, tagged and XA
    transactions among the others."""
    server = start_mysql(options=["--innodb-redo-log-capacity=64M"])
    crash_run(server, start_mongo(), tmp_path, kills=1, seed=seed_of("audit-crash-mysql"))


@pytest.mark.spark
@pytest.mark.soak
def test_the_same_of_a_trail_through_twenty_kills_of_each(
    start_mariadb: Callable[..., MariaDbServer],
    start_mongo: Callable[..., MongoReplicaSet],
    tmp_path: Path,
) -> None:
    """The long run of the above."""
    server = start_mariadb(options=["--innodb-log-file-size=64M"])
    crash_run(server, start_mongo(), tmp_path, kills=20, seed=seed_of("audit-soak"))


@pytest.mark.spark
@pytest.mark.soak
def test_the_same_of_mysql_through_twenty_kills_of_each(
    start_mysql: Callable[..., MySqlServer],
    start_mongo: Callable[..., MongoReplicaSet],
    tmp_path: Path,
) -> None:
    """The long run of MySQL."""
    server = start_mysql(options=["--innodb-redo-log-capacity=64M"])
    crash_run(server, start_mongo(), tmp_path, kills=20, seed=seed_of("audit-soak-mysql"))
