"""An outage of the trail's MongoDB is waited for, told in numbers, and never costs a record."""

import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from pymongo import errors as mongo

from penstock.audit.outages import Patience, StoppedError, passes
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.errors import AuditError
from penstock.telemetry import PIPELINE_REGISTRY
from tests.audit.support import commit_of, marker, row, steps, stored, trail_of, write, writer_of
from tests.waiting import PATIENCE_SECONDS, wait_until
from tests_support.servers import MongoReplicaSet


def metric(name: str) -> float:
    return PIPELINE_REGISTRY.get_sample_value(name, {"source": "shop"}) or 0.0


def labelled(label: str) -> mongo.PyMongoError:
    return mongo.OperationFailure("x", 1, {"errorLabels": [label]})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (labelled("TransientTransactionError"), True),
        (labelled("UnknownTransactionCommitResult"), True),
        (labelled("RetryableWriteError"), True),
        (mongo.OperationFailure("x", 64), True),
        (mongo.OperationFailure("x", 10107), True),
        (mongo.OperationFailure("x", 13435), True),
        (mongo.OperationFailure("x", 112), True),
        (mongo.NetworkTimeout("x"), True),
        (mongo.AutoReconnect("x"), True),
        (mongo.ServerSelectionTimeoutError("x"), True),
        (mongo.WTimeoutError("x", 64), True),
        (mongo.NotPrimaryError("x"), True),
        (mongo.DuplicateKeyError("x", 11000), False),
        (mongo.OperationFailure("not primary, in its text alone", 18), False),
        (mongo.OperationFailure("Transaction numbers are only allowed", 20), False),
        (mongo.ConfigurationError("x"), False),
    ],
)
def test_an_error_is_judged_by_its_label_and_code(
    error: mongo.PyMongoError, expected: bool
) -> None:
    """A4: never by its text, and a duplicate key is none that passes."""
    assert passes(error) is expected


@pytest.mark.server
def test_what_was_on_its_way_when_mongodb_died_is_written_once_it_is_back(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    """A6: beyond every retry, without a restart, and the circuit says so meanwhile."""
    server = start_mongo()
    options = {"retry_attempts": 1, "retry_first": "20ms", "circuit_seconds": 0.2}
    with closing(trail_of(server.uri, "audit", **options, answer_seconds=1)) as trail:
        writer = writer_of(trail)
        writer.write(steps([row(1, after={"id": 1})]), marker=marker)
        server.kill(0)
        before = metric("penstock_audit_retries_total")
        writing = threading.Thread(
            target=writer.write, args=(steps(commit_of(2, 5)),), kwargs={"marker": marker}
        )
        writing.start()
        wait_until(lambda: metric("penstock_audit_circuit_open") == 1)
        server.restart(0)
        writing.join(PATIENCE_SECONDS)
        assert not writing.is_alive()
        assert metric("penstock_audit_circuit_open") == 0
        assert metric("penstock_audit_retries_total") > before
        assert [record["at"] for record in stored(trail)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.server
def test_who_waits_for_mongodb_stops_when_told_to(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    """A20: SIGTERM does not wait for an outage to end."""
    server = start_mongo()
    options = {"retry_attempts": 0, "circuit_seconds": 3600, "answer_seconds": 1}
    with closing(trail_of(server.uri, "audit", **options)) as trail:
        stopping = threading.Event()
        writer = Writer(trail, "t", patience=Patience(trail, stopping=stopping))
        writer.open()
        server.kill(0)
        raised: list[BaseException] = []

        def attempt() -> None:
            try:
                writer.write(steps([row(1, after={"id": 1})]), marker=marker)
            except StoppedError as error:
                raised.append(error)

        writing = threading.Thread(target=attempt)
        writing.start()
        wait_until(lambda: metric("penstock_audit_circuit_open") == 1)
        stopping.set()
        writing.join(PATIENCE_SECONDS)
        assert len(raised) == 1


@pytest.mark.server
def test_what_does_not_pass_is_raised_at_once_and_quotes_no_document(trail: Trail) -> None:
    write(trail, [row(1, after={"id": 1})])
    trail.records.drop()
    trail.database.create_collection(
        trail.config.records, validator={"$jsonSchema": {"required": ["never"]}}
    )
    with pytest.raises(
        AuditError, match=r"MongoDB at 127\.0\.0\.1:\d+ answered error \(121\)"
    ) as raised:
        write(trail, [row(2, after={"id": 2, "secret": "s3cret"})])
    assert "s3cret" not in str(raised.value)


@pytest.mark.server
def test_records_that_are_added_known_or_wait_are_counted(trail: Trail) -> None:
    """A22: the numbers that alerts look at are those of the trail."""
    added, known = (metric(f"penstock_audit_{what}_total") for what in ("records", "known"))
    writer = writer_of(trail)
    parts = list(steps(commit_of(1, 10), events_max=3))
    writer.write(parts[:2], marker=marker)
    assert metric("penstock_audit_pending_parts") == 2
    writer.write(parts[2:], marker=marker)
    assert metric("penstock_audit_pending_parts") == 0
    assert metric("penstock_audit_records_total") == added + 10
    write(trail, commit_of(1, 10))
    assert metric("penstock_audit_known_total") == known + 10
    assert metric("penstock_audit_records_total") == added + 10
