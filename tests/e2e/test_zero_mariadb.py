"""A MariaDB, captured from its binlog and served, and the real zero-cache's replica are equal."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_zero import Deployed
from tests.seeds import seed_of
from tests.waiting import wait_until
from tests.zero.real import replica
from tests_support.servers import MariaDbServer, PostgresServer

ACCOUNTS = 20
TOTAL = 100 * ACCOUNTS


@pytest.mark.slow
def test_a_replica_of_mariadb_begins_whole_and_follows_its_transactions(
    mariadb: MariaDbServer, mariadb_database: str, zero_state: PostgresServer, tmp_path: Path
) -> None:
    """Z2, Z5, Z6, Z10: by a copy, then its binlog."""
    settings = f"""
        [sources.db]
        type = "mysql"
        port = {mariadb.port}
        user = "root"
        include = ["{mariadb_database}.*"]
        start = "snapshot"
        heartbeat_seconds = 0.5
        [serve.zero]
        status_interval = 0.5
        [serve.zero.tables.account]
        source = "db"
        collection = "{mariadb_database}.account"
        key = ["id"]
        columns = {{id = "int", balance = "int", at = "timestamp"}}
        """
    rng = random.Random(seed_of("zero mariadb"))
    with mariadb.connect(database=mariadb_database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE account (id INT PRIMARY KEY, balance INT, at DATETIME(3))")
        rows = [(number, 100, "2026-01-31 23:59:59.123") for number in range(ACCOUNTS)]
        cursor.executemany("INSERT INTO account VALUES (%s, %s, %s)", rows)
        deployed = Deployed(settings, zero_state, tmp_path)

        def replicated() -> dict[int, Any]:
            found = asyncio.run(replica(deployed.cache, "account"))["tables"]
            return {row["id"]: row for row in found.get("account", [])}

        def equal() -> bool:
            cursor.execute("SELECT id, balance FROM account")
            expected = dict(cursor.fetchall())
            return {key: row["balance"] for key, row in replicated().items()} == expected

        try:
            deployed.start()
            wait_until(equal, "the first copy", diagnose=deployed.service.tail)
            assert {row["at"] for row in replicated().values()} == {1769903999123}
            for number in range(200):
                giver, taker = rng.sample(range(ACCOUNTS), 2)
                cursor.execute("BEGIN")
                for key, amount in ((giver, -5), (taker, 5)):
                    change = "UPDATE account SET balance = balance + %s WHERE id = %s"
                    cursor.execute(change, (amount, key))
                cursor.execute("COMMIT")
                if not number % 50:
                    now = replicated().values()
                    assert sum(row["balance"] for row in now) == TOTAL, "a transaction in part"
            cursor.execute("DELETE FROM account WHERE id = 1")
            cursor.execute("INSERT INTO account VALUES (1000, 7, NULL)")
            wait_until(equal, "the replica to be what the table is", diagnose=deployed.service.tail)
        finally:
            deployed.stop()
