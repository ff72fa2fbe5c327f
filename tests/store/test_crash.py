"""Data and stream agree, whenever the process was killed."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock import store
from penstock.store import Item, Store
from tests.children import Child
from tests.cleanup import memory_folder
from tests.seeds import seed_of
from tests.store.crash import TABLES

PROGRAM = str(Path(__file__).with_name("crash.py"))
ROOT = Path(__file__).parents[2]


def items_of(db: Store, table: str) -> dict[str, Item]:
    """The table's items, expired ones left out, by key."""
    found, last = dict[str, Item](), None
    while True:
        page = db.scan(table).exclusive_start_key(last).execute()
        found |= {str(item["id"]): item for item in page.items}
        if (last := page.last_key) is None:
            return found


def folded(db: Store, table: str) -> dict[str, Item]:
    """What the table's stream says that is in it; every record fits the one before."""
    state, sequences = dict[str, Item](), list[int]()
    page = db.get_stream_records(table).execute()
    while page.records:
        for record in page.records:
            key = str(record.keys["id"])
            assert record.old_image == state.get(key), "a record without its data, or the reverse"
            if record.new_image is None:
                del state[key]
            else:
                state[key] = record.new_image
            sequences.append(record.sequence_number)
        page = db.get_stream_records(table).after(page.position).execute()
    assert sequences == sorted(set(sequences))
    return state


def check(path: Path) -> None:
    """Each table equals the fold of its stream, once what has expired is swept."""
    with store.open(path, sweep_seconds=None) as db:
        while db.sweep():
            pass
        for table in TABLES:
            assert folded(db, table) == items_of(db, table)


def killed_at_calls(
    folder: Path, seed: int, *, steps: int, sync: str, every: int = 1
) -> dict[str, int]:
    """See `tests.store.killing`; returns what it counted."""
    # Where a sync costs nothing: what a process leaves does not depend on the disk.
    with TemporaryDirectory(dir=memory_folder() or folder) as work:
        arguments = ["-m", "tests.store.killing", work, str(seed), str(steps), sync, str(every)]
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, check=False, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_every_call_of_lmdb_exactly_what_was_committed_is_there(
    tmp_path: Path, every: int
) -> None:
    """F17: in work of every kind, from the opening of a new store to the closing of an old one; of
    the calls, one in so many, others each time."""
    seed = seed_of("store-calls")
    counted = killed_at_calls(tmp_path, seed, steps=0, sync="full", every=every)
    print(f"store-calls: {counted}")
    assert counted["kills"] > 3000 / every
    assert counted["commits"] > 100


@pytest.mark.soak
@pytest.mark.parametrize("sync", ["full", "none"])
def test_killed_at_every_call_of_long_work_exactly_what_was_committed_is_there(
    tmp_path: Path, sync: str
) -> None:
    """F17: for whatever work, and where writes do not wait for the disk."""
    rng = random.Random(seed_of("store-calls-long"))
    for _ in range(4):
        seed = rng.getrandbits(32)
        print(f"store-calls-long: work of seed {seed}")
        killed_at_calls(tmp_path, seed, steps=120, sync=sync)
    killed_at_calls(tmp_path, rng.getrandbits(32), steps=0, sync=sync)


@pytest.mark.slow
def test_killed_at_random_and_started_again_data_and_stream_agree(tmp_path: Path) -> None:
    """F17: what was acknowledged is there."""
    rng = random.Random(seed_of("store-crash"))
    for life in range(8):
        with Child(sys.executable, PROGRAM, tmp_path, rng.getrandbits(32)) as process:
            wanted = rng.randrange(1, 60)
            while line := process.line():
                if int(line) >= wanted:
                    process.kill()
            assert process.code == -signal.SIGKILL, f"life {life}: {process.tail()}"
        check(tmp_path)
