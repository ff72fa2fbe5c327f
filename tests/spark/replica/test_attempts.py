"""A batch that cannot be one transaction of MongoDB stops the pipeline, and makes no loop of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from penstock.errors import DestinationError
from penstock.spark.replica import attempts
from penstock.spark.replica.attempts import Attempts
from penstock.testing.servers import MongoReplicaSet
from tests.spark.replica.support import Driver, MongoReplica, database
from tests.spark.tables import Entries, put

CONFLICT = OperationFailure("", 112, {"errorLabels": ["TransientTransactionError"]})

GONE = OperationFailure("", 251, {"errorLabels": ["TransientTransactionError"]})


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.mark.parametrize("between", [None, AutoReconnect("gone"), OperationFailure("", 189)])
def test_conflicts_that_last_longer_than_any_transaction_are_told(
    monkeypatch: pytest.MonkeyPatch, between: PyMongoError | None
) -> None:
    clock, tried = Clock(monkeypatch), Attempts("p")
    tried.lifetime_seconds = 60
    for at in range(12):
        tried.begin()
        clock.now += 9
        assert tried.refusal_of(CONFLICT if at % 2 else GONE) is None
    if between is None:
        tried.begin()
        tried.succeed()
    else:
        assert tried.refusal_of(between) is None
    assert tried.refusal_of(CONFLICT) is None
    clock.now += 119
    tried.begin()
    assert tried.refusal_of(GONE) is None
    clock.now += 1
    assert "max_events_per_batch" in str(tried.refusal_of(CONFLICT))


def test_what_newer_servers_say_of_it_is_told_at_once() -> None:
    assert "cache" in str(Attempts("p").refusal_of(OperationFailure("", 388)))


@pytest.mark.soak
def test_a_batch_that_is_more_than_the_cache_of_the_server_stops_by_name(
    mongo: MongoReplicaSet,
) -> None:
    """MongoDB 6.0 says that it is a conflict, for which drivers try again; its cache is 256 MB."""
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
        for number in range(20):
            driver.apply(3 * number, 3 * number + 3)
        assert len(replica.rows("orders")) == 60
    finally:
        driver.close()
        replica.close()
