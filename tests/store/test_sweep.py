"""Sweeping: what cannot be removed now holds up nothing else, and is removed later."""

import threading
import tracemalloc
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path

import pytest

from penstock import kv, store
from penstock.errors import LogFullError
from penstock.store import (
    ConditionCheckFailedError,
    KeyType,
    Retention,
    Store,
    StreamViewType,
    Transaction,
    attr,
)
from penstock.store.layout import DATABASES, META
from tests.store.support import BOTH, NOW_MS, SetClock, all_records, opened, with_table

SOON = NOW_MS // 1000 + 5


def test_an_item_expires_however_its_second_was_written(tmp_path: Path) -> None:
    """F8: a Decimal is the number that it is; a part of a second is over when the second is."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name, until in (("a", Decimal(SOON)), ("b", Decimal(f"{SOON}.5")), ("c", Decimal(-5))):
            db.put("t", {"id": name, "until": until})
        clock.pass_(5)
        assert [db.get("t", {"id": name}) is None for name in "abc"] == [True, False, False]
        clock.pass_(1)
        assert [db.get("t", {"id": name}) is None for name in "abc"] == [True, True, False]
        assert db.sweep() == 2


@pytest.mark.parametrize("later", [False, True])
def test_a_second_of_more_than_five_years_ago_is_no_time_to_live(
    tmp_path: Path, later: bool
) -> None:
    """F8: as with DynamoDB. What holds durations may be named by mistake, and nothing is lost."""
    clock = SetClock()
    years_ago = NOW_MS // 1000 - 5 * 365 * 86_400
    with opened(tmp_path, clock) as db:
        with_table(db, ttl=None if later else "until")
        for name, until in (("duration", 3600), ("older", years_ago - 1), ("old", years_ago)):
            db.put("t", {"id": name, "until": until})
        if later:
            db.set_ttl("t", "until")
        assert db.get("t", {"id": "old"}) is None
        assert db.sweep() == 1
        assert db.sweep() == 0
        assert sorted(item["id"] for item in db.scan("t").execute().items) == ["duration", "older"]


def test_an_item_that_was_to_expire_does_however_long_the_store_was_closed(tmp_path: Path) -> None:
    """The moment of writing decides whether a second is one."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        db.put("t", {"id": "a", "until": SOON})
        clock.pass_(6 * 365 * 86_400)
        assert db.get("t", {"id": "a"}) is None
        assert db.sweep() == 1


def test_no_write_destroys_what_only_a_clock_that_was_set_takes_for_expired(
    tmp_path: Path,
) -> None:
    """F11: it is there for put, update, delete and the transaction's own reads."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name in ("update", "put", "delete"):
            db.put("t", {"id": name, "cart": "full", "until": SOON + 3600})
        clock.now_ms += 7_200_000
        assert db.sweep() == 0
        db.update("t", {"id": "update"}).add("hits", 1).execute()
        with pytest.raises(ConditionCheckFailedError):
            db.put("t", {"id": "put"}, condition=attr("id").not_exists())
        with db.transact() as transaction:
            assert transaction.get("t", {"id": "put"}) is not None
            removed = transaction.delete("t", {"id": "delete"})
        assert removed == {"id": "delete", "cart": "full", "until": SOON + 3600}
        clock.now_ms -= 7_200_000
        for name, more in (("update", {"hits": 1}), ("put", {})):
            kept = {"id": name, "cart": "full", "until": SOON + 3600, **more}
            assert db.get("t", {"id": name}) == kept
        records = db.get_stream_records("t").execute().records[3:]
    assert [(one.event_type, one.user_identity) for one in records] == [
        ("Modify", None),
        ("Remove", None),
    ]


VIEWS = pytest.mark.parametrize("view", [None, BOTH])
DAY = 86_400


@VIEWS
def test_a_clock_that_is_wrong_when_the_store_is_opened_removes_nothing(
    tmp_path: Path, view: StreamViewType | None
) -> None:
    """F11: of a table without a stream as well, whose records say no time."""
    with opened(tmp_path, SetClock()) as db:
        with_table(db, view=view, ttl="until")
        db.put("t", {"id": "a", "cart": "full", "until": SOON + 3600})
    with opened(tmp_path, SetClock(NOW_MS + 400 * DAY * 1000)) as db:
        assert db.sweep() == 0
        db.update("t", {"id": "a"}).add("hits", 1).execute()
    # What a clock says that is not believed is not kept either, nor what records say by it.
    ahead = SetClock(NOW_MS + 400 * DAY * 1000 + 1000)
    with opened(tmp_path, ahead) as db:
        assert db.sweep() == 0
        ahead.pass_(3600)
        assert db.sweep() == 1, "for an hour it has gone on, so whoever set it meant it"


def test_records_that_came_while_the_clock_was_behind_are_not_old(tmp_path: Path) -> None:
    """Not in a new stream either, which has no record to tell the time by."""
    with opened(tmp_path, SetClock()) as db:
        with_table(db, view=None)
        db.put("t", {"id": "a"})
    with opened(tmp_path, SetClock(NOW_MS - 200 * DAY * 1000)) as db:
        db.enable_stream("t", StreamViewType.NEW_IMAGE)
        db.put("t", {"id": "b"})
    clock = SetClock(NOW_MS + 60_000)
    with opened(tmp_path, clock) as db:
        clock.pass_(7200)
        assert [db.sweep(), db.sweep()] == [0, 0]
        assert [one.keys["id"] for one in db.get_stream_records("t").execute().records] == ["b"]


@VIEWS
@pytest.mark.parametrize("every", [5400, DAY, 7 * DAY, 31 * DAY])
def test_a_script_takes_a_lock_that_expired_whenever_it_runs(
    tmp_path: Path, view: StreamViewType | None, every: int
) -> None:
    """It has no hour in which to find out whether its clock is right."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, view=view, ttl="until")
    swept = 0
    for _ in range(5):
        clock.pass_(every)
        with opened(tmp_path, clock) as db:
            lock = {"id": "lock", "until": clock.wall_ms() // 1000 + 60}
            db.put("t", lock, condition=attr("id").not_exists())
            db.put("t", {**lock, "id": str(clock.now_ms)})
            swept += db.sweep()
    assert swept >= 2


@VIEWS
@pytest.mark.parametrize("made", [NOW_MS, 946_684_800_000, NOW_MS + 1000 * DAY * 1000])
def test_a_store_that_was_closed_for_long_or_made_by_a_wrong_clock_sweeps_when_opened_again(
    tmp_path: Path, view: StreamViewType | None, made: int
) -> None:
    """For an hour the clock has gone on, though the store was not open meanwhile."""
    with opened(tmp_path, SetClock(made)) as db:
        with_table(db, view=view, ttl="until")
        db.put("t", {"id": "a", "until": SOON})
    clock = SetClock(NOW_MS + 50 * DAY * 1000)
    removed = list[int]()
    for _ in range(3):
        with opened(tmp_path, clock) as db:
            removed.append(db.sweep())
        clock.pass_(1900)
    assert removed == [0, 0, 1]


YEARS_MS = 400 * DAY * 1000


@VIEWS
@pytest.mark.parametrize(
    "wrong_ms", [(YEARS_MS, 600_000, YEARS_MS + 7_200_000), (YEARS_MS, 2 * YEARS_MS)]
)
def test_the_hour_of_one_clock_is_none_of_anothers(
    tmp_path: Path, view: StreamViewType | None, wrong_ms: tuple[int, ...]
) -> None:
    """One that was put right in between, or that is years from the one before."""
    with opened(tmp_path, SetClock()) as db:
        with_table(db, view=view, ttl="until")
        db.put("t", {"id": "a", "until": SOON + 90 * DAY})
    for ahead_ms in wrong_ms:
        with opened(tmp_path, SetClock(NOW_MS + ahead_ms)) as db:
            assert db.sweep() == 0
            db.update("t", {"id": "a"}).add("hits", 1).execute()
    right = SetClock(NOW_MS + 600_000)
    with opened(tmp_path, right) as db:
        assert db.get("t", {"id": "a"}) == {
            "id": "a",
            "until": SOON + 90 * DAY,
            "hits": len(wrong_ms),
        }
        right.pass_(91 * DAY)
        assert db.sweep() == 1


def test_what_had_expired_by_a_time_that_was_believed_is_not_there_for_writes(
    tmp_path: Path,
) -> None:
    """Whatever the clock says since."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name, until in (("gone", SOON), ("there", SOON + DAY)):
            db.put("t", {"id": name, "until": until})
        clock.pass_(3600)
        db.put("t", {"id": "another"})
    with opened(tmp_path, SetClock(NOW_MS + 400 * DAY * 1000)) as db:
        db.put("t", {"id": "gone"}, condition=attr("id").not_exists())
        with pytest.raises(ConditionCheckFailedError):
            db.put("t", {"id": "there"}, condition=attr("id").not_exists())


@pytest.mark.parametrize("wrong", [NOW_MS + 7 * 365 * DAY * 1000, 90_000_000])
@pytest.mark.parametrize("later", [False, True])
def test_what_is_a_time_to_live_does_not_hang_on_a_clock_that_is_not_believed(
    tmp_path: Path, wrong: int, later: bool
) -> None:
    """One that is years ahead made it none, and one of 1970 took a duration for one."""
    with opened(tmp_path) as db:
        with_table(db, ttl=None if later else "until")
    with opened(tmp_path, SetClock(wrong)) as db:
        db.put("t", {"id": "a", "until": SOON})
        db.put("t", {"id": "duration", "until": 90_000})
        if later:
            db.set_ttl("t", "until")
    with opened(tmp_path, SetClock(NOW_MS + 10_000)) as db:
        assert db.sweep() == 1
        assert db.scan("t").execute().items == [{"id": "duration", "until": 90_000}]


def test_a_full_disk_is_no_reason_not_to_open_a_store(tmp_path: Path) -> None:
    """Its clock is only doubted for longer."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
    later = SetClock(NOW_MS + 400 * DAY * 1000)
    with store.open(tmp_path, sweep_seconds=None, clock=later, free_bytes_min=1 << 60) as db:
        assert db.get("t", {"id": "a"}) == {"id": "a"}


def test_a_store_that_nobody_writes_is_believed_after_a_short_stop(tmp_path: Path) -> None:
    """The sweep keeps the time: what matters is how long the store was closed."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, view=None, ttl="until")
        db.put("t", {"id": "a", "until": NOW_MS // 1000 + 90_000})
        clock.pass_(86_400)
        assert db.sweep() == 0
    clock.pass_(3600)
    with opened(tmp_path, clock) as db:
        assert db.sweep() == 1


def test_a_store_that_never_kept_a_time_believes_its_clock(tmp_path: Path) -> None:
    """One that an earlier version wrote."""
    with opened(tmp_path) as db:
        with_table(db, view=None, ttl="until")
        db.put("t", {"id": "a", "until": SOON})
    with kv.open_env(tmp_path, create=False, kind=kv.STORE) as env:
        assert env.databases(DATABASES, create=False)
        with env.write() as txn:
            txn.delete(b"trusted", db=env[META])
    with opened(tmp_path, SetClock(NOW_MS + 86_400_000)) as db:
        assert db.sweep() == 1


def test_a_full_stream_holds_up_the_sweep_of_its_own_table_alone(tmp_path: Path) -> None:
    """F8, F12: what expired there stays hidden, and goes once the stream has room."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        full = db.create_table("full").partition_key("id", KeyType.STRING).ttl("until")
        full.stream(BOTH).retention(Retention.by_hand(bytes_max=200)).execute()
        for table in ("full", "t"):
            db.put(table, {"id": "a", "until": SOON, "data": "x" * 60})
        clock.pass_(10)
        assert db.sweep() == 1
        assert db.sweep() == 0
        assert [event for event, _, _ in all_records(db)] == ["Insert", "Remove"]
        assert db.get("full", {"id": "a"}) is None
        assert [event for event, _, _ in all_records(db, "full")] == ["Insert"]
        db.prune_stream("full", until_sequence=1000)
        assert db.sweep() == 1
        assert [event for event, _, _ in all_records(db, "full")] == ["Remove"]


@pytest.mark.parametrize("again", [False, True])
def test_a_table_that_is_dropped_between_the_look_and_the_sweep_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """F9: and so is one that has its name since."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        with_table_named(db, "other")
        for table in ("t", "other"):
            db.put(table, {"id": "a", "until": SOON})
        clock.pass_(10)
        transact = db.transact

        def dropped() -> AbstractContextManager[Transaction]:
            monkeypatch.undo()
            db.drop_table("t")
            if again:
                db.create_table("t").partition_key("other", KeyType.STRING).stream(BOTH).execute()
            return transact()

        monkeypatch.setattr(db, "transact", dropped)
        assert db.sweep() > 0
        assert [event for event, _, _ in all_records(db, "other")] == ["Insert", "Remove"]
        if again:
            assert all_records(db) == []


def with_table_named(db: Store, name: str) -> None:
    """A table whose items expire, with a stream."""
    table = db.create_table(name).partition_key("id", KeyType.STRING)
    table.ttl("until").stream(BOTH).execute()


@pytest.mark.slow
def test_a_table_is_given_a_time_to_live_in_bounded_memory(tmp_path: Path) -> None:
    """Every item of it, whatever their number: here more than are rewritten at once."""
    clock, items, size = SetClock(), 1500, 20_000
    with opened(tmp_path, clock) as db:
        with_table(db, view=None)
        for begun in range(0, items, 100):
            with db.transact() as transaction:
                for number in range(begun, begun + 100):
                    item = {"id": f"{number:04}" + "k" * 600, "until": SOON, "data": "x" * size}
                    transaction.put("t", item)
        tracemalloc.start()
        db.set_ttl("t", "until")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < items * size / 2
        clock.pass_(10)
        assert db.count("t") == 0
        db.set_ttl("t", None)
        assert db.count("t") == items
        db.set_ttl("t", "until")
        while db.sweep():
            pass
        db.set_ttl("t", None)
        assert db.count("t") == 0


@pytest.mark.parametrize("failure", [LogFullError("the disk is full"), RuntimeError("a defect")])
def test_a_sweep_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Else nothing would ever expire, nor leave a stream, until the store is opened anew."""
    swept = threading.Event()
    tries = list[int]()

    def sweep(_: Store) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise failure
        swept.set()
        return 0

    monkeypatch.setattr(Store, "sweep", sweep)
    with store.open(tmp_path, sweep_seconds=0.001):
        assert swept.wait(10)
