"""Copies, rules of columns, partial images and scopes, where one meets the other."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mysql import MysqlSource
from penstock.sources.mysql.connection import Connected
from tests.mysql.support import Story, caught_up, run, source_of
from tests.telling import follow
from tests_support.servers import MariaDbServer

SALT = "0123456789abcdef"


def copied(story: Story) -> bool:
    return ("snapshot_completed", "") in story.said


async def copy(source: MysqlSource, *, on_item: Callable[[Any], object] = lambda _: None) -> Story:
    return await follow(source, Story(), copied, on_item=on_item)


@pytest.fixture
def db(mariadb: MariaDbServer, mariadb_database: str) -> Any:
    with mariadb.connect(database=mariadb_database) as connection:
        yield connection


async def test_a_copy_leaves_a_table_that_is_renamed_out_of_what_is_captured(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    """A gh-ost swap in the middle: the old table has another name, and no rules for it."""
    run(db, "CREATE TABLE t (id INT PRIMARY KEY, ssn VARCHAR(20))")
    run(db, "INSERT INTO t VALUES (1,'S-1'),(2,'S-2'),(3,'S-3')")
    name = f"{mariadb_database}.t"
    swapped: list[bool] = []

    def swap(item: Any) -> None:
        if not swapped and any(getattr(event, "snapshot", False) for event in item.events):
            swapped.append(True)
            run(db, "CREATE TABLE n LIKE t", "INSERT INTO n SELECT * FROM t")
            run(db, "RENAME TABLE t TO old, n TO t")

    options = {"start": "snapshot", "snapshot_chunk_documents": 1}
    rules = {"exclude": [f"{name}.ssn"]}
    story = await copy(source_of(mariadb, include=[name], columns=rules, **options), on_item=swap)
    assert swapped
    assert {event.collection for event in story.changes} == {"t"}
    assert "S-" not in repr([bytes(event.full_document or b"") for event in story.changes])


async def test_other_rules_for_a_table_without_a_key_are_a_gap_of_it(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    """Its rows are known by what is captured of them, and would never be ended."""
    run(db, "CREATE TABLE t (a INT, b VARCHAR(20))")
    include = [f"{mariadb_database}.*"]
    source = source_of(mariadb, include=include)
    story = await caught_up(mariadb, source)
    run(db, "INSERT INTO t VALUES (1,'x')")
    await caught_up(mariadb, source, story)
    rules = {"exclude": [f"{mariadb_database}.t.b"]}
    await caught_up(mariadb, source_of(mariadb, include=include, columns=rules), story)
    assert ("gap", "t") in story.said


async def test_a_hashed_key_is_in_no_position_of_a_copy(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    run(db, "CREATE TABLE t (email VARCHAR(50) PRIMARY KEY)")
    run(db, "INSERT INTO t VALUES ('anna@secret.example'),('bob@secret.example'),('carl@x')")
    positions: list[str] = []
    rules = {"hash": [f"{mariadb_database}.t.email"], "hash_salt": SALT}
    options = {"start": "snapshot", "snapshot_chunk_documents": 1}
    include = [f"{mariadb_database}.*"]
    story = await copy(
        source_of(mariadb, include=include, columns=rules, **options),
        on_item=lambda item: positions.append(getattr(item, "position", "")),
    )
    assert len(story.changes) == 3
    told = "".join(positions).lower()
    assert "secret" not in told
    assert b"anna@secret.example".hex() not in told


async def test_a_row_that_a_copy_holds_is_not_left_to_a_change_that_lacks_columns(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    """Of a table without snapshots, beside a session with MINIMAL images."""
    run(db, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT) ENGINE=MyISAM")
    run(db, "INSERT INTO t VALUES (1,10,100),(2,20,200)")
    done: list[int] = []

    def write(item: Any) -> None:
        if not done:
            done.append(1)
            run(db, "INSERT INTO t VALUES (3,30,300)")
        elif len(done) == 1 and any(isinstance(event, ChangeEvent) for event in item.events):
            done.append(2)
            run(db, "SET SESSION binlog_row_image=MINIMAL", "UPDATE t SET a=11 WHERE id=1")
            run(db, "SET SESSION binlog_row_image=FULL")

    options = {"start": "snapshot", "on_partial_rows": "decode"}
    story = await copy(
        source_of(mariadb, include=[f"{mariadb_database}.*"], **options), on_item=write
    )
    assert any(b'"b":100' in bytes(event.full_document or b"") for event in story.changes)


async def test_a_replace_of_a_trigger_is_not_taken_for_an_update(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    """The statement names the other table only as a column."""
    run(
        db,
        "CREATE TABLE audit (id INT PRIMARY KEY, a INT, b INT DEFAULT 7)",
        "CREATE TABLE t (id INT PRIMARY KEY, audit INT)",
        "INSERT INTO audit VALUES (1,1,99)",
        "INSERT INTO t VALUES (1,1)",
        "CREATE TRIGGER g AFTER UPDATE ON t FOR EACH ROW "
        "REPLACE INTO audit(id,a) VALUES (1,NEW.audit)",
    )
    include = [f"{mariadb_database}.*"]
    source = source_of(mariadb, include=include, on_partial_rows="decode")
    story = await caught_up(mariadb, source)
    run(db, "SET SESSION binlog_row_image=MINIMAL", "UPDATE t SET audit=5 WHERE id=1")
    with pytest.raises(UndecodableError, match="REPLACE"):
        await caught_up(mariadb, source, story)


async def test_an_event_has_the_same_id_whatever_else_is_captured(
    mariadb: MariaDbServer, mariadb_database: str, db: Connected
) -> None:
    """A1, P2: who leaves out what it knows by its id would lose another row."""
    run(db, "CREATE TABLE a (x INT, y INT)", "CREATE TABLE b (id INT PRIMARY KEY)")
    run(db, "INSERT INTO a VALUES (1,1)")
    name = mariadb_database
    place = (await caught_up(mariadb, source_of(mariadb, include=[f"{name}.*"]))).position
    run(db, "BEGIN", "UPDATE a SET y = 2", "INSERT INTO b VALUES (1)", "COMMIT")
    found: list[set[str]] = []
    for options in (
        {"include": [f"{name}.*"]},
        {"include": [f"{name}.b"]},
        {"include": [f"{name}.*"], "columns": {"exclude": [f"{name}.a.y"]}},
    ):
        story = await caught_up(mariadb, source_of(mariadb, **options), Story(place))
        found.append({event.event_id for event in story.changes if event.collection == "b"})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1
