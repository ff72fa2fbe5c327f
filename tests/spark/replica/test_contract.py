"""The contract of destinations, on real servers."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import AutoReconnect

from penstock.event import ChangeEvent
from penstock.testing.servers import MariaDbServer, MongoReplicaSet, PostgresServer
from tests.spark.replica.contract import ReplicaContract
from tests.spark.replica.support import (
    Driver,
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
    database,
)
from tests.spark.tables import change


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
