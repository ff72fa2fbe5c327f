"""What MariaDB has had since 10.11: read exactly, or refused by its name."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock.errors import ConfigError, UndecodableError
from tests.conftest import started
from tests.mysql.support import Story, caught_up, completed, run, source_of
from tests.mysql.test_images import begun, told
from tests.telling import follow
from tests_support.servers import MariaDbServer, MariaDbVersion

NODUP = "SET SESSION binlog_row_image = 'FULL_NODUP'"


@pytest.fixture
def later(mariadbs: Callable[[MariaDbVersion], MariaDbServer]) -> MariaDbServer:
    """The shared MariaDB 11.8."""
    return mariadbs("11.8")


@pytest.fixture
def database(later: MariaDbServer) -> Iterator[str]:
    """A database of this test's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with later.connect() as db:
        run(db, f"CREATE DATABASE {name}")
        yield name
        run(db, f"DROP DATABASE {name}")


async def test_an_image_without_repetitions_is_told_whole(
    later: MariaDbServer, database: str
) -> None:
    """S1: FULL_NODUP (11.6) has every column before an update, and behind it those that changed;
    of a REPLACE, too, and of a table without a key."""
    source, story = await begun(later, database)
    with later.connect(database=database) as db:
        run(
            *(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT DEFAULT 7, t TEXT)", NODUP),
            "INSERT INTO a VALUES (1, 1, 'x'), (2, 2, 'y')",
            "INSERT INTO a (id) VALUES (3)",
            "UPDATE a SET n = 5 WHERE id = 1",
            "REPLACE INTO a (id, t) VALUES (2, 'y')",
            "UPDATE a SET id = 9, n = n + 1 WHERE id = 3",
            "DELETE FROM a WHERE id = 1",
            *("CREATE TABLE k (n INT, t TEXT)", "INSERT INTO k VALUES (1, 'x')"),
            "UPDATE k SET n = 2",
        )
        there = run(db, "SELECT id, n, t FROM a")
    await caught_up(later, source, story)
    assert [told(event) for event in story.changes if event.collection == "a"] == [
        ("insert", None, {"id": 1, "n": 1, "t": "x"}, None, ()),
        ("insert", None, {"id": 2, "n": 2, "t": "y"}, None, ()),
        ("insert", None, {"id": 3, "n": 7, "t": None}, None, ()),
        ("replace", {"id": 1, "n": 1, "t": "x"}, {"id": 1, "n": 5, "t": "x"}, None, ()),
        ("replace", {"id": 2, "n": 2, "t": "y"}, {"id": 2, "n": 7, "t": "y"}, None, ()),
        ("delete", {"id": 3, "n": 7, "t": None}, None, None, ()),
        ("insert", None, {"id": 9, "n": 8, "t": None}, None, ()),
        ("delete", {"id": 1, "n": 5, "t": "x"}, None, None, ()),
    ]
    rows = story.rows()[f"{database}.a"]
    assert sorted(tuple(row.values()) for row in rows.values()) == sorted(there)
    assert [told(event)[:3] for event in story.changes if event.collection == "k"][1:] == [
        ("delete", {"n": 1, "t": "x"}, None),
        ("insert", None, {"n": 2, "t": "x"}),
    ]


async def test_an_image_without_repetitions_stops_capture_that_was_not_told_to_take_it(
    later: MariaDbServer, database: str
) -> None:
    """Invariant 10: of a session; of the server, capture does not begin."""
    source, story = await begun(later, database, on_partial_rows="halt")
    with later.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)")
        run(db, NODUP, "UPDATE a SET n = 2")
    with pytest.raises(
        UndecodableError, match=rf"{database}\.a that lack columns: binlog_row_image"
    ):
        await follow(source, story, lambda _: False)
    assert len(story.changes) == 1


@pytest.mark.server
async def test_a_server_whose_images_do_not_repeat_is_refused() -> None:
    with ExitStack() as stack:
        options = ["--binlog-row-image=FULL_NODUP"]
        server = started(stack, MariaDbServer(version="11.8", options=options))
        with pytest.raises(ConfigError, match="binlog_row_image is FULL_NODUP, and must be FULL"):
            await follow(source_of(server), Story(), lambda _: True)


async def test_a_table_that_is_versioned_by_transactions_stops_capture(
    later: MariaDbServer, database: str
) -> None:
    """Invariant 10: the server writes no rows of it, but the statement."""
    source, story = await begun(later, database)
    with later.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE z (id INT PRIMARY KEY, s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, "
            "e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) "
            "WITH SYSTEM VERSIONING",
            "INSERT INTO z (id) VALUES (1)",
        )
    with pytest.raises(UndecodableError, match="INSERT as a statement"):
        await follow(source, story, lambda _: False)


async def test_a_vector_is_copied_as_it_is_streamed(later: MariaDbServer, database: str) -> None:
    """S12: the stream has it as VARBINARY, the server's description as VECTOR."""
    streaming, story = await begun(later, database)
    with later.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, v VECTOR(2) NOT NULL, VECTOR INDEX (v))",
            "INSERT INTO a VALUES (1, VEC_FromText('[1.5,-2]')), (2, VEC_FromText('[0,0]'))",
        )
    await caught_up(later, streaming, story)
    copying = source_of(later, include=[f"{database}.a"], start="snapshot")
    copied = await follow(copying, Story(), completed)
    streamed, same = (
        [bytes(event.full_document or b"") for event in one.changes] for one in (story, copied)
    )
    assert streamed == same
    assert b'"base64":"AADAPwAAAMA="' in streamed[0]
