"""Capture subscriptions over WebSocket: the subprotocol `rest-transport-ws`.

One task reads the socket and one more for each subscription writes to it; each waits where the
socket is full, so nothing is queued here, and another socket is not concerned. The words are in
protocol.py.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.errors import PenstockError
from penstock.serve.captures import protocol
from penstock.serve.captures.protocol import Close, ClosingError
from penstock.serve.captures.said import (
    confirmed_json,
    error_json,
    finished_json,
    maintained_json,
)
from penstock.serve.captures.scoping import parse_at
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import Pace, ScopeOf, scope_opened, send, serve
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    Confirmed,
    Finished,
    Maintained,
    Output,
    Session,
)
from penstock.subscribe.captures.envelopes import Envelope, envelope_of
from penstock.subscribe.captures.session import UNLIMITED
from penstock.subscribe.scope import Scope
from penstock.telemetry import EVENTS_PUBLISHED, PUBLISH_ERRORS

PROTOCOL: Final = "websocket"
_LAST_WORDS_SECONDS: Final = 1.0
_WRITE_BYTES: Final = 64 << 10
"""Of messages that are sent at once."""
_BEGINNING_MAX: Final = 16
"""Subscriptions of a socket that have not begun, or are told that they cannot."""


class _Subscription:
    """One id of a socket."""

    def __init__(self, asked: protocol.Subscribe, settled: Callable[[], None]) -> None:
        """`settled` is called once, when it has begun, or is over."""
        self.asked = asked
        self._settled: Callable[[], None] | None = settled
        self.name = msgspec.json.encode(asked.id)
        self.begun: asyncio.Future[Session | None] = asyncio.get_running_loop().create_future()
        """Its session, once its first requests are in; None if it never began."""
        self.task: asyncio.Task[None] | None = None

    def settle(self) -> None:
        """It has begun, or is over."""
        if self._settled is not None:
            self._settled()
            self._settled = None

    def end(self) -> None:
        """Nothing more is sent for it."""
        if self.task is not None:
            self.task.cancel()


class CaptureSocket:
    """One connection, from its handshake to its close."""

    def __init__(
        self, socket: WebSocket, service: CaptureService, catalog: str | None, scope_of: ScopeOf
    ) -> None:
        """`catalog`: whose endpoint it is; None: the system's."""
        self._socket = socket
        self._service = service
        self._catalog = catalog
        self._scope_of = scope_of
        self._subscriptions: dict[str, _Subscription] = {}
        self._pace = Pace(service.config.messages_per_second)
        self._beginning = asyncio.Semaphore(_BEGINNING_MAX)
        self._writing = asyncio.Lock()
        """One at a time waits for room, and only what it sends is made."""
        self._published = EVENTS_PUBLISHED.labels(PROTOCOL)

    async def run(self) -> None:
        """Serve until the client goes, or breaks the protocol, or the service stops."""
        await serve(
            self._socket,
            protocol.SUBPROTOCOL,
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
        telling = [one.task for one in self._subscriptions.values() if one.task is not None]
        if telling:
            await asyncio.wait(telling, timeout=_LAST_WORDS_SECONDS)
        raise ClosingError(Close.GOING_AWAY, "Service is stopping")

    # --- reading --------------------------------------------------------------------------------

    async def _heard(self) -> protocol.ClientMessage:
        await self._pace.wait()
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        text = message.get("text")
        if text is None:
            raise ClosingError(Close.BAD_MESSAGE, "Invalid message: it is no text")
        return protocol.parse_message(text)

    async def _opened(self) -> Scope:
        """Wait for connection_init, and acknowledge it."""
        config = self._service.config
        try:
            async with asyncio.timeout(config.init_timeout):
                while not isinstance(message := await self._heard(), protocol.Init):
                    if isinstance(message, protocol.Ping):
                        await self._send(protocol.pong(message))
                    elif not isinstance(message, protocol.Pong):
                        raise ClosingError(Close.UNAUTHORIZED, "Unauthorized")
        except TimeoutError:
            raise ClosingError(Close.INIT_TIMEOUT, "Connection initialisation timeout") from None
        scope = scope_opened(self._socket, message.payload, self._scope_of, PROTOCOL)
        await self._send(protocol.ack(maintenance_ms=int(config.maintenance_interval * 1000)))
        return scope

    async def _take(
        self, group: asyncio.TaskGroup, message: protocol.ClientMessage, scope: Scope
    ) -> None:
        if isinstance(message, protocol.Init):
            raise ClosingError(Close.SECOND_INIT, "Too many initialisation requests")
        if isinstance(message, protocol.Ping):
            await self._send(protocol.pong(message))
        elif isinstance(message, protocol.Subscribe):
            if message.id in self._subscriptions:
                raise ClosingError(Close.DUPLICATE, "Subscriber already exists")
            # Who subscribes and takes no answers waits, so that no answers gather.
            await self._beginning.acquire()
            subscription = _Subscription(message, self._beginning.release)
            self._subscriptions[message.id] = subscription
            subscription.task = group.create_task(self._serve(subscription, scope))
            # Also for who ends it before its task has begun.
            subscription.task.add_done_callback(lambda _: subscription.settle())
        elif isinstance(message, protocol.Complete):
            if message.id in self._subscriptions:
                self._subscriptions.pop(message.id).end()
        elif not isinstance(message, protocol.Pong):
            await self._change(message)

    async def _change(
        self, message: protocol.Extend | protocol.Change | protocol.Limit | protocol.Credit
    ) -> None:
        """What a client asks of a subscription that runs; unknown ids are ignored."""
        subscription = self._subscriptions.get(message.id)
        session = await subscription.begun if subscription is not None else None
        if subscription is None or session is None:
            return
        if isinstance(message, protocol.Extend):
            for given in message.requests:
                await session.answered()
                await self._add(subscription, session, given)
            return
        await session.answered()
        if isinstance(message, protocol.Limit):
            for name in session.ids if message.requests is None else message.requests:
                try:
                    session.remove(name)
                except PenstockError as error:
                    await self._refuse(subscription, name, error)
            return
        name = _id_of(message.request) if isinstance(message, protocol.Change) else ""
        try:
            if isinstance(message, protocol.Change):
                request = parse_at(message.request, self._catalog, new_id=self._service.new_id)
                await session.change(request)
            else:
                session.request(message.count)
        except PenstockError as error:
            await self._refuse(subscription, name, error)

    async def _add(self, subscription: _Subscription, session: Session, given: object) -> None:
        try:
            request = parse_at(given, self._catalog, new_id=self._service.new_id)
            await session.add(request)
        except PenstockError as error:
            await self._refuse(subscription, _id_of(given), error)

    async def _refuse(self, subscription: _Subscription, name: str, error: PenstockError) -> None:
        PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
        said = msgspec.json.encode({"refused": {"id": name} if name else {}})
        await self._send(protocol.next_of(subscription.name, said, error_json(error)))

    # --- writing --------------------------------------------------------------------------------

    async def _send(self, message: bytes) -> None:
        async with self._writing:
            await self._write([message])

    async def _write(self, messages: Sequence[bytes]) -> None:
        await send(self._socket, messages)

    async def _serve(self, subscription: _Subscription, scope: Scope) -> None:
        """A subscription, from its first requests to its end, which is told once (E14)."""
        try:
            await self._deliver(subscription, scope)
            last = protocol.complete_of(subscription.name)
        except PenstockError as error:
            PUBLISH_ERRORS.labels(PROTOCOL, error.code).inc()
            last = protocol.error_of(subscription.name, error_json(error))
        finally:
            if not subscription.begun.done():
                subscription.begun.set_result(None)
        await self._send(last)
        # Here it is still there: who was told to end it was cancelled.
        del self._subscriptions[subscription.asked.id]

    async def _deliver(self, subscription: _Subscription, scope: Scope) -> None:
        """Returns when a subscription of one request has all that it asked for. Raises what ends
        it otherwise."""
        asked = subscription.asked
        envelope = envelope_of(asked.envelope)
        credit = UNLIMITED if asked.credit is None else asked.credit
        with self._service.session(PROTOCOL, scope=scope, credit=credit) as session:
            if asked.many:
                for given in asked.requests:
                    await self._add(subscription, session, given)
            else:
                new_id = _visible(asked.id, self._service.new_id)
                await session.add(parse_at(asked.requests[0], self._catalog, new_id=new_id))
            subscription.begun.set_result(session)
            subscription.settle()
            while True:
                outputs = await session.next()
                over = None if asked.many else _first_finished(outputs)
                await self._tell(subscription, outputs[:over], envelope)
                if over is not None:
                    error = cast("Finished", outputs[over]).error
                    if error is not None:
                        raise error
                    return

    async def _tell(
        self, subscription: _Subscription, outputs: Sequence[Output], envelope: Envelope
    ) -> None:
        """Send outputs, some at once; others of the socket get their turn between."""
        left = deque(outputs)
        while left:
            async with self._writing:
                messages: list[bytes] = []
                size = captures = 0
                while left and size < _WRITE_BYTES:
                    captures += isinstance(left[0], Captured | Boundary)
                    messages.append(self._rendered(subscription, left.popleft(), envelope))
                    size += len(messages[-1])
                await self._write(messages)
                self._published.inc(captures)

    def _rendered(self, subscription: _Subscription, output: Output, envelope: Envelope) -> bytes:
        name = subscription.name
        if isinstance(output, Captured):
            return protocol.next_of(name, self._service.shared.enveloped(output, envelope))
        if isinstance(output, Boundary):
            return protocol.next_of(name, envelope.boundary(output))
        if isinstance(output, Confirmed):
            return protocol.next_of(name, b'{"confirmed":%b}' % confirmed_json(output))
        if isinstance(output, Maintained):
            return protocol.next_of(name, b'{"maintenance":%b}' % maintained_json(output))
        error = b"" if output.error is None else error_json(output.error)
        return protocol.next_of(name, b'{"finished":%b}' % finished_json(output), error)


def _first_finished(outputs: Sequence[Output]) -> int | None:
    """Where the end of a request is told."""
    return next((n for n, one in enumerate(outputs) if isinstance(one, Finished)), None)


def _id_of(given: object) -> str:
    """The id that a request says it has; empty if it says none."""
    name = cast("dict[str, Any]", given).get("id") if isinstance(given, dict) else None
    return name if isinstance(name, str) else ""


def _visible(name: str, otherwise: Callable[[], str]) -> Callable[[], str]:
    """A request without an id has that of its subscription, if that can be one."""
    return (
        (lambda: name) if name.isascii() and name.isprintable() and " " not in name else otherwise
    )
