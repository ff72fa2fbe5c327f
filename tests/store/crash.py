"""A process that writes to a store until it is killed, or kills itself at its n-th call of LMDB.

    python crash.py PATH SEED CALL

It prints the number of each transaction that was acknowledged. CALL is 0 for never.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import kv, store
from penstock.store import KeyType, Retention, Store, StreamViewType
from penstock.store.layout import Layout
from penstock.store.longkeys import LongKeys

TABLES = ("short", "long")
TRANSACTIONS = 12
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


def die_at(call: int) -> None:
    """Kill -9 ourselves at the n-th call by which the store reaches LMDB."""
    left = [call]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call_(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call_

    for owner in (Layout, LongKeys, kv.Env):
        for name, function in list(vars(owner).items()):
            if callable(function) and not name.startswith("__"):
                setattr(owner, name, counted(function))


def main(path: Path, seed: int, call: int) -> None:
    """Write; say what was acknowledged."""
    rng = random.Random(seed)
    with store.open(path, sweep_seconds=None) as db:
        if not db.list_tables():
            prepare(db)
        if call:
            die_at(call)
        number = 0
        while call == 0 or number < TRANSACTIONS:
            number += 1
            step(db, rng, number)
            print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
