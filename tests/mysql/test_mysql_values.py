"""Every type of MySQL and any value: what the log has is what the server itself says."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import UndecodableError
from tests.mysql.anything import AnyTable, tables
from tests.mysql.mysql_kinds import MYSQL_KINDS, OWN
from tests.mysql.support import Story, caught_up, run, source_of
from tests.mysql.test_values import compare, edges
from tests.seeds import cases
from tests.telling import follow
from tests_support.servers import MySqlServer


@pytest.mark.parametrize("number", range(8))
async def test_each_type_alone_comes_as_the_server_says(
    mysql: MySqlServer, mysql_database: str, number: int
) -> None:
    """A28, S2, S12: the type matrix: the edges of each type, NULL and not."""
    every = MYSQL_KINDS[number::8]
    made = {
        f"t{i}": AnyTable([(kind, True)], [[value] for value in [*edges(kind), None]], [])
        for i, kind in enumerate(every)
    }
    assert await compare(mysql, mysql_database, made) > len(every)


@settings(
    max_examples=cases(25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(made=st.lists(tables(MYSQL_KINDS), min_size=1, max_size=3))
def test_any_rows_of_any_tables_come_as_the_server_says(
    mysql: MySqlServer, made: list[AnyTable]
) -> None:
    with mysql.connect() as db:
        run(db, "CREATE DATABASE IF NOT EXISTS anything")
    asyncio.run(compare(mysql, "anything", {f"t{i}": table for i, table in enumerate(made)}))


@settings(
    max_examples=cases(15), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(made=tables(OWN))
def test_any_json_comes_as_the_server_says(mysql: MySqlServer, made: AnyTable) -> None:
    """A28: binary JSON, small and large."""
    with mysql.connect() as db:
        run(db, "CREATE DATABASE IF NOT EXISTS anything")
    asyncio.run(compare(mysql, "anything", {"t": made}))


async def test_a_timestamp_is_the_same_instant_under_a_server_of_another_zone(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """S12: a TIMESTAMP is an instant, a DATETIME is what was written."""
    source = source_of(mysql, include=[f"{mysql_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "SET time_zone = '+05:30'",
            "CREATE TABLE a (id INT PRIMARY KEY, t TIMESTAMP(3), d DATETIME)",
            "INSERT INTO a VALUES (1, '2026-01-01 05:30:00.5', '2026-01-01 05:30:00')",
        )
    await caught_up(mysql, source, story)
    assert msgspec.json.decode(story.changes[0].full_document or b"") == {
        "id": 1,
        "t": {"$date": "2026-01-01T00:00:00.500Z"},
        "d": "2026-01-01 05:30:00",
    }


JSON_OF_OTHER_TYPES: dict[str, Any] = {
    "CAST(1.10 AS DECIMAL(5, 2))": {"$numberDecimal": "1.10"},
    "CAST(-0.05 AS DECIMAL(65, 30))": {"$numberDecimal": "-0.050000000000000000000000000000"},
    "DATE '2026-01-31'": "2026-01-31",
    "TIME '-838:59:58.5'": "-838:59:58.500000",
    "TIMESTAMP '2026-01-31 23:59:59.000001'": "2026-01-31 23:59:59.000001",
    "x'00ff'": {"$binary": {"base64": "AP8=", "subType": "00"}},
    "CAST(1 AS JSON)": 1,
    "1e0": 1.0,
    "CAST('18446744073709551615' AS UNSIGNED)": 18446744073709551615,
    "TRUE": True,
    "NULL": None,
    "''": "",
}


async def test_json_has_values_of_other_types_as_columns_of_them_do(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """A28: and the server's own text of them is the same, where JSON has a form for it."""
    source = source_of(mysql, include=[f"{mysql_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        values = ", ".join(JSON_OF_OTHER_TYPES)
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, j JSON, t DATETIME(6), d DATE)")
        run(db, "INSERT INTO a VALUES (1, NULL, '0000-01-01', '2026-01-31')")
        run(db, f"UPDATE a SET j = JSON_ARRAY({values}, t, d)")
        ((text,),) = run(db, "SELECT j FROM a")
    await caught_up(mysql, source, story)
    told = msgspec.json.decode(story.changes[-1].full_document or b"")["j"]
    assert told == [*JSON_OF_OTHER_TYPES.values(), "0000-01-01 00:00:00.000000", "2026-01-31"]
    theirs = msgspec.json.decode(text)
    same = [i for i, value in enumerate(told) if not isinstance(value, dict)]
    assert [theirs[i] for i in same] == [told[i] for i in same]


async def test_json_that_looks_like_a_wrapper_stops_capture(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """Invariant 10: it would be read as what it is not."""
    source = source_of(mysql, include=[f"{mysql_database}.*"])
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, j JSON)")
        run(db, """INSERT INTO a VALUES (1, '{"$ok": 1, "x": 2}'), (2, '{"$oid": "1"}')""")
    with pytest.raises(UndecodableError, match=r"\$oid"):
        await follow(source, story, lambda _: False)
