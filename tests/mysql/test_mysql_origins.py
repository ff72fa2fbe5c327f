"""What a change of a MySQL says of where it comes from: within a payload and an XA branch, too."""

from typing import Any

import pytest

from penstock.sources.mysql import MysqlSource
from tests.mysql.support import Story, caught_up, run, source_of
from tests.mysql.test_on_mysql import begun, caught_up_but
from tests.mysql.test_origins import origin
from tests.telling import follow
from tests_support.servers import MySqlServer

TEXTS = "SET SESSION binlog_rows_query_log_events = ON"
NO_TEXTS = "SET SESSION binlog_rows_query_log_events = OFF"
Listed = dict[tuple[str, int], str]


def listed(server: MySqlServer) -> Listed:
    """The server's own list of its events: their types, by file and place."""
    with server.connect(charset="latin1") as db:  # any bytes of a statement are text
        return {
            (str(name), int(at)): str(kind)
            for (file, *_) in run(db, "SHOW BINARY LOGS")
            for name, at, kind, *_ in run(db, f"SHOW BINLOG EVENTS IN '{file}'")
        }


def kinds(story: Story, there: Listed) -> list[str]:
    """The types of the events in which the changes say that they are."""
    said = [origin(event) for event in story.changes]
    return [there[one["file"], one["offset"]] for one in said]


async def test_a_row_says_its_place_its_session_and_its_statement(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A26: BEGIN says the session and its character set, ROWS_QUERY the text."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database, charset="latin1") as db:
        run(
            db,
            TEXTS,
            "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)",
            "BEGIN",
            "INSERT INTO a VALUES (1, 'é'), (2, '')",
            NO_TEXTS,
            "DELETE FROM a WHERE id = 2",
            TEXTS,
            "UPDATE a SET id = 3",
            "COMMIT",
        )
        ((thread,),) = run(db, "SELECT CONNECTION_ID()")
        there = listed(mysql)
    await caught_up(mysql, source, story)
    said = [origin(event) for event in story.changes]
    assert [one.get("statement") for one in said] == [
        "INSERT INTO a VALUES (1, 'é'), (2, '')",
        *(None, None, "UPDATE a SET id = 3", None),
    ]
    assert [one.get("statementAt") for one in said] == [None, 0, None, None, 3]
    assert {one["thread"] for one in said} == {thread}
    assert kinds(story, there) == [
        *("Write_rows", "Write_rows", "Delete_rows", "Update_rows", "Update_rows")
    ]
    assert (said[3]["movedTo"], said[4]["movedFrom"]) == ({"id": 3}, {"id": 1})
    create = origin(story.events[0])
    assert (create["thread"], there[create["file"], create["offset"]]) == (thread, "Query")


async def test_a_row_of_a_compressed_transaction_is_where_that_begins_and_keeps_the_rest(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1, A26: what is compressed has no place of its own."""
    source, story = await begun(mysql, mysql_database, actor=r"by (\w+)")
    with mysql.connect(database=mysql_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", TEXTS)
        run(db, "SET SESSION binlog_transaction_compression = ON")
        run(db, "INSERT INTO a VALUES (1) /* by anna */", "DELETE FROM a /* by bert */", "COMMIT")
        ((thread,),) = run(db, "SELECT CONNECTION_ID()")
        there = listed(mysql)
    await caught_up(mysql, source, story)
    said = [origin(event) for event in story.changes]
    assert [(one["thread"], one["actor"], one["statement"]) for one in said] == [
        (thread, "anna", "INSERT INTO a VALUES (1) /* by anna */"),
        (thread, "bert", "DELETE FROM a /* by bert */"),
    ]
    assert kinds(story, there) == ["Gtid", "Gtid"]
    assert "Transaction_payload" in there.values()


async def test_a_row_of_an_xa_transaction_is_where_and_by_whom_it_was_prepared(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A26: its commit is in another binlog, and of another session; also when it is read again."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)", TEXTS)
        run(db, "XA START 'x'", "INSERT INTO a VALUES (1, 'x'), (2, 'y')", "DELETE FROM a LIMIT 1")
        ((thread,),) = run(db, "SELECT CONNECTION_ID()")
        run(db, "XA END 'x'", "XA PREPARE 'x'")
        db.close()
        db.connect()
        await caught_up_but(mysql, source, story, 0)
        run(db, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (9, '')")
        await caught_up_but(mysql, source, story, 1)
        again = Story(story.position)
        run(db, "XA COMMIT 'x'")
        there = listed(mysql)
    await caught_up(mysql, source, story)
    rows = story.changes[1:]
    assert [event.operation.value for event in rows] == ["insert", "insert", "delete"]
    said = [origin(event) for event in rows]
    assert [one.get("statement") for one in said] == [
        "INSERT INTO a VALUES (1, 'x'), (2, 'y')",
        *(None, "DELETE FROM a LIMIT 1"),
    ]
    assert {one["thread"] for one in said} == {thread}
    assert kinds(story, there)[1:] == ["Write_rows", "Write_rows", "Delete_rows"]
    assert said[0]["file"] != origin(story.changes[0])["file"] == story.place.file
    await caught_up(mysql, source, again)
    assert [(one.event_id, one.origin) for one in again.changes] == [
        (one.event_id, one.origin) for one in rows
    ]


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_statement_is_not_of_the_rows_behind_its_end(
    mysql: MySqlServer, mysql_database: str, prepared: bool
) -> None:
    """A26: also where its own rows are captured by nobody."""
    source = source_of(mysql, include=[f"{mysql_database}.a"])
    start, *ends = ("XA START 'x'", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    if not prepared:
        start, *ends = ("BEGIN", "COMMIT")
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE x LIKE a", TEXTS, start)
        run(db, "INSERT INTO x VALUES (1)", NO_TEXTS, "INSERT INTO a VALUES (1)", *ends)
    await caught_up(mysql, source, story)
    (row,) = story.changes
    assert not {"statement", "statementAt"} & origin(row).keys()


async def test_statements_that_hide_values_hide_those_of_xa_too(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A26: an XA transaction's name is an application's own, as values are."""
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
        run(db, "XA START 'secret'", "INSERT INTO a VALUES (1)", "XA END 'secret'")
        run(db, "XA PREPARE 'secret'")
        db.close()
        db.connect()
        told: dict[str, Story] = {}
        sources: dict[str, MysqlSource] = {}
        for mode in ("full", "redacted", "off"):
            sources[mode], told[mode] = await begun(mysql, mysql_database, statements=mode)
        run(db, "XA COMMIT 'secret'")
        for mode, story in told.items():
            await caught_up(mysql, sources[mode], story)
            said = str([vars_of(event) for event in story.events])
            assert ("736563726574" in said) == (mode == "full")
            assert ("XA COMMIT" in said) == (mode != "off")


def vars_of(event: Any) -> tuple[bytes, bytes]:
    return bytes(event.description), bytes(event.origin or b"")
