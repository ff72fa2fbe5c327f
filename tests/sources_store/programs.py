"""Processes for a test to kill with -9 at any moment.

python programs.py write STORE SEED      write to a store, transaction after transaction
python programs.py capture STORE LOG     capture it into a log
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from penstock import store
from penstock.capture.pump import PumpProgress, pump
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.store import KeyType, Retention, Store
from tests.sources_store.support import source_of
from tests.store.support import BOTH

TABLES = ("a", "b", "c")
KEYS = 40
OPTIONS = {"start": "snapshot", "batch_events_max": 20, "snapshot_chunk_documents": 15}


def say(word: object) -> None:
    """One write a line, straight to the pipe: a kill cannot hold back what was said."""
    os.write(1, f"{word}\n".encode())


def prepare(db: Store) -> None:
    """Tables with some items that no stream tells of, and then streams."""
    for table in TABLES:
        db.create_table(table).partition_key("id", KeyType.NUMBER).execute()
        db.write_batch(puts=[(table, {"id": number, "n": -1}) for number in range(KEYS)])
        db.enable_stream(table, BOTH, retention=Retention(records_max=1_000_000))


def write(path: Path, rng: random.Random) -> None:
    """Transactions of up to sixty changes; most are small."""
    with store.open(path, sweep_seconds=None) as db:
        number = 0
        while True:
            number += 1
            with db.transact() as transaction:
                for _ in range(rng.choice([1, 2, 5, 60])):
                    table, key = rng.choice(TABLES), {"id": rng.randrange(KEYS)}
                    if rng.random() < 0.3:
                        transaction.delete(table, key)
                    else:
                        transaction.put(table, {**key, "n": rng.randrange(1000)})
            say(number)


async def capture(path: Path, log_path: Path) -> None:
    """Capture for ever; says how much is durable whenever that has changed."""
    log = LmdbLog(LogConfig(path=log_path, free_bytes_min=0))
    progress, told = PumpProgress(), 0
    pumping = asyncio.ensure_future(pump(source_of(path, **OPTIONS), log, progress=progress))
    while not pumping.done():
        if progress.appended != told:
            told = progress.appended
            say(told)
        await asyncio.wait({pumping}, timeout=0.005)
    pumping.result()


if __name__ == "__main__":
    what, path, third = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if what == "write":
        write(path, random.Random(int(third)))
    else:
        asyncio.run(capture(path, Path(third)))
