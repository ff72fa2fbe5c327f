"""Secondary indexes of a store: made, dropped, and on the disk."""

import threading
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import kv, store
from penstock.errors import LogFullError, PenstockError
from penstock.store import (
    AnyStore,
    Client,
    IndexAlreadyExistsError,
    IndexNotFoundError,
    IndexNotReadyError,
    KeyType,
    ServerStoppingError,
    ServerUnavailableError,
    Store,
    StoreClosedError,
    StoreError,
    indexes,
)
from penstock.store import layout as store_layout
from penstock.store.indexing import Indexes
from penstock.store.layout import DATABASES, ITEMS, Layout
from penstock.store.longkeys import LongKeys
from tests.store.faces import served
from tests.store.index_model import check, check_disk, queried, raw
from tests.store.support import opened
from tests.waiting import PATIENCE_SECONDS


class _UndoneError(Exception):
    pass


# --- being made -----------------------------------------------------------------------------------


def filled(db: Store, count: int = 50) -> None:
    """A table `t` of so many items, a few partitions of an index."""
    db.create_table("t").partition_key("id", KeyType.STRING).execute()
    for number in range(count):
        db.put("t", {"id": f"{number:03}", "of": "ab"[number % 2], "n": number % 5})


def described(db: AnyStore, name: str = "by") -> Any:
    """An index that is to be made."""
    index = db.create_index("t", name).partition_key("of", KeyType.STRING)
    return index.sort_key("n", KeyType.NUMBER)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_STEP_ITEMS", 4)


@pytest.mark.usefixtures("small_steps")
def test_it_is_right_though_others_write_between_its_steps(tmp_path: Path) -> None:
    """Before, at and behind the place that the making has come to; and whoever asks is told."""
    with opened(tmp_path) as db:
        filled(db)
        steps = list[int]()

        def between() -> None:
            at = len(steps)
            steps.append(at)
            if at:
                with pytest.raises(IndexNotReadyError):
                    queried(db, "by", "a")
                assert not db.describe_table("t").indexes[0].ready
            here = 4 * at
            for number in (here - 6, here - 1, here, here + 1, here + 9):
                key = {"id": f"{abs(number) % 50:03}"}
                match number % 3:
                    case 0:
                        db.delete("t", key)
                    case 1:
                        db.put("t", {**key, "of": "a", "n": at % 3})
                    case _:
                        db.update("t", key).set("of", "b").remove("n").execute()

        described(db).between(between).execute()
        assert len(steps) > 10
        check(db)
        check_disk(db, tmp_path)


@pytest.mark.usefixtures("small_steps")
def test_other_threads_write_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        filled(db, 200)
        done = threading.Event()

        def writing() -> None:
            number = 0
            while not done.is_set():
                number += 1
                db.put("t", {"id": f"{number * 7 % 250:03}", "of": "ab"[number % 2], "n": number})

        thread = threading.Thread(target=writing)
        thread.start()
        try:
            described(db).execute()
        finally:
            done.set()
            thread.join()
        check(db, limit=50)
        check_disk(db, tmp_path)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "how", ["raise", "drop index", "drop table", "made anew", "index made anew"]
)
def test_what_was_not_finished_is_not_there(tmp_path: Path, how: str) -> None:
    """Given up, dropped, or left without its table in the middle; never a part of one."""
    with opened(tmp_path) as db:
        filled(db)
        left = [3]

        def between() -> None:
            left[0] -= 1
            if left[0] != 0:
                return
            match how:
                case "raise":
                    raise _UndoneError
                case "drop index":
                    db.drop_index("t", "by")
                case "drop table":
                    db.drop_table("t")
                case "made anew":
                    db.drop_table("t")
                    filled(db)
                case _:
                    db.drop_index("t", "by")
                    described(db).execute()

        wanted: type[Exception] = _UndoneError if how == "raise" else IndexNotFoundError
        with pytest.raises(wanted):
            described(db).between(between).execute()
        if how == "drop table":
            assert db.list_tables() == []
        elif how == "index made anew":
            check(db)
        else:
            assert db.describe_table("t").indexes == ()
            described(db).execute()
            check(db)
        check_disk(db, tmp_path)


@pytest.mark.usefixtures("small_steps")
def test_one_that_another_thread_makes_is_there_already(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        filled(db)
        tried = list[str]()

        def between() -> None:
            if len(db.describe_table("t").indexes) == 1 and not tried:
                tried.append("")
                with pytest.raises(IndexAlreadyExistsError):
                    described(db).execute()
                described(db, "other").execute()

        described(db).between(between).execute()
        assert [index.ready for index in db.describe_table("t").indexes] == [True, True]
        check(db)


@pytest.mark.usefixtures("small_steps")
def test_what_a_writer_left_of_one_is_dropped_when_the_store_is_opened(tmp_path: Path) -> None:
    """Closed in the middle; a copy made in the middle; and a reader changes nothing."""
    folder, copy = tmp_path / "store", tmp_path / "copy"
    with opened(folder) as db:
        filled(db)
        steps = list[int]()

        def between() -> None:
            steps.append(len(steps))
            if len(steps) == 3:
                db.backup(copy)
                db.close()

        with pytest.raises(StoreClosedError):
            described(db).between(between).execute()
    for path in (folder, copy):
        with store.open(path, read_only=True) as reader:
            (index,) = reader.describe_table("t").indexes
            assert not index.ready
            with pytest.raises(IndexNotReadyError):
                queried(reader, "by", "a")
        with opened(path) as db:
            assert db.describe_table("t").indexes == ()
            check_disk(db, path)
            described(db).execute()
            check(db)


@pytest.mark.usefixtures("small_steps")
def test_one_that_failed_with_the_disk_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be removed either is out of sight, and replaced by the next."""
    with opened(tmp_path) as db:
        filled(db)
        steps = list[int]()

        def full(*_: object, **__: object) -> None:
            raise LogFullError("the disk is full")

        def between() -> None:
            steps.append(len(steps))
            if len(steps) == 3:
                monkeypatch.setattr(kv.Env, "require_space", full)
                monkeypatch.setattr(kv.Env, "require_last_space", full)

        with pytest.raises(LogFullError):
            described(db).between(between).execute()
        monkeypatch.undo()
        with pytest.raises(IndexNotReadyError):
            queried(db, "by", "a")
        described(db).execute()
        assert len(db.describe_table("t").indexes) == 1
        check(db)
        check_disk(db, tmp_path)


@pytest.mark.usefixtures("small_steps")
def test_one_whose_first_step_was_undone_takes_none_that_was_made_since_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number was given again; and the other one may still be in the making."""
    with opened(tmp_path) as db:
        filled(db)
        fill, abandon = indexes.fill, vars(Indexes)["_abandon"]

        def full(*_: object, **__: object) -> None:
            raise LogFullError("the disk is full")

        def another(*given: Any) -> None:
            monkeypatch.setattr(indexes, "fill", fill)
            made = described(db, "other")
            steps = count()

            def between() -> None:
                if next(steps) == 2:
                    abandon(db, *given)  # the first one's thread goes on
                    described(db, "third").execute()

            made.between(between).execute()

        monkeypatch.setattr(indexes, "fill", full)
        monkeypatch.setattr(db, "_abandon", another)
        with pytest.raises(LogFullError):
            described(db).execute()
        assert [one.name for one in db.describe_table("t").indexes] == ["other", "third"]
        check(db)
        check_disk(db, tmp_path)


@pytest.mark.usefixtures("small_steps")
def test_long_keys_are_told_apart_though_they_were_put_in_by_different_steps(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).execute()
        for number in range(12):
            of = f"{number % 6}" + "x" * 2000
            db.put("t", {"id": "i" * 2000 + f"{number:02}", "of": of, "n": number})
        described(db).execute()
        db.put("t", {"id": "new", "of": "new" * 500, "n": 1})
        check(db)
        check_disk(db, tmp_path)


# --- the disk -------------------------------------------------------------------------------------


def test_dropped_it_leaves_the_disk_a_few_entries_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        filled(db, 250)
        described(db).execute()
        assert sum(1 for _ in raw(tmp_path)) == 500
        db.drop_index("t", "by")
        assert db.sweep() == 100
        assert sum(1 for _ in raw(tmp_path)) == 400
        assert [db.sweep(), db.sweep(), db.sweep()] == [100, 50, 0]
        assert sum(1 for _ in raw(tmp_path)) == 250


def format_of(path: Path) -> int:
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            state = Layout(env).state(txn)
            assert state is not None
            return state.format


def test_an_older_penstock_refuses_a_store_with_an_index_and_has_it_again_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with opened(path) as db:
        filled(db, 3)
        assert format_of(path) == 1
        described(db).execute()
        described(db, "other").execute()
        assert format_of(path) == 2
        db.drop_index("t", "by")
        assert format_of(path) == 2
    monkeypatch.setattr("penstock.store.engine.FORMAT", 1)  # what an older one knows
    for read_only in (False, True):
        with pytest.raises(StoreError, match="format 2"):
            store.open(path, read_only=read_only, sweep_seconds=None)
    monkeypatch.undo()
    with opened(path) as db:
        check(db)
        db.drop_table("t")
        assert format_of(path) == 1
    monkeypatch.setattr("penstock.store.engine.FORMAT", 1)
    with opened(path) as db:
        filled(db, 3)


def test_a_store_from_before_there_were_indexes_opens_unchanged(tmp_path: Path) -> None:
    """Its tables are written without them: here as they were, to the byte."""
    path = tmp_path / "store"
    with opened(path) as db:
        filled(db, 3)
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.write() as txn:
            table = Layout(env).table(txn, "t")
            assert table is not None
            older = msgspec.structs.asdict(table)
            del older["indexes"]
            txn.put(b"table:t", msgspec.msgpack.encode(older), db=env[store_layout.META])
        before = (path / "data.mdb").read_bytes()
    with store.open(path, read_only=True) as reader:
        assert reader.describe_table("t") == table
    with opened(path):
        pass
    assert (path / "data.mdb").read_bytes() == before
    with opened(path) as db:
        described(db).execute()
        db.put("t", {"id": "new", "of": "a", "n": 1})
        check(db)


def written(path: Path, *, index: bool) -> dict[str, int]:
    """What lies in the store's databases after some writes."""
    with opened(path) as db:
        filled(db, 20)
        if index:
            described(db).execute()
            db.drop_index("t", "by")
            while db.sweep():
                pass
        for number in range(20):
            db.put("t", {"id": f"{number:03}", "of": "c", "n": number})
        with kv.open_env(path, create=False) as env:
            env.databases(DATABASES, create=False)
            with env.read() as txn:
                return {name.decode(): txn.stat(env[name])["entries"] for name in DATABASES}


def test_a_table_without_an_index_pays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18's rule: no extra entry, and nothing is looked at; also once the last index is dropped."""
    monkeypatch.setattr(indexes, "INDEXES_MAX", 1)
    plain = written(tmp_path / "plain", index=False)
    assert written(tmp_path / "dropped", index=True) == plain
    assert plain[ITEMS.decode()] == 20

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("no index is asked")

    with opened(tmp_path / "plain") as db:
        monkeypatch.setattr(indexes, "maintain", fail)
        db.put("t", {"id": "000", "of": "d"})
        db.delete("t", {"id": "000"})


def test_a_write_that_does_not_change_its_keys_does_not_touch_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as db:
        filled(db, 3)
        described(db).execute()
        touched = list[bytes]()
        put = LongKeys.put

        def counted(self: Any, txn: Any, key: bytes, value: bytes, **options: Any) -> None:
            touched.append(key[:4])
            put(self, txn, key, value, **options)

        monkeypatch.setattr(LongKeys, "put", counted)
        db.update("t", {"id": "000"}).set("note", "x").execute()
        assert len(touched) == 1
        db.update("t", {"id": "000"}).set("n", 9).execute()
        assert len(touched) == 3
        monkeypatch.undo()
        check(db)


def test_a_backup_has_its_indexes_and_goes_on_with_them(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        filled(db)
        described(db).execute()
        db.backup(tmp_path / "copy")
        db.put("t", {"id": "000", "of": "later", "n": 1})
    with opened(tmp_path / "copy") as db:
        check(db)
        assert queried(db, "by", "later") == []
        db.put("t", {"id": "000", "of": "b", "n": 7})
        check(db)
        check_disk(db, tmp_path / "copy")


def test_what_is_too_long_for_a_key_takes_no_entry(tmp_path: Path) -> None:
    """Nobody could ask for it: it would only fill the disk."""
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).execute()
        db.put("t", {"id": "before", "of": "x" * 2049, "n": "x"})
        described(db, "other").execute()
        index = db.create_index("t", "by").partition_key("of", KeyType.STRING)
        index.sort_key("n", KeyType.STRING).execute()
        for of, n in ((2049, 1), (1, 1025), (2048, 1024)):
            db.put("t", {"id": f"{of}, {n}", "of": "x" * of, "n": "x" * n})
        assert sum(1 for _ in raw(tmp_path)) == 4 + 1
        check_disk(db, tmp_path)


# --- a server -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_steps")
def test_a_server_that_stops_gives_up_the_index_that_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for it to be filled, and says so; others are served meanwhile."""
    with opened(tmp_path / "store") as db:
        filled(db)
        address = tmp_path / "s"
        begun, fill, steps = threading.Event(), indexes.fill, list[None]()

        def endless(*arguments: Any, **options: Any) -> bytes | None:
            steps.append(None)
            if len(steps) > 1:
                begun.set()
            return fill(*arguments, behind=None if len(steps) < 5000 else options["behind"])

        monkeypatch.setattr(indexes, "fill", endless)
        said = list[BaseException]()
        with Client(address) as client:

            def making() -> None:
                try:
                    described(client).execute()
                except PenstockError as error:
                    said.append(error)

            thread = threading.Thread(target=making)
            with served(db, address):
                thread.start()
                assert begun.wait(PATIENCE_SECONDS)
                client.put("t", {"id": "meanwhile", "of": "a", "n": 1})
                assert client.get("t", {"id": "meanwhile"}) is not None
            thread.join()
        # It asked again, as for all that a server says was not done, and nobody was there any more.
        assert [type(error) for error in said] in ([ServerStoppingError], [ServerUnavailableError])
        assert db.describe_table("t").indexes == ()
        check_disk(db, tmp_path / "store")
