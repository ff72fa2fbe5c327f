"""DynamoDB Streams over a store's tables, as boto3 reads them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from botocore.exceptions import ClientError

from penstock.serve.dynamodb.names import id_of_shard, read_sequence_number
from penstock.store import KeyType, StreamViewType
from penstock.store.layout import SealedShard
from penstock.store.shards import ShardLimits
from tests.serve.dynamodb.support import Served, name_of, served
from tests.store.support import SetClock

SMALL = ShardLimits(age_seconds=3600, bytes_max=1)
"""Every transaction begins a shard."""
HOUR = 3600


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def rolling(tmp_path: Path, clock: SetClock) -> Iterator[Served]:
    """A server each of whose writes begins a shard."""
    with served(tmp_path, clock=clock, shards=SMALL) as everything:
        yield everything


def raised(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return name_of(caught.value)


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", [(None, None)] * 3),
        ("NEW_IMAGE", [(None, "a"), (None, "b"), (None, None)]),
        ("OLD_IMAGE", [(None, None), ("a", None), ("b", None)]),
        ("NEW_AND_OLD_IMAGES", [(None, "a"), ("a", "b"), ("b", None)]),
    ],
)
def test_records_hold_the_images_of_the_streams_view(
    shared: Served, view: str, images: list[tuple[str | None, str | None]]
) -> None:
    table = shared.table(view=view)
    table.put_item(Item={"id": "k", "v": "a"})
    table.put_item(Item={"id": "k", "v": "b"})
    table.delete_item(Key={"id": "k"})
    records = shared.records(shared.arn(table))
    assert [one["eventName"] for one in records] == ["INSERT", "MODIFY", "REMOVE"]
    for record, (old, new) in zip(records, images, strict=True):
        change: Any = record.get("dynamodb")
        assert change["StreamViewType"] == view
        assert change["Keys"] == {"id": {"S": "k"}}
        for member, value in (("OldImage", old), ("NewImage", new)):
            expected = None if value is None else {"id": {"S": "k"}, "v": {"S": value}}
            assert change.get(member) == expected


def test_the_size_of_a_record_is_that_of_its_keys_and_images(shared: Served) -> None:
    both, keys = shared.table(), shared.table(view="KEYS_ONLY")
    for table in (both, keys):
        table.put_item(Item={"id": "Fred"})
        table.put_item(Item={"id": "Fred", "name": "Fred"})
    sizes = [
        [one["dynamodb"]["SizeBytes"] for one in shared.records(shared.arn(table))]
        for table in (both, keys)
    ]
    assert sizes == [[6 + 6, 6 + 6 + 14], [6, 6]]


def test_a_write_that_changes_nothing_has_no_record(shared: Served) -> None:
    table = shared.table()
    table.put_item(Item={"id": "k", "m": {"a": 1, "b": 2}, "n": 5})
    table.put_item(Item={"id": "k", "m": {"b": 2, "a": 1}, "n": 5})
    table.update_item(
        Key={"id": "k"}, UpdateExpression="SET n = :n", ExpressionAttributeValues={":n": 5}
    )
    table.update_item(
        Key={"id": "k"}, UpdateExpression="ADD n :n", ExpressionAttributeValues={":n": 0}
    )
    table.update_item(Key={"id": "k"}, UpdateExpression="REMOVE absent")
    table.update_item(Key={"id": "none"}, UpdateExpression="REMOVE absent")
    table.delete_item(Key={"id": "none"})
    with table.batch_writer() as batch:
        batch.delete_item(Key={"id": "none"})
        batch.put_item(Item={"id": "k", "m": {"a": 1, "b": 2}, "n": 5})
    assert len(shared.records(shared.arn(table))) == 1


def test_each_item_of_a_batch_and_of_a_transaction_is_a_record_with_a_number_of_its_own(
    shared: Served,
) -> None:
    """F1: nothing is cut when a reader takes three at a time."""
    table = shared.table()
    with table.batch_writer() as batch:
        for number in range(10):
            batch.put_item(Item={"id": f"b{number}"})
    shared.client.transact_write_items(
        TransactItems=[
            {"Put": {"TableName": table.name, "Item": {"id": {"S": f"t{number}"}}}}
            for number in range(10)
        ]
    )
    records = shared.records(shared.arn(table), limit=3)
    numbers = [one["dynamodb"]["SequenceNumber"] for one in records]
    assert [one["dynamodb"]["Keys"]["id"]["S"] for one in records] == [
        *(f"b{number}" for number in range(10)),
        *(f"t{number}" for number in range(10)),
    ]
    assert numbers == sorted(set(numbers))
    assert {len(one) for one in numbers} == {32}
    assert len({one["eventID"] for one in records}) == 20


def test_an_item_that_expired_is_removed_by_the_service(tmp_path: Path, clock: SetClock) -> None:
    """F8: with its identity, and only then."""
    with served(tmp_path, clock=clock) as everything:
        table = everything.table()
        everything.client.update_time_to_live(
            TableName=table.name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "until"},
        )
        table.put_item(Item={"id": "k", "until": clock.now_ms // 1000 + 60})
        table.put_item(Item={"id": "other"})
        clock.pass_(61)
        everything.db.sweep()
        table.delete_item(Key={"id": "other"})
        *_, expired, deleted = everything.records(everything.arn(table))
        assert expired["eventName"] == "REMOVE"
        assert expired["userIdentity"] == {
            "Type": "Service",
            "PrincipalId": "dynamodb.amazonaws.com",
        }
        assert "OldImage" in expired["dynamodb"]
        assert "userIdentity" not in deleted


def test_a_page_ends_at_a_mebibyte_but_for_its_first_record(shared: Served) -> None:
    """F13."""
    table = shared.table()
    for number in range(4):
        table.put_item(Item={"id": f"k{number}", "v": "x" * 390_000})
    arn = shared.arn(table)
    iterator = shared.iterator(arn, shared.shards(arn)[0]["ShardId"])
    told = shared.streams.get_records(ShardIterator=iterator)
    assert len(told["Records"]) == 2
    told = shared.streams.get_records(ShardIterator=told["NextShardIterator"])
    assert len(told["Records"]) == 2


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_that_is_disabled_stays_readable_and_the_next_is_another(
    shared: Served,
) -> None:
    """F10."""
    table = shared.table()
    table.put_item(Item={"id": "a"})
    first = shared.arn(table)
    shared.client.update_table(TableName=table.name, StreamSpecification={"StreamEnabled": False})
    told = shared.client.describe_table(TableName=table.name)["Table"]
    assert "StreamSpecification" not in told
    assert told["LatestStreamArn"] == first
    shared.client.update_table(
        TableName=table.name,
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    )
    table.put_item(Item={"id": "b"})
    second = shared.arn(table)
    assert second != first
    listed = shared.streams.list_streams(TableName=table.name)["Streams"]
    assert [one["StreamArn"] for one in listed] == [first, second]
    described = shared.streams.describe_stream(StreamArn=first)["StreamDescription"]
    assert described["StreamStatus"] == "DISABLED"
    assert "EndingSequenceNumber" in described["Shards"][0]["SequenceNumberRange"]
    assert [len(shared.records(arn)) for arn in (first, second)] == [1, 1]


def test_the_stream_of_a_dropped_table_stays_readable_to_its_end(shared: Served) -> None:
    """F19."""
    table = shared.table()
    table.put_item(Item={"id": "a"})
    arn = shared.arn(table)
    (shard,) = shared.shards(arn)
    iterator = shared.iterator(arn, shard["ShardId"])
    table.delete()
    told = shared.streams.get_records(ShardIterator=iterator)
    assert len(told["Records"]) == 1
    assert "NextShardIterator" not in told


def test_a_table_made_anew_has_a_stream_of_its_own(shared: Served) -> None:
    table = shared.table()
    table.put_item(Item={"id": "a"})
    before = shared.arn(table)
    table.delete()
    shared.client.create_table(
        TableName=table.name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    assert "LatestStreamArn" not in shared.client.describe_table(TableName=table.name)["Table"]
    assert len(shared.records(before)) == 1


def test_streams_are_listed_page_by_page_though_one_leaves_meanwhile(
    tmp_path: Path, clock: SetClock
) -> None:
    with served(tmp_path, clock=clock, stream_retention=60) as everything:
        tables = [everything.table() for _ in range(5)]
        first = everything.streams.list_streams(Limit=2)
        assert first["LastEvaluatedStreamArn"] == first["Streams"][-1]["StreamArn"]
        gone = next(one for one in tables if one.name == first["Streams"][-1]["TableName"])
        gone.delete()
        clock.pass_(120)
        while everything.db.sweep():
            pass
        rest = everything.streams.list_streams(
            ExclusiveStartStreamArn=first["LastEvaluatedStreamArn"]
        )
        assert "LastEvaluatedStreamArn" not in rest
        names = [one["TableName"] for one in (*first["Streams"], *rest["Streams"])]
        assert sorted(names) == sorted(one.name for one in tables)


def test_tables_whose_names_the_protocol_does_not_allow_are_not_offered(
    shared: Served,
) -> None:
    shared.db.create_table("no name!").partition_key("id", KeyType.STRING).stream(
        StreamViewType.KEYS_ONLY
    ).execute()
    assert "no name!" not in shared.client.list_tables()["TableNames"]
    streams = shared.streams.list_streams()["Streams"]
    assert "no name!" not in {one["TableName"] for one in streams}
    assert shared.refused("DescribeTable", TableName="arn:aws:dynamodb:x")[0] == (
        "ValidationException"
    )


# --- shards ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shards_form_one_chain_of_which_all_but_the_last_have_ended(rolling: Served) -> None:
    table = rolling.table()
    for number in range(5):
        table.put_item(Item={"id": f"k{number}"})
    arn = rolling.arn(table)
    shards = rolling.shards(arn)
    assert len(shards) == 5
    assert [one["ShardId"] for one in shards] == sorted(one["ShardId"] for one in shards)
    assert [one.get("ParentShardId") for one in shards] == [
        None,
        *(one["ShardId"] for one in shards[:-1]),
    ]
    assert all(28 <= len(one["ShardId"]) <= 65 for one in shards)
    ended = ["EndingSequenceNumber" in one["SequenceNumberRange"] for one in shards]
    assert ended == [True, True, True, True, False]
    assert len(rolling.records(arn)) == 5
    iterators = {rolling.iterator(arn, one["ShardId"]) for one in shards}
    assert len(iterators) == 5


def test_shards_come_in_pages_and_a_shard_that_is_not_there_has_an_empty_one_behind_it(
    rolling: Served,
) -> None:
    table = rolling.table()
    for number in range(3):
        table.put_item(Item={"id": f"k{number}"})
    arn = rolling.arn(table)
    shards = rolling.shards(arn)
    first = rolling.streams.describe_stream(StreamArn=arn, Limit=2)["StreamDescription"]
    assert first["LastEvaluatedShardId"] == shards[1]["ShardId"]
    for start in (shards[-1]["ShardId"], "shardId-99999999999999999999-00000000"):
        rest = rolling.streams.describe_stream(StreamArn=arn, ExclusiveStartShardId=start)
        assert rest["StreamDescription"].get("Shards") == []


def test_the_children_of_a_shard_are_told_by_a_filter(rolling: Served) -> None:
    table = rolling.table()
    for number in range(3):
        table.put_item(Item={"id": f"k{number}"})
    arn = rolling.arn(table)
    first, second, third = rolling.shards(arn)
    for parent, children in ((first, [second]), (second, [third]), (third, [])):
        told = rolling.streams.describe_stream(
            StreamArn=arn, ShardFilter={"Type": "CHILD_SHARDS", "ShardId": parent["ShardId"]}
        )
        assert told["StreamDescription"].get("Shards") == children
    for bad in (
        {"Type": "CHILD_SHARDS"},
        {"Type": "CHILD_SHARDS", "ShardId": "x"},
        {"Type": "OTHER", "ShardId": first["ShardId"]},
        {"ShardId": first["ShardId"]},
    ):
        name, text = rolling.refused("DescribeStream", StreamArn=arn, ShardFilter=bad)
        assert name == "ValidationException"
        assert "shardFilter." in text


def test_a_reader_at_a_shards_end_has_its_child_before_it_learns_of_the_end(
    rolling: Served,
) -> None:
    table = rolling.table()
    table.put_item(Item={"id": "a"})
    arn = rolling.arn(table)
    (shard,) = rolling.shards(arn)
    told = rolling.streams.get_records(ShardIterator=rolling.iterator(arn, shard["ShardId"]))
    assert len(told["Records"]) == 1
    told = rolling.streams.get_records(ShardIterator=told["NextShardIterator"])
    assert told["Records"] == []
    assert "NextShardIterator" in told
    table.put_item(Item={"id": "b"})
    told = rolling.streams.get_records(ShardIterator=told["NextShardIterator"])
    assert told["Records"] == []
    assert "NextShardIterator" not in told
    children = rolling.streams.describe_stream(
        StreamArn=arn, ShardFilter={"Type": "CHILD_SHARDS", "ShardId": shard["ShardId"]}
    )["StreamDescription"]["Shards"]
    (child,) = children
    assert len(list(rolling.of_shard(arn, str(child["ShardId"])))) == 1


# --- iterators ------------------------------------------------------------------------------------


def test_every_kind_of_iterator_begins_where_it_says(tmp_path: Path, clock: SetClock) -> None:
    """F2: AT has its record, AFTER what follows it, also of the shard's starting number."""
    with served(tmp_path, clock=clock) as everything:
        table = everything.table()
        begun = clock.now_ms // 1000
        for number in range(4):
            table.put_item(Item={"id": f"k{number}"})
            clock.pass_(10)
        arn = everything.arn(table)
        (shard,) = everything.shards(arn)
        numbers = [one["dynamodb"]["SequenceNumber"] for one in everything.records(arn)]

        def read(kind: str, **place: Any) -> list[str]:
            iterator = everything.iterator(arn, shard["ShardId"], kind, **place)
            found = everything.streams.get_records(ShardIterator=iterator)["Records"]
            return [one["dynamodb"]["SequenceNumber"] for one in found]

        start = shard["SequenceNumberRange"]["StartingSequenceNumber"]
        assert read("TRIM_HORIZON") == numbers
        assert read("LATEST") == []
        assert read("AT_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == numbers[1:]
        assert read("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == numbers[2:]
        assert read("AT_SEQUENCE_NUMBER", SequenceNumber=start) == numbers
        assert read("AFTER_SEQUENCE_NUMBER", SequenceNumber=start) == numbers
        assert read("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[-1]) == []
        for at, left in (
            (begun - 1000, 4),
            (begun, 4),
            (begun + 10, 3),
            (begun + 11, 2),
            (begun + 10.5, 2),
            (begun + 40, 0),
        ):
            assert len(read("AT_TIMESTAMP", Timestamp=at)) == left
        with pytest.raises(ClientError) as caught:
            read("AT_TIMESTAMP", Timestamp=begun + 3600)
        assert name_of(caught.value) == "ValidationException"


def test_latest_is_where_the_stream_stood_when_the_iterator_was_made(shared: Served) -> None:
    table = shared.table()
    table.put_item(Item={"id": "a"})
    arn = shared.arn(table)
    iterator = shared.iterator(arn, shared.shards(arn)[0]["ShardId"], "LATEST")
    table.put_item(Item={"id": "b"})
    (record,) = shared.streams.get_records(ShardIterator=iterator)["Records"]
    assert record["dynamodb"]["Keys"] == {"id": {"S": "b"}}


@pytest.mark.slow
def test_an_iterator_expires_and_survives_a_restart_until_then(
    tmp_path: Path, clock: SetClock
) -> None:
    with served(tmp_path, clock=clock) as everything:
        table = everything.table()
        table.put_item(Item={"id": "a"})
        arn = everything.arn(table)
        iterator = everything.iterator(arn, everything.shards(arn)[0]["ShardId"])
    with served(tmp_path, clock=clock) as everything:
        clock.pass_(900)
        assert len(everything.streams.get_records(ShardIterator=iterator)["Records"]) == 1
        clock.pass_(1)
        assert raised(everything.streams.get_records, ShardIterator=iterator) == (
            "ExpiredIteratorException"
        )


@pytest.mark.slow
def test_an_iterator_is_made_here_and_for_this_store_only(tmp_path: Path) -> None:
    iterators = list[str]()
    for name in ("one", "two"):
        with served(tmp_path / name) as everything:
            table = everything.table()
            arn = everything.arn(table)
            iterators.append(everything.iterator(arn, everything.shards(arn)[0]["ShardId"]))
            if name == "two":
                own = iterators[-1]
                forged = [
                    iterators[0],
                    own[:-4] + "AAAA",
                    own.replace("table", "tablo", 1),
                    "x",
                    f"{arn}|1|",
                    f"{arn}|1|%%%",
                    own.replace("|1|", "|2|"),
                ]
                for text in forged:
                    assert everything.refused("GetRecords", ShardIterator=text) == (
                        "ValidationException",
                        "Invalid ShardIterator",
                    )


def test_what_retention_removed_is_an_error_and_never_passed_over(rolling: Served) -> None:
    """F4: in GetShardIterator and in GetRecords, and never for who missed nothing."""
    table = rolling.table()
    for number in range(4):
        table.put_item(Item={"id": f"k{number}"})
    arn = rolling.arn(table)
    first, second, third, fourth = rolling.shards(arn)
    numbers = [int(one["SequenceNumberRange"]["StartingSequenceNumber"]) for one in (first, second)]
    at_first = rolling.iterator(arn, first["ShardId"])
    placed = rolling.iterator(
        arn, second["ShardId"], "AT_SEQUENCE_NUMBER", SequenceNumber=str(numbers[1])
    )
    at_end = rolling.iterator(
        arn, second["ShardId"], "AFTER_SEQUENCE_NUMBER", SequenceNumber=str(numbers[1])
    )
    rolling.db.prune_stream(table.name, until_sequence=read_sequence_number(str(numbers[1])).place)
    assert rolling.streams.get_records(ShardIterator=at_end)["Records"] == []
    for iterator in (at_first, placed):
        assert raised(rolling.streams.get_records, ShardIterator=iterator) == (
            "TrimmedDataAccessException"
        )
    assert (
        raised(
            rolling.streams.get_shard_iterator,
            StreamArn=arn,
            ShardId=second["ShardId"],
            ShardIteratorType="AT_SEQUENCE_NUMBER",
            SequenceNumber=str(numbers[1]),
        )
        == "TrimmedDataAccessException"
    )
    horizon = rolling.iterator(arn, second["ShardId"])
    told = rolling.streams.get_records(ShardIterator=horizon)
    assert told["Records"] == []
    assert "NextShardIterator" not in told
    assert [one["ShardId"] for one in rolling.shards(arn)] == [
        one["ShardId"] for one in (second, third, fourth)
    ]
    assert len(rolling.records(arn)) == 2


def test_a_horizon_iterator_finds_the_oldest_record_when_it_is_used(
    tmp_path: Path, clock: SetClock
) -> None:
    with served(tmp_path, clock=clock, stream_retention=60) as everything:
        table = everything.table()
        arn = everything.arn(table)
        iterator = everything.iterator(arn, everything.shards(arn)[0]["ShardId"])
        table.put_item(Item={"id": "old"})
        clock.pass_(61)
        table.put_item(Item={"id": "new"})
        (record,) = everything.streams.get_records(ShardIterator=iterator)["Records"]
        assert record["dynamodb"]["Keys"] == {"id": {"S": "new"}}


@pytest.mark.slow
def test_a_store_that_was_restored_does_not_go_on_as_if_nothing_had_happened(
    tmp_path: Path, clock: SetClock
) -> None:
    """F10: the record that was read is not there any more, and another one stands in its place."""
    path = tmp_path / "store"
    with served(path, clock=clock) as everything:
        table = everything.table()
        everything.db.backup(tmp_path / "copy")
        table.put_item(Item={"id": "lost"})
        arn = everything.arn(table)
        iterator = everything.iterator(arn, everything.shards(arn)[0]["ShardId"])
        going_on = everything.streams.get_records(ShardIterator=iterator)["NextShardIterator"]
    (tmp_path / "copy" / "data.mdb").replace(path / "data.mdb")
    with served(path, clock=clock) as everything:
        everything.resource.Table(table.name).put_item(Item={"id": "other"})
        assert raised(everything.streams.get_records, ShardIterator=going_on) == (
            "TrimmedDataAccessException"
        )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["backup", "disk"])
def test_places_of_a_store_that_was_lost_are_refused_and_others_go_on(
    tmp_path: Path, clock: SetClock, by: str
) -> None:
    """Also where what is written is the same at the same time: it was written by another."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    with served(path, clock=clock) as everything:
        table = everything.table()
        table.put_item(Item={"id": "kept"})
        if by == "backup":
            everything.db.backup(copy)
    if by == "disk":
        shutil.copytree(path, copy)
    with served(path, clock=clock) as everything:
        arn = everything.arn(table)
        shard = everything.shards(arn)[0]["ShardId"]
        everything.resource.Table(table.name).put_item(Item={"id": "same"})
        page = everything.streams.get_records(ShardIterator=everything.iterator(arn, shard))
        kept, lost = (one["dynamodb"]["SequenceNumber"] for one in page["Records"])
        behind = everything.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=lost)
    (copy / "data.mdb").replace(path / "data.mdb")
    with served(path, clock=clock) as everything:
        for name in ("same", "new"):
            everything.resource.Table(table.name).put_item(Item={"id": name})
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            request = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": kind}
            # A backup ends its shards, so that the number is beyond this one.
            name, _ = everything.refused("GetShardIterator", SequenceNumber=lost, **request)
            assert name == "TrimmedDataAccessException"
        for iterator in (page["NextShardIterator"], behind):
            name, _ = everything.refused("GetRecords", ShardIterator=iterator)
            assert name == "TrimmedDataAccessException"
        after = everything.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=kept)
        found = everything.streams.get_records(ShardIterator=after)
        if by == "backup":
            assert (found["Records"], "NextShardIterator" in found) == ([], False)
            child = everything.shards(arn)[1]
            assert child["ParentShardId"] == shard
            after = everything.iterator(arn, child["ShardId"])
            found = everything.streams.get_records(ShardIterator=after)
        assert [one["dynamodb"]["Keys"]["id"]["S"] for one in found["Records"]] == ["same", "new"]


@pytest.mark.slow
def test_a_shard_that_begins_behind_what_only_one_of_two_histories_has_is_another_one(
    tmp_path: Path,
) -> None:
    """Whoever has read its parent to the end in the lost store would miss what is in this one."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    with served(path, clock=SetClock()) as everything:
        table = everything.table()
        table.put_item(Item={"id": "kept"})
    shutil.copytree(path, copy)
    found: list[list[Any]] = []
    for name in ("lost", "new"):
        clock = SetClock()
        limits = ShardLimits(age_seconds=60, bytes_max=1 << 20)
        with served(path, clock=clock, shards=limits) as everything:
            everything.resource.Table(table.name).put_item(Item={"id": name})
            clock.pass_(61)
            everything.db.sweep()
            arn = everything.arn(table)
            found.append(everything.shards(arn))
            child = found[-1][1]["ShardId"]
            everything.resource.Table(table.name).put_item(Item={"id": "next"})
            clock.pass_(61)
            everything.db.sweep()
            assert everything.shards(arn)[1]["ShardId"] == child, "sealed, it is the same"
        shutil.rmtree(path)
        shutil.copytree(copy, path)
    (parent, lost), (same, new) = found
    assert parent["ShardId"] == same["ShardId"] == lost["ParentShardId"] == new["ParentShardId"]
    assert lost["SequenceNumberRange"] == new["SequenceNumberRange"]
    assert lost["ShardId"] != new["ShardId"]


@pytest.mark.slow
def test_an_iterator_of_a_shard_is_none_of_the_one_that_another_history_has_in_its_place(
    tmp_path: Path,
) -> None:
    """The parent was read to its end in the lost store. In this one it has another record, which
    comes to nobody who goes on in the child; whether the iterator was used yet or not."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    clock, limits = SetClock(), ShardLimits(age_seconds=60, bytes_max=1 << 20)
    with served(path, clock=clock, shards=limits) as everything:
        table = everything.table()
        table.put_item(Item={"id": "kept"})
    shutil.copytree(path, copy)
    with served(path, clock=clock, shards=limits) as everything:
        clock.pass_(61)
        everything.db.sweep()
        arn = everything.arn(table)
        unused = everything.iterator(arn, everything.shards(arn)[1]["ShardId"])
        page = everything.streams.get_records(ShardIterator=unused)
        assert page["Records"] == []
    (copy / "data.mdb").replace(path / "data.mdb")
    with served(path, clock=clock, shards=ShardLimits(age_seconds=1 << 20)) as everything:
        everything.resource.Table(table.name).put_item(Item={"id": "other"})
    with served(path, clock=clock, shards=limits) as everything:
        everything.db.sweep()
        assert len(everything.shards(arn)) == 2
        for iterator in (unused, page["NextShardIterator"]):
            name, _ = everything.refused("GetRecords", ShardIterator=iterator)
            assert name == "TrimmedDataAccessException"


def test_shards_that_an_earlier_penstock_began_have_the_ids_that_it_gave_them() -> None:
    sealed = msgspec.msgpack.decode(msgspec.msgpack.encode((5, 8, 1_000)), type=SealedShard)
    digest = xxhash.xxh32_hexdigest(b"3.2026-11-29T00:00:00.000.2")
    given = f"shardId-00000000000000000005-{digest}"
    assert id_of_shard(sealed.first, "3.2026-11-29T00:00:00.000.2", sealed.life) == given


def test_a_number_that_an_earlier_penstock_wrote_is_good(shared: Served) -> None:
    table = shared.table()
    for name in ("one", "two"):
        table.put_item(Item={"id": name})
    arn = shared.arn(table)
    shard = shared.shards(arn)[0]["ShardId"]
    number = read_sequence_number(shared.records(arn)[0]["dynamodb"]["SequenceNumber"])
    older = str(10**20 + number.place)
    after = shared.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=older)
    (record,) = shared.streams.get_records(ShardIterator=after)["Records"]
    assert record["dynamodb"]["Keys"] == {"id": {"S": "two"}}


def test_an_idle_shard_that_is_old_is_sealed_by_the_sweep(tmp_path: Path) -> None:
    """Its reader comes to its end, and goes on in the child, which has what is written later."""
    clock = SetClock()
    limits = ShardLimits(age_seconds=60, bytes_max=1 << 20)
    with served(tmp_path / "store", clock=clock, shards=limits) as everything:
        table = everything.table()
        table.put_item(Item={"id": "a"})
        arn = everything.arn(table)
        clock.pass_(59)
        everything.db.sweep()
        (first,) = everything.shards(arn)
        standing = everything.iterator(arn, first["ShardId"], "LATEST")
        clock.pass_(2)
        everything.db.sweep()
        parent, child = everything.shards(arn)
        assert parent["ShardId"] == first["ShardId"] == child["ParentShardId"]
        assert "NextShardIterator" not in everything.streams.get_records(ShardIterator=standing)
        assert list(everything.of_shard(arn, child["ShardId"])) == []
        clock.pass_(600)
        everything.db.sweep()
        assert len(everything.shards(arn)) == 2, "an empty shard can take what comes"
        table.put_item(Item={"id": "b"})
        told = everything.shards(arn)[1]
        assert told["ShardId"] == child["ShardId"]
        assert told["SequenceNumberRange"] == child["SequenceNumberRange"]
        keys = [one["dynamodb"]["Keys"]["id"]["S"] for one in everything.records(arn)]
        assert keys == ["a", "b"]
