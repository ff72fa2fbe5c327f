"""A source with nothing to tell is not behind: its server says that it has nothing more."""

import asyncio
import time

from penstock.capture.ending import ended
from penstock.event import Commit
from tests.mysql.conftest import on
from tests.mysql.support import run, source_of
from tests.waiting import until
from tests_support.servers import SqlServer


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


@on("mariadb", "mysql")
async def test_steady_writes_to_other_tables_say_how_far_all_was_told(
    server: SqlServer, database: str
) -> None:
    """There is no heartbeat meanwhile."""
    source = source_of(server, include=[f"{database}_.*"], heartbeat_seconds=300)
    changes = source.changes(position=None)
    told: list[Commit] = []

    async def read() -> None:
        async for item in changes:
            assert isinstance(item, Commit)
            told.append(item)

    reading = asyncio.ensure_future(read())
    try:
        with server.connect() as db:
            run(db, f"CREATE TABLE {database}.a (id INT PRIMARY KEY AUTO_INCREMENT)")

            def as_of_ms() -> int | None:
                run(db, f"INSERT INTO {database}.a VALUES (NULL)")
                return told[-1].as_of_ms if told else None

            first = await until(as_of_ms, task=reading)
            assert abs(time.time() * 1000 - first) < 10_000
            await until(lambda: (as_of_ms() or 0) > first, task=reading)
    finally:
        await source.close()
        await ended(reading)
