"""A server that says nothing is not waited for in vain."""

import asyncio
import random

import pytest

from penstock.capture.supervise import Supervised, Supervisor
from penstock.cli.capture_process import SystemClock
from penstock.errors import SourceSilentError
from penstock.log.memory import MemoryLog
from penstock.sources.mysql import MysqlSource
from penstock.telemetry import REGISTRY
from penstock.testing.faults import CutProxy
from tests.mysql.support import Story, behind, config_of, end_of, run
from tests.telling import follow
from tests.waiting import patience
from tests_support.servers import MariaDbServer


def through(proxy: CutProxy, server: MariaDbServer, database: str) -> MysqlSource:
    """A source of a name that no other test counts by, with a heartbeat of half a second."""
    config = config_of(
        server,
        include=[f"{database}.*"],
        port=proxy.port,
        heartbeat_seconds=0.5,
        heartbeat_deadline_seconds=None,
    )
    return MysqlSource(database, config)


async def in_log(log: MemoryLog, operation: str) -> int:
    """Wait until the log has an event of this kind; how many of them it has."""
    after, found = 0, 0
    async with patience():
        while not found:
            await log.wait(after=after)
            for block in await log.read(after=after):
                entries = block.entries()
                found += sum(entry.event.operation == operation for entry in entries)
                after = block.last_sequence
    return found


async def test_two_heartbeats_without_a_word_end_a_session_and_the_next_one_has_all(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S15: the connection stays open, and nothing comes over it."""
    async with CutProxy(mariadb.host, mariadb.port) as proxy:
        source = through(proxy, mariadb, mariadb_database)
        with mariadb.connect(database=mariadb_database) as db:
            run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
            story = await follow(source, Story(), lambda _: True)

            def hush(_: object) -> None:
                if not run(db, "SELECT 1 FROM a"):
                    proxy.hush()
                    run(db, "INSERT INTO a VALUES (1)")

            with pytest.raises(SourceSilentError, match="nothing was heard for 1 s"):
                await follow(source, story, lambda _: False, on_item=hush)
            assert story.changes == []
            await follow(source, story, behind(end_of(db)))
        assert [event.document_id for event in story.changes] == ["1"]


async def test_a_session_that_fell_silent_is_followed_by_another_and_counted(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S15."""
    log = MemoryLog()

    def counted() -> float:
        name = "penstock_source_reconnects_total"
        return REGISTRY.get_sample_value(name, {"source": mariadb_database}) or 0.0

    async with CutProxy(mariadb.host, mariadb.port) as proxy:
        source = through(proxy, mariadb, mariadb_database)
        supervisor = Supervisor(
            log,
            [Supervised(source=source, silence_seconds_max=60.0)],
            clock=SystemClock(),
            rng=random.Random(1),
        )
        running = asyncio.ensure_future(supervisor.run())
        try:
            with mariadb.connect(database=mariadb_database) as db:
                await in_log(log, "started")
                run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
                await in_log(log, "create")
                proxy.hush()
                run(db, "INSERT INTO a VALUES (1)")
            assert await in_log(log, "insert") == 1
            assert counted() == 1
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
