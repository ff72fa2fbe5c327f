"""What happens to a table while it is copied: it is altered, renamed, dropped, emptied."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from tests.mysql.conftest import on
from tests.mysql.support import Rows, Story, caught_up, completed, numbers, run, source_of
from tests.mysql.test_copying import contents, copying
from tests.mysql.test_rekeyed import settled
from tests.telling import follow
from tests_support.servers import SqlServer

Act = Callable[[Any], object]


PARTITIONED = (
    "CREATE TABLE a (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
    "(PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20))"
)


def after_chunk(number: int, act: Callable[[], object]) -> Callable[[Commit | Fragment], None]:
    """Has something happen right behind a chunk of a copy."""
    left = number

    def look(item: Commit | Fragment) -> None:
        nonlocal left
        if any(isinstance(event, ChangeEvent) and event.snapshot for event in item.events):
            left -= 1
            if left == 0:
                act()

    return look


async def copied(
    server: SqlServer, database: str, *statements: str, after: int = 1, **options: Any
) -> tuple[Story, Rows]:
    """What is told of a copy in which these statements run behind a chunk, and what is there."""
    with server.connect(database=database) as db:
        source, story = copying(server, database, **options), Story()
        act = after_chunk(after, lambda: run(db, *statements))
        await follow(source, story, completed, on_item=act)
        await caught_up(server, source, story)
        tables = [
            str(name)
            for name, kind in run(db, "SHOW FULL TABLES")
            if (database, str(name)) in source.config.scope and kind == "BASE TABLE"
        ]
        assert len({event.event_id for event in story.events}) == len(story.events)
        return story, contents(db, database, *tables)


@pytest.fixture
def made(server: SqlServer, database: str) -> str:
    """Tables of nine rows: a and b, to be copied in three chunks each."""
    with server.connect(database=database) as db:
        for table in ("a", "b"):
            run(db, f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)")
            run(db, f"INSERT INTO {table} SELECT seq, seq FROM {numbers(1, 9)}")
    return database


@pytest.mark.parametrize(
    "statements",
    [
        ["RENAME TABLE a TO c"],
        ["RENAME TABLE b TO c"],
        ["RENAME TABLE a TO x, b TO a, x TO b"],
        ["RENAME TABLE a TO c", "CREATE TABLE a LIKE c", "INSERT INTO a VALUES (5, 50)"],
        ["DROP TABLE a"],
        ["DROP TABLE b"],
        [
            "DROP TABLE a",
            "CREATE TABLE a (id INT PRIMARY KEY, m INT)",
            "INSERT INTO a VALUES (1,2)",
        ],
        ["TRUNCATE TABLE a", "INSERT INTO a VALUES (2, 20), (8, 80)"],
        ["ALTER TABLE a ADD COLUMN m INT DEFAULT 7 FIRST", "UPDATE a SET n = 0"],
        ["UPDATE a SET n = 0", "ALTER TABLE a DROP COLUMN n", "UPDATE a SET id = id + 100"],
        ["CREATE TABLE c LIKE a", "INSERT INTO c SELECT * FROM a"],
        [
            # As gh-ost does it.
            "CREATE TABLE _a_gho (id INT PRIMARY KEY, n INT, m INT)",
            "INSERT INTO _a_gho SELECT id, n, 1 FROM a",
            "RENAME TABLE a TO _a_del, _a_gho TO a",
            "DROP TABLE _a_del",
        ],
    ],
    ids=lambda statements: statements[0],
)
@pytest.mark.parametrize("after", [1, 2, 4])
@on("mariadb", "files", soak=("mysql",))
async def test_a_table_that_changes_while_it_is_copied_ends_as_it_is(
    server: SqlServer, made: str, statements: list[str], after: int
) -> None:
    """Invariant 9, S4."""
    story, there = await copied(server, made, *statements, after=after)
    assert story.said[-1][0] == "snapshot_completed" or after == 4
    rows = story.rows(copies=True)
    for table in there.keys() | rows.keys():
        assert fitting(rows.get(table, {}), there[table]) == there[table], table


def fitting(rows: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Rows that were told before a column came or went: the log has them as they were then."""
    columns = {name for row in there.values() for name in row}
    found: dict[str, Any] = {}
    for key, row in rows.items():
        of = there.get(key, {})
        kept = {name: value for name, value in row.items() if name in columns}
        found[key] = {name: kept.get(name, value) for name, value in of.items()} if of else kept
    return found


@pytest.mark.parametrize(
    ("statement", "anew"),
    [
        ("ALTER TABLE a MODIFY id BIGINT", False),
        ("ALTER TABLE a CHANGE id oid INT", True),
        ("ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (n)", True),
        ("ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)", True),
        ("ALTER TABLE a MODIFY id VARCHAR(20)", True),
        ("ALTER TABLE a DROP PRIMARY KEY", True),
    ],
)
@pytest.mark.parametrize(
    ("after", "then"),
    [(1, "DO 0"), (2, "DELETE FROM a WHERE n = -1"), (4, "DELETE FROM a WHERE n = -1")],
)
@on("mariadb", "files", soak=("mysql",))
async def test_a_table_whose_key_changes_is_copied_from_its_beginning(
    server: SqlServer, made: str, statement: str, anew: bool, then: str, after: int
) -> None:
    """A place in the one key is none in the other, and a row by the one is no row by the other:
    what the copy, or the stream beside it, told by the key before ends with the copy."""
    story, there = await copied(server, made, "UPDATE a SET n = -n", statement, then, after=after)
    told = [event.operation for event in story.events if event.operation == "gap"]
    assert told == ["gap"] * anew
    rows = settled(story)[f"{made}.a"]
    if statement.endswith("DROP PRIMARY KEY"):
        assert len(rows) == (9 if then == "DO 0" else 8)  # by what they hold
    else:
        assert rows == there[f"{made}.a"]


async def test_a_table_that_is_renamed_into_scope_is_a_gap_and_is_copied(
    server: SqlServer, database: str
) -> None:
    """Its rows were never told. It is copied where new tables, or lost ones, are."""
    with server.connect(database=database) as db:
        scope = [f"{database}.a"]
        for number, options in enumerate(
            ({}, {"start": "snapshot"}, {"on_position_lost": "snapshot"})
        ):
            run(db, "DROP TABLE IF EXISTS a", "CREATE TABLE x (id INT PRIMARY KEY)")
            run(db, "INSERT INTO x VALUES (1), (2)")
            source = source_of(server, include=scope, **options)
            story = await follow(source, Story(), lambda story: bool(story.items))
            if options.get("start"):
                await follow(source, story, completed)
            told = len(story.said)
            run(db, "RENAME TABLE x TO a")
            if number:
                await follow(source, story, completed)
            await caught_up(server, source, story)
            said = [what for what, _ in story.said[told:]]
            assert said[:2] == ["drop", "gap"]
            assert said[2:] == (["snapshot_started", "snapshot_completed"] if number else [])
            assert [event.document_id for event in story.changes] == (["1", "2"] if number else [])


async def test_rows_that_change_without_a_word_are_copied_again_where_lost_ones_are(
    server: SqlServer, database: str
) -> None:
    with server.connect(database=database) as db:
        run(db, PARTITIONED)
        run(db, "CREATE TABLE b (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1), (11)")
        source = source_of(
            server, include=[f"{database}.*"], start="now", on_position_lost="snapshot"
        )
        story = await follow(source, Story(), lambda story: bool(story.items))
        run(db, "ALTER TABLE a DROP PARTITION p")
        await follow(source, story, completed)
    assert [what for what, _ in story.said] == [
        "modify",
        "gap",
        "snapshot_started",
        "snapshot_completed",
    ]
    assert [event.document_id for event in story.changes] == ["11"]
    again = Story(story.items[0].position)  # type: ignore[union-attr]
    await follow(source, again, completed)
    assert again.events[:3] == story.events[:3], "the same whenever it is read"


async def test_rows_that_change_without_a_word_during_a_copy_are_copied_in_it(
    server: SqlServer, database: str
) -> None:
    with server.connect(database=database) as db:
        run(db, PARTITIONED)
        run(db, f"INSERT INTO a SELECT seq FROM {numbers(1, 15)}")
    story, _ = await copied(server, database, "ALTER TABLE a DROP PARTITION p")
    assert [what for what, _ in story.said] == [
        "snapshot_started",
        "modify",
        "gap",
        "snapshot_started",
        "snapshot_completed",
    ]
    started = [e for e in story.events if e.operation == "snapshot_started"]
    again = msgspec.json.decode(started[-1].description)  # type: ignore[union-attr]
    assert (again["again"], again["collections"]) == (True, [f"{database}.a"])
    behind = story.events[story.events.index(started[-1]) :]
    rows = [event for event in behind if isinstance(event, ChangeEvent)]
    assert [event.document_id for event in rows] == [str(n) for n in range(10, 16)]


async def test_tables_that_come_into_scope_are_copied_where_the_start_is_a_copy(
    server: SqlServer, made: str
) -> None:
    one = source_of(server, include=[f"{made}.a"], start="snapshot")
    story = await follow(one, Story(), completed)
    for start in ("now", "snapshot"):
        both = source_of(server, include=[f"{made}.a", f"{made}.b"], start=start)
        again = Story(story.position)
        await follow(both, again, completed if start == "snapshot" else lambda s: bool(s.said))
        scoped = next(event for event in again.events if event.operation == "scope_changed")
        assert isinstance(scoped, SystemEvent)
        said = msgspec.json.decode(scoped.description)
        assert (said["added"], said["copied"]) == ([f"{made}.b"], start == "snapshot")
        assert {event.collection for event in again.changes} == (
            {"b"} if start == "snapshot" else set()
        )


async def test_a_table_that_leaves_the_scope_leaves_the_copy(server: SqlServer, made: str) -> None:
    story = await follow(copying(server, made), Story(), lambda story: bool(story.changes))
    only_b = source_of(server, include=[f"{made}.b"], start="snapshot")
    await follow(only_b, story, completed)
    rows = [event.collection for event in story.changes]
    assert rows == ["a"] * 3 + ["b"] * 9
