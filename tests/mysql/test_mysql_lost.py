"""A MySQL that no longer holds what follows, or is another: never a silence, never a mix."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.errors import (
    ConfigError,
    PositionLostError,
    SourceChangedError,
    SourceUnavailableError,
)
from penstock.event import SystemEvent
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.positions import MysqlPosition, Server, begun_at, parse_position
from penstock.sources.mysql.scope import Scope
from tests.mysql.support import (
    Story,
    behind,
    binlogs,
    caught_up,
    end_of,
    in_binlog,
    purge,
    run,
    source_of,
)
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer

Start = Callable[..., MySqlServer]
RESET = "RESET BINARY LOGS AND GTIDS"


async def begun(server: MySqlServer, db: Connected) -> Story:
    """A story that stands behind one row of d.a."""
    run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
    run(db, "INSERT INTO d.a VALUES (1)")
    story = await caught_up(server, source_of(server, start="beginning"))
    assert len(story.changes) == 1
    return story


def lose(db: Connected) -> None:
    """Changes that are purged before anybody captured them."""
    run(db, "INSERT INTO d.a VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO d.a VALUES (3)")
    purge(db)


def reset(db: Connected) -> None:
    """All binlogs go, and their numbers begin anew."""
    run(db, "INSERT INTO d.a VALUES (2)", RESET, "INSERT INTO d.a VALUES (3)")


def said_of(event: object) -> dict[str, Any]:
    assert isinstance(event, SystemEvent)
    found: dict[str, Any] = msgspec.json.decode(event.description)
    return found


@pytest.mark.parametrize("losing", [lose, reset])
async def test_a_lost_position_is_one_gap_and_stops_capture_until_somebody_decides(
    start_mysql: Start, losing: Callable[[Connected], None]
) -> None:
    """A9, S7, invariant 4."""
    server = start_mysql()
    with server.connect() as db:
        story = await begun(server, db)
        stood = story.place.gtids
        losing(db)
        for _ in range(2):
            with pytest.raises(PositionLostError, match="the log has a gap entry"):
                await follow(source_of(server), story, lambda _: False)
        assert story.place.gtids == stood
        assert [what for what, _ in story.said] == ["create", "gap"]
        assert said_of(story.events[-1])["to"] is None
        end = end_of(db)
        await follow(source_of(server, on_position_lost="gap"), story, behind(end))
        assert [what for what, _ in story.said] == ["create", "gap", "gap_ended"]
        ended = said_of(story.events[-1])
        assert (ended["from"], ended["to"], ended["reason"]) == (stood, end, "purged")
        run(db, "INSERT INTO d.a VALUES (4)")
        await caught_up(server, source_of(server), story)
        assert [event.document_id for event in story.changes] == ["1", "4"]


async def test_binlogs_that_are_purged_up_to_our_position_are_no_loss(start_mysql: Start) -> None:
    """S7: purged is what was ours already."""
    server = start_mysql()
    with server.connect() as db:
        story = await begun(server, db)
        run(db, "FLUSH BINARY LOGS")
        await follow(source_of(server), story, in_binlog(binlogs(db)[-1]))
        purge(db)
        run(db, "INSERT INTO d.a VALUES (2)")
        await caught_up(server, source_of(server), story)
        assert [event.document_id for event in story.changes] == ["1", "2"]
        left = await caught_up(server, source_of(server, start="beginning"))
        assert [event.document_id for event in left.changes] == ["2"], "A29"


async def test_a_server_that_was_reset_is_told_even_when_its_numbers_have_passed_ours(
    start_mysql: Start,
) -> None:
    """S6: the same server_uuid, and transactions that are others under the same numbers."""
    server = start_mysql()
    with server.connect() as db:
        story = await begun(server, db)
        run(db, RESET, "DROP TABLE d.a", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)")
        for number in range(5):
            run(db, f"INSERT INTO d.a VALUES ({number}, 0)")
        with pytest.raises(PositionLostError, match="set up anew"):
            await follow(source_of(server), story, lambda _: False)
        await caught_up(server, source_of(server, on_position_lost="gap"), story)
    assert [what for what, _ in story.said] == ["create", "gap", "gap_ended"]
    assert len(story.changes) == 1


async def test_another_server_is_refused_and_nothing_is_mixed(
    start_mysql: Start, start_mariadb: Callable[..., MariaDbServer]
) -> None:
    """A10, S6: identity is server_uuid; and MariaDB's transactions are none of MySQL's."""
    one, two, three = start_mysql(), start_mysql(), start_mariadb()
    with one.connect() as db, two.connect() as other:
        story = await begun(one, db)
        run(other, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        told = len(story.items)
        for server in (two, three):
            for mode in ("halt", "gap"):
                with pytest.raises(SourceChangedError, match="nothing was mixed"):
                    await follow(source_of(server, on_position_lost=mode), story, lambda _: False)
        assert len(story.items) == told


async def test_a_replica_that_takes_the_place_of_the_server_is_gone_on_from(
    start_mysql: Start,
) -> None:
    """A10: a failover loses nothing and repeats nothing, though transactions of two servers were
    applied in another order there."""
    one, two = start_mysql(), start_mysql(server_id=2, options=["--replica-parallel-workers=4"])
    with one.connect() as db, two.connect() as replica:
        run(db, "CREATE USER r@'%'", "GRANT ALL ON *.* TO r@'%'")
        run(
            replica,
            "SET GLOBAL replica_preserve_commit_order = OFF",
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {one.port}, "
            f"SOURCE_USER = 'r', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
            "START REPLICA",
        )
        story = await begun(one, db)
        run(db, "INSERT INTO d.a VALUES (2)")
        ((late,),) = run(replica, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{end_of(db)}', 60)")
        assert late == 0
        one.kill()
        run(replica, "STOP REPLICA", "INSERT INTO d.a VALUES (3)")
        await caught_up(two, source_of(two), story)
        run(replica, "INSERT INTO d.a VALUES (4)")
        await caught_up(two, source_of(two), story)
    assert [event.document_id for event in story.changes] == ["1", "2", "3", "4"]
    assert story.said == [("create", "a")]
    assert len(story.place.gtids.split(",")) == 2


async def test_a_server_that_goes_is_waited_for_and_gone_on_from(start_mysql: Start) -> None:
    """kill -9 of the server: what it committed comes, once."""
    server = start_mysql()
    source = source_of(server, start="beginning")
    with server.connect() as db:
        story = await begun(server, db)
        run(db, "INSERT INTO d.a VALUES (2)")
        run(db, "XA START 'x'", "INSERT INTO d.a VALUES (9)", "XA END 'x'", "XA PREPARE 'x'")
    await follow(source, story, lambda story: len(story.changes) == 2)
    server.kill()
    with pytest.raises(SourceUnavailableError, match="from its durable position"):
        await follow(source, story, lambda _: False)
    server.restart()
    with server.connect() as db:
        run(db, "INSERT INTO d.a VALUES (3)", "XA COMMIT 'x'")
        await caught_up(server, source, story)
    assert [event.document_id for event in story.changes] == ["1", "2", "3", "9"]


async def test_how_near_a_position_is_to_its_loss_is_told(start_mysql: Start) -> None:
    """S8."""
    server = start_mysql()
    with server.connect() as db:
        story = await begun(server, db)
        source = source_of(server)
        assert story.position is not None
        assert await source.seconds_to_loss(story.position) is None, "nothing was purged ever"
        run(db, "FLUSH BINARY LOGS")
        purge(db)
        left = await source.seconds_to_loss(story.position)
        assert left is not None
        assert 0 <= left < 600
        lose(db)
        assert await source.seconds_to_loss(story.position) == 0


def test_positions_of_mariadb_are_what_they_were_and_those_of_mysql_say_what_they_are() -> None:
    """An older version refuses what it would misread, and reads what it wrote."""
    mariadb = MysqlPosition(Server(1), "0-1-5", Scope())
    assert json.loads(mariadb.text()) == {"server": {"id": 1}, "gtids": "0-1-5", "scope": {}}
    assert parse_position('{"server":{"id":1},"gtids":"0-1-5","scope":{}}') == mariadb
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    mysql = begun_at(Server(1, uuid), f"{uuid}:1-5", Scope(), "mysql")
    assert json.loads(mysql.text())["v"] == 2
    assert parse_position(mysql.text()) == mysql
    for wrong in (mysql.text().replace('"v":2', '"v":3'), mysql.text().replace(',"v":2', "")):
        with pytest.raises(ConfigError, match="nothing was captured"):
            parse_position(wrong)
