"""Whatever a server, a database or a role has set for sessions, values are what they were."""

import json
from typing import Any

import psycopg
import pytest

from penstock.errors import DestinationError
from penstock.spark.replica import mysql_connection
from penstock.spark.replica.postgres import PostgresDialect
from tests.spark.replica.support import Driver, MysqlReplica, PostgresReplica, database
from tests.spark.tables import Entries, change, put, schema_event
from tests_support.servers import MariaDbServer, PostgresServer

SETTINGS = {
    "extra_float_digits": "-10",
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Asia/Kathmandu'",
    "array_nulls": "off",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "search_path": "shadow, pg_catalog",
    "statement_timeout": "60000",
}
SHADOW = (
    "CREATE SCHEMA shadow",
    "CREATE FUNCTION shadow.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp(0)'",
    "CREATE FUNCTION shadow.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
    "CREATE OPERATOR shadow.= (LEFTARG = text, RIGHTARG = text, FUNCTION = shadow.same)",
)
FIELDS = {
    "third": 1 / 3,
    "tiny": 5e-324,
    "at": {"$date": "2026-03-04T05:06:07.000Z"},
    "text": "NULL",
    "bytes": {"$binary": {"base64": "XFwwMDA=", "subType": "00"}},
    "slash": "a\\'b\\n",
    "price": {"$numberDecimal": "0.1"},
}


def document(key: str, **fields: object) -> str:
    return json.dumps({"_id": key, **fields})


def test_settings_of_a_database_of_postgresql_change_no_value(postgres: PostgresServer) -> None:
    """Rows are written, read to be built on, and written again."""
    name = database()
    replica, plain = PostgresReplica(postgres.create(name)), PostgresReplica("")
    for statement in SHADOW:
        replica.ask(statement)
    for setting, value in SETTINGS.items():
        replica.ask(f'ALTER DATABASE "{name}" SET {setting} = {value}')
    entries = Entries()
    entries.commit(change("a", "insert", text=document("a", **FIELDS)), put("b", text=None))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        driver.apply()
        update = {"updatedFields": {"more": 1}}
        entries.commit(*(change(key, "update", update=update) for key in "ab"))
        assert driver.apply(2).rejected == 0
        destination: Any = driver.destination
        connection = destination._connection
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
    finally:
        driver.close()
    for setting in SETTINGS:
        replica.ask(f'ALTER DATABASE "{name}" RESET {setting}')
    rows = replica.rows("orders")
    assert rows == {
        "a": {**plain.expected(json.loads(document("a", **FIELDS))), "more": 1},
        "b": {"_id": "b", "more": 1},
    }
    ((row),) = replica.ask("SELECT written > now() - interval '1 day' AS fresh "
                           "FROM _penstock_pipelines")  # fmt: skip
    assert row == {"fresh": True}


@pytest.mark.parametrize(("asked", "kept"), [("off", "on"), ("local", "local"), ("on", "on")])
def test_a_commit_is_on_the_disk_when_it_is_answered(
    postgres: PostgresServer, asked: str, kept: str
) -> None:
    uri = postgres.uri() + f"?options=-csynchronous_commit%3D{asked}"
    dialect = PostgresDialect("p", PostgresReplica(uri).config())
    with dialect.connect() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == (kept,)


def test_a_policy_that_hides_rows_stops_it(postgres: PostgresServer) -> None:
    """A delete that a policy hides the row from would be no error."""
    name, role = database(), database()
    owner = PostgresReplica(postgres.create(name))
    owner.ask(f'CREATE ROLE "{role}" LOGIN')
    owner.ask(f'GRANT ALL ON SCHEMA public TO "{role}"')
    replica = PostgresReplica(owner.uri.replace("postgres@", f"{role}@"))
    entries = Entries()
    entries.commit(put(1, n=1))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        driver.apply()
        owner.ask("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        owner.ask("ALTER TABLE orders FORCE ROW LEVEL SECURITY")
        entries.commit(change(1, "delete"))
        with pytest.raises(DestinationError, match="42501"):
            driver.apply(1)
        owner.ask("ALTER TABLE orders NO FORCE ROW LEVEL SECURITY")
        driver.apply(1)
        assert replica.rows("orders") == {}
    finally:
        driver.close()
        with psycopg.connect(owner.uri, autocommit=True) as connection:
            connection.execute(f'DROP OWNED BY "{role}"'.encode())
            connection.execute(f'DROP ROLE "{role}"'.encode())


def test_settings_of_mariadb_hide_no_row_and_cut_no_name(
    mariadb: MariaDbServer, mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server's init_connect would set them, before ours."""

    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    connect = mysql_connection.Connection

    def with_settings(**options: object) -> object:
        first = "SET sql_select_limit = 1, group_concat_max_len = 4, sql_safe_updates = 1"
        ours = str(options["init_command"]).removeprefix("SET ")
        return connect(**{**options, "init_command": f"{first}, {ours}"})  # type: ignore[call-overload]

    monkeypatch.setattr(mysql_connection, "Connection", with_settings)
    entries = Entries()
    entries.commit(*(put(key, n=key, kept="x") for key in range(9)))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        driver.apply()
        update = {"updatedFields": {"n": 7}}
        entries.commit(*(change(key, "update", update=update) for key in range(9)))
        assert driver.apply(9).rejected == 0
        entries.commit(schema_event("drop"))
        monkeypatch.undo()
        assert replica.rows("orders") == {
            key: {"_id": key, "n": 7, "kept": "x"} for key in range(9)
        }
        driver.apply(18)
        assert replica.rows("orders") == {}
    finally:
        driver.close()
