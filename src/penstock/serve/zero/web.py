"""The path of the endpoint: who may come in, and as which shard."""

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from penstock.errors import ConfigError, ForbiddenError, PenstockError, RequestError
from penstock.serve.access.principals import Principal
from penstock.serve.zero.request import PATHS, parse_request, refused_version
from penstock.serve.zero.service import ZeroService
from penstock.serve.zero.session import PROTOCOL, Session
from penstock.serve.zero.socket import ZeroSocket
from penstock.serve.zero.view import view_of
from penstock.telemetry import PUBLISH_ERRORS

PrincipalOf = Callable[[HTTPConnection], Principal]
"""Who connects. Raises PenstockError for who may not."""
_ADVICE: Final = (
    "Connect a zero-cache here: ZERO_UPSTREAM_TYPE=custom, and this as ZERO_UPSTREAM_DB"
)


class ZeroEndpoint:
    """An ASGI application of WebSockets, at every path below /changes."""

    def __init__(self, service: ZeroService, principal_of: PrincipalOf) -> None:
        self._service = service
        self._principal_of = principal_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or answer why not, before its handshake."""
        why = refused_version(scope["path"])
        if why is not None:
            await _answer("zero.version", why, 404)(scope, receive, send)
            return
        try:
            principal = self._principal_of(HTTPConnection(scope))
            request = parse_request(scope["query_string"].decode("latin-1"))
            view = view_of(
                self._service.config,
                self._service.permissions,
                request.shard,
                request.publications,
                principal.scope,
            )
            with self._service.connection():
                who = "" if principal.way == "nobody" else principal.who
                await Session(self._service, ZeroSocket(receive, send), request, who, view).run()
        except PenstockError as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            await _refusal(error)(scope, receive, send)


def zero_routes(service: ZeroService, principal_of: PrincipalOf) -> list[BaseRoute]:
    """The endpoint, and an answer to who comes without a WebSocket."""

    async def described(_: HTTPConnection) -> Response:
        return _answer("zero.websocket", f"this is a WebSocket. {_ADVICE}", 426)

    endpoint = ZeroEndpoint(service, principal_of)
    path = f"{PATHS}{{rest:path}}"
    return [
        WebSocketRoute(path, endpoint, name="websocket zero"),
        Route(path, described, methods=["GET"], name="http zero"),
    ]


def _refusal(error: PenstockError) -> Response:
    status = 503
    if isinstance(error, ForbiddenError):
        status = 403
    elif isinstance(error, RequestError):
        status = 400
    elif isinstance(error, ConfigError):
        status = 409
    return _answer(error.code, str(error), status)


def _answer(code: str, message: str, status: int) -> Response:
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    return Response(body, status_code=status, media_type="application/json")
