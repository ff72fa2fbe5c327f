"""GraphQL: subscriptions over WebSocket, queries over POST."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from penstock.capture.gaps import GapWatch
from penstock.errors import PenstockError, RequestError, ServiceBusyError
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.graphql.executing import RefusedError, execute
from penstock.serve.captures.graphql.following import PROTOCOL, Client
from penstock.serve.captures.graphql.inferring import shapes_of
from penstock.serve.captures.graphql.messages import SUBPROTOCOL, operation_of
from penstock.serve.captures.graphql.queries import Facts
from penstock.serve.captures.graphql.schema import CaptureSchema, Schemas
from penstock.serve.captures.graphql.socket import GraphqlSocket
from penstock.serve.captures.protocol import Close
from penstock.serve.captures.said import error_said, http_status
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import ScopeOf
from penstock.serve.health import Health
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.telemetry import PUBLISH_ERRORS

log = structlog.get_logger(__name__)

_PAGES_MAX: Final = 4
TYPE: Final = "application/json"


class GraphqlEndpoint:
    """The schema there is, and who is connected."""

    def __init__(self, facts: Facts, schemas: Schemas) -> None:
        self._facts = facts
        self._service = facts.service
        self._schemas = schemas
        self._open = 0
        self._reloading: asyncio.Task[None] | None = None

    async def schema(self, scope: Scope) -> CaptureSchema:
        """What is served to who connects now."""
        return await self._schemas.of(scope)

    def configure(self, config: CapturesConfig) -> None:
        """Make the types anew, of `config` and of what the log holds now; who is connected keeps
        those that there were, and so does everybody if it fails."""
        if self._reloading is not None:
            self._reloading.cancel()
        self._reloading = asyncio.create_task(self._reload(config))

    async def reloaded(self) -> None:
        """Wait until the types are as `configure` last asked for, or it is said why not."""
        while self._reloading is not None and not self._reloading.done():
            await asyncio.wait({self._reloading})

    async def _reload(self, config: CapturesConfig) -> None:
        try:
            self._schemas = await _schemas(self._facts, config)
        except Exception as error:
            # Nobody waits for this task, and the types there are go on.
            code = error.code if isinstance(error, PenstockError) else type(error).__name__
            log.error("graphql types are as before", code=code)  # noqa: TRY400

    async def follow(self, socket: WebSocket, scope_of: ScopeOf) -> None:
        """Serve a socket to its end; `scope_of` is asked what whoever connects may see."""
        most = self._service.config.subscriptions_max
        if self._open > most:
            error = ServiceBusyError(
                readers_max=most, setting="subscriptions_max under [serve.captures]"
            )
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket["subprotocols"] else None)
            await socket.close(Close.BUSY, "Try again later")
            return
        self._open += 1
        try:
            await GraphqlSocket(socket, self._service, self.schema, scope_of).run()
        finally:
            self._open -= 1

    async def answer(self, request: Request, scope_of: ScopeOf) -> Response:
        """A query; only as JSON, which no page of another origin can send unasked."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != TYPE:
            return Response(status_code=415)
        config = self._service.config
        body = await _body(request, most=config.message_bytes_max)
        if body is None:
            return Response(status_code=413)
        try:
            client = Client(service=self._service, scope=scope_of(request, {}))
            operation = operation_of(_json(body))
        except PenstockError as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            return _refusal(error)
        schema = await self.schema(client.scope)
        results = execute(schema, operation, client, config.graphql, may_subscribe=False)
        try:
            async with aclosing(results):
                return _response(await anext(results))
        except RefusedError as refused:
            return _response({"errors": refused.errors}, status=400)


async def graphql_endpoint(
    service: CaptureService,
    *,
    health: Callable[[], Awaitable[Health]] | None = None,
) -> GraphqlEndpoint:
    """The endpoint, with the types that its log holds now."""
    facts = Facts(
        service=service,
        gaps=GapWatch(service.log),
        reading_gaps=asyncio.Lock(),
        making_pages=asyncio.Semaphore(_PAGES_MAX),
        beside=ThreadPoolExecutor(1, thread_name_prefix="graphql"),
        health=health,
    )
    return GraphqlEndpoint(facts, await _schemas(facts, service.config))


async def _schemas(facts: Facts, config: CapturesConfig) -> Schemas:
    shapes = await shapes_of(
        facts.service.log,
        config.types,
        entries_max=config.graphql.infer_entries,
        collections_max=config.graphql.types_max,
    )
    made = Schemas(facts, shapes)
    await made.of(EVERYTHING)
    return made


async def _body(request: Request, *, most: int) -> bytes | None:
    """None if it is larger."""
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > most:
            return None
    return found


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise RequestError("the body is no JSON. Nothing was sent.") from None


def _refusal(error: PenstockError) -> Response:
    said = error_said(error)
    answer = {"errors": [{"message": said.pop("message"), "extensions": said}]}
    return _response(answer, status=http_status(error))


def _response(answer: dict[str, Any], *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(answer),
        status_code=status,
        media_type=TYPE,
        headers={"cache-control": "no-store"},
    )
