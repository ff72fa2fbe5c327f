"""HTTP beside the streams: /health, /ready and /metrics, for people, load balancers and Prometheus;
and /snapshot, current rows for who rebuilds with nothing but HTTP.

Each answer is made when it is asked for. It is served on loopback only, and to requests that name
a loopback host: a page in a browser cannot reach it under a name of its own.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError, RequestError
from penstock.serve.config import ServeConfig
from penstock.serve.health import Health
from penstock.serve.listen import HttpServer, listen
from penstock.serve.snapshot import RowBatch, row_batches
from penstock.subscribe import Criteria
from penstock.subscribe.current import CurrentState, row_json
from penstock.telemetry import EVENTS_PUBLISHED, PUBLISH_ERRORS

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/"""
LINES_TYPE: Final = "application/x-ndjson"
SNAPSHOT_PATH: Final = "/snapshot"
_HOSTS: Final = ["localhost", "127.0.0.1", "[::1]"]
_CONCURRENT_MAX: Final = 64


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoints tell, asked anew for every request."""

    health: Callable[[], Awaitable[Health]]
    ready: Callable[[], Awaitable[bool]]
    """Whether readers are served and changes are captured."""
    metrics: Callable[[], Awaitable[bytes]]
    """In the text format of Prometheus."""
    current: CurrentState | None = None
    """Whoever keeps current rows."""
    batch_bytes_max: Callable[[], int] = lambda: 1 << 20
    """Of current rows that are read at once."""


def application(config: ServeConfig, told: Told) -> Starlette:
    """The endpoints at the paths of `config`."""

    async def health(_: Request) -> Response:
        found = await told.health()
        body = msgspec.json.format(msgspec.json.encode(found), indent=2)
        return Response(body, status_code=found.http_status, media_type="application/json")

    async def ready(_: Request) -> Response:
        if await told.ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready: capture does not answer\n", status_code=503)

    async def metrics(_: Request) -> Response:
        return Response(await told.metrics(), media_type=METRICS_TYPE)

    async def snapshot(request: Request) -> Response:
        criteria = Criteria(collections=frozenset(request.query_params.getlist("collection")))
        rows = row_batches(told.current, criteria, bytes_max=told.batch_bytes_max())
        try:
            # What cannot be answered is known before the first row.
            first = await anext(rows)
        except PenstockError as error:
            PUBLISH_ERRORS.labels("http", error.code).inc()
            said = {"error": {"code": error.code, "message": str(error)}}
            return Response(
                msgspec.json.encode(said),
                status_code=409 if isinstance(error, RequestError) else 503,
                media_type="application/json",
            )
        return _RowsResponse(first, rows)

    return Starlette(
        routes=[
            Route(SNAPSHOT_PATH, snapshot, methods=["GET"]),
            Route(config.health_path, health, methods=["GET"]),
            Route(config.ready_path, ready, methods=["GET"]),
            Route(config.metrics_path, metrics, methods=["GET"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)],
    )


class _RowsResponse(StreamingResponse):
    """Lets go of the rows however it ends, also for who went away before the first line."""

    def __init__(self, first: RowBatch, rows: AsyncGenerator[RowBatch]) -> None:
        super().__init__(_lines(first, rows), media_type=LINES_TYPE)
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._rows):
            await super().__call__(scope, receive, send)


async def _lines(first: RowBatch, rest: AsyncGenerator[RowBatch]) -> AsyncGenerator[bytes]:
    """A row a line; the last line is the marker to follow from, and without it nothing is whole."""
    async with contextlib.aclosing(rest):
        batch: RowBatch | None = first
        while batch is not None:
            if batch.progress:
                yield msgspec.json.encode({"progress": batch.progress}) + b"\n"
            else:
                yield b"".join(row_json(row) + b"\n" for row in batch.rows)
                EVENTS_PUBLISHED.labels("http").inc(len(batch.rows))
            batch = await anext(rest, None)


async def serve_http(config: ServeConfig, told: Told) -> HttpServer:
    """Serve the endpoints on `config.http` until `stop`.

    Raises ConfigError if the port is taken.
    """
    return await listen(
        application(config, told),
        config.http,
        connections_max=_CONCURRENT_MAX,
        advice="set http under [serve] to another address",
    )
