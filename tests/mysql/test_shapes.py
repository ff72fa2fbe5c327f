"""A table is read as it was at its place in the binlog, whatever became of it."""

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Commit
from penstock.sources.mysql.definitions import defined
from penstock.sources.mysql.losses import loss_of
from penstock.sources.mysql.positions import MysqlPosition, Server, parse_position
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.shapes import KEPT_MAX, Shape, Shapes
from penstock.sources.mysql.statements import (
    Created,
    DatabaseDropped,
    Dropped,
    Effect,
    Name,
    Renamed,
    Unclear,
)
from tests.mysql.support import Story, caught_up, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer

Start = Callable[..., MariaDbServer]

HISTORY = (
    "CREATE TABLE d.a (id INT PRIMARY KEY, x INT, e ENUM('one', 'two'), v INT AS (x * 2) VIRTUAL)",
    "INSERT INTO d.a (id, x, e) VALUES (1, 1, 'two')",
    "ALTER TABLE d.a ADD COLUMN f INT FIRST, DROP COLUMN v, ADD COLUMN w INT AS (x + 1) STORED",
    "INSERT INTO d.a (f, id, x, e) VALUES (7, 2, 2, 'one')",
    "ALTER TABLE d.a RENAME COLUMN x TO v, MODIFY e ENUM('zero', 'one', 'two')",
    "INSERT INTO d.a (f, id, v, e) VALUES (8, 3, 3, 'zero')",
    "ALTER TABLE d.a DROP COLUMN w, MODIFY id BIGINT UNSIGNED, ADD u INT AS (v)",
    "INSERT INTO d.a (f, id, v, e) VALUES (9, 18446744073709551615, 4, 'two')",
    "ALTER TABLE d.a CHANGE u f2 INT AS (v) VIRTUAL, CHANGE f u INT",
    "INSERT INTO d.a (u, id, v, e) VALUES (10, 5, 5, 'two')",
    # A swap as gh-ost does it, of tables that are out of scope until they are renamed into it.
    "CREATE TABLE d._a_gho LIKE d.a",
    "ALTER TABLE d._a_gho DROP COLUMN f2, ADD COLUMN f2 INT DEFAULT 6, ADD g INT AS (v) VIRTUAL",
    "INSERT INTO d._a_gho (id, v, u) SELECT id, v, u FROM d.a WHERE id = 5",
    "RENAME TABLE d.a TO d._a_del, d._a_gho TO d.a",
    "DROP TABLE d._a_del",
    "INSERT INTO d.a (id, v) VALUES (11, 11)",
    "DROP TABLE d.a",
)
TOLD: list[dict[str, Any]] = [
    {"id": 1, "x": 1, "e": "two"},
    {"f": 7, "id": 2, "x": 2, "e": "one", "w": 3},
    {"f": 8, "id": 3, "v": 3, "e": "zero", "w": 4},
    {"f": 9, "id": 18446744073709551615, "v": 4, "e": "two"},
    {"u": 10, "id": 5, "v": 5, "e": "two"},
    {"u": None, "id": 11, "v": 11, "e": None, "f2": 6},
]


def documents(story: Story) -> list[dict[str, Any]]:
    return [json.loads(bytes(event.full_document or b"")) for event in story.changes]


def told_of(story: Story) -> list[dict[str, Any]]:
    """What was said of columns."""
    return [json.loads(bytes(event.description)) for event in story.shapes]


async def test_a_replay_of_a_tables_whole_life_has_the_values_of_the_time(
    start_mariadb: Start,
) -> None:
    """A15, S4: nothing of it is there any more when capture begins; from any position on."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", *HISTORY)
    options: dict[str, Any] = {"include": ["d.a"], "start": "beginning"}
    source = source_of(server, **options)
    story = await caught_up(server, source)
    assert documents(story) == TOLD
    positions = [item.position for item in story.items if isinstance(item, Commit) if item.events]
    for position in positions:
        again = await caught_up(server, source_of(server, **options), Story(position))
        rest = len(again.events)
        assert [event.event_id for event in again.events] == [
            event.event_id for event in story.events[len(story.events) - rest :]
        ]
        assert documents(again) == TOLD[len(TOLD) - len(again.changes) :]
        schemas = [event.schema_version for event in story.changes]
        assert [event.schema_version for event in again.changes] == (
            schemas[len(schemas) - len(again.changes) :]
        )


async def test_the_columns_are_told_in_the_first_transaction_that_has_rows_of_them(
    start_mariadb: Start,
) -> None:
    """A15: and each row says by which it was read."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", *HISTORY)
    story = await caught_up(server, source_of(server, include=["d.a"], start="beginning"))
    shapes = told_of(story)
    assert [[column["name"] for column in one["columns"]] for one in shapes] == [
        list(row) for row in TOLD
    ]
    assert shapes[0] == {
        "ns": {"db": "d", "coll": "a"},
        "schemaVersion": story.changes[0].schema_version,
        "columns": [
            {"name": "id", "type": "int"},
            {"name": "x", "type": "int", "nullable": True},
            {
                "name": "e",
                "type": "enum",
                "nullable": True,
                "charset": "utf8mb4",
                "values": ["one", "two"],
            },
        ],
        "key": ["id"],
    }
    places = [json.loads(bytes(event.origin or b"")) for event in story.shapes]
    assert all(place.keys() >= {"file", "offset"} for place in places)
    versions = [event.schema_version for event in story.changes]
    assert len(set(versions)) == len(TOLD)
    assert [one["schemaVersion"] for one in shapes] == versions
    assert all(0 < version < 1 << 53 for version in versions)
    events = [event for event in story.events if event in story.shapes or event in story.changes]
    assert [isinstance(event, ChangeEvent) for event in events] == [True, False] * len(TOLD)


async def test_a_virtual_column_is_known_from_before_capture_began_and_through_a_restart(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A15: altered while nobody captured, and read afterwards."""
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, V INT AS (id + 1) VIRTUAL, n INT)")
        source = source_of(mariadb, include=[f"{mariadb_database}.*"])
        story = await follow(source, Story(), lambda _: True)
        run(
            db,
            "INSERT INTO a (id, n) VALUES (1, 1)",
            "ALTER TABLE a CHANGE v w INT AS (id + 2) VIRTUAL, ADD v INT",
            "INSERT INTO a (id, n) VALUES (2, 2)",
            "ALTER TABLE a DROP COLUMN w",
        )
    await follow(source, story, lambda story: len(story.changes) == 1)
    await caught_up(mariadb, source_of(mariadb, include=[f"{mariadb_database}.*"]), story)
    assert documents(story) == [{"id": 1, "n": 1}, {"id": 2, "n": 2, "v": None}]


async def test_what_is_rolled_back_is_told_again(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source = source_of(mariadb, include=[f"{mariadb_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database, autocommit=False) as db:
        run(
            db,
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "CREATE TABLE i (id INT PRIMARY KEY)",
            "SAVEPOINT s",
            # What is dropped with a temporary table keeps what is taken back in the binlog.
            "CREATE TEMPORARY TABLE t (id INT)",
            "INSERT INTO i VALUES (1)",
            "DROP TEMPORARY TABLE t",
            "ROLLBACK",
            "INSERT INTO i VALUES (2)",
            "COMMIT",
        )
    await caught_up(mariadb, source, story)
    assert [event.document_id for event in story.changes] == ["2"]
    assert [event.collection for event in story.shapes] == ["i"]


def test_a_position_keeps_what_it_must_and_no_more() -> None:
    shapes = Shapes()
    for number in range(KEPT_MAX + 5):
        shapes.alter(Created(("d", f"t{number}")), {("d", f"t{number}"): frozenset("v")})
    shapes.learned(("d", "plain"), frozenset())
    shapes.alter(Created(("d", "new")), {("d", "new"): frozenset()})
    assert shapes.met(("d", "new"), 0)
    shapes.committed()
    kept = shapes.kept()
    assert len(kept) == KEPT_MAX
    assert kept[0] == Shape("d", "t5", ("v",), untold=True)
    assert ("d", "new") not in {(one.database, one.name) for one in kept}
    assert Shapes(kept).kept() == kept
    table = ("d", "t7")
    assert shapes.met(table, 3)
    assert not shapes.met(table, 4), "once"
    shapes.undone(3)
    assert shapes.met(table, 3)
    assert shapes.telling() == [table]
    shapes.committed()
    assert shapes.virtual(table) == frozenset("v")
    assert not shapes.met(table, 0)


ORDERS, GHOST, OLD = ("shop", "orders"), ("shop", "_orders_gho"), ("shop", "_orders_del")


@pytest.mark.parametrize(
    "effects",
    [
        [Renamed(ORDERS, OLD), Renamed(GHOST, ORDERS)],
        [Renamed(GHOST, ORDERS)],
        [Dropped(ORDERS)],
        [DatabaseDropped("shop")],
        [Unclear()],
        [None],
    ],
)
def test_varying_columns_are_told_anew_of_a_table_that_took_the_name(
    effects: list[Effect | None],
) -> None:
    """gh-ost and pt-online-schema-change swap tables: those columns were told of another name."""
    shapes, other = Shapes(), ("else", "orders")
    for table in (ORDERS, GHOST, other):
        assert shapes.met(table, 0, varying=True)
    shapes.committed()
    assert not shapes.met(ORDERS, 0, varying=True)
    for effect in effects:
        if effect is None:
            shapes.forget(ORDERS)
        else:
            shapes.alter(effect, {})
    assert shapes.met(ORDERS, 0, varying=True)
    shapes.committed()
    assert not shapes.met(ORDERS, 0, varying=True), "once"
    assert shapes.met(other, 0, varying=True) == (Unclear() in effects)


@pytest.mark.parametrize("to", [ORDERS, OLD])
def test_a_renamed_table_is_told_by_its_new_name(to: Name) -> None:
    shapes = Shapes()
    for table in (GHOST, to):
        assert shapes.met(table, 0, varying=True)
    shapes.committed()
    shapes.alter(Renamed(GHOST, to), {})
    for table in (GHOST, to):
        assert shapes.met(table, 0, varying=True)


def test_a_position_from_before_shapes_were_kept_is_read() -> None:
    said = parse_position('{"server":{"id":1},"gtids":"0-1-5","scope":{},"v":1}')
    assert said.shapes == ()


@pytest.mark.parametrize(
    ("statement", "virtual"),
    [
        ("CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (a) VIRTUAL, c INT AS (f(a, 1)))", "bc"),
        ("CREATE TABLE t (a INT AS (1) STORED, b INT AS (1) PERSISTENT, c INT DEFAULT (1))", ""),
        ("CREATE TABLE t (`a,b` INT AS (1), s TIMESTAMP AS ROW START, PERIOD FOR s (s), KEY (s))",
         ["a,b"]),
        ("CREATE TABLE t (a INT COMMENT 'x AS (1', b INT AS (')') COMMENT 'STORED')", "b"),
        ("CREATE TABLE t LIKE known", "vw"),
        ("CREATE TABLE t (LIKE known)", "vw"),
        ("CREATE TABLE t LIKE strange", None),
        ("CREATE TABLE IF NOT EXISTS known (v INT)", "vw"),
        ("CREATE TABLE IF NOT EXISTS t (v INT)", None),
        ("CREATE TABLE t SELECT 1", None),
        ("ALTER TABLE known ADD x INT AS (1), ADD COLUMN (y INT AS (1), z INT), ENGINE = InnoDB",
         "vwxy"),
        ("ALTER TABLE known DROP V, DROP INDEX w, DROP PRIMARY KEY", "w"),
        ("ALTER TABLE known DROP COLUMN IF EXISTS v, ADD v INT", "w"),
        ("ALTER TABLE known RENAME COLUMN v TO w, RENAME COLUMN w TO v", "vw"),
        ("ALTER TABLE known RENAME COLUMN a TO b, RENAME COLUMN v TO x", "wx"),
        ("ALTER TABLE known CHANGE v x INT AS (1) VIRTUAL, MODIFY COLUMN w INT", "x"),
        ("ALTER ONLINE TABLE known WAIT 5 ADD UNIQUE (v), ADD CONSTRAINT c CHECK (a > 1)", "vw"),
        ("ALTER TABLE known ADD COLUMN IF NOT EXISTS v INT AS (1)", "vw"),
        ("ALTER TABLE known ADD COLUMN IF NOT EXISTS x INT AS (1)", None),
        ("ALTER TABLE known ADD COLUMN IF NOT EXISTS x INT", "vw"),
        ("ALTER TABLE known DROP v, ADD COLUMN IF NOT EXISTS v INT AS (1)", "w"),
        ("ALTER TABLE known RENAME COLUMN v TO x, ADD IF NOT EXISTS v INT AS (1)", "wx"),
        ("ALTER TABLE known CHANGE COLUMN IF EXISTS nosuch r INT AS (1) VIRTUAL", "vw"),
        ("ALTER TABLE known CHANGE IF EXISTS nosuch v INT AS (1), DROP IF EXISTS v", "w"),
        ("ALTER TABLE known CHANGE IF EXISTS V x INT AS (1) VIRTUAL", "wx"),
        ("ALTER TABLE known MODIFY IF EXISTS nosuch INT AS (1), MODIFY IF EXISTS v INT AS (2)",
         "vw"),
        ("ALTER TABLE known RENAME COLUMN IF EXISTS nosuch TO v", "vw"),
        ("SET STATEMENT a = 1 FOR ALTER TABLE known DROP v", "w"),
        ("ALTER TABLE strange ADD v INT AS (1)", None),
        ("ALTER TABLE known ADD PARTITION (PARTITION p VALUES LESS THAN (5)), DROP PARTITION q",
         "vw"),
    ],
)  # fmt: skip
def test_virtual_columns_are_those_that_a_statement_makes(
    statement: str, virtual: str | list[str] | None
) -> None:
    def known(table: tuple[str, str]) -> frozenset[str] | None:
        return frozenset("vw") if table[1] == "known" else None

    found = defined(statement, database="d", known=known)
    assert found is not None
    assert found[1] == (None if virtual is None else frozenset(virtual))


@pytest.mark.parametrize("statement", ["DROP TABLE t", "CREATE INDEX i ON t (a)", "CREATE TABLE"])
def test_other_statements_say_nothing_of_columns(statement: str) -> None:
    assert defined(statement, database="d", known=lambda _: None) is None


WORDS = (
    *("CREATE", "ALTER", "TABLE", "t", "(", ")", ",", "ADD", "DROP", "COLUMN", "a", "b", "AS"),
    *("INT", "VIRTUAL", "LIKE", "CHANGE", "MODIFY", "'", "`", "\\", "."),
)


@given(st.lists(st.sampled_from(WORDS)))
def test_anything_is_read_as_a_statement_without_a_crash(words: list[str]) -> None:
    """S13."""
    defined(" ".join(words), database="d", known=lambda _: frozenset("a"))


@pytest.mark.parametrize(("mode", "kept"), [("halt", True), ("gap", False), ("snapshot", False)])
def test_what_was_known_of_tables_is_not_behind_a_gap(
    mode: Literal["halt", "gap", "snapshot"], kept: bool
) -> None:
    """S4: in between, any of them may have been altered."""
    known = MysqlPosition(Server(1), "0-1-5", Scope(), shapes=(Shape("d", "a", ("v",)),))
    loss = loss_of(known, until="0-1-9", why="purged", mode=mode)
    assert bool(loss.position.shapes) == kept
