"""What a server's changes are in the log's words."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from pymysql.err import IntegrityError

from penstock.errors import ConfigError, SourceUnavailableError, UndecodableError
from penstock.event import ChangeEvent, Commit, Fragment, Operation, SchemaEvent, SystemEvent
from tests.mysql.support import Story, behind, caught_up, end_of, purge, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer


async def begun(server: MariaDbServer, database: str, **options: Any) -> tuple[Any, Story]:
    """A source that captures `database` from now on."""
    source = source_of(server, include=[f"{database}.*"], **options)
    return source, await follow(source, Story(), lambda _: True)


async def test_a_change_is_told_with_its_images_its_key_and_its_transaction(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INT)",
            "INSERT INTO orders VALUES (1, 30)",
            "UPDATE orders SET total = 31",
            "DELETE FROM orders",
        )
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "orders")]
    one, two, three = story.changes
    assert [event.operation for event in story.changes] == [
        Operation.INSERT,
        Operation.REPLACE,
        Operation.DELETE,
    ]
    assert (one.source, one.database, one.tenant) == ("db", mariadb_database, mariadb_database)
    assert (one.collection, one.document_id, bytes(one.key)) == ("orders", "1", b'{"id":1}')
    assert bytes(one.full_document or b"") == b'{"id":1,"total":30}'
    assert one.full_document_before_change is None
    assert bytes(two.full_document_before_change or b"") == bytes(one.full_document or b"")
    assert two.full_document_as_of_event
    assert three.full_document is None
    assert bytes(three.full_document_before_change or b"") == bytes(two.full_document or b"")
    assert len({event.transaction for event in story.changes}) == 3
    assert one.transaction is not None
    assert one.position == f"{one.transaction}:0"


async def test_a_database_of_which_nothing_is_captured_is_dropped_untold(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source, story = await begun(mariadb, mariadb_database)
    other = f"{mariadb_database}_other"
    with mariadb.connect() as db:
        run(
            db,
            f"CREATE DATABASE {other}",
            f"CREATE OR REPLACE DATABASE {other}",
            f"DROP DATABASE {other}",
            f"DROP DATABASE IF EXISTS {mariadb_database}",
            f"CREATE DATABASE {mariadb_database}",
        )
    await caught_up(mariadb, source, story)
    assert [(one.operation, one.database) for one in story.events] == [
        ("dropDatabase", mariadb_database)
    ]


async def test_a_transaction_is_one_commit_of_all_its_tables_and_its_events_are_told_apart(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A1, A19: several changes of one row in one second of one transaction."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)", "CREATE TABLE b LIKE a")
        run(db, "INSERT INTO a VALUES (1, 0), (2, 0)", "UPDATE a SET n = 1 WHERE id = 1")
        run(db, "UPDATE a SET n = 2 WHERE id = 1", "INSERT INTO b VALUES (1, 1)", "COMMIT")
    await caught_up(mariadb, source, story)
    (commit,) = [item for item in story.items if len(item.events) > 1]
    rows = [event for event in commit.events if isinstance(event, ChangeEvent)]
    assert [event.collection for event in rows] == ["a", "a", "a", "a", "b"]
    assert len({event.transaction for event in commit.events}) == 1
    assert len({event.event_id for event in story.events}) == len(story.events)
    again = await caught_up(mariadb, source, Story(story.items[0].position))  # type: ignore[union-attr]
    assert [event.event_id for event in again.events] == [e.event_id for e in story.events]


async def test_an_update_of_a_key_ends_the_old_one_and_begins_the_new_one(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A13."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (b VARCHAR(9), a INT, n INT, PRIMARY KEY (b, a))",
            "INSERT INTO a VALUES ('x', 1, 0), ('x', 2, 0)",
            "UPDATE a SET a = a + 1 ORDER BY a DESC",
            "UPDATE a SET n = 5 WHERE a = 2",
        )
    await caught_up(mariadb, source, story)
    told = [(event.operation.value, event.document_id) for event in story.changes]
    assert told == [
        ("insert", '["x",1]'),
        ("insert", '["x",2]'),
        ("delete", '["x",2]'),
        ("insert", '["x",3]'),
        ("delete", '["x",1]'),
        ("insert", '["x",2]'),
        ("replace", '["x",2]'),
    ]
    assert bytes(story.changes[0].key) == b'{"b":"x","a":1}'  # A12: an object, in the key's order


async def test_a_table_without_a_key_is_captured_whole(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A11: a row is known by all that it holds, the same before and after."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (n INT, t TEXT)",
            "INSERT INTO a VALUES (1, NULL), (2, 'x')",
            "UPDATE a SET t = 'y' WHERE n = 2",
            "DELETE FROM a WHERE n = 1",
        )
    await caught_up(mariadb, source, story)
    (rows,) = story.rows().values()
    assert list(rows.values()) == [{"n": 2, "t": "y"}]
    assert {len(event.document_id) for event in story.changes} == {32}


async def test_a_quiet_source_and_one_of_which_nothing_is_captured_still_move(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A17, invariant 5."""
    source = source_of(mariadb, include=["nothing.*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    await caught_up(mariadb, source, story)
    assert story.events == []
    told = len(story.items)
    await follow(source, story, lambda story: len(story.items) > told + 3)  # heartbeats


async def test_a_large_transaction_comes_in_fragments_and_ends_as_one(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S5, S14: a position is told only where a transaction ends."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database, autocommit=False) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, t LONGTEXT)")
        for _ in range(12):
            run(db, "INSERT INTO a (t) VALUES (REPEAT('x', 1000000)), (REPEAT('y', 1000000))")
        run(db, "INSERT INTO a (t) VALUES (REPEAT('z', 20000000))", "COMMIT")
        run(db, "INSERT INTO a (t) VALUES ('end')", "COMMIT")
    await caught_up(mariadb, source, story)
    kinds = "".join("F" if isinstance(item, Fragment) else "C" for item in story.items)
    assert re.fullmatch("C+F{3,}C+", kinds)
    assert len({event.transaction for event in story.changes}) == 2
    assert [len(msgspec.json.decode(e.full_document or b"")["t"]) for e in story.changes] == [
        *[1_000_000] * 24,
        20_000_000,
        3,
    ]


async def test_what_is_taken_back_is_not_told(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A binlog has rows that were rolled back, where the transaction wrote to what cannot be; and
    tables of another engine are captured as well."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database, autocommit=False) as db:
        run(
            db,
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "CREATE TABLE i (id INT PRIMARY KEY, t LONGTEXT) ENGINE = InnoDB",
            "INSERT INTO i VALUES (1, '')",
            "INSERT INTO m VALUES (1)",
            "SAVEPOINT s",
            "INSERT INTO i VALUES (2, '')",
            "ROLLBACK TO s",
            "INSERT INTO i VALUES (3, '')",
            "COMMIT",
            "INSERT INTO i VALUES (4, '')",
            "ROLLBACK",
            "INSERT INTO i VALUES (5, '')",
            "INSERT INTO m VALUES (5)",
            "ROLLBACK",
            # What is dropped with a temporary table is in the binlog.
            "CREATE TEMPORARY TABLE t (id INT)",
            "INSERT INTO i VALUES (6, '')",
            "INSERT INTO t VALUES (6)",
            "DROP TEMPORARY TABLE t",
            "ROLLBACK",
        )
    await caught_up(mariadb, source, story)
    (i, m) = (f"{mariadb_database}.i", f"{mariadb_database}.m")
    rows = story.rows()
    assert [row["id"] for row in rows[i].values()] == [1, 3]
    assert [row["id"] for row in rows[m].values()] == [1, 5]


async def test_a_savepoint_is_the_same_one_in_another_case(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S5: the second takes the place of the first, so that less is rolled back."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "BEGIN",
            "SAVEPOINT one",
            "INSERT INTO t VALUES (1)",
            "SAVEPOINT ONE",
            # The server forgets what it rolls back, unless there is what it cannot.
            "CREATE TEMPORARY TABLE x (id INT)",
            "INSERT INTO t VALUES (2)",
            "INSERT INTO m VALUES (1)",
            "ROLLBACK TO one",
            "INSERT INTO t VALUES (3)",
            "COMMIT",
        )
        kept = [row[0] for row in run(db, "SELECT id FROM t")]
    await caught_up(mariadb, source, story)
    assert kept == [1, 3]
    assert [event.document_id for event in story.changes if event.collection == "t"] == ["1", "3"]


async def test_what_is_taken_back_of_a_large_transaction_is_read_again_without_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """What was handed on as fragments is dropped with the session that told it."""
    source, story = await begun(mariadb, mariadb_database)
    big = "REPEAT('x', 5000000)"
    with mariadb.connect(database=mariadb_database, autocommit=False) as db:
        run(
            db,
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "CREATE TABLE i (id INT PRIMARY KEY, t LONGTEXT) ENGINE = InnoDB",
            f"INSERT INTO i VALUES (1, {big}), (2, {big})",
            "INSERT INTO m VALUES (1)",
            "SAVEPOINT s",
            f"INSERT INTO i VALUES (3, {big}), (4, {big})",
            "SAVEPOINT t",
            f"INSERT INTO i VALUES (5, {big}), (6, {big})",
            "ROLLBACK TO t",
            f"INSERT INTO i VALUES (7, {big}), (8, {big})",
            "ROLLBACK TO s",
            f"INSERT INTO i VALUES (9, {big})",
            "COMMIT",
            "CREATE TEMPORARY TABLE t (id INT)",
            f"INSERT INTO i VALUES (10, {big}), (11, {big})",
            "DROP TEMPORARY TABLE t",
            "ROLLBACK",
            "INSERT INTO i VALUES (12, '')",
            "COMMIT",
        )
    again = 0
    while True:
        try:
            await caught_up(mariadb, source, story)
        except SourceUnavailableError:
            again += 1
            story.crash()
        else:
            break
    assert again == 3
    rows = story.rows()[f"{mariadb_database}.i"]
    assert [row["id"] for row in rows.values()] == [1, 2, 9, 12]
    assert len({event.event_id for event in story.events}) == len(story.events)


async def test_what_is_compressed_in_the_binlog_is_captured(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """S1."""
    server = start_mariadb(options=["--log-bin-compress=1", "--log-bin-compress-min-len=10"])
    source = source_of(server, start="beginning")
    with server.connect() as db:
        run(
            db,
            "CREATE DATABASE d",
            "CREATE TABLE d.a (id INT PRIMARY KEY, t TEXT, u TEXT COMPRESSED)",
            "INSERT INTO d.a VALUES (1, REPEAT('x', 1000), REPEAT('y', 1000)), (2, 'x', 'y')",
            "UPDATE d.a SET t = REPEAT('z', 1000)",
            "DELETE FROM d.a WHERE id = 2",
        )
        story = await caught_up(server, source)
        assert story.said == [("create", "a")]
        assert story.rows() == {"d.a": {'{"id":1}': {"id": 1, "t": "z" * 1000, "u": "y" * 1000}}}
    assert [event.operation.value for event in story.changes] == [
        "insert",
        "insert",
        "replace",
        "replace",
        "delete",
    ]


async def test_a_statement_that_changes_rows_stops_capture_before_it(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S1: nothing is skipped, and it goes on from there."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY)",
            "INSERT INTO a VALUES (1)",
            "SET SESSION binlog_format = 'STATEMENT'",
            "INSERT INTO a VALUES (2)",
        )
    with pytest.raises(UndecodableError, match=r"INSERT as a statement.*binlog_format"):
        await follow(source, story, lambda _: False)
    assert len(story.changes) == 1
    with pytest.raises(UndecodableError):
        await follow(source, story, lambda _: False)
    assert len(story.changes) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "NO_LOG"),
    ],
)
async def test_a_server_that_logs_too_little_is_refused_with_what_mends_it(
    start_mariadb: Callable[..., MariaDbServer], setting: str, value: str
) -> None:
    """S2: before anything is captured."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, f"SET GLOBAL {setting} = '{value}'")
    with pytest.raises(ConfigError, match=f"SET GLOBAL {setting} = '(ROW|FULL)'"):
        await follow(source_of(server), Story(), lambda _: True)


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("SET SESSION binlog_row_image = 'MINIMAL'", "binlog_row_image is not FULL"),
        ("SET SESSION binlog_row_image = 'NOBLOB'", "binlog_row_image is not FULL"),
    ],
)
async def test_rows_that_lack_columns_stop_capture_before_them(
    mariadb: MariaDbServer, mariadb_database: str, setting: str, what: str
) -> None:
    """S1: a session may log less than the server is set to."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, n INT, t TEXT)",
            "INSERT INTO a VALUES (1, 1, 'x')",
            setting,
            "UPDATE a SET n = 2",
        )
    with pytest.raises(UndecodableError, match=what):
        await follow(source, story, lambda _: False)
    assert len(story.changes) == 1


async def test_a_computed_column_is_left_out_and_a_stored_one_is_not(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """The server does not compute it for its binlog: what is there is anything."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, n INT, "
            "v INT AS (n * 2) VIRTUAL, w INT AS (id + 1) VIRTUAL, s INT AS (n + 1) STORED)",
            "INSERT INTO a (n) VALUES (5)",
            "ALTER TABLE a DROP COLUMN v",
            "UPDATE a SET n = 6",
        )
    await caught_up(mariadb, source, story)
    (rows,) = story.rows().values()
    assert list(rows.values()) == [{"id": 1, "n": 6, "s": 7}]


async def test_names_are_those_of_the_place_in_the_binlog(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A15, S4: replayed after ADD FIRST, DROP, RENAME and a change of type."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, x INT, y VARCHAR(9))",
            "INSERT INTO a VALUES (1, 1, 'one')",
            "ALTER TABLE a ADD COLUMN f INT FIRST",
            "INSERT INTO a VALUES (7, 2, 2, 'two')",
            "ALTER TABLE a DROP COLUMN x, RENAME COLUMN y TO x",
            "INSERT INTO a VALUES (8, 3, 'three')",
            "ALTER TABLE a MODIFY id BIGINT UNSIGNED, MODIFY x TEXT",
            "INSERT INTO a VALUES (9, 18446744073709551615, 'four')",
            "DROP TABLE a",
        )
    await caught_up(mariadb, source, story)
    assert [bytes(event.full_document or b"") for event in story.changes] == [
        b'{"id":1,"x":1,"y":"one"}',
        b'{"f":7,"id":2,"x":2,"y":"two"}',
        b'{"f":8,"id":3,"x":"three"}',
        b'{"f":9,"id":18446744073709551615,"x":"four"}',
    ]
    assert [what for what, _ in story.said] == ["create", "modify", "modify", "modify", "drop"]


async def test_statements_about_tables_come_in_their_place_and_rows_follow_the_names(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A16; the swap of a table as gh-ost does it."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, n INT)",
            "INSERT INTO a VALUES (1, 1), (2, 2)",
            "CREATE TABLE a_gho LIKE a",
            "ALTER TABLE a_gho ADD COLUMN m INT",
            "INSERT INTO a_gho SELECT id, n, 0 FROM a",
            "RENAME TABLE a TO a_del, a_gho TO a",
            "DROP TABLE a_del",
            "INSERT INTO a VALUES (3, 3, 3)",
            "CREATE TABLE b SELECT id, n FROM a",
            "CREATE TABLE c (id INT PRIMARY KEY)",
            "INSERT INTO c VALUES (1)",
            "TRUNCATE TABLE c",
            "CREATE OR REPLACE TABLE b (id INT PRIMARY KEY)",
            "CREATE INDEX i ON a (n)",
            "ALTER TABLE a RENAME TO d",
        )
        await caught_up(mariadb, source, story)
        rows = story.rows()
        assert list(rows) == [f"{mariadb_database}.d"]
        assert sorted(row["id"] for row in rows[f"{mariadb_database}.d"].values()) == [1, 2, 3]
    create = next(event for event in story.events if isinstance(event, SchemaEvent))
    said = msgspec.json.decode(create.description)
    assert said["ns"] == {"db": mariadb_database, "coll": "a"}
    assert said["statement"].startswith("CREATE TABLE a (id")


@pytest.mark.both_mariadbs
async def test_a_table_that_is_renamed_to_its_own_name_stays_where_it_is(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """The server takes that, and logs it: whoever moved rows there would empty it."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            *(db, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"),
            "ALTER TABLE t RENAME TO t",
            f"ALTER TABLE t COMMENT 'x', RENAME TO {mariadb_database}.t",
        )
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "t"), ("modify", "t"), ("modify", "t")]


@pytest.mark.both_mariadbs
async def test_an_alter_in_two_phases_is_told_once_and_one_that_failed_never(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A16: it is logged as it begins, and again as it ends."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE t (id INT PRIMARY KEY, n INT)",
            "INSERT INTO t VALUES (1, 5), (2, 5)",
            "SET binlog_alter_two_phase = 1",
        )
        with pytest.raises(IntegrityError):
            run(db, "ALTER TABLE t ADD UNIQUE (n)")
        run(db, "ALTER TABLE t MODIFY n BIGINT, RENAME u", "UPDATE u SET n = 6")
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "t"), ("modify", "t"), ("rename", "t")]
    assert [row["n"] for row in story.rows()[f"{mariadb_database}.u"].values()] == [6, 6]


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3", "binary"])
async def test_names_in_statements_are_read_in_the_character_set_of_their_session(
    mariadb: MariaDbServer, mariadb_database: str, charset: str
) -> None:
    """A16: the binlog has a statement's bytes as they were sent."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database, charset="utf8mb4") as db:
        sent = "latin1" if charset == "latin1" else "utf-8"
        run(db, "CREATE TABLE caf\u00e9 (id INT PRIMARY KEY)", f"SET NAMES {charset}")
        run(db, "INSERT INTO `caf\u00e9` VALUES (1)".encode(sent))
        run(db, "TRUNCATE `caf\u00e9`".encode(sent))
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "caf\u00e9"), ("drop", "caf\u00e9"), ("create", "caf\u00e9")]
    assert not story.rows()


async def test_a_name_that_cannot_be_read_is_a_gap_and_does_not_stop_capture(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S13."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        # The server makes a backslash of the wide one, and does not count it as one.
        run(db, "SET NAMES sjis", b"CREATE TABLE `a\x81\x5f` (id INT PRIMARY KEY)")
        run(db, "SET NAMES utf8mb4", "CREATE TABLE t (id INT PRIMARY KEY)")
        run(db, b"ALTER TABLE t ADD n VARCHAR(9) DEFAULT _latin1'\xe9'")
    await caught_up(mariadb, source, story)
    assert story.said == [("gap", ""), ("create", "t"), ("modify", "t")]


async def test_names_have_the_case_that_the_server_gives_them(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """A16: with lower_case_table_names, rows have names in lower case, and statements do not."""
    server = start_mariadb(options=["--lower-case-table-names=1"])
    with server.connect() as db:
        run(db, "CREATE DATABASE d")
    source, story = await begun(server, "d")
    with server.connect() as db:
        run(db, "CREATE TABLE D.Orders (id INT PRIMARY KEY)", "INSERT INTO d.ORDERS VALUES (1)")
        run(db, "RENAME TABLE D.ORDERS TO D.Gone", "TRUNCATE D.GONE")
    await caught_up(server, source, story)
    said = [("create", "orders"), ("rename", "orders"), ("drop", "gone"), ("create", "gone")]
    assert story.said == said
    assert not story.rows()


async def test_rows_that_go_without_a_word_are_a_gap_of_their_table(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO a VALUES (1), (11)",
            "ALTER TABLE a DROP PARTITION p0",
        )
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "a"), ("modify", "a"), ("gap", "a")]
    gap = story.events[-1]
    assert isinstance(gap, SystemEvent)
    assert msgspec.json.decode(gap.description)["reason"] == "unlogged_rows"


async def test_a_table_that_is_renamed_into_scope_is_a_gap_and_one_out_of_it_is_told(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source = source_of(mariadb, include=[f"{mariadb_database}.in*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE out1 (id INT PRIMARY KEY)",
            "INSERT INTO out1 VALUES (1)",
            "CREATE TABLE in1 (id INT PRIMARY KEY)",
            "INSERT INTO in1 VALUES (1)",
            "RENAME TABLE out1 TO in2, in1 TO out1",
            "DROP TABLE in2",
        )
    await caught_up(mariadb, source, story)
    assert story.said == [
        ("create", "in1"),
        ("drop", "in2"),
        ("gap", "in2"),
        ("rename", "in1"),
        ("drop", "in2"),
    ]
    assert story.rows() == {}


async def test_foreign_statements_never_stop_capture(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S13."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY)",
            "CREATE VIEW v AS SELECT * FROM a",
            "CREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW SET NEW.id = NEW.id + 1",
            "CREATE PROCEDURE p() INSERT INTO a VALUES (10)",
            "CREATE FUNCTION f() RETURNS INT DETERMINISTIC RETURN 1",
            "CREATE SEQUENCE s",
            f"CREATE USER u{mariadb_database}",
            f"GRANT SELECT ON {mariadb_database}.* TO u{mariadb_database}",
            f"DROP USER u{mariadb_database}",
            "INSERT INTO a VALUES (1)",
            "CALL p()",
            "ANALYZE TABLE a",
            "OPTIMIZE TABLE a",
            "FLUSH TABLES",
            "CREATE TEMPORARY TABLE t (id INT)",
            "INSERT INTO t VALUES (1)",
            "DROP TEMPORARY TABLE t",
            "DROP VIEW v",
            "DROP PROCEDURE p",
            "FLUSH BINARY LOGS",
            "/* hello */ INSERT INTO a VALUES (20)",
        )
    await caught_up(mariadb, source, story)
    assert story.said == [("create", "a")]
    assert [event.document_id for event in story.changes] == ["2", "11", "21"]


async def test_a_sequence_is_no_table(mariadb: MariaDbServer, mariadb_database: str) -> None:
    """S13: MariaDB logs each of its steps as a row of a table without a key."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE SEQUENCE s CACHE 2",
            "CREATE TABLE a (id INT PRIMARY KEY DEFAULT NEXT VALUE FOR s, n INT)",
            "INSERT INTO a (n) VALUES (1), (2), (3)",
            "SELECT SETVAL(s, 100)",
            "SELECT NEXTVAL(s)",
            "ALTER SEQUENCE s RESTART 7",
            "DROP SEQUENCE s",
        )
    await caught_up(mariadb, source, story)
    assert {event.collection for event in story.changes} == {"a"}
    assert story.said == [("create", "a")]


async def test_a_tenant_is_told_by_the_rule(mariadb: MariaDbServer, mariadb_database: str) -> None:
    source, story = await begun(mariadb, mariadb_database, tenant={"field": "who"})
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, who TEXT)",
            "INSERT INTO a VALUES (1, 'acme')",
            "DELETE FROM a",
            "INSERT INTO a VALUES (2, NULL)",
        )
    with pytest.raises(UndecodableError, match=r"tenant\.otherwise"):
        await follow(source, story, lambda _: False)
    assert {event.tenant for event in story.changes} == {"acme"}
    assert len(story.changes) == 2


@pytest.mark.both_mariadbs
async def test_a_row_that_becomes_another_tenants_ends_for_the_one_before(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source, story = await begun(mariadb, mariadb_database, tenant={"field": "who"})
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, who VARCHAR(9), n INT)",
            "INSERT INTO a VALUES (1, 'acme', 1)",
            "UPDATE a SET who = 'bolt', n = 2",
            "UPDATE a SET n = 3",
        )
    await caught_up(mariadb, source, story)
    assert [
        (
            one.operation.value,
            one.tenant,
            one.full_document and msgspec.json.decode(one.full_document),
            one.full_document_before_change
            and msgspec.json.decode(one.full_document_before_change)["who"],
        )
        for one in story.changes
    ] == [
        ("insert", "acme", {"id": 1, "who": "acme", "n": 1}, None),
        ("delete", "acme", None, "acme"),
        ("insert", "bolt", {"id": 1, "who": "bolt", "n": 2}, None),
        ("replace", "bolt", {"id": 1, "who": "bolt", "n": 3}, "bolt"),
    ]
    assert len({one.event_id for one in story.changes}) == 4
    ends, begins = story.changes[1:3]
    assert msgspec.json.decode(ends.origin or b"")["movedTo"] == {"id": 1}
    assert msgspec.json.decode(begins.origin or b"")["movedFrom"] == {"id": 1}


@pytest.mark.both_mariadbs
async def test_a_tenant_that_an_image_lacks_is_unknown_and_not_the_one_for_all_others(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    rule = {"field": "who", "otherwise": "shared"}
    source, story = await begun(mariadb, mariadb_database, tenant=rule, on_partial_rows="decode")
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (who VARCHAR(9), id INT, n INT, PRIMARY KEY (who, id))",
            "CREATE TABLE b (id INT PRIMARY KEY, who VARCHAR(9), n INT)",
            "INSERT INTO a VALUES ('acme', 1, 1)",
            "INSERT INTO b VALUES (1, 'acme', 1)",
            "SET SESSION binlog_row_image = MINIMAL",
            "UPDATE a SET n = 2",
            "DELETE FROM a",
            "UPDATE b SET n = 3",
        )
    with pytest.raises(UndecodableError, match="before images"):
        await follow(source, story, lambda _: False)
    assert [(one.collection, one.operation.value, one.tenant) for one in story.changes] == [
        ("a", "insert", "acme"),
        ("b", "insert", "acme"),
        ("a", "replace", "acme"),
        ("a", "delete", "acme"),
    ]


async def test_interleaved_domains_come_in_the_order_of_the_binlog_and_resume_exactly(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S6, invariant 2: from any position that was told, all that follows comes once."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")
        for number in range(12):
            run(db, f"SET SESSION gtid_domain_id = {number % 3}")
            run(db, f"INSERT INTO a (n) VALUES ({number})")
    await caught_up(mariadb, source, story)
    told = [msgspec.json.decode(e.full_document or b"")["n"] for e in story.changes]
    assert told == list(range(12))
    ids = [event.event_id for event in story.events]
    again = story
    for item in [item for item in story.items if item.events]:
        assert isinstance(item, Commit)
        again = await caught_up(mariadb, source, Story(item.position))
        assert [event.event_id for event in again.events] == ids[len(ids) - len(again.events) :]
    assert len(again.events) == 0


async def test_a_change_is_told_while_it_happens_and_a_reading_ends_when_it_is_cancelled(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], heartbeat_seconds=60)
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        reading = asyncio.ensure_future(
            follow(source, story, lambda story: len(story.changes) == 1)
        )
        await asyncio.to_thread(run, db, "CREATE TABLE a (id INT PRIMARY KEY)")
        await asyncio.to_thread(run, db, "INSERT INTO a VALUES (1)")
        await reading
        told = asyncio.Event()

        def second(story: Story) -> bool:
            if len(story.changes) == 2:
                told.set()
            return False

        waiting = asyncio.ensure_future(follow(source, story, second))
        await asyncio.to_thread(run, db, "INSERT INTO a VALUES (2)")
        await told.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_server_that_goes_is_waited_for_and_gone_on_from(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    server = start_mariadb()
    source = source_of(server, start="beginning")
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1)")
    story = await caught_up(server, source)
    reading = asyncio.ensure_future(follow(source, story, lambda _: False))
    await asyncio.sleep(0)
    server.kill()
    with pytest.raises(SourceUnavailableError, match="from its durable position"):
        await reading
    with pytest.raises(SourceUnavailableError):
        await follow(source, story, lambda _: True)
    server.restart()
    with server.connect() as db:
        run(db, "INSERT INTO d.a VALUES (2)")
    await caught_up(server, source, story)
    assert [event.document_id for event in story.changes] == ["1", "2"]


async def test_a_column_that_looks_like_a_wrapper_stops_capture(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A28, invariant 10: dots and dollars are names like others, but one that would be misread."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            'CREATE TABLE a (`a.b` INT PRIMARY KEY, `$x` INT, `it\'s "q" \\\\` INT, `čas` INT)',
            "INSERT INTO a VALUES (1, 2, 3, 4)",
            "CREATE TABLE b (`$oid` INT PRIMARY KEY)",
            "INSERT INTO b VALUES (1)",
        )
    with pytest.raises(UndecodableError, match=r"\$oid"):
        await follow(source, story, lambda _: False)
    (change,) = story.changes
    assert msgspec.json.decode(cast("Any", change.full_document)) == {
        "a.b": 1,
        "$x": 2,
        'it\'s "q" \\\\': 3,
        "čas": 4,
    }
    assert isinstance(change, ChangeEvent)


async def test_a_source_begins_now_or_at_the_oldest_that_is_left(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """A29; binlogs that were purged before are no loss to a source that never had them."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "INSERT INTO d.a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO d.a VALUES (2)")
        everything = await caught_up(server, source_of(server, start="beginning"))
        assert [event.document_id for event in everything.changes] == ["1", "2"]
        purge(db)
        left = await caught_up(server, source_of(server, start="beginning"))
        assert [event.document_id for event in left.changes] == ["2"]
        now = source_of(server)
        story = await follow(now, Story(), lambda _: True)
        run(db, "INSERT INTO d.a VALUES (3)")
        await follow(now, story, behind(end_of(db)))
        assert [event.document_id for event in story.changes] == ["3"]


async def test_sessions_that_broke_off_do_not_add_up_at_the_server(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A server notices late that nobody reads any more; it must not run out of connections."""
    source = source_of(mariadb, include=[f"{mariadb_database}.*"], heartbeat_seconds=60)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
        story = await follow(source, Story(), lambda _: True)
        for number in range(20):
            run(db, f"INSERT INTO a VALUES ({number})")
            await follow(source, story, lambda story, n=number: len(story.changes) > n)  # type: ignore[misc]
        rows = run(db, "SHOW PROCESSLIST")
    assert len([row for row in rows if row[4] == "Binlog Dump"]) < 10
