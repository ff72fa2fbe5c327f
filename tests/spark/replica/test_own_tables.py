"""Our own tables in MySQL and MariaDB are of a form that every server of theirs takes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pymysql
import pytest

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import COLUMNS, PLACES, REJECTS, TABLES
from penstock.spark.replica.mysql import MysqlDialect
from tests.spark.replica.support import Driver, MysqlReplica, SqlReplica
from tests.spark.tables import Entries, put
from tests_support.servers import MariaDbServer, MySqlServer

KEYED = (
    "SELECT TABLE_NAME AS name FROM information_schema.STATISTICS "
    "WHERE TABLE_SCHEMA = DATABASE() AND INDEX_NAME = 'PRIMARY' AND SEQ_IN_INDEX = 1"
)

on_each = pytest.mark.parametrize(
    "replica",
    [pytest.param(name, marks=pytest.mark.server) for name in ("mariadb", "mysql")],
    indirect=True,
)


def misfits(*keys: int) -> list[Any]:
    return [put(key, n="no number") for key in keys]


def rejected(replica: SqlReplica) -> list[tuple[int, int | None]]:
    return [(one["sequence"], one["healed"]) for one in replica.rejects()]


def keeps_rejects(replica: SqlReplica) -> None:
    entries = Entries()
    entries.commit(put(1, n=1), *misfits(2, 3))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        assert driver.apply().rejected == 2
    finally:
        driver.close()
    names = replica.names()
    assert names == {PLACES, TABLES, COLUMNS, REJECTS, "orders"}
    assert {one["name"] for one in replica.ask(KEYED)} == names


def test_a_mariadb_that_takes_no_table_without_a_primary_key_takes_ours(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    server = start_mariadb(options=["--innodb-force-primary-key=ON"])
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    keeps_rejects(MysqlReplica(server.host, server.port, "shop"))


def test_a_mysql_that_takes_no_table_without_a_primary_key_takes_ours(
    start_mysql: Callable[..., MySqlServer],
) -> None:
    server = start_mysql(options=["--sql-require-primary-key=ON"])
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    keeps_rejects(MysqlReplica(server.host, server.port, "shop"))


@on_each
def test_rejects_of_an_earlier_penstock_get_a_primary_key_and_stay(replica: SqlReplica) -> None:
    keeps_rejects(replica)
    # As they once were.
    replica.ask(f"ALTER TABLE {REJECTS} DROP COLUMN id")
    entries = Entries()
    entries.commit(put(1, n=1), *misfits(2, 3))
    driver = Driver(entries, replica.config())
    try:
        assert driver.start() == 3
        assert rejected(replica) == [(2, None), (3, None)]
        entries.commit(put(2, n=2), *misfits(4, 5))
        assert driver.apply(3).rejected == 2
        assert [one["key"] for one in driver.destination.pending()] == [
            '{"_id":3}', '{"_id":4}', '{"_id":5}',
        ]  # fmt: skip
    finally:
        driver.close()
    assert rejected(replica) == [(2, 6), (3, None), (5, None), (6, None)]
    ids = [one["id"] for one in replica.ask(f"SELECT id FROM {REJECTS}")]
    assert sorted(ids) == [1, 2, 3, 4]
    assert REJECTS in {one["name"] for one in replica.ask(KEYED)}


class Altered:
    """A connection, and its cursor, to a table that somebody else alters at that moment."""

    def __init__(self, code: int) -> None:
        self.connection = self
        self.code = code

    def unhurried(self) -> AbstractContextManager[None]:
        return nullcontext()

    def execute(self, statement: str, _: Any) -> None:
        if statement.startswith("ALTER"):
            raise pymysql.OperationalError(self.code, "")

    def fetchone(self) -> None: ...


def test_two_that_alter_it_at_once_are_no_error() -> None:
    config = ReplicatePipelineConfig.model_validate(
        {"to": "replicate", "source": "shop", "uri": "mysql://there/shop"}
    )
    dialect = MysqlDialect("p", config)
    for code in (1060, 1068):  # duplicate column, multiple primary key
        dialect.renew_own_tables(Altered(code))
    with pytest.raises(pymysql.OperationalError):
        dialect.renew_own_tables(Altered(1142))
