"""Servers that replicas are written into, drivers without Spark, and pipelines with it; the
contract's assertions say what they saw."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from tests.flight.blocks import BlockLog
from tests.spark.replica.support import (
    Driver,
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
    SqlReplica,
    database,
)
from tests.spark.replica.verified import Pipeline
from tests.spark.tables import Entries
from tests_support.servers import MariaDbServer, MySqlServer, PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite("tests.spark.replica.contract")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.server) for name in ("postgres", "mariadb")]
)
def replica(request: pytest.FixtureRequest) -> SqlReplica:
    """An empty database, of each server; `mysql` where a test asks for it by name."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return PostgresReplica(postgres.create(database()))
    server: MariaDbServer | MySqlServer = request.getfixturevalue(request.param)
    name = request.getfixturevalue(f"{request.param}_database")
    return MysqlReplica(server.host, server.port, name)


@pytest.fixture
def start(replica: SqlReplica) -> Iterator[Any]:
    """Start a driver of `replica` on a log."""
    drivers: list[Driver] = []

    def start(entries: Entries) -> Driver:
        drivers.append(Driver(entries, replica.config()))
        drivers[-1].start()
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture
def endpoint(log: BlockLog, tmp_path: Path) -> Iterator[str]:
    """Of a service with the log of the test's module, which knows which pipelines run."""
    book = PipelineBook(tmp_path, log, hold_seconds=3600.0, hold_bytes=1 << 30)
    server = FlightServer(log, book=book)
    server.start()
    yield server.address
    server.stop()
    book.close()


@pytest.fixture(
    params=[
        *(
            pytest.param(name, marks=pytest.mark.server)
            for name in ("postgres", "mariadb", "mongo")
        ),
        pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.soak]),
    ]
)
def any_replica(request: pytest.FixtureRequest) -> Iterator[Replica]:
    """An empty database, of each server, MongoDB too; MySQL, which is as MariaDB but for values, in
    the long runs, and where a test asks for it by name."""
    server: Any = request.getfixturevalue(request.param)
    if request.param == "postgres":
        yield PostgresReplica(server.create(database()))
    elif request.param == "mongo":
        mongo = MongoReplica(server.uri, request.getfixturevalue("mongo_database"))
        yield mongo
        mongo.close()
    else:
        name = request.getfixturevalue(f"{request.param}_database")
        yield MysqlReplica(server.host, server.port, name)


@pytest.fixture
def pipeline(spark: "SparkSession", endpoint: str, any_replica: Replica) -> Pipeline:
    """Into each of them."""
    return Pipeline(spark, endpoint, any_replica)
