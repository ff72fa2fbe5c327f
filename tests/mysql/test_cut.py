"""A connection that breaks, at whichever byte: the same comes of it."""

import random
from collections.abc import Callable

import pytest

from penstock.errors import SourceUnavailableError
from penstock.sources.mysql import MysqlSource
from penstock.testing.faults import CutProxy
from tests.mysql.support import Story, behind, config_of, end_of, run, source_of
from tests.seeds import seed_of
from tests.telling import follow
from tests_support.servers import MariaDbServer


def is_dump(sent: bytes) -> bool:
    """Whether a client asks for the binlog by GTID, and not for one file of it, nor for a look that
    ends by itself (BINLOG_DUMP_NON_BLOCK)."""
    return sent[3:5] == b"\0\x12" and len(sent) == 4 + 1 + 10 and not sent[9] & 1


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_cut_at_every_byte_of_a_transaction_the_same_is_told(
    start_mariadb: Callable[..., MariaDbServer], every: int
) -> None:
    """S5. At every fifth byte, from another one on each time; in a long run at all of them.

    A server of its own: so many replicas that break off have been seen to crash one.
    """
    first = random.Random(seed_of("cut transaction")).randint(1, every)
    mariadb = start_mariadb()
    include = ["d.*"]
    with mariadb.connect(autocommit=False) as db:
        run(db, "CREATE DATABASE d", "USE d")
        for table in "abc":
            run(db, f"CREATE TABLE {table} (id INT PRIMARY KEY, t TEXT)")
        begun = await follow(source_of(mariadb, include=include), Story(), lambda _: True)
        run(db, "INSERT INTO a VALUES (1, 'x'), (2, 'y')", "INSERT INTO b VALUES (1, 'z')")
        run(db, "UPDATE a SET t = 'w'", "INSERT INTO c VALUES (1, '')", "COMMIT")
        run(db, "DELETE FROM a", "COMMIT")
        end = behind(end_of(db))
    async with CutProxy(mariadb.host, mariadb.port) as proxy:
        config = config_of(mariadb, include=include, port=proxy.port, heartbeat_seconds=0.5)

        async def told(cut: int | None) -> Story:
            """What is told from the beginning, in as many sessions as it takes."""
            story = Story(begun.position)
            proxy.cut(cut, once=is_dump)
            while True:
                try:
                    # Another replica each time: the server takes a tenth of a second to end one.
                    return await follow(MysqlSource("db", config), story, end)
                except SourceUnavailableError:
                    story.crash()
                    if not mariadb.process.running:
                        mariadb.restart()

        expected = await told(None)
        whole = proxy.passed
        assert len(expected.changes) == 8
        ids = [event.event_id for event in expected.events]
        for cut in range(first, whole, every):
            story = await told(cut)
            assert [event.event_id for event in story.events] == ids, f"cut at {cut}"
            assert proxy.broken == 1
    assert whole > 1000
