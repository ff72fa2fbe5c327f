"""Tables in parts: whatever their keys are of, each row is read once; and what else they are."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings

from penstock.event import ChangeEvent
from tests.mysql.anything import KINDS, Kind
from tests.mysql.conftest import on
from tests.mysql.mysql_kinds import MYSQL_KINDS
from tests.mysql.ranges import by_ranges, reading
from tests.mysql.support import Story, caught_up, completed, numbers, run, source_of
from tests.mysql.test_values import LOOSE, encoded
from tests.seeds import seed_of
from tests.telling import follow
from tests_support.servers import MariaDbServer, SqlServer

NO_KEYS = ("TEXT", "BLOB", "JSON", "COMPRESSED", "VECTOR", "POINT", "GEOMETRY")
"""Of these only a beginning can be in a key, or nothing."""
EDGES: dict[str, list[object]] = {
    "YEAR": [0, 1901, 1970, 1999, 2000, 2155],
    "FLOAT": [0.1, -0.1, 1e-30, 3.4e38, 16777216.0, 0.3333333],
    "DOUBLE": [0.1, -0.1, 1e-300, 1e300, 1 / 3, 2.0**53],
}


VERSIONED = (
    "CREATE TABLE t (id INT PRIMARY KEY, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
    "b TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (a, b)) "
    "WITH SYSTEM VERSIONING"
)


def key_kinds(server: SqlServer) -> list[Kind]:
    kinds = KINDS if isinstance(server, MariaDbServer) else MYSQL_KINDS
    return [kind for kind in kinds if not any(word in kind.ddl for word in NO_KEYS)]


def values_of(kind: Kind, count: int) -> list[object]:
    """Some values, the same each time."""
    found = list(EDGES.get(kind.ddl, []))

    @settings(max_examples=count, database=None, derandomize=True, deadline=None)
    @given(kind.values)
    def collect(value: object) -> None:
        found.append(value)

    collect()
    return found


def place(event: ChangeEvent) -> tuple[str, bytes]:
    """Of which row it is."""
    return event.collection, bytes(event.key)


async def begun(server: SqlServer, database: str) -> Story:
    """A story that begins now."""
    source = source_of(server, include=[f"{database}.*"])
    return await follow(source, Story(), lambda _: True)


def keys_of(story: Story) -> dict[tuple[str, str], str]:
    """What the rows of each table are known by."""
    found = {(one.database, one.name): one.key for one in story.place.shapes if one.key}
    assert found.keys() == {(event.database, event.collection) for event in story.changes}
    return found


async def both_ways(server: SqlServer, database: str, told: Story, *, chunk: int) -> None:
    """The copy says what the stream said, byte by byte, and each row once; so do ranges."""
    await caught_up(server, source_of(server, include=[f"{database}.*"]), told)
    copy = source_of(
        server, include=[f"{database}.*"], start="snapshot", snapshot_chunk_documents=chunk
    )
    story = await follow(copy, Story(), completed)
    assert encoded(story) == encoded(told)
    # And neither takes the other's keys for those of before an ALTER.
    assert keys_of(story) == keys_of(told)
    # An ENUM that is no value and one that is empty are one key to the log: rows that share one are
    # told as often as they do not fall into one chunk, and chunks of ranges begin elsewhere.
    assert not Counter(map(place, story.changes)) - Counter(map(place, told.changes))
    assert told.position is not None
    ranged = reading(server, database, snapshot_chunk_documents=chunk)
    rows = await by_ranges(ranged, told.position, rows=chunk)
    assert {place(row): bytes(row.full_document or b"") for row in rows} == encoded(told)
    assert not Counter(map(place, rows)) - Counter(map(place, told.changes))


@on("mariadb", "mysql")
async def test_whatever_type_a_key_is_of_its_table_is_read_in_parts(
    server: SqlServer, database: str
) -> None:
    """A12: in the server's own order, by its collations and its own types' rules."""
    told = await begun(server, database)
    with server.connect(database=database) as db:
        run(db, LOOSE)
        for number, kind in enumerate(key_kinds(server)):
            run(db, f"CREATE TABLE t{number} (k {kind.ddl} NOT NULL, n INT, PRIMARY KEY (k))")
            with db.cursor() as cursor:
                cursor.executemany(
                    f"INSERT IGNORE INTO t{number} VALUES (%s, 1)",
                    [(value,) for value in values_of(kind, 15)],
                )
    await both_ways(server, database, told, chunk=4)


@on("mariadb", "mysql")
async def test_keys_of_several_columns_are_read_in_parts(server: SqlServer, database: str) -> None:
    rng = random.Random(seed_of("mysql-copy-keys"))
    short = [kind for kind in key_kinds(server) if "300" not in kind.ddl and "255" not in kind.ddl]
    told = await begun(server, database)
    with server.connect(database=database) as db:
        run(db, LOOSE)
        for number in range(30):
            kinds = rng.sample(short, rng.randrange(2, 4))
            names = [f"k{i}" for i in range(len(kinds))]
            columns = [
                f"{name} {kind.ddl} NOT NULL" for name, kind in zip(names, kinds, strict=True)
            ]
            order = rng.sample(names, len(names))
            run(
                db,
                f"CREATE TABLE t{number} ({', '.join(columns)}, PRIMARY KEY ({', '.join(order)}))",
            )
            some = [rng.choices(values_of(kind, 6), k=3) for kind in kinds]
            with db.cursor() as cursor:
                places = ", ".join(["%s"] * len(kinds))
                cursor.executemany(
                    f"INSERT IGNORE INTO t{number} VALUES ({places})",
                    [[rng.choice(values) for values in some] for _ in range(20)],
                )
    await both_ways(server, database, told, chunk=3)


ANYWHERE: list[list[str]] = [
    ["CREATE TABLE t (a INT, v INT AS (a + 1) VIRTUAL, s INT AS (a + 2) STORED, b INT)",
     "INSERT INTO t (a, b) VALUES (1, 2), (NULL, 3)"],
    ["CREATE TABLE t (id INT PRIMARY KEY, x SET('x', ''), y SET(''), z ENUM('', 'a'))",
     "INSERT INTO t VALUES (1, 'x,', '', ''), (2, '', '', 'a'), (3, 1, 1, 1), (4, 2, 0, 2)"],
    ["CREATE TABLE `a``b%s.c` (`select` INT PRIMARY KEY, `x``%d` INT INVISIBLE)",
     "INSERT INTO `a``b%s.c` (`select`, `x``%d`) VALUES (1, 2), (3, 4)"],
    ["CREATE TABLE t (a INT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE (a), UNIQUE u (c, b))",
     "INSERT INTO t VALUES (NULL, 1, 2), (NULL, 2, 1), (1, 1, 1)"],
    ["CREATE TABLE t (a VARCHAR(20) NOT NULL, UNIQUE (a(3)))", "INSERT INTO t VALUES ('abcd')"],
    ["CREATE TABLE t (a BLOB, n INT, PRIMARY KEY (a(2), n))",
     "INSERT INTO t VALUES ('abc', 1), ('abd', 2), ('b', 3), ('c', 4)"],
    ["CREATE TABLE t (x DOUBLE(10, 2), y FLOAT(7, 3), z DECIMAL(8, 2) ZEROFILL, w REAL)",
     "INSERT INTO t VALUES (0.1, 0.1, 0.1, -0e0), (12345678.91, 1234.567, 123456.78, 1e22)"],
    ["CREATE TABLE t (id INT, PRIMARY KEY (id DESC))",
     "INSERT INTO t VALUES (1), (2), (3), (4), (5)"],
    ["CREATE TABLE t (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 3",
     f"INSERT INTO t SELECT seq FROM {numbers(1, 9)}"],
]  # fmt: skip
OF_MARIADB: list[list[str]] = [
    ["CREATE TABLE t (id INT PRIMARY KEY, x TEXT, y BLOB, UNIQUE (x), UNIQUE (y))",
     "INSERT INTO t VALUES (1, 'x', 'y'), (2, NULL, NULL)"],
    ["CREATE TABLE t (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
     "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", "UPDATE t SET n = n + 1 WHERE id > 1",
     "DELETE FROM t WHERE id = 3"],
    [VERSIONED, "INSERT INTO t (id) VALUES (1)", "UPDATE t SET id = 2"],
    ["CREATE TABLE t (n INT) WITH SYSTEM VERSIONING", "INSERT INTO t VALUES (1)",
     "UPDATE t SET n = 2"],
]  # fmt: skip
OF_MYSQL: list[list[str]] = [
    ["CREATE TABLE t (a INT NOT NULL, v INT AS (a + 1) VIRTUAL NOT NULL, UNIQUE (v))",
     "INSERT INTO t (a) VALUES (1), (2), (3)"],
    ["CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, UNIQUE e ((a + 1)), UNIQUE k (b))",
     "INSERT INTO t VALUES (3, 1), (2, 2), (1, 3)"],
    ["SET sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a INT)",
     "INSERT INTO t (a) VALUES (1), (1), (NULL)", "SET sql_generate_invisible_primary_key = OFF"],
    [("CREATE TABLE t (id INT PRIMARY KEY, g GEOMETRYCOLLECTION, p POINT NOT NULL SRID 4326, "
     "m MULTIPOLYGON, SPATIAL INDEX (p))"),
     ("INSERT INTO t VALUES (1, ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))'), "
     "ST_GeomFromText('POINT(10 20)', 4326), NULL), (2, ST_GeomFromText('GEOMETRYCOLLECTION "
     "EMPTY'), ST_GeomFromText('POINT(-10 20)', 4326), NULL)")],
    ["CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, v VECTOR(3), w INT AS (id % 7) STORED)",
     ("INSERT INTO t (id, v) VALUES (0, NULL), (18446744073709551615, STRING_TO_VECTOR('[1,2]')), "
     "(9223372036854775808, STRING_TO_VECTOR('[-1.5,0,3e38]'))")],
    ["CREATE TABLE t (id INT PRIMARY KEY, a INT, INDEX (a) INVISIBLE, b INT INVISIBLE)",
     "INSERT INTO t (id, a, b) VALUES (1, 1, 1), (2, 2, NULL), (3, 3, 3)"],
    ["CREATE TABLE t (d DATE PRIMARY KEY, t TIMESTAMP NULL)", LOOSE,
     "INSERT INTO t VALUES ('0000-00-00', '0000-00-00'), ('2026-00-00', NULL), ('2026-01-00', 0)"],
]  # fmt: skip


@on("mariadb")
@pytest.mark.parametrize("statements", [*ANYWHERE, *OF_MARIADB], ids=lambda made: made[0][:60])
async def test_a_table_of_any_make_is_copied_as_the_stream_has_it(
    server: SqlServer, database: str, statements: list[str]
) -> None:
    """A11, A28, invariant 9."""
    told = await begun(server, database)
    with server.connect(database=database) as db:
        run(db, *statements)
    await both_ways(server, database, told, chunk=2)


@on("mysql")
@pytest.mark.parametrize("statements", [*ANYWHERE, *OF_MYSQL], ids=lambda made: made[0][:60])
async def test_a_table_of_any_make_of_a_mysql_is_copied_as_the_stream_has_it(
    server: SqlServer, database: str, statements: list[str]
) -> None:
    """A11, A28, invariant 9."""
    told = await begun(server, database)
    with server.connect(database=database) as db:
        run(db, *statements)
    await both_ways(server, database, told, chunk=2)
