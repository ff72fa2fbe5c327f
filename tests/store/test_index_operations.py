"""Whatever is done to a table, its indexes say what its items do."""

import tempfile
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store import (
    IndexAlreadyExistsError,
    IndexNotFoundError,
    KeyType,
    Store,
    Update,
    indexes,
)
from tests.seeds import cases
from tests.store.index_model import check, check_disk
from tests.store.support import NOW_MS, SetClock, opened

LONG = "x" * 700
ids = st.sampled_from(["a", "b", "u#1", "u#1\x00", "w#1", f"u#{LONG}1", f"u#{LONG}2"])
keys_of = st.sampled_from(
    ["a", "b", "", LONG, f"{LONG}\x00", 0, 1, -1, Decimal("0.5"), b"\x00", None, "x" * 3000]
)
attributes = st.fixed_dictionaries(
    {}, optional={"of": keys_of, "n": keys_of, "until": st.sampled_from([NOW_MS // 1000 + 10, 0])}
)
puts = st.tuples(st.just("put"), ids, attributes)
updates = st.tuples(st.just("update"), ids, attributes)
deletes = st.tuples(st.just("delete"), ids)
writes = st.one_of(puts, updates, deletes)
KINDS: dict[str, tuple[KeyType, KeyType | None, str | None]] = {
    "text": (KeyType.STRING, None, None),
    "text, number": (KeyType.STRING, KeyType.NUMBER, None),
    "number": (KeyType.NUMBER, None, None),
    "bytes, text": (KeyType.BINARY, KeyType.STRING, None),
    "of users": (KeyType.STRING, None, "u"),
}
operations = st.one_of(
    puts,
    writes,
    st.tuples(st.just("transact"), st.lists(writes, max_size=4), st.booleans()),
    st.tuples(st.sampled_from(["create", "drop"]), st.sampled_from(list(KINDS))),
    st.tuples(st.just("pass"), st.integers(1, 12)),
    st.tuples(st.just("sweep")),
)


def write(target: Any, operation: tuple[Any, ...]) -> None:
    """Put, update or delete, in a transaction."""
    match operation:
        case ("put", id_, item):
            target.put("t", {"id": id_, **item})
        case ("update", id_, item):
            update = Update()
            for name in ("of", "n", "until"):
                update = update.set(name, item[name]) if name in item else update.remove(name)
            target.update("t", {"id": id_}, update)
        case _:
            target.delete("t", {"id": operation[1]})


def make(db: Store, name: str) -> None:
    """One of `KINDS`."""
    partition, sort, scope = KINDS[name]
    index = db.create_index("t", name).partition_key("of", partition)
    if sort is not None:
        index.sort_key("n", sort)
    if scope is not None:
        index.scope(scope)
    index.execute()


class _UndoneError(Exception):
    pass


def apply(db: Store, clock: SetClock, operation: tuple[Any, ...]) -> None:
    """Any operation."""
    match operation:
        case ("transact", changes, kept):
            with suppress(_UndoneError), db.transact() as transaction:
                for change in changes:
                    write(transaction, change)
                if not kept:
                    raise _UndoneError
        case ("create", name):
            with suppress(IndexAlreadyExistsError):
                make(db, name)
        case ("drop", name):
            with suppress(IndexNotFoundError):
                db.drop_index("t", name)
        case ("pass", seconds):
            clock.pass_(seconds)
        case ("sweep",):
            db.sweep()
        case _:
            with db.transact() as transaction:
                write(transaction, operation)


def _agree(
    before: list[tuple[Any, ...]], made: set[str], after: list[tuple[Any, ...]], step: int
) -> None:
    clock = SetClock()
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        opened(Path(folder), clock) as db,
    ):
        patch.setattr(indexes, "_STEP_ITEMS", step)
        db.create_table("t").partition_key("id", KeyType.STRING).ttl("until").execute()
        for change in before:
            apply(db, clock, change)
        for name in sorted(made):
            make(db, name)
        check(db)
        for operation in after:
            apply(db, clock, operation)
        check(db)
        clock.pass_(60)
        check(db)
        check_disk(db, Path(folder))
        check(db)


any_operations = given(
    st.lists(writes, max_size=8),
    st.sets(st.sampled_from(list(KINDS)), min_size=1),
    st.lists(operations, min_size=1, max_size=20),
    st.integers(1, 3),
)


@pytest.mark.slow
@settings(max_examples=cases(25))
@any_operations
def test_after_any_operations_every_index_says_what_a_scan_does(
    before: list[tuple[Any, ...]], made: set[str], after: list[tuple[Any, ...]], step: int
) -> None:
    _agree(before, made, after, step)


@pytest.mark.slow
@settings(max_examples=cases(200))
@any_operations
def test_after_many_more_operations_too(
    before: list[tuple[Any, ...]], made: set[str], after: list[tuple[Any, ...]], step: int
) -> None:
    _agree(before, made, after, step)
