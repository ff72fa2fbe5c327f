"""The door of HTTP: ASGI middleware before everything but the open paths.

`Authorization: Bearer ...`, or `?ticket=...`, or the certificate of mutual TLS; at some paths also
a token in the query, for clients that send no headers, and on sockets of others one in their first
message (`Opening`). What comes behind it finds the
`Principal` in `scope["state"]["principal"]` (`principal_of`). An answer, or a socket,
whose principal may not stay any more is ended: HTTP is cut off, so that what came is not taken for
whole, and a WebSocket is closed with 4401. A socket is refused, as any request, with the status
and the sentence of its reason, before its handshake.

A stream of events that a ticket opened gets a cookie, with which the browser's EventSource may come
back by itself (returning.py).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import structs
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import (
    ForbiddenError,
    PenstockError,
    RateLimitedError,
    UnauthenticatedError,
)
from penstock.serve.access.door import Access, Visitor, names_of
from penstock.serve.access.door import receive as receive_visitor
from penstock.serve.access.principals import ANYONE, NOT_YET, Presented, Principal
from penstock.serve.access.returning import cookie_name
from penstock.subscribe.scope import Scope as Visible
from penstock.telemetry import PUBLISH_ERRORS

TICKET_PATH: Final = "/ticket"
STRANGER: Final = Principal(name="", scope=Visible(()), way="nobody")
"""Whoever asks at an open path of a service that asks who somebody is: they see nothing."""
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_LIMITED: Final = 4429
_STATUS: Final = {
    UnauthenticatedError.code: 401,
    ForbiddenError.code: 403,
    RateLimitedError.code: 429,
}


def principal_of(connection: HTTPConnection) -> Principal:
    """Who asks; ANYONE where nobody is asked."""
    found: Principal = connection.scope.get("state", {}).get("principal", ANYONE)
    return found


def admitted(connection: HTTPConnection, opening: Mapping[str, Any]) -> Principal:
    """Who asks; of a socket whose handshake did not say so, whoever its first message says:
    `opening` is what came in it. Raises as `Access.authenticate`, and RateLimitedError."""
    waiting: Opening | None = connection.scope.get("state", {}).get("opening")
    if waiting is not None:
        connection.scope["state"]["principal"] = waiting.admit(_authorization_in(opening))
    return principal_of(connection)


def _authorization_in(opening: Mapping[str, Any]) -> str | None:
    """What would be the header, of {"authorization": "Bearer ..."} or {"token": ...}; null is
    nothing. What is no text is a header that nobody has."""
    for name in ("authorization", "Authorization"):
        if opening.get(name) is not None:
            return opening[name] if isinstance(opening[name], str) else ""
    token = opening.get("token")
    if token is None:
        return None
    return f"Bearer {token}" if isinstance(token, str) else ""


def presented_by(scope: Scope, parameters: Collection[str] = ()) -> Presented:
    """What came with a request or a socket. A token may come in one of the query's `parameters`."""
    headers = [value for name, value in scope["headers"] if name == b"authorization"]
    header = headers[0].decode("latin-1") if len(headers) == 1 else "" if headers else None
    ticket = None
    if header is None:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        tokens = [one for name in parameters for one in query.get(name, [])]
        if tokens:
            header = f"Bearer {tokens[0]}" if len(tokens) == 1 else ""
        tickets = query.get("ticket", [])
        ticket = tickets[0] if len(tickets) == 1 else "" if tickets else None
    proven: list[str] = scope.get("state", {}).get("client_certificate", [])
    client = scope.get("client")
    return Presented(
        authorization=header,
        ticket=ticket,
        cookie=_cookie(scope, cookie_name(ticket)) if ticket and is_events(scope) else None,
        certificate=names_of(proven),
        peer=str(client[0]) if client else "",
    )


def is_events(scope: Scope) -> bool:
    """Whether it asks for a stream of events: a path that EventSource comes back to."""
    path: str = scope["path"]
    is_get = scope["type"] == "http" and scope["method"] == "GET"
    return is_get and path.startswith("/rest/") and path.endswith("/events")


def endpoint_of(scope: Scope) -> str:
    """What is asked for, for the record: a path below /rest without the key that may end it."""
    path: str = scope["path"]
    if path.startswith("/rest/"):
        path = "/".join(path.split("/")[:5])
    return f"{scope['type']} {path}"


def refusal(error: PenstockError) -> Response:
    """The answer that says why somebody may not come in."""
    headers: dict[str, str] = {}
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RateLimitedError):
        headers["retry-after"] = str(max(1, round(error.wait_seconds)))
    said = {"error": {"code": error.code, "message": str(error)}}
    return Response(
        msgspec.json.encode(said),
        status_code=_STATUS[error.code],
        media_type="application/json",
        headers=headers,
    )


class Opening:
    """A socket that may still say who it is, once, with its first message. Until then it holds one
    of the places of its address, and then one of whoever it is."""

    def __init__(self, access: Access, presented: Presented, endpoint: str) -> None:
        """Raises RateLimitedError if its address has no place left."""
        self._access = access
        self._presented = presented
        self._endpoint = endpoint
        self._asked = False
        self._place = contextlib.ExitStack()
        self._place.enter_context(access.waiting(presented, endpoint))
        self.known: asyncio.Future[Principal] = asyncio.get_running_loop().create_future()

    def admit(self, authorization: str | None) -> Principal:
        """Who brings this. It counts before a certificate, as the header would. Raises as
        `Access.authenticate`, and RateLimitedError for who has no place left."""
        if self._asked:
            raise UnauthenticatedError
        self._asked = True
        brought = structs.replace(self._presented, authorization=authorization)
        known = self._access.authenticate(brought, self._endpoint)
        with contextlib.ExitStack() as place:
            place.enter_context(self._access.visiting(known, brought, self._endpoint))
            self._place.close()
            self._place = place.pop_all()
        receive_visitor(
            Visitor(
                access=self._access, principal=known, presented=brought, endpoint=self._endpoint
            )
        )
        self.known.set_result(known)
        return known

    async def over(self) -> None:
        """Wait until whoever it is may not stay any more."""
        await self._access.over(await self.known)

    def close(self) -> None:
        """Nobody is there any more."""
        self._place.close()
        if not self._asked:
            self._access.gone(self._presented, self._endpoint)


class Guard:
    """Asks `access` before `app`."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        open_paths: Collection[str] = (),
        late: Callable[[str], bool] = lambda _: False,
        token_parameters: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """`late`: whether sockets of a path ask who is there once more (`admitted`);
        `token_parameters`: by the beginning of paths, the parameters that may carry a token, for
        clients that send no header."""
        self._app = app
        self._access = access
        self._open = frozenset(open_paths)
        self._late = late
        self._parameters = dict(token_parameters or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, once it is known who asks."""
        if scope["type"] not in {"http", "websocket"} or scope["path"] in self._open:
            scope.setdefault("state", {})["principal"] = self._at_open_path(scope)
            await self._app(scope, receive, send)
            return
        began = False
        cookie: tuple[bytes, bytes] | None = None

        async def told(message: Message) -> None:
            nonlocal began
            began = True
            if cookie is not None and message.get("status") == 200:
                message = {**message, "headers": [*message.get("headers", ()), cookie]}
            await send(message)

        presented = presented_by(scope, self._parameters_at(scope["path"]))
        endpoint = endpoint_of(scope)
        try:
            # A page may only send: without an answer that names it, the browser tells it nothing.
            # But a socket is open to any page, whatever the answer says; and so is what a cookie
            # opens, which the page did not have to know.
            asks_origin = scope["type"] == "websocket" or presented.cookie is not None
            if asks_origin and not self._access.allows_origin(_header(scope, b"origin")):
                self._access.refuse(presented, endpoint)
                raise UnauthenticatedError
            if self._may_say_later(scope, presented):
                opening = Opening(self._access, presented, endpoint)
                scope.setdefault("state", {}).update(principal=NOT_YET, opening=opening)
                with contextlib.closing(opening):
                    await self._stay(opening.over(), scope, receive, told)
                return
            known = self._access.authenticate(presented, endpoint)
            if presented.ticket is not None and is_events(scope):
                cookie = self._cookie(known, presented.ticket, scope)
            with self._access.visiting(known, presented, endpoint):
                scope.setdefault("state", {})["principal"] = known
                receive_visitor(
                    Visitor(
                        access=self._access,
                        principal=known,
                        presented=presented,
                        endpoint=endpoint,
                    )
                )
                if known.way == "nobody":
                    await self._app(scope, receive, told)
                else:
                    await self._stay(self._access.over(known), scope, receive, told)
        except (UnauthenticatedError, ForbiddenError, RateLimitedError) as error:
            PUBLISH_ERRORS.labels("http", error.code).inc()
            await _refuse(error, scope, receive, send, began=began)

    def _at_open_path(self, scope: Scope) -> Principal:
        """Who asks where everybody may: a token that opens nothing, or whose bearer could not be
        recorded, is as good as none there."""
        if not self._access.is_guarded:
            return ANYONE
        presented = presented_by(scope)
        if presented.authorization is None:
            return STRANGER
        try:
            return self._access.authenticate(presented, endpoint_of(scope))
        except (UnauthenticatedError, RateLimitedError, OSError):
            return STRANGER

    def _parameters_at(self, path: str) -> Collection[str]:
        return next((ours for at, ours in self._parameters.items() if path.startswith(at)), ())

    def _cookie(self, known: Principal, ticket: str, scope: Scope) -> tuple[bytes, bytes] | None:
        """Of a stream that a ticket opened. It has no age, so it goes with the browser."""
        value = self._access.cookie(known)
        if value is None:
            return None
        encrypted = "; Secure" if scope["scheme"] == "https" else ""
        said = f"{cookie_name(ticket)}={value}; Path=/rest; HttpOnly; SameSite=Strict{encrypted}"
        return b"set-cookie", said.encode()

    def _may_say_later(self, scope: Scope, presented: Presented) -> bool:
        return (
            self._access.is_on
            and scope["type"] == "websocket"
            and presented.authorization is None
            and presented.ticket is None
            and self._late(scope["path"])
        )

    async def _stay(
        self, over: Coroutine[Any, Any, None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer, until `over` returns."""
        running = asyncio.ensure_future(_whole(self._app(scope, receive, send)))
        leaving = asyncio.ensure_future(over)
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            raise UnauthenticatedError
        finally:
            leaving.cancel()
            if not running.done():
                running.cancel()
            await asyncio.gather(running, leaving, return_exceptions=True)


async def _whole(answer: Awaitable[None]) -> None:
    await answer


async def _refuse(
    error: PenstockError, scope: Scope, receive: Receive, send: Send, *, began: bool
) -> None:
    if scope["type"] == "websocket":
        code = {403: CLOSE_FORBIDDEN, 429: CLOSE_LIMITED}.get(
            _STATUS[error.code], CLOSE_UNAUTHENTICATED
        )
        if not began and "websocket.http.response" in scope.get("extensions", {}):
            await refusal(error)(scope, receive, send)
            return
        # Before the handshake was answered, and without the extension, this is a 403.
        with contextlib.suppress(RuntimeError):
            await send({"type": "websocket.close", "code": code, "reason": error.code})
    elif began:
        # Nothing more can be said. To return would end the answer as if it were whole.
        raise error
    else:
        await refusal(error)(scope, receive, send)


def _cookie(scope: Scope, wanted: str) -> str | None:
    for name, value in scope["headers"]:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                at, _, text = part.strip().partition("=")
                if at == wanted:
                    return str(text)
    return None


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            text: Any = value.decode("latin-1")
            return str(text)
    return None
