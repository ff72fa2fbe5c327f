"""A process that makes and drops indexes and writes, and kills itself at its n-th call of LMDB.

python index_crash.py PATH SEED CALL
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import kv, store
from penstock.store import KeyType, Store, indexes
from penstock.store.layout import Layout
from penstock.store.longkeys import LongKeys

ITEMS = 40
FAR = 1_600_000_000


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


def prepare(path: Path) -> None:
    """A table with items, some of whose keys are longer than LMDB's."""
    with store.open(path, sweep_seconds=None) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).ttl("until").execute()
        rng = random.Random(0)
        for number in range(ITEMS):
            put(db, rng, number)


def put(db: Store, rng: random.Random, number: int) -> None:
    """An item: in both indexes, in one, or in none."""
    item = {"id": "x" * rng.choice((0, 900)) + f"{number}", "of": rng.choice(("a", "b", 1))}
    if rng.random() < 0.7:
        item["n"] = rng.randrange(3)
    if rng.random() < 0.1:
        item["until"] = FAR
    db.put("t", item)


def make(db: Store, name: str) -> None:
    """One of two indexes."""
    index = db.create_index("t", name).partition_key("of", KeyType.STRING)
    if name == "sorted":
        index.sort_key("n", KeyType.NUMBER)
    rng = random.Random(name)
    # Writes come between the steps.
    index.between(lambda: put(db, rng, rng.randrange(ITEMS))).execute()


def main(path: Path, seed: int, call: int) -> None:
    """Until the end, or the call."""
    indexes.__dict__["_STEP_ITEMS"] = 7
    rng = random.Random(seed)
    with store.open(path, sweep_seconds=None) as db:
        die_at(call)
        for name in ("by", "sorted"):
            make(db, name)
            print(name, flush=True)
        for _ in range(8):
            with db.transact() as transaction:
                key = {"id": f"{rng.randrange(ITEMS)}"}
                transaction.delete("t", key)
                transaction.put("t", {**key, "of": "b", "n": rng.randrange(3)})
        db.drop_index("t", "by")
        print("dropped", flush=True)
        db.sweep()
        make(db, "by")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
