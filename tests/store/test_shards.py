"""A stream's shards: what was said of one stays true."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import kv, store
from penstock.store import KeyType, Retention, Store
from penstock.store.layout import DATABASES, Layout
from penstock.store.shards import Shard, ShardLimits
from tests.seeds import cases
from tests.store.support import BOTH, SetClock, opened, with_table

SMALL = ShardLimits(age_seconds=60, bytes_max=400)


def shards_of(db: Store) -> list[Shard]:
    with db.view() as view:
        return view.shards(view.streams()[-1])


def read_shard(db: Store, shard: Shard) -> list[int]:
    """The sequences that a shard's range holds."""
    found = db.get_stream_records("t").execute().records
    return [
        one.sequence_number
        for one in found
        if shard.first <= one.sequence_number <= (shard.last or one.sequence_number)
    ]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def test_a_new_stream_has_one_open_shard_that_begins_before_its_first_record(
    tmp_path: Path, clock: SetClock
) -> None:
    with opened(tmp_path, clock) as db:
        with_table(db)
        (shard,) = shards_of(db)
        assert (shard.number, shard.parent, shard.last) == (1, None, None)
        db.put("t", {"id": "a"})
        (record,) = db.get_stream_records("t").execute().records
        assert shards_of(db) == [shard]
        assert shard.first < record.sequence_number


def test_a_shard_is_sealed_by_its_age_with_the_record_that_finds_it_old(
    tmp_path: Path, clock: SetClock
) -> None:
    with store.open(tmp_path, sweep_seconds=None, clock=clock, shards=SMALL) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        clock.pass_(61)
        assert len(shards_of(db)) == 1, "nothing was written that could begin another"
        db.put("t", {"id": "b"})
        first, second = shards_of(db)
        assert (second.parent, second.number, second.last) == (first.number, 2, None)
        assert first.last == second.first - 1
        assert second.begun_ms == clock.now_ms


def test_a_shard_is_sealed_by_its_size_and_never_inside_a_transaction(
    tmp_path: Path, clock: SetClock
) -> None:
    with store.open(tmp_path, sweep_seconds=None, clock=clock, shards=SMALL) as db:
        with_table(db)
        with db.transact() as transaction:
            for number in range(40):
                transaction.put("t", {"id": f"k{number}"})
        assert len(shards_of(db)) == 1
        db.put("t", {"id": "next"})
        assert [len(read_shard(db, one)) for one in shards_of(db)] == [40, 1]


@pytest.mark.slow
@settings(max_examples=cases(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.sampled_from(["put", "other", "many", "wait", "prune", "reopen"]), max_size=40
    )
)
def test_no_range_that_was_told_ever_changes_and_every_record_is_in_exactly_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path, clock = tmp_path_factory.mktemp("store"), SetClock()
    told = dict[int, Shard]()
    db = store.open(path, sweep_seconds=None, clock=clock, shards=SMALL)
    try:
        db.create_table("other").partition_key("id", KeyType.STRING).stream(BOTH).execute()
        with_table(db)
        for number, step in enumerate(steps):
            match step:
                case "put":
                    db.put("t", {"id": f"k{number}"})
                case "other":
                    db.put("other", {"id": f"k{number}"})
                case "many":
                    db.write_batch(puts=[("t", {"id": f"m{number}.{n}"}) for n in range(9)])
                case "wait":
                    clock.pass_(45)
                case "prune":
                    info = db.get_stream_info("t")
                    db.prune_stream("t", until_sequence=(info.oldest_sequence or 0) + 3)
                    db.sweep()
                case _:
                    db.close()
                    db = store.open(path, sweep_seconds=None, clock=clock, shards=SMALL)
            shards = shards_of(db)
            for shard in shards:
                before = told.setdefault(shard.number, shard)
                assert before.first == shard.first
                assert before.last in {None, shard.last}
                told[shard.number] = shard
            left = [one.sequence_number for one in db.get_stream_records("t").execute().records]
            assert [one for shard in shards for one in read_shard(db, shard)] == left
            assert [one.parent for one in shards[1:]] == [one.number for one in shards[:-1]]
    finally:
        db.close()


def test_a_shard_is_shown_until_the_one_behind_it_is_empty_too(
    tmp_path: Path, clock: SetClock
) -> None:
    with store.open(tmp_path, sweep_seconds=None, clock=clock, shards=SMALL) as db:
        with_table(db)
        for number in range(3):
            clock.pass_(61)
            db.put("t", {"id": f"k{number}"})
        first, second, third = shards_of(db)
        assert first.last is not None
        assert second.last is not None
        db.prune_stream("t", until_sequence=first.last)
        assert shards_of(db) == [first, second, third]
        db.prune_stream("t", until_sequence=second.last)
        assert shards_of(db) == [second, third]
        db.sweep()
        assert shards_of(db) == [second, third]


def test_a_stream_that_ended_has_no_open_shard(tmp_path: Path, clock: SetClock) -> None:
    with opened(tmp_path, clock) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        db.disable_stream("t")
        (shard,) = shards_of(db)
        assert shard.last == db.get_stream_info("t").latest_sequence


def test_an_empty_stream_that_ended_has_a_shard_with_an_end(
    tmp_path: Path, clock: SetClock
) -> None:
    with opened(tmp_path, clock) as db:
        with_table(db)
        db.drop_table("t")
        (shard,) = shards_of(db)
        assert shard.last == shard.first


def test_what_is_behind_a_time_is_found_among_the_records_of_other_tables(
    tmp_path: Path, clock: SetClock
) -> None:
    with opened(tmp_path, clock) as db:
        with_table(db)
        db.create_table("other").partition_key("id", KeyType.STRING).stream(BOTH).execute()
        times = dict[int, int]()
        for number in range(20):
            db.put("other", {"id": f"o{number}"})
            db.put("t", {"id": f"k{number}"})
            clock.pass_(number % 3)
        for one in db.get_stream_records("t").execute().records:
            times[one.sequence_number] = one.timestamp
        db.prune_stream("t", until_sequence=min(times) + 4)
        left = [one.sequence_number for one in db.get_stream_records("t").execute().records]
        with db.view() as view:
            stream = next(one for one in view.streams() if one.table == "t")
            for time_ms in range(min(times.values()) - 1000, clock.now_ms + 2000, 500):
                after = view.before_time(stream, time_ms)
                expected = [one for one in left if times[one] >= time_ms]
                assert [one for one in left if one > after] == expected


def test_a_dropped_streams_shards_leave_the_disk_with_it(tmp_path: Path, clock: SetClock) -> None:
    with store.open(tmp_path, sweep_seconds=None, clock=clock, shards=SMALL) as db:
        table = db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH)
        table.retention(Retention(age_seconds=1000)).execute()
        for number in range(4):
            db.put("t", {"id": f"k{number}"})
            clock.pass_(61)
        db.drop_table("t")
        for _ in range(8):
            clock.pass_(3600)
            db.sweep()
    with kv.open_env(tmp_path, create=False) as env:
        env.databases(DATABASES, create=False)
        layout = Layout(env)
        with env.read() as txn:
            assert not layout.streams(txn)
            assert layout.shards(txn, 1) == []
