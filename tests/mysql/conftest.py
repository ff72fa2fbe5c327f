"""The same test on each kind of server with a binlog; tests of MariaDB on two of its versions."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import database_of, started
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer

FILES_OPTIONS = (
    *("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--performance-schema=ON"),
    "--performance-schema-instrument=wait/lock/metadata/sql/mdl=ON",
)
"""A MySQL without GTIDs whose tables can be copied."""
SERVERS: dict[str, tuple[type[SqlServer], tuple[str, ...]]] = {
    "mariadb": (MariaDbServer, ()),
    "mysql": (MySqlServer, ()),
    "files": (MySqlServer, FILES_OPTIONS),
}


def on(*kinds: str, soak: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Runs a test on these kinds of servers: those of SERVERS; on some in the long runs alone."""
    marked = [pytest.param(kind, marks=pytest.mark.server) for kind in kinds]
    long = (pytest.mark.server, pytest.mark.soak)
    marked += [pytest.param(kind, marks=long) for kind in soak]
    return pytest.mark.parametrize("kind", marked, indirect=True)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.server) for kind in SERVERS])
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of server, each of SERVERS by turns, or of those that the test is `on`."""
    return str(request.param)


@pytest.fixture(scope="session")
def mysql_of_files() -> Iterator[MySqlServer]:
    """One MySQL without GTIDs, shared: as `mysql`."""
    with ExitStack() as stack:
        yield started(stack, MySqlServer(options=FILES_OPTIONS))


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> SqlServer:
    """A shared server of the kind: keep to `database`, set nothing global, and kill nothing."""
    name = "mysql_of_files" if kind == "files" else kind
    found: SqlServer = request.getfixturevalue(name)
    return found


@pytest.fixture
def database(server: SqlServer) -> Iterator[str]:
    """The name of a database in `server` that is this test's alone, dropped at its end."""
    with database_of(server) as name:
        yield name


@pytest.fixture
def start(kind: str) -> Iterator[Callable[..., SqlServer]]:
    """Start servers of the kind, this test's own, with `options`; kill what you like."""
    made, standard = SERVERS[kind]
    with ExitStack() as stack:

        def begin(*, options: tuple[str, ...] = (), **others: Any) -> SqlServer:
            return started(stack, made(options=(*standard, *options), **others))

        yield begin


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on MariaDB 11.8, too: those that are marked so in every run, all in a soak."""
    if "mariadb_version" not in metafunc.fixturenames:
        return
    marked = metafunc.definition.get_closest_marker("both_mariadbs") is not None
    marks = [] if marked else [pytest.mark.soak]
    versions = ["system", pytest.param("11.8", marks=marks)]
    metafunc.parametrize("mariadb_version", versions, indirect=True, scope="session")
