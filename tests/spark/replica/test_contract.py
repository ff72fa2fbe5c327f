"""The contract of destinations, on real servers."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pymysql
import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import AutoReconnect

from penstock.errors import SupersededPipelineError
from penstock.event import ChangeEvent
from penstock.spark.replica.sql import SqlDestination
from tests.spark.replica.contract import ReplicaContract
from tests.spark.replica.support import (
    Driver,
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
    SqlReplica,
    database,
    replay_beside,
)
from tests.spark.tables import Entries, change, put
from tests_support.servers import MariaDbServer, MongoReplicaSet, PostgresServer


class SqlContract(ReplicaContract):
    @pytest.fixture
    def misfit(self) -> ChangeEvent:
        return change(1, "replace", {"_id": 1, "n": "no number"})

    @pytest.fixture
    def lose_commit(self, monkeypatch: pytest.MonkeyPatch, lost: Exception) -> Any:
        def lose(driver: Driver, happened: bool) -> None:
            destination: Any = driver.destination
            connection = destination._connection
            assert connection is not None

            class Losing:
                """A connection whose next commit is not answered."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(connection, name)

                def commit(self) -> None:
                    if happened:
                        connection.commit()
                    raise lost

            destination._connection = Losing()

        return lose

    @pytest.fixture(params=["_set_up", "_whole"])
    def meanwhile(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Has a replay write before the next change of a table, or within it, as MySQL commits."""

        def write(driver: Driver, after: int, until: int) -> None:
            original: Any = vars(SqlDestination)[request.param]

            def beside(self: Any, *args: Any) -> Any:
                monkeypatch.setattr(SqlDestination, request.param, original)
                self._connection.commit()
                replay_beside(driver, after, until)
                return original(self, *args)

            monkeypatch.setattr(SqlDestination, request.param, beside)

        return write

    def test_a_column_that_a_replay_has_just_added_is_there(
        self, replica: Replica, entries: Entries, start: Any, meanwhile: Any
    ) -> None:
        entries.commit(put(1))
        entries.commit(put(2, note="x", more=1))
        driver: Driver = start()
        driver.apply(0, 1)
        meanwhile(driver, 1, 2)
        assert driver.apply(1).rejected == 0
        assert replica.rows("orders") == {1: {"_id": 1}, 2: {"_id": 2, "note": "x", "more": 1}}

    @pytest.mark.parametrize("meanwhile", ["_set_up"], indirect=True)
    def test_a_column_that_a_replay_has_just_widened_more_stays_so(
        self, replica: Replica, entries: Entries, start: Any, meanwhile: Any
    ) -> None:
        entries.commit(put(1, n=1))
        entries.commit(put(2, n=1 << 40))
        decimal = '{"_id":3,"n":{"$numberDecimal":"0.5"}}'
        entries.commit(change(3, "insert", text=decimal))
        driver: Driver = start()
        driver.apply(0, 1)
        meanwhile(driver, 1, 3)
        assert driver.apply(1, 2).rejected == 0
        found = {key: row["n"] for key, row in replica.rows("orders").items()}
        assert found == {1: 1, 2: 1 << 40, 3: Decimal("0.5")}

    def test_a_driver_that_is_superseded_changes_no_table(
        self, replica: Replica, entries: Entries, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries.commit(put(1))
        entries.commit(put(2, note="x"))
        driver: Driver = start()
        driver.apply(0, 1)
        original: Any = vars(SqlDestination)["_set_up"]

        def beside(self: Any, *args: Any) -> Any:
            self._connection.rollback()
            start()
            return original(self, *args)

        monkeypatch.setattr(SqlDestination, "_set_up", beside)
        with pytest.raises(SupersededPipelineError):
            driver.apply(1)
        assert isinstance(replica, SqlReplica)
        assert replica.ask("SELECT * FROM orders") == [{"_id": 1}]


class TestPostgres(SqlContract):
    @pytest.fixture
    def replica(self, postgres: PostgresServer) -> Replica:
        return PostgresReplica(postgres.create(database()))

    @pytest.fixture
    def lost(self) -> Exception:
        return psycopg.OperationalError("server closed the connection unexpectedly")


class TestMariaDb(SqlContract):
    @pytest.fixture
    def replica(self, mariadb: MariaDbServer, mariadb_database: str) -> Replica:
        return MysqlReplica(mariadb.host, mariadb.port, mariadb_database)

    @pytest.fixture
    def lost(self) -> Exception:
        return pymysql.err.OperationalError(2013, "Lost connection to server during query")


class TestMongo(ReplicaContract):
    @pytest.fixture
    def replica(self, mongo: MongoReplicaSet, mongo_database: str) -> Iterator[Replica]:
        replica = MongoReplica(mongo.uri, mongo_database)
        yield replica
        replica.close()

    @pytest.fixture
    def misfit(self) -> ChangeEvent:
        return change(1, "replace", text='{"_id":1,"n":{"$symbol":"old"}}')

    @pytest.fixture
    def lose_commit(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        commit = ClientSession.commit_transaction

        def lose(_: Driver, happened: bool) -> None:
            def losing(session: ClientSession) -> None:
                monkeypatch.setattr(ClientSession, "commit_transaction", commit)
                if happened:
                    commit(session)
                raise AutoReconnect("connection closed")

            monkeypatch.setattr(ClientSession, "commit_transaction", losing)

        return lose
