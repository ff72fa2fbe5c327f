"""A server that no longer holds what follows, or is another: never a silence, never a mix."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.errors import (
    ConfigError,
    PositionLostError,
    RequestError,
    SourceChangedError,
    SourceUnavailableError,
)
from penstock.event import SystemEvent
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.copying import Copying
from penstock.sources.mysql.positions import MysqlPosition, Server, parse_position
from penstock.sources.mysql.scope import Scope
from tests.mysql.support import (
    Story,
    behind,
    binlogs,
    caught_up,
    completed,
    end_of,
    in_binlog,
    purge,
    run,
    source_of,
)
from tests.telling import follow
from tests_support.servers import MariaDbServer

Start = Callable[..., MariaDbServer]


async def begun(server: MariaDbServer, db: Connected) -> Story:
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
    run(db, "INSERT INTO d.a VALUES (2)", "RESET MASTER", "INSERT INTO d.a VALUES (3)")


def said_of(event: object) -> dict[str, Any]:
    assert isinstance(event, SystemEvent)
    found: dict[str, Any] = msgspec.json.decode(event.description)
    return found


@pytest.mark.parametrize("losing", [lose, reset])
async def test_a_lost_position_is_one_gap_and_stops_capture_until_somebody_decides(
    start_mariadb: Start, losing: Callable[[Connected], None]
) -> None:
    """A9, S7, invariant 4."""
    server = start_mariadb()
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


async def test_going_on_at_once_is_one_gap_too(start_mariadb: Start) -> None:
    server = start_mariadb()
    with server.connect() as db:
        story = await begun(server, db)
        lose(db)
        source = source_of(server, on_position_lost="gap")
        await caught_up(server, source, story)
        run(db, "INSERT INTO d.a VALUES (4)")
        await caught_up(server, source, story)
    assert [what for what, _ in story.said] == ["create", "gap"]
    assert [event.document_id for event in story.changes] == ["1", "4"]


async def test_a_lost_position_is_a_gap_and_a_copy_of_everything(start_mariadb: Start) -> None:
    """S7, invariant 4: also where it was halted at before."""
    server = start_mariadb()
    with server.connect() as db:
        halted = await begun(server, db)
        lose(db)
        direct = Story(halted.position)
        with pytest.raises(PositionLostError):
            await follow(source_of(server), halted, lambda _: False)
        for story, word in ((direct, "gap"), (halted, "gap_ended")):
            told = len(story.said)
            await follow(source_of(server, on_position_lost="snapshot"), story, completed)
            run(db, "INSERT INTO d.a VALUES (4)")
            await caught_up(server, source_of(server), story)
            said = [what for what, _ in story.said[told:]]
            assert said == [word, "snapshot_started", "snapshot_completed"]
            assert [event.document_id for event in story.changes if event.snapshot] == [
                "1",
                "2",
                "3",
            ]
            assert story.changes[-1].document_id == "4"
            run(db, "DELETE FROM d.a WHERE id = 4")


async def test_a_loss_during_a_copy_begins_another_one(start_mariadb: Start) -> None:
    """What was read before proves nothing of what is there: whatever the mode."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1), (2), (3)")
        options: dict[str, Any] = {"start": "snapshot", "snapshot_chunk_documents": 2}
        story = await follow(source_of(server, **options), Story(), lambda s: bool(s.changes))
        run(db, "FLUSH BINARY LOGS", "DELETE FROM d.a WHERE id = 1", "FLUSH BINARY LOGS")
        purge(db)
        for mode in ("halt", "gap", "snapshot"):
            lost, options = Story(story.position), {**options, "on_position_lost": mode}
            if mode == "halt":
                with pytest.raises(PositionLostError):
                    await follow(source_of(server, **options), lost, lambda _: False)
                assert lost.place.copying is not None
                assert lost.place.copying.anew, "even if it goes on where nothing is lost"
            options["on_position_lost"] = "gap" if mode == "halt" else mode
            await follow(source_of(server, **options), lost, completed)
            names = [said_of(e)["snapshot"] for e in lost.events if "snapshot_" in e.operation]
            first = said_of(story.events[0])["snapshot"]
            assert names == [names[0], names[0]] != [first, first]
            assert [event.document_id for event in lost.changes] == ["2", "3"]
            assert said_of(lost.events[-1])["whole"]


def test_a_position_that_is_moved_by_hand_begins_its_copy_anew() -> None:
    """As `Moves` has it."""
    scope, name = Scope(), ("d", "a")
    here = MysqlPosition(Server(1), "0-1-5", scope)
    copy = Copying(snapshot="s", pending=(name,), begun=1, announced=True, covers=(name,), copies=3)
    there = structs.replace(here, gtids="0-1-3", copying=copy, gap_said=True)
    source = MysqlSource("db", MysqlSourceConfig.model_validate({"user": "u"}))
    assert not source.is_copying(here.text())
    assert source.is_copying(there.text())
    assert not source.is_copying("nonsense")
    for position, before in ((there, None), (here, there), (there, here)):
        found = parse_position(
            source.moved(position.text(), before=None if before is None else before.text())
        )
        assert found.gtids == position.gtids
        assert not found.gap_said
        assert found.copying is not None
        assert (found.copying.anew, found.copying.covers) == (True, (name,))
    assert parse_position(source.moved(here.text(), before="nonsense")) == here
    with pytest.raises(RequestError, match="no position of a MySQL source"):
        source.moved("nonsense", before=None)


async def test_binlogs_that_are_purged_up_to_our_position_are_no_loss(
    start_mariadb: Start,
) -> None:
    server = start_mariadb()
    with server.connect() as db:
        story = await begun(server, db)
        run(db, "FLUSH BINARY LOGS")
        await follow(source_of(server), story, in_binlog(binlogs(db)[-1]))
        purge(db)
        run(db, "INSERT INTO d.a VALUES (2)")
        await caught_up(server, source_of(server), story)
    assert [event.document_id for event in story.changes] == ["1", "2"]


async def test_a_domain_that_was_purged_before_it_was_seen_is_a_loss(
    start_mariadb: Start,
) -> None:
    """S6: each domain for itself."""
    server = start_mariadb()
    with server.connect() as db:
        story = await begun(server, db)
        run(db, "SET SESSION gtid_domain_id = 7")
        run(db, "INSERT INTO d.a VALUES (2)", "FLUSH BINARY LOGS")
        purge(db)
        with pytest.raises(PositionLostError, match="7-1-1"):
            await follow(source_of(server), story, lambda _: False)


async def test_another_server_is_refused_and_nothing_is_mixed(start_mariadb: Start) -> None:
    """A10, S6."""
    one, two = start_mariadb(), start_mariadb(server_id=2)
    with one.connect() as db, two.connect() as other:
        story = await begun(one, db)
        run(other, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        for number in range(5):
            run(other, f"INSERT INTO d.a VALUES ({number})")
        told = len(story.items)
        for mode in ("halt", "gap"):
            with pytest.raises(SourceChangedError, match="nothing was mixed"):
                await follow(source_of(two, on_position_lost=mode), story, lambda _: False)
        assert len(story.items) == told


async def test_a_server_that_was_set_up_anew_is_told_even_when_its_numbers_have_passed_ours(
    start_mariadb: Start,
) -> None:
    """S6: the same address, server_id and domain, and transactions that are others."""
    server = start_mariadb()
    with server.connect() as db:
        story = await begun(server, db)
        run(db, "RESET MASTER", "DROP TABLE d.a", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)")
        for number in range(5):
            run(db, f"INSERT INTO d.a VALUES ({number}, 0)")
        with pytest.raises(PositionLostError, match="set up anew"):
            await follow(source_of(server), story, lambda _: False)
        await caught_up(server, source_of(server, on_position_lost="gap"), story)
    assert [what for what, _ in story.said] == ["create", "gap", "gap_ended"]
    assert len(story.changes) == 1


async def test_a_replica_that_takes_the_place_of_the_server_is_gone_on_from(
    start_mariadb: Start,
) -> None:
    """A10: a failover loses nothing and repeats nothing."""
    one, two = start_mariadb(), start_mariadb(server_id=2)
    with one.connect() as db, two.connect() as replica:
        run(
            replica,
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {one.port}, "
            f"MASTER_USER = 'root', MASTER_USE_GTID = slave_pos",
            "START SLAVE",
        )
        story = await begun(one, db)
        run(db, "INSERT INTO d.a VALUES (2)")
        ((done,),) = run(replica, f"SELECT MASTER_GTID_WAIT('{end_of(db)}', 60)")
        assert done == 0
        one.kill()
        run(replica, "STOP SLAVE", "INSERT INTO d.a VALUES (3)")
        await caught_up(two, source_of(two), story)
        run(replica, "INSERT INTO d.a VALUES (4)")
        await caught_up(two, source_of(two), story)
    assert [event.document_id for event in story.changes] == ["1", "2", "3", "4"]
    assert story.said == [("create", "a")]


async def test_a_position_of_another_kind_of_source_is_refused(start_mariadb: Start) -> None:
    """A9: what cannot be read never means to start now."""
    server = start_mariadb()
    for position in ("nonsense", "{}", '{"server":{"id":1},"gtids":"x","scope":{}}'):
        with pytest.raises(ConfigError, match="not a position of a MySQL source"):
            await follow(source_of(server), Story(position), lambda _: True)


async def test_a_server_that_is_away_is_waited_for(start_mariadb: Start) -> None:
    server = start_mariadb()
    server.stop()
    with pytest.raises(SourceUnavailableError, match="nothing listens at"):
        await follow(source_of(server), Story(), lambda _: True)


async def test_a_change_of_scope_is_said_and_changes_come_from_there_on(
    start_mariadb: Start,
) -> None:
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "CREATE TABLE d.b LIKE d.a", "INSERT INTO d.a VALUES (1)")
        story = await caught_up(server, source_of(server, start="beginning", include=["d.a"]))
        run(db, "INSERT INTO d.b VALUES (1)")
        await caught_up(server, source_of(server, include=["d.b"]), story)
    assert story.said == [("create", "a"), ("scope_changed", ""), ("gap", "a")]
    scoped = next(event for event in story.events if event.operation == "scope_changed")
    said = said_of(scoped)
    assert (said["added"], said["removed"]) == (["d.b"], ["d.a"])
    gap = next(event for event in story.events if event.operation == "gap")
    assert said_of(gap)["reason"] == "scope"
    assert [event.collection for event in story.changes] == ["a", "b"]


async def test_how_near_a_position_is_to_its_loss_is_told(start_mariadb: Start) -> None:
    """S8."""
    server = start_mariadb()
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
        assert len(binlogs(db)) == 1
