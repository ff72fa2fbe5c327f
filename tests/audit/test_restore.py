"""Tables come back exactly as they were (A25): proved against copies that the server made."""

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pymysql
import pytest
from deltalake import DeltaTable

from penstock.audit.fold import Table
from penstock.audit.points import Place
from penstock.audit.trail import Trail
from penstock.cli.restore_asked import Asked
from penstock.cli.restore_sql import filling
from penstock.cli.restoring import undone_to
from penstock.errors import AuditError, PenstockError
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.restoring.making import Making
from penstock.sources.mysql.restoring.server import Server, target_of
from penstock.sources.mysql.restoring.sql import Statement
from tests.audit.restoring import KEEP_MODE, Audited, differing, keep, restore, tables_of
from tests.audit.support import row, write
from tests.mysql.support import purge, run
from tests_support.servers import MariaDbServer, SqlServer

pytestmark = pytest.mark.server


both_servers = pytest.mark.parametrize("sql_server", ["mariadb", "mysql"], indirect=True)


@pytest.fixture
def audited(sql_server: SqlServer, trail: Trail, db: Connected, tmp_path: Path) -> Audited:
    run(db, "CREATE DATABASE d")
    return Audited(sql_server, trail, ["d"], tmp_path)


TYPES = """
    id INT PRIMARY KEY, ti TINYINT, bu BIGINT UNSIGNED, bs BIGINT, de DECIMAL(65,30), fl FLOAT,
    dbl DOUBLE, bi BIT(64), ye YEAR, da DATE, tm TIME(3), dt DATETIME(6), ts TIMESTAMP(6) NULL,
    tz TIMESTAMP NULL, ch CHAR(20), vc VARCHAR(200), la VARCHAR(50) CHARACTER SET latin1, tx TEXT,
    en ENUM('a','b c','ž'), st SET('x','y','ž'), bn BINARY(5), vb VARBINARY(50), bl BLOB, js JSON,
    ge GEOMETRY,
    up TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    vi INT AS (id + 1) VIRTUAL, so INT AS (id + 2) STORED
"""
OWN = {
    False: {"uu": "UUID", "i4": "INET4", "i6": "INET6"},
    True: {"jb": "JSON", "ve": "VECTOR(3)"},
}
"""Of MariaDB, and of MySQL."""


def on_mysql(db: Connected) -> bool:
    ((version,),) = run(db, "SELECT VERSION()")
    return "MariaDB" not in str(version)


def own(rng: random.Random, *, of_mysql: bool) -> dict[str, str]:
    """Values of OWN."""
    if not of_mysql:
        return {
            "uu": "UUID()",
            "i4": rng.choice(["'1.2.3.4'", "NULL"]),
            "i6": rng.choice(["'::1'", "'ffff::'", "NULL"]),
        }
    return {
        "jb": rng.choice([
            "'5'", "'-0.0'", "'18446744073709551615'", "'\"5\"'", "'[\"a\", \"b\"]'", "'true'",
            "CAST(1.10 AS JSON)", "JSON_ARRAY(X'00ff', 1.10, 2e0)", "NULL",
            "JSON_OBJECT('a', CAST(7 AS DECIMAL(65, 0)), 'ž', JSON_ARRAY(), 'q''\"', NULL)",
        ]),
        "ve": rng.choice(["TO_VECTOR('[1, 2.5, -0]')", "TO_VECTOR('[1.5e-10]')", "NULL"]),
    }  # fmt: skip


def everything(rng: random.Random, key: int, *, of_mysql: bool) -> str:
    """A row of TYPES."""
    texts = [
        "''",
        "' a '",
        "'a''b'",
        r"'\\\\'",
        r"'\\n\\0\\Z'",
        "'ž\U0001f600'",
        "'\"'",
        "NULL",
        "'null'",
    ]
    values = {
        "id": key,
        "ti": rng.choice([-128, 127, 0, "NULL"]),
        "bu": rng.choice([0, 2**64 - 1, 2**63, 5]),
        "bs": rng.choice([-(2**63), 2**63 - 1, 2**53 + 1]),
        "de": rng.choice(["'-99999999999999999999999999999999999.999999999999999999999999999999'",
                          "'0.10'", "0", "NULL"]),
        "fl": rng.choice(["1.1e0", "3.4028234663852886e38", "1e-45", "0", rng.random()]),
        "dbl": rng.choice(["0.1e0", "5e-324", "1.7976931348623157e308", rng.random() * 1e100]),
        "bi": rng.choice([0, 2**64 - 1, 7]),
        "ye": rng.choice(["0", "1901", "2155"]),
        "da": rng.choice(["'0000-00-00'", "'2026-00-31'", "'2026-02-31'", "'9999-12-31'"]),
        "tm": rng.choice(["'-838:59:59.000'", "'00:00:00.001'", "'-00:00:00.5'"]),
        "dt": rng.choice(["'2026-01-31 23:59:59.000001'", "'0000-00-00 00:00:00'", "NOW(6)"]),
        "ts": rng.choice(["'2026-01-31 23:59:59.123456'", "NOW(6)", "NULL", "'0000-00-00'"]),
        "tz": rng.choice(["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "NULL"]),
        "ch": rng.choice(texts),
        "vc": rng.choice(texts),
        "la": rng.choice(["'é€'", "''", "NULL"]),
        "tx": rng.choice([*texts, "REPEAT('x', 70000)" if rng.random() < 0.01 else "'t'"]),
        "en": rng.choice(["'a'", "'b c'", "'ž'", "'no'", "NULL"]),
        "st": rng.choice(["''", "'x'", "'ž,x'", "NULL"]),
        "bn": rng.choice(["''", "x'6100'", "x'ff00ff00ff'", "NULL"]),
        "vb": rng.choice(["''", "x'00'", "x'5c27'", "NULL"]),
        "bl": rng.choice([f"x'{rng.randbytes(9).hex()}'", "''", "NULL"]),
        "js": rng.choice(["'{\"a\": [1, 2.50, null]}'", "'1'", "NULL"]),
        **own(rng, of_mysql=of_mysql),
        "ge": rng.choice(["ST_GeomFromText('POINT(1 2)', 4326)", "NULL",
                          "ST_GeomFromText('LINESTRING(0 0,1 1,2 3)')"]),
    }  # fmt: skip
    return f"({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def prepare(db: Connected) -> None:
    own_columns = ", ".join(f"{name} {kind}" for name, kind in OWN[on_mysql(db)].items())
    run(
        db,
        "USE d",
        f"CREATE TABLE types ({TYPES}, {own_columns})",
        "CREATE TABLE pairs (a VARCHAR(20), b VARCHAR(20), n INT, PRIMARY KEY (a, b))",
        "CREATE TABLE moving (k VARCHAR(30) PRIMARY KEY, u INT UNIQUE, n INT)",
        "CREATE TABLE keyless (t VARCHAR(5), n INT, f FLOAT, d DATE)",
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
        "CREATE TABLE zero (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
        "INSERT INTO zero VALUES (0, 1), (5, 5)",
    )


def change(rng: random.Random, db: Connected, *, of_mysql: bool) -> None:
    """One statement of a random kind, or two; one may fail, as a duplicate key does."""
    key, n = rng.randrange(12), rng.randrange(100)
    a, b = rng.choice([("a|b", "c"), ("a", "b|c"), ("A", "b|c "), ("ž", "\\\\''")])
    statements = rng.choice([
        [f"REPLACE INTO types {everything(rng, key, of_mysql=of_mysql)}"],
        [f"UPDATE types SET ti = {n} WHERE id = {key}"],
        [f"UPDATE types SET ti = {n}, up = up, fl = fl / 3, en = 'no' WHERE id = {key}"],
        [f"DELETE FROM types WHERE id = {key}"],
        [f"UPDATE types SET id = id + 50 WHERE id = {key}"],
        [f"REPLACE INTO pairs VALUES ('{a}', '{b}', {n})"],
        [f"DELETE FROM pairs WHERE a = '{a}'"],
        [f"REPLACE INTO moving VALUES ('k{key}', {key}, {n})"],
        # The values of a unique column are swapped, which no order of two updates does.
        [f"UPDATE moving SET u = u + 100 WHERE u IN ({key}, {key + 1})",
         f"UPDATE moving SET u = IF(u = {key + 100}, {key + 1}, {key}) WHERE u > 99"],
        ["UPDATE moving SET k = IF(k LIKE 'K%', LOWER(k), k)"],
        [f"UPDATE moving SET k = CONCAT('m', {n}, k) WHERE u = {key} AND LENGTH(k) < 20"],
        [f"INSERT INTO keyless VALUES ('t', {key}, 1.1, NULL), ('t', {key}, 1.1, NULL)"],
        [f"INSERT INTO keyless VALUES (NULL, {key}, {n} / 7, '2026-00-00')"],
        [f"UPDATE keyless SET t = 'T' WHERE n = {key} LIMIT 1"],
        [f"DELETE FROM keyless WHERE n = {key} LIMIT 1"],
        [f"INSERT IGNORE INTO parent VALUES ({key})", f"REPLACE INTO child VALUES ({n}, {key})"],
        ["DELETE FROM child LIMIT 1"],
    ])  # fmt: skip
    with suppress(pymysql.err.IntegrityError):
        run(db, *statements)


async def lived(audited: Audited, db: Connected, seed: int, *, points: int = 6) -> list[str]:
    """A random life with copies of the database at some moments; returns those moments' places."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    await audited.begin()
    prepare(db)
    places: list[str] = []
    of_mysql = on_mysql(db)
    for number in range(points):
        for _ in range(rng.choice([1, 3, 12, 40])):
            run(db, "BEGIN")
            for _ in range(rng.choice([1, 1, 4])):
                change(rng, db, of_mysql=of_mysql)
            run(db, "COMMIT" if rng.random() < 0.9 else "ROLLBACK")
        places.append(f"at:{await audited.catch_up()}")
        keep(db, "d", f"ref{number}")
    return places


@both_servers
@pytest.mark.parametrize("seed", [1, 2])
async def test_the_state_of_any_moment_equals_the_servers_own_copy(
    audited: Audited, db: Connected, seed: int
) -> None:
    """A12, A13, A18, A25: all types, composite and moving keys, rows without keys, swaps."""
    places = await lived(audited, db, seed)
    for number, place in enumerate(places):
        into = f"then{number}"
        restore(audited, "--until", place, "--db", "d", "--into", into, "--execute")
        assert differing(db, into, f"ref{number}") == []


@both_servers
async def test_the_same_tables_go_back_and_forth_in_place(audited: Audited, db: Connected) -> None:
    """In the tables that are there: only what differs is written, and a dry run writes nothing."""
    places = await lived(audited, db, 3)
    order = [4, 0, 5, 2]
    for number in order:
        before = [run(db, f"CHECKSUM TABLE d.{name}") for name in tables_of(db, "d")]
        said = restore(audited, "--until", places[number], "--db", "d", "--dry-run").output
        assert "would be restored" in said
        assert before == [run(db, f"CHECKSUM TABLE d.{name}") for name in tables_of(db, "d")]
        restore(audited, "--until", places[number], "--db", "d", "--execute")
        assert differing(db, "d", f"ref{number}") == []
        said = restore(audited, "--until", places[number], "--db", "d").output
        assert said.count("0 missing, 0 changed, 0 too many") == len(tables_of(db, "d"))


@both_servers
async def test_a_replay_in_order_gives_the_same_tables(audited: Audited, db: Connected) -> None:
    """From the first statement of the trail, and on from where another replay ended."""
    places = await lived(audited, db, 4)
    since = "2026-01-01"
    for number, place in enumerate(places):
        restore(
            audited,
            *("--mode", "replay", "--from", since, "--until", place, "--db", "d"),
            *("--into", "again", "--execute"),
        )
        assert differing(db, "again", f"ref{number}") == []
        since = place


@both_servers
async def test_undoing_goes_back_without_a_beginning(audited: Audited, db: Connected) -> None:
    """The trail begins in the middle of the tables' life: what changed since is taken back.

    What undoing does is itself captured, and can be undone.
    """
    prepare(db)
    rng, of_mysql = random.Random(5), on_mysql(db)
    for _ in range(100):
        change(rng, db, of_mysql=of_mysql)
    await audited.begin()
    places: list[str] = []
    for number in range(5):
        for _ in range(rng.choice([1, 5, 30])):
            change(rng, db, of_mysql=of_mysql)
        places.append(f"at:{await audited.catch_up()}")
        keep(db, "d", f"ref{number}")
    refused = restore(audited, "--until", places[2], "--db", "d", "--execute", fails=True)
    assert "its history begins here" in str(refused.exception)
    for number in [3, 1, 4, 0]:
        restore(audited, "--mode", "undo", "--until", places[number], "--db", "d", "--execute")
        assert differing(db, "d", f"ref{number}") == []
        await audited.catch_up()


def test_what_is_undone_is_asked_of_the_statements_of_its_own_tables(trail: Trail) -> None:
    """Another database that was dropped is none of theirs; a table that took their name is."""
    to = '{"to":{"db":"db","coll":"orders"}}'
    statement: dict[str, Any] = {"kind": 3, "key": None, "document_id": None}
    write(
        trail,
        [
            row(1, after={"id": 1}),
            row(2, operation_type="dropDatabase", database="other", collection="", **statement),
            row(3, before={"id": 1}, after={"id": 1, "n": 2}),
            row(4, operation_type="rename", collection="draft", full_document=to, **statement),
            row(5, operation_type="dropDatabase", collection="", **statement),
        ],
    )
    place = Place(at=1, ts=0)
    orders = Asked(tables=(("db", "orders"),))
    for asked in (orders, Asked(databases=("db",))):
        undoing = undone_to(trail, asked, place, head=3, tick=print)
        assert list(undoing.tables) == [("db", "orders")]
        with pytest.raises(AuditError, match=r"changed it \(rename\)"):
            undone_to(trail, asked, place, head=4, tick=print)
        with pytest.raises(AuditError, match=r"all tables of db: .* \(dropDatabase\)"):
            undone_to(trail, asked, place, head=5, tick=print)


@pytest.mark.slow
async def test_a_file_of_statements_does_what_executing_does(
    start_mariadb: Callable[..., MariaDbServer], trail: Trail, tmp_path: Path
) -> None:
    """One session: what it must have is at its head, whatever the server's defaults are. Run by
    the server's own client."""
    mariadb = start_mariadb(options=["--default-time-zone=+05:30", "--sql-mode="])
    with mariadb.connect() as db:
        run(db, KEEP_MODE, "CREATE DATABASE d")
        await by_files(Audited(mariadb, trail, ["d"], tmp_path), mariadb, db, tmp_path)


async def by_files(audited: Audited, mariadb: MariaDbServer, db: Connected, tmp_path: Path) -> None:
    places = await lived(audited, db, 6, points=4)

    def by_client(path: Path) -> None:
        client = ["mariadb", "--no-defaults", "-h127.0.0.1", f"-P{mariadb.port}", "-uroot"]
        subprocess.run(client, input=path.read_bytes(), check=True)

    wanted = ("--until", places[1], "--db", "d", "--output")
    restore(audited, *wanted, str(tmp_path / "diff.sql"))
    by_client(tmp_path / "diff.sql")
    assert differing(db, "d", "ref1") == []
    assert (tmp_path / "diff.sql").stat().st_mode & 0o777 == 0o600
    restore(audited, *wanted, str(tmp_path / "new.sql"), "--into", "elsewhere")
    by_client(tmp_path / "new.sql")
    assert differing(db, "elsewhere", "ref1") == []
    blind = (*wanted[:2], "--no-target", "--output", str(tmp_path / "blind.sql"))
    refused = restore(audited, *blind, "--db", "d", fails=True)
    assert "d.types has columns that the server computes" in str(refused.exception)
    restore(audited, *blind, *("--table", "d.pairs", "--table", "d.keyless"))
    run(db, "DELETE FROM d.pairs", "INSERT INTO d.keyless VALUES ('x', 1, 1, NULL)")
    by_client(tmp_path / "blind.sql")
    assert differing(db, "d", "ref1") == []


COMPUTED, JSON = "has columns that the server computes", "is a table of MySQL that has JSON columns"


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("b INT AS (a)", COMPUTED),
        ("b INT GENERATED ALWAYS AS /* so */ (a) STORED", COMPUTED),
        ("b INT AS -- so\n(a)", COMPUTED),
        ("b TIMESTAMP(6) GENERATED ALWAYS AS ROW START", COMPUTED),
        ("b INT COMMENT 'as (a)'", None),
        ("b INT /* as (a) */", None),
        ("`as` INT, `b(` INT", None),
        ("b CHAR(1) DEFAULT (CAST(a AS CHAR))", None),
        ("j JSON", JSON),
        ("`json` INT", None),
        ("b INT COMMENT 'like JSON'", None),
    ],
)
def test_what_a_file_cannot_hold_is_told_by_the_words_of_a_definition(
    column: str, why: str | None
) -> None:
    """For a server that is not asked: it refuses values of columns that it computes, or passes them
    over, and what a text means where a document is kept nobody says."""
    statement = f"CREATE TABLE t (a INT, {column})"
    table = Table(name=("d", "t"), began="created", at=1, ts=0, statement=statement, of_mysql=True)
    if why is None:
        assert list(filling(table, table.name, None)) == []
        return
    with pytest.raises(AuditError, match=rf"d\.t {why}"):
        list(filling(table, table.name, None))


@pytest.mark.parametrize("sql_server", ["mysql"], indirect=True)
async def test_a_file_for_a_server_that_is_not_asked_has_no_table_with_documents(
    audited: Audited, db: Connected, tmp_path: Path
) -> None:
    """A25: the text `5` is a number where a document is kept, and nobody says where that is."""
    await audited.begin()
    run(
        *(
            db,
            "USE d",
            "CREATE TABLE plain (id INT PRIMARY KEY)",
            "CREATE TABLE likewise LIKE plain",
        ),
        *("CREATE TABLE j (id INT PRIMARY KEY, j JSON)", "INSERT INTO j VALUES (1, '\"5\"')"),
        *("INSERT INTO plain VALUES (1)", "INSERT INTO likewise VALUES (1)"),
    )
    blind = ("--until", f"at:{await audited.catch_up()}", "--no-target")
    for table in ("j", "likewise"):
        file = str(tmp_path / f"{table}.sql")
        wanted = (*blind, "--table", f"d.{table}", "--output", file)
        assert "JSON columns" in str(restore(audited, *wanted, fails=True).exception)
    restore(audited, *blind, "--table", "d.plain", "--output", str(tmp_path / "plain.sql"))
    assert "INSERT INTO `d`.`plain` (`id`) VALUES (1)" in (tmp_path / "plain.sql").read_text()


# --- places ---------------------------------------------------------------------------------------


async def test_a_place_is_a_time_a_transaction_or_a_number_and_never_cuts_a_transaction(
    audited: Audited, db: Connected
) -> None:
    """A18: an insert, updates and a delete of one row in one second are told apart."""
    await audited.begin()
    run(db, "USE d", "SET timestamp = 1767225600", "CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    gtids: list[str] = []
    for statement in (
        "INSERT INTO t VALUES (1, 1)",
        "UPDATE t SET n = 2",
        "DELETE FROM t",
        "INSERT INTO t VALUES (1, 3), (2, 3)",
        "UPDATE t SET n = 4",
    ):
        run(db, statement)
        ((gtid,),) = run(db, "SELECT @@last_gtid")
        gtids.append(str(gtid))
    run(db, "SET timestamp = 1767225601", "UPDATE t SET n = 5", "SET timestamp = DEFAULT")
    head = await audited.catch_up()
    assert head == 11  # with the statement that made it, and what its columns are

    def at(place: str) -> list[tuple[int, ...]]:
        restore(audited, "--until", place, "--db", "d", "--into", "then", "--execute")
        return run(db, "SELECT * FROM then.t ORDER BY id")

    assert [at(gtid) for gtid in gtids] == [
        [(1, 1)],
        [(1, 2)],
        [],
        [(1, 3), (2, 3)],
        [(1, 4), (2, 4)],
    ]
    assert at("at:6") == []  # the first of two rows of a transaction
    assert at("at:7") == [(1, 3), (2, 3)]
    assert at("2026-01-01T00:00:00Z") == [(1, 4), (2, 4)]
    assert at("2026-01-01") == [(1, 5), (2, 5)]  # all of the day, in the trail's own zone
    assert "was not there" in str(
        restore(audited, "--until", "2025-12-31", "--table", "d.t", fails=True).exception
    )
    assert at("2026-01-01T00:00:01+00:00") == at("head") == [(1, 5), (2, 5)]
    for wrong, why in (("0-1-99999", "neither a time nor"), ("2026-13-01", "is no moment")):
        assert why in str(restore(audited, "--until", wrong, fails=True).exception)


async def test_a_clock_that_went_back_is_told(audited: Audited, db: Connected) -> None:
    """The trail's order is the server's, and not that of clocks."""
    await audited.begin()
    run(
        db,
        *("USE d", "CREATE TABLE t (id INT PRIMARY KEY)"),
        *("SET timestamp = 2000000000", "INSERT INTO t VALUES (1)", "SET timestamp = DEFAULT"),
        "INSERT INTO t VALUES (2)",
    )
    await audited.catch_up()
    wanted = ("--until", "2030-01-01T00:00:00Z", "--db", "d", "--into", "then", "--execute")
    assert "1 records behind" in " ".join(restore(audited, *wanted).output.split())
    assert run(db, "SELECT * FROM then.t") == []


# --- statements that change tables ----------------------------------------------------------------


@both_servers
async def test_a_table_is_made_in_the_mode_in_which_its_statement_was_written(
    audited: Audited, db: Connected
) -> None:
    """Else || is OR, a backslash takes what follows it, and NOT is of less."""
    await audited.begin()
    modes = "ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE"
    run(
        db,
        "USE d",
        f"SET SESSION sql_mode = '{modes}'",
        'CREATE TABLE "t" ("id" INT PRIMARY KEY, "a" VARCHAR(4), "n" BOOLEAN AS (NOT 1 BETWEEN -5 '
        "AND 5) STORED, \"ab\" VARCHAR(9) AS (a || 'y') STORED, d CHAR DEFAULT '\\', r REAL)",
        "INSERT INTO t (id, a, r) VALUES (1, '\\x', 0.1)",
        "ALTER TABLE t ADD COLUMN c VARCHAR(9) AS (a || a) STORED",
        "SET SESSION sql_mode = ''",
        "CREATE TABLE o (id INT PRIMARY KEY, b INT AS (id || 0) STORED)",
        "INSERT INTO o (id) VALUES (1)",
    )
    keep(db, "d", "kept")
    until = ("--until", f"at:{await audited.catch_up()}", "--execute")
    restore(audited, "--mode", "replay", "--db", "d", "--into", "again", *until)
    assert differing(db, "again", "kept") == []
    run(db, "INSERT INTO again.t (id) VALUES (2)")
    assert run(db, "SELECT HEX(d) FROM again.t") == [("5C",), ("5C",)]
    # One that was not altered since is made by its statement alone.
    restore(audited, "--table", "d.o", "--into", "alone", *until)
    assert run(db, "SELECT * FROM alone.o") == run(db, "SELECT * FROM d.o") == [(1, 1)]


@both_servers
async def test_statements_in_between_are_replayed_in_their_place(
    audited: Audited, db: Connected
) -> None:
    """ALTER with its defaults, TRUNCATE, RENAME and swaps, DROP, another table of the same name."""
    await audited.begin()
    steps = [
        ["USE d", "CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1), (2, 2)"],  # noqa: E501
        ["ALTER TABLE d.a ADD COLUMN m INT NOT NULL DEFAULT 7", "UPDATE a SET n = 3 WHERE id = 1"],
        ["ALTER TABLE a DROP COLUMN n, ADD INDEX (m)", "UPDATE a SET m = 9 WHERE id = 2"],
        ["CREATE TABLE shadow LIKE a", "INSERT INTO shadow SELECT id + 10, m FROM a"],
        ["RENAME TABLE a TO old, shadow TO a", "INSERT INTO a VALUES (5, 5)"],
        ["DROP TABLE old", "CREATE TABLE old (k VARCHAR(5) PRIMARY KEY) SELECT 'x' AS k"],
        ["TRUNCATE TABLE a", "INSERT INTO a VALUES (6, 6)"],
        ["ALTER TABLE a RENAME TO b", "CREATE UNIQUE INDEX i ON b (m)"],
        ["CREATE OR REPLACE TABLE b (id INT, f FLOAT)", "INSERT INTO b VALUES (1, 0.1), (1, 0.1)"],
        ["DROP TABLE IF EXISTS b, old, never", "CREATE TABLE `b.c``d` (id INT PRIMARY KEY)"],
        ["INSERT INTO `b.c``d` VALUES (1)"],
    ]  # fmt: skip
    if on_mysql(db):  # which has no CREATE OR REPLACE
        steps[8] = ["DROP TABLE b", steps[8][0].replace("OR REPLACE ", ""), steps[8][1]]
    places: list[str] = []
    for number, statements in enumerate(steps):
        run(db, *statements)
        places.append(f"at:{await audited.catch_up()}")
        run(db, f"CREATE DATABASE ref{number}")
        for table in tables_of(db, "d"):
            quoted = table.replace("`", "``")
            run(
                db,
                f"CREATE TABLE ref{number}.`{quoted}` LIKE d.`{quoted}`",
                f"INSERT INTO ref{number}.`{quoted}` SELECT * FROM d.`{quoted}`",
            )
    since = "beginning"
    for number, place in enumerate(places):
        whole = ("--mode", "replay", "--until", place, "--db", "d", "--execute")
        restore(audited, *whole, "--from", since, "--into", "again")
        since = place
        same(db, "again", f"ref{number}")
    # Nothing was done to the tables that are there.
    same(db, "d", f"ref{len(steps) - 1}")


@both_servers
async def test_a_name_without_its_database_is_of_the_one_that_it_was_of_then(
    audited: Audited, db: Connected
) -> None:
    """Beside a name that has one: LIKE, and a new name, look in the session's database; REFERENCES
    in that of the table."""
    run(db, "CREATE DATABASE other", "USE other")
    audited.also("other")
    await audited.begin()
    run(
        *(db, "CREATE TABLE parent (id INT PRIMARY KEY, of_other INT)"),
        *("CREATE TABLE d.parent (id INT PRIMARY KEY)", "INSERT INTO d.parent VALUES (1)"),
        "CREATE TABLE d.alike LIKE parent",
        "INSERT INTO d.alike VALUES (1, 2)",
        "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
        "INSERT INTO d.child VALUES (1, 1)",
    )
    place = f"at:{await audited.catch_up()}"
    whole = ("--mode", "replay", "--until", place, "--execute")
    run(db, "RENAME TABLE other.parent TO d.kept")
    run(db, "DROP TABLE d.child, d.alike, d.parent", "USE d")
    restore(audited, *whole)
    assert run(db, "SELECT id, of_other FROM d.alike") == [(1, 2)]
    ((_, statement),) = run(db, "SHOW CREATE TABLE d.child")
    assert "REFERENCES `parent`" in statement, "of its own database, as the server shows it"


@both_servers
async def test_a_table_that_is_made_unless_it_is_there_begins_where_it_is_new(
    audited: Audited, db: Connected
) -> None:
    """Nothing but the server's own word tells that from a statement that did nothing."""
    run(db, "CREATE TABLE d.old (id INT PRIMARY KEY)", "INSERT INTO d.old VALUES (1)")
    await audited.begin()
    run(
        db,
        *("USE d", "CREATE TABLE IF NOT EXISTS old (id INT PRIMARY KEY)"),
        *("CREATE TABLE IF NOT EXISTS fresh (id INT PRIMARY KEY)", "INSERT INTO old VALUES (2)"),
        *(
            "CREATE TABLE IF NOT EXISTS fresh (other INT PRIMARY KEY)",
            "INSERT INTO fresh VALUES (1)",
        ),
    )
    await audited.catch_up()
    wanted = ("--until", "head", "--into", "again", "--execute")
    restore(audited, *wanted, "--table", "d.fresh")
    assert run(db, "SELECT * FROM again.fresh") == [(1,)]
    refused = restore(audited, *wanted, "--table", "d.old", fails=True)
    assert "d.old: its history begins here" in str(refused.exception)


@both_servers
async def test_a_restore_that_fails_leaves_nothing_of_what_it_made(
    audited: Audited, db: Connected
) -> None:
    run(db, "CREATE TABLE d.unknown (id INT PRIMARY KEY)")
    await audited.begin()
    run(
        db,
        "CREATE TABLE d.apple (id INT PRIMARY KEY)",
        "INSERT INTO d.apple VALUES (1)",
        "INSERT INTO d.unknown VALUES (1)",
    )
    place = f"at:{await audited.catch_up()}"
    run(db, "DROP TABLE d.unknown")
    await audited.catch_up()
    wanted = ("--until", place, "--db", "d", "--into", "again", "--accept", "beginning")
    refused = restore(audited, *wanted, "--execute", fails=True)
    assert "how it was made is not known from the trail. Nothing was changed" in str(
        refused.exception
    )
    assert run(db, "SHOW DATABASES LIKE 'again'") == []
    # Where the server refuses a row, the table was made before.
    run(db, "CREATE DATABASE again", "CREATE TABLE again.unknown (other INT PRIMARY KEY)")
    refused = restore(audited, *wanted, "--execute", fails=True)
    assert "What was made for it is gone again: again.apple" in str(refused.exception)
    assert run(db, "SHOW TABLES IN again") == [("unknown",)]


def test_what_was_made_and_is_not_empty_any_more_is_left_and_named(
    sql_server: SqlServer, db: Connected
) -> None:
    target = target_of(f"mysql://root@127.0.0.1:{sql_server.port}")
    with Server(target, "") as server:
        making = Making(server)
        for name in ("empty", "used"):
            text = f"CREATE TABLE made.{name} (id INT)"
            first = Statement(text="CREATE DATABASE IF NOT EXISTS made", about="", alters=True)
            making.make(("made", name), [first, Statement(text=text, about="", alters=True)])
        run(db, "INSERT INTO made.used VALUES (1)")
        with pytest.raises(AuditError, match=r"^why\. No row was changed\. .*: made\.used, made\."):
            making.unmake(AuditError("why. Nothing was changed."))
    assert run(db, "SHOW TABLES IN made") == [("used",)]


def test_what_refuses_the_rest_says_what_stands(sql_server: SqlServer, db: Connected) -> None:
    def statements() -> Iterator[Statement]:
        yield Statement(text="CREATE DATABASE stands", about="", alters=True)
        raise AuditError("a doubt. Nothing was changed. Accept it.")

    target = target_of(f"mysql://root@127.0.0.1:{sql_server.port}")
    with (
        Server(target, "") as server,
        pytest.raises(AuditError, match=r"^a doubt\. What was done before stands\. Accept it\.$"),
    ):
        server.run(statements())
    run(db, "DROP DATABASE stands")


def same(db: Connected, database: str, reference: str) -> None:
    """Two databases have the same tables, with the same rows."""
    assert tables_of(db, database) == tables_of(db, reference)
    for table in tables_of(db, database):
        quoted = table.replace("`", "``")
        ours, theirs = (run(db, f"SELECT * FROM {one}.`{quoted}`") for one in (database, reference))
        assert sorted(ours) == sorted(theirs), table


async def test_what_only_a_replay_knows_is_refused_by_name(audited: Audited, db: Connected) -> None:
    """A table that was altered since has no columns to write older rows into."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1)")
    place = f"at:{await audited.catch_up()}"
    run(db, "ALTER TABLE t DROP COLUMN n")
    await audited.catch_up()
    wanted = ("--until", place, "--db", "d")
    refused = restore(audited, *wanted, "--execute", fails=True)
    assert "no column 'n' now" in str(refused.exception)
    refused = restore(audited, "--mode", "undo", *wanted, fails=True)
    assert "a statement changed it (modify)" in str(refused.exception)
    restore(audited, *wanted, "--into", "then", "--execute")  # by the trail's own CREATE TABLE
    assert run(db, "SELECT * FROM then.t") == [(1, 1)]
    last = ("--until", "head", "--db", "d", "--into", "last")
    refused = restore(audited, *last, fails=True)
    assert "columns were dropped or renamed (n)" in str(refused.exception)
    refused = restore(audited, *last, "--accept", "altered", fails=True)
    assert "no column 'n' now" in str(refused.exception)


async def test_what_a_dropped_column_held_is_not_put_into_another_one_of_its_name(
    audited: Audited, db: Connected
) -> None:
    await audited.begin()
    run(
        db,
        *("USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1)"),
        *("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n INT"),
    )
    await audited.catch_up()
    refused = restore(audited, "--until", "head", "--db", "d", "--execute", fails=True)
    assert "columns were dropped or renamed (n)" in str(refused.exception)
    assert run(db, "SELECT * FROM t") == [(1, None)]
    replayed = ("--mode", "replay", "--until", "head", "--db", "d", "--into", "last")
    restore(audited, *replayed, "--execute")
    assert run(db, "SELECT * FROM last.t") == [(1, None)]


# --- what is not certain --------------------------------------------------------------------------


async def test_a_gap_and_an_erased_record_are_refused_until_they_are_accepted(
    audited: Audited, db: Connected
) -> None:
    await audited.begin()
    run(
        db,
        "USE d",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT)",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO t VALUES (2, 2)",
        "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
        "INSERT INTO p VALUES (1), (11)",
        "ALTER TABLE p DROP PARTITION a",
    )
    await audited.catch_up()
    wanted = ("--until", "head", "--table", "d.p", "--into", "then")
    assert "changes were lost: unlogged_rows" in str(
        restore(audited, *wanted, fails=True).exception
    )
    restore(audited, *wanted, "--accept", "gap")
    audited.trail.records.update_one(
        {"meta.tbl": "t", "meta.pk": {"id": 1}},
        {"$unset": {"chg": 1, "meta.pk": 1, "meta.pk_text": 1}, "$set": {"erased": True}},
    )
    wanted = ("--until", "head", "--table", "d.t", "--into", "then")
    refused = restore(audited, *wanted, "--execute", fails=True)
    assert "--accept erased: changes that were erased are left out" in str(refused.exception)
    restore(audited, *wanted, "--execute", "--accept", "erased")
    assert run(db, "SELECT * FROM then.t") == [(2, 2)]


async def test_a_copy_spans_the_gap_that_made_it_necessary(
    start_mariadb: Callable[..., MariaDbServer], trail: Trail, tmp_path: Path
) -> None:
    """Binlogs were purged that capture had not read: once all was copied, restoring is certain
    again, and rows that went meanwhile are not there. So it is of one table alone."""
    server = start_mariadb()
    with server.connect() as db:
        run(db, KEEP_MODE, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)")
        audited = Audited(server, trail, ["d"], tmp_path, on_position_lost="snapshot")
        await audited.begin()
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY, n INT)", "INSERT INTO d.b VALUES (1, 1)")
        run(db, "INSERT INTO d.b VALUES (2, 2), (3, 3)", "INSERT INTO d.a VALUES (1, 1)")
        before = f"at:{await audited.catch_up()}"
        keep(db, "d", "ref0")
        run(db, "DELETE FROM d.b WHERE id = 2", "UPDATE d.b SET n = 9 WHERE id = 3")
        run(db, "FLUSH BINARY LOGS")
        purge(db)
        spanned = f"at:{await audited.copied()}"
        keep(db, "d", "ref1")
        within = trail.records.find_one({"flags.copied": True}, {"at": 1})
        assert within is not None
        asked = ("--db", "d", "--until")
        refused = restore(audited, *asked, f"at:{within['at']}", "--execute", fails=True)
        assert "all tables: changes were lost" in str(refused.exception)
        run(db, "INSERT INTO d.b VALUES (4, 4)", "DELETE FROM d.b WHERE id = 1")
        last = f"at:{await audited.catch_up()}"
        keep(db, "d", "ref2")
        for place, reference in ((spanned, "ref1"), (last, "ref2"), (spanned, "ref1")):
            restore(audited, *asked, place, "--execute")
            assert differing(db, "d", reference) == []
        restore(audited, "--table", "d.b", "--until", last, "--execute")
        assert differing(db, "d", "ref2") == []
        beginning = restore(audited, *asked, before, "--table", "d.b", fails=True)
        assert "its history begins here" in str(beginning.exception), "of d.a, which was there"


async def test_records_that_are_not_there_are_told(audited: Audited, db: Connected) -> None:
    """Every place of a trail is filled: a hole is rows that were retired, or that were lost."""
    await audited.begin()
    run(
        db,
        *("USE d", "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)"),
        *("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (3)"),
    )
    head = await audited.catch_up()
    audited.trail.records.delete_one({"meta.tbl": "t", "meta.pk": {"id": 1}})
    wanted = ("--until", f"at:{head}", "--table", "d.t", "--into", "then", "--execute")
    for mode in ("state", "replay"):
        refused = restore(audited, *wanted, "--mode", mode, fails=True)
        assert "1 records or more are not there" in str(refused.exception)
    tell_retired(audited, "t", at=head + 1, place=3)
    assert "retired" in str(restore(audited, *wanted, fails=True).exception)
    restore(audited, *wanted, "--accept", "retired")
    assert run(db, "SELECT * FROM then.t") == [(2,)]
    restore(audited, "--until", "head", "--table", "d.u", "--into", "then", "--execute")


@pytest.mark.parametrize("mode", ["state", "replay"])
async def test_rows_that_were_retired_under_an_earlier_name_are_told(
    audited: Audited, db: Connected, mode: str
) -> None:
    await audited.begin()
    run(db, "USE d", "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    last = await audited.catch_up()
    run(db, "ALTER TABLE a RENAME TO b")
    head = await audited.catch_up()
    audited.trail.records.delete_one({"at": last})
    tell_retired(audited, "a", at=head + 1, place=last)
    wanted = ("--until", "head", "--table", "d.b", "--into", "then", "--mode", mode)
    refused = restore(audited, *wanted, "--execute", fails=True)
    assert f"changes of it up to record {last} retired" in str(refused.exception)
    restore(audited, *wanted, "--execute", "--accept", "retired")


def tell_retired(audited: Audited, tbl: str, *, at: int, place: int) -> None:
    """As a retirement of one record does, at the trail's end."""
    audited.trail.records.insert_one(
        {
            "_id": "sys:1",
            "at": at,
            "seq": 0,
            "ts": datetime.now(UTC),
            "op": "sys",
            "meta": {"db": "d", "tbl": tbl},
            "sys": {"act": "retire", "count": 1, "first": place, "last": place},
            "txn": {"id": "sys", "size": 1},
        }
    )
    audited.trail.heads.update_one({}, {"$set": {"at": at}})


async def test_a_trail_of_hidden_columns_is_not_written_over_the_tables(
    audited: Audited, db: Connected
) -> None:
    """What is masked or hashed there would take the place of what is in the tables."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    await audited.catch_up()
    audited.hides = 'columns.mask = { "d.t.secret" = "***" }'
    refused = restore(audited, "--until", "head", "--db", "d", "--execute", fails=True)
    assert "hides columns from the trail" in str(refused.exception)
    restore(audited, "--until", "head", "--db", "d", "--execute", "--accept", "hidden")


async def test_a_column_that_is_newer_keeps_its_values(audited: Audited, db: Connected) -> None:
    """Of a row that is there and changes back; the trail does not know what it had none of."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2)")
    place = f"at:{await audited.catch_up()}"
    run(db, "ALTER TABLE t ADD COLUMN m INT DEFAULT 7", "UPDATE t SET n = 9, m = 8 WHERE id = 1")
    run(db, "DELETE FROM t WHERE id = 2")
    await audited.catch_up()
    restore(audited, "--until", place, "--db", "d", "--execute")
    assert run(db, "SELECT * FROM t ORDER BY id") == [(1, 1, 8), (2, 2, 7)]


async def test_rows_that_changed_past_the_trail_are_not_undone(
    audited: Audited, db: Connected
) -> None:
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1)")
    place = f"at:{await audited.catch_up()}"
    run(db, "UPDATE t SET n = 2")
    await audited.catch_up()
    run(db, "UPDATE t SET n = 3")
    wanted = ("--mode", "undo", "--until", place, "--db", "d", "--execute")
    refused = restore(audited, *wanted, fails=True)
    assert "1 of d.t" in str(refused.exception)
    assert run(db, "SELECT * FROM t") == [(1, 3)]
    restore(audited, *wanted, "--accept", "strangers")
    assert run(db, "SELECT * FROM t") == [(1, 1)]


async def test_what_is_read_back_otherwise_than_written_is_rolled_back(
    audited: Audited, db: Connected
) -> None:
    """A DOUBLE that is a FLOAT now is rounded, and no server says so."""
    await audited.begin()
    run(
        db,
        "USE d",
        "CREATE TABLE t (id INT PRIMARY KEY, d DOUBLE)",
        "INSERT INTO t VALUES (1, 0.1)",
    )
    place = f"at:{await audited.catch_up()}"
    run(db, "ALTER TABLE t MODIFY d FLOAT", "DELETE FROM t")
    await audited.catch_up()
    refused = restore(audited, "--until", place, "--db", "d", "--execute", fails=True)
    assert "is not what was to be written" in str(refused.exception)
    assert run(db, "SELECT * FROM t") == []


async def test_triggers_are_refused(audited: Audited, db: Connected) -> None:
    """What a trigger did is in the trail already, and would be done twice."""
    await audited.begin()
    run(
        db,
        "USE d",
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "CREATE TRIGGER tr AFTER INSERT ON t FOR EACH ROW INSERT INTO other VALUES (NEW.id)",
        "INSERT INTO t VALUES (1)",
    )
    place = f"at:{await audited.catch_up()}"
    run(db, "DELETE FROM t", "DELETE FROM other")
    await audited.catch_up()
    refused = restore(audited, "--until", place, "--db", "d", "--execute", fails=True)
    assert "d.t: tr" in str(refused.exception)
    restore(audited, "--until", place, "--db", "d", "--into", "then", "--execute")
    assert run(db, "SELECT * FROM then.other") == [(1,)]


# --- failures -------------------------------------------------------------------------------------


async def test_a_failed_statement_ends_it_and_nothing_of_its_transaction_stays(
    audited: Audited, db: Connected
) -> None:
    """Or, with --continue-on-error, each is named, the others are run, and the exit code is 1."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1)")
    since = f"at:{await audited.catch_up()}"
    run(
        db,
        "INSERT INTO t VALUES (2, 2)",
        *("BEGIN", "INSERT INTO t VALUES (3, 3)", "UPDATE t SET n = 9 WHERE id = 1", "COMMIT"),
        "INSERT INTO t VALUES (4, 4)",
    )
    await audited.catch_up()
    run(db, "DELETE FROM t")
    wanted = ("--mode", "replay", "--from", since, "--until", "head", "--db", "d", "--execute")
    refused = restore(audited, *wanted, fails=True)
    assert "it found 0 rows, not 1" in str(refused.exception)
    assert run(db, "SELECT * FROM t ORDER BY id") == [(2, 2)]
    run(db, "DELETE FROM t")
    told = restore(audited, *wanted, "--continue-on-error", fails=True)
    assert told.exit_code == 1
    assert "d.t, record 6: it found 0 rows, not 1" in told.output
    assert run(db, "SELECT * FROM t ORDER BY id") == [(2, 2), (3, 3), (4, 4)]


def test_a_password_on_the_command_line_is_refused(audited: Audited) -> None:
    target = ("--target", f"mysql://root:hunter2@127.0.0.1:{audited.server.port}")
    refused = restore(audited, "--until", "head", *target, fails=True)
    assert "hunter2" not in str(refused.exception)
    assert "PENSTOCK_TARGET_PASSWORD" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--execute", "--no-target"], "--execute needs the server"),
        (["--execute", "--output", "x.sql"], "two ways"),
        (["--mode", "undo", "--no-target"], "--mode undo starts from"),
        (["--mode", "undo", "--into", "x", "--db", "d"], "goes without --into"),
        (["--into", "x"], "takes the tables of one"),
        (["--table", "t"], "is not db.table"),
        (["--accept", "all"], "is none of"),
        (["--memory", "lots"], "is not a size"),
        (["--delta", "x", "--execute"], "goes with no other output"),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    audited: Audited, arguments: list[str], why: str
) -> None:
    refused = restore(audited, "--until", "head", *arguments, fails=True)
    assert why in str(refused.exception)


def test_the_password_is_not_in_what_is_said(audited: Audited, db: Connected) -> None:
    run(db, "CREATE USER IF NOT EXISTS 'restorer'@'%' IDENTIFIED BY 'hunter2'")
    target = ("--target", f"mysql://restorer@127.0.0.1:{audited.server.port}")
    run(db, "CREATE TABLE d.t (id INT PRIMARY KEY)")
    refused = restore(audited, "--until", "head", *target, fails=True)
    assert "there is no trail" in str(refused.exception)
    with pytest.raises(PenstockError, match=r"password of .restorer. is wrong") as wrong:
        Server(target_of(target[1]), "hunter3")
    assert "hunter" not in str(wrong.value)
    with Server(target_of(target[1]), "hunter2") as server:
        assert server.facts(("d", "nothing")) is None
    run(db, "DROP USER 'restorer'@'%'")


# --- Delta ----------------------------------------------------------------------------------------


async def test_the_state_as_delta_tables(audited: Audited, db: Connected, tmp_path: Path) -> None:
    """Typed as `to = "table"` types them, one table for each; the rows are those of the moment."""
    await audited.begin()
    prepare(db)
    run(db, "REPLACE INTO types (id, bu, de, dbl, ts, vb, st, ge) VALUES (1, 18446744073709551615, "
            "0.10, 0.1e0, '2026-01-31 23:59:59.123456', x'00ff', 'x,y', "
            "ST_GeomFromText('POINT(1 2)'))",
            "INSERT INTO keyless VALUES ('a', 1, 0.5, NULL), ('a', 1, 0.5, NULL)")  # fmt: skip
    place = f"at:{await audited.catch_up()}"
    run(db, "DELETE FROM types", "DELETE FROM keyless")
    await audited.catch_up()
    wanted = ("--until", place, "--no-target")
    restore(audited, *wanted, "--db", "d", "--delta", str(tmp_path / "lake"))
    (row,) = DeltaTable(str(tmp_path / "lake" / "d.types")).to_pyarrow_table().to_pylist()
    assert (row["id"], row["bu"], row["de"], row["dbl"]) == (1, 2**64 - 1, Decimal("0.1"), 0.1)
    assert row["ts"] == datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
    assert (row["vb"], row["st"]) == (b"\0\xff", '["x","y"]')
    both = DeltaTable(str(tmp_path / "lake" / "d.keyless")).to_pyarrow_table().to_pylist()
    assert [(row["t"], row["n"], row["f"]) for row in both] == [("a", 1, 0.5)] * 2
    restore(audited, *wanted, "--table", "d.types", "--delta", str(tmp_path / "one"))
    assert DeltaTable(str(tmp_path / "one")).to_pyarrow_table().num_rows == 1
    again = ("--table", "d.types", "--delta", str(tmp_path / "one"))
    assert "is a Delta table already" in str(
        restore(audited, *wanted, *again, fails=True).exception
    )


# --- what a row is made of ------------------------------------------------------------------------


async def test_rows_that_only_a_collation_calls_equal_are_kept_apart(
    audited: Audited, db: Connected
) -> None:
    """A25: without a key, a row is found by all of its values, exactly; NULL by IS NULL."""
    await audited.begin()
    run(
        db,
        "USE d",
        "CREATE TABLE t (v VARCHAR(5), f FLOAT, d DATE, n INT)",
        "INSERT INTO t VALUES ('A', 0.1, '2026-01-31', 1), ('a', 0.1, '2026-01-31', 1), "
        "('a ', 0.1, NULL, NULL), ('a', NULL, NULL, NULL), (NULL, NULL, NULL, NULL)",
        "DELETE FROM t WHERE CAST(v AS BINARY) = 'a' AND n = 1",
        "DELETE FROM t WHERE CAST(v AS BINARY) = 'a' AND n IS NULL",
        "DELETE FROM t WHERE v IS NULL",
    )
    await audited.catch_up()
    replayed = ("--mode", "replay", "--until", "head", "--db", "d", "--into", "again", "--execute")
    restore(audited, *replayed)
    assert differing(db, "again", "d") == []
    assert sorted(str(v) for (v,) in run(db, "SELECT v FROM again.t")) == ["A", "a "]


async def test_a_column_that_the_server_sets_by_itself_stays_what_it_was(
    audited: Audited, db: Connected
) -> None:
    """ON UPDATE CURRENT_TIMESTAMP: an update that did not change it must not do so now."""
    await audited.begin()
    run(
        db,
        "USE d",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, "
        "up TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)",
        "INSERT INTO t VALUES (1, 1, '2020-01-01 00:00:00')",
        "UPDATE t SET n = 2, up = up",
    )
    await audited.catch_up()
    replayed = ("--mode", "replay", "--until", "head", "--db", "d", "--into", "again", "--execute")
    restore(audited, *replayed)
    assert differing(db, "again", "d") == []


async def test_an_update_that_cascades_now_does_not_cascade_while_restoring(
    audited: Audited, db: Connected
) -> None:
    """A25: foreign keys are off in the session that writes, and in no other."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE p (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY, "
            "p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (1, 1)")  # fmt: skip
    place = f"at:{await audited.catch_up()}"
    run(db, "DELETE FROM c", "DELETE FROM p")
    await audited.catch_up()
    restore(audited, "--until", place, "--table", "d.c", "--execute")
    assert run(db, "SELECT * FROM c") == [(1, 1)]
    assert run(db, "SELECT @@foreign_key_checks") == [(1,)]
    restore(audited, "--until", place, "--db", "d", "--execute")
    assert run(db, "SELECT * FROM p") == [(1,)]


async def test_a_table_that_another_took_the_place_of_is_no_model(
    audited: Audited, db: Connected
) -> None:
    """What is called `t` now was called otherwise then, and may have other columns."""
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, d DOUBLE)")
    await audited.begin()
    run(db, "TRUNCATE TABLE t", "INSERT INTO t VALUES (1, 0.1)")
    place = f"at:{await audited.catch_up()}"
    run(
        db,
        "CREATE TABLE x (id INT PRIMARY KEY, d FLOAT)",
        "RENAME TABLE t TO swapped, x TO t",
    )
    await audited.catch_up()
    wanted = ("--until", place, "--table", "d.t", "--into", "then", "--execute")
    refused = restore(audited, *wanted, fails=True)
    assert "how it was made is not known" in str(refused.exception)


async def test_a_dry_run_tells_which_rows_differ(audited: Audited, db: Connected) -> None:
    """For people with some of their keys, and for programs as one line of JSON."""
    await audited.begin()
    run(db, "USE d", "CREATE TABLE t (id INT PRIMARY KEY, n INT, m INT)")
    run(db, "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)")
    place = f"at:{await audited.catch_up()}"
    run(db, "UPDATE t SET m = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    run(db, "INSERT INTO t VALUES (4, 4, 4)")
    await audited.catch_up()
    wanted = ("--until", place, "--db", "d")
    for mode in ("state", "undo"):
        said = restore(audited, *wanted, "--mode", mode).output
        assert "1 missing, 1 changed, 1 too many" in said
        assert "~ id = 1: m" in said
        assert "+ id = 2" in said
        assert "- id = 4" in said
    told = msgspec.json.decode(restore(audited, *wanted, "--json").output)
    (table,) = told["tables"]
    assert (table["table"], table["rows"], table["same"]) == ("d.t", 3, 1)
    assert told["transaction"] is not None
    assert run(db, "SELECT COUNT(*) FROM t") == [(3,)]


@pytest.mark.slow
async def test_values_that_lie_beside_the_trail_come_back(audited: Audited, db: Connected) -> None:
    """A8: a row that no record of MongoDB has room for."""
    await audited.begin()
    run(
        db,
        *("USE d", "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT, b LONGBLOB)"),
        f"INSERT INTO t VALUES (1, REPEAT('x\\n', {5 << 20}), REPEAT(x'00ff', {1 << 20}))",
    )
    place = f"at:{await audited.catch_up()}"
    run(db, f"UPDATE t SET v = REPEAT('y', {9 << 20})")
    await audited.catch_up()
    assert audited.trail.records.count_documents({"spilled": {"$exists": True}}) == 2
    replayed = ("--mode", "replay", "--until", "head", "--db", "d", "--into", "again", "--execute")
    restore(audited, *replayed)
    assert differing(db, "again", "d") == []
    restore(audited, "--until", place, "--db", "d", "--into", "then", "--execute")
    assert run(db, "SELECT LENGTH(v), LENGTH(b) FROM then.t") == [(10 << 20, 2 << 20)]
