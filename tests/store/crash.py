"""A process that writes to a store until it is killed.

    python crash.py PATH SEED

It prints the number of each transaction that was acknowledged.
"""

import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

from penstock import store
from penstock.store import KeyType, Retention, Store, StreamViewType

TABLES = ("short", "long")
FAR = 1_600_000_000
"""Seconds long ago: what expires then is swept at once."""


def prepare(db: Store) -> None:
    """Two tables with streams, one of them with keys that LMDB cannot hold."""
    for name in TABLES:
        db.create_table(name).partition_key("id", KeyType.STRING).ttl("until").stream(
            StreamViewType.NEW_AND_OLD_IMAGES
        ).retention(Retention(records_max=100_000)).execute()


def key(table: str, number: int) -> str:
    """The key of an item; long ones share all but their end."""
    return f"{number}" if table == "short" else "x" * 900 + f"{number}"


def step(db: Store, rng: random.Random, number: int) -> None:
    """One transaction: puts, deletes and updates of both tables, or a sweep, or pruning."""
    chance = rng.random()
    if chance < 0.1:
        db.sweep()
        return
    with db.transact() as transaction:
        for _ in range(rng.randint(1, 4)):
            table = rng.choice(TABLES)
            name = {"id": key(table, rng.randrange(6))}
            if rng.random() < 0.3:
                transaction.delete(table, name)
            else:
                item: dict[str, Any] = {**name, "n": number, "data": "d" * rng.randrange(2000)}
                if rng.random() < 0.2:
                    item["until"] = FAR
                transaction.put(table, item)


def main(path: Path, seed: int) -> None:
    """Write; say what was acknowledged."""
    rng = random.Random(seed)
    with store.open(path, sweep_seconds=None) as db:
        if not db.list_tables():
            prepare(db)
        for number in count(1):
            step(db, rng, number)
            print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
