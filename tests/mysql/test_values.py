"""Every type and any value: what the log has is what the server itself says (A28, S2, S12)."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.sources.mysql.charsets import CODECS, LATIN1_TABLE
from tests.mysql.anything import AnyTable, Kind, kinds_of, normal, tables
from tests.mysql.support import Story, caught_up, run, source_of
from tests.seeds import cases
from tests.telling import follow
from tests_support.servers import MariaDbServer, SqlServer

LOOSE = "SET sql_mode = '', time_zone = '+00:00'"
"""The server takes zero dates, and makes what fits of what does not."""


Place = tuple[str, bytes]
"""A table, and a key in it."""


async def compare(server: SqlServer, database: str, made: dict[str, AnyTable]) -> int:
    """Make tables, read them from the binlog, and compare with what the server says.

    And, of a MariaDB, with what a copy of them says: the same bytes (invariant 9).
    """
    source = source_of(server, include=[f"{database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with server.connect(database=database) as db:
        run(db, LOOSE)
        for name, table in made.items():
            run(db, f"DROP TABLE IF EXISTS {name}")  # of an example that failed
            table.make(db, name)
        await caught_up(server, source, story)
        rows, compared = story.rows(), 0
        for name, table in made.items():
            ours = {row["id"]: row for row in rows.get(f"{database}.{name}", {}).values()}
            theirs = table.told(db, name)
            for number, row in theirs.items():
                for column, value in row.items():
                    found = ours[number][column]
                    what = table.columns[int(column[1:])][0].ddl if column != "id" else "INT"
                    assert normal(found) == normal(value), f"{what}: {found!r} is not {value!r}"
                    compared += 1
            assert ours.keys() == theirs.keys()
        assert (await copied(server, database)) == encoded(story)
        run(db, *(f"DROP TABLE {name}" for name in made))
    return compared


async def copied(server: SqlServer, database: str) -> dict[Place, bytes]:
    """What a copy tells of every row."""
    source = source_of(server, include=[f"{database}.*"], start="snapshot")
    story = await follow(source, Story(), lambda story: ("snapshot_completed", "") in story.said)
    assert all(event.snapshot for event in story.changes)
    return encoded(story)


def encoded(story: Story) -> dict[Place, bytes]:
    """The last document of every row, byte by byte: types, order and all."""
    rows: dict[Place, bytes] = {}
    for event in story.changes:
        place = (event.collection, bytes(event.key))
        rows.pop(place, None)
        if event.full_document is not None:
            rows[place] = bytes(event.full_document)
    return rows


@pytest.mark.both_mariadbs
@pytest.mark.parametrize("number", range(8))
async def test_each_type_alone_comes_as_the_server_says(
    mariadb: MariaDbServer, mariadb_database: str, number: int
) -> None:
    """The type matrix: the edges of each type, NULL and not."""
    every = kinds_of(mariadb)[number::8]
    made = {
        f"t{i}": AnyTable([(kind, True)], [[value] for value in [*edges(kind), None]], [])
        for i, kind in enumerate(every)
    }
    assert await compare(mariadb, mariadb_database, made) > len(every)


def edges(kind: Kind) -> list[object]:
    """The first values of a type that are tried, the same each time."""
    found: list[object] = []

    @settings(max_examples=12, database=None, derandomize=True, deadline=None)
    @given(kind.values)
    def collect(value: object) -> None:
        found.append(value)

    collect()
    return found


@settings(
    max_examples=cases(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(made=st.lists(tables(), min_size=1, max_size=3))
def test_any_rows_of_any_tables_come_as_the_server_says(
    mariadb: MariaDbServer, made: list[AnyTable]
) -> None:
    with mariadb.connect() as db:
        run(db, "CREATE DATABASE IF NOT EXISTS anything")
    asyncio.run(compare(mariadb, "anything", {f"t{i}": table for i, table in enumerate(made)}))


async def test_copy_and_stream_say_the_same_of_every_type_under_a_server_of_another_zone(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """S12, invariant 9."""
    server = start_mariadb(options=["--default-time-zone=+05:30"])
    with server.connect() as db:
        run(db, "CREATE DATABASE d")
    made = {
        f"t{i}": AnyTable([(kind, True)], [[value] for value in [*edges(kind), None]], [])
        for i, kind in enumerate(kinds_of(server))
    }
    assert await compare(server, "d", made) > len(made)


async def test_a_timestamp_is_the_same_instant_under_a_server_of_another_zone(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """S12: a TIMESTAMP is an instant, a DATETIME is what was written."""
    source = source_of(mariadb, include=[f"{mariadb_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mariadb.connect(database=mariadb_database) as db:
        run(
            db,
            "SET time_zone = '+05:30'",
            "CREATE TABLE a (id INT PRIMARY KEY, t TIMESTAMP(3), d DATETIME)",
            "INSERT INTO a VALUES (1, '2026-01-01 05:30:00.5', '2026-01-01 05:30:00')",
        )
    await caught_up(mariadb, source, story)
    assert msgspec.json.decode(story.changes[0].full_document or b"") == {
        "id": 1,
        "t": {"$date": "2026-01-01T00:00:00.500Z"},
        "d": "2026-01-01 05:30:00",
    }


@pytest.mark.parametrize("charset", ["latin1", "ascii"])
def test_each_byte_of_a_character_set_is_the_character_that_the_server_makes_of_it(
    mariadb: MariaDbServer, charset: str
) -> None:
    with mariadb.connect() as db:
        every = run(
            db,
            " UNION ALL ".join(
                f"SELECT CONVERT(CONVERT(x'{byte:02x}' USING {charset}) USING utf8mb4)"
                for byte in range(128 if charset == "ascii" else 256)
            ),
        )
    ours = LATIN1_TABLE if charset == "latin1" else bytes(range(128)).decode(CODECS[charset])
    assert [character for (character,) in every] == list(ours)
