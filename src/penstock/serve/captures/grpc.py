"""Capture subscriptions over gRPC: `penstock.v1.CaptureService`.

Every call is one session and waits in its own write when its client is slow. Its commands are
taken one at a time, and no more of them while their answers wait to be sent.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.errors import (
    PenstockError,
    RequestError,
    ServiceUnavailableError,
)
from penstock.serve.access import calls
from penstock.serve.captures.messages import (
    messages,
    output_message,
    pong,
    refused,
    request_object,
)
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.shared import SharedCaptures
from penstock.serve.captures.sockets import Pace
from penstock.serve.grpc import Context, status_of
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    CaptureRequest,
    Finished,
    Session,
    parse_request,
)
from penstock.subscribe.captures.envelopes import envelope_of
from penstock.subscribe.scope import Scope
from penstock.telemetry import EVENTS_PUBLISHED, PUBLISH_ERRORS

_PROTOCOL: Final = "captures-grpc"
Parsed = TypeVar("Parsed", bound=Message)


def of_caller(context: Context) -> Scope:
    """What the caller may see, as the door of gRPC knows it."""
    del context
    return calls.principal().scope


class _Call:
    """One call: its session, and the one way out of it for what is sent."""

    def __init__(self, session: Session, context: Context, shared: SharedCaptures) -> None:
        self.session = session
        self._context = context
        self._shared = shared
        self._writing = asyncio.Lock()
        self._failure: Exception | None = None
        self._ended = False
        self.half_closed = False
        """The client sends nothing more."""
        self._envelope: str = ""
        self._published = EVENTS_PUBLISHED.labels(_PROTOCOL)

    def write_as(self, name: str) -> None:
        """Write captures in this envelope from now on; empty: as before. Raises RequestError for
        one that is unknown, and for another than was asked for first."""
        if not name:
            return
        envelope_of(name)
        if self._envelope not in {"", name} or (self.session.ids and not self._envelope):
            raise RequestError(
                f"envelope is {name}, and captures are written another way already. Nothing was "
                f"changed. Say it with the first requests of a call."
            )
        self._envelope = name

    async def send(self, outputs: Sequence[bytes]) -> None:
        """Write outputs; waits for a slow client."""
        async with self._writing:
            for message in messages(outputs):
                await self._context.write(message)

    def end(self, failure: Exception | None = None) -> None:
        """Let the call end, with `failure` if that is the first, where no write is torn."""
        self._failure = self._failure or failure
        self._ended = True
        self.session.close()

    async def no_more_commands(self) -> None:
        """The client has closed its side: the call ends once nothing is left to be sent."""
        self.half_closed = True
        await self.session.answered(waiting_max=0)
        if self.session.is_over:
            self.end()

    async def deliver(self) -> PenstockError | None:
        """Send what the session says until the call ends.

        Returns the error of the first request that failed. Raises why the call was ended.
        """
        failed: PenstockError | None = None
        while not (self.half_closed and self.session.is_over):
            try:
                outputs = await self.session.next()
            except ServiceUnavailableError:
                if not self._ended:
                    raise
                break
            envelope = envelope_of(self._envelope) if self._envelope else None
            await self.send([output_message(one, self._shared, envelope) for one in outputs])
            self._published.inc(sum(isinstance(one, Captured | Boundary) for one in outputs))
            for one in outputs:
                if isinstance(one, Finished):
                    failed = failed or one.error
        if self._failure is not None:
            raise self._failure
        return failed


class CaptureServicer:
    """Serves the capture subscriptions of `service`, which must run."""

    name = "penstock.v1.CaptureService"

    def __init__(
        self, service: CaptureService, *, scope_of: Callable[[Context], Scope] = of_caller
    ) -> None:
        """`scope_of` says what the caller may see."""
        self._service = service
        self._scope_of = scope_of
        self._calls: set[_Call] = set()
        self._stopping = False

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The methods by their paths; requests and responses are bytes."""
        untyped: Any = grpc
        methods = {
            "Captures": untyped.stream_stream_rpc_method_handler(self.captures),
            "Subscribe": untyped.unary_stream_rpc_method_handler(self.subscribe),
        }
        return (untyped.method_handlers_generic_handler(self.name, methods),)

    def interrupt(self) -> None:
        """Let every call end with a status that says so, at the next place where it can."""
        self._stopping = True
        for call in self._calls:
            call.end(_stopping())

    async def captures(self, commands: object, context: Context) -> None:
        """`penstock.v1.CaptureService/Captures`."""
        del commands  # read from the context, where who reads can be stopped

        async def run(call: _Call) -> None:
            obeying = asyncio.create_task(self._obey(call, context))
            try:
                await call.deliver()
            finally:
                obeying.cancel()
                await asyncio.wait({obeying})

        await self._answered(context, run, sends=True)

    async def subscribe(self, request: bytes, context: Context) -> None:
        """`penstock.v1.CaptureService/Subscribe`."""

        async def run(call: _Call) -> None:
            asked = _parsed(pb.CaptureSubscribeRequest, request)
            if not asked.requests:
                raise RequestError("no request is given. Nothing was sent. Give one or more.")
            if asked.HasField("credit"):
                raise RequestError("credit is of Captures, where more can be given. Nothing sent.")
            self._require_few(asked)
            call.write_as(asked.envelope)
            for one in [_request(one) for one in asked.requests]:
                await call.session.add(one)
            call.half_closed = True
            failed = await call.deliver()
            if failed is not None:
                raise failed

        await self._answered(context, run, sends=False)

    async def _answered(
        self, context: Context, run: Callable[[_Call], Awaitable[None]], *, sends: bool
    ) -> None:
        """Run one call to its end, and answer its error with its status: once (E14).

        The client `sends` a stream of commands, or has said everything.
        """
        entered = False
        try:
            if self._stopping:
                raise _stopping()
            scope = self._scope_of(context)
            with self._service.session(_PROTOCOL, scope=scope) as session:
                call = _Call(session, context, self._service.shared)
                self._calls.add(call)
                entered = True
                try:
                    await run(call)
                finally:
                    self._calls.discard(call)
        except PenstockError as error:
            PUBLISH_ERRORS.labels(_PROTOCOL, error.code).inc()
            code, trailers = status_of(error)
            if sends and not entered:
                await calls.let_send(context)
            await context.abort(code, str(error), trailers)
        except Exception:
            PUBLISH_ERRORS.labels(_PROTOCOL, "broken").inc()
            raise

    # --- commands -------------------------------------------------------------------------------

    async def _obey(self, call: _Call, context: Context) -> None:
        """Carry out commands until there are no more. Whatever goes wrong ends the call."""
        untyped: Any = context
        pace = Pace(self._service.config.messages_per_second)
        try:
            while True:
                await call.session.answered()
                await pace.wait()
                message = await untyped.read()
                if message is grpc.aio.EOF:
                    await call.no_more_commands()
                    return
                command = _parsed(pb.CaptureCommand, message)
                if command.WhichOneof("command") == "subscribe":
                    await self._subscribe(call, command.reference, command.subscribe)
                else:
                    await _carried_out(call, command)
        except Exception as error:  # who delivers raises it
            call.end(error)

    async def _subscribe(
        self, call: _Call, reference: str, asked: pb.CaptureSubscribeRequest
    ) -> None:
        """Begin several requests; one that cannot begin is refused by itself."""
        async with _refusing(call, reference):
            self._require_few(asked)
            call.write_as(asked.envelope)
            if asked.HasField("credit"):
                call.session.hold()
                if asked.credit:
                    call.session.request(asked.credit)
            for one in asked.requests:
                await call.session.answered()
                async with _refusing(call, reference, one.id):
                    await call.session.add(_request(one))

    def _require_few(self, asked: pb.CaptureSubscribeRequest) -> None:
        requests_max = self._service.config.requests_max
        if len(asked.requests) > requests_max:
            raise RequestError(
                f"a subscription has at most {requests_max} requests. Nothing was sent. Ask for "
                f"fewer, or open another."
            )


async def _carried_out(call: _Call, command: pb.CaptureCommand) -> None:
    """Carry out one command, or refuse it."""
    session = call.session
    which = command.WhichOneof("command")
    name = getattr(command, which).id if which in {"extend", "change", "limit"} else ""
    async with _refusing(call, command.reference, name):
        if which == "extend":
            await session.add(_request(command.extend))
        elif which == "change":
            if not name:
                raise RequestError("a change must name the id of a request. Nothing was changed.")
            await session.change(_request(command.change))
        elif which == "limit":
            session.remove(name)
        elif which == "request":
            session.request(command.request.n)
        elif which == "cancel":
            session.remove_all()
        elif which == "ping":
            await call.send([pong(command.reference, time.time_ns() // 1_000_000)])
        else:
            raise RequestError("the command is empty, or unknown here. Nothing was changed.")


@contextlib.asynccontextmanager
async def _refusing(call: _Call, reference: str, name: str = "") -> AsyncGenerator[None]:
    """Tell the client of an error in the block, unless the whole call ends."""
    try:
        yield
    except ServiceUnavailableError:
        raise
    except PenstockError as error:
        await call.send([refused(reference, name, error)])


def _request(asked: pb.CaptureRequest) -> CaptureRequest:
    return parse_request(request_object(asked), new_id=lambda: uuid.uuid4().hex)


def _parsed(kind: type[Parsed], message: bytes) -> Parsed:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise RequestError(
            f"a message is no {kind.__name__}. What was sent before is safe; subscribe again with "
            f"what you saved."
        ) from error


def _stopping() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "this service is stopping. What you processed is safe: subscribe again with the progress "
        "of the last capture you processed."
    )
