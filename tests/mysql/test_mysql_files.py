"""A MySQL without GTIDs: a position is a binlog's file and a place in it."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import (
    PositionLostError,
    SourceChangedError,
    SourceUnavailableError,
)
from penstock.event import Commit
from tests.mysql.support import Story, caught_up, purge, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer

Start = Callable[..., MySqlServer]
OFF = ("--gtid-mode=OFF",)


async def begun(server: MySqlServer) -> tuple[Any, Story]:
    """A story that stands behind two rows of d.a."""
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1)", "INSERT INTO d.a VALUES (2)")
    source = source_of(server, start="beginning")
    return source, await caught_up(server, source)


def told(story: Story) -> list[str]:
    return [event.document_id for event in story.changes]


@pytest.mark.parametrize("mode", ["OFF", "ON_PERMISSIVE"])
async def test_from_any_position_exactly_the_rest_comes_the_same_as_before(
    start_mysql: Start, mode: str
) -> None:
    """S5, invariant 2: over files, kill -9 of the server, and GTIDs that are switched on."""
    server = start_mysql(options=OFF)
    if mode != "OFF":
        with server.connect() as db:
            run(
                db,
                "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
            )
            run(db, f"SET GLOBAL gtid_mode = {mode}")
    source, story = await begun(server)
    with server.connect() as db:
        run(db, "SET binlog_transaction_compression = ON", "FLUSH BINARY LOGS", "BEGIN")
        run(db, "INSERT INTO d.a VALUES (3), (4)", "INSERT INTO d.a VALUES (5)", "COMMIT")
    await caught_up(server, source, story)
    server.kill()
    with pytest.raises(SourceUnavailableError):
        await follow(source, story, lambda _: False)
    server.restart()
    with server.connect() as db:
        if mode != "OFF":
            run(db, "SET GLOBAL gtid_mode = OFF_PERMISSIVE", f"SET GLOBAL gtid_mode = {mode}")
        run(db, "INSERT INTO d.a VALUES (6)")
        await caught_up(server, source, story)
        assert told(story) == ["1", "2", "3", "4", "5", "6"]
        ids = [event.event_id for event in story.events]
        assert len(set(ids)) == len(ids)
        for item in [item for item in story.items if item.events]:
            assert isinstance(item, Commit)
            again = Story(item.position)
            rest = ids[ids.index(item.events[-1].event_id) + 1 :]
            await follow(source, again, lambda story, rest=rest: len(story.events) >= len(rest))  # type: ignore[misc]
            assert [event.event_id for event in again.events] == rest
        # Once all that has no GTID is behind us.
        for step in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            run(db, f"SET GLOBAL gtid_mode = {step}")
        run(db, "INSERT INTO d.a VALUES (7)")
        await follow(source, story, lambda story: len(story.changes) == 7)
    assert len({event.event_id for event in story.events}) == len(story.events)


async def test_files_that_are_purged_or_reset_are_a_lost_position(start_mysql: Start) -> None:
    """S7: and files that were read to their end are not needed any more."""
    server = start_mysql(options=OFF)
    source, story = await begun(server)
    with server.connect() as db:
        run(db, "FLUSH BINARY LOGS")
        await caught_up(server, source, story)
        purge(db)
        run(db, "INSERT INTO d.a VALUES (3)")
        await caught_up(server, source, story)
        assert told(story) == ["1", "2", "3"]
        run(db, "INSERT INTO d.a VALUES (4)", "FLUSH BINARY LOGS")
        purge(db)
        with pytest.raises(PositionLostError, match="has purged"):
            await follow(source, story, lambda _: False)
        await caught_up(server, source_of(server, on_position_lost="gap"), story)
        assert story.said[-2:] == [("gap", ""), ("gap_ended", "")]
        run(db, "RESET BINARY LOGS AND GTIDS", "INSERT INTO d.a VALUES (5)")
        with pytest.raises(PositionLostError, match="was reset"):
            await follow(source, story, lambda _: False)
        assert told(story) == ["1", "2", "3"]


async def test_a_file_that_is_another_under_the_same_name_is_a_lost_position(
    start_mysql: Start,
) -> None:
    """S6: its transaction is not that of the same moment."""
    server = start_mysql(options=OFF)
    source, story = await begun(server)
    with server.connect() as db:
        run(db, "RESET BINARY LOGS AND GTIDS")
        for number in range(3, 20):
            run(db, f"INSERT INTO d.a VALUES ({number})")
    with pytest.raises(PositionLostError, match="set up anew"):
        await follow(source, story, lambda _: False)


async def test_no_other_server_is_gone_on_from(start_mysql: Start) -> None:
    """A10."""
    one, two = start_mysql(options=OFF), start_mysql(options=OFF)
    _, story = await begun(one)
    await begun(two)
    with pytest.raises(SourceChangedError, match="nothing was mixed"):
        await follow(source_of(two), story, lambda _: False)
