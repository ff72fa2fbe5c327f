"""A key is the source's, also where the table would count its rows by itself."""

import pytest

from tests.spark.replica.support import Driver, SqlReplica
from tests.spark.tables import Entries, change, put


@pytest.mark.parametrize(
    "replica",
    [pytest.param(name, marks=pytest.mark.server) for name in ("mariadb", "mysql")],
    indirect=True,
)
def test_a_row_with_the_key_0_keeps_it(replica: SqlReplica) -> None:
    replica.ask("CREATE TABLE orders (_id int NOT NULL AUTO_INCREMENT PRIMARY KEY, n int)")
    entries = Entries()
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        entries.commit(put(0, n=1))
        driver.apply()
        assert replica.rows("orders") == {0: {"_id": 0, "n": 1}}
        entries.commit(change(0, "replace", {"_id": 0, "n": 2}), put(1, n=3))
        driver.apply(1)
        assert replica.rows("orders") == {0: {"_id": 0, "n": 2}, 1: {"_id": 1, "n": 3}}
        entries.commit(change(0, "delete"))
        driver.apply(3)
        assert replica.rows("orders") == {1: {"_id": 1, "n": 3}}
    finally:
        driver.close()
