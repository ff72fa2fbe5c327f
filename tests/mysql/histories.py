"""Servers of MariaDB and MySQL whose history becomes another."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.ports import ChangeSource
from penstock.sources.mysql.connection import Connected, facts
from penstock.sources.mysql.holdings import flavour_of
from penstock.sources.mysql.positions import parse_position, told
from tests.histories import Deployment, Write
from tests.mysql.support import covers, end_of, purge, run, source_of
from tests.waiting import wait_until
from tests_support.servers import SqlServer


def table_in(db: Connected, columns: str = "id INT PRIMARY KEY") -> None:
    run(db, "CREATE DATABASE d", f"CREATE TABLE d.a ({columns})")


def insert(db: Connected, *numbers: int) -> None:
    """Each is a transaction."""
    for number in numbers:
        run(db, f"INSERT INTO d.a VALUES ({number})")


def next_second(db: Connected) -> None:
    """Let a second of the server's clock begin."""
    ((now,),) = run(db, "SELECT UNIX_TIMESTAMP()")
    wait_until(lambda: run(db, "SELECT UNIX_TIMESTAMP()") != [(now,)])


def reset(db: Connected, kind: str) -> None:
    """All binlogs go, and their numbers begin anew."""
    next_second(db)
    run(db, "RESET MASTER" if kind == "mariadb" else "RESET BINARY LOGS AND GTIDS")


def replicate(db: Any, replica: Any, one: SqlServer, kind: str) -> None:
    """Make a server a replica of `one`, to which `db` is a connection."""
    if kind == "mysql":
        run(db, "CREATE USER IF NOT EXISTS r@'%'", "GRANT ALL ON *.* TO r@'%'")
        how = "SOURCE_USER = 'r', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
        of = f"SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {one.port}"
        run(replica, f"CHANGE REPLICATION SOURCE TO {of}, {how}", "START REPLICA")
    else:
        how = "MASTER_USER = 'root', MASTER_USE_GTID = slave_pos"
        of = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {one.port}"
        run(replica, f"CHANGE MASTER TO {of}, {how}", "START SLAVE")


def wait_for_replica(db: Any, replica: Any) -> None:
    """Return when it has all that the server of `db` has now."""
    flavour, end = flavour_of(facts(db)), end_of(db)
    wait_until(lambda: told(flavour, end_of(replica)).purged(end) is None)


def copy_disk(server: SqlServer, to: Path) -> None:
    """Copy the data of a server, which is stopped for it and started again."""
    server.process.stop()
    _copied(server.data, to)
    server.restart()


def restore_disk(server: SqlServer, copy: Path) -> None:
    server.process.stop()
    _copied(copy, server.data)
    server.restart()


def _copied(data: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "--archive", str(data), str(to)], check=True)


def _as_another(data: Path) -> None:
    """The next server that begins with these data gives itself an identity (MySQL)."""
    (data / "auto.cnf").unlink(missing_ok=True)


class SqlDeployment(Deployment):
    """One server, and where it has GTIDs another one that may replicate it."""

    acts: tuple[str, ...] = ("rotate", "purge", "reset", "copy", "restore", "replace")

    def __init__(self, kind: str, start: Callable[..., SqlServer], folder: Path) -> None:
        self._kind = kind
        self._server = start()
        self._copy, self._new = folder / "copy", folder / "new"
        self._copied_id = self._server.server_id
        self._replica: SqlServer | None = None
        self._ids = 1
        self._is_held_back = False
        copy_disk(self._server, self._new)
        _as_another(self._new)
        if kind != "files":
            self._replica = start(server_id=2)
            self.acts = (*self.acts, "promote", "promote", "promote behind")
        self._make_tables()

    def _make_tables(self) -> None:
        with self._server.connect() as db:
            table_in(db, "id INT PRIMARY KEY, v INT")
            run(db, "CREATE DATABASE e", "CREATE TABLE e.a (v INT)")

    def source(self) -> ChangeSource:
        beats = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 2.0}
        return source_of(self._server, include=["d.*"], on_position_lost="gap", **beats)

    def is_past(self, position: str) -> bool:
        with self._server.connect() as db:
            return covers(parse_position(position), end_of(db))

    def is_quiet(self, position: str) -> bool:
        return self.is_past(position)

    def write(self, writes: Sequence[Write]) -> None:
        with self._server.connect() as db:
            for write in writes:
                if write.is_new:
                    run(db, f"INSERT INTO d.a VALUES ({write.id}, {write.v})")
                elif write.v is None:
                    run(db, f"DELETE FROM d.a WHERE id = {write.id}")
                else:
                    run(db, f"UPDATE d.a SET v = {write.v} WHERE id = {write.id}")

    def write_elsewhere(self) -> None:
        with self._server.connect() as db:
            run(db, "INSERT INTO e.a VALUES (1)")

    def rows(self) -> dict[int, int]:
        with self._server.connect() as db:
            return dict(run(db, "SELECT id, v FROM d.a"))

    def rotate(self) -> None:
        with self._server.connect() as db:
            run(db, "FLUSH BINARY LOGS")

    def purge(self) -> None:
        with self._server.connect() as db:
            run(db, "FLUSH BINARY LOGS")
            purge(db)

    def reset(self) -> None:
        with self._server.connect() as db:
            reset(db, self._kind)

    def copy(self) -> None:
        copy_disk(self._server, self._copy)
        self._copied_id = self._server.server_id

    def restore(self) -> None:
        self._another(self._copy, self._copied_id)

    def replace(self) -> None:
        self._another(self._new, 1)
        self._make_tables()

    def _another(self, data: Path, server_id: int) -> None:
        with self._server.connect() as db:
            next_second(db)
        self._server.server_id = server_id
        restore_disk(self._server, data)

    def replicate(self) -> None:
        replica = self._replica
        assert replica is not None
        replica.process.stop()
        self._server.process.stop()
        _copied(self._server.data, replica.data)
        _as_another(replica.data)
        self._ids += 1
        replica.server_id = self._ids
        self._server.restart()
        replica.restart()
        with self._server.connect() as db, replica.connect() as copy:
            if self._kind == "mariadb":
                run(copy, "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos")
            replicate(db, copy, self._server, self._kind)
        self._is_held_back = False

    def hold_back(self) -> None:
        assert self._replica is not None
        with self._server.connect() as db, self._replica.connect() as copy:
            wait_for_replica(db, copy)
            run(copy, "STOP REPLICA")
        self._is_held_back = True

    def promote(self) -> None:
        replica = self._replica
        assert replica is not None
        if not self._is_held_back:
            self.hold_back()
        with replica.connect() as copy:
            run(copy, "RESET REPLICA ALL" if self._kind == "mysql" else "RESET SLAVE ALL")
        self._server.server_id = replica.server_id
        replica.process.stop()
        restore_disk(self._server, replica.data)
