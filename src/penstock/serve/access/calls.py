"""The door of gRPC: an interceptor before every method but health and reflection.

`authorization: Bearer ...` in the metadata, or the certificate of mutual TLS. A method asks
`principal()` who calls it. A stream whose principal may not stay any more ends with
UNAUTHENTICATED, also while it waits for a client that takes nothing.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from penstock.errors import (
    ForbiddenError,
    PenstockError,
    RateLimitedError,
    RequestError,
    UnauthenticatedError,
)
from penstock.serve.access.actions import ACTIONS, Action, Need
from penstock.serve.access.door import Access, Visitor, names_of, receive, visitor
from penstock.serve.access.principals import ANYONE, Presented, Principal
from penstock.serve.broken import where
from penstock.serve.gate import Gate
from penstock.telemetry import PUBLISH_ERRORS

log = structlog.get_logger(__name__)

OPEN_STREAMS_MAX: Final = 64
"""Of the open methods, those that go on: everybody's together."""

BROKEN: Final = "the service failed to answer; its own log says where. Nothing was lost."
STATUS: Final = {
    UnauthenticatedError.code: grpc.StatusCode.UNAUTHENTICATED,
    ForbiddenError.code: grpc.StatusCode.PERMISSION_DENIED,
    RateLimitedError.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RequestError.code: grpc.StatusCode.INVALID_ARGUMENT,
}
_FIRST_SECONDS_MAX: Final = 1.0


def principal() -> Principal:
    """Who calls the method that asks this."""
    found = visitor()
    return ANYONE if found is None else found.principal


def presented_by(context: Any, address: str) -> Presented:
    """What came with a call from an address."""
    headers = [
        value for key, value in context.invocation_metadata() or () if key == "authorization"
    ]
    # Two of them are as good as none: which one counts would be a guess.
    header = headers[0] if len(headers) == 1 else "" if headers else None
    proven: dict[str, list[bytes]] = context.auth_context() or {}
    names = [
        name.decode(errors="replace")
        for kind in ("x509_common_name", "x509_subject_alternative_name")
        for name in proven.get(kind, ())
    ]
    return Presented(
        authorization=header if header is None or isinstance(header, str) else "",
        certificate=names_of(names),
        peer=address,
    )


class Guard(grpc.aio.ServerInterceptor):
    """Asks `access` before every method."""

    def __init__(self, access: Access, gate: Gate) -> None:
        """`gate` stands before the server, and knows from where calls come."""
        self._access = access
        self._gate = gate
        self._open_streams = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        action = ACTIONS.get(f"grpc {method}")
        if handler is None or action is None:
            return None
        is_open = action.needs is Need.NOTHING
        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        behaviour: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def guarded(request: Any, context: Any) -> Any:
            if is_open:
                goes_on = handler.response_streaming
                return await self._answer_anybody(behaviour, request, context, goes_on=goes_on)
            return await self._answer(
                method, action, behaviour, request, context, sends=handler.request_streaming
            )

        return make(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _answer(
        self,
        method: str,
        action: Action,
        behaviour: Any,
        request: Any,
        context: Any,
        *,
        sends: bool,
    ) -> Any:
        """Answer one call; the client `sends` a stream of messages."""
        endpoint, entered = f"grpc {method}", False
        try:
            address = self._gate.address_of(str(context.peer()))
            if address is None:
                raise UnauthenticatedError
            presented = presented_by(context, address)
            known = self._access.authenticate(presented, endpoint)
            self._access.require(known, action.needs, presented, endpoint)
            if not sends:
                action.refuse_size(len(request))
            self._gate.admit(str(context.peer()))
            with self._access.visiting(known, presented, endpoint):
                receive(
                    Visitor(
                        access=self._access,
                        principal=known,
                        presented=presented,
                        endpoint=endpoint,
                    )
                )
                entered = True
                return await self._stay(known, behaviour, request, context)
        except (
            UnauthenticatedError,
            ForbiddenError,
            RateLimitedError,
            RequestError,
        ) as error:
            PUBLISH_ERRORS.labels("grpc", error.code).inc()
            if sends and not entered:
                await let_send(context)
            await context.abort(STATUS[error.code], str(error), _trailers(error))
        except grpc.aio.BaseError:
            raise
        except Exception as error:
            # gRPC would send its text, and log it: it may quote a document.
            kind = type(error).__name__
            log.error("a call broke", method=method, error=kind, at=where(error))  # noqa: TRY400
            await context.abort(grpc.StatusCode.INTERNAL, BROKEN)

    async def _answer_anybody(
        self, behaviour: Any, request: Any, context: Any, *, goes_on: bool
    ) -> Any:
        """Health or reflection. A stream has a place too, for nobody is known by a token."""
        if not goes_on:
            self._gate.touch(str(context.peer()))
            return await _run(behaviour, request, context)
        if self._open_streams >= OPEN_STREAMS_MAX:
            error = RateLimitedError(what=f"{OPEN_STREAMS_MAX} open to anybody")
            PUBLISH_ERRORS.labels("grpc", error.code).inc()
            await context.abort(STATUS[error.code], str(error), _trailers(error))
        self._open_streams += 1
        self._gate.admit(str(context.peer()))
        try:
            return await _run(behaviour, request, context)
        finally:
            self._open_streams -= 1

    async def _stay(self, known: Principal, behaviour: Any, request: Any, context: Any) -> Any:
        """Run the method for as long as `known` may stay."""
        if known.way == "nobody":
            return await _run(behaviour, request, context)
        running = asyncio.ensure_future(_run(behaviour, request, context))
        leaving = asyncio.ensure_future(self._access.over(known))
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


async def let_send(context: Any) -> None:
    """Wait until the first message of a stream is there, from a client that is refused; at most for
    a second.

    gRPC's client for Python takes a call that ends while it writes for a broken one, and never
    tells the status with which it ended.
    """
    with contextlib.suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(_FIRST_SECONDS_MAX):
            await context.read()


async def _run(behaviour: Any, request: Any, context: Any) -> Any:
    """A method of either style of grpc.aio: one that writes, or one that yields."""
    if inspect.isasyncgenfunction(behaviour):
        answers: AsyncIterator[Any] = behaviour(request, context)
        async for one in answers:
            await context.write(one)
        return None
    return await behaviour(request, context)


def _trailers(error: PenstockError) -> tuple[tuple[str, str], ...]:
    return (("penstock-code", error.code),)
