"""Trails in real MongoDBs."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.audit.trail import Trail
from penstock.sources.mysql.connection import Connected
from tests.audit.restoring import KEEP_MODE
from tests.audit.support import trail_of
from tests.conftest import started
from tests.mysql.support import run
from tests_support.servers import MongoReplicaSet, MongoStandalone, SqlServer


@pytest.fixture(scope="session")
def standalone() -> Iterator[MongoStandalone]:
    """A mongod without a replica set, shared: keep to a database of your own."""
    with ExitStack() as stack:
        yield started(stack, MongoStandalone())


@pytest.fixture
def trail(mongo: MongoReplicaSet, mongo_database: str) -> Iterator[Trail]:
    """A trail with transactions, empty."""
    made = trail_of(mongo.uri, mongo_database)
    yield made
    made.close()


@pytest.fixture(params=["transactions", "standalone"])
def any_trail(request: pytest.FixtureRequest, mongo_database: str) -> Iterator[Trail]:
    """A trail with transactions, and one without."""
    server = request.getfixturevalue("mongo" if request.param == "transactions" else "standalone")
    made = trail_of(server.uri, mongo_database)
    yield made
    made.client.drop_database(mongo_database)
    made.close()


@pytest.fixture(scope="session")
def sql_server(request: pytest.FixtureRequest) -> SqlServer:
    """The shared server that tables are in, and restored to: MariaDB, unless a test says both."""
    found: SqlServer = request.getfixturevalue(getattr(request, "param", "mariadb"))
    return found


@pytest.fixture
def db(sql_server: SqlServer) -> Iterator[Connected]:
    """A session; the databases that were made meanwhile are dropped."""
    with sql_server.connect() as connection:
        before = {name for (name,) in run(connection, "SHOW DATABASES")}
        run(connection, KEEP_MODE)
        yield connection
        for (name,) in run(connection, "SHOW DATABASES"):
            if name not in before:
                run(connection, f"DROP DATABASE `{name}`")
