"""Connections of the HTTP server, bounded against clients that mean harm, or do it unknowingly.

What a client can make the server keep is bounded, and beyond each bound it gets an answer: an
unfinished request 408 after a while, or soon if there are too many of them (the oldest goes, so
that who asks at once is served meanwhile); a WebSocket beyond all connections 503; too many
messages at once 1008, a message in too many pieces 1009. Who sends pings and takes no pong is cut.

A connection counts among those of which there may be so many only while it is answered: one that
shakes hands, has not asked yet, or had its answer and says nothing, is half open, and the oldest of
those go if there are too many. So nobody keeps others out by being connected. What a client does
wrong is counted, not logged, for it could fill a disk.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any, Final, Protocol

import h11
import structlog
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from penstock.errors import PenstockError
from penstock.serve.access.tls import Proven
from penstock.serve.arrivals import Arrivals, network_of
from penstock.serve.broken import where
from penstock.telemetry import PUBLISH_ERRORS

log = structlog.get_logger(__name__)

HALF_OPEN_MAX: Final = 256
"""Connections that ask for nothing: not yet, or not any more."""
WAITING_MAX: Final = 4_096
"""Messages of a socket that were received at once, and wait to be read."""
FRAGMENTS_MAX: Final = 4_096
"""Pieces of one message."""
_TRIM_SECONDS: Final = 0.5
_UNREAD_PONGS_MAX: Final = 256

_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-length: 0\r\n\r\n"
)
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

_LIMIT: Final = "limit_concurrency"
"""The attribute of uvicorn's protocol, of which its types say nothing to some checkers."""
_SHUTDOWN_SECONDS: Final = 2.0
"""How long TLS waits for the other side's goodbye."""
_CODES: Final = {
    "Invalid HTTP request received.": "invalid",
    "Exceeded concurrency limit.": "busy",
    "Unsupported upgrade request.": "upgrade",
}
"""What uvicorn warns of, as the metrics call it."""


class _Told(logging.Logger):
    """What uvicorn says of single requests: counted. Of an answer that broke, a line says what kind
    of error it was and where, but not its text, which may quote a document."""

    def handle(self, record: logging.LogRecord) -> None:
        """Count it, or tell."""
        broken = record.exc_info[1] if record.exc_info else None
        if isinstance(broken, PenstockError):
            return  # an answer that is cut off on purpose; it was counted where that was decided
        if record.levelno >= logging.ERROR:
            at = "" if broken is None else where(broken)
            # Without an error its sentence is uvicorn's own.
            error = str(record.msg) if broken is None else type(broken).__name__
            log.error("an answer broke", error=error, at=at)
        PUBLISH_ERRORS.labels("http", _CODES.get(str(record.msg), "broken")).inc()


_TOLD: Final = _Told("penstock.serve.http", logging.WARNING)


class Waiting(Protocol):
    """A connection that asks for nothing."""

    loop: asyncio.AbstractEventLoop
    place: "Place | None"

    def give_up(self) -> None:
        """Close it, and give its place back: what it asks for did not come."""
        ...

    def abort(self) -> None:
        """Let go of it at once."""
        ...


class HalfOpen:
    """The connections of one server that ask for nothing, in the order in which they began to."""

    def __init__(self, request_seconds: float, arrivals: Arrivals) -> None:
        """`arrivals` has all connections of the server, these and those that are answered."""
        self.request_seconds = request_seconds
        self.arrivals = arrivals
        self._waiting: dict[Waiting, None] = {}
        self._ending: set[Waiting] = set()
        """Those that were given up, and are still there: what was written to them is on its way."""
        self._gone = asyncio.Event()
        self._trimming: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, one: Waiting) -> None:
        """Have one more. If that is too many, the oldest go soon: not at once, for many that
        connect at the same time are all there before the first is heard."""
        if self._closed:
            one.give_up()
            return
        self._waiting[one] = None
        if len(self._waiting) > HALF_OPEN_MAX and self._trimming is None:
            self._trimming = one.loop.call_later(_TRIM_SECONDS, self._trim)

    def place(self, transport: asyncio.BaseTransport) -> "Place | None":
        """A place for a connection, if need be that of those which wait longest at its address;
        None if there is none. Whoever loses its place counts as refused."""
        reason = self.arrivals.why_full(address_of(transport))
        if reason is not None:
            network = network_of(address_of(transport))
            waiting = [
                one
                for one in self._waiting
                if one.place is not None and network_of(one.place.address) == network
            ]
            for one in waiting[: max(1, len(waiting) // 4)]:
                self.arrivals.refused(reason)
                one.give_up()
        return Place.of(transport, self.arrivals)

    def _trim(self) -> None:
        self._trimming = None
        for one in tuple(self._waiting)[: max(0, len(self._waiting) - HALF_OPEN_MAX)]:
            one.give_up()

    def discard(self, one: Waiting) -> None:
        """It has asked."""
        self._waiting.pop(one, None)

    def end(self, one: Waiting) -> None:
        """It is given up."""
        self.discard(one)
        self._ending.add(one)

    def forget(self, one: Waiting) -> None:
        """It is gone."""
        self.discard(one)
        self._ending.discard(one)
        self._gone.set()

    def close(self) -> None:
        """The server stops."""
        self._closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        for one in tuple(self._waiting):
            one.give_up()

    async def wait_closed(self, seconds: float) -> None:
        """Behind `close`: until all are gone, which is helped along after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._ending:
                    self._gone.clear()
                    await self._gone.wait()
        for one in self._ending:
            one.abort()
        await asyncio.sleep(0)  # a transport closes in the next round of the loop


def address_of(transport: asyncio.BaseTransport) -> str:
    """Whose it is; empty where that is not known."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


class Place:
    """That of one connection among those of its port."""

    def __init__(self, address: str, arrivals: Arrivals) -> None:
        self.address = address
        self._arrivals: Arrivals | None = arrivals

    @classmethod
    def of(cls, transport: asyncio.BaseTransport, arrivals: Arrivals) -> "Place | None":
        """A place for a connection; None if there is none."""
        address = address_of(transport)
        return cls(address, arrivals) if arrivals.enter(address) else None

    def leave(self) -> None:
        """Give it back."""
        if self._arrivals is not None:
            self._arrivals.leave(self.address)
        self._arrivals = None


class Bounded(Proven):
    """HTTP of one connection, whose requests must be whole in time."""

    def __init__(self, *args: Any, half_open: HalfOpen, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _TOLD
        self._half_open = half_open
        # None until the first request, which the class it comes from does not say.
        self.cycle: Any
        self.limit_concurrency: int | None
        self._deadline: asyncio.TimerHandle | None = None
        self.place: Place | None = None
        """That of a connection which comes from a handshake."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it as one that asks nothing, until it does."""
        super().connection_made(transport)
        self.connections.discard(self)
        self.place = self.place or self._half_open.place(transport)
        if self.place is None:
            transport.abort()
            return
        # It is not among those that are counted when its first request is: one less is full then.
        self._count_beside_itself(-1)
        self._half_open.add(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._end_deadline()
        self._half_open.forget(self)
        if self.place is not None:
            self.place.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go on with a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """The next request may begin, or this one is still not whole."""
        super().on_response_complete()
        self._look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, if there are not too many."""
        self._forget()
        limit: int | None = getattr(self, _LIMIT)
        if limit is not None and len(self.connections) >= limit:
            PUBLISH_ERRORS.labels("http", "busy").inc()
            self.transport.write(_FULL)
            self.transport.close()
            return
        super().handle_websocket_upgrade(event)
        socket = self.transport.get_protocol()
        if isinstance(socket, Socket):
            socket.place = self.place

    def give_up(self) -> None:
        """What it asks for did not come."""
        self._end_deadline()
        self._half_open.end(self)
        if self.place is not None:
            self.place.leave()  # what is written to it is little, and on its way
        if not self.transport.is_closing():
            asked = self._asked
            answers = asked is not None and asked.response_started and not asked.response_complete
            if self._is_unfinished() and not answers:
                PUBLISH_ERRORS.labels("http", "late").inc()
                self.transport.write(_LATE)
            self.transport.close()

    def abort(self) -> None:
        """Let go of it at once."""
        self.transport.abort()

    @property
    def _asked(self) -> Any:
        """The request under way, or the one before; None until the first."""
        asked: Any = self.cycle
        return asked

    def _look(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        answered = self._asked is not None and not self._asked.response_complete
        if answered and self not in self.connections:
            self._half_open.discard(self)
            self.connections.add(self)
            self._count_beside_itself(1)
        elif not answered and self in self.connections:
            self.connections.discard(self)
            self._count_beside_itself(-1)
            self._half_open.add(self)
        if not self._is_unfinished():
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._half_open.request_seconds, self.give_up)

    def _is_unfinished(self) -> bool:
        state = self.conn.their_state
        if state is h11.IDLE:
            # Between two requests, where nothing has come, keep-alive has its own limit.
            return self._asked is None or bool(self.conn.trailing_data[0])
        return state is h11.SEND_BODY

    def _count_beside_itself(self, more: int) -> None:
        if self.limit_concurrency is not None:
            self.limit_concurrency += more

    def _forget(self) -> None:
        self._end_deadline()
        self._half_open.discard(self)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Encrypted(asyncio.Protocol):
    """A connection whose TLS handshake is under way: half open, and over when that takes too long.

    Behind it, `Bounded` has the connection.
    """

    def __init__(self, *, context: ssl.SSLContext, half_open: HalfOpen, **options: Any) -> None:
        self._context = context
        self._half_open = half_open
        self._inner = Bounded(half_open=half_open, **options)
        self.loop: asyncio.AbstractEventLoop = self._inner.loop
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None
        self.place: Place | None = None
        self._early = b""
        """What came with the end of the handshake."""
        self._lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake."""
        self.place = self._half_open.place(transport)
        if self.place is None:
            transport.abort()
            return
        transport.pause_reading()  # until TLS reads
        self._transport = transport
        self._half_open.add(self)
        self._shaking = self.loop.create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        """Keep it for HTTP, which has the connection in a moment."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing to hand over."""
        del exc
        self._lost = True

    def give_up(self) -> None:
        """It takes too long."""
        self._half_open.end(self)
        self._leave()
        PUBLISH_ERRORS.labels("http", "late").inc()
        self.abort()

    def abort(self) -> None:
        """Let go of it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        if self.place is not None:
            self.place.leave()

    async def _shake(self, transport: asyncio.Transport) -> None:
        try:
            encrypted = await self.loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._half_open.request_seconds,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError:
            # No TLS, no certificate that we trust, or too slow: the same to us, and no news.
            PUBLISH_ERRORS.labels("http", "handshake").inc()
            transport.abort()
            self._leave()
            return
        finally:
            self._half_open.forget(self)
        if encrypted is None or self._lost:
            self._leave()
            return  # it went away meanwhile
        self._inner.place = self.place
        encrypted.set_protocol(self._inner)
        self._inner.connection_made(encrypted)
        if self._early:
            self._inner.data_received(self._early)


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket. What was received and not read is bounded, and so is what was not taken."""

    _unread_pongs = 0
    place: "Place | None" = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Uvicorn's writes the whole URL of every socket, and a URL may hold a token (Z9).
        self.logger = _TOLD

    def connection_lost(self, exc: Exception | None) -> None:
        """Give its place back."""
        if self.place is not None:
            self.place.leave()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        """Say something, if anybody can hear it.

        Two words are ours: `frames` of websocket.send are whole text frames, written as they are
        once there is room; `liveness_seconds` of websocket.accept is this socket's own.
        """
        if (self.close_sent or self.transport.is_closing()) and message["type"] == "websocket.send":
            raise ClientDisconnected
        frames: bytes | None = message.get("frames")
        if frames is not None:
            await self._send_frames(frames)
        else:
            if "liveness_seconds" in message:
                self._have_liveness(message["liveness_seconds"])
            await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            # Whom it was refused to has an answer, of which uvicorn would log that there is none.
            self.handshake_complete = True

    async def _send_frames(self, frames: bytes) -> None:
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        if self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(frames)

    def _have_liveness(self, seconds: float) -> None:
        """As `listen` has it for all, before the handshake is answered."""
        self.ping_interval = self.ping_timeout = seconds / 2
        bound = self.transport.get_extra_info("socket")
        if bound is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            waits = int(seconds * 1000)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, waits)

    def handle_ping(self) -> None:
        """Answer, unless nobody takes the answers."""
        super().handle_ping()
        self._unread_pongs = 0 if self.writable.is_set() else self._unread_pongs + 1
        if self._unread_pongs > _UNREAD_PONGS_MAX:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        """A piece of a message."""
        if len(self.frames) >= FRAGMENTS_MAX:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        if self.queue.qsize() >= WAITING_MAX:
            self._fail(CloseCode.POLICY_VIOLATION, "too many messages at once")
            return
        if self.curr_msg_data_type == "text":
            try:
                self.frames = [b"".join(self.frames)]
                self.frames[0].decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "no UTF-8")
                return
        super().send_receive_event_to_app()

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or with messages."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # HTTP let it through, and this does not: a line too long, or too many headers. Nobody
            # else would answer, and it would stay for ever.
            self.transport.write(_BAD)
            self.transport.close()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()  # tells it to both sides
