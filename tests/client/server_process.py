"""Serve a log that another process writes: `python -m tests.client.server_process PATH ADDRESS`.

Prints the address it listens on once it serves.
"""

import asyncio
import sys
from pathlib import Path

from penstock.log.lmdb import LmdbLogReader
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc


async def serve(path: Path, address: str) -> None:
    async with (
        await LmdbLogReader.open(path) as log,
        await serve_grpc(log, ServeConfig(grpc=address, batch_events_max=20)) as server,
    ):
        print(server.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
