"""A URI that cannot be used is told at once, without its password, and never waited for."""

import psycopg
import pymysql
import pytest
from structlog.testing import capture_logs

from penstock.errors import ConfigError, DestinationError
from penstock.spark.replicate import destination_of, dialect_of
from tests.spark.replica.support import Driver, config_at
from tests.spark.tables import Entries

SECRET = "horse"


def shows_nothing(error: BaseException) -> None:
    assert SECRET not in str(error)
    assert SECRET not in "".join(map(repr, (error.__cause__, error.__context__)))


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://u:horse/x@there/db",
        "mysql://u:1/horse@there/db",
        "mysql://u:horse#x@there/db",
        "mysql://u:1#horse@there/db",
        "mysql://u:horse[@there/db",
        "mysql://u:horse@there:99999/db",
        "mariadb://u:horse@there:port/db",
        "mysql://u:horse@a..b/db",
        "postgresql://u:horse%zz@there/db",
        "postgresql://u:horse%00@there/db",
        "postgresql://u:horse x@there/db",
        "postgresql://u:horse/x@there/db",
        "postgresql://u:1/horse@there/db",
        "postgresql://u:x@horse@there/db",
        "postgresql://u:horse@there:99999/db",
        "postgres://u:horse@there:0/db",
        "postgresql://u:horse@there/db?port=any",
        "postgresql://u:horse@a..b/db",
        "postgresql://u:horse@there/db?sslmod=require",
        "postgresql://u:horse@[::1/db",
    ],
)
def test_what_cannot_be_taken_apart_is_told_before_anything_starts(uri: str) -> None:
    # With a database, where the URI's would not be read at all.
    for made in (config_at(uri), config_at(uri, database="db")):
        with pytest.raises(ConfigError, match="Percent-encode what is in the user and the") as told:
            destination_of("p", made)
        shows_nothing(told.value)


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://u:p%2Fx%25@[::1]:3307/db",
        "mysql://u:one@two@there/db",
        "mysql://u:p@there/d@b",
        "postgresql://there/db",
        "postgresql://u:p%2Fx%25@[::1]:5433/db",
        "postgresql://u:p@there/d@b",
        "postgresql://one:1,two,three:3/db?user=me@corp",
        "postgresql:///db?host=/run/a@b&port=5433",
        "postgresql://%2Frun%2Fpostgresql/db",
    ],
)
def test_what_a_server_can_be_asked_for_is_taken(uri: str) -> None:
    destination_of("p", config_at(uri))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("sslmode=verify", "invalid sslmode value"),
        ("ssl_min_protocol_version=7", 'invalid "ssl_min_protocol_version" value'),
        ("target_session_attrs=any-other", "invalid target_session_attrs value"),
        ("port=1,2", "could not match 2 port numbers"),
        ("hostaddr=999.0.0.1", "could not parse network address"),
        ("keepalives=many", "invalid integer value"),
    ],
)
def test_a_setting_that_libpq_does_not_take_stops_at_once(settings: str, named: str) -> None:
    # Nobody listens there, which alone would be waited for.
    driver = Driver(Entries(), config_at(f"postgresql://u:horse@127.0.0.1:1/db?{settings}"))
    with capture_logs() as logged, pytest.raises(DestinationError, match=named) as told:
        driver.start()
    shows_nothing(told.value)
    assert logged == []


def test_what_psycopg_itself_refuses_is_not_waited_for() -> None:
    dialect = dialect_of("p", config_at("postgresql://there/db"))
    error = psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters were passed")
    assert not dialect.passes(error)
    assert dialect.cause(error)[0] == "PostgreSQL at there:5432 says ProgrammingError"


@pytest.mark.parametrize("uri", ["mysql://u@127.0.0.1:1/db", "postgresql://u@127.0.0.1:1/db"])
def test_a_server_that_is_away_is_waited_for(uri: str) -> None:
    dialect = dialect_of("p", config_at(uri))
    with pytest.raises((pymysql.MySQLError, psycopg.Error)) as away:
        dialect.connect()
    assert dialect.passes(away.value)


@pytest.mark.parametrize(
    "said",
    [
        'connection to server at "there", port 5432 failed: Connection refused',
        'connection to server at "there" failed: FATAL:  the database system is starting up',
        'connection to server at "there" failed: FATAL:  sorry, too many clients already',
        "failed to resolve host 'there': [Errno -3] Temporary failure in name resolution",
        "connection to server failed: received invalid response to SSL negotiation: H",
        "server closed the connection unexpectedly",
        "connection timeout expired",
    ],
)
def test_a_postgresql_that_may_answer_later_is_waited_for(said: str) -> None:
    dialect = dialect_of("p", config_at("postgresql://there/db"))
    assert dialect.passes(psycopg.OperationalError(f"connection is bad: {said}"))
