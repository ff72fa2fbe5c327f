"""MariaDB as a source keeps what every source promises."""

import asyncio

import pytest

from penstock.ports import ChangeSource
from penstock.testing.contracts.copies import CopyContract
from penstock.testing.servers import MariaDbServer
from tests.mysql.support import run, source_of


class TestMariaDb(CopyContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, mariadb: MariaDbServer, mariadb_database: str) -> None:
        self.server, self.database = mariadb, mariadb_database
        with mariadb.connect(database=mariadb_database) as db:
            run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")

    def open_source(self) -> ChangeSource:
        return source_of(self.server, include=[f"{self.database}.*"])

    async def write(self, rows: int) -> None:
        with self.server.connect(database=self.database) as db:
            values = ", ".join(["(1)"] * rows)
            await asyncio.to_thread(run, db, f"INSERT INTO a (n) VALUES {values}")
