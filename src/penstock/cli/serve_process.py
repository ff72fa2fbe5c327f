"""The serve process: every protocol, over the log that another process writes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

import structlog
from msgspec import Struct, structs

from penstock.cli.captured import captured_streams
from penstock.cli.config import Settings
from penstock.cli.images import remarks
from penstock.cli.live import Reloads
from penstock.cli.page import Page
from penstock.client.flight import PipelineReport
from penstock.errors import ConfigError
from penstock.log.tiered import TieredLog
from penstock.ports import LogReader
from penstock.serve.access import Access, TlsConfig
from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.serve.captures.grpc import CaptureServicer
from penstock.serve.captures.service import CaptureService
from penstock.serve.consumers import consumers_path, published
from penstock.serve.flight import FlightServer, SyncLogReader
from penstock.serve.gate import gate_limits
from penstock.serve.grpc import serve_grpc
from penstock.serve.http import serve_http
from penstock.serve.listen import HttpServer
from penstock.serve.pipelines import PipelineBook
from penstock.serve.zero.service import ZeroService
from penstock.state.keeper import StateKeeper, StateLog
from penstock.subscribe.scope import EVERYTHING
from penstock.telemetry import FILES_UNUSED

logger = structlog.get_logger(__name__)


class Addresses(Struct, frozen=True, kw_only=True):
    """Where a serve process listens, with the ports that it really got."""

    grpc: str
    flight: str
    http: str
    """`off` if it serves none."""
    dynamodb: str = "off"


class ServedLog(LogReader, SyncLogReader, StateLog, Protocol):
    """What is read here: by gRPC from the loop, by Flight and the state from their own threads."""


def renewed(server: HttpServer, tls: TlsConfig | None) -> None:
    """Have a server show the certificate that the files hold now, as gRPC does by itself."""
    assert tls is not None
    try:
        server.renew(tls)
        FILES_UNUSED.labels("serve.tls").set(0)
    except ConfigError as error:
        FILES_UNUSED.labels("serve.tls").set(1)
        logger.error("the changed certificate is not used", reason=str(error))  # noqa: TRY400


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
        zero: ZeroService | None = None
        book = await asyncio.to_thread(
            PipelineBook,
            consumers_path(settings.log.path),
            log,
            hold_seconds=settings.serve.pipelines.hold,
            hold_bytes=settings.serve.pipelines.hold_bytes,
            log_bytes=lambda: (settings.log.path / "data.mdb").stat().st_blocks * 512,
        )
        stack.push_async_callback(asyncio.to_thread, book.close)
        pipelines = partial(book.status, EVERYTHING)
        consumers = await stack.enter_async_context(
            published(
                consumers_path(settings.log.path),
                current=None if keeper is None else keeper.status,
                shards=lambda: () if zero is None else zero.shards(),
                pipelines=pipelines,
            )
        )

        def on_report(report: PipelineReport, who: str) -> None:
            consumers.report(report.pipeline, "pipeline", report.sequence, who)

        access = Access(settings.access)
        stack.callback(access.close)
        flight = FlightServer(
            log,
            settings.serve.flight,
            on_report=on_report,
            current=keeper,
            access=access,
            tls=settings.serve.tls,
            book=book,
            limits=gate_limits(settings.serve),
        )
        captures = None
        live = settings.serve.captures
        if live.enabled:
            past = None
            if settings.archive.path is not None:
                past = TieredLog(log, settings.archive.path, folder=settings.log.path)
                stack.push_async_callback(past.close)
            captures = CaptureService(log, lambda: live, rows=keeper, past=past)
        beside = [] if captures is None else [CaptureServicer(captures)]
        grpc = await stack.enter_async_context(
            await serve_grpc(
                log, settings.serve, consumers, current=keeper, access=access, beside=beside
            )
        )
        if settings.serve.zero is not None:
            assert keeper is not None  # the configuration is refused otherwise
            for remark in remarks(settings):
                logger.warning("zero.looked_up", detail=remark)
            zero = await stack.enter_async_context(
                ZeroService.running(log, keeper, settings.log.path, settings.serve.zero)
            )
        page = Page(
            settings,
            log,
            consumers,
            started_at=started_at,
            current=keeper,
            access=access,
            captures=captures,
            zero=zero,
            pipelines=pipelines,
        )

        def take_captures(after: Settings) -> None:
            nonlocal live
            live = after.serve.captures

        if reloads is not None:
            reloads.on_reload(take_captures)
            reloads.on_reload(lambda after: grpc.configure(after.serve))
            reloads.on_reload(page.configure)
        flight.start()
        # Waits for reads under way, which end at their next batch.
        stack.push_async_callback(asyncio.to_thread, flight.stop)

        def renewing(server: HttpServer) -> None:
            if reloads is not None and settings.serve.tls is not None:
                reloads.on_reload(lambda _: renewed(server, settings.serve.tls))

        dynamodb = "off"
        if settings.serve.dynamodb is not None:
            captured = captured_streams(settings, settings.serve.dynamodb, log, access, renewing)
            dynamodb = await stack.enter_async_context(captured)
        http = "off"
        if settings.serve.http != "off":
            told = page.told()
            if captures is not None and captures.config.graphql.enabled:
                graphql = GraphqlRoutes(captures, health=told.health)
                told = structs.replace(told, graphql=graphql)
                if reloads is not None:
                    reloads.on_reload(lambda after: graphql.configure(after.serve.captures))
            server = await stack.enter_async_context(await serve_http(settings.serve, told))
            http = server.address
            renewing(server)
        # Both end before the servers do: who is connected is told why.
        if zero is not None:
            stack.push_async_callback(zero.stop)
        if captures is not None:
            await stack.enter_async_context(captures.running())
        ready(Addresses(grpc=grpc.address, flight=flight.address, http=http, dynamodb=dynamodb))
        await stop.wait()
