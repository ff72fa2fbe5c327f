"""The MariaDB that tests start is a real one, and keeps what it was told."""

import shutil
from collections.abc import Callable

import pytest

from penstock.testing.servers import MariaDbServer, ServerUnavailableError


def test_what_was_committed_survives_kill_9(start_mariadb: Callable[..., MariaDbServer]) -> None:
    server = start_mariadb(server_id=7)
    with server.connect() as connection, connection.cursor() as cursor:
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


def test_a_missing_mariadb_is_a_sentence_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: str, **_options: object) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(ServerUnavailableError, match="apt-get install mariadb-server"):
        MariaDbServer().start()
