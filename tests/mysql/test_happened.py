"""A statement that a server logs and that did nothing there is not told as done."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs
from pymysql.err import MySQLError

from penstock.audit.entries import entry_of
from penstock.audit.fold import Fold, decoded
from penstock.event import AnyEvent
from penstock.sources.mysql.happened import happened
from penstock.sources.mysql.shapes import Shape, Shapes
from penstock.sources.mysql.statements import (
    Altered,
    Cascading,
    Created,
    Dropped,
    Effect,
    Ensured,
    Name,
    Renamed,
    RowsChanged,
)
from penstock.wire import Stream
from penstock.zero import mapping
from penstock.zero.changes import Teller, Told
from penstock.zero.config import ZeroTablesConfig
from tests.audit.restoring import row_of
from tests.audit.support import BYTES_MAX
from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, run, source_of
from tests.telling import follow
from tests.zero.folding import Replica
from tests_support.servers import MariaDbServer, SqlServer

Tables = dict[str, list[dict[str, Any]]]
"""The rows of tables."""
A, B = ("d", "a"), ("d", "b")
RENAME_IF_EXISTS = "RENAME TABLE IF EXISTS"

TABLES = {
    "present": (
        (
            "CREATE TABLE present (id INT PRIMARY KEY, n INT, r INT, v INT AS (n + 1) VIRTUAL, "
            "KEY k (n))"
        ),
        "INSERT INTO present (id, n, r) VALUES (1, 10, 100), (2, 20, 200)",
    ),
    "other": ("CREATE TABLE other (id INT PRIMARY KEY, n INT)", "INSERT INTO other VALUES (3, 30)"),
    "parts": (
        (
            "CREATE TABLE parts (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
        ),
        "INSERT INTO parts VALUES (4, 40), (14, 140)",
    ),
    "view_1": ("CREATE VIEW view_1 AS SELECT 1 AS one",),
}
"""What is there before each form that names it, with rows that were told."""
UNSEEN = ("CREATE TABLE unseen (id INT PRIMARY KEY, n INT)", "INSERT INTO unseen VALUES (1, 1)")
"""And a table from before capture."""

BOTH = [
    "CREATE TABLE IF NOT EXISTS present (id INT PRIMARY KEY, r INT AS (1) VIRTUAL)",
    "CREATE TABLE IF NOT EXISTS present LIKE other",
    "CREATE TABLE IF NOT EXISTS present SELECT 7 AS id",
    "CREATE TABLE IF NOT EXISTS fresh (id INT PRIMARY KEY, n INT)",
    "CREATE TABLE IF NOT EXISTS fresh LIKE present",
    "CREATE TABLE IF NOT EXISTS fresh SELECT id, n FROM present",
    "CREATE TABLE IF NOT EXISTS view_1 (id INT PRIMARY KEY)",
    "CREATE TEMPORARY TABLE IF NOT EXISTS present (id INT)",
    "DROP TABLE IF EXISTS absent",
    "DROP TABLE IF EXISTS absent, present, view_1, absent2",
    "DROP TABLES IF EXISTS present RESTRICT",
    "DROP TEMPORARY TABLE IF EXISTS present",
    "DROP VIEW IF EXISTS present",
    "DROP VIEW IF EXISTS view_1",
    "DROP TRIGGER IF EXISTS present",
    "DROP PROCEDURE IF EXISTS present",
    "DROP FUNCTION IF EXISTS present",
    "DROP EVENT IF EXISTS present",
    "CREATE DATABASE IF NOT EXISTS {database}",
    "DROP DATABASE IF EXISTS {database}_",
    "DROP SCHEMA IF EXISTS {database}",
    "CREATE OR REPLACE VIEW view_1 AS SELECT 2 AS two",
    "TRUNCATE present",
    "TRUNCATE TABLE present",
    "INSERT IGNORE INTO present (id) VALUES (1), (5)",
    "REPLACE INTO present (id, n) VALUES (1, 11)",
    "UPDATE IGNORE present SET id = 1",
    "DELETE IGNORE FROM present WHERE id = 1",
    "CREATE TEMPORARY TABLE present (id INT); DROP TABLE present",
    "CREATE TEMPORARY TABLE present (id INT); TRUNCATE present",
    "CREATE TEMPORARY TABLE present (id INT); ALTER TABLE present RENAME TO fresh",
]
"""Statements of both servers that may do nothing, or something to other tables than they name."""

MARIADB = [
    *BOTH,
    "CREATE OR REPLACE TABLE present (id INT PRIMARY KEY, n INT)",
    "CREATE OR REPLACE TABLE present LIKE other",
    "CREATE OR REPLACE TABLE present SELECT id, n FROM other",
    "CREATE OR REPLACE TABLE present (id INT PRIMARY KEY) SELECT 1 AS id UNION ALL SELECT 1",
    "CREATE OR REPLACE TABLE fresh (id INT PRIMARY KEY, n INT)",
    "CREATE OR REPLACE TEMPORARY TABLE present (id INT)",
    "CREATE OR REPLACE SEQUENCE present",
    "CREATE SEQUENCE IF NOT EXISTS present",
    "DROP SEQUENCE IF EXISTS present",
    "ALTER SEQUENCE IF EXISTS present RESTART 5",
    "CREATE OR REPLACE DATABASE {database}",
    "CREATE VIEW IF NOT EXISTS present AS SELECT 1",
    "DROP TABLE IF EXISTS present WAIT 3",
    "DROP TABLE IF EXISTS absent NOWAIT",
    "TRUNCATE TABLE present WAIT 3",
    "ALTER TABLE IF EXISTS absent RENAME TO present",
    "ALTER TABLE IF EXISTS absent DROP COLUMN r",
    "ALTER TABLE IF EXISTS present RENAME TO fresh",
    "ALTER TABLE present NOWAIT ADD COLUMN m INT DEFAULT 5",
    "ALTER TABLE present ADD COLUMN IF NOT EXISTS r INT AS (1) VIRTUAL",
    "ALTER TABLE present ADD IF NOT EXISTS m INT AS (1) VIRTUAL",
    "ALTER TABLE present ADD COLUMN IF NOT EXISTS (v INT, m INT)",
    "ALTER TABLE present DROP COLUMN v, ADD COLUMN IF NOT EXISTS v INT AS (n) VIRTUAL",
    (
        "ALTER TABLE present DROP COLUMN v, ADD COLUMN IF NOT EXISTS v INT AS (n) VIRTUAL; "
        "ALTER TABLE present ADD COLUMN v INT DEFAULT 9"
    ),
    (
        "ALTER TABLE present RENAME COLUMN v TO w, ADD COLUMN IF NOT EXISTS v INT AS (n) VIRTUAL; "
        "ALTER TABLE present ADD COLUMN v INT DEFAULT 9"
    ),
    "ALTER TABLE present DROP COLUMN IF EXISTS absent",
    "ALTER TABLE present DROP IF EXISTS r",
    "ALTER TABLE present DROP IF EXISTS v, ADD v INT DEFAULT 7",
    "ALTER TABLE present CHANGE COLUMN IF EXISTS absent r INT AS (n + 1) VIRTUAL",
    "ALTER TABLE present CHANGE IF EXISTS absent v INT",
    "ALTER TABLE present CHANGE IF EXISTS v w INT AS (n + 1) VIRTUAL",
    "ALTER TABLE present CHANGE IF EXISTS r s BIGINT",
    (
        "ALTER TABLE present CHANGE IF EXISTS absent v INT AS (1) VIRTUAL, DROP IF EXISTS v; "
        "ALTER TABLE present ADD COLUMN v INT DEFAULT 9"
    ),
    (
        "ALTER TABLE present MODIFY COLUMN IF EXISTS absent INT AS (1) VIRTUAL; "
        "ALTER TABLE present ADD COLUMN absent INT DEFAULT 9"
    ),
    "ALTER TABLE present MODIFY IF EXISTS v INT AS (n + 2) VIRTUAL",
    "ALTER TABLE present RENAME COLUMN IF EXISTS absent TO v",
    "ALTER TABLE present RENAME COLUMN IF EXISTS v TO w",
    "ALTER TABLE present RENAME COLUMN IF EXISTS r TO s",
    "ALTER TABLE present ALTER COLUMN IF EXISTS absent SET DEFAULT 5",
    "ALTER TABLE present RENAME INDEX IF EXISTS absent TO k",
    "ALTER TABLE present RENAME KEY IF EXISTS k TO l",
    "ALTER TABLE present ADD INDEX IF NOT EXISTS k (r)",
    "ALTER TABLE present ADD UNIQUE IF NOT EXISTS k (r)",
    "ALTER TABLE present ADD CONSTRAINT IF NOT EXISTS c CHECK (id > 0)",
    "ALTER TABLE present ADD FOREIGN KEY IF NOT EXISTS f (id) REFERENCES present (id)",
    "ALTER TABLE present DROP INDEX IF EXISTS absent",
    "ALTER TABLE present DROP KEY IF EXISTS k",
    "ALTER TABLE present DROP FOREIGN KEY IF EXISTS absent",
    "ALTER TABLE present DROP CONSTRAINT IF EXISTS absent",
    "CREATE INDEX IF NOT EXISTS k ON present (n)",
    "CREATE OR REPLACE INDEX k ON present (r)",
    "DROP INDEX IF EXISTS absent ON present",
    "DROP INDEX IF EXISTS k ON present",
    "ALTER TABLE parts ADD PARTITION IF NOT EXISTS (PARTITION p1 VALUES LESS THAN (30))",
    "ALTER TABLE parts ADD PARTITION IF NOT EXISTS (PARTITION p2 VALUES LESS THAN (30))",
    "RENAME TABLE IF EXISTS absent TO present",
    "RENAME TABLE IF EXISTS present TO fresh",
    "RENAME TABLES IF EXISTS absent WAIT 3 TO present, other NOWAIT TO fresh",
    "RENAME TABLE IF EXISTS present TO spare, other TO present, spare TO other",
    "RENAME TABLE IF EXISTS present TO fresh, present TO other",
    "ALTER IGNORE TABLE IF EXISTS absent ADD UNIQUE (n)",
]

UNDECIDED = {
    "RENAME TABLE IF EXISTS absent TO fresh": {"fresh"},
    "RENAME TABLE IF EXISTS absent TO unseen": {"unseen"},
    "RENAME TABLE IF EXISTS unseen TO fresh": {"fresh"},
    "RENAME TABLE IF EXISTS view_1 TO view_2": {"view_2"},
    "RENAME TABLE IF EXISTS unseen TO fresh, absent TO present": {"fresh"},
    "CREATE TEMPORARY TABLE tmp (id INT); RENAME TABLE tmp TO present": {"tmp", "present"},
    "CREATE TEMPORARY TABLE present (id INT); RENAME TABLE present TO other": {"present", "other"},
    "ALTER TABLE parts DROP PARTITION IF EXISTS absent": {"parts"},
    "ALTER TABLE parts DROP PARTITION IF EXISTS p0": {"parts"},
    "ALTER IGNORE TABLE present ADD UNIQUE (n)": {"present"},
}
"""Statements of MariaDB of which neither text nor history says what they did, and their gaps."""


async def test_what_statements_of_mariadb_did_is_told_and_nothing_else(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    await tried(mariadb, mariadb_database, {form: set[str]() for form in MARIADB} | UNDECIDED)


@on("mysql")
async def test_what_statements_of_mysql_did_is_told_and_nothing_else(
    server: SqlServer, database: str
) -> None:
    await tried(server, database, {form: set[str]() for form in BOTH})


async def tried(server: SqlServer, prefix: str, forms: Mapping[str, set[str]]) -> None:
    """Run each statement in a database of its own. What was told adds up to the rows that are
    there, but of tables that have a gap, which are these."""
    databases = {f"{prefix}_{number}": form for number, form in enumerate(forms)}
    with server.connect() as db:
        try:
            for database, form in databases.items():
                run(db, f"CREATE DATABASE {database}")
                if "unseen" in form:
                    run(db, f"USE {database}", *UNSEEN)
            source = source_of(server, include=[f"{prefix}_*.*"])
            story = await follow(source, Story(), lambda _: True)
            there = {one: after(server, one, form) for one, form in databases.items()}
            await caught_up(server, source, story)
        finally:
            for database in databases:
                run(db, f"DROP DATABASE IF EXISTS {database}")
    told, gaps = story.rows(copies=True), dict[str, set[str]]()
    for event in story.system:
        gaps.setdefault(event.database, set()).add(event.collection)
    fold = folded(story.events)
    for database, form in databases.items():
        assert (form, gaps.get(database, set())) == (form, forms[form])
        left_out = {*forms[form], "unseen"}
        expected = {table: rows for table, rows in there[database].items() if table not in left_out}
        found = {
            table: [*rows.values()]
            for (of, _, table), rows in ((one.partition("."), rows) for one, rows in told.items())
            if of == database and table not in left_out
        }
        assert (form, by_text(found)) == (form, by_text(expected))
        in_trail = {
            table.name[1]: [row.values for row in table.rows.values()]
            for table in fold.tables.values()
            if table.name[0] == database and table.name[1] not in left_out
        }
        agree(form, in_trail, expected)
        in_zero, keyless = of_zero([one for one in story.events if one.database == database])
        agree(
            form,
            {table: rows for table, rows in in_zero.items() if table not in left_out},
            {table: rows for table, rows in expected.items() if table not in keyless},
        )


def by_text(tables: Tables) -> dict[str, list[str]]:
    return {name: sorted(map(json.dumps, rows)) for name, rows in tables.items()}


def folded(events: Sequence[AnyEvent]) -> Fold:
    """What the trail of these events says."""
    fold = Fold()
    for at, event in enumerate(events, start=1):
        entry = entry_of(row_of(event, at, 0, 1, at), tz="UTC", bytes_max=BYTES_MAX)
        assert entry.record is not None
        fold.take({**decoded(entry.record), "at": at})
    return fold


def of_zero(events: Sequence[AnyEvent]) -> tuple[Tables, Collection[str]]:
    """The rows of the tables of Zero that these events make, and the tables that have no key."""

    def unknown(_: Stream, __: bytes) -> bytes | None:
        raise AssertionError("nothing has to be looked up")

    teller = Teller((), mapping.Mapping(ZeroTablesConfig.model_validate({"sources": {"db": {}}})))
    replica = Replica()
    for event in events:
        for message in teller.told(Told.of(event), unknown):
            replica.apply(message)
    rows = {
        table.collection: [
            {one.path: row[one.name] for one in table.columns if one.name in row}
            for row in replica.rows(table.name)
        ]
        for table in teller.tables
        if table.source
    }
    return rows, teller.left_out


def agree(form: str, found: Tables, expected: Tables) -> None:
    """The same rows are there, each with nothing that is not. A table has rows here that does not
    say which columns they got since they were written."""
    rows = {name: of_table for name, of_table in found.items() if of_table}
    assert (form, sorted(rows)) == (form, sorted(expected))
    for name, of_table in rows.items():
        by_id = {row["id"]: row for row in expected[name]}
        assert (form, sorted(row["id"] for row in of_table)) == (form, sorted(by_id))
        for row in of_table:
            there = by_id[row["id"]]
            told = {column: value for column, value in row.items() if column in there}
            assert (form, told) == (form, {column: there[column] for column in told})


def after(server: SqlServer, database: str, form: str) -> Tables:
    """The rows of a database's tables that have some, without virtual columns, behind a statement
    and an update of them all."""
    with server.connect(database=database) as db:
        for name, made in TABLES.items():
            if name in form:
                run(db, *made)
        for statement in form.format(database=database).split("; "):
            with suppress(MySQLError):  # some fail, and are in the binlog all the same
                run(db, statement)
    found: Tables = {}
    with server.connect() as db:
        described = run(
            db,
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS JOIN "
            "information_schema.TABLES USING (TABLE_SCHEMA, TABLE_NAME) WHERE TABLE_TYPE = "
            f"'BASE TABLE' AND TABLE_SCHEMA = '{database}' AND EXTRA NOT LIKE '%VIRTUAL%' "
            "ORDER BY ORDINAL_POSITION",
        )
        columns: dict[str, list[str]] = {}
        for table, column in described:
            columns.setdefault(table, []).append(column)
        for table, names in columns.items():
            if "n" in names:
                run(db, f"UPDATE {database}.{table} SET n = n + 1")
            rows = run(db, f"SELECT {', '.join(names)} FROM {database}.{table}")
            if rows:
                found[table] = [dict(zip(names, row, strict=True)) for row in rows]
    return found


def test_a_server_that_says_that_it_changed_something_has_made_the_table() -> None:
    for there in (Shapes(), Shapes([Shape(*A, ("v",))])):
        assert [*happened(Ensured(A), there, changed=True)] == [Created(A)]
        did = happened(Ensured(A, cascading=True), there, changed=True)
        assert [*did] == [Created(A), Cascading(A)]
    assert [*happened(Altered(A), Shapes(), changed=True)] == [Altered(A)]


@pytest.mark.parametrize(
    ("said", "there", "did"),
    [
        (Ensured(A), [A], []),
        (Ensured(A), [], [Altered(A)]),
        (Ensured(A, cascading=True), [A], []),
        (Ensured(A, cascading=True), [B], [Altered(A), Cascading(A)]),
        (Renamed(A, B), [], [Renamed(A, B)]),
        (Renamed(A, B), [A], [Renamed(A, B)]),
        (Renamed(A, B), [B], [RowsChanged(A, "RENAME TABLE"), RowsChanged(B, "RENAME TABLE")]),
        (Renamed(A, B, True), [A], [Renamed(A, B, True)]),
        (Renamed(A, B, True), [B], []),
        (Renamed(A, B, True), [], [Dropped(A), RowsChanged(B, RENAME_IF_EXISTS)]),
        (
            Renamed(A, B, True),
            [A, B],
            [RowsChanged(A, RENAME_IF_EXISTS), RowsChanged(B, RENAME_IF_EXISTS)],
        ),
        (Created(A), [A], [Created(A)]),
    ],
)
@pytest.mark.parametrize("known_by", [Shape("", "", ("v",)), Shape("", "", key="id")])
def test_what_is_known_of_the_tables_decides(
    said: Effect | Ensured, there: list[Name], did: list[Effect], known_by: Shape
) -> None:
    shapes = Shapes(structs.replace(known_by, database=one[0], name=one[1]) for one in there)
    assert [*happened(said, shapes)] == did
    doubted = {one.table for one in did if isinstance(one, RowsChanged)}
    assert doubted.isdisjoint({one for one in there if one in shapes})
