"""A server that has another history than the one that was read: never a silence (record 0039).

Numbers of transactions and names of binlogs come again; seconds do not, so tests wait for the next.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PositionLostError, SourceChangedError, SourceUnavailableError
from penstock.sources.mysql import MysqlSource
from penstock.sources.mysql.following import Following
from penstock.sources.mysql.positions import told
from penstock.sources.mysql.session import Session
from tests.mysql.conftest import on
from tests.mysql.histories import (
    copy_disk,
    insert,
    next_second,
    replicate,
    reset,
    restore_disk,
    table_in,
    wait_for_replica,
)
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
from tests.waiting import until, wait_until
from tests_support.servers import SqlServer

Start = Callable[..., SqlServer]


async def stands(server: SqlServer, *, start: str = "now") -> Story:
    """A story that stands where the server's binlogs end."""
    return await caught_up(server, source_of(server, start=start))


async def goes_on(server: SqlServer, story: Story) -> list[str]:
    """The rows that come from where it stands. Raises PositionLostError."""
    rows, said = len(story.changes), len(story.said)
    with server.connect() as db:
        there = behind(end_of(db))
    # The error of a loss comes behind its gap.
    await follow(source_of(server), story, lambda s: there(s) and ("gap", "") not in s.said[said:])
    return [change.document_id for change in story.changes[rows:]]


async def follows(source: MysqlSource, story: Story, *, gaps: int) -> None:
    """Read until so many gaps were said; again where the server ends the stream, as a service."""
    while story.said.count(("gap", "")) < gaps:
        with suppress(SourceUnavailableError):
            await follow(source, story, lambda s: s.said.count(("gap", "")) == gaps)


async def test_a_reset_is_told_where_no_row_was_read_yet(start: Start, kind: str) -> None:
    """As many transactions as there were, under the same numbers."""
    server = start()
    with server.connect() as db:
        table_in(db)
        reset(db, kind)
        insert(db, 1, 2)
        story = await stands(server)
        reset(db, kind)
        insert(db, 101, 102)
        assert end_of(db) == story.place.gtids or kind == "files"
        with pytest.raises(PositionLostError, match="set up anew"):
            await goes_on(server, story)


async def test_a_reset_is_told_where_the_binlog_of_ours_is_not_there_any_more(
    start: Start, kind: str
) -> None:
    server = start()
    with server.connect() as db:
        table_in(db)
        run(db, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        insert(db, 1)
        story = await stands(server, start="beginning")
        again = Story(story.position)
        reset(db, kind)
        insert(db, *range(100, 110))
        with pytest.raises(PositionLostError, match=r"no more, in which we stood|was reset"):
            await goes_on(server, story)
        # Nor where the numbers of files have passed ours, and no transaction is missing.
        reset(db, kind)
        for _ in range(3):
            run(db, "FLUSH BINARY LOGS")
        insert(db, 200, 201, 202)
        run(db, "FLUSH BINARY LOGS")
        purge(db)
        with pytest.raises(PositionLostError, match=r"no more, in which we stood|has purged"):
            await goes_on(server, again)


@on("mysql", "mariadb")
async def test_what_is_read_to_the_end_of_a_binlog_may_be_purged(start: Start, kind: str) -> None:
    """While it is captured: what proves the history is the newest binlog that it met."""
    server = start()
    with server.connect() as db:
        table_in(db)
        insert(db, 1)
        story = await stands(server, start="beginning")
        run(db, "FLUSH BINARY LOGS")
        await follow(source_of(server), story, in_binlog(binlogs(db)[-1]))
        purge(db)
        insert(db, 2)
        assert await goes_on(server, story) == ["2"]
        run(db, "FLUSH BINARY LOGS")
        purge(db)
        with pytest.raises(PositionLostError, match="no more, in which we stood"):
            await goes_on(server, story)


@pytest.mark.parametrize("begins", ["now", "beginning"])
async def test_an_older_disk_is_told_though_its_numbers_have_passed_ours(
    start: Start, tmp_path: Path, begins: str
) -> None:
    """S6: the same server_uuid, and binlogs that are ours up to the copy of the disk."""
    server = start()
    with server.connect() as db:
        table_in(db)
    copy_disk(server, tmp_path / "copy")
    with server.connect() as db:
        insert(db, 1, 2)
        story = await stands(server, start=begins)
    restore_disk(server, tmp_path / "copy")
    with server.connect() as db:
        next_second(db)
        insert(db, 101, 102, 103)
    with pytest.raises(PositionLostError):
        await goes_on(server, story)


@on("mariadb")
async def test_another_mariadb_of_the_same_numbers_is_refused(start: Start, kind: str) -> None:
    """A10, S6: server_id 1 and domain 0 are what each begins with."""
    one, two = start(), start()
    with one.connect() as db, two.connect() as other:
        table_in(db)
        insert(db, 1, 2)
        story = await stands(one)
        next_second(db)
        table_in(other)
        insert(other, *range(101, 110))
        with pytest.raises(SourceChangedError, match="at another time"):
            await goes_on(two, story)


@pytest.mark.parametrize("begins", ["now", "beginning"])
@on("mysql", "mariadb")
async def test_a_replica_takes_the_place_of_a_server(start: Start, kind: str, begins: str) -> None:
    """A10; also where no row was read yet. Where its binlogs prove nothing, that is told."""
    one, two = start(), start(server_id=2)
    with one.connect() as db, two.connect() as replica:
        replicate(db, replica, one, kind)
        table_in(db)
        # A replica's binlog has the second of its rows, and not that of its COMMIT.
        run(db, "BEGIN", "INSERT INTO d.a VALUES (1)")
        next_second(db)
        next_second(db)
        run(db, "COMMIT")
        story = await stands(one, start=begins)
        again = Story(story.position)
        wait_for_replica(db, replica)
        one.kill()
        run(replica, "STOP REPLICA" if kind == "mysql" else "STOP SLAVE")
        # Its binlogs are others, from the first restart on.
        assert [await goes_on(two, story), await goes_on(two, story)] == [[], []]
        insert(replica, 2)
        assert await goes_on(two, story) == ["2"]
        run(replica, "FLUSH BINARY LOGS")
        purge(replica)
        with pytest.raises(PositionLostError, match=r"has purged|would be proven"):
            await goes_on(two, again)


async def test_a_reset_is_told_while_capture_runs(start: Start, kind: str) -> None:
    """The server says with each heartbeat that it has nothing for us."""
    server = start()
    options = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 2.0}
    source = source_of(server, on_position_lost="gap", **options)
    with server.connect() as db:
        table_in(db)
        insert(db, 1, 2)
        story = await caught_up(server, source)
        # Behind our numbers, and beyond them.
        for gaps, rows in enumerate((range(100, 101), range(200, 220)), start=1):
            heard = len(story.items)
            following = asyncio.create_task(follows(source, story, gaps=gaps))
            # The second is a heartbeat's: the server sends by then.
            await until(lambda heard=heard: len(story.items) > heard + 1, task=following)  # type: ignore[misc]
            reset(db, kind)
            insert(db, *rows)
            await following
        insert(db, 300)
        assert await goes_on(server, story) == ["300"]


async def test_a_reset_is_told_between_the_look_at_a_server_and_its_stream(
    start: Start, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers pass ours before it begins to send."""
    server = start()
    with server.connect() as db, server.connect() as other:
        table_in(db)
        insert(db, 1)
        if kind != "files":  # the place would be in no file any more
            run(db, "FLUSH BINARY LOGS")
        insert(db, 2)
        story = await stands(server, start="beginning")
        session: Any = Session
        original, left = session._open, [other]

        def opened(*arguments: Any) -> None:
            while left:
                reset(left[0], kind)
                insert(left.pop(), *range(100, 120))
            original(*arguments)

        monkeypatch.setattr(session, "_open", opened)
        with pytest.raises((SourceUnavailableError, PositionLostError)):
            await follow(source_of(server), story, lambda s: len(s.changes) > 2)
        assert not left
        with pytest.raises(PositionLostError):
            await goes_on(server, story)
        assert [change.document_id for change in story.changes] == ["1", "2"]


@on("mysql", "mariadb")
async def test_a_replica_that_is_behind_is_waited_for(start: Start, kind: str) -> None:
    """What it has still to apply is ours: nothing is mixed, and nothing is to be decided."""
    one, two = start(), start(server_id=2)
    with one.connect() as db, two.connect() as replica:
        replicate(db, replica, one, kind)
        table_in(db)
        insert(db, 1)
        story = await stands(one, start="beginning")
        end = story.place.gtids
        wait_until(lambda: told(story.place.flavour, end_of(replica)).purged(end) is None)
        run(replica, "STOP REPLICA SQL_THREAD" if kind == "mysql" else "STOP SLAVE SQL_THREAD")
        insert(db, 2)
        await goes_on(one, story)
        with pytest.raises(SourceUnavailableError, match="a replica that does not have the trans"):
            await goes_on(two, story)
        one.kill()
        if kind == "mysql":  # a MariaDB throws away what it has to apply when both have stopped
            run(replica, "STOP REPLICA IO_THREAD")
        with pytest.raises(SourceUnavailableError, match="a replica that does not have the trans"):
            await goes_on(two, story)
        run(replica, "START REPLICA SQL_THREAD" if kind == "mysql" else "START SLAVE SQL_THREAD")
        behind_us = story.place.gtids
        wait_until(lambda: told(story.place.flavour, end_of(replica)).purged(behind_us) is None)
        run(replica, "INSERT INTO d.a VALUES (300)")
        assert await goes_on(two, story) == ["300"]


def test_what_a_server_has_is_overdue_where_it_does_not_come_for_too_long() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    following = Following(patience_seconds=10)

    def overdue(ours: int, theirs: int, now: float, place: int = 4) -> bool:
        return following.is_overdue(
            told("mysql", f"{uuid}:1-{ours}"),
            end=f"{uuid}:1-{theirs}",
            place=f"b.000001:{place}",
            now=now,
        )

    assert [overdue(5, 5, 0), overdue(5, 5, 60)] == [False, False]
    # It is on its way for a while, and then comes.
    assert [overdue(5, 6, 70), overdue(5, 7, 79)] == [False, False]
    assert [overdue(6, 9, 81), overdue(6, 12, 90)] == [False, False]
    # A server may skip for long what we have, and reads on meanwhile.
    assert [overdue(6, 12, 91, place=5), overdue(6, 12, 100, place=6)] == [False, False]
    assert not overdue(6, 12, 109, place=6)
    assert overdue(6, 12, 110, place=6)


@on("mariadb")
async def test_a_domain_that_was_deleted_lost_nothing(start: Start, kind: str) -> None:
    """FLUSH BINARY LOGS DELETE_DOMAIN_ID: once no binlog has it."""
    server = start()
    with server.connect() as db:
        table_in(db)
        run(db, "SET SESSION gtid_domain_id = 7")
        insert(db, 1)
        run(db, "SET SESSION gtid_domain_id = 0")
        insert(db, 2)
        story = await stands(server, start="beginning")
        run(db, "FLUSH BINARY LOGS")
        await follow(source_of(server), story, in_binlog(binlogs(db)[-1]))
        purge(db)
        run(db, "FLUSH BINARY LOGS DELETE_DOMAIN_ID = (7)")
        for number in (3, 4):
            insert(db, number)
            assert await goes_on(server, story) == [str(number)]
            run(db, "FLUSH BINARY LOGS")


def test_a_position_is_behind_what_a_server_has_more() -> None:
    for flavour, here, end in (
        ("mariadb", "0-1-5,1-1-2", "0-1-5,1-1-3"),
        ("mysql_files", "b.000002:400", "b.000003:4"),
    ):
        ours = told(flavour, here)  # type: ignore[arg-type]
        assert ours.is_behind(end)
        assert not ours.is_behind(here)
