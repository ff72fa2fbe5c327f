"""A replica is compared as it is at one moment, whoever writes it meanwhile."""

from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from penstock.spark.replica.ledger import Ledger
from penstock.spark.replicate import dialect_of
from tests.spark.replica.support import MysqlReplica, PostgresReplica, SqlReplica
from tests.spark.tables import Entries, change, put

SQL = [pytest.param(name, marks=pytest.mark.server) for name in ("postgres", "mariadb", "mysql")]
HELD = (psycopg.errors.LockNotAvailable, pymysql.OperationalError)


def rewrite(replica: SqlReplica) -> None:
    """Give a column another type; raises HELD where the table is held."""
    if isinstance(replica, PostgresReplica):
        replica.ask("SET lock_timeout = 1; ALTER TABLE orders ALTER COLUMN n TYPE numeric(38,18)")
        return
    assert isinstance(replica, MysqlReplica)
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET lock_wait_timeout = 1")
        cursor.execute("ALTER TABLE orders MODIFY COLUMN n decimal(38,18) NULL")


@pytest.mark.parametrize("replica", SQL, indirect=True)
def test_rows_and_place_are_of_one_moment(replica: SqlReplica, start: Any) -> None:
    entries = Entries()
    entries.commit(*(put(key, n=key) for key in range(3)))
    driver = start(entries)
    driver.apply()
    place, head = driver.place, entries.head
    dialect = dialect_of("p", replica.config())
    with closing(dialect.connect()) as connection:
        dialect.begin_moment(connection, ["orders"])
        cursor = connection.cursor()
        assert Ledger("p", dialect).place(cursor) == place
        entries.commit(put(7, n=7), put(1, n=-1), change(2, "delete"))
        driver.apply(head)
        table = dialect.describe(cursor, "orders")
        assert table is not None
        columns = [one for one in table.columns if one.name in {"_id", "n"}]
        found = {tuple(map(int, row)) for row in dialect.stream(connection, "orders", columns)}
        assert found == {(0, 0), (1, 1), (2, 2)}
    assert {key: row["n"] for key, row in replica.rows("orders").items()} == {0: 0, 1: -1, 7: 7}


@pytest.mark.parametrize("replica", SQL, indirect=True)
def test_a_table_is_not_rewritten_while_it_is_looked_at(replica: SqlReplica, start: Any) -> None:
    """Behind the moment it would seem empty, or be an error."""
    entries = Entries()
    entries.commit(*(put(key, n=key) for key in range(3)))
    start(entries).apply()
    dialect = dialect_of("p", replica.config())
    with closing(dialect.connect()) as connection:
        dialect.begin_moment(connection, ["orders"])
        with pytest.raises(HELD):
            rewrite(replica)
        table = dialect.describe(connection.cursor(), "orders")
        assert table is not None
        assert len(list(dialect.stream(connection, "orders", table.columns))) == 3
    rewrite(replica)
