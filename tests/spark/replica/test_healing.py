"""Many rejects: they are healed, and replayed, some at a time, and what is done stays done."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, OperationFailure

from penstock.errors import DestinationError
from penstock.spark.replica.ledger import Ledger
from penstock.spark.replica.replaying import pending_at
from tests.spark.replica.contract import STEPS, Replay
from tests.spark.replica.support import (
    Driver,
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
)
from tests.spark.tables import Entries, put

_MANY = 2500
_LOST: dict[type[Replica], Exception] = {
    PostgresReplica: psycopg.OperationalError("server closed the connection unexpectedly"),
    MysqlReplica: pymysql.err.OperationalError(2013, "Lost connection to server during query"),
    MongoReplica: AutoReconnect("connection closed"),
}
_REFUSED: dict[type[Replica], Exception] = {
    PostgresReplica: psycopg.errors.InsufficientPrivilege("permission denied"),
    MysqlReplica: pymysql.err.OperationalError(1142, "command denied"),
    MongoReplica: OperationFailure("not authorized", 13, {"codeName": "Unauthorized"}),
}


class Counting:
    """A cursor that tells what it executes."""

    def __init__(self, cursor: Any, executed: list[str]) -> None:
        self._cursor = cursor
        self._executed = executed

    def execute(self, statement: str, values: Any) -> None:
        self._executed.append(statement)
        self._cursor.execute(statement, values)


@pytest.fixture
def healing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that heal rejects."""
    executed: list[str] = []
    heal = Ledger.heal
    update_many: Any = getattr(Collection, "update_many")  # noqa: B009

    def by_sql(ledger: Ledger, cursor: Any, *given: Any, **named: Any) -> None:
        heal(ledger, Counting(cursor, executed), *given, **named)

    def by_mongodb(collection: Any, *given: Any, **named: Any) -> Any:
        executed.append(collection.name)
        return update_many(collection, *given, **named)

    monkeypatch.setattr(Ledger, "heal", by_sql)
    monkeypatch.setattr(Collection, "update_many", by_mongodb)
    return executed


@pytest.fixture
def entries() -> Entries:
    """Changes that the steps of `rejecting` refuse."""
    entries = Entries()
    entries.commit(*(put(key, n=key + 0.5) for key in range(_MANY)))
    return entries


@pytest.fixture
def rejecting(any_replica: Replica, entries: Entries) -> Iterator[Driver]:
    """A pipeline that has rejected them all."""
    with closing(Driver(entries, any_replica.config(**STEPS))) as driver:
        driver.start()
        assert driver.apply().rejected == _MANY
        yield driver


class Replaying(Replay):
    """A replay that calls `act` with the number of each transaction, from 1, before it begins."""

    def __init__(self, entries: Entries, replica: Replica, act: Callable[[int], None]) -> None:
        super().__init__(entries, replica.config())
        self.transactions = 0
        apply = self._destination.apply

        def told(*given: Any, **named: Any) -> Any:
            self.transactions += 1
            act(self.transactions)
            return apply(*given, **named)

        self._destination.apply = told  # type: ignore[method-assign]


def states(replay: Replay) -> dict[int, str]:
    return {one.sequence: one.state for one in replay.run()}


def test_rows_that_are_whole_again_are_healed_by_a_few_statements(
    any_replica: Replica, entries: Entries, rejecting: Driver, healing: list[str]
) -> None:
    entries.commit(*(put(key, n=key) for key in range(1000)))
    rejecting.apply(_MANY)
    assert 1 <= len(healing) <= 4
    healed = {one["sequence"] for one in any_replica.rejects() if one["healed"] is not None}
    assert healed == set(range(1, 1001))


@pytest.mark.usefixtures("rejecting")
def test_a_replay_of_many_rejects_is_several_transactions(
    any_replica: Replica, entries: Entries, healing: list[str]
) -> None:
    replay = Replaying(entries, any_replica, lambda _: None)
    assert states(replay) == dict.fromkeys(range(1, _MANY + 1), "replayed")
    assert replay.transactions == 3
    assert len(healing) <= 8
    assert {key: row["n"] for key, row in any_replica.rows("orders").items()} == {
        key: key + 0.5 for key in range(_MANY)
    }
    assert all(one["healed"] is not None for one in any_replica.rejects())


def test_a_replay_that_was_broken_off_is_finished_by_another(
    any_replica: Replica, entries: Entries, rejecting: Driver
) -> None:
    def power_cut(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Replaying(entries, any_replica, power_cut).run()
    left = [row["sequence"] for row in pending_at("p", rejecting.config)]
    assert left == list(range(1001, _MANY + 1))
    assert len(any_replica.rows("orders")) == 1000
    assert states(Replay(entries, any_replica.config())) == dict.fromkeys(left, "replayed")
    assert len(any_replica.rows("orders")) == _MANY
    assert pending_at("p", rejecting.config) == []


def test_a_pipeline_that_goes_on_between_two_transactions_loses_nothing(
    any_replica: Replica, entries: Entries, rejecting: Driver
) -> None:
    """What it writes is newer; what it rejects is for another replay."""

    def meanwhile(number: int) -> None:
        if number == 2:
            entries.commit(put(1, n=9), put(_MANY - 1, n=7), put(3, n=3.25))
            assert rejecting.apply(_MANY).rejected == 1

    replay = Replaying(entries, any_replica, meanwhile)
    assert states(replay) == dict.fromkeys(range(1, _MANY + 1), "replayed")
    rows = any_replica.rows("orders")
    assert [rows[key]["n"] for key in (1, 2, 3, 2000, _MANY - 1)] == [9, 2.5, 3.5, 2000.5, 7]
    assert [row["sequence"] for row in pending_at("p", rejecting.config)] == [_MANY + 3]


@pytest.mark.usefixtures("rejecting")
def test_a_replay_goes_on_behind_a_lost_connection_and_says_what_is_refused(
    any_replica: Replica, entries: Entries
) -> None:
    def refused(number: int) -> None:
        if number == 2:
            raise _REFUSED[type(any_replica)]

    with pytest.raises(DestinationError, match="the destination refuses"):
        Replaying(entries, any_replica, refused).run()

    def away(_: int) -> None:
        raise _LOST[type(any_replica)]

    replay = Replaying(entries, any_replica, away)
    with pytest.raises(DestinationError, match="does not answer"):
        replay.run()
    assert replay.transactions == 5

    def lost(number: int) -> None:
        if number % 2:
            raise _LOST[type(any_replica)]

    replay = Replaying(entries, any_replica, lost)
    assert states(replay) == dict.fromkeys(range(1001, _MANY + 1), "replayed")
