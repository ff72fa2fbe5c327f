"""A batch that cannot be one transaction of MongoDB stops the pipeline, and makes no loop of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, PyMongoError

from penstock.errors import DestinationError
from penstock.spark.replica import attempts
from penstock.spark.replica.attempts import Attempts
from tests.spark.replica.support import Driver, MongoReplica, database
from tests.spark.tables import Entries, put
from tests_support.servers import MongoReplicaSet

CONFLICT = OperationFailure("", 112, {"errorLabels": ["TransientTransactionError"]})

GONE = OperationFailure("", 251, {"errorLabels": ["TransientTransactionError"]})
BULK = BulkWriteError(
    {"writeErrors": [{"code": 112}], "errorLabels": ["TransientTransactionError"]}
)
AWAY = OperationFailure("", 133, {"errorLabels": ["TransientTransactionError"]})
"""FailedToSatisfyReadPreference: as mongos says that a shard has no primary."""
LOST = AutoReconnect("gone", {"errorLabels": ["TransientTransactionError"]})


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_conflicts_that_last_longer_than_any_transaction_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, tried = Clock(monkeypatch), Attempts("p")
    tried.lifetime_seconds = 60
    for at in range(12):
        tried.begin()
        clock.now += 9
        assert tried.refusal_of(CONFLICT if at % 2 else GONE) is None
    tried.begin()
    tried.succeed()
    assert tried.refusal_of(CONFLICT) is None
    clock.now += 119
    for error in (GONE, CONFLICT, BULK):
        tried.begin()
        assert tried.refusal_of(error) is None
    clock.now += 1
    assert "max_events_per_batch" in str(tried.refusal_of(CONFLICT))


def test_a_transaction_that_lasts_too_long_is_told_whoever_may_ask_how_long_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is under way is told so; who comes behind that is only told that there is none."""
    clock, tried = Clock(monkeypatch), Attempts("p")
    tried.begin()
    clock.now += 31
    assert tried.refusal_of(GONE) is None
    assert "31 s" in str(tried.refusal_of(OperationFailure("", 290)))
    clock.now += 29
    assert "transactionLifetimeLimitSeconds" in str(tried.refusal_of(GONE))


@pytest.mark.parametrize("away", [LOST, AWAY])
def test_a_server_that_is_away_says_nothing_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, away: PyMongoError
) -> None:
    clock, tried = Clock(monkeypatch), Attempts("p")
    for _ in range(20):
        tried.begin()
        clock.now += 59
        assert tried.refusal_of(away) is None
        assert tried.refusal_of(CONFLICT) is None


def test_what_newer_servers_say_of_it_is_told_at_once() -> None:
    of_many = BulkWriteError({"writeErrors": [{"code": 388}]})
    for error in (OperationFailure("", 388), of_many):
        assert "cache" in str(Attempts("p").refusal_of(error))


@pytest.mark.soak
def test_a_batch_that_is_more_than_the_cache_of_the_server_stops_by_name(
    mongo: MongoReplicaSet,
) -> None:
    """MongoDB 6.0 says first that it is a conflict, for which drivers try again; its cache is
    256 MB, of which a transaction may have an eighth or so."""
    replica = MongoReplica(mongo.uri, database())
    entries = Entries()
    entries.commit(*(put(key, text="x" * 12_000_000) for key in range(60)))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        destination: Any = driver.destination
        destination._attempts.lifetime_seconds = 10
        with pytest.raises(DestinationError, match="more than its cache takes"):
            driver.apply()
        assert replica.rows("orders") == {}
        driver.apply(0, 1)
        assert len(replica.rows("orders")) == 1
    finally:
        driver.close()
        replica.close()
