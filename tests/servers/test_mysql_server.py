"""The MySQL that tests start is a real one, and keeps what it was told."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests_support.servers import MySqlServer, ServerUnavailableError
from tests_support.servers.__main__ import install_beside
from tests_support.servers.debian import MYSQL, install_debian


def test_what_was_committed_survives_kill_9(start_mysql: Callable[..., MySqlServer]) -> None:
    server = start_mysql(server_id=7)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO d.t VALUES (1)")
        cursor.execute("SELECT @@server_uuid, @@server_id, @@gtid_executed")
        ((uuid, number, executed),) = cursor.fetchall()
        assert (number, executed) == (7, f"{uuid}:1-3")
    server.kill()
    assert not server.process.running
    server.restart()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM d.t")
        assert cursor.fetchall() == ((1,),)


def test_its_temporary_files_are_in_its_own_folder(
    start_mysql: Callable[..., MySqlServer],
) -> None:
    """Others start at the same time, and remove what has the names of their own."""
    server = start_mysql()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@tmpdir")
        assert cursor.fetchall() == ((str(server.temporary),),)
        cursor.execute("CREATE TEMPORARY TABLE mysql.t AS SELECT 1 AS n")
    assert server.temporary.is_relative_to(server.folder)


def test_a_missing_mysql_is_a_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVERS_DIR", str(tmp_path))
    with pytest.raises(ServerUnavailableError, match=r"tests_support\.servers install"):
        MySqlServer().start()
    assert list(tmp_path.iterdir()) == []


def test_an_install_that_fails_leaves_nothing_behind_and_does_not_fail_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVERS_DIR", str(tmp_path))

    def refuses(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: the mirror is away")

    monkeypatch.setattr(subprocess, "run", refuses)
    with pytest.raises(ServerUnavailableError, match="the mirror is away"):
        install_debian(MYSQL)
    install_beside(MYSQL)
    assert "mysql-server-core is left out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [f"{MYSQL.folder}.lock"]
