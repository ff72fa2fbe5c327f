"""Rows that lack columns: what they have is told, what they lack is named, nothing is made up."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UndecodableError
from penstock.event import ChangeEvent, Commit
from penstock.log.memory import MemoryLog
from penstock.sources.mysql.statements import writes_in_place
from penstock.spark.table.patch import State, decode_change, fold
from tests.mysql.support import Story, caught_up, run, source_of
from tests.seeds import seed_of
from tests.state.test_keeper import all_steps, current, keeping
from tests.telling import follow
from tests_support.servers import MariaDbServer, SqlServer

MINIMAL, NOBLOB, FULL = (
    f"SET SESSION binlog_row_image = '{i}'" for i in ("MINIMAL", "NOBLOB", "FULL")
)


async def begun(server: SqlServer, database: str, **options: Any) -> tuple[Any, Story]:
    options = {"on_partial_rows": "decode", **options}
    source = source_of(server, include=[f"{database}.*"], **options)
    return source, await follow(source, Story(), lambda _: True)


def told(event: ChangeEvent) -> tuple[str, Any, Any, Any, tuple[str, ...]]:
    """Operation, image before and after, what was updated, what is unchanged."""
    before, after, update = (
        None if one is None else json.loads(bytes(one))
        for one in (
            event.full_document_before_change,
            event.full_document,
            event.update_description,
        )
    )
    updated = None if update is None else update["updatedFields"]
    return event.operation.value, before, after, updated, event.unchanged


@pytest.mark.both_mariadbs
async def test_an_update_tells_what_was_sent_and_names_what_was_not(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S1: MINIMAL and NOBLOB, switched in the middle of a transaction."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, n INT, t TEXT)",
            "BEGIN",
            "INSERT INTO a VALUES (1, 1, 'x')",
            MINIMAL,
            "UPDATE a SET n = 2",
            "UPDATE a SET n = 3, t = NULL",
            NOBLOB,
            "UPDATE a SET n = 4",
            "UPDATE a SET t = 'y'",
            FULL,
            "UPDATE a SET n = 5",
            MINIMAL,
            "INSERT INTO a VALUES (2, 0, '') ON DUPLICATE KEY UPDATE n = 0",
            "INSERT INTO a (id, n) VALUES (1, 0) ON DUPLICATE KEY UPDATE n = 6",
            "DELETE FROM a WHERE id = 1",
            "COMMIT",
        )
    await caught_up(mariadb, source, story)
    assert [told(event) for event in story.changes] == [
        ("insert", None, {"id": 1, "n": 1, "t": "x"}, None, ()),
        ("update", None, {"id": 1, "n": 2}, {"n": 2}, ("t",)),
        ("replace", None, {"id": 1, "n": 3, "t": None}, None, ()),
        ("update", None, {"id": 1, "n": 4}, {"n": 4}, ("t",)),
        ("replace", None, {"id": 1, "n": 4, "t": "y"}, None, ()),
        ("replace", {"id": 1, "n": 4, "t": "y"}, {"id": 1, "n": 5, "t": "y"}, None, ()),
        ("insert", None, {"id": 2, "n": 0, "t": ""}, None, ()),
        ("update", None, {"id": 1, "n": 6}, {"n": 6}, ("t",)),
        ("delete", None, None, None, ()),
    ]
    assert {bytes(event.key) for event in story.changes} == {b'{"id":1}', b'{"id":2}'}


@pytest.mark.both_mariadbs
async def test_whoever_keeps_rows_has_those_of_the_server(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """S1: current rows, and what a table of Spark makes of the changes of each key."""
    rng = random.Random(seed_of("mysql-images"))
    source, story = await begun(mariadb, mariadb_database, columns={"mask": {"*.*.secret": "x"}})
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "CREATE TABLE a (k VARCHAR(9), id INT, n INT, `d.o.t` INT, t TEXT, b BLOB, secret INT, "
            "v INT AS (n + 1) VIRTUAL, PRIMARY KEY (id, k))",
        )
        for key in range(5):
            run(db, f"INSERT INTO a (id, k, n) VALUES ({key}, 'k', 0)")
        for number in range(150):
            run(db, rng.choice([MINIMAL, NOBLOB, FULL]))
            chosen = rng.sample(["n", "`d.o.t`", "t", "b", "secret"], rng.randrange(1, 5))
            sets = ", ".join(f"{column} = {rng.choice([number, 'NULL'])}" for column in chosen)
            where = f"id = {rng.randrange(5)}"
            what = rng.random()
            if what < 0.15:
                run(db, f"DELETE FROM a WHERE {where}")
                whole = "id, k, n, `d.o.t`, t, b, secret"
                run(db, f"INSERT IGNORE INTO a ({whole}) VALUES (1, 'k', 1, 2, 't', NULL, 3)")
            else:
                run(db, f"UPDATE {mariadb_database}.a SET {sets} WHERE {where}")
        there = run(db, "SELECT k, id, n, `d.o.t`, t, HEX(b), secret FROM a")
    await caught_up(mariadb, source, story)
    assert {event.operation.value for event in story.changes} == {
        *("insert", "update", "replace", "delete")
    }
    expected = {
        f'{{"id":{row[1]},"k":"k"}}': (*row[:6], None if row[6] is None else "x") for row in there
    }
    log = MemoryLog()
    await log.append([item for item in story.items if isinstance(item, Commit)])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        (kept,) = current(keeper, collections=frozenset({"a"})).values()
    assert {key: values(row or {}) for key, row in kept.items()} == expected
    assert {key: values(row) for key, row in folded(story).items()} == expected


def values(row: dict[str, Any]) -> tuple[Any, ...]:
    assert set(row) == {"k", "id", "n", "d.o.t", "t", "b", "secret"}
    blob = row["b"] and base64.b64decode(row["b"]["$binary"]["base64"]).hex().upper()
    return row["k"], row["id"], row["n"], row["d.o.t"], row["t"], blob, row["secret"]


def folded(story: Story) -> dict[str, dict[str, Any]]:
    """The rows as `to = "table"` folds them."""
    states: dict[str, State] = {}
    for sequence, event in enumerate(story.changes, start=1):
        full, update = event.full_document, event.update_description
        paths = event.disambiguated_paths
        change = decode_change(
            sequence=sequence,
            operation=event.operation.value,
            document=None,
            full_document=None if full is None else bytes(full).decode(),
            update_description=None if update is None else bytes(update).decode(),
            unchanged=event.unchanged,
            disambiguated_paths=None if paths is None else bytes(paths).decode(),
        )
        key = bytes(event.key).decode()
        states[key] = fold(states.get(key, State(document=None)), [change])
        assert not states[key].rejected
    return {key: state.document for key, state in states.items() if state.document is not None}


async def test_what_an_insert_did_not_send_is_not_known(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """The server leaves defaults out of a MINIMAL image: a row of them is no row with NULLs."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT DEFAULT 7, t TEXT)", MINIMAL)
        run(db, "INSERT INTO a (id) VALUES (1)", "INSERT INTO a VALUES (2, 2, 'x')")
        run(db, "UPDATE a SET n = 3", "UPDATE a SET id = 4 WHERE id = 2")
    await caught_up(mariadb, source, story)
    assert [told(event) for event in story.changes] == [
        ("insert", None, {"id": 1}, None, ("n", "t")),
        ("insert", None, {"id": 2, "n": 2, "t": "x"}, None, ()),
        ("update", None, {"id": 1, "n": 3}, {"n": 3}, ("t",)),
        ("update", None, {"id": 2, "n": 3}, {"n": 3}, ("t",)),
        ("delete", None, None, None, ()),
        ("insert", None, {"id": 4}, None, ("n", "t")),
    ]
    log = MemoryLog()
    await log.append([item for item in story.items if isinstance(item, Commit)])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        (kept,) = current(keeper, collections=frozenset({"a"})).values()
    assert kept == {'{"id":1}': None, '{"id":4}': None}


@pytest.mark.parametrize(
    "statements",
    [
        [MINIMAL, "REPLACE INTO a (id, n) VALUES (1, 5)"],
        [NOBLOB, "REPLACE INTO a (id, n) VALUES (1, 5)"],
        [MINIMAL, "SET SESSION binlog_annotate_row_events = OFF", "UPDATE a SET n = 5"],
        [
            "CREATE TABLE b (id INT PRIMARY KEY)",
            "CREATE TRIGGER x AFTER INSERT ON b FOR EACH ROW REPLACE INTO a (id, n) VALUES (1, 5)",
            MINIMAL,
            "INSERT INTO b VALUES (1)",
        ],
        [
            *(MINIMAL, "BEGIN", "UPDATE a SET n = 2"),
            *("SET SESSION binlog_annotate_row_events = OFF", "REPLACE INTO a (id) VALUES (1)"),
            "COMMIT",
        ],
    ],
)
async def test_what_may_be_a_replace_stops_capture(
    mariadb: MariaDbServer, mariadb_database: str, statements: list[str]
) -> None:
    """Invariant 10: a REPLACE resets what it does not name, and its image does not say so."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT, t TEXT)")
        run(db, "INSERT INTO a VALUES (1, 1, 'x')", *statements)
    with pytest.raises(UndecodableError, match="may be of a REPLACE"):
        await follow(source, story, lambda _: False)
    assert len([event for event in story.changes if event.collection == "a"]) == 1


async def test_a_table_without_a_key_is_logged_whole(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (n INT DEFAULT 7, t TEXT)", MINIMAL)
        run(db, "INSERT INTO a (t) VALUES ('x')", "UPDATE a SET n = 2", "DELETE FROM a")
    await caught_up(mariadb, source, story)
    assert [event.operation.value for event in story.changes] == [
        *("insert", "delete", "insert", "delete")
    ]
    assert not story.rows()


async def test_a_row_that_does_not_say_its_key_stops_capture(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Invariant 10."""
    source, story = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY DEFAULT 7, n INT)", MINIMAL)
        run(db, "INSERT INTO a (n) VALUES (1)")
    with pytest.raises(UndecodableError, match="lack columns of the key"):
        await follow(source, story, lambda _: False)


@pytest.mark.parametrize(
    ("statement", "is_in_place"),
    [
        ("UPDATE a SET n = 1", True),
        ("/* hi */ update `d`.`a`, b set n = 1", True),
        ("SET STATEMENT max_statement_time = 1 FOR UPDATE a SET n = 1", True),
        ("INSERT INTO d.a (n) VALUES (1) ON DUPLICATE KEY UPDATE n = 2", True),
        ("REPLACE INTO a VALUES (1)", False),
        ("UPDATE e.a SET n = 1", False),
        ("UPDATE b SET n = 'a'", False),
        ('UPDATE b SET n = "a"', False),
        ("UPDATE b SET n = 1 -- a", False),
        ("LOAD DATA INFILE 'x' REPLACE INTO TABLE a", False),
        ("", False),
    ],
)
def test_a_statement_is_known_to_write_in_place_or_not(statement: str, is_in_place: bool) -> None:
    assert writes_in_place(statement, ("d", "a")) == is_in_place
