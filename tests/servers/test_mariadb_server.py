"""The MariaDB that tests start is a real one, and keeps what it was told."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests_support.servers import (
    MariaDbServer,
    ServerStartError,
    ServerUnavailableError,
    process,
)


@pytest.mark.parametrize(("version", "is_it"), [("system", r"1[01]\."), ("11.8", r"11\.8\.")])
def test_what_was_committed_survives_kill_9(
    start_mariadb: Callable[..., MariaDbServer], version: str, is_it: str
) -> None:
    server = start_mariadb(version=version, server_id=7)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((said,),) = cursor.fetchall()
        assert re.match(is_it, said)
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO d.t VALUES (1)")
        cursor.execute("SELECT @@gtid_binlog_pos")
        assert cursor.fetchall() == (("0-7-3",),)
    server.kill()
    assert not server.process.running
    server.restart()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM d.t")
        assert cursor.fetchall() == ((1,),)


def test_its_temporary_files_are_in_its_own_folder(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """Others start at the same time, and remove what has the names of their own."""
    server = start_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@tmpdir")
        assert cursor.fetchall() == ((str(server.temporary),),)
        cursor.execute("CREATE TEMPORARY TABLE mysql.t AS SELECT 1 AS n")
    assert server.temporary.is_relative_to(server.folder)


def test_another_that_has_its_port_is_not_taken_for_it(
    start_mariadb: Callable[..., MariaDbServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes of tests may choose one port at the same time; the other's server goes away
    with the other's test."""
    first = start_mariadb()

    def taken(_count: int, *, in_a_row: bool) -> list[int]:
        return [first.port]

    monkeypatch.setattr(process, "free_ports", taken)
    with pytest.raises(ServerStartError, match="did not come up"):
        start_mariadb()
    assert first.ended() is None


def test_one_that_ended_says_how(start_mariadb: Callable[..., MariaDbServer]) -> None:
    server = start_mariadb()
    assert server.ended() is None
    server.kill()
    ended = server.ended()
    assert ended is not None
    assert ended.startswith("exit code -9\n")
    assert "ready for connections" in ended
    server.stop()
    assert server.ended() is None


@pytest.mark.server
def test_it_dies_with_the_process_that_started_it(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    start_mariadb().stop()  # skipped where there is none
    program = (
        "import os, signal\n"
        "from tests_support.servers import MariaDbServer\n"
        "server = MariaDbServer()\n"
        "server.start()\n"
        "print(server.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    pid = int(outcome.stdout)
    command = Path(f"/proc/{pid}/cmdline")
    # Empty: dead, and not yet waited for.
    wait_until(lambda: not command.exists() or not command.read_bytes(), "the server's end")


def test_a_missing_mariadb_of_another_release_is_a_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVERS_DIR", str(tmp_path))
    with pytest.raises(ServerUnavailableError, match=r"trixie is not .*servers install"):
        MariaDbServer(version="11.8").start()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_mariadb_is_a_sentence_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: str, **_options: object) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(ServerUnavailableError, match="apt-get install mariadb-server"):
        MariaDbServer().start()
