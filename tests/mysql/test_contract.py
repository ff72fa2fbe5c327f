"""MariaDB and MySQL as sources keep what every source promises."""

import asyncio

import pytest

from penstock.ports import ChangeSource
from penstock.testing.contracts.copies import CopyContract
from penstock.testing.contracts.ranges import RangeContract
from tests.mysql.conftest import SERVERS, on
from tests.mysql.support import run, source_of
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer


class Upstream:
    """A server with one table."""

    server: SqlServer
    database: str

    def begin(self, server: SqlServer, database: str) -> None:
        self.server, self.database = server, database
        with server.connect(database=database) as db:
            run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")

    def open_source(self) -> ChangeSource:
        include = [f"{self.database}.*"]
        return source_of(self.server, include=include, snapshot_chunk_documents=4)

    async def write(self, rows: int) -> None:
        with self.server.connect(database=self.database) as db:
            values = ", ".join(["(1)"] * rows)
            await asyncio.to_thread(run, db, f"INSERT INTO a (n) VALUES {values}")


@pytest.mark.both_mariadbs
class TestMariaDb(Upstream, CopyContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, mariadb: MariaDbServer, mariadb_database: str) -> None:
        self.begin(mariadb, mariadb_database)


class TestMySql(Upstream, CopyContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, mysql: MySqlServer, mysql_database: str) -> None:
        self.begin(mysql, mysql_database)


@on(*SERVERS)
class TestRanges(Upstream, RangeContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, server: SqlServer, database: str) -> None:
        self.begin(server, database)
