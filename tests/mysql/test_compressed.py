"""What a server compresses in its binlog is read like the rest."""

import json
from collections.abc import Callable

import pytest

from penstock.event import SchemaEvent
from penstock.sources.mysql.binlog import EventType
from tests.mysql.support import caught_up, run, source_of
from tests.mysql.test_decoding import split
from tests_support.servers import MariaDbServer

Start = Callable[..., MariaDbServer]
pytestmark = pytest.mark.both_mariadbs


async def test_compressed_rows_and_statements_are_all_told(start_mariadb: Start) -> None:
    """S1: the rows of a compressed event are dropped by the incumbent library, without a word."""
    server = start_mariadb(options=["--log-bin-compress=1", "--log-bin-compress-min-len=10"])
    source = source_of(server, start="beginning")
    with server.connect() as db:
        run(db, "CREATE DATABASE d")
        run(db, f"CREATE TABLE d.a (id INT PRIMARY KEY, t LONGTEXT COMMENT '{'x' * 500}')")
        rows = ", ".join(f"({n}, REPEAT('y', {n}))" for n in range(400))
        run(db, f"INSERT INTO d.a VALUES {rows}", "UPDATE d.a SET t = CONCAT(t, 'z')")
        run(db, "DELETE FROM d.a WHERE id >= 4")
        run(db, "INSERT INTO d.a VALUES (1000, REPEAT('w', 20000000))")
        there = dict(run(db, "SELECT id, t FROM d.a"))
    story = await caught_up(server, source)
    (rows_told,) = story.rows().values()
    assert {row["id"]: row["t"] for row in rows_told.values()} == there
    assert len(story.changes) == 400 + 400 + 396 + 1
    created = next(event for event in story.events if isinstance(event, SchemaEvent))
    assert "x" * 500 in json.loads(bytes(created.description))["statement"]
    with server.connect() as db:
        run(db, "FLUSH BINARY LOGS")
    kinds = {data[4] for data in split((server.data / "mysql-bin.000001").read_bytes())}
    assert kinds >= {
        EventType.QUERY_COMPRESSED,
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED_V1,
    }


async def test_compressed_columns_are_told_as_they_are_selected(start_mariadb: Start) -> None:
    """S1: column types 140 and 141, beside compressed events."""
    server = start_mariadb(options=["--log-bin-compress=1", "--log-bin-compress-min-len=10"])
    with server.connect() as db:
        run(
            db,
            "CREATE DATABASE d",
            "CREATE TABLE d.a (id INT PRIMARY KEY, t TEXT COMPRESSED, v VARCHAR(900) COMPRESSED, "
            "w VARCHAR(200) COMPRESSED CHARACTER SET latin1)",
            "INSERT INTO d.a VALUES (1, REPEAT('ž', 9000), REPEAT('v', 900), REPEAT('é', 200)), "
            "(2, '', '', ''), (3, NULL, NULL, NULL), (4, 'short', 's', 'é')",
        )
        there = run(db, "SELECT id, t, v, w FROM d.a")
    story = await caught_up(server, source_of(server, start="beginning"))
    (told,) = story.rows().values()
    assert [tuple(row.values()) for row in told.values()] == there
