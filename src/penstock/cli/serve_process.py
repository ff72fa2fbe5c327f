"""The serve process: every protocol, over the log that another process writes."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from penstock.cli.config import Settings
from penstock.client.flight import PipelineReport
from penstock.ports import LogReader
from penstock.serve.consumers import consumers_path, published
from penstock.serve.flight import FlightServer, SyncLogReader
from penstock.serve.grpc import serve_grpc


class Addresses(Struct, frozen=True, kw_only=True):
    """Where a serve process listens, with the ports that it really got."""

    grpc: str
    flight: str


class ServedLog(LogReader, SyncLogReader, Protocol):
    """What the protocols read: gRPC from the loop, Flight from its own threads."""


async def serve(
    settings: Settings,
    log: ServedLog,
    *,
    stop: asyncio.Event,
    ready: Callable[[Addresses], None],
) -> None:
    """Serve `log` until `stop` is set; `ready` once every port is bound.

    Raises ConfigError if a port is taken; nothing is bound then.
    """
    async with published(consumers_path(settings.log.path)) as consumers:

        def on_report(report: PipelineReport) -> None:
            consumers.report(report.pipeline, "pipeline", report.sequence)

        flight = FlightServer(log, settings.serve.flight, on_report=on_report)
        async with await serve_grpc(log, settings.serve, consumers) as grpc:
            flight.start()
            try:
                ready(Addresses(grpc=grpc.address, flight=flight.address))
                await stop.wait()
            finally:
                # Waits for reads under way, which end at their next batch.
                await asyncio.to_thread(flight.stop)
