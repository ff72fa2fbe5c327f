"""SQL servers that replicas are written into, and drivers without Spark; the contract's assertions
say what they saw."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing.servers import MariaDbServer, MySqlServer, PostgresServer
from tests.spark.replica.support import (
    Driver,
    MysqlReplica,
    PostgresReplica,
    SqlReplica,
    database,
)
from tests.spark.tables import Entries

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
