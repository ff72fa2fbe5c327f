"""What is MySQL's own: its transactions and GTIDs, and what MariaDB's binlogs do not have."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest

from penstock.errors import UndecodableError
from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from penstock.sources.mysql.session import Session
from penstock.sources.mysql.stream import drawn_server_id
from tests.mysql.support import Story, caught_up, config_of, run, source_of
from tests.telling import follow
from tests_support.servers import MySqlServer

Start = Callable[..., MySqlServer]


async def begun(server: MySqlServer, database: str, **options: Any) -> tuple[Any, Story]:
    """A source that captures `database` from now on."""
    source = source_of(server, include=[f"{database}.*"], **options)
    return source, await follow(source, Story(), lambda _: True)


def documents(story: Story) -> list[Any]:
    """The documents after each change; None of a delete."""
    return [
        None if event.full_document is None else msgspec.json.decode(event.full_document)
        for event in story.changes
    ]


async def test_a_change_is_told_with_its_images_and_the_moment_of_its_commit(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A19: in milliseconds, as the server's GTID event has it."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, total INT)")
        ((before,),) = run(db, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)")
        run(db, "INSERT INTO orders VALUES (18446744073709551615, 30)")
        run(db, "UPDATE orders SET total = 31", "DELETE FROM orders")
        ((after,),) = run(db, "SELECT CEIL(UNIX_TIMESTAMP(NOW(6)) * 1000)")
    await caught_up(mysql, source, story)
    assert story.said == [("create", "orders")]
    one, two, three = story.changes
    assert [event.operation.value for event in story.changes] == ["insert", "replace", "delete"]
    assert bytes(one.key) == b'{"id":18446744073709551615}'
    assert bytes(one.full_document or b"") == b'{"id":18446744073709551615,"total":30}'
    assert bytes(two.full_document_before_change or b"") == bytes(one.full_document or b"")
    assert three.full_document is None
    assert before <= one.timestamp <= two.timestamp <= three.timestamp <= after
    assert len({event.transaction for event in story.changes}) == 3
    assert re.fullmatch(r"[0-9a-f-]{36}:\d+:0", one.position)


async def test_statements_come_in_their_place_and_a_table_made_of_rows_is_one_transaction(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A16: CREATE TABLE ... SELECT has the rows and the table under one GTID."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, n INT)",
            "INSERT INTO a VALUES (1, 1), (2, 2)",
            "CREATE TABLE b SELECT id, n FROM a",
            "CREATE TABLE a_new LIKE a",
            "ALTER TABLE a_new ADD COLUMN f INT FIRST",
            "INSERT INTO a_new SELECT 0, id, n FROM a",
            "RENAME TABLE a TO a_old, a_new TO a",
            "DROP TABLE a_old, b",
            "CREATE TABLE c (id INT PRIMARY KEY)",
            "INSERT INTO c VALUES (1)",
            "TRUNCATE c",
            "CREATE TEMPORARY TABLE t (id INT)",
            "INSERT INTO t VALUES (1)",
            "DROP TEMPORARY TABLE t",
        )
    await caught_up(mysql, source, story)
    assert story.rows() == {
        f"{mysql_database}.a": {
            '{"id":1}': {"f": 0, "id": 1, "n": 1},
            '{"id":2}': {"f": 0, "id": 2, "n": 2},
        }
    }
    made = next(
        item for item in story.items if {event.collection for event in item.events} == {"b"}
    )
    assert made.events[0].operation == "create"
    assert len(changes_of(made)) == 2
    assert len({event.transaction for event in made.events}) == 1


def changes_of(item: Commit | Fragment) -> list[ChangeEvent]:
    """Without what is said of tables beside them."""
    return [event for event in item.events if isinstance(event, ChangeEvent)]


async def test_compressed_transactions_are_told_whole(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1: binlog_transaction_compression."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, t LONGTEXT)", "CREATE TABLE b LIKE a")
        run(db, "SET binlog_transaction_compression = ON")
        run(db, "INSERT INTO a VALUES (1, REPEAT('x', 10000)), (2, 'y')", "DELETE FROM a")
        run(db, "INSERT INTO b VALUES (1, 'z')", "COMMIT")
        run(db, "INSERT INTO b VALUES (2, 'z')", "COMMIT")
    await caught_up(mysql, source, story)
    first, second = [changes_of(item) for item in story.items if changes_of(item)]
    assert [event.collection for event in first] == ["a", "a", "a", "a", "b"]
    assert [event.collection for event in second] == ["b"]
    assert len(documents(story)[0]["t"]) == 10000


async def test_a_large_compressed_transaction_comes_in_fragments_made_as_they_are_taken(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1, S14: a few kilobytes may be hundreds of megabytes."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, t LONGTEXT)")
        run(db, "SET binlog_transaction_compression = ON")
        for _ in range(10):
            run(db, "INSERT INTO a (t) VALUES (REPEAT('x', 5000000)), (REPEAT('y', 5000000))")
        run(db, "COMMIT")
    await caught_up(mysql, source, story)
    kinds = "".join("F" if isinstance(item, Fragment) else "C" for item in story.items)
    assert re.fullmatch("C+F{8,}C+", kinds)
    assert len(story.changes) == 20
    assert len({event.transaction for event in story.changes}) == 1


def test_of_a_large_compressed_transaction_one_fragment_is_made_at_a_time(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S14: what is not asked for is not unpacked."""
    config = config_of(mysql, include=[f"{mysql_database}.*"])
    session = Session("db", config, server_id=drawn_server_id(), undone={})
    session.begin(None)
    with mysql.connect(database=mysql_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, t LONGTEXT)")
        run(db, "SET binlog_transaction_compression = ON")
        for _ in range(4):
            run(db, "INSERT INTO a (t) VALUES (REPEAT('x', 9000000)), (REPEAT('y', 9000000))")
        run(db, "COMMIT")
    made = list[int]()
    while sum(made) < 8:
        step = session.step()
        assert step.error is None
        made.append(sum(isinstance(item, Fragment) for item in step.items))
    session.close()
    assert max(made) == 1


async def test_an_xa_transaction_is_told_at_its_commit_and_one_that_is_rolled_back_never(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1: with all that was committed between its prepare and its commit before it."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
        for xid, row in (("'x','y',7", 1), ("'gone'", 2), ("'late'", 3)):
            run(db, f"XA START {xid}", f"INSERT INTO a VALUES ({row})", f"XA END {xid}")
            run(db, f"XA PREPARE {xid}")
            db.close()
            db.connect()
        run(db, "INSERT INTO a VALUES (4)", "XA COMMIT 'x','y',7", "XA ROLLBACK 'gone'")
        run(db, "XA START 'one'", "INSERT INTO a VALUES (5)", "XA END 'one'")
        run(db, "XA COMMIT 'one' ONE PHASE", "INSERT INTO a VALUES (6)")
        await caught_up_but(mysql, source, story, 4)
        assert [event.document_id for event in story.changes] == ["4", "1", "5", "6"]
        again = Story(story.position)
        run(db, "XA COMMIT 'late'", "INSERT INTO a VALUES (7)")
    # Another session, which reads again what was prepared before its position.
    await caught_up(mysql, source, again)
    assert [event.document_id for event in again.changes] == ["3", "7"]
    assert ":" in str(again.changes[0].transaction)
    assert again.place.told().unknown(again.place.gtids) is None
    whole = await caught_up(mysql, source, Story(story.items[0].position))  # type: ignore[union-attr]
    ids = [event.event_id for event in story.events + again.events]
    assert [event.event_id for event in whole.events] == ids


async def caught_up_but(server: MySqlServer, source: Any, story: Story, changes: int) -> Story:
    """What the source says up to so many changes: what is prepared keeps it from all."""
    return await follow(
        source, story, lambda story: len(story.changes) >= changes and bool(story.position)
    )


async def test_what_was_prepared_before_the_beginning_is_a_gap_when_it_is_committed(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """Invariant 4: its rows are committed after our position, and cannot be read behind it."""
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
        run(db, "XA START 'x'", "INSERT INTO a VALUES (1)", "XA END 'x'", "XA PREPARE 'x'")
        db.close()
        db.connect()
        source, story = await begun(mysql, mysql_database)
        run(db, "XA COMMIT 'x'", "INSERT INTO a VALUES (2)")
    await caught_up(mysql, source, story)
    assert story.said == [("gap", "")]
    (gap,) = [event for event in story.events if isinstance(event, SystemEvent)]
    assert msgspec.json.decode(gap.description)["reason"] == "xa_prepared_before"
    assert [event.document_id for event in story.changes] == ["2"]


async def test_tagged_transactions_are_resumed_exactly(start_mysql: Start) -> None:
    """S6, invariant 2: `uuid:tag:1-3`."""
    server = start_mysql()
    source = source_of(server, start="beginning")
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        for number in range(6):
            tag = ("", ":one", ":two")[number % 3]
            run(db, f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO d.a VALUES ({number})")
        run(db, "SET gtid_next = 'AUTOMATIC'")
        ((uuid, executed),) = run(db, "SELECT @@server_uuid, @@gtid_executed")
        story = await caught_up(server, source)
    assert story.place.gtids == "".join(executed.split())
    assert executed == f"{uuid}:1-4:one:1-2:two:1-2"
    assert [row["id"] for row in documents(story)] == list(range(6))
    ids = [event.event_id for event in story.events]
    for item in [item for item in story.items if item.events]:
        assert isinstance(item, Commit)
        again = await caught_up(server, source, Story(item.position))
        assert [event.event_id for event in again.events] == ids[len(ids) - len(again.events) :]


JSON_BEFORE = (
    '{"a": [1, 2, {"deep": true}], "long": "' + "x" * 300 + '", "n": 1.5, "q k": {"y": null}}'
)


async def test_json_of_which_only_the_change_is_logged_is_told_whole(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1, A28: binlog_row_value_options = PARTIAL_JSON."""
    source, story = await begun(mysql, mysql_database)
    changes = [
        "JSON_SET(j, '$.a[1]', 7)",
        "JSON_REPLACE(j, '$.\"q k\".y', 'new', '$.n', CAST(1.25 AS DECIMAL(5, 2)))",
        "JSON_REMOVE(j, '$.a[0]', '$.n')",
        "JSON_SET(j, '$.aa', 1, '$.b', '2', '$.a[5]', 'last')",
        "JSON_ARRAY_INSERT(j, '$.a[0]', 'first')",
        "JSON_SET(j, '$.a[2].deep', JSON_OBJECT('x', 1))",
    ]
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, i JSON, t TEXT, j JSON, k INT)")
        run(db, f"INSERT INTO a VALUES (1, '[1]', 't', '{JSON_BEFORE}', 0), (2, NULL, '', NULL, 0)")
        run(db, "SET binlog_row_value_options = 'PARTIAL_JSON'")
        expected: list[Any] = []
        for change in changes:
            run(db, f"UPDATE a SET k = k + 1, j = {change}")
            ((text,),) = run(db, "SELECT j FROM a WHERE id = 1")
            expected.append(msgspec.json.decode(text))
        run(db, "SET binlog_row_value_options = ''", "UPDATE a SET k = 0")
        events = run(db, "SHOW BINLOG EVENTS IN '" + run(db, "SHOW BINARY LOGS")[-1][0] + "'")
    assert {row[2] for row in events} >= {"Update_rows_partial"}
    await caught_up(mysql, source, story)
    told = [plain(row["j"]) for row in documents(story)[2:] if row["id"] == 1]
    assert told == [*expected, expected[-1]]
    # Byte for byte what the server has before the next change: its order of members too.
    for which in "12":
        row = [event for event in story.changes if event.document_id == which]
        for one, two in pairwise(row):
            assert bytes(one.full_document or b"") == bytes(two.full_document_before_change or b"")


def plain(value: object) -> Any:
    """A document with decimals as the numbers that the server shows."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if "$numberDecimal" in members:
            return float(members["$numberDecimal"])
        return {name: plain(one) for name, one in members.items()}
    return [plain(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


async def test_rows_that_a_foreign_key_changes_are_told(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """From 9.6 on, the server logs them (innodb_native_foreign_keys is OFF)."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE n (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)",
            "INSERT INTO p VALUES (1), (2)",
            "INSERT INTO c VALUES (1, 1), (2, 1), (3, 2)",
            "INSERT INTO n VALUES (1, 1), (2, 2)",
            "DELETE FROM p WHERE id = 1",
            "UPDATE p SET id = 5 WHERE id = 2 AND NOT EXISTS (SELECT 1 FROM n WHERE p = 2)",
        )
    await caught_up(mysql, source, story)
    rows = story.rows()
    assert rows == {
        f"{mysql_database}.p": {'{"id":2}': {"id": 2}},
        f"{mysql_database}.c": {'{"id":3}': {"id": 3, "p": 2}},
        f"{mysql_database}.n": {'{"id":1}': {"id": 1, "p": None}, '{"id":2}': {"id": 2, "p": 2}},
    }


async def test_a_column_that_is_invisible_is_told_and_a_computed_one_is_not(
    mysql: MySqlServer, mysql_database: str
) -> None:
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, v INT AS (id * 2) VIRTUAL, "
            "s INT AS (id * 3) STORED, i INT INVISIBLE DEFAULT 9, KEY ((id + 1)))",
            "INSERT INTO a (id) VALUES (1)",
            "SET sql_generate_invisible_primary_key = ON",
            "CREATE TABLE g (n INT)",
            "INSERT INTO g VALUES (3)",
        )
    await caught_up(mysql, source, story)
    assert documents(story) == [{"id": 1, "s": 3, "i": 9}, {"my_row_id": 1, "n": 3}]
    assert bytes(story.changes[1].key) == b'{"my_row_id":1}'


async def test_rules_of_columns_are_of_whole_values_of_json_that_is_changed_in_part(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A26: what changed is found in the value as it is, and nothing of it is told before the
    rules; a column that is left out is not even read."""
    names = {name: f"{mysql_database}.a.{name}" for name in ("h", "m", "x")}
    columns = {
        "hash": [names["h"]],
        "hash_salt": "a salt of many characters",
        "mask": {names["m"]: "***"},
        "exclude": [names["x"]],
    }
    source, story = await begun(mysql, mysql_database, columns=columns)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, h JSON, m JSON, x JSON, j JSON)")
        wrapper = """'{"$oid": "1", "k": 1}'"""
        run(db, f"INSERT INTO a VALUES (1, '{JSON_BEFORE}', '{JSON_BEFORE}', {wrapper}, '[1]')")
        run(db, "SET binlog_row_value_options = 'PARTIAL_JSON'")
        run(db, "UPDATE a SET h = JSON_SET(h, '$.a[1]', 7), m = JSON_SET(m, '$.a[1]', 7), j = '2'")
        run(db, "UPDATE a SET j = '3'", "UPDATE a SET h = '[1]', m = '[1]', x = '[1]', j = '4'")
        run(db, "SET binlog_row_value_options = ''", "UPDATE a SET j = '5'")
    await caught_up(mysql, source, story)
    one, two, three, four, five = documents(story)
    assert [row["m"] for row in (one, two, three, four, five)] == ["***"] * 5
    assert len({one["h"], two["h"], four["h"]}) == 3
    assert (two["h"], four["h"]) == (three["h"], five["h"]), "put together, and whole"
    for event, before in zip(story.changes[1:], documents(story), strict=False):
        assert msgspec.json.decode(event.full_document_before_change or b"") == before
    assert "x" not in one


async def test_where_a_change_comes_from_is_told(mysql: MySqlServer, mysql_database: str) -> None:
    """The binlog, the session and the statement; of an XA transaction, of who wrote it."""
    source, story = await begun(mysql, mysql_database)
    with mysql.connect(database=mysql_database) as db, mysql.connect() as other:
        ((thread,),) = run(db, "SELECT CONNECTION_ID()")
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "SET binlog_rows_query_log_events = ON")
        run(db, "INSERT INTO a VALUES (1), (2)", "SET binlog_transaction_compression = ON")
        run(db, "INSERT INTO a VALUES (3)")
        run(db, "XA START 'x'", "INSERT INTO a VALUES (4)", "XA END 'x'", "XA PREPARE 'x'")
        run(other, "XA COMMIT 'x'")
    await caught_up(mysql, source, story)
    origins = [msgspec.json.decode(event.origin or b"") for event in story.changes]
    assert {origin["thread"] for origin in origins} == {thread}
    assert all(origin["file"].startswith("mysql-bin.") for origin in origins)
    assert [origin.get("statement") for origin in origins] == [
        "INSERT INTO a VALUES (1), (2)",
        None,
        "INSERT INTO a VALUES (3)",
        "INSERT INTO a VALUES (4)",
    ]
    assert origins[1]["statementAt"] == 0


async def test_rows_that_lack_columns_are_told_where_their_statement_is_in_the_binlog(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S1: MINIMAL images, by binlog_rows_query_log_events; a REPLACE gives defaults that it does
    not log, and stops capture."""
    source, story = await begun(mysql, mysql_database, on_partial_rows="decode")
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT DEFAULT 7, t TEXT, j JSON)")
        run(db, "INSERT INTO a VALUES (1, 1, 'x', '[1]')", "SET binlog_row_image = 'MINIMAL'")
        run(db, "SET binlog_rows_query_log_events = ON", "UPDATE a SET t = 'y'")
        run(db, "DELETE FROM a", "SET binlog_rows_query_log_events = OFF")
        await caught_up(mysql, source, story)
        told = [(event.operation.value, event.document_id) for event in story.changes]
        assert told == [("insert", "1"), ("update", "1"), ("delete", "1")]
        assert documents(story)[1] == {"id": 1, "t": "y"}
        assert set(story.changes[1].unchanged) == {"n", "j"}
        run(db, "SET binlog_row_image = 'FULL'", "INSERT INTO a VALUES (2, 1, 'x', NULL)")
        run(db, "SET binlog_row_image = 'MINIMAL'", "UPDATE a SET t = 'y'")
    with pytest.raises(UndecodableError, match="binlog_rows_query_log_events"):
        await follow(source, story, lambda _: False)
