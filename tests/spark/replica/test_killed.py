"""Killed at any moment, driver or destination, a replica ends as the fold of the log."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import seed_of
from tests.spark.drivers import driver
from tests.spark.replica.contract import expected
from tests.spark.replica.killed import entries_of
from tests.spark.replica.support import (
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
    database,
)

_KILLS = 1
"""Of the driver; the destination is killed twice as often."""


def survive(replica: Replica, restart: Callable[[], None], folder: Path) -> None:
    """Kill and restart the destination under a driver, and kill the driver; then let one end."""
    seed = seed_of("killed")
    dice, entries = random.Random(seed), entries_of(seed)
    written = replica.config(answer_seconds=20).model_dump(mode="json")
    path = folder / "config.json"
    path.write_text(json.dumps({**written, "uri": replica.uri}))
    for kill in range(_KILLS + 1):
        with driver("tests.spark.replica.killed", path, seed) as running:
            for act in (restart, running.kill if kill < _KILLS else restart):
                for _ in range(dice.randrange(1, 8)):
                    running.line()  # so many batches are in, and the next is on its way
                if not running.ends_in(dice.uniform(0.0, 0.02)):
                    act()
            code = running.wait()
        assert code == 0 or kill < _KILLS, running.tail()
    for collection in ("orders", "lines"):
        assert replica.rows(collection) == expected(replica, entries, collection)
    assert replica.rejects() == []


class TestKilled:
    @pytest.mark.soak
    def test_postgres(self, start_postgres: Any, tmp_path: Path) -> None:
        server = start_postgres(options=["fsync=on"])

        def restart() -> None:
            server.kill()
            server.restart()

        survive(PostgresReplica(server.create(database())), restart, tmp_path)

    @pytest.mark.slow
    def test_mariadb(self, start_mariadb: Any, tmp_path: Path) -> None:
        server = start_mariadb(options=["--innodb-flush-log-at-trx-commit=1"])
        name = database()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")

        def restart() -> None:
            server.kill()
            server.restart()

        survive(MysqlReplica(server.host, server.port, name), restart, tmp_path)

    @pytest.mark.soak
    def test_mongodb(self, start_mongo: Any, tmp_path: Path) -> None:
        server = start_mongo()

        def restart() -> None:
            server.kill(0)
            server.restart(0)

        replica = MongoReplica(server.uri, database())
        try:
            survive(replica, restart, tmp_path)
        finally:
            replica.close()
