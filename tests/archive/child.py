"""A service in small, to be killed: child.py FOLDER SEED.

Appends a history that is known in advance, archives it in a thread, and trims all that it may.
"""

import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path

from penstock.archive import writing
from penstock.archive.config import ArchiveConfig
from penstock.archive.writing import Archiver
from penstock.log import LmdbLog, LogConfig
from penstock.testing.contracts.durable import SOURCES, steps_of

RETENTION_EVENTS = 60
WAITING_MAX = 200
"""Entries."""


async def append(log: LmdbLog, work: Archiver, source: str) -> None:
    """Append commits from where the log stands, for ever."""
    number = int(await log.position(source) or 0)
    while True:
        number += 1
        for step in steps_of(source, number):
            await log.append([step])
        # The archive is what is tested: it keeps up with what is appended.
        await asyncio.to_thread(wait_for, work, log.bounds_now().head - WAITING_MAX)


def wait_for(work: Archiver, until: int) -> None:
    """Wait until so much is archived."""
    while work.archived is None or work.archived.until < until:
        time.sleep(0.001)


async def run(folder: Path, seed: int) -> None:
    """Until killed; a line for each step that archived something."""
    of = random.Random(seed)
    writing._GROUP_BYTES = 20_000  # type: ignore[misc]  # pyright: ignore[reportPrivateUsage]
    config = LogConfig(path=folder / "log", free_bytes_min=0, retention_events=RETENTION_EVENTS)
    async with LmdbLog(config, trims=False) as log:
        archive = ArchiveConfig(range_age=0.001, range_bytes=of.choice([5_000, 100_000]))
        work = Archiver(log, archive, str(folder / "archive"))
        log.held_by(work.hold)
        log.begin_trimming()

        def forever() -> None:
            while True:
                if work.step():
                    os.write(1, b"archived\n")

        threading.Thread(target=forever, daemon=True).start()
        await asyncio.gather(*(append(log, work, source) for source in SOURCES))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
