"""A full disk refuses what takes room, and nothing that makes room."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import store
from penstock.disks import space
from penstock.errors import LogFullError
from penstock.store import KeyType, Store
from tests.store.support import opened, together, with_table

FREES: dict[str, Callable[[Store], object]] = {
    "delete": lambda db: db.delete("t", {"id": "a"}),
    "prune": lambda db: db.prune_stream("t", until_sequence=10**9),
    "disable": lambda db: db.disable_stream("t"),
    "drop": lambda db: db.drop_table("t"),
    "sweep": lambda db: db.sweep(),
    "batch": lambda db: db.write_batch(deletes=[("t", {"id": "a"})]),
}
ADDS: dict[str, Callable[[Store], object]] = {
    "put": lambda db: db.put("t", {"id": "b", "n": 1}),
    "update": lambda db: db.update("t", {"id": "b"}).set("n", 1).execute(),
    "batch": lambda db: db.write_batch(puts=[("t", {"id": "b"})], deletes=[("t", {"id": "a"})]),
    "index": lambda db: db.create_index("t", "i").partition_key("n", KeyType.NUMBER).execute(),
}


def full(folder: Path, *, times: int) -> Store:
    """A store with an item, whose disk has to have so many times what is free."""
    with opened(folder) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 1})
    return store.open(folder, sweep_seconds=None, free_bytes_min=space(folder).free * times)


@pytest.mark.parametrize("name", FREES)
def test_what_makes_room_is_done_on_a_full_disk(tmp_path: Path, name: str) -> None:
    with full(tmp_path, times=4) as db:
        FREES[name](db)


def test_not_even_that_is_done_with_the_last_of_a_disk(tmp_path: Path) -> None:
    with full(tmp_path, times=20) as db, pytest.raises(LogFullError, match="under the floor"):
        db.prune_stream("t", until_sequence=10**9)


@pytest.mark.parametrize("name", ADDS)
def test_what_takes_room_is_refused_on_a_full_disk_and_nothing_of_it_kept(
    tmp_path: Path, name: str
) -> None:
    with full(tmp_path, times=4) as db:
        with pytest.raises(LogFullError, match="Prune streams, drop tables or delete items"):
            ADDS[name](db)
        assert db.scan("t").execute().items == [{"id": "a", "n": 1}]


def test_writes_that_come_together_are_refused_where_the_file_would_grow(tmp_path: Path) -> None:
    """Each fits into its free pages alone."""
    data = "x" * 300_000
    with opened(tmp_path) as db:
        with_table(db, view=None)
        for number in range(16):
            db.put("t", {"id": f"{number}", "data": data})
        for number in range(16):
            db.delete("t", {"id": f"{number}"})
    floor = space(tmp_path).free * 4
    with store.open(tmp_path, sweep_seconds=None, free_bytes_min=floor) as db:
        pages = db._env._lmdb.info()["last_pgno"]
        with together(
            db, [partial(db.put, "t", {"id": f"{n}", "data": data}) for n in range(40)]
        ) as done:
            pass
        errors = [one.exception() for one in done]
        kept = errors.count(None)
        assert 0 < kept < 16
        assert {type(one) for one in errors if one is not None} == {LogFullError}
        assert db.count("t") == kept
        assert db._env._lmdb.info()["last_pgno"] == pages
