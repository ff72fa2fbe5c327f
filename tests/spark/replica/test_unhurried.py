"""What is done to a whole table may take longer than any answer that is waited for."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import DestinationError
from penstock.spark.replica.attempts import Attempts
from tests.spark.replica.support import Driver, MongoReplica, MysqlReplica, database
from tests.spark.tables import Entries, put, schema_event
from tests_support.servers import MariaDbServer, MongoReplicaSet

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


@pytest.fixture
def slow(start_mongo: Any) -> Iterator[MongoReplica]:
    server: MongoReplicaSet = start_mongo(parameters={"enableTestCommands": "1"})
    replica = MongoReplica(server.uri, database())
    yield replica
    replica.close()


def delay_deletes(replica: MongoReplica, seconds: float) -> None:
    """Those of a pipeline."""
    data = {
        "failCommands": ["delete"],
        "appName": "penstock",
        "blockConnection": True,
        "blockTimeMS": int(seconds * 1000),
    }
    admin = replica.database.client.admin
    admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data})


def allow_transactions(monkeypatch: pytest.MonkeyPatch, number: int) -> list[Attempts]:
    """Those that begin; one more fails."""
    begun: list[Attempts] = []
    begin = Attempts.begin

    def counted(attempts: Attempts) -> None:
        assert len(begun) < number, "a batch was begun again"
        begun.append(attempts)
        begin(attempts)

    monkeypatch.setattr(Attempts, "begin", counted)
    return begun


@pytest.mark.slow
def test_a_collection_that_takes_longer_than_an_answer_is_emptied_and_moved(
    slow: MongoReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Entries()
    driver = Driver(entries, slow.config(answer_seconds=1))
    try:
        driver.start()
        entries.commit(*(put(key, n=key) for key in range(_ROWS)))
        driver.apply()
        delay_deletes(slow, 1.5)
        begun = allow_transactions(monkeypatch, 2)
        entries.commit(schema_event("rename", to={"db": "db", "coll": "old"}))
        driver.apply(_ROWS)
        assert set(slow.rows("old")) == set(range(_ROWS))
        assert slow.rows("orders") == {}
        entries.commit(schema_event("drop", collection="old"))
        driver.apply(_ROWS + 1)
        assert slow.rows("old") == {}
        assert len(begun) == 2
    finally:
        driver.close()


@pytest.mark.slow
def test_a_collection_that_takes_longer_than_a_transaction_lasts_is_named(
    slow: MongoReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it, before anybody begins it again."""
    slow.database.client.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 2})
    entries = Entries()
    driver = Driver(entries, slow.config(answer_seconds=1))
    try:
        driver.start()
        entries.commit(put(1, n=1))
        driver.apply()
        delay_deletes(slow, 8)
        allow_transactions(monkeypatch, 1)
        entries.commit(schema_event("drop"))
        with pytest.raises(DestinationError, match="transactionLifetimeLimitSeconds"):
            driver.apply(1)
        assert set(slow.rows("orders")) == {1}
    finally:
        driver.close()
