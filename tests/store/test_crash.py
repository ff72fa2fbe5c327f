"""Data and stream agree, whenever the process was killed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import store
from penstock.store import Item, Store
from tests.seeds import seed_of
from tests.store.crash import TABLES

PROGRAM = str(Path(__file__).with_name("crash.py"))


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


@pytest.mark.slow
def test_killed_at_every_call_of_lmdb_data_and_stream_agree(tmp_path: Path) -> None:
    """F17: the same writes, ended at every seventh call from the first to the last."""
    seed = seed_of("store-calls")
    call, killed = 1 + seed % 7, True
    while killed:
        path = tmp_path / str(call)
        arguments = [sys.executable, PROGRAM, str(path), str(seed), str(call)]
        killed = subprocess.run(arguments, check=False, capture_output=True).returncode == -9
        check(path)
        call += 7
    assert call > 50


@pytest.mark.slow
def test_killed_at_random_and_started_again_data_and_stream_agree(tmp_path: Path) -> None:
    """F17: what was acknowledged is there."""
    rng = random.Random(seed_of("store-crash"))
    for life in range(8):
        arguments = [sys.executable, PROGRAM, str(tmp_path), str(rng.getrandbits(32)), "0"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            wanted, acknowledged = rng.randrange(1, 60), 0
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged >= wanted:
                    process.kill()
        assert acknowledged >= wanted, f"life {life} ended by itself"
        check(tmp_path)
