"""The PostgreSQL that tests start is a real one, and keeps what it committed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests_support.servers import PostgresServer, ServerUnavailableError
from tests_support.servers import postgres as module


def test_what_was_committed_survives_kill_9(start_postgres: Callable[[], PostgresServer]) -> None:
    server = start_postgres()
    server.create("shop")
    server.execute("CREATE TABLE item (id int)", database="shop")
    server.execute("INSERT INTO item VALUES (1), (2)", database="shop")
    server.kill()
    assert not server.process.running
    server.restart()
    assert server.execute("SELECT id, id * 2 FROM item", database="shop") == [
        ["1", "2"],
        ["2", "4"],
    ]


def test_it_is_ready_for_logical_replication(postgres: PostgresServer) -> None:
    assert postgres.execute("SHOW wal_level") == [["logical"]]


def test_a_missing_postgresql_is_a_sentence_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(module, "DEBIAN", tmp_path)
    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(ServerUnavailableError, match="apt-get install postgresql"):
        PostgresServer().start()
