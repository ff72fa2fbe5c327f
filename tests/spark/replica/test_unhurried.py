"""What is done to a whole table may take longer than any answer that is waited for."""

import pytest

from penstock.testing.servers import MariaDbServer
from tests.spark.replica.support import Driver, MysqlReplica
from tests.spark.tables import Entries, put, schema_event

_ROWS = 6
_SECONDS = 0.4
"""For each row."""


@pytest.mark.slow
def test_a_table_that_takes_longer_than_an_answer_is_emptied_and_moved(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """Cut off, the statement would be rolled back and begun again, for ever."""
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    entries = Entries()
    driver = Driver(entries, replica.config(answer_seconds=1))
    try:
        driver.start()
        entries.commit(*(put(key, n=key) for key in range(_ROWS)))
        driver.apply()
        replica.ask(
            f"CREATE TRIGGER slow BEFORE DELETE ON orders FOR EACH ROW DO SLEEP({_SECONDS})"
        )
        entries.commit(schema_event("rename", to={"db": "db", "coll": "old"}))
        driver.apply(_ROWS)
        assert set(replica.rows("old")) == set(range(_ROWS))
        assert replica.rows("orders") == {}
        replica.ask(f"CREATE TRIGGER slower BEFORE DELETE ON old FOR EACH ROW DO SLEEP({_SECONDS})")
        entries.commit(schema_event("drop", collection="old"))
        driver.apply(_ROWS + 1)
        assert replica.rows("old") == {}
    finally:
        driver.close()
