"""Serve the shards of a log that another process writes: `PATH ADDRESS`.

Prints the address it listens on once it serves.
"""

import asyncio
import sys
from pathlib import Path

from penstock.log.lmdb import LmdbLogReader
from tests.zero.endpoint import serving


async def serve(path: Path, address: str) -> None:
    async with await LmdbLogReader.open(path) as log, serving(log, path, address) as served:
        print(served.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
