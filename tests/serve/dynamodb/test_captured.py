"""DynamoDB Streams of what the log holds, through boto3."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, ClassVar

import bloop
import pytest

from penstock.clocks import SystemClock
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.dynamodb.captured.index import CapturedIndex, Shown
from penstock.serve.dynamodb.captured.names import read_sequence_number
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.numbers import number_of
from tests.serve.dynamodb.captured import captured
from tests.serve.dynamodb.changes import NOW, said, told
from tests.store.support import SetClock
from tests.subscribe.events import commit, one_each, schema
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

TABLE = "shop.db.orders"
_bloop: Any = bloop
Base: Any = _bloop.BaseModel


def names(records: list[Any]) -> list[str]:
    """What happened to which `_id`, in a word each."""
    return [
        f"{record['eventName']} {next(iter(record['dynamodb']['Keys']['_id'].values()))}"
        for record in records
    ]


def life(first: int = 1) -> list[Any]:
    """An item made, changed and removed."""
    one: dict[str, object] = {"_id": "k", "n": 1}
    two: dict[str, object] = {"_id": "k", "n": 2}
    return [
        commit(told(first, one)),
        commit(told(first + 1, two, one)),
        commit(told(first + 2, None, two)),
    ]


def test_a_captured_collection_is_a_table_with_a_stream_of_its_changes(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*life())
        told_table = service.client.describe_table(TableName=TABLE)["Table"]
        arn = told_table["LatestStreamArn"]
        described = service.describe(arn)
        assert described["StreamStatus"] == "ENABLED"
        assert described["StreamViewType"] == "NEW_AND_OLD_IMAGES"
        assert described["KeySchema"] == [{"AttributeName": "_id", "KeyType": "HASH"}]
        assert service.client.list_tables()["TableNames"] == [TABLE]
        records = service.read(arn)
        assert names(records) == ["INSERT k", "MODIFY k", "REMOVE k"]
        one = {"_id": {"S": "k"}, "n": {"N": "1"}}
        two = {"_id": {"S": "k"}, "n": {"N": "2"}}
        changes = [record["dynamodb"] for record in records]
        assert [change.get("NewImage") for change in changes] == [one, two, None]
        assert [change.get("OldImage") for change in changes] == [None, one, two]
        # Keys are 3 + 1 bytes; an image those and 1 + 2.
        assert [change["SizeBytes"] for change in changes] == [4 + 7, 4 + 7 + 7, 4 + 7]
        assert {record["dynamodb"]["StreamViewType"] for record in records} == {
            described["StreamViewType"]
        }
        numbers = [change["SequenceNumber"] for change in changes]
        assert numbers == sorted(numbers)
        assert {len(number) for number in numbers} == {32}
        assert len({record["eventID"] for record in records}) == 3
        times = [change["ApproximateCreationDateTime"].timestamp() for change in changes]
        assert times == [NOW + 1, NOW + 2, NOW + 3]


def test_streams_shards_and_iterators_are_the_same_after_a_restart(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*life())
        arn = service.arn_of(TABLE)
        before = service.describe(arn)
        iterator = service.iterator(arn, before["Shards"][0]["ShardId"])
        first = service.streams.get_records(ShardIterator=iterator, Limit=1)
        going_on = first["NextShardIterator"]
    with captured(tmp_path) as service:
        assert service.arns(TABLE) == [arn]
        assert service.describe(arn) == before
        again = service.streams.get_records(ShardIterator=iterator, Limit=1)["Records"]
        assert again == first["Records"]
        rest = service.streams.get_records(ShardIterator=going_on)["Records"]
        assert names(rest) == ["MODIFY k", "REMOVE k"]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_of_any_size_hold_every_record_once(tmp_path: Path, limit: int) -> None:
    with captured(tmp_path) as service:
        commits = [
            commit(*(told(n, {"_id": f"{n}.{i}"}, ordinal=i) for i in range(3)))
            for n in range(1, 6)
        ]
        service.append(*commits, *one_each(1, 5, source="other"))
        arn = service.arn_of(TABLE)
        expected = [f"INSERT {n}.{i}" for n in range(1, 6) for i in range(3)]
        assert names(service.records(arn, limit=limit)) == expected


def test_a_change_of_a_key_is_a_remove_and_an_insert_whatever_the_page(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        was: dict[str, object] = {"_id": "old", "n": 1}
        service.append(commit(told(1, was)), commit(told(2, {"_id": "new", "n": 1}, was)))
        arn = service.arn_of(TABLE)
        for limit in (1, 2, 1000):
            records = service.records(arn, limit=limit)
            assert names(records) == ["INSERT old", "REMOVE old", "INSERT new"]
            assert "NewImage" not in records[1]["dynamodb"]
            assert "OldImage" not in records[2]["dynamodb"]
            assert len({record["eventID"] for record in records}) == 3
        # Whoever goes on after the first of the two gets the second.
        number = records[1]["dynamodb"]["SequenceNumber"]
        shard = service.shards(arn)[0]["ShardId"]
        after = service.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
        assert names(service.streams.get_records(ShardIterator=after)["Records"]) == ["INSERT new"]


def test_an_update_that_changes_nothing_has_no_record(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        one: dict[str, object] = {"_id": "k", "n": {"a": 1, "b": 2}}
        same: dict[str, object] = {"_id": "k", "n": {"b": 2, "a": 1.0}}
        service.append(commit(told(1, one)), commit(told(2, same, one)))
        assert names(service.read(service.arn_of(TABLE))) == ["INSERT k"]


# --- views ------------------------------------------------------------------------------------


def test_the_best_view_that_the_log_has_is_told_and_a_lesser_change_begins_another_stream(
    tmp_path: Path,
) -> None:
    """Nothing is made up: from the change that has no image before it, there is none."""
    with captured(tmp_path) as service:
        one: dict[str, object] = {"_id": "k", "n": 1}
        service.append(
            commit(told(1, one)),
            commit(told(2, None, None, key={"_id": "k"})),
            commit(told(3, one)),
            commit(told(4, one, {"_id": "k"}, as_of_event=False)),
        )
        found = [(service.describe(arn), service.read(arn)) for arn in service.arns(TABLE)]
        assert [one["StreamViewType"] for one, _ in found] == [
            "NEW_AND_OLD_IMAGES",
            "NEW_IMAGE",
            "KEYS_ONLY",
        ]
        assert [one["StreamStatus"] for one, _ in found] == ["DISABLED", "DISABLED", "ENABLED"]
        assert [names(records) for _, records in found] == [
            ["INSERT k"],
            ["REMOVE k", "INSERT k"],
            ["MODIFY k"],
        ]
        for described, records in found:
            for record in records:
                assert record["dynamodb"]["StreamViewType"] == described["StreamViewType"]
        assert "NewImage" not in found[2][1][0]["dynamodb"]


def test_what_a_source_never_gives_is_not_tried(tmp_path: Path) -> None:
    lacking = {"shop": frozenset({"NEW_AND_OLD_IMAGES", "OLD_IMAGE"})}
    with captured(tmp_path, lacking=lacking) as service:
        service.append(*life())
        assert [service.describe(arn)["StreamViewType"] for arn in service.arns(TABLE)] == [
            "NEW_IMAGE"
        ]


def test_a_view_that_is_asked_for_is_refused_at_the_change_that_has_it_not(tmp_path: Path) -> None:
    """The stream waits in front of it, and goes on from it under another view."""
    gone = commit(told(2, None, None, key={"_id": "k"}))
    with captured(tmp_path, views={TABLE: "NEW_AND_OLD_IMAGES"}) as service:
        service.append(commit(told(1, {"_id": "k"})), gone, commit(told(3, {"_id": "l"})))
        (arn,) = service.arns(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        page = service.streams.get_records(ShardIterator=service.iterator(arn, shard))
        assert names(page["Records"]) == ["INSERT k"]
        name, text = service.refused("GetRecords", ShardIterator=page["NextShardIterator"])
        assert name == "ValidationException"
        assert "has not the images that NEW_AND_OLD_IMAGES needs" in text
        assert "Nothing was skipped" in text
    with captured(tmp_path, views={TABLE: "NEW_IMAGE"}) as service:
        assert len(service.arns(TABLE)) == 2
        both = [names(service.read(one)) for one in service.arns(TABLE)]
        assert both == [["INSERT k"], ["REMOVE k", "INSERT l"]]
        assert service.describe(arn)["StreamStatus"] == "DISABLED"


def test_another_view_that_the_change_has_not_either_is_refused_as_well(tmp_path: Path) -> None:
    """What was read already under the view before is held against the new one when it is read."""
    gone = commit(told(2, None, None, key={"_id": "k"}))
    with captured(tmp_path, view="NEW_AND_OLD_IMAGES") as service:
        service.append(commit(told(1, {"_id": "k"})), gone, commit(told(3, {"_id": "l"})))
    with captured(tmp_path, view="OLD_IMAGE") as service:
        arn = service.arn_of(TABLE)
        iterator = service.iterator(arn, service.shards(arn)[0]["ShardId"])
        name, text = service.refused("GetRecords", ShardIterator=iterator)
        assert (name, "OLD_IMAGE needs" in text) == ("ValidationException", True)


# --- what ends a stream -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending",
    [
        said(2, "gap", **{"from": "1", "to": "2", "reason": "trimmed"}),
        said(2, "gap", database="db", collection="orders", reason="dead_letter", deadLetter="x"),
        said(2, "gap_ended", reason="trimmed"),
        said(2, "rewound"),
        said(2, "snapshot_started", snapshot="s", collections=["db.orders"]),
        schema(2, "truncate"),
    ],
    ids=lambda event: event.operation,
)
def test_where_something_may_be_missing_the_stream_ends_and_another_begins(
    tmp_path: Path, ending: Any
) -> None:
    """A consumer reads the first to its end, and is not moved to the next in silence."""
    with captured(tmp_path) as service:
        service.append(commit(told(1, {"_id": "a"})), commit(told(1, {"_id": "x"}, source="z")))
        (first,) = service.arns(TABLE)
        shard = service.describe(first)["Shards"][0]["ShardId"]
        standing = service.iterator(first, shard, "LATEST")
        service.append(commit(ending))
        assert len(service.arns(TABLE)) == 2
        service.append(commit(told(3, {"_id": "b"})))
        end = service.streams.get_records(ShardIterator=standing)
        assert end["Records"] == []
        assert "NextShardIterator" not in end
        second = service.arn_of(TABLE)
        assert service.arns(TABLE) == [first, second]
        assert [service.describe(arn)["StreamStatus"] for arn in (first, second)] == [
            "DISABLED",
            "ENABLED",
        ]
        assert [names(service.read(arn)) for arn in (first, second)] == [["INSERT a"], ["INSERT b"]]
        assert len(service.arns("z.db.orders")) == 1


@pytest.mark.parametrize(
    "ending",
    [schema(2, "drop"), schema(2, "dropDatabase", collection=""), schema(2, "rename", to="was")],
    ids=lambda event: event.operation,
)
def test_a_collection_that_is_gone_has_no_enabled_stream_until_it_comes_again(
    tmp_path: Path, ending: Any
) -> None:
    with captured(tmp_path) as service:
        service.append(commit(told(1, {"_id": "a"})), commit(ending))
        (first,) = service.arns(TABLE)
        assert service.describe(first)["StreamStatus"] == "DISABLED"
        assert (
            "EndingSequenceNumber" in service.describe(first)["Shards"][-1]["SequenceNumberRange"]
        )
        service.append(commit(told(3, {"_id": "b"})))
        assert names(service.read(service.arn_of(TABLE))) == ["INSERT b"]
        assert names(service.read(first)) == ["INSERT a"]


def test_a_rename_onto_a_collection_ends_the_stream_of_that_one_too(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(
            commit(told(1, {"_id": "a"})),
            commit(told(2, {"_id": "b"}, collection="new")),
            commit(schema(3, "rename", collection="new", to="orders")),
        )
        assert service.describe(service.arn_of(TABLE))["StreamStatus"] == "DISABLED"


def test_harmless_words_end_no_stream(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(
            commit(told(1, {"_id": "a"})),
            commit(schema(2, "createIndexes")),
            commit(schema(3, "modify")),
            commit(said(4, "started")),
            commit(said(5, "gap", database="db", collection="other", reason="x")),
            commit(said(6, "snapshot_completed", snapshot="s", collections=[], whole=False)),
        )
        assert len(service.arns(TABLE)) == 1


def test_a_key_of_other_attributes_begins_another_stream(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        two = {"_id": "a", "r": 1}
        service.append(
            commit(told(1, {"_id": "a"})),
            commit(told(2, two, key=two)),
            commit(told(3, two, key={})),
        )
        schemas = [len(service.describe(arn)["KeySchema"]) for arn in service.arns(TABLE)]
        assert schemas == [1, 2]
        assert service.describe(service.arn_of(TABLE))["StreamStatus"] == "DISABLED"


# --- shards -------------------------------------------------------------------------------------


def test_a_shard_is_closed_by_age_and_has_a_child_though_nothing_happens(tmp_path: Path) -> None:
    clock = SetClock()
    with captured(tmp_path, clock=clock, shard_age=60) as service:
        service.append(commit(told(1, {"_id": "a"})))
        arn = service.arn_of(TABLE)
        standing = service.iterator(arn, service.shards(arn)[0]["ShardId"], "LATEST")
        clock.pass_(61)
        service.tidied()
        parent, child = service.shards(arn)
        assert child["ParentShardId"] == parent["ShardId"]
        assert "NextShardIterator" not in service.streams.get_records(ShardIterator=standing)
        service.append(commit(told(2, {"_id": "b"})))
        assert names(list(service.of_shard(arn, child["ShardId"]))) == ["INSERT b"]
        assert names(service.read(arn)) == ["INSERT a", "INSERT b"]


def test_shards_are_closed_by_size_and_cut_no_transaction(tmp_path: Path) -> None:
    with captured(tmp_path, shard_bytes=1024) as service:
        for n in range(1, 6):
            documents = [{"_id": f"{n}.{i}", "text": "x" * 400} for i in range(4)]
            service.append(commit(*(told(n, one, ordinal=i) for i, one in enumerate(documents))))
        arn = service.arn_of(TABLE)
        shards = service.shards(arn)
        assert len(shards) == 5
        assert [shard["ShardId"] for shard in shards] == sorted(s["ShardId"] for s in shards)
        for shard in shards:
            found = names(list(service.of_shard(arn, shard["ShardId"])))
            assert len(found) == 4
            assert len({name.partition(".")[0] for name in found}) == 1
        children = service.streams.describe_stream(
            StreamArn=arn, ShardFilter={"Type": "CHILD_SHARDS", "ShardId": shards[1]["ShardId"]}
        )["StreamDescription"]["Shards"]
        assert [shard["ShardId"] for shard in children] == [shards[2]["ShardId"]]


# --- retention ----------------------------------------------------------------------------------


def test_what_retention_removed_is_told_and_never_passed_over(tmp_path: Path) -> None:
    with captured(tmp_path, log=MemoryLog(LogConfig(retention_events=8))) as service:
        service.append(commit(told(1, {"_id": "a"})))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        oldest = service.iterator(arn, shard)
        (first,) = service.streams.get_records(ShardIterator=oldest)["Records"]
        number = first["dynamodb"]["SequenceNumber"]
        at = service.iterator(arn, shard, "AT_SEQUENCE_NUMBER", SequenceNumber=number)
        for n in range(2, 30):
            service.append(commit(told(n, {"_id": str(n)})))
        name, _ = service.refused("GetRecords", ShardIterator=at)
        assert name == "TrimmedDataAccessException"
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            request = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": kind}
            name, _ = service.refused("GetShardIterator", SequenceNumber=number, **request)
            assert name == "TrimmedDataAccessException"
        # TRIM_HORIZON is looked up when it is used.
        left = names(service.streams.get_records(ShardIterator=oldest)["Records"])
        assert left[-1] == "INSERT 29"
        assert left == [f"INSERT {n}" for n in range(30 - len(left), 30)]


def test_a_consumer_at_the_end_of_a_quiet_stream_has_missed_nothing(tmp_path: Path) -> None:
    with captured(tmp_path, log=MemoryLog(LogConfig(retention_events=8))) as service:
        service.append(commit(told(1, {"_id": "a"})))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        number = service.read(arn)[0]["dynamodb"]["SequenceNumber"]
        for n in range(1, 50):
            service.append(*one_each(n, n, source="busy"))
        after = service.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
        page = service.streams.get_records(ShardIterator=after)
        assert page["Records"] == []
        service.append(commit(told(2, {"_id": "b"})))
        going_on = page["NextShardIterator"]
        assert names(service.streams.get_records(ShardIterator=going_on)["Records"]) == ["INSERT b"]


def test_a_stream_that_ended_is_listed_until_retention_has_removed_all_of_it(
    tmp_path: Path,
) -> None:
    clock = SetClock()
    log = MemoryLog(LogConfig(retention_events=8))
    with captured(tmp_path, log=log, clock=clock) as service:
        service.append(commit(told(1, {"_id": "a"})), commit(schema(2, "drop")))
        assert len(service.arns(TABLE)) == 1
        for n in range(1, 50):
            service.append(*one_each(n, n, source="busy"))
        service.tidied()
        assert service.arns(TABLE) == []


def test_an_index_that_retention_overtook_ends_every_stream_where_it_stood(tmp_path: Path) -> None:
    log = LmdbLog(LogConfig(path=tmp_path / "log", retention_events=8))
    with captured(tmp_path, log=log) as service:
        service.append(commit(told(1, {"_id": "a"})))
        (first,) = service.arns(TABLE)

    async def elsewhere() -> None:
        config = LogConfig(path=tmp_path / "log", retention_events=8)
        async with LmdbLog(config) as alone:
            for n in range(2, 40):
                await alone.append([commit(told(n, {"_id": str(n)}))])

    asyncio.run(elsewhere())
    with captured(tmp_path) as service:
        service.settled()
        assert service.arn_of(TABLE) != first
        assert names(service.read(service.arn_of(TABLE)))[-1] == "INSERT 39"


# --- logs ---------------------------------------------------------------------------------------


async def test_whoever_waits_for_a_place_of_another_log_is_not_told_of_the_one_before(
    tmp_path: Path,
) -> None:
    settings, shown = CapturedConfig(address="127.0.0.1:0"), list[Shown]()
    for waits in (False, True):
        log = MemoryLog()
        async with log:
            await log.append(life())
            head = log.bounds_now().head
            index = CapturedIndex(log, tmp_path / "index", settings, clock=SystemClock())
            waiting = asyncio.create_task(
                asyncio.to_thread(index.wait, head, seconds=PATIENCE_SECONDS)
            )
            if waits:
                await asyncio.wait([waiting], timeout=0.2)
                assert not waiting.done()
            while index.step():
                pass
            shown.append(await waiting)
            assert shown[-1].log_id == log.bounds_now().log_id
            index.close()
    assert shown[0].sequence == shown[1].sequence


def test_another_log_begins_every_stream_anew(tmp_path: Path) -> None:
    """What a consumer read of the log before would stand for other changes in this one (F10)."""
    with captured(tmp_path, log=MemoryLog()) as service:
        service.append(*life())
        arn = service.arn_of(TABLE)
        iterator = service.iterator(arn, service.shards(arn)[0]["ShardId"])
    with captured(tmp_path, log=MemoryLog()) as service:
        service.append(*life())
        assert service.arns(TABLE) == [service.arn_of(TABLE)]
        assert service.arn_of(TABLE) != arn
        name, _ = service.refused("GetRecords", ShardIterator=iterator)
        assert name == "ResourceNotFoundException"


def test_an_iterator_is_no_good_for_a_log_that_was_restored(tmp_path: Path) -> None:
    config = LogConfig(path=tmp_path / "log")
    with captured(tmp_path) as service:
        service.append(*life())
        arn = service.arn_of(TABLE)
        iterator = service.iterator(arn, service.shards(arn)[0]["ShardId"])
    with captured(tmp_path, log=LmdbLog(config, restored=True)) as service:
        service.settled()
        assert service.describe(arn)["StreamStatus"] == "DISABLED"
        assert names(service.read(arn)) == ["INSERT k", "MODIFY k", "REMOVE k"]
        service.append(commit(told(9, {"_id": "later"})))
        assert names(service.read(service.arn_of(TABLE))) == ["INSERT later"]
        name, _ = service.refused("GetRecords", ShardIterator=iterator)
        assert name == "TrimmedDataAccessException"


@pytest.mark.parametrize("lost", [True, False])
def test_places_of_a_history_that_was_lost_are_refused_and_others_go_on(
    tmp_path: Path, lost: bool
) -> None:
    """The folder is put back from an older copy, and its sources catch up in another order: the
    streams, their shards and the log's id are the same ones."""
    now, was = tmp_path / "now", tmp_path / "was"
    other = [commit(told(n, {"_id": str(n)}, source="other")) for n in range(1, 3)]
    with captured(now) as service:
        service.append(commit(told(1, {"_id": "1"})))
    shutil.copytree(now, was)
    with captured(now) as service:
        if lost:
            service.append(*other, commit(told(2, {"_id": "2"})))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        number = service.read(arn)[-1]["dynamodb"]["SequenceNumber"]
        page = service.streams.get_records(ShardIterator=service.iterator(arn, shard))
    shutil.rmtree(now)
    was.rename(now)
    with captured(now) as service:
        # The same change comes to the same place, with others before it.
        service.append(*(commit(told(n, {"_id": str(n)})) for n in (2, 3)))
        service.append(commit(told(2, {"_id": "2"})), commit(told(4, {"_id": "4"})))
        assert service.arn_of(TABLE) == arn
        request = {"StreamArn": arn, "ShardId": shard, "SequenceNumber": number}
        if not lost:
            after = service.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
            for one in (after, page["NextShardIterator"]):
                found = service.streams.get_records(ShardIterator=one)["Records"]
                assert names(found) == ["INSERT 2", "INSERT 3", "INSERT 2", "INSERT 4"]
            return
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            name, _ = service.refused("GetShardIterator", ShardIteratorType=kind, **request)
            assert name == "TrimmedDataAccessException"
        name, _ = service.refused("GetRecords", ShardIterator=page["NextShardIterator"])
        assert name == "TrimmedDataAccessException"


@pytest.mark.parametrize("by", ["age", "size"])
def test_a_shard_that_begins_behind_what_only_one_of_two_histories_has_is_another_one(
    tmp_path: Path, by: str
) -> None:
    """Whoever has read its parent to the end in the lost log would miss what is in this one."""
    now, was = tmp_path / "now", tmp_path / "was"
    limits: dict[str, Any] = {"shard_age": 60} if by == "age" else {"shard_bytes": 1024}
    with captured(now, clock=SetClock(), **limits) as service:
        service.append(commit(told(1, {"_id": "1"})))
    shutil.copytree(now, was)
    found: list[list[Any]] = []
    for text in ("x", "y"):
        clock = SetClock()
        with captured(now, clock=clock, **limits) as service:
            service.append(commit(told(2, {"_id": "2", "text": text * 1024})))
            if by == "age":
                clock.pass_(61)
                service.tidied()
            else:
                service.append(commit(told(3, {"_id": "3"})))
            found.append(service.shards(service.arn_of(TABLE)))
        shutil.rmtree(now)
        shutil.copytree(was, now)
    (parent, lost), (same, new) = found
    assert parent["ShardId"] == same["ShardId"] == lost["ParentShardId"] == new["ParentShardId"]
    assert lost["SequenceNumberRange"] == new["SequenceNumberRange"]
    assert lost["ShardId"] != new["ShardId"]


def test_places_behind_the_end_of_a_shard_in_a_lost_history_are_refused(tmp_path: Path) -> None:
    """The shard ends earlier in what came instead, and its child is another one: a number behind
    its end, and an iterator of the child that was not used yet."""
    now, was = tmp_path / "now", tmp_path / "was"
    clock = SetClock()
    with captured(now, clock=clock, shard_age=60) as service:
        service.append(commit(told(1, {"_id": "1"})))
    shutil.copytree(now, was)
    with captured(now, clock=clock, shard_age=60) as service:
        service.append(commit(told(2, {"_id": "2"})), commit(told(3, {"_id": "3"})))
        clock.pass_(61)
        service.tidied()
        arn = service.arn_of(TABLE)
        shard, child = (one["ShardId"] for one in service.shards(arn))
        number = service.read(arn)[-1]["dynamodb"]["SequenceNumber"]
        unused = service.iterator(arn, child)
    shutil.rmtree(now)
    was.rename(now)
    with captured(now, clock=clock, shard_age=60) as service:
        service.append(commit(told(2, {"_id": "other"})))
        clock.pass_(61)
        service.tidied()
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            request = {"StreamArn": arn, "ShardId": shard, "SequenceNumber": number}
            name, _ = service.refused("GetShardIterator", ShardIteratorType=kind, **request)
            assert name == "TrimmedDataAccessException"
        name, _ = service.refused("GetRecords", ShardIterator=unused)
        assert name == "TrimmedDataAccessException"


def test_a_number_of_a_lost_history_is_refused_behind_retention_too(tmp_path: Path) -> None:
    """Nothing of the shard follows, so that nobody else would be told of a loss."""
    with captured(tmp_path, log=MemoryLog(LogConfig(retention_events=8))) as service:
        service.append(commit(told(1, {"_id": "a"})), commit(told(2, {"_id": "b"})))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        number = service.read(arn)[-1]["dynamodb"]["SequenceNumber"]
        for n in range(1, 50):
            service.append(*one_each(n, n, source="busy"))
        service.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
        place, check = read_sequence_number(number)
        assert check is not None
        for another in (number_of(place, check ^ 1), number_of(place + 10, check)):
            request = {"StreamArn": arn, "ShardId": shard, "SequenceNumber": another}
            kind = "AFTER_SEQUENCE_NUMBER"
            name, _ = service.refused("GetShardIterator", ShardIteratorType=kind, **request)
            assert name == "TrimmedDataAccessException"


def test_a_number_that_an_earlier_penstock_wrote_is_good(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*(commit(told(n, {"_id": str(n)})) for n in range(1, 4)))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        place, _ = read_sequence_number(service.read(arn)[1]["dynamodb"]["SequenceNumber"])
        older = str(10**21 + place)
        after = service.iterator(arn, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=older)
        assert names(service.streams.get_records(ShardIterator=after)["Records"]) == ["INSERT 3"]


# --- places -------------------------------------------------------------------------------------


def test_iterators_begin_where_their_type_says(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*(commit(told(n, {"_id": str(n)})) for n in range(1, 6)))
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        third = service.read(arn)[2]["dynamodb"]["SequenceNumber"]

        def reads(kind: str, **place: Any) -> list[str]:
            iterator = service.iterator(arn, shard, kind, **place)
            return names(service.streams.get_records(ShardIterator=iterator)["Records"])

        every = [f"INSERT {n}" for n in range(1, 6)]
        assert reads("TRIM_HORIZON") == every
        assert reads("AT_SEQUENCE_NUMBER", SequenceNumber=third) == every[2:]
        assert reads("AFTER_SEQUENCE_NUMBER", SequenceNumber=third) == every[3:]
        assert reads("AT_TIMESTAMP", Timestamp=NOW + 4) == every[3:]
        assert reads("AT_TIMESTAMP", Timestamp=NOW + 3.5) == every[3:]
        assert reads("AT_TIMESTAMP", Timestamp=0) == every
        assert reads("LATEST") == []
        ages = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "AT_TIMESTAMP"}
        target = "DynamoDBStreams_20120810.GetShardIterator"
        status, _, _ = service.post(target, {**ages, "Timestamp": -1e300})
        assert status == 200
        beyond = number_of(read_sequence_number(third).place + 1000, None)
        request = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
        name, text = service.refused("GetShardIterator", SequenceNumber=beyond, **request)
        assert (name, "not in the shard's range" in text) == ("ValidationException", True)
        for number in ("9" * 40, "9" * 30 + "0" * 9 + "5"):  # places beyond 64 bits
            name, _ = service.refused("GetShardIterator", SequenceNumber=number, **request)
            assert name == "ValidationException"


def test_a_page_looks_at_so_much_of_the_log_and_goes_on(tmp_path: Path) -> None:
    """A rare collection in a busy log: pages without records, whose iterators advance."""
    with captured(tmp_path, scan_bytes=1 << 20) as service:
        text = "x" * 60_000
        service.append(commit(told(1, {"_id": "first"})))
        for n in range(1, 100):
            service.append(commit(told(n, {"_id": n, "text": text}, source="busy")))
        service.append(commit(told(2, {"_id": "last"})))
        arn = service.arn_of(TABLE)
        iterator: str = service.iterator(arn, service.shards(arn)[0]["ShardId"])
        found, pages = list[str](), 0
        while "INSERT last" not in found:
            told_page = service.streams.get_records(ShardIterator=iterator)
            found += names(told_page["Records"])
            pages += 1
            assert told_page["NextShardIterator"] != iterator
            iterator = told_page["NextShardIterator"]
        assert 4 <= pages <= 10
        assert found == ["INSERT first", "INSERT last"]


def test_the_data_plane_is_not_offered(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        status, body, _ = service.post("DynamoDB_20120810.PutItem", {"TableName": TABLE})
        assert status == 400
        assert body["__type"].endswith("#UnknownOperationException")


def test_a_captured_table_exists_to_who_would_create_it(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*life())
        request: Any = {
            "KeySchema": [{"AttributeName": "_id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "_id", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        assert service.refused("CreateTable", TableName=TABLE, **request) == (
            "ResourceInUseException",
            f"Table already exists: {TABLE}",
        )
        name, text = service.refused("CreateTable", TableName="shop.db.other", **request)
        assert name == "ValidationException"
        assert text.endswith("makes no table: shop.db.other")


def test_bloop_binds_a_model_to_a_captured_collection(tmp_path: Path) -> None:
    class Order(Base):  # type: ignore[misc]
        class Meta:
            table_name = TABLE
            stream: ClassVar[Any] = {"include": {"new", "old"}}

        id = _bloop.Column(_bloop.String, hash_key=True, dynamo_name="_id")

    with captured(tmp_path) as service:
        service.append(*life())
        _bloop.Engine(dynamodb=service.client, dynamodbstreams=service.streams).bind(Order)
        assert Order.Meta.stream["arn"] == service.arn_of(TABLE)
        found = service.client.describe_table(TableName=TABLE)["Table"]
        assert found["AttributeDefinitions"] == [{"AttributeName": "_id", "AttributeType": "S"}]
        for operation in ("DescribeTimeToLive", "DescribeContinuousBackups"):
            name, _ = service.refused(operation, TableName="shop.db.other")
            assert name == "ResourceNotFoundException"


def test_a_list_of_streams_comes_in_pages(tmp_path: Path) -> None:
    with captured(tmp_path) as service:
        service.append(*(commit(told(n, {"_id": 1}, collection=f"c{n}")) for n in range(1, 8)))
        found, start = list[str](), dict[str, Any]()
        while True:
            page = service.streams.list_streams(Limit=2, **start)
            found += [stream["TableName"] for stream in page["Streams"]]
            if "LastEvaluatedStreamArn" not in page:
                break
            start = {"ExclusiveStartStreamArn": page["LastEvaluatedStreamArn"]}
        assert found == [f"shop.db.c{n}" for n in range(1, 8)]
