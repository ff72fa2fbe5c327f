"""The paths of capture subscriptions over HTTP; openapi.py describes them."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from penstock.errors import PenstockError, ServiceBusyError
from penstock.serve.captures.documents import document
from penstock.serve.captures.history import changes
from penstock.serve.captures.openapi import document_json
from penstock.serve.captures.protocol import Close
from penstock.serve.captures.said import error_said, http_status
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import ScopeOf
from penstock.serve.captures.sse import events
from penstock.serve.captures.websocket import CaptureSocket
from penstock.telemetry import PUBLISH_ERRORS

ROOT: Final = "/rest"


def says_later(path: str) -> bool:
    """Whether sockets of this path ask who is there with connection_init."""
    return path.startswith(f"{ROOT}/") and path.endswith("/change-captures")


def routes(service: CaptureService, *, scope_of: ScopeOf) -> list[BaseRoute]:
    """All of them. The system's come first: a source of that name has `system.DATABASE` only."""
    sockets = _Sockets(service, scope_of)

    async def system(socket: WebSocket) -> None:
        await sockets.run(socket, None)

    async def catalog(socket: WebSocket) -> None:
        await sockets.run(socket, socket.path_params["catalog"])

    async def follow(request: Request) -> Response:
        return await events(request, request.path_params["catalog"], service, scope_of(request, {}))

    async def page(request: Request) -> Response:
        return await changes(
            request, request.path_params["catalog"], service, scope_of(request, {})
        )

    async def past(request: Request) -> Response:
        return await document(request, service, scope_of(request, {}))

    description = document_json()

    async def described(_: Request) -> Response:
        return Response(description, media_type="application/json")

    entity = f"{ROOT}/{{catalog}}/entities/{{entityType}}/{{key:path}}"
    of, get = f"{ROOT}/{{catalog}}", ["GET"]
    return [
        Route(f"{ROOT}/openapi.json", described, methods=get, name="http openapi"),
        Route(entity, _answering("rest", past), methods=get, name="http entities"),
        Route(f"{of}/changes", _answering("rest", page), methods=get, name="http changes"),
        Route(f"{of}/events", _answering("sse", follow), methods=get, name="http events"),
        WebSocketRoute(f"{ROOT}/system/change-captures", system, name="websocket system captures"),
        WebSocketRoute(f"{of}/change-captures", catalog, name="websocket captures"),
    ]


Answer = Callable[[Request], Awaitable[Response]]


def _answering(protocol: str, answer: Answer) -> Answer:
    """`answer`, with what it raises told as JSON."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except PenstockError as error:
            PUBLISH_ERRORS.labels(protocol, error.code).inc()
            return refusal(error)

    return answered


def refusal(error: PenstockError) -> Response:
    """The answer that is this error."""
    headers = {"cache-control": "no-store"}
    if error.transient:
        headers["retry-after"] = "1"
    body = msgspec.json.encode({"error": error_said(error)})
    return Response(
        body, status_code=http_status(error), media_type="application/json", headers=headers
    )


class _Sockets:
    """As many at once as there may be subscriptions: those that subscribe to nothing count too."""

    def __init__(self, service: CaptureService, scope_of: ScopeOf) -> None:
        self._service = service
        self._scope_of = scope_of
        self._open = 0

    async def run(self, socket: WebSocket, catalog: str | None) -> None:
        most = self._service.config.subscriptions_max
        if self._open > most:
            PUBLISH_ERRORS.labels("websocket", ServiceBusyError.code).inc()
            await socket.accept()
            await socket.close(Close.BUSY, "Try again later")
            return
        self._open += 1
        try:
            await CaptureSocket(socket, self._service, catalog, self._scope_of).run()
        finally:
            self._open -= 1
