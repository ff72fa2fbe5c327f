"""An index is whole or not there, whenever the process was killed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import store
from penstock.store import (
    Item,
)
from tests.seeds import seed_of
from tests.store import index_crash
from tests.store.index_model import check, check_disk, scanned

PROGRAM = str(Path(__file__).with_name("index_crash.py"))
STRIDE = 37
"""Calls between one kill and the next."""


@pytest.mark.slow
def test_killed_at_any_call_of_lmdb_an_index_is_whole_or_not_there(tmp_path: Path) -> None:
    """Kill -9 while indexes are made among other writes, used, and dropped: F17's, of indexes."""
    seed = seed_of("store-indexes")
    prepared = tmp_path / "prepared"
    index_crash.prepare(prepared)
    items = {item["id"]: item for item in scanned_at(prepared)}
    call, killed, seen = 1 + seed % STRIDE, True, set[tuple[str, ...]]()
    while killed:
        path = tmp_path / str(call)
        shutil.copytree(prepared, path)
        arguments = [sys.executable, PROGRAM, str(path), str(seed), str(call)]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True)
        killed = done.returncode == -9
        assert killed or done.returncode == 0, done.stderr
        said = done.stdout.split()
        with store.open(path, sweep_seconds=None) as db:
            there = {index.name for index in db.describe_table("t").indexes}
            seen.add(tuple(sorted(there)))
            # What was acknowledged is there; `by` is dropped at last, and made again.
            assert "sorted" in there or "sorted" not in said
            assert "by" in there or said != ["by"]
            assert len(scanned(db)) >= len(items) - 8
            check(db, limit=7)
            check_disk(db, path)
            for name in {"by", "sorted"} - there:
                index_crash.make(db, name)
            check(db, limit=7)
            check_disk(db, path)
        shutil.rmtree(path)
        call += STRIDE
    assert call > 10 * STRIDE
    assert {(), ("by",), ("sorted",), ("by", "sorted")} <= seen


def scanned_at(path: Path) -> list[Item]:
    """The items of a store that is closed."""
    with store.open(path, read_only=True) as db:
        return scanned(db)
