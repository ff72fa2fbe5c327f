"""The child that `DurableLogContract` kills: it appends a known history, and says what is durable.

python -m penstock.testing.contracts.crash_child MODULE:CLASS FOLDER SEED
"""

import asyncio
import importlib
import os
import random
import sys
from pathlib import Path

from penstock.ports import ChangeLog
from penstock.testing.contracts.durable import SOURCES, DurableLogContract, steps_of


async def _append(log: ChangeLog, source: str, seed: int) -> None:
    """Append commits from where the log stands, some of them in one batch, for ever."""
    random_ = random.Random(f"{source}{seed}")
    number = int(await log.position(source) or 0) + 1
    while True:
        last = number + random_.choice([0, 0, 0, 2])
        steps = [step for one in range(number, last + 1) for step in steps_of(source, one)]
        if random_.random() < 0.3:
            await log.append(steps)
        else:
            for step in steps:
                await log.append([step])
        # One write a line, straight to the pipe: a kill cannot hold back what was said.
        os.write(1, f"{source} {last}\n".encode())
        number = last + 1


async def _child(contract: DurableLogContract, folder: Path, seed: int) -> None:
    async with contract.reopened(folder) as log:
        await asyncio.gather(*(_append(log, source, seed) for source in SOURCES))


def main() -> None:
    """The child: append until killed."""
    named, folder, seed = sys.argv[1:]
    module, _, name = named.partition(":")
    contract = getattr(importlib.import_module(module), name)()
    asyncio.run(_child(contract, Path(folder), int(seed)))


if __name__ == "__main__":
    main()
