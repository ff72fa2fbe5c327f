"""What a trail keeps of a value goes back to the server as exactly that value (A25)."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.audit.values import document_of
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.restoring import sql
from penstock.sources.mysql.restoring.columns import (
    ServerTable,
    comparable,
    enum_values,
)
from penstock.sources.mysql.restoring.literals import NoLiteralError, literal
from penstock.sources.mysql.restoring.server import Server, Target
from tests.mysql.anything import AnyTable, Kind, kinds_of, tables
from tests.mysql.mysql_kinds import MYSQL_KINDS
from tests.mysql.support import Story, caught_up, run, source_of
from tests.mysql.test_values import LOOSE, edges
from tests.seeds import cases
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer


def checksum(db: Connected, table: str) -> Any:
    ((_, total),) = run(db, f"CHECKSUM TABLE {table} EXTENDED")
    return total


async def back_and_forth(
    server: SqlServer, database: str, made: dict[str, AnyTable], modes: tuple[str, ...]
) -> None:
    """Make tables, capture them, write what was captured into copies without rows, and compare."""
    source = source_of(server, include=[f"{database}.t*"])
    story = await follow(source, Story(), lambda _: True)
    with server.connect(database=database) as db:
        run(db, LOOSE)
        for name, table in made.items():
            table.make(db, name)
        await caught_up(server, source, story)
        rows = story.rows()
        target = Target(host=server.host, port=server.port, user="root")
        with Server(target, "") as restored:
            for mode in modes:
                restored.run([sql.Statement(text=f"SET SESSION sql_mode = '{mode}'", about="")])
                for name, table in made.items():
                    theirs = list(rows.get(f"{database}.{name}", {}).values())
                    kept = [document_of(msgspec.json.encode(row)) or {} for row in theirs]
                    copy = (database, f"back_{name}")
                    run(db, f"CREATE TABLE {copy[1]} LIKE {name}")
                    facts = restored.facts(copy)
                    assert facts is not None
                    restored.run(sql.inserts(copy, kept, facts, about=name))
                    said = {kind.ddl for kind, _ in table.columns}
                    if not any(ddl.endswith(",'')") or ddl == "JSON" for ddl in said):
                        assert checksum(db, copy[1]) == checksum(db, name), name
                    else:
                        # An ENUM that has '' as a value: its text does not say whether it was that,
                        # or no value at all, and servers keep that apart. So it is with a document
                        # of MySQL that is null, and NULL.
                        assert table.told(db, copy[1]) == table.told(db, name)
                    reads_back(restored, copy, facts, kept)
                    finds_each(restored, copy, facts, kept)
                    assert run(db, f"SELECT COUNT(*) FROM {copy[1]}") == [(0,)]
                    run(db, f"DROP TABLE {copy[1]}")
        for name in made:
            run(db, f"DROP TABLE {name}")


def reads_back(
    server: Server, name: tuple[str, str], facts: ServerTable, kept: list[dict[str, Any]]
) -> None:
    """What is read of the server is what the trail kept, so that equal rows are not written."""
    wanted = {row["id"]: row for row in kept}
    for row in server.rows(name, facts):
        for column in facts.written:
            one, other = wanted[row["id"]][column.name], row[column.name]
            assert comparable(column, one) == comparable(column, other), column.type


def finds_each(
    server: Server, name: tuple[str, str], facts: ServerTable, kept: list[dict[str, Any]]
) -> None:
    """Each row is found by all of its values, and no other is (`IS NULL`, and no collation)."""
    server.run([sql.delete_equal(name, row, 1, facts, about="") for row in kept])


STRICT = sql.SQL_MODE
NO_BACKSLASHES = f"{sql.SQL_MODE},NO_BACKSLASH_ESCAPES,ANSI_QUOTES"


@pytest.mark.parametrize("number", range(4))
async def test_each_type_goes_back_as_it_came(
    mariadb: MariaDbServer, mariadb_database: str, number: int
) -> None:
    """The type matrix, whatever the session thinks of backslashes and quotes."""
    made = matrix(kinds_of(mariadb)[number::4])
    await back_and_forth(mariadb, mariadb_database, made, (STRICT, NO_BACKSLASHES))


@pytest.mark.parametrize("number", range(4))
async def test_each_type_goes_back_to_mysql_as_it_came(
    mysql: MySqlServer, mysql_database: str, number: int
) -> None:
    """As above: with JSON, vectors and the axes of reference systems, which MariaDB has not."""
    made = matrix(MYSQL_KINDS[number::4])
    await back_and_forth(mysql, mysql_database, made, (STRICT, NO_BACKSLASHES))


def matrix(kinds: list[Kind]) -> dict[str, AnyTable]:
    """A table of each type, with its edges and NULL."""
    return {
        f"t{i}": AnyTable([(kind, True)], [[value] for value in [*edges(kind), None]], [])
        for i, kind in enumerate(kinds)
    }


@pytest.mark.slow
@settings(
    max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(made=st.lists(tables(), min_size=1, max_size=3))
def test_any_rows_of_any_tables_go_back_as_they_came(
    mariadb: MariaDbServer, made: list[AnyTable]
) -> None:
    any_rows_go_back(mariadb, made)


@pytest.mark.slow
@settings(
    max_examples=cases(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(made=st.lists(tables(MYSQL_KINDS), min_size=1, max_size=3))
def test_any_rows_of_any_tables_go_back_to_mysql_as_they_came(
    mysql: MySqlServer, made: list[AnyTable]
) -> None:
    any_rows_go_back(mysql, made)


@pytest.mark.slow
def test_a_document_that_is_null_goes_back_into_a_column_that_takes_no_null(
    mysql: MySqlServer,
) -> None:
    (document,) = (kind for kind in MYSQL_KINDS if kind.ddl == "JSON")
    any_rows_go_back(mysql, [AnyTable([(document, False)], [["null"], ["{}"], ["null"]], [])])


def any_rows_go_back(server: SqlServer, made: list[AnyTable]) -> None:
    name = f"back_{random.getrandbits(48):x}"
    with server.connect() as db:
        run(db, f"CREATE DATABASE {name}")
        try:
            both = (random.choice([STRICT, NO_BACKSLASHES]),)
            numbered = {f"t{i}": table for i, table in enumerate(made)}
            asyncio.run(back_and_forth(server, name, numbered, both))
        finally:
            run(db, f"DROP DATABASE {name}")


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_written_by_digits_that_are_no_other_double(value: float) -> None:
    """A25: six digits (%g) are the literals of many doubles."""
    written = literal(value)
    assert float(written) == value
    assert "e" in written  # without it, it is a DECIMAL, which loses what is small


@given(value=st.text())
def test_text_is_written_so_that_no_mode_reads_it_otherwise(value: str) -> None:
    """Either no character means anything but itself, or it is written by its bytes."""
    written = literal(value)
    if written.startswith("_utf8mb4 X'"):
        assert bytes.fromhex(written[11:-1]).decode() == value
    else:
        assert written == "'" + value.replace("'", "''") + "'"
        assert "\\" not in value
        assert value.isprintable() or not set(value) & set("\n\r\t\0\x1a")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), ObjectId(), Binary(b"x", 4), {"a": 1}, [1], Decimal128("NaN")],
)
def test_what_no_column_holds_is_refused_without_its_value(value: Any) -> None:
    with pytest.raises(NoLiteralError) as refused:
        literal(value)
    assert "a': 1" not in str(refused.value)


def test_the_values_of_an_enum_are_read_from_its_type() -> None:
    assert enum_values("enum('a','b''c','','d,e')") == ("a", "b'c", "", "d,e")


async def test_a_document_goes_back_with_the_types_of_its_values(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A25: a number, a text that reads like one, a DECIMAL and bytes are four things in JSON."""
    documents = [
        *("'5'", "'\"5\"'", "'5.0'", "'-0.0'", "'18446744073709551615'", "'1e16'", "'5e-324'"),
        *("'true'", "'[]'", "'{}'", '\'["a", "b"]\'', "CAST(1.10 AS JSON)", "CAST(5.0 AS JSON)"),
        "JSON_EXTRACT(JSON_ARRAY(CAST(5 AS DECIMAL(9, 0))), '$[0]')",
        "JSON_EXTRACT(JSON_ARRAY(X'00ff'), '$[0]')",
        "JSON_OBJECT('d', 1.10, 'b', X'00ff', 'n', 2e0, 'o', JSON_OBJECT('x', NULL))",
        "JSON_ARRAY(X'01', 'base64:type15:AQ==', 99999999999999999999.5)",
    ]
    source = source_of(mysql, include=[f"{mysql_database}.a"])
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, j JSON)", "CREATE TABLE b LIKE a")
        run(db, *(f"INSERT INTO a VALUES ({n}, {one})" for n, one in enumerate(documents)))
        await caught_up(mysql, source, story)
        kept = [document_of(event.full_document) or {} for event in story.changes]
        copy = (mysql_database, "b")
        with Server(Target(host=mysql.host, port=mysql.port, user="root"), "") as restored:
            facts = restored.facts(copy)
            assert facts is not None
            restored.run(sql.inserts(copy, kept, facts, about=""))
            deep = "JSON_TYPE(JSON_EXTRACT(j, '$.d')), JSON_TYPE(JSON_EXTRACT(j, '$[2]'))"
            asked = f"SELECT id, CAST(j AS CHAR), JSON_TYPE(j), {deep} FROM"
            assert run(db, f"{asked} a") == run(db, f"{asked} b")
            reads_back(restored, copy, facts, kept)
            finds_each(restored, copy, facts, kept)
            assert run(db, "SELECT COUNT(*) FROM b") == [(0,)]
