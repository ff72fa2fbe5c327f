"""A table without a stream pays nothing for streams."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import kv
from penstock.store import Store
from penstock.store.layout import DATABASES, EXPIRY, ITEMS, META, RECORDS
from tests.store.killing import CountedLmdb, Counting
from tests.store.support import BOTH, opened, with_table

PUTS = 300


def beside_items(path: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """All that lies in a store but its items."""
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            return {
                name: list(txn.cursor(env[name]).iternext()) for name in (META, EXPIRY, RECORDS)
            }


def write(db: Store) -> None:
    """Every way in which an item changes."""
    db.put("t", {"id": "a", "n": 1})
    db.put("t", {"id": "a", "n": 2})
    db.update("t", {"id": "a"}).set("n", 3).execute()
    db.write_batch(puts=[("t", {"id": "b"})], deletes=[("t", {"id": "a"})])
    db.delete("t", {"id": "b"})


@pytest.mark.parametrize("after_a_stream", [False, True])
def test_without_a_stream_an_items_change_writes_nothing_but_the_item(
    tmp_path: Path, after_a_stream: bool
) -> None:
    """F18: no record, no head, and not what the store counts; nor after a stream was disabled."""
    with opened(tmp_path) as db:
        with_table(db, view=None)
        if after_a_stream:
            db.enable_stream("t", BOTH)
            write(db)
            db.disable_stream("t")
        before = beside_items(tmp_path)
        write(db)
        assert beside_items(tmp_path) == before


# --- what LMDB is asked for, and what it writes ---


class Paid(NamedTuple):
    """What writes cost, over all of LMDB's databases."""

    calls: Counter[str]
    """Of LMDB, each by its name."""
    touched: set[bytes]
    """The databases that look different afterwards."""
    written: int
    """Bytes that the process gave to the kernel."""


def stats(db: Store) -> dict[bytes, Any]:
    """What LMDB says of each database: its entries, and its pages of each kind."""
    with kv.open_env(db.path, create=False) as env, env.read() as txn:
        return {name: txn.stat(env[name]) for name in DATABASES}


def written() -> int:
    """Bytes that this process has written so far (proc_pid_io(5))."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.partition(": ")[2]) for line in lines if line.startswith("wchar"))


def paid(db: Store, counting: Counting) -> Paid:
    """What so many writes of a table `t` cost, in a process that has written before."""
    db.put("t", {"id": "first"})
    before, calls, bytes_ = stats(db), Counter(counting.names), written()
    for number in range(PUTS):
        db.put("t", {"id": f"{number % 90}", "n": number, "data": "d" * 300})
        if number % 10 == 0:
            db.delete("t", {"id": f"{number}"})
    total = written() - bytes_
    made = counting.names - calls
    after = stats(db)
    return Paid(made, {name for name in DATABASES if before[name] != after[name]}, total)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setattr(kv, "lmdb", CountedLmdb(found))
    return found


@pytest.mark.slow
def test_a_table_whose_stream_is_off_costs_what_it_would_without_streams(
    tmp_path: Path, counting: Counting
) -> None:
    """F18: no call of LMDB more, no other database touched, no page more written."""
    with opened(tmp_path / "never") as db:
        with_table(db, view=None)
        never = paid(db, counting)
    with opened(tmp_path / "off") as db:
        with_table(db)
        for number in range(100):
            db.put("t", {"id": f"{number}", "data": "d" * 300})
        db.disable_stream("t")
        for number in range(100):
            db.delete("t", {"id": f"{number}"})
        off = paid(db, counting)
        db.enable_stream("t", BOTH)
        on = paid(db, counting)
    print(f"never {never}, off {off}, on {on}")
    assert off.calls == never.calls
    assert never.calls["Transaction.put"] == PUTS
    assert off.touched == never.touched == {ITEMS}
    assert off.written <= never.written * 1.02
    assert on.written > never.written * 1.1
    assert on.calls["Transaction.put"] > 3 * PUTS
