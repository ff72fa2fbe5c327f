"""Writes of several threads in one commit are what they would be one after the other."""

# pyright: reportPrivateUsage=false

import threading
from asyncio import CancelledError
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import store
from penstock.errors import LogFullError
from penstock.store import (
    Client,
    ConditionCheckFailedError,
    Item,
    Store,
    StoreClosedError,
    TableNotFoundError,
    Transaction,
    TransactionError,
    VersionMismatchError,
)
from penstock.store.conditions import attr
from penstock.store.together import WRITES_MAX
from tests.cleanup import memory_folder
from tests.store.faces import served
from tests.store.support import commits, opened, together, with_table
from tests.waiting import wait_until

Call = Callable[[Transaction], object]


@pytest.fixture
def db(tmp_path: Path) -> Generator[Store]:
    with opened(tmp_path / "store") as db:
        yield with_table(db)


def put(db: Store, key: str, **more: Any) -> Callable[[], object]:
    return lambda: db.put("t", {"id": key, **more})


def records(db: Store) -> list[tuple[str, int, int]]:
    """The key of each record, by its place in its commit, and how many that has."""
    found = db.get_stream_records("t").limit(1000).execute().records
    return [(str(one.keys["id"]), one.ordinal, one.commit_records) for one in found]


def test_writes_that_come_together_wait_for_the_disk_once(db: Store) -> None:
    before = commits(db)
    keys = [f"{n}" for n in range(20)]
    with together(db, [put(db, key) for key in keys]) as done:
        pass
    assert [one.result() for one in done] == [None] * 20
    assert commits(db) == before + 1
    assert records(db) == [(key, 0, 1) for key in keys]  # each a commit of its own, in order
    of_commits = [one.commit for one in db.get_stream_records("t").execute().records]
    assert len(set(of_commits)) == 20


def test_more_than_are_kept_together_are_kept_behind_them(db: Store) -> None:
    before = commits(db)
    with together(db, [put(db, f"{n}") for n in range(WRITES_MAX + 3)]) as done:
        pass
    assert [one.exception() for one in done] == [None] * (WRITES_MAX + 3)
    assert commits(db) == before + 2
    large = "x" * 300_000
    with together(db, [put(db, f"{n}", data=large) for n in range(60)]) as done:
        pass
    assert [one.exception() for one in done] == [None] * 60
    assert before + 4 <= commits(db) <= before + 7, "by their bytes, too"


def test_each_sees_what_was_written_before_it(db: Store) -> None:
    def add() -> object:
        return db.update("t", {"id": "n"}).add("count", 1).execute().new

    with together(db, [add] * 10) as done:
        pass
    assert [one.result() for one in done] == [{"id": "n", "count": n} for n in range(1, 11)]


def test_one_that_is_refused_leaves_the_others_as_they_are(db: Store) -> None:
    """What it is told of is kept: it ends a commit in which something was changed before it."""
    before = commits(db)
    refused = [
        lambda: db.put("t", {"id": "a"}, expected_version=0),
        lambda: db.put("nowhere", {"id": "b"}),
    ]
    with together(db, [*refused[1:], put(db, "a"), *refused, put(db, "a", n=1)]) as done:
        pass
    assert [type(one.exception()) for one in done] == [
        TableNotFoundError,
        type(None),
        VersionMismatchError,
        TableNotFoundError,
        type(None),
    ]
    assert commits(db) == before + 2
    assert [key for key, _, _ in records(db)] == ["a", "a"]
    mismatch, known = done[2].exception(), db.get_versioned("t", {"id": "a"})
    assert isinstance(mismatch, VersionMismatchError)
    assert known is not None
    assert mismatch.actual == known[1] - 1, "the version of the item that was there"


def test_one_that_fails_in_its_middle_is_undone_and_the_others_are_not(db: Store) -> None:
    def half(transaction: Transaction) -> None:
        transaction.put("t", {"id": "half"})
        transaction.put("t", {"id": "a", "late": True}, condition=attr("id").not_exists())

    def broken(transaction: Transaction) -> None:
        transaction.put("t", {"id": "broken"})
        raise CancelledError

    calls = [put(db, "a"), lambda: db.write(half), put(db, "b"), lambda: db.write(broken)]
    with together(db, [*calls, put(db, "c")]) as done:
        pass
    assert [type(one.exception()) for one in done] == [
        type(None),
        ConditionCheckFailedError,
        type(None),
        CancelledError,
        type(None),
    ]
    assert [key for key, _, _ in records(db)] == ["a", "b", "c"]


def test_where_nothing_is_changed_nothing_is_kept(db: Store) -> None:
    before, rings = commits(db), db.bell.rings
    with together(db, [lambda: db.put("nowhere", {}), lambda: db.delete("t", {"id": "a"})]) as done:
        rings += 1  # of the transaction that they wait for
    assert [type(one.exception()) for one in done] == [TableNotFoundError, type(None)]
    assert (commits(db), db.bell.rings) == (before, rings)


def test_where_keeping_fails_each_is_told(db: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full as LMDB commits; what was refused before any change is told that."""
    real = db._env.write

    @contextmanager
    def full() -> Generator[Any]:
        try:
            with real() as txn:
                yield txn
                raise lmdb.MapFullError("mdb_txn_commit")
        except lmdb.Error as error:
            raise LogFullError("full") from error

    calls = [lambda: db.put("nowhere", {"id": "a"}), put(db, "a"), put(db, "b")]
    with together(db, calls) as done:
        monkeypatch.setattr(db._env, "write", full)
    errors = [TableNotFoundError, LogFullError, LogFullError]
    assert [type(one.exception()) for one in done] == errors
    monkeypatch.undo()
    db.put("t", {"id": "c"})
    assert [key for key, _, _ in records(db)] == ["c"]


def test_where_no_write_can_begin_each_is_told(db: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind one that was undone: what is kept was said to be, and nothing else is."""
    real, begun = db._env.write, list[None]()

    @contextmanager
    def once() -> Generator[Any]:
        begun.append(None)
        if len(begun) > 2:
            raise LogFullError("full")
        with real() as txn:
            yield txn

    def broken(transaction: Transaction) -> None:
        transaction.put("t", {"id": "broken"})
        raise ZeroDivisionError

    calls = [put(db, "a"), put(db, "b"), lambda: db.write(broken), put(db, "c")]
    with together(db, calls) as done:
        monkeypatch.setattr(db._env, "write", once)
    full, kept = LogFullError, type(None)
    assert [type(one.exception()) for one in done] == [kept, kept, full, full]
    monkeypatch.undo()
    assert [key for key, _, _ in records(db)] == ["a", "b"]
    assert db.write(lambda transaction: transaction.get("t", {"id": "a"})) == {"id": "a"}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put(db, "d")).result()


def test_whoever_waits_while_the_store_is_closed_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        with_table(db)
        with together(db, [put(db, "a"), put(db, "b"), put(db, "c")]) as done:
            closing = threading.Thread(target=db.close)
            closing.start()
            wait_until(db._closing.is_set, "it is being closed")
        closing.join()
    assert [type(one.exception()) for one in done] == [StoreClosedError] * 3


def test_inside_a_transaction_a_write_is_refused(db: Store) -> None:
    with db.transact(), pytest.raises(TransactionError, match="a store has one at a time"):
        db.put("t", {"id": "a"})

    def nested(transaction: Transaction) -> None:
        transaction.put("t", {"id": "a"})
        db.put("t", {"id": "b"})

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(TransactionError, match="a store has one at a time"):
            pool.submit(db.write, nested).result()
        assert records(db) == []
        pool.submit(put(db, "a")).result()


# --- as one after the other -----------------------------------------------------------------------

KEYS = st.sampled_from("abc")
ONE = st.tuples(st.sampled_from(["put", "delete", "add", "fail"]), KEYS)
WRITES = st.lists(st.lists(ONE, min_size=1, max_size=3), min_size=1, max_size=8)


def call_of(steps: list[tuple[str, str]], number: int) -> Call:
    def call(transaction: Transaction) -> list[Item | None]:
        found = list[Item | None]()
        for what, key in steps:
            if what == "put":
                found.append(transaction.put("t", {"id": key, "n": number}))
            elif what == "delete":
                found.append(transaction.delete("t", {"id": key}))
            elif what == "add":
                update = store.Update().add("n", 1)
                found.append(transaction.update("t", {"id": key}, update).new)
            else:
                transaction.check("t", {"id": key}, attr("n").not_exists())
                found.append(None)
        return found

    return call


def outcome(done: Callable[[], object]) -> object:
    try:
        return done()
    except ConditionCheckFailedError as error:
        return str(error)


@given(WRITES)
def test_together_they_do_what_they_do_one_after_the_other(
    writes: list[list[tuple[str, str]]],
) -> None:
    """Also what their records say."""
    calls = [call_of(steps, number) for number, steps in enumerate(writes)]
    with (
        TemporaryDirectory(dir=memory_folder()) as path,
        opened(Path(path) / "one") as one,
        opened(Path(path) / "all") as all_,
    ):
        with_table(one)
        with_table(all_)
        expected = [outcome(partial(one.write, call)) for call in calls]
        with together(all_, [partial(all_.write, call) for call in calls]) as futures:
            pass
        assert [outcome(future.result) for future in futures] == expected
        assert all_.scan("t").execute().items == one.scan("t").execute().items
        told = [
            [
                (each.sequence_number, each.commit, each.ordinal, each.old_image, each.new_image)
                for each in db.get_stream_records("t").execute().records
            ]
            for db in (one, all_)
        ]
        assert told[0] == told[1]


# --- from other processes -------------------------------------------------------------------------


def test_a_servers_clients_wait_for_the_disk_once(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "store") as db,
        served(db, tmp_path / "s"),
        Client(tmp_path / "s") as client,
    ):
        with_table(db)
        before = commits(db)
        with together(db, [partial(client.put, "t", {"id": f"{n}"}) for n in range(8)]) as done:
            pass
        assert [one.result() for one in done] == [None] * 8
        assert commits(db) == before + 1
