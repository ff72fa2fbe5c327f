"""A service for benchmarks: a process of its own that serves a log over Flight.

As in a service that users run, pipelines tell it where they stand, and it writes that down.
"""

import asyncio
import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.log import LmdbLogReader
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook


@contextmanager
def serving(log: Path) -> Generator[str]:
    """Where the log is served meanwhile."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    service = processes.Process(target=_serve, args=(log, theirs))
    service.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        service.join()


def _serve(log: Path, pipe: Connection) -> None:
    """Serve the log until the pipe says stop."""
    reader = LmdbLogReader(log)
    consumers = log.with_name(f"{log.name}-consumers")
    book = PipelineBook(consumers, reader, hold_seconds=3600.0, hold_bytes=0)
    server = FlightServer(reader, book=book)
    server.start()
    pipe.send(server.address)
    pipe.recv()
    server.stop()
    book.close()
    asyncio.run(reader.close())
