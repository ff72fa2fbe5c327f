"""A process for a test to kill with -9 at any moment.

python programs.py URL LOG      capture an endpoint into a log
"""

import asyncio
import os
import sys
from pathlib import Path

from penstock.capture.pump import PumpProgress, pump
from penstock.errors import SourceUnavailableError
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from tests.sources_zero.support import source


async def capture(url: str, path: Path) -> None:
    """Capture for ever; says how much is durable whenever that has changed."""
    log = LmdbLog(LogConfig(path=path, free_bytes_min=0))
    while True:
        progress, told = PumpProgress(), 0
        pumping = asyncio.ensure_future(pump(source(url), log, progress=progress))
        while not pumping.done():
            moved = asyncio.ensure_future(progress.moved.wait())
            await asyncio.wait({pumping, moved}, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
            progress.moved.clear()
            if progress.appended != told:
                told = progress.appended
                # Straight to the pipe: a kill cannot hold back what was said.
                os.write(1, f"{told}\n".encode())
        try:
            await pumping
        except SourceUnavailableError:
            continue  # as who captures would, from the durable position


if __name__ == "__main__":
    asyncio.run(capture(sys.argv[1], Path(sys.argv[2])))
