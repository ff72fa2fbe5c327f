"""A MariaDB's tables in Zero: what its source tells, through any ALTER, is what a SELECT says."""

import json
import tomllib
from typing import Any

import pytest

from penstock.event import Commit
from penstock.wire import Stream
from penstock.zero.changes import Teller, Told
from penstock.zero.config import ZeroTablesConfig
from penstock.zero.mapping import Mapping
from tests.mysql.support import Story, caught_up, run, source_of
from tests.zero.folding import Replica
from tests.zero.how_to import blocks, configuration
from tests_support.servers import MariaDbServer, SqlServer

pytestmark = pytest.mark.server

HISTORY = (
    "CREATE TABLE {d}.a (id INT PRIMARY KEY, t TINYINT(1), dec_ DECIMAL(30,3), e ENUM('x','1'))",
    "INSERT INTO {d}.a VALUES (1, 1, -12345678901234567890.125, 'x'), (2, 0, NULL, '1')",
    "ALTER TABLE {d}.a ADD COLUMN f DOUBLE, ADD COLUMN big BIGINT UNSIGNED, DROP COLUMN e",
    "INSERT INTO {d}.a VALUES (3, 1, 0, 1.5, 7), (4, 1, 1, 2, NULL)",
    "UPDATE {d}.a SET id = 30, big = 18446744073709551615 WHERE id = 3",
    "ALTER TABLE {d}.a RENAME COLUMN t TO truth, CHANGE f fraction DOUBLE",
    "UPDATE {d}.a SET truth = 0 WHERE id = 4",
    "DELETE FROM {d}.a WHERE id = 2",
    "CREATE TABLE {d}.b (k VARCHAR(10), n INT, PRIMARY KEY (k, n), at DATETIME(6), d DATE)",
    "INSERT INTO {d}.b VALUES ('x', 1, '2026-01-02 03:04:05.000006', '2026-01-02')",
    "TRUNCATE {d}.b",
    "INSERT INTO {d}.b VALUES ('y', 2, '1969-12-31 23:59:59.5', '1969-12-31')",
    "INSERT INTO {d}.b VALUES ('y', 3, NULL, '2026-01-02')",
    "RENAME TABLE {d}.a TO {d}.c",
    "INSERT INTO {d}.c (id, truth) VALUES (5, 1)",
    "ALTER TABLE {d}.c MODIFY fraction DECIMAL(10,2)",
    "CREATE TABLE {d}.keyless (x INT)",
    "INSERT INTO {d}.keyless VALUES (1), (1)",
    "CREATE TABLE {d}.gone (id INT PRIMARY KEY)",
    "INSERT INTO {d}.gone VALUES (1)",
    "DROP TABLE {d}.gone",
)


def no_look_up(_: Stream, __: bytes) -> bytes | None:
    raise AssertionError("the source tells whole rows")


def folded(story: Story, config: dict[str, Any]) -> tuple[Replica, Teller]:
    teller, replica = Teller((), Mapping(ZeroTablesConfig.model_validate(config))), Replica()
    for item in story.items:
        assert isinstance(item, Commit)
        for event in item.events:
            for message in teller.told(Told.of(event), no_look_up):
                replica.apply(message)
    return replica, teller


async def test_a_replica_of_tables_that_are_altered_and_renamed_is_what_a_select_says_z7(
    start_mariadb: Any,
) -> None:
    server: MariaDbServer = start_mariadb()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", *(one.format(d="d") for one in HISTORY))
        selected = run(db, "SELECT id, truth, dec_, fraction, big FROM d.c ORDER BY id")
    story = await caught_up(server, source_of(server, include=["d.*"], start="beginning"))
    replica, teller = folded(
        story,
        {
            "tables": {
                "bees": {
                    "source": "db",
                    "collection": "d.b",
                    "columns": {"k": "text", "n": "int", "at": "timestamp", "d": "date"},
                }
            },
            "sources": {"db": {}},
        },
    )
    assert sorted(name for _, name in replica.tables) == ["bees", "c"]
    assert list(teller.left_out) == ["keyless"]
    names = ("id", "truth", "dec_", "fraction", "big")
    wanted = [dict(zip(names, row, strict=True)) for row in selected]
    found = sorted(replica.rows("c"), key=lambda row: row["id"])
    assert [{name: text(row.get(name)) for name in names} for row in found] == [
        {name: text(value) for name, value in row.items()} for row in wanted
    ]
    assert sorted(json.dumps(row) for row in replica.rows("bees")) == [
        '{"k": "y", "n": 2, "at": -500, "d": -86400000}',
        '{"k": "y", "n": 3, "d": 1767312000000}',
    ]


RENAMES = (
    "CREATE TABLE d.t (id INT PRIMARY KEY, a TEXT, b TEXT, c TEXT, n INT)",
    "INSERT INTO d.t VALUES (1, 'a', 'b', 'c', 1), (2, 'A', 'B', 'C', 2)",
    "ALTER TABLE d.t DROP COLUMN b, RENAME COLUMN a TO b",
    "ALTER TABLE d.t RENAME COLUMN b TO c, RENAME COLUMN c TO b",
    "INSERT INTO d.t VALUES (3, 'c', 'b', 3)",
    "ALTER TABLE d.t CHANGE c a VARCHAR(9), CHANGE b c TEXT, ADD COLUMN b TEXT",
    "ALTER TABLE d.t RENAME COLUMN A TO title, MODIFY ID INT, DROP n",
    "ALTER TABLE d.t ADD COLUMN n INT",
    "SET SESSION sql_mode = 'ANSI'",
    """ALTER TABLE d.t CHANGE "c" "C" TEXT COMMENT '"', RENAME COLUMN "b" TO "B" """,
    "SET SESSION sql_mode = ''",
    "INSERT INTO d.t (ID, title, B, C, n) VALUES (4, 'title', 'B', 'C', 4)",
)


@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
async def test_values_of_columns_that_change_their_names_are_where_a_select_finds_them(
    flavour: str, request: pytest.FixtureRequest
) -> None:
    server: SqlServer = request.getfixturevalue(f"start_{flavour}")()
    with server.connect() as db:
        run(db, "CREATE DATABASE d", *RENAMES)
        selected = run(db, "SELECT ID, title, B, C, n FROM d.t ORDER BY ID")
    story = await caught_up(server, source_of(server, include=["d.*"], start="beginning"))
    replica, _ = folded(story, {"sources": {"db": {}}})
    names = ("ID", "title", "B", "C", "n")
    assert set(replica.tables["public", "t"].columns) == set(names)
    found = sorted(replica.rows("t"), key=lambda row: row["ID"])
    assert [tuple(row.get(name) for name in names) for row in found] == selected


async def test_clients_and_mutations_are_live_as_the_how_to_has_them_for_sql_z6(
    start_mariadb: Any,
) -> None:
    """MariaDB's JSON is text, and the result of a mutation is a document all the same."""
    server: MariaDbServer = start_mariadb()
    tables, advance = (
        [one for one in example.split(";") if one.strip()] for example in blocks("sql")
    )
    result = json.dumps({"error": "app", "message": "no"})
    with server.connect() as db, db.cursor() as cursor:
        run(db, "CREATE DATABASE shop", *tables)
        for _ in range(3):
            for statement in advance:
                cursor.execute(statement, ("g", "c"))
        assert cursor.fetchone() == (3,)
        values = ("g", "c", 3, result)
        cursor.execute("INSERT INTO shop.zero_mutations VALUES (%s, %s, %s, %s)", values)
        values = ("g", "c", 4, result)
        cursor.execute("INSERT INTO shop.zero_mutations VALUES (%s, %s, %s, %s)", values)
        cursor.execute("DELETE FROM shop.zero_mutations WHERE mutationID = 4")
        db.commit()
    story = await caught_up(server, source_of(server, include=["shop.*"], start="beginning"))
    zero = tomllib.loads(configuration("mysql"))["serve"]["zero"]
    own = {name: {**zero[name], "source": "db"} for name in ("clients", "mutations")}
    replica, _ = folded(story, own)
    of = {"clientGroupID": "g", "clientID": "c"}
    assert replica.rows("clients", "zero_0") == [{**of, "lastMutationID": 3}]
    told = {**of, "mutationID": 3, "result": json.loads(result)}
    assert replica.rows("mutations", "zero_0") == [told]


def text(value: Any) -> Any:
    """Compared by digits: a decimal is text, and a double may be of a whole number."""
    return None if value is None else f"{float(value):.3f}"
