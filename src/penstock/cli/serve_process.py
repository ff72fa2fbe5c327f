"""The serve process: every protocol, over the log that another process writes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

from msgspec import Struct

from penstock.cli.captured import captured_streams
from penstock.cli.config import Settings
from penstock.cli.live import Reloads
from penstock.cli.page import Page
from penstock.client.flight import PipelineReport
from penstock.ports import LogReader
from penstock.serve.consumers import consumers_path, published
from penstock.serve.flight import FlightServer, SyncLogReader
from penstock.serve.grpc import serve_grpc
from penstock.serve.http import serve_http
from penstock.state.keeper import StateKeeper, StateLog


class Addresses(Struct, frozen=True, kw_only=True):
    """Where a serve process listens, with the ports that it really got."""

    grpc: str
    flight: str
    http: str
    """`off` if it serves none."""
    dynamodb: str = "off"


class ServedLog(LogReader, SyncLogReader, StateLog, Protocol):
    """What is read here: by gRPC from the loop, by Flight and the state from their own threads."""


async def serve(
    settings: Settings,
    log: ServedLog,
    *,
    stop: asyncio.Event,
    ready: Callable[[Addresses], None],
    reloads: Reloads | None = None,
) -> None:
    """Serve `log` until `stop` is set; `ready` once every port is bound. What `reloads` tells holds
    for readers who connect from then on.

    Raises ConfigError if a port is taken; nothing is bound then.
    """
    started_at = time.time_ns() // 1_000_000
    async with AsyncExitStack() as stack:
        keeper = None
        if settings.state.enabled:
            keeper = await asyncio.to_thread(StateKeeper, log, settings.log.path, settings.state)
            keeper.start()
            # Waits for the write under way.
            stack.push_async_callback(asyncio.to_thread, keeper.close)
        consumers = await stack.enter_async_context(
            published(
                consumers_path(settings.log.path),
                current=None if keeper is None else keeper.status,
            )
        )

        def on_report(report: PipelineReport) -> None:
            consumers.report(report.pipeline, "pipeline", report.sequence)

        flight = FlightServer(log, settings.serve.flight, on_report=on_report, current=keeper)
        grpc = await stack.enter_async_context(
            await serve_grpc(log, settings.serve, consumers, current=keeper)
        )
        page = Page(settings, log, consumers, started_at=started_at, current=keeper)
        if reloads is not None:
            reloads.on_reload(lambda after: grpc.configure(after.serve))
            reloads.on_reload(lambda after: page.configure(after.serve))
        flight.start()
        # Waits for reads under way, which end at their next batch.
        stack.push_async_callback(asyncio.to_thread, flight.stop)
        dynamodb = "off"
        if settings.serve.dynamodb is not None:
            captured = captured_streams(settings, settings.serve.dynamodb, log)
            dynamodb = await stack.enter_async_context(captured)
        http = "off"
        if settings.serve.http != "off":
            server = await stack.enter_async_context(await serve_http(settings.serve, page.told()))
            http = server.address
        ready(Addresses(grpc=grpc.address, flight=flight.address, http=http, dynamodb=dynamodb))
        await stop.wait()
