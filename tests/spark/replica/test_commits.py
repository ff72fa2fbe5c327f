"""A batch that MySQL never commits stops the pipeline by name, and is not written for ever."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from penstock.errors import DestinationError
from penstock.spark.replica import mysql_commits, mysql_connection
from penstock.spark.replica.mysql_commits import Commits
from tests.spark.replica.support import Driver, MysqlReplica
from tests.spark.tables import Entries, put
from tests_support.servers import MariaDbServer

HOOK = pymysql.OperationalError(
    3100, "Error on observer while running replication hook 'before_commit'."
)
AWAY = pymysql.OperationalError(2013, "Lost connection to MySQL server during query")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(mysql_commits, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_commit_that_a_group_refuses_for_a_minute_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, commits = Clock(monkeypatch), Commits("p")
    for _ in range(9):
        assert commits.refusal_of(HOOK) is None
        clock.now += 7
        commits.succeed()
    for _ in range(6):
        assert commits.refusal_of(HOOK) is None
        clock.now += 10
    told = str(commits.refusal_of(HOOK))
    assert "Lower max_events_per_batch" in told
    assert "group_replication_transaction_size_limit" in told


def test_a_slow_batch_is_tried_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, commits = Clock(monkeypatch), Commits("p")
    for _ in range(4):
        assert commits.refusal_of(HOOK) is None
        clock.now += 100
    assert commits.refusal_of(HOOK) is not None


def test_a_server_that_is_away_says_nothing_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, commits = Clock(monkeypatch), Commits("p")
    for error in (HOOK, HOOK, AWAY, pymysql.err.InterfaceError()) * 9:
        assert commits.refusal_of(error) is None
        clock.now += 59


class Group:
    """A group that refuses so many batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        self.refuses = 0
        group = self

        class Connection(mysql_connection.Connection):
            wrote = False

            def query(self, sql: Any, unbuffered: bool = False) -> int:
                text = sql if isinstance(sql, str) else sql.decode()
                self.wrote |= text.startswith("INSERT INTO") and "`orders`" in text
                return super().query(sql, unbuffered)

            def commit(self) -> None:
                if self.wrote and group.refuses:
                    group.refuses -= 1
                    clock.now += 20
                    raise HOOK
                super().commit()

        monkeypatch.setattr(mysql_connection, "Connection", Connection)


@pytest.fixture
def driver(mariadb: MariaDbServer, mariadb_database: str) -> Iterator[Driver]:
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    driver = Driver(Entries(), replica.config())
    yield driver
    driver.close()


def test_a_batch_that_a_group_never_takes_stops_and_one_that_it_takes_later_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(monkeypatch, Clock(monkeypatch))
    driver.start()
    for at in range(3):
        # Each time as often as would stop it, were the batches before not taken at last.
        group.refuses = 3
        driver.entries.commit(put(at, n=at))
        assert driver.apply(at).rows == 1
    group.refuses = 100
    driver.entries.commit(put(3, n=3))
    with pytest.raises(DestinationError, match="Lower max_events_per_batch"):
        driver.apply(3)
    assert group.refuses == 95
    group.refuses = 0
    assert driver.apply(3).rows == 1


def test_a_batch_that_is_more_than_the_binlog_takes_stops_by_name(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    server = start_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("SET GLOBAL max_binlog_cache_size = 65536")
    replica = MysqlReplica(server.host, server.port, "shop")
    entries = Entries()
    entries.commit(*(put(key, text="x" * 1000) for key in range(500)))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        with pytest.raises(DestinationError, match=r"max_events_per_batch.*max_binlog_cache_size"):
            driver.apply()
        assert replica.rows("orders") == {}
        replica.ask("SET GLOBAL max_binlog_cache_size = 1048576")
        assert driver.apply().rows == 500
    finally:
        driver.close()
