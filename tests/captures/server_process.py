"""Serve the captures of a log that another process writes: `PATH ADDRESS`.

Prints the address it listens on once it serves.
"""

import asyncio
import sys
from pathlib import Path

from penstock.log.lmdb import LmdbLogReader
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from tests.captures.grpc_client import served


async def serve(path: Path, address: str) -> None:
    config = CapturesConfig(maintenance_interval=0.05)
    async with (
        await LmdbLogReader.open(path) as log,
        CaptureService(log, lambda: config).running() as service,
        served(service, grpc=address) as server,
    ):
        print(server.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
