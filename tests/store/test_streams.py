"""Streams: one record per change, in its own place, and no reader is moved silently."""

import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import kv
from penstock.store import (
    AheadOfStreamError,
    KeyType,
    RefusedError,
    Retention,
    Store,
    StreamAlreadyEnabledError,
    StreamChangedError,
    StreamFullError,
    StreamNotEnabledError,
    StreamRecord,
    StreamViewType,
    TrimmedDataError,
    attr,
)
from penstock.store.errors import ConditionCheckFailedError
from tests.store.support import BOTH, FIRST, NOW_MS, SetClock, all_records, opened, told, with_table
from tests.waiting import PATIENCE_SECONDS


def test_every_record_of_a_batch_has_its_own_sequence_and_paging_gives_each_once(
    tmp_path: Path,
) -> None:
    """F1: ten items in one transaction, read three at a time."""
    with opened(tmp_path) as db:
        with_table(db)
        db.write_batch(puts=[("t", {"id": f"k{number}"}) for number in range(10)])
        read, page = list[StreamRecord](), db.get_stream_records("t").limit(3).execute()
        while page.records:
            read += page.records
            page = db.get_stream_records("t").after(page.position).limit(3).execute()
    assert [record.sequence_number for record in read] == list(range(FIRST, FIRST + 10))
    assert [record.keys["id"] for record in read] == [f"k{number}" for number in range(10)]
    assert len({record.commit for record in read}) == 1
    assert [record.ordinal for record in read] == list(range(10))
    assert {record.commit_records for record in read} == {10}


def test_reading_from_the_oldest_record_gives_it(tmp_path: Path) -> None:
    """F2: after_sequence is exclusive, so the trim horizon and at_sequence are what begin."""
    with opened(tmp_path) as db:
        with_table(db)
        for name in ("a", "b"):
            db.put("t", {"id": name})
        oldest = db.get_stream_info("t").oldest_sequence
        assert oldest == FIRST

        def names(read: object) -> list[object]:
            return [record.keys["id"] for record in read.execute().records]  # type: ignore[attr-defined]

        assert names(db.get_stream_records("t")) == ["a", "b"]
        assert names(db.get_stream_records("t").trim_horizon()) == ["a", "b"]
        assert names(db.get_stream_records("t").at_sequence(oldest)) == ["a", "b"]
        assert names(db.get_stream_records("t").after_sequence(oldest)) == ["b"]
        assert names(db.get_stream_records("t").latest()) == []


def test_oldest_and_latest_are_defined_while_a_stream_is_empty_and_after_it_was_pruned(
    tmp_path: Path,
) -> None:
    """F3."""
    with opened(tmp_path) as db:
        with_table(db)
        info = db.get_stream_info("t")
        assert (info.oldest_sequence, info.latest_sequence) == (None, None)
        db.put("t", {"id": "a"})
        db.put("t", {"id": "b"})
        assert db.prune_stream("t", until_sequence=FIRST + 1) == 2
        info = db.get_stream_info("t")
        assert (info.oldest_sequence, info.latest_sequence) == (None, FIRST + 1)
        assert (info.records, info.bytes) == (0, 0)
        position = db.get_stream_records("t").execute().position
        db.put("t", {"id": "c"})
        assert len(db.get_stream_records("t").after(position).execute().records) == 1


def test_reading_what_was_trimmed_is_an_error_with_the_trim_point(tmp_path: Path) -> None:
    """F4: also in the middle of paging; to stand exactly at the trim point is good."""
    with opened(tmp_path) as db:
        with_table(db)
        for number in range(6):
            db.put("t", {"id": str(number)})
        page = db.get_stream_records("t").limit(2).execute()
        db.prune_stream("t", until_sequence=FIRST + 1)
        assert len(db.get_stream_records("t").after(page.position).execute().records) == 4
        db.prune_stream("t", until_sequence=FIRST + 3)
        with pytest.raises(TrimmedDataError, match=f"begins after {FIRST + 3}") as caught:
            db.get_stream_records("t").after(page.position).execute()
        assert caught.value.facts() == {"trimmed": FIRST + 3}
        with pytest.raises(TrimmedDataError):
            db.get_stream_records("t").after_sequence(FIRST + 2).execute()
        assert len(db.get_stream_records("t").after_sequence(FIRST + 3).execute().records) == 2


def test_a_put_after_a_delete_is_an_insert_whatever_snapshot_is_held(tmp_path: Path) -> None:
    """F5."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 1})
        with kv.open_env(tmp_path, create=False) as env, env.read():
            db.delete("t", {"id": "a"})
            db.put("t", {"id": "a", "n": 2})
        assert [event for event, _, _ in all_records(db)] == ["Insert", "Remove", "Insert"]


def test_a_write_that_changes_nothing_is_no_record(tmp_path: Path) -> None:
    """F6: nor does it write anything."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 1, "m": {"x": 1, "y": 2}})
        version = db.get_versioned("t", {"id": "a"})
        db.put("t", {"m": {"y": Decimal("2.0"), "x": 1}, "n": Decimal("1.0"), "id": "a"})
        db.update("t", {"id": "a"}).add("n", 0).execute()
        db.update("t", {"id": "a"}).remove("gone").execute()
        db.update("t", {"id": "missing"}).remove("gone").execute()
        assert db.delete("t", {"id": "missing"}) is None
        assert db.get("t", {"id": "missing"}) is None
        assert db.get_versioned("t", {"id": "a"}) == version
        assert len(all_records(db)) == 1


def test_a_stream_may_ask_for_the_writes_that_change_nothing_too(tmp_path: Path) -> None:
    """F6."""
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).stream(
            BOTH, unchanged=True
        ).execute()
        db.put("t", {"id": "a"})
        db.put("t", {"id": "a"})
        assert all_records(db) == [
            ("Insert", None, {"id": "a"}),
            ("Modify", {"id": "a"}, {"id": "a"}),
        ]


def test_operations_on_one_item_in_one_transaction_each_see_the_one_before(
    tmp_path: Path,
) -> None:
    """F7."""
    with opened(tmp_path) as db:
        with_table(db)
        with db.transact() as transaction:
            transaction.put("t", {"id": "a", "n": 1})
            transaction.put("t", {"id": "a", "n": 2})
            assert transaction.get("t", {"id": "a"}) == {"id": "a", "n": 2}
            transaction.delete("t", {"id": "a"})
            transaction.put("t", {"id": "a", "n": 3})
        assert all_records(db) == [
            ("Insert", None, {"id": "a", "n": 1}),
            ("Modify", {"id": "a", "n": 1}, {"id": "a", "n": 2}),
            ("Remove", {"id": "a", "n": 2}, None),
            ("Insert", None, {"id": "a", "n": 3}),
        ]


def test_a_failed_condition_leaves_nothing_of_its_transaction(tmp_path: Path) -> None:
    """F7."""
    with opened(tmp_path) as db:
        with_table(db)

        def fail() -> None:
            with db.transact() as transaction:
                transaction.put("t", {"id": "a"})
                transaction.put("t", {"id": "b"}, condition=attr("id").exists())

        with pytest.raises(ConditionCheckFailedError):
            fail()
        assert db.scan("t").execute().items == []
        assert all_records(db) == []
        db.put("t", {"id": "a"})
        (record,) = db.get_stream_records("t").execute().records
        assert record.sequence_number == FIRST


VIEWS = {
    StreamViewType.KEYS_ONLY: (False, False),
    StreamViewType.NEW_IMAGE: (False, True),
    StreamViewType.OLD_IMAGE: (True, False),
    StreamViewType.NEW_AND_OLD_IMAGES: (True, True),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_holds_the_images_that_it_says(tmp_path: Path, view: StreamViewType) -> None:
    has_old, has_new = VIEWS[view]
    with opened(tmp_path) as db:
        with_table(db, view=view)
        db.put("t", {"id": "Fred"})
        db.put("t", {"id": "Fred", "name": "Fred"})
        db.delete("t", {"id": "Fred"})
        records = db.get_stream_records("t").execute().records
    small, large = {"id": "Fred"}, {"id": "Fred", "name": "Fred"}
    assert [(one.old_image, one.new_image) for one in records] == [
        (None, small if has_new else None),
        (small if has_old else None, large if has_new else None),
        (large if has_old else None, None),
    ]
    assert {(one.view, str(one.keys)) for one in records} == {(view, "{'id': 'Fred'}")}
    # The sizes that were recorded from DynamoDB: 6 bytes of keys, 6 and 14 of images.
    assert [one.size_bytes for one in records] == [
        6 + 6 * has_new,
        6 + 6 * has_old + 14 * has_new,
        6 + 14 * has_old,
    ]


def test_an_answer_is_capped_by_bytes_and_has_one_record_at_the_least(tmp_path: Path) -> None:
    """F13: two images of 400 KB each, and nothing is told twice or left out."""
    with opened(tmp_path) as db:
        with_table(db)
        for number in range(5):
            for filler in "xy":
                db.put("t", {"id": str(number), "data": filler * 400_000})
        sizes, read, position = list[int](), list[int](), None
        while True:
            reader = db.get_stream_records("t")
            page = (reader.after(position) if position else reader).execute()
            if not page.records:
                break
            sizes.append(sum(one.size_bytes for one in page.records))
            read += [one.sequence_number for one in page.records]
            position = page.position
        assert read == list(range(FIRST, FIRST + 10))
        assert max(sizes) <= 1 << 20
        one = db.get_stream_records("t").max_bytes(1).execute()
        assert len(one.records) == 1


# --- streams come and go --------------------------------------------------------------------------


def test_a_stream_holds_what_is_written_from_its_enabling_on(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db, view=None)
        db.put("t", {"id": "before"})
        with pytest.raises(StreamNotEnabledError):
            db.get_stream_info("t")
        db.enable_stream("t", BOTH)
        db.put("t", {"id": "before"})
        db.put("t", {"id": "after"})
        assert all_records(db) == [("Insert", None, {"id": "after"})]
        with pytest.raises(StreamAlreadyEnabledError):
            db.enable_stream("t", BOTH)


def test_a_disabled_stream_is_read_to_its_end_and_says_that_it_is_one(tmp_path: Path) -> None:
    """F10, F19."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        first = db.get_stream_records("t").execute()
        db.put("t", {"id": "b"})
        assert not first.closed
        db.disable_stream("t")
        db.put("t", {"id": "unseen"})
        db.enable_stream("t", StreamViewType.KEYS_ONLY)
        db.put("t", {"id": "c"})
        rest = db.get_stream_records("t").after(first.position).execute()
        assert told(rest) == [("Insert", None, {"id": "b"})]
        assert rest.closed
        with pytest.raises(StreamChangedError, match="another stream"):
            db.get_stream_records("t").after(rest.position).execute()
        anew = db.get_stream_records("t").execute()
        assert [one.keys for one in anew.records] == [{"id": "c"}]
        assert anew.records[0].stream_id != rest.records[0].stream_id
        assert not anew.closed


def test_a_position_of_a_stream_that_is_gone_is_refused(tmp_path: Path) -> None:
    """F10: disabled, emptied by retention, and enabled anew."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        position = db.get_stream_records("t").execute().position
        db.disable_stream("t")
        clock.pass_(8 * 86_400)
        while db.sweep():
            pass
        db.enable_stream("t", BOTH)
        with pytest.raises(StreamChangedError, match="another stream"):
            db.get_stream_records("t").after(position).execute()


def test_a_table_that_was_dropped_closes_its_stream_and_another_of_its_name_is_another(
    tmp_path: Path,
) -> None:
    """F10, F19."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        page = db.get_stream_records("t").execute()
        db.drop_table("t")
        after = db.get_stream_records("t").after(page.position).execute()
        assert after.closed
        assert after.records == []
        with_table(db)
        db.put("t", {"id": "b"})
        with pytest.raises(StreamChangedError, match="another stream"):
            db.get_stream_records("t").after(page.position).execute()
        assert all_records(db) == [("Insert", None, {"id": "b"})]


def test_a_restored_store_refuses_what_it_never_wrote(tmp_path: Path) -> None:
    """F10: behind the backup, and where it has gone on differently."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
    shutil.copytree(path, backup)
    with opened(path) as db:
        db.put("t", {"id": "b"})
        position = db.get_stream_records("t").execute().position
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    with opened(path) as db:
        with pytest.raises(AheadOfStreamError, match="never written"):
            db.get_stream_records("t").after(position).execute()
        db.put("t", {"id": "c"})
        with pytest.raises(StreamChangedError, match="another change stands"):
            db.get_stream_records("t").after(position).execute()


def test_what_is_no_position_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        for text in ("", "x", "x:", "x:y", "x:1:zz", ":1"):
            with pytest.raises(RefusedError, match="no position"):
                db.get_stream_records("t").after(text).execute()


# --- retention ------------------------------------------------------------------------------------


def limited(db: Store, **limits: int | None) -> Store:
    """A store whose table `t` has a stream of that retention."""
    retention = Retention(**{"age_seconds": None, "records_max": None, **limits})  # type: ignore[arg-type]
    db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).retention(
        retention
    ).execute()
    return db


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "9"])
def test_a_limit_that_is_no_whole_number_is_refused(limit: Any) -> None:
    """A fraction was stored, and nobody could read the stream's settings again."""
    for name in ("age_seconds", "records_max", "bytes_max"):
        with pytest.raises(RefusedError, match=f"{name} must be a whole number of more than 0"):
            Retention(**{name: limit})


def test_count_and_bytes_keep_the_newest(tmp_path: Path) -> None:
    """F12: without a sweep, as it is written."""
    with opened(tmp_path / "count") as db:
        limited(db, records_max=3)
        for number in range(10):
            db.put("t", {"id": str(number)})
        kept = [one.sequence_number for one in db.get_stream_records("t").execute().records]
        assert kept == [FIRST + 7, FIRST + 8, FIRST + 9]
    with opened(tmp_path / "bytes") as db:
        limited(db, bytes_max=2000)
        for number in range(50):
            db.put("t", {"id": f"{number:05d}", "data": "x" * 200})
        info = db.get_stream_info("t")
        assert 0 < info.bytes <= 2000
        assert info.latest_sequence == FIRST + 49


def test_age_removes_by_a_time_that_never_falls(tmp_path: Path) -> None:
    """F11: the clock is set back, and what is written then is not older than what came before."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        limited(db, age_seconds=100)
        db.put("t", {"id": "a"})
        clock.now_ms -= 50_000
        db.put("t", {"id": "b"})
        times = [one.timestamp for one in db.get_stream_records("t").execute().records]
        assert times == [NOW_MS, NOW_MS]
        clock.now_ms += 50_000
        clock.pass_(101)
        db.put("t", {"id": "c"})
        assert [new for _, _, new in all_records(db)] == [{"id": "c"}]


def test_a_clock_that_was_set_forward_removes_nothing(tmp_path: Path) -> None:
    """F11."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        limited(db, age_seconds=100)
        db.put("t", {"id": "a"})
        clock.now_ms += 10**9
        db.put("t", {"id": "b"})
        assert db.sweep() == 0
        assert len(all_records(db)) == 2


def test_pruning_is_bounded_with_each_write(tmp_path: Path) -> None:
    """F12."""
    with opened(tmp_path) as db:
        limited(db, records_max=1000)
        db.write_batch(puts=[("t", {"id": str(number)}) for number in range(500)])
        db.alter_table_stream_retention("t", Retention(age_seconds=None, records_max=1))
        db.put("t", {"id": "one more"})
        assert db.get_stream_info("t").records == 501 - 18
        while db.sweep():
            pass
        assert db.get_stream_info("t").records == 1


def test_a_stream_that_only_prune_shortens_refuses_writes_at_its_limit(tmp_path: Path) -> None:
    """F12: nothing of the refused write is kept, and after pruning it goes through."""
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).stream(BOTH).retention(
            Retention.by_hand(bytes_max=1000)
        ).execute()
        written = 0
        refused = None
        while refused is None:
            try:
                db.put("t", {"id": str(written), "data": "x" * 100})
            except StreamFullError as error:
                refused = str(error)
            else:
                written += 1
        assert "limit of 1000 bytes" in refused
        assert 0 < written < 10
        assert len(db.scan("t").execute().items) == len(all_records(db)) == written
        with pytest.raises(StreamFullError):
            db.delete("t", {"id": "0"})
        assert db.get("t", {"id": "0"}) is not None
        db.prune_stream("t", until_sequence=FIRST + written - 1)
        db.delete("t", {"id": "0"})


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"age_seconds": None, "records_max": None}, "without any limit"),
        ({"records_max": 0}, "more than 0"),
        ({"manual": True}, "by_hand"),
    ],
)
def test_a_retention_without_an_end_is_refused(limits: dict[str, Any], message: str) -> None:
    """F12."""
    with pytest.raises(RefusedError, match=message):
        Retention(**limits)


# --- waiting --------------------------------------------------------------------------------------


def test_a_reader_that_waits_gets_the_next_record(tmp_path: Path) -> None:
    """F14: in the writer's process, and from another handle that only polls."""
    with opened(tmp_path) as db:
        with_table(db)
        found = list[object]()
        reader = db.get_stream_records("t").wait(PATIENCE_SECONDS)
        thread = threading.Thread(target=lambda: found.append(reader.execute()))
        thread.start()
        db.put("t", {"id": "a"})
        thread.join()
        assert [told(page) for page in found] == [[("Insert", None, {"id": "a"})]]  # type: ignore[arg-type]
