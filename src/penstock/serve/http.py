"""HTTP beside the streams: /health, /ready and /metrics, for people, load balancers and Prometheus;
/snapshot, current rows for who rebuilds with nothing but HTTP; capture subscriptions, history and
documents as they were, below /rest (captures/web.py); and tables for zero-cache, below /changes.

Each answer is made when it is asked for. On loopback it is served to requests that name a loopback
host: a page in a browser cannot reach it under a name of its own. /health and /ready are open to
whoever reaches the address, and tell them how the service is and no more; /metrics and all of
/health need the verb `admin`, /snapshot has what its reader may see, and POST /ticket gives a
one-time ticket to who is known.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError, RequestError, UnauthenticatedError
from penstock.serve.access import Access, AccessConfig, Principal
from penstock.serve.access.actions import Need, action, refusal
from penstock.serve.access.web import (
    TICKET_PATH,
    Guard,
    admitted,
    endpoint_of,
    presented_by,
    principal_of,
)
from penstock.serve.addresses import is_loopback, refuse_open
from penstock.serve.captures.graphql.routes import PATH as GRAPHQL_PATH
from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.web import routes, says_later
from penstock.serve.config import ServeConfig
from penstock.serve.health import Health
from penstock.serve.listen import HttpServer, StreamLimits, listen
from penstock.serve.snapshot import RowBatch, row_batches
from penstock.serve.zero.request import PATHS
from penstock.serve.zero.service import ZeroService
from penstock.serve.zero.web import zero_routes
from penstock.subscribe import Criteria
from penstock.subscribe.current import CurrentState, row_json
from penstock.subscribe.scope import Scope as Visible
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
    access: Access | None = None
    """Who may ask for metrics and rows; None: anybody."""
    batch_bytes_max: Callable[[], int] = lambda: 1 << 20
    """Of current rows that are read at once."""
    captures: CaptureService | None = None
    """Capture subscriptions, below /rest."""
    graphql: GraphqlRoutes | None = None
    """The same over GraphQL, at /graphql."""
    zero: ZeroService | None = None
    """Tables for zero-cache, below /changes."""


class _Endpoints:
    """What is answered here itself, and who may ask."""

    def __init__(self, told: Told) -> None:
        self.access = told.access or Access(AccessConfig())
        self._told = told

    def require(self, connection: HTTPConnection) -> Principal:
        """Who asks, if they may ask at this route."""
        principal = principal_of(connection)
        presented = presented_by(connection.scope)
        needs = action(route_name(connection)).needs
        self.access.require(principal, needs, presented, endpoint_of(connection.scope))
        return principal

    def captured_for(self, connection: HTTPConnection, opening: Mapping[str, Any]) -> Visible:
        """What a subscription may see."""
        admitted(connection, opening)
        return self.require(connection).scope

    async def health(self, request: Request) -> Response:
        """All of it to whoever operates the service, and to others only how it is: the rest has
        names of tokens, collections and columns."""
        found = await self._told.health()
        said: Any = {"status": found.status}
        if refusal(Need.ADMIN, principal_of(request).scope) is None:
            said = found
        body = msgspec.json.format(msgspec.json.encode(said), indent=2)
        return Response(body, status_code=found.http_status, media_type="application/json")

    async def ready(self, _: Request) -> Response:
        if await self._told.ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready: capture does not answer\n", status_code=503)

    async def metrics(self, request: Request) -> Response:
        self.require(request)
        return Response(await self._told.metrics(), media_type=METRICS_TYPE)

    async def snapshot(self, request: Request) -> Response:
        criteria = Criteria(
            collections=frozenset(request.query_params.getlist("collection")),
            scope=self.require(request).scope,
        )
        rows = row_batches(self._told.current, criteria, bytes_max=self._told.batch_bytes_max())
        try:
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

    async def ticket(self, request: Request) -> Response:
        if presented_by(request.scope).ticket is not None:
            # Else whoever saw one in an address could live on for ever by the next.
            self.access.refuse(presented_by(request.scope), endpoint_of(request.scope))
            raise UnauthenticatedError
        given, seconds = self.access.ticket(principal_of(request))
        said = {"ticket": given, "expiresInSeconds": seconds}
        return Response(
            msgspec.json.encode(said),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )


def route_name(connection: HTTPConnection) -> str:
    """The name of the route that answers, which is that of its line in the table of actions."""
    routes: list[Any] = connection.scope["app"].routes
    for route in routes:
        if route.matches(connection.scope)[0] is Match.FULL:
            return str(route.name)
    return ""


def _middleware(config: ServeConfig, told: Told, access: Access) -> list[Middleware]:
    """The door, and what stands before it: the first is asked first."""
    guard = Middleware(
        Guard,
        access=access,
        open_paths=(config.health_path, config.ready_path),
        late=lambda path: path == GRAPHQL_PATH or says_later(path),
        token_parameters={PATHS: told.zero.config.token_parameters} if told.zero else {},
    )
    found = [guard]
    if access.config.origins:
        # Before the door: a browser asks whether it may ask without saying who it is.
        allowed = Middleware(
            CORSMiddleware,
            allow_origins=access.config.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "last-event-id"],
            allow_credentials=True,  # the cookie of a stream that comes back
        )
        found.insert(0, allowed)
    if config.http == "off" or is_loopback(config.http):
        found.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS))
    return found


def application(config: ServeConfig, told: Told) -> Starlette:
    """The endpoints at the paths of `config`."""
    ours = _Endpoints(told)
    found: list[BaseRoute] = [
        Route(TICKET_PATH, ours.ticket, methods=["POST"], name="http ticket"),
        Route(SNAPSHOT_PATH, ours.snapshot, methods=["GET"], name="http snapshot"),
        Route(config.health_path, ours.health, methods=["GET"], name="http health"),
        Route(config.ready_path, ours.ready, methods=["GET"], name="http ready"),
        Route(config.metrics_path, ours.metrics, methods=["GET"], name="http metrics"),
    ]
    if told.captures is not None:
        found += routes(told.captures, scope_of=ours.captured_for)
    if told.graphql is not None:
        found += told.graphql.routes(scope_of=ours.captured_for)
    if told.zero is not None:
        found += zero_routes(told.zero, ours.require)
    for route in found:
        action(getattr(route, "name", ""))  # whatever has no line there is not served
    return Starlette(routes=found, middleware=_middleware(config, told, ours.access))


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

    Raises ConfigError if the port is taken, the files of [serve.tls] cannot be read, or others
    could reach what nobody guards.
    """
    guarded = told.access is not None and told.access.is_guarded
    refuse_open("http", config.http, tls=config.tls is not None, guarded=guarded)
    captures = config.captures
    streams = StreamLimits(
        message_bytes_max=captures.message_bytes_max, liveness_seconds=captures.liveness_timeout
    )
    return await listen(
        application(config, told),
        config.http,
        connections_max=_CONCURRENT_MAX
        + (captures.subscriptions_max if told.captures else 0)
        + (told.zero.config.connections_max if told.zero else 0),
        of_one_address=config.connections.of_one_address,
        advice="set http under [serve] to another address",
        tls=config.tls,
        streams=streams if told.captures or told.zero else None,
        request_seconds=config.request_timeout,
    )
