"""A quiet source is not behind: its server says that it has nothing more."""

import time

from penstock.event import Commit
from penstock.testing.servers import SqlServer
from tests.mysql.conftest import on
from tests.mysql.support import run, source_of


@on("mariadb", "mysql")
async def test_a_heartbeat_of_the_server_says_that_all_of_its_binlog_was_told(
    server: SqlServer, database: str
) -> None:
    source = source_of(server, include=[f"{database}.*"], heartbeat_seconds=0.1)
    changes = source.changes(position=None)
    try:
        first = await anext(changes)
        assert isinstance(first, Commit)
        assert first.as_of_ms is None
        with server.connect() as db:
            run(db, f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
            run(db, f"INSERT INTO {database}.a VALUES (1)")
        told: list[Commit] = []
        while not told or told[-1].as_of_ms is None:
            item = await anext(changes)
            assert isinstance(item, Commit)
            told.append(item)
        assert abs(time.time() * 1000 - (told[-1].as_of_ms or 0)) < 10_000
    finally:
        await source.close()
