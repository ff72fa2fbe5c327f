"""A statement that changes rows, in place of the rows, is gone past only where nothing is lost."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.errors import UndecodableError
from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.row_statements import Written, written
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.statements import Effect, Name, RowsChanged, Unclear
from penstock.sources.mysql.unlogged_rows import UnloggedRows
from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, run, source_of
from tests.telling import follow
from tests_support.servers import SqlServer

A, B, C = ("d", "a"), ("d", "b"), ("e", "c")
UNTOLD = Written()

WRITTEN: list[tuple[str, Written]] = [
    ("INSERT INTO a VALUES (1, NOW())", Written((A,), calls=False)),
    ("INSERT e.c(id, value) values (1,2) ON DUPLICATE KEY UPDATE value = VALUES(value)", Written((C,), calls=False)),  # noqa: E501
    ("INSERT LOW_PRIORITY IGNORE `e`.`c` PARTITION (p0) (id) SET id = 1", Written((C,), calls=False)),  # noqa: E501
    ("INSERT INTO a (n) SELECT n FROM e.c WHERE n IN (1, 2)", Written((A,), (C,), calls=False)),
    ("INSERT INTO a SELECT 1 FROM b, e.c", Written((A,))),
    ("INSERT INTO a SELECT x.n FROM b `x`, e.c", Written((A,))),
    ("INSERT INTO a TABLE e.c", Written((A,))),
    ("DELETE FROM a WHERE n IN (TABLE e.c)", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM b JOIN e.c ON b.n = c.n, v", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM b JOIN e.c USING (m, n) WHERE b.n IN (1, 2) ORDER BY 1, 2", Written((A,), (B, C), calls=False)),  # noqa: E501
    ("INSERT INTO a SELECT 1 FROM (v)", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM b JOIN (e.c, v)", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM ((SELECT 1) UNION (SELECT 2)) AS x, v", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM (SELECT 1 FROM b) AS x, v", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM (SELECT 1 FROM b) AS x", Written((A,), (B,), calls=False)),
    ("INSERT INTO a SELECT 1 FROM b FORCE INDEX (i), v", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM b FORCE INDEX FOR ORDER BY (i, j), v", Written((A,))),
    ("INSERT INTO a SELECT 1 FROM b RETURNING, v", Written((A,))),
    ("INSERT INTO a SELECT b.from, b.table FROM b", Written((A,), (B,), calls=False)),
    ("INSERT INTO a SELECT n FROM b ON DUPLICATE KEY UPDATE n = 1, m = 2", Written((A,), (B,), calls=False)),  # noqa: E501
    ("REPLACE DELAYED INTO a SELECT COUNT(*), COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`)) AS UNSIGNED)), 10, 16)), 0) AS crc FROM `e`.`c` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) /*checksum chunk*/", Written((A,), (C,), calls=False)),  # noqa: E501
    ("INSERT INTO a VALUES (f(1))", Written((A,))),
    ("INSERT INTO a VALUES (`now`())", Written((A,))),
    ("INSERT INTO a VALUES (e.now())", Written((A,))),
    ("INSERT INTO a VALUES (NOW ())", Written((A,))),
    ("INSERT INTO a VALUES (count /* x */ ())", Written((A,))),
    ("INSERT INTO a VALUES ('max speed', lower (n))", Written((A,), calls=False)),
    ("UPDATE a SET n = 1", Written((A,), calls=False)),
    ("UPDATE IGNORE a AS `x` JOIN e.c ON x.n = c.n SET c.n = 1", Written((A, C), calls=False)),
    ("UPDATE (a, b) STRAIGHT_JOIN e.c SET n = 1", Written((A, B, C), calls=False)),
    ("UPDATE a `x`, e.c SET n = 1", Written((A, C), calls=False)),
    ("UPDATE a, (SELECT 1) AS x SET n = 1", UNTOLD),
    ("UPDATE a JOIN b ON a.n IN (SELECT n FROM x WHERE k = 1) JOIN e.c ON c.n = b.n SET c.n = 1", UNTOLD),  # noqa: E501
    ("UPDATE a JOIN b ON a.n = (TABLE x ORDER BY n LIMIT 1) JOIN e.c SET c.n = 1", UNTOLD),
    ("UPDATE a JOIN b ON a.n IN (1, 2) AND COALESCE(b.n, a.n) = 1 JOIN e.c SET c.n = 1", Written((A, B, C), calls=False)),  # noqa: E501
    ("UPDATE a JOIN b ON a.where = b.set JOIN e.c SET c.n = 1", Written((A, B, C), calls=False)),
    ("UPDATE a JOIN b ON a.n = CAST(b.n AS CHAR CHARACTER SET utf8mb4) JOIN e.c SET c.n = 1", Written((A, B, C), calls=False)),  # noqa: E501
    ("UPDATE a USE INDEX FOR ORDER BY (i) JOIN e.c SET c.n = 1", Written((A, C), calls=False)),
    ("UPDATE a RETURNING JOIN e.c SET c.n = 1", Written((A, C), calls=False)),
    ("UPDATE (a PARTITION (p0, p1) JOIN (b, e.c) ON (a.n, 1) = (b.n, c.n)) SET c.n = 1", Written((A, B, C), calls=False)),  # noqa: E501
    ("UPDATE quick.a SET n = 1", Written((("quick", "a"),), calls=False)),
    ("DELETE c FROM a JOIN b ON a.n IN (SELECT n FROM x WHERE k = 1) JOIN e.c", UNTOLD),
    ("DELETE c, a.from FROM e.c JOIN a.from", Written((C, ("a", "from")), calls=False)),
    ("DELETE quick FROM a JOIN e.c AS quick", Written((A, C), calls=False)),
    ("DELETE history FROM a, e.c AS history WHERE a.n = 1", Written((A, C), calls=False)),
    ("DELETE QUICK FROM x USING a AS x JOIN e.c", Written((A, C), calls=False)),
    ("DELETE QUICK FROM e.c WHERE n = 1", Written((C,), calls=False)),
    ("DELETE FROM a x WHERE EXISTS (SELECT 1 FROM b)", Written((A,), (B,), calls=False)),
    ("DELETE x, c.* FROM a AS x, e.c", Written((A, C), calls=False)),
    ("DELETE x FROM a AS x JOIN e.c USING (n)", Written((A, C), calls=False)),
    ("DELETE FROM x USING a AS x JOIN e.c", Written((A, C), calls=False)),
    ("DELETE HISTORY FROM a BEFORE SYSTEM_TIME NOW()", Written((A,), calls=False)),
    ("WITH q AS (SELECT 1) UPDATE a SET n = 1", Written((A,), calls=False)),
    ("WITH q AS (SELECT 1 FROM b) DELETE FROM a", Written((A,), (B,), calls=False)),
    ("SET STATEMENT max_statement_time=1 FOR UPDATE a SET n = 1", Written((A,), calls=False)),
    ("CREATE TABLE IF NOT EXISTS a SELECT * FROM e.c", Written((A,), (C,), calls=False)),
    ("CREATE TABLE a (n INT) AS SELECT n FROM e.c", Written((A,), (C,), calls=False)),
    ("SELECT e.f()", UNTOLD),
    ("CALL p()", UNTOLD),
    ("DO f()", UNTOLD),
    ("LOAD DATA INFILE 'x' INTO TABLE a", UNTOLD),
    ("INSERT INTO", UNTOLD),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), WRITTEN)
def test_the_tables_that_a_statement_may_write_to_are_named(
    statement: str, expected: Written
) -> None:
    assert written(statement, database="d") == expected
    without = () if any(database == "d" for database, _ in expected.tables) else expected.tables
    assert written(statement, database="").tables == without


IN, OUT, SYSTEM = ("shop", "orders"), ("shop2", "log"), ("mysql", "rds_heartbeat2")
CHANGED = RowsChanged(IN, "INSERT as a statement")


@pytest.mark.parametrize(
    ("said", "obstacle", "passes", "did"),
    [
        (Written((SYSTEM,), calls=False), "never asked", (), []),
        (Written((OUT,), calls=False), None, (), []),
        (Written((OUT,), (IN,), calls=False), None, (), []),
        (Written((OUT,), calls=False), "a trigger", (), None),
        (Written((OUT,), calls=False), "a trigger", ("shop2.*",), [Unclear()]),
        (Written((OUT,)), None, (), None),
        (Written((SYSTEM,)), None, (), None),
        (Written((IN,), calls=False), None, (), None),
        (Written((IN,), calls=False), None, ("shop.*",), [CHANGED]),
        (Written((IN,), calls=False), "a trigger", ("shop.*",), [Unclear()]),
        (Written((IN, OUT), calls=False), None, ("shop2.*",), None),
        (Written((IN, OUT), calls=False), None, ("*.*",), [CHANGED]),
        (Written((OUT,)), None, ("shop2.*",), [Unclear()]),
        (Written(), None, ("shop.*", "shop2.*"), None),
        (Written(), None, ("*.*",), [Unclear()]),
        (Written((("shop", "\N{REPLACEMENT CHARACTER}"),), calls=False), None, (), None),
    ],
)  # fmt: skip
def test_only_what_changes_nothing_that_is_captured_goes_without_a_word(
    said: Written, obstacle: str | None, passes: Sequence[str], did: list[Effect] | None
) -> None:
    def changes_more(written: Sequence[Name], read: Sequence[Name]) -> str | None:
        return obstacle

    rows = UnloggedRows(Scope(include=("shop.*",)), passes, changes_more)
    text = "INSERT INTO log VALUES ('secret')"
    if did is not None:
        assert [*rows.done("INSERT", said, text)] == did
        return
    with pytest.raises(MalformedEventError, match=r"INSERT INTO log VALUES \(\?\)") as raised:
        rows.done("INSERT", said, text)
    assert all(".".join(name) in str(raised.value) for name in said.tables)
    assert ('put "*.*"' in str(raised.value)) is (not said.tables)


ELSEWHERE = (
    "INSERT INTO log VALUES (1, 1) ON DUPLICATE KEY UPDATE n = VALUES(n)",
    "REPLACE INTO log SELECT 2, COUNT(*) FROM {captured}.orders",
    "UPDATE log SET n = n + 1",
    "DELETE FROM log WHERE id = 1",
    "CREATE TABLE made SELECT 1 AS n",
)


@on("mysql", "mariadb")
async def test_statements_of_other_tables_are_gone_past_and_those_with_a_trigger_are_not(
    server: SqlServer, database: str
) -> None:
    captured, rest = f"{database}_in", f"{database}_out"
    with server.connect() as db:
        try:
            run(db, f"CREATE DATABASE {captured}", f"CREATE DATABASE {rest}", f"USE {rest}")
            run(db, f"CREATE TABLE {captured}.orders (id INT PRIMARY KEY)")
            run(db, "CREATE TABLE log (id INT PRIMARY KEY, n INT)")
            await elsewhere(server, captured, rest)
        finally:
            run(db, f"DROP DATABASE {captured}", f"DROP DATABASE {rest}")


async def elsewhere(server: SqlServer, captured: str, rest: str) -> None:
    of_database: dict[str, Any] = {"include": [f"{captured}.*"]}
    source = source_of(server, **of_database)
    story = await follow(source, Story(), lambda _: True)
    with server.connect(database=rest) as db:
        run(db, "SET SESSION binlog_format = STATEMENT")
        run(db, *(one.format(captured=captured) for one in ELSEWHERE))
        run(db, "SET SESSION binlog_format = ROW", f"INSERT INTO {captured}.orders VALUES (1)")
        await caught_up(server, source, story)
        assert [event.document_id for event in story.changes] == ["1"]
        assert story.said == []
        run(
            db,
            f"CREATE TRIGGER t BEFORE INSERT ON log FOR EACH ROW "
            f"INSERT INTO {captured}.orders VALUES (NEW.id)",
            "SET SESSION binlog_format = STATEMENT",
            "INSERT INTO log VALUES (7, 1)",
            "SET SESSION binlog_format = ROW",
            f"INSERT INTO {captured}.orders VALUES (2)",
        )
        with pytest.raises(UndecodableError, match=rf"{rest}\.log \(INSERT INTO log .*trigger t"):
            await caught_up(server, source, story)
        passing = source_of(server, **of_database, pass_statements=[f"{rest}.log"])
        await caught_up(server, passing, story)
    assert [event.document_id for event in story.changes] == ["1", "2"]
    (gap,) = story.system
    assert json.loads(bytes(gap.description))["reason"] == "unclear_statement"
    assert not gap.collection


@on("mysql", "mariadb")
async def test_a_table_made_of_a_query_by_a_statement_stops_capture(
    server: SqlServer, database: str
) -> None:
    """Its rows come as none."""
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with server.connect(database=database) as db:
        run(db, "SET SESSION binlog_format = STATEMENT", "CREATE TABLE a SELECT 1 AS n")
    with pytest.raises(UndecodableError, match=r"CREATE TABLE \.\.\. SELECT as a statement"):
        await caught_up(server, source, story)
    passing = source_of(server, include=[f"{database}.*"], pass_statements=[f"{database}.a"])
    await caught_up(server, passing, story)
    assert story.said == [("create", "a"), ("gap", "a")]


@on("mysql", "mariadb")
async def test_who_may_not_see_triggers_is_told_of_it(server: SqlServer, database: str) -> None:
    captured = f"{database}_in"
    user = f"u_{database}"
    with server.connect(database=database) as db:
        try:
            run(db, "CREATE TABLE log (id INT PRIMARY KEY)", f"CREATE DATABASE {captured}")
            run(db, f"CREATE TABLE {captured}.orders (id INT PRIMARY KEY)")
            run(db, f"CREATE USER {user} IDENTIFIED BY 'p'", f"GRANT SELECT ON *.* TO {user}")
            run(db, f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
            options = {"user": user, "password": "p", "include": [f"{captured}.*"]}
            source = source_of(server, **options)
            story = await follow(source, Story(), lambda _: True)
            run(db, "SET SESSION binlog_format = STATEMENT", "INSERT INTO log VALUES (1)")
            with pytest.raises(UndecodableError, match=r"privilege TRIGGER .* user itself"):
                await caught_up(server, source, story)
            run(db, f"GRANT TRIGGER ON {database}.* TO {user}")
            await caught_up(server, source, story)
            assert story.said == []
        finally:
            run(db, f"DROP DATABASE IF EXISTS {captured}", f"DROP USER IF EXISTS {user}")
