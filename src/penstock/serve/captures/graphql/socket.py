"""GraphQL over WebSocket: the subprotocol `graphql-transport-ws`, and no other.

One task reads the socket, and one more for each operation asks for its next result when the socket
has taken the last, so nothing is queued here, and another operation is not held up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.errors import RequestError
from penstock.serve.captures.graphql import messages
from penstock.serve.captures.graphql.executing import RefusedError, execute
from penstock.serve.captures.graphql.following import PROTOCOL, Client
from penstock.serve.captures.graphql.schema import CaptureSchema
from penstock.serve.captures.protocol import Close, ClosingError, Complete, Init, Ping, Pong
from penstock.serve.captures.said import error_said
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import Pace, ScopeOf, scope_opened, send, serve
from penstock.subscribe.scope import Scope
from penstock.telemetry import PUBLISH_ERRORS

_LAST_WORDS_SECONDS: Final = 1.0
_BEGINNING_MAX: Final = 16
"""Operations of a socket that have sent nothing yet, or are told that they cannot begin."""


class GraphqlSocket:
    """One connection, from its handshake to its close."""

    def __init__(
        self,
        socket: WebSocket,
        service: CaptureService,
        schema_of: Callable[[Scope], Awaitable[CaptureSchema]],
        scope_of: ScopeOf,
    ) -> None:
        """`schema_of` is asked once: all operations of a socket have one schema."""
        self._socket = socket
        self._service = service
        self._schema_of = schema_of
        self._schema: CaptureSchema | None = None
        self._scope_of = scope_of
        self._operations: dict[str, asyncio.Task[None]] = {}
        self._beginning = asyncio.Semaphore(_BEGINNING_MAX)
        self._writing = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._pace = Pace(service.config.messages_per_second)

    async def run(self) -> None:
        """Serve until the client goes, or breaks the protocol, or the service stops."""
        await serve(
            self._socket,
            messages.SUBPROTOCOL,
            protocol=PROTOCOL,
            serving=self._converse,
            ending=self._end_with_service,
        )

    async def _converse(self, group: asyncio.TaskGroup) -> None:
        scope = await self._opened()
        while True:
            await self._take(group, await self._heard(), scope)

    async def _end_with_service(self) -> None:
        await self._service.stopped.wait()
        if self._operations:
            await asyncio.wait(self._operations.values(), timeout=_LAST_WORDS_SECONDS)
        raise ClosingError(Close.GOING_AWAY, "Service is stopping")

    # --- reading --------------------------------------------------------------------------------

    async def _heard(self) -> messages.ClientMessage:
        await self._pace.wait()
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        text = message.get("text")
        if text is None:
            raise ClosingError(Close.BAD_MESSAGE, "Invalid message: it is no text")
        return messages.parse_message(text)

    async def _opened(self) -> Scope:
        """Wait for connection_init, and acknowledge it."""
        try:
            async with asyncio.timeout(self._service.config.init_timeout):
                while not isinstance(message := await self._heard(), Init):
                    if isinstance(message, Ping):
                        await self._send(messages.pong(message))
                    elif not isinstance(message, Pong):
                        raise ClosingError(Close.UNAUTHORIZED, "Unauthorized")
        except TimeoutError:
            raise ClosingError(Close.INIT_TIMEOUT, "Connection initialisation timeout") from None
        scope = scope_opened(self._socket, message.payload, self._scope_of, PROTOCOL)
        self._schema = await self._schema_of(scope)
        await self._send(messages.ack())
        return scope

    async def _take(
        self, group: asyncio.TaskGroup, message: messages.ClientMessage, scope: Scope
    ) -> None:
        if isinstance(message, Init):
            raise ClosingError(Close.SECOND_INIT, "Too many initialisation requests")
        if isinstance(message, Ping):
            await self._send(messages.pong(message))
        elif isinstance(message, messages.Subscribe):
            if message.id in self._operations:
                raise ClosingError(Close.DUPLICATE, f"Subscriber for {message.id} already exists")
            if len(self._operations) >= self._service.config.requests_max:
                await self._refuse_one_more(message.id)
                return
            client = Client(
                service=self._service, scope=scope, writing=self._writing, asking=self._asking
            )
            # Who asks and takes no answers waits, so that no answers gather.
            await self._beginning.acquire()
            settle = _Once(self._beginning.release)
            task = group.create_task(self._serve(message, client, settle))
            # Also of who ends it before its task has begun.
            task.add_done_callback(lambda _: settle())
            self._operations[message.id] = task
        elif isinstance(message, Complete) and message.id in self._operations:
            self._operations.pop(message.id).cancel()

    async def _refuse_one_more(self, name: str) -> None:
        error = RequestError(
            f"a connection has at most {self._service.config.requests_max} operations at once. "
            f"Nothing was sent, and the others go on. Complete one, or open another connection."
        )
        PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
        said = error_said(error)
        await self._send(
            messages.error_of(name, [{"message": said.pop("message"), "extensions": said}])
        )

    # --- writing --------------------------------------------------------------------------------

    async def _send(self, message: bytes) -> None:
        await send(self._socket, [message])

    async def _serve(self, asked: messages.Subscribe, client: Client, settle: "_Once") -> None:
        """An operation, from its beginning to its end, which is told once (E14)."""
        config = self._service.config.graphql
        assert self._schema is not None
        results = execute(self._schema, asked.operation, client, config, may_subscribe=True)
        try:
            async with aclosing(results):
                async for result in results:
                    await self._send(messages.next_of(asked.id, result))
                    settle()
            last = messages.complete_of(asked.id)
        except RefusedError as refused:
            last = messages.error_of(asked.id, refused.errors)
        # Its id is free before the client can know that it is.
        del self._operations[asked.id]
        await self._send(last)


class _Once:
    """Calls something once, however often it is called."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
