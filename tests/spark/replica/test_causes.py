"""Each cause for which a PostgreSQL is not reached, or refuses us, has a sentence of its own, with
where and what to do."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psycopg
import pytest

from penstock.spark.replicate import dialect_of
from tests.conftest import started
from tests.spark.replica.support import config_at
from tests_support.servers import PostgresServer, free_ports

pytestmark = pytest.mark.server

PASSWORD: Final = "correct-horse"
HBA: Final = """
host all postgres 127.0.0.1/32 trust
host all outside 127.0.0.1/32 reject
host all all 127.0.0.1/32 scram-sha-256
"""
ROLES: Final = {
    "cdc": "LOGIN",
    "outside": "LOGIN",
    "unused": "NOLOGIN",
    "expired": "LOGIN VALID UNTIL '2001-01-01'",
    "few": "LOGIN CONNECTION LIMIT 0",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with ExitStack() as stack:
        # A folder that a server may read which is another user.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-hba-")))
        folder.chmod(0o755)
        (hba := folder / "hba.conf").write_text(HBA)
        server = started(stack, PostgresServer(options=[f"hba_file={hba}"]))
        server.execute(
            *(f"CREATE ROLE {name} PASSWORD '{PASSWORD}' {more}" for name, more in ROLES.items())
        )
        server.execute(
            "CREATE DATABASE shut ALLOW_CONNECTIONS false",
            "CREATE DATABASE closed",
            "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
        )
        yield server


Told = Callable[..., tuple[bool, str, str]]


@pytest.fixture
def told(server: PostgresServer) -> Told:
    """Whether it may pass, what happened, and the next step, of `statement`, or of a connection."""

    def tell(
        login: str = f"cdc:{PASSWORD}",
        at: str = "",
        database: str = "postgres",
        statement: str = "SELECT 1",
        schema: str = "public",
    ) -> tuple[bool, str, str]:
        where = at or f"{server.host}:{server.port}"
        dialect = dialect_of(
            "p", config_at(f"postgresql://{login}@{where}/{database}", database=schema)
        )
        with pytest.raises(psycopg.Error) as error, closing(dialect.connect()) as connection:
            connection.execute(statement)
        what, remedy = dialect.cause(error.value)
        assert f"PostgreSQL at {where}" in what
        assert PASSWORD not in what + remedy
        return dialect.passes(error.value), what, remedy

    return tell


@pytest.mark.parametrize(
    ("login", "database", "what", "remedy"),
    [
        ("cdc:wrong", "postgres", "lets cdc not in", 'ALTER ROLE "cdc" PASSWORD'),
        ("nobody:x", "postgres", "lets nobody not in: no such role", "user and password in uri"),
        (f"expired:{PASSWORD}", "postgres", "one that has expired", "VALID UNTIL 'infinity'"),
        ("cdc", "postgres", "asks for a password of cdc", "Give uri the password"),
        (f"outside:{PASSWORD}", "postgres", "takes no connection of outside", "Add a line"),
        (f"unused:{PASSWORD}", "postgres", "unused may not log in", 'ALTER ROLE "unused" LOGIN'),
        (f"cdc:{PASSWORD}", "closed", "may not connect to", 'ON DATABASE "closed" TO "cdc"'),
        (f"cdc:{PASSWORD}", "shut", "takes no connections", '"shut" ALLOW_CONNECTIONS true'),
        (
            f"cdc:{PASSWORD}",
            "postgres?options=-c%20work_mem%3Dx",
            "(invalid value for parameter)",
            "the pipeline's uri",
        ),
        (f"cdc:{PASSWORD}", "absent", "no database absent", 'CREATE DATABASE "absent"'),
    ],
)
def test_what_lets_us_not_in_stops_with_its_cause(
    told: Told, login: str, database: str, what: str, remedy: str
) -> None:
    passes, happened, step = told(login, database=database)
    assert not passes
    assert what in happened
    assert remedy in step


def test_a_server_that_is_not_there_or_has_no_room_may_pass(told: Told) -> None:
    (port,) = free_ports(1)
    for login, at, what, remedy in (
        (f"few:{PASSWORD}", "", "as many connections as", "CONNECTION LIMIT"),
        ("cdc", f"127.0.0.1:{port}", "nothing listens at", "Start the server"),
        ("cdc", "no-such-host.invalid:1", "host name of .* is not known", "Correct the host"),
    ):
        passes, happened, step = told(login, at)
        assert passes
        assert re.search(what, happened)
        assert remedy in step


@pytest.mark.parametrize(
    ("statement", "passes", "what", "remedy"),
    [
        ("CREATE TABLE t (n int)", False, "cdc lacks a privilege", 'ON SCHEMA "public" TO "cdc"'),
        ("CREATE TABLE absent.t (n int)", False, "no schema absent", "names the schema"),
        (
            "SET default_transaction_read_only = on; COMMIT; CREATE TABLE t (n int)",
            True,
            "is read-only, as a standby is",
            "Give uri the primary",
        ),
    ],
)
def test_what_a_server_refuses_is_told_with_what_to_do(
    told: Told, statement: str, passes: bool, what: str, remedy: str
) -> None:
    schema = "absent" if "absent" in statement else "public"
    may_pass, happened, step = told(statement=statement, schema=schema)
    assert (may_pass, what in happened, remedy in step) == (passes, True, True), (happened, step)
