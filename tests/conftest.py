"""Fixtures that every test may use: real servers, started once and only if asked for."""

import atexit
import gc
import os
import signal
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import pytest
import structlog
from hypothesis import settings
from pymongo import MongoClient

from tests.seeds import cases
from tests_support.servers import (
    ZERO,
    EtcdServer,
    MariaDbServer,
    MariaDbVersion,
    MongoReplicaSet,
    MySqlServer,
    PostgresServer,
    Server,
    ServerUnavailableError,
    SqlServer,
)
from tests_support.servers.classes import short_lived

SERVER_FIXTURES = frozenset(
    {"etcd", "mongo", "mongo_client", "mongo_database", "mongo6027", "start_etcd", "start_mongo"}
    | {"mariadb", "mariadb_database", "mariadbs", "start_mariadb"}
    | {"mysql", "mysql_database", "start_mysql", "mongo_with_fail_points"}
    | {"postgres", "start_postgres", "real_binlog", "zero_state"}
)
QUICK = os.environ.get("PENSTOCK_QUICK") == "true"
"""Whether this is the fast loop."""
SLOWER = frozenset({"server", "spark", "slow", "soak"})
"""Marks of the tests that the fast loop leaves out."""
Started = TypeVar("Started", bound=AbstractContextManager[Any])
running: list[pytest.Item] = []
"""The test that is being set up or runs."""
standing: WeakSet[Server] = WeakSet()
"""The servers that were started for tests and not stopped yet."""

# Who sets other options keeps them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", short_lived())

# A slow machine is no bug, so no example has a deadline. CI tries few cases, the same each time: it
# must not refuse a change by chance. Every other run, `make soak` above all, tries new ones.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=cases(100))
settings.register_profile("quick", deadline=None, print_blob=True, max_examples=cases(100))
if QUICK:
    settings.load_profile("quick")
else:
    settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which never looks at them again.

    Modules and tests stay until the process ends: searching them takes a third of the collection's
    time, and half a second in each later `gc.collect()`. At the end they are freed in order, as
    DuckDB prints what it finds left.
    """
    atexit.register(gc.unfreeze)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whoever uses a server's fixture, so that the fast loop cannot start one by mistake.

    Static checks come first: pyright is the longest test of one process. Then come the files with
    the tests that are given the most time, then those with the most that take long: last, one of
    them would run while nothing is left for the other processes. Those of Spark, which keep the
    machine busy, are spread evenly among the others, which wait more than they work, but for the
    last of these.
    """
    given: dict[Path, float] = defaultdict(float)
    heavy: dict[Path, int] = defaultdict(int)
    for item in items:
        mark = item.get_closest_marker("timeout")
        given[item.path] = max(given[item.path], mark.args[0] if mark else 0.0)
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)
        marks = {one.name for one in item.iter_markers()}
        if "soak" not in marks:
            heavy[item.path] += bool(marks & SLOWER) or "spark" in item.path.parts
    files = sorted(given, key=lambda file: (-given[file], -heavy[file]))
    place: dict[Path, float] = {}
    for busy, until in ((True, 0.85), (False, 1.0)):
        alike = [file for file in files if ("spark" in file.parts) is busy]
        place |= {file: until * number / len(alike) for number, file in enumerate(alike)}
    items.sort(key=lambda item: ("static" not in item.path.parts, place[item.path]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test runs."""
    running[:] = [item]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed says which of its servers had ended, and the last that they wrote."""
    report = yield
    if report.failed:
        for server in standing:
            if (ended := server.ended()) is not None:
                report.sections.append((f"{server.NAME} had ended", ended))
    return report


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Commands run in the process of the tests: what they configure for theirs is undone.

    A process that ends ignores signals on its way out; whom a later test starts would inherit it.
    """
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {which: signal.getsignal(which) for which in handled}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def started(stack: ExitStack, server: Started) -> Started:
    """Start a server that `stack` stops. Missing server: fail where required, else skip."""
    marks = {mark.name for mark in running[0].iter_markers()}
    assert marks & SLOWER, f"mark {running[0].nodeid} `server`: the fast loop would start one"
    try:
        stack.enter_context(server)
    except ServerUnavailableError as error:
        # Those of another Debian than the system's may be left out, with the reason printed.
        beside = isinstance(server, MariaDbServer) and server.version != "system"
        must = not (beside or isinstance(server, MySqlServer))
        if must and "true" in (os.environ.get("CI"), os.environ.get("PENSTOCK_SERVERS_REQUIRED")):
            pytest.fail(str(error))
        pytest.skip(str(error))
    if isinstance(server, Server):
        standing.add(server)
    return server


@contextmanager
def database_of(server: SqlServer) -> Generator[str]:
    """A new database inside the block. Behind it the server's binlogs take little."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield name
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
    server.purge_binlogs()


@pytest.fixture(scope="session")
def mongo() -> Iterator[MongoReplicaSet]:
    """One single-node replica set, shared: keep to a database of your own, and kill nothing."""
    with ExitStack() as stack:
        yield started(stack, MongoReplicaSet())


@pytest.fixture(scope="session")
def mongo6027() -> Iterator[MongoReplicaSet]:
    """As `mongo`, but 6.0.27, which splits large change events."""
    with ExitStack() as stack:
        yield started(stack, MongoReplicaSet(version="6.0.27"))


@pytest.fixture(scope="session")
def mongo_client(mongo: MongoReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of `mongo`."""
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        yield client


@pytest.fixture
def mongo_database(mongo_client: MongoClient[dict[str, Any]]) -> Iterator[str]:
    """The name of a database in `mongo` that is this test's alone, dropped at its end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    mongo_client.drop_database(name)


@pytest.fixture
def start_mongo() -> Iterator[Callable[..., MongoReplicaSet]]:
    """Start replica sets of this test's own, with MongoReplicaSet's options; kill what you like."""
    with ExitStack() as stack:

        def start(**options: Any) -> MongoReplicaSet:
            return started(stack, MongoReplicaSet(**options))

        yield start


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    """One etcd, shared: keep to keys of your own, and kill nothing."""
    with ExitStack() as stack:
        yield started(stack, EtcdServer())


@pytest.fixture
def start_etcd() -> Iterator[Callable[..., EtcdServer]]:
    """Start etcds of this test's own, with EtcdServer's options; kill what you like."""
    with ExitStack() as stack:

        def start(**options: Any) -> EtcdServer:
            return started(stack, EtcdServer(**options))

        yield start


@pytest.fixture(scope="session")
def mariadbs() -> Iterator[Callable[[MariaDbVersion], MariaDbServer]]:
    """One MariaDB of each version, shared, started when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def of(version: MariaDbVersion) -> MariaDbServer:
            return started(stack, MariaDbServer(version=version))

        yield of


@pytest.fixture(scope="session")
def mariadb_version(request: pytest.FixtureRequest) -> MariaDbVersion:
    """Of the MariaDBs of a test. A folder of tests may have them run on several."""
    return getattr(request, "param", "system")


@pytest.fixture(scope="session")
def mariadb(
    mariadb_version: MariaDbVersion, mariadbs: Callable[[MariaDbVersion], MariaDbServer]
) -> MariaDbServer:
    """One MariaDB, shared: keep to a database of your own, set nothing global, and kill nothing."""
    return mariadbs(mariadb_version)


@pytest.fixture
def mariadb_database(mariadb: MariaDbServer) -> Iterator[str]:
    """The name of a database in `mariadb` that is this test's alone, dropped at its end."""
    with database_of(mariadb) as name:
        yield name


@pytest.fixture
def start_mariadb(mariadb_version: MariaDbVersion) -> Iterator[Callable[..., MariaDbServer]]:
    """Start MariaDBs of this test's own, with MariaDbServer's options; kill what you like."""
    with ExitStack() as stack:

        def start(**options: Any) -> MariaDbServer:
            options.setdefault("version", mariadb_version)
            return started(stack, MariaDbServer(**options))

        yield start


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySqlServer]:
    """One MySQL, shared: keep to a database of your own, set nothing global, and kill nothing."""
    with ExitStack() as stack:
        yield started(stack, MySqlServer())


@pytest.fixture
def mysql_database(mysql: MySqlServer) -> Iterator[str]:
    """The name of a database in `mysql` that is this test's alone, dropped at its end."""
    with database_of(mysql) as name:
        yield name


@pytest.fixture
def start_mysql() -> Iterator[Callable[..., MySqlServer]]:
    """Start MySQLs of this test's own, with MySqlServer's options; kill what you like."""
    with ExitStack() as stack:

        def start(**options: Any) -> MySqlServer:
            return started(stack, MySqlServer(**options))

        yield start


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """The one that `postgres` is."""
    with ExitStack() as stack:
        yield started(stack, PostgresServer())


@pytest.fixture(scope="module")
def postgres(shared_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """One PostgreSQL, shared: keep to databases of your own, set nothing global, and kill nothing.

    The databases of a module are dropped behind it: an empty one takes 7 MB.
    """
    yield shared_postgres
    shared_postgres.drop_all()


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Start PostgreSQLs of this test's own, with PostgresServer's options; kill what you like."""
    with ExitStack() as stack:

        def start(**options: Any) -> PostgresServer:
            return started(stack, PostgresServer(**options))

        yield start


@pytest.fixture
def zero_state(postgres: PostgresServer) -> PostgresServer:
    """Where zero-caches of a test keep their state. Not installed: fail where required, else
    skip."""
    try:
        ZERO.program()
    except ServerUnavailableError as error:
        if "true" in (os.environ.get("CI"), os.environ.get("PENSTOCK_SERVERS_REQUIRED")):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return postgres
