"""Tables in parts: whatever their keys are of, each row is read once; and what else they are."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings

from penstock.event import ChangeEvent
from penstock.testing.servers import MariaDbServer
from tests.mysql.anything import KINDS, Kind
from tests.mysql.support import Story, caught_up, completed, run, source_of
from tests.mysql.test_values import LOOSE, encoded
from tests.seeds import seed_of
from tests.telling import follow

NO_KEYS = ("TEXT", "BLOB", "JSON", "COMPRESSED")
"""Of these only a beginning can be in a key."""
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


def key_kinds() -> list[Kind]:
    return [kind for kind in KINDS if not any(word in kind.ddl for word in NO_KEYS)]


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


async def begun(server: MariaDbServer, database: str) -> Story:
    """A story that begins now."""
    source = source_of(server, include=[f"{database}.*"])
    return await follow(source, Story(), lambda _: True)


async def both_ways(server: MariaDbServer, database: str, told: Story, *, chunk: int) -> None:
    """The copy says what the stream said, byte by byte, and each row once."""
    await caught_up(server, source_of(server, include=[f"{database}.*"]), told)
    copy = source_of(
        server, include=[f"{database}.*"], start="snapshot", snapshot_chunk_documents=chunk
    )
    story = await follow(copy, Story(), completed)
    assert encoded(story) == encoded(told)
    # An ENUM that is no value and one that is empty are one key to the log.
    assert not Counter(map(place, story.changes)) - Counter(map(place, told.changes))


async def test_whatever_type_a_key_is_of_its_table_is_read_in_parts(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """A12: in the server's own order, by its collations and its own types' rules."""
    told = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, LOOSE)
        for number, kind in enumerate(key_kinds()):
            run(db, f"CREATE TABLE t{number} (k {kind.ddl} NOT NULL, n INT, PRIMARY KEY (k))")
            with db.cursor() as cursor:
                cursor.executemany(
                    f"INSERT IGNORE INTO t{number} VALUES (%s, 1)",
                    [(value,) for value in values_of(kind, 15)],
                )
    await both_ways(mariadb, mariadb_database, told, chunk=4)


async def test_keys_of_several_columns_are_read_in_parts(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    rng = random.Random(seed_of("mysql-copy-keys"))
    short = [kind for kind in key_kinds() if "300" not in kind.ddl and "255" not in kind.ddl]
    told = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
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
    await both_ways(mariadb, mariadb_database, told, chunk=3)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE t (a INT, v INT AS (a + 1) VIRTUAL, s INT AS (a + 2) STORED, b INT)",
         "INSERT INTO t (a, b) VALUES (1, 2), (NULL, 3)"],
        ["CREATE TABLE t (id INT PRIMARY KEY, x SET('x', ''), y SET(''), z ENUM('', 'a'))",
         "INSERT INTO t VALUES (1, 'x,', '', ''), (2, '', '', 'a'), (3, 1, 1, 1), (4, 2, 0, 2)"],
        ["CREATE TABLE t (id INT PRIMARY KEY, x TEXT, y BLOB, UNIQUE (x), UNIQUE (y))",
         "INSERT INTO t VALUES (1, 'x', 'y'), (2, NULL, NULL)"],
        ["CREATE TABLE t (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
         "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", "UPDATE t SET n = n + 1 WHERE id > 1",
         "DELETE FROM t WHERE id = 3"],
        [VERSIONED, "INSERT INTO t (id) VALUES (1)", "UPDATE t SET id = 2"],
        ["CREATE TABLE t (n INT) WITH SYSTEM VERSIONING", "INSERT INTO t VALUES (1)",
         "UPDATE t SET n = 2"],
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
         "INSERT INTO t SELECT seq FROM seq_1_to_9"],
    ],
    ids=lambda statements: statements[0][:60],
)  # fmt: skip
async def test_a_table_of_any_make_is_copied_as_the_stream_has_it(
    mariadb: MariaDbServer, mariadb_database: str, statements: list[str]
) -> None:
    """A11, A28, invariant 9."""
    told = await begun(mariadb, mariadb_database)
    with mariadb.connect(database=mariadb_database) as db:
        run(db, *statements)
    await both_ways(mariadb, mariadb_database, told, chunk=2)
