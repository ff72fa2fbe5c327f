"""MySQL's JSON: a SELECT gives text, and a copy must have what the binlog has of it."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import UndecodableError
from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.json_texts import json_of_text
from tests.mysql.mysql_kinds import documents, names
from tests.mysql.support import Story, caught_up, completed, run, source_of
from tests.mysql.test_values import encoded
from tests.seeds import cases
from tests.telling import follow
from tests_support.servers import MySqlServer


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def member(pair: tuple[str, str]) -> str:
    return f"{quoted(pair[0])}, {pair[1]}"


LEAVES = st.sampled_from(
    [
        *("1", "1.0", "1.10", "-0.5", "CAST(7 AS DECIMAL(9))", "0e0", "-0e0", "1e300", "1e-7"),
        *("CAST(-0.05 AS DECIMAL(65, 30))", "18446744073709551615", "TRUE", "NULL", "''"),
        *("DATE '2026-01-31'", "TIME '-838:59:58.5'", "TIMESTAMP '2026-01-31 23:59:59.000001'"),
        *("x'00ff'", "REPEAT(x'c3', 100)", "b'101'", "ST_GeomFromText('POINT(1 2)')"),
        *("'base64:type15:YWI='", "'1.10'", "'2026-01-31'", "CAST(1.50 AS JSON)"),
    ]
)
VALUES = st.recursive(
    LEAVES | documents.map(lambda one: f"CAST({quoted(json.dumps(one))} AS JSON)"),
    lambda inner: (
        st.lists(inner, max_size=5).map(lambda all_of: f"JSON_ARRAY({', '.join(all_of)})")
        | st.lists(st.tuples(names, inner), max_size=5).map(
            lambda pairs: f"JSON_OBJECT({', '.join(map(member, pairs))})"
        )
    ),
    max_leaves=25,
)


@settings(
    max_examples=cases(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(values=st.lists(VALUES, min_size=1, max_size=20))
@example(values=["1.5", "x'00'", "NULL", "JSON_ARRAY(JSON_ARRAY(1.5, JSON_OBJECT('a', 2.5)), 3.5)"])
@example(values=["'base64:type15:YWI='", "''", "'2026-01-31'"])
@example(values=["JSON_ARRAY(JSON_ARRAY(1, JSON_ARRAY(1.5)), JSON_ARRAY(2, 2.5))"])
def test_any_json_of_values_of_any_type_is_copied_as_the_binlog_has_it(
    mysql: MySqlServer, values: list[str]
) -> None:
    """A28, invariant 9: numbers and bytes that read like others, wherever they are."""
    asyncio.run(both_ways(mysql, values))


async def both_ways(server: MySqlServer, values: list[str]) -> None:
    source = source_of(server, include=["json.*"])
    with server.connect() as db:
        run(db, "CREATE DATABASE IF NOT EXISTS json", "DROP TABLE IF EXISTS json.j")
        story = await follow(source, Story(), lambda _: True)
        run(db, "CREATE TABLE json.j (id INT PRIMARY KEY, j JSON, k JSON)", "USE json")
        for number, value in enumerate(values):
            # CAST would read a text as JSON, which it need not be.
            is_text = value.startswith("'")
            alone = f"JSON_QUOTE({value})" if is_text else f"CAST({value} AS JSON)"
            run(db, f"INSERT INTO j VALUES ({number}, {alone}, JSON_ARRAY({value}))")
        await caught_up(server, source, story)
        copy = source_of(server, include=["json.*"], start="snapshot")
        copied = await follow(copy, Story(), completed)
        assert encoded(copied) == encoded(story)


async def test_columns_whose_values_differ_in_shape_are_told_with_the_first_rows(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """Of a table from before capture began, once in a session, and in a copy before its rows."""
    masked = {"mask": {f"{mysql_database}.a.m": "****"}}
    options: dict[str, Any] = {"include": [f"{mysql_database}.*"], "columns": masked}
    varying = {"j": "json", "t": "timestamp"}
    with mysql.connect(database=mysql_database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY, j JSON, m JSON, t TIMESTAMP NULL, x JSON AS (j))",
        )
        source = source_of(mysql, **options)
        story = await follow(source, Story(), lambda _: True)
        for number in (1, 2):
            run(db, f"INSERT INTO a (id, j) VALUES ({number}, '\"red\"')")
    await caught_up(mysql, source, story)
    (told,) = [json.loads(bytes(event.description)) for event in story.shapes]
    assert told["varying"] == varying
    last = story.position
    assert story.events[1] == story.shapes[0], "in the transaction of the first row"
    with mysql.connect(database=mysql_database) as db:
        run(db, "INSERT INTO a (id) VALUES (3)")
    again = await caught_up(mysql, source, Story(last))
    assert [json.loads(bytes(event.description))["varying"] for event in again.shapes] == [varying]
    ranged, place = source_of(mysql, **options), str(again.position)
    (part,) = (await ranged.ranges(mysql_database, "a", rows=10, position=place)).ranges
    read = await ranged.read_range(part, position=place)
    await ranged.close()
    assert (len(read.events), read.varying) == (3, varying)
    copied = await follow(source_of(mysql, **options, start="snapshot"), Story(), completed)
    operations = [event.operation for event in copied.events]
    assert operations == ["snapshot_started", "columns", *["insert"] * 3, "snapshot_completed"]
    (columns,) = [event for event in copied.system if event.operation == "columns"]
    assert columns.collection == "a"
    assert json.loads(bytes(columns.description))["varying"] == varying
    all_masked = {"mask": {f"{mysql_database}.a.{name}": "****" for name in "jmt"}}
    source = source_of(mysql, include=[f"{mysql_database}.*"], columns=all_masked)
    story = await follow(source, Story(), lambda _: True)
    with mysql.connect(database=mysql_database) as db:
        run(db, "ALTER TABLE a ADD n INT", "INSERT INTO a (id) VALUES (4)")
    await caught_up(mysql, source, story)
    (told,) = [json.loads(bytes(event.description)) for event in story.shapes]
    assert told["varying"] == {}, "a declared type says nothing of what a rule made of the values"


async def test_json_that_looks_like_a_wrapper_stops_a_copy_too(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """Invariant 10."""
    with mysql.connect(database=mysql_database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, j JSON)")
        run(db, """INSERT INTO a VALUES (1, '[{"$oid": "1"}]')""")
    source = source_of(mysql, include=[f"{mysql_database}.*"], start="snapshot")
    with pytest.raises(UndecodableError, match=r"\$oid"):
        await follow(source, Story(), completed)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [('["a"]', ["ARRAY", None, {"1": "DECIMAL"}]), ('{"a": 1}', ["OBJECT", {"1": "BLOB"}, None])],
)
def test_kinds_that_are_not_those_of_the_text_are_refused(text: str, kinds: list[Any]) -> None:
    """Invariant 10: another order of what a path finds is heard of, and nothing is guessed."""
    with pytest.raises(MalformedEventError):
        json_of_text(text, msgspec.json.encode(kinds).decode())
