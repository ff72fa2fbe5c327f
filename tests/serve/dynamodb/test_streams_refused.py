"""What nobody may ask of a stream, and what is said of it."""

from pathlib import Path

import pytest

from tests.serve.dynamodb.support import Served, served
from tests.store.support import SetClock


@pytest.fixture(scope="session")
def arn(shared: Served) -> str:
    return shared.arn(shared.table())


UNKNOWN = "arn:aws:dynamodb:us-east-1:000000000000:table/none/stream/2026-01-01T00:00:00.000"
SHARD = "shardId-00000000000000000001-00000000"


def test_an_arn_that_is_none_is_told_from_one_of_nothing(shared: Served) -> None:
    bad = "arn:aws:dynamodb:us-east-1:000000000000:table/none/other/2026"
    for operation, request in (
        ("DescribeStream", {"StreamArn": bad}),
        ("ListStreams", {"ExclusiveStartStreamArn": bad}),
        ("GetShardIterator", {"StreamArn": bad, "ShardId": SHARD, "ShardIteratorType": "LATEST"}),
    ):
        assert shared.refused(operation, **request) == ("ValidationException", "Invalid StreamArn")
    missing = f"Requested resource not found: Stream: {UNKNOWN} not found"
    assert shared.refused("DescribeStream", StreamArn=UNKNOWN) == (
        "ResourceNotFoundException",
        missing,
    )
    assert shared.refused(
        "GetShardIterator", StreamArn=UNKNOWN, ShardId=SHARD, ShardIteratorType="LATEST"
    ) == ("ResourceNotFoundException", missing)


def test_a_shard_that_is_not_there_is_not_found(shared: Served, arn: str) -> None:
    assert shared.refused(
        "GetShardIterator", StreamArn=arn, ShardId=SHARD, ShardIteratorType="LATEST"
    ) == ("ResourceNotFoundException", "Requested resource not found: Shard does not exist")


@pytest.mark.parametrize(
    "place",
    [
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER"},
        {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"},
        {"ShardIteratorType": "AT_TIMESTAMP"},
        {"ShardIteratorType": "TRIM_HORIZON", "SequenceNumber": str(10**20)},
        {"ShardIteratorType": "LATEST", "SequenceNumber": str(10**20)},
        {"ShardIteratorType": "LATEST", "Timestamp": 5},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "x" * 21},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "5"},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": str(10**20)},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": str(2 * 10**20)},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "9" * 21},
        {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "9" * 40},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "9" * 30 + "0" * 9 + "5"},
        {"ShardIteratorType": "SOMEWHERE"},
        {},
    ],
)
def test_a_place_that_is_none_is_refused(
    shared: Served, arn: str, place: dict[str, object]
) -> None:
    shard = shared.shards(arn)[0]["ShardId"]
    name, _ = shared.refused("GetShardIterator", StreamArn=arn, ShardId=shard, **place)
    assert name == "ValidationException"


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_bounds_is_refused(shared: Served, arn: str, limit: int) -> None:
    iterator = shared.iterator(arn, shared.shards(arn)[0]["ShardId"])
    name, text = shared.refused("GetRecords", ShardIterator=iterator, Limit=limit)
    most = limit > 1000
    bound = "less than or equal to 1000" if most else "greater than or equal to 1"
    assert name == "ValidationException"
    assert text == (
        f"1 validation error detected: Value '{limit}' at 'limit' failed to satisfy constraint: "
        f"Member must have value {bound}"
    )
    for bad in (0, 100_000):
        assert shared.refused("ListStreams", Limit=bad)[0] == "ValidationException"


def test_how_long_an_iterator_is_good_for_is_configured(tmp_path: Path) -> None:
    clock = SetClock()
    with served(tmp_path, clock=clock, iterator_seconds="5s") as everything:
        arn = everything.arn(everything.table())
        iterator = everything.iterator(arn, everything.shards(arn)[0]["ShardId"])
        clock.pass_(6)
        assert everything.refused("GetRecords", ShardIterator=iterator)[0] == (
            "ExpiredIteratorException"
        )
