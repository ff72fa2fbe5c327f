"""A subscription over gRPC: one call at a time, made again when its connection is lost."""

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio
import structlog

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.client.captures.events import Event, boundary_of, capture_of, confirmed_of
from penstock.client.captures.keeping import Request
from penstock.client.captures.wanted import Wanted
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.remote import channel, error_of
from penstock.client.retry import Backoff, Retry
from penstock.errors import PenstockError, RequestError, ServiceUnavailableError
from penstock.progress import parse_progress

log = structlog.get_logger(__name__)

METHOD: Final = "/penstock.v1.CaptureService/Captures"
RETRY: Final = Retry()
_CHANGE: Final = "change "
_AS_MANY_AS_THERE_ARE: Final = 1 << 53
SILENCE_SECONDS: Final = 10.0


def connect(
    target: str,
    *,
    retry: Retry | None = RETRY,
    silence_seconds: float = SILENCE_SECONDS,
    credentials: Credentials = NOBODY,
) -> "CaptureClient":
    """A client of the service at `target` ("host:port"); connects when it subscribes.

    With `retry`, a subscription whose connection is lost is made again, each of its requests from
    its own place: nothing is missed and nothing comes twice. None: it raises
    ServiceUnavailableError then. So is a connection lost on which nothing comes for twice the
    interval of the service's maintenance and `silence_seconds` more. `credentials` say who
    subscribes, and whom to trust.
    """
    return CaptureClient(target, retry, silence_seconds, credentials)


class CaptureClient:
    """One connection, and the subscriptions on it. Leaving its block ends them all."""

    def __init__(
        self, target: str, retry: Retry | None, silence_seconds: float, credentials: Credentials
    ) -> None:
        self._target = target
        self._credentials = credentials
        self._retry = retry
        self._silence_seconds = silence_seconds
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        self._channel = channel(self._target, self._credentials)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def subscribe(
        self, *wanted: Wanted, credit: int | None = None, envelope: str = ""
    ) -> "Subscription":
        """A subscription with these requests, once the service has confirmed all of them.

        `credit` captures may come before more are allowed by `request`; None: as many as there
        are. `envelope`: "debezium", "debezium-mongodb", "cloudevents" or "penstock"; what comes has
        all of itself in it as JSON, in `enveloped`. Raises what refuses a request: RequestError,
        and the ProgressErrors, TrimmedError with its `oldest` among them. Nothing was begun then.
        """
        if self._channel is None:
            raise RequestError("a client subscribes inside its `async with`. Nothing was sent.")
        subscription = Subscription(
            self._channel,
            self._retry,
            credit=credit,
            envelope=envelope,
            silence_seconds=self._silence_seconds,
            headers=self._credentials.headers(self._target),
        )
        await subscription.begin(wanted)
        return subscription


class Subscription:
    """An async iterator of captures and edges of transactions, over its requests.

    It ends when no request is left. An error of one request is raised, once, and iterating goes on
    with the others; `requests` says which it was. What is handed out counts as processed once the
    next is asked for: `positions` and `progress` are what is safe to save. It holds at most two
    messages of the service; who does not iterate lets the service wait.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        retry: Retry | None,
        *,
        credit: int | None,
        envelope: str = "",
        silence_seconds: float,
        headers: list[tuple[str, str]],
    ) -> None:
        self._channel = channel
        self._headers = headers
        self._silence_seconds = silence_seconds
        self._backoff = None if retry is None else Backoff(retry)
        self._credit = credit
        self._envelope = envelope
        self._granted = False
        """The call was told of the credit."""
        self._owed = 0
        """Credit that repeats have used."""
        self._requests: dict[str, Request] = {}
        self._changes = 0
        self._call: Any = None
        self._outputs: deque[pb.CaptureOutput] = deque()
        self._receiving: asyncio.Task[Any] | None = None
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._interval_seconds = 0.0
        self._safe: dict[str, str] = {}

    # --- what it says ---------------------------------------------------------------------------

    @property
    def requests(self) -> Mapping[str, Request]:
        """The requests that there are, by their ids."""
        return self._requests

    @property
    def positions(self) -> Mapping[str, str]:
        """Each request's own marker that is safe to save; none of who waits for its start."""
        return {name: place for name, place in self._safe.items() if place}

    @property
    def progress(self) -> str:
        """The marker that is safe for all requests; empty while one of them has none."""
        return (
            ""
            if not all(self._safe.values())
            else min(self._safe.values(), key=_sequence, default="")
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next; waits for it. May be cancelled and asked again: nothing is skipped."""
        while True:
            self._settle()
            while self._outputs:
                try:
                    event = self._take(self._outputs.popleft())
                except PenstockError as error:
                    if not error.transient:
                        raise
                    await self._wait_after(error)
                    break
                if event is not None:
                    return event
                self._settle()
            if not self._requests:
                raise StopAsyncIteration
            await self._receive()

    def _settle(self) -> None:
        self._safe = {name: one.position for name, one in self._requests.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it, without a word to its requests. What is safe can still be asked."""
        await self._disconnect()
        self._requests.clear()

    def __del__(self) -> None:
        # Someone let go. The task ends the call in its own loop.
        if self._receiving is not None and not self._receiving.done():
            self._receiving.cancel()

    # --- what is asked --------------------------------------------------------------------------

    async def begin(self, wanted: tuple[Wanted, ...]) -> None:
        """Connect, and begin these requests: see `CaptureClient.subscribe`."""
        for one in wanted:
            self._add(one)
        while True:
            try:
                await self._connect()
                break
            except PenstockError as error:
                await self._wait_after(error)
        for output in self._outputs:
            if output.WhichOneof("output") == "refused":
                await self.aclose()
                raise _error(output.refused.error, output.refused.request_id)
        while self._outputs and self._outputs[0].WhichOneof("output") == "confirmed":
            self._take(self._outputs.popleft())
        self._settle()

    async def extend(self, wanted: Wanted) -> Request:
        """Add a request; what it gets comes among the rest. `confirmed` is set once the
        subscription was read so far. Iterating raises what refuses it."""
        request = self._add(wanted)
        await self._send(pb.CaptureCommand(reference="extend", extend=request.again()))
        return request

    async def change(self, name: str, wanted: Wanted) -> None:
        """Replace what a request asks for. Without `since` it goes on from where it is."""
        request = self._requests.get(name)
        if request is None:
            raise RequestError(f"there is no request {name}. Nothing was changed.")
        asked = wanted.named(name).message()
        self._changes += 1
        reference = f"{_CHANGE}{self._changes}"
        request.change(asked, reference)
        await self._send(pb.CaptureCommand(reference=reference, change=asked))

    async def limit(self, name: str) -> None:
        """Remove a request. Nothing of it is handed out once this returned."""
        request = self._requests.get(name)
        if request is None:
            raise RequestError(f"there is no request {name}. Nothing was changed.")
        request.removed = True
        await self._send(pb.CaptureCommand(reference="limit", limit=pb.CaptureLimit(id=name)))

    async def request(self, count: int) -> None:
        """Allow `count` captures more. Raises RequestError for less than one."""
        if count < 1:
            raise RequestError("request(n) must be at least 1. Nothing was changed.")
        if self._credit is not None:
            self._credit = min(self._credit + count, _AS_MANY_AS_THERE_ARE)
            if self._granted:
                await self._send(_credit(min(count, _AS_MANY_AS_THERE_ARE)))

    async def cancel(self) -> None:
        """Remove every request; iterating ends, unless it is extended again."""
        for request in self._requests.values():
            request.removed = True
        await self._send(pb.CaptureCommand(reference="cancel", cancel=pb.CaptureCancel()))

    def _add(self, wanted: Wanted) -> Request:
        asked = wanted.message()
        asked.id = asked.id or uuid.uuid4().hex
        if asked.id in self._requests:
            raise RequestError(f"the id {asked.id} is in use here. Nothing was changed.")
        request = self._requests[asked.id] = Request(asked)
        return request

    async def _send(self, command: pb.CaptureCommand) -> None:
        """Send a command; on no connection, the next one says it."""
        if self._call is None:
            return
        write = asyncio.create_task(self._write(self._call, command))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        # Whoever waits may be cancelled; a write that is torn would end the call.
        await asyncio.wait({write})

    async def _write(self, call: Any, command: pb.CaptureCommand) -> None:
        async with self._writing:
            # Of a call that is over: who reads it learns why, and asks again.
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                await call.write(command)

    # --- connections ----------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Begin a call with every request, and read until all of them are answered.

        No capture is allowed to come before, so what is read here is small.
        """
        for name in [name for name, one in self._requests.items() if one.removed]:
            self._requests.pop(name).end()
        if not self._requests:
            return
        untyped: Any = self._channel
        try:
            self._call = untyped.stream_stream(
                METHOD,
                request_serializer=pb.CaptureCommand.SerializeToString,
                response_deserializer=pb.CaptureMessage.FromString,
            )(metadata=self._headers)
            asked = [one.again() for one in self._requests.values()]
            await self._ask(asked)
        except BaseException:
            await self._disconnect()  # also of who stops waiting: half a beginning is none
            raise

    async def _ask(self, asked: list[pb.CaptureRequest]) -> None:
        subscribe = pb.CaptureSubscribeRequest(requests=asked, credit=0, envelope=self._envelope)
        await self._send(pb.CaptureCommand(reference="subscribe", subscribe=subscribe))
        waiting = {one.id for one in asked}
        while waiting:
            for output in (await self._read()).outputs:
                self._outputs.append(output)
                which = output.WhichOneof("output")
                if which in {"confirmed", "refused", "finished"}:
                    waiting.discard(getattr(output, which).request_id)
                if which == "refused" and not output.refused.request_id:
                    raise _error(output.refused.error, "")
        self._owed = 0
        self._granted = True
        credit = _AS_MANY_AS_THERE_ARE if self._credit is None else self._credit
        if credit:
            await self._send(_credit(credit))

    async def _read(self) -> pb.CaptureMessage:
        """The next message. May be cancelled: the next call waits for the same one."""
        call = self._call
        reading = self._receiving or asyncio.create_task(_next(call))
        self._receiving = reading
        interval = self._interval_seconds
        silence = 2 * interval + self._silence_seconds if interval else None
        done, _ = await asyncio.wait({reading}, timeout=silence)
        if not done:
            await self._disconnect()
            raise ServiceUnavailableError(
                "the service said nothing for too long. What you processed is safe."
            )
        self._receiving = None
        if reading.cancelled():
            raise RequestError("the client was closed. What you processed is safe.")
        try:
            message = reading.result()
        except grpc.aio.AioRpcError as error:
            await self._disconnect()
            trailers = {str(name): str(one) for name, one in error.trailing_metadata() or ()}
            raise error_of(error.code(), error.details() or "", trailers) from error
        if message is grpc.aio.EOF:
            await self._disconnect()
            raise ServiceUnavailableError(
                "the service ended the subscription without a reason. What you processed is safe."
            )
        # Asked for now: it arrives while the consumer works on this one.
        self._receiving = asyncio.create_task(_next(call))
        assert isinstance(message, pb.CaptureMessage)
        return message

    async def _receive(self) -> None:
        """Read more, from another connection if there is none."""
        try:
            if self._call is None:
                await self._connect()
                return
            if self._owed and self._credit is not None:
                owed, self._owed = self._owed, 0
                await self._send(_credit(owed))
            self._outputs.extend((await self._read()).outputs)
        except PenstockError as error:
            await self._wait_after(error)

    async def _wait_after(self, error: PenstockError) -> None:
        """Wait before another connection. Raises `error` if no other one may help."""
        await self._disconnect()
        wait_seconds = None
        if error.transient and self._backoff is not None:
            wait_seconds = self._backoff.next_wait()
        if wait_seconds is None:
            raise error
        assert self._backoff is not None
        log.warning(
            "service unavailable, subscribing again",
            code=error.code,
            attempt=self._backoff.failures,
            wait_seconds=round(wait_seconds, 3),
        )
        await asyncio.sleep(wait_seconds)

    async def _disconnect(self) -> None:
        call, self._call = self._call, None
        receiving, self._receiving = self._receiving, None
        self._granted = False
        self._outputs.clear()  # what of it was not handed out comes again
        if call is not None:
            call.cancel()
        if receiving is not None:
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.exception()  # whatever it was, nobody asks for it any more
        if self._writes:
            await asyncio.wait(set(self._writes))

    # --- what comes -----------------------------------------------------------------------------

    def _take(self, output: pb.CaptureOutput) -> Event | None:
        """What an output hands out, if it is new. Raises the error of a request, or that a
        transaction was not whole."""
        which = output.WhichOneof("output")
        if which == "capture":
            return self._take_capture(output.capture)
        if which == "boundary":
            return self._take_boundary(output.boundary)
        if which == "confirmed":
            self._take_confirmed(output.confirmed)
        elif which == "maintenance":
            self._works()
            self._interval_seconds = output.maintenance.interval_ms / 1000
            for name, place in output.maintenance.positions.items():
                if name in self._requests:
                    self._requests[name].maintain(place)
        elif which == "finished":
            self._take_finished(output.finished)
        elif which == "refused":
            self._take_refused(output.refused)
        return None

    def _take_capture(self, said: pb.Capture) -> Event | None:
        self._came()
        ids = tuple(
            name
            for name in said.request_ids
            if name in self._requests
            and self._requests[name].take(said.version, said.index, said.progress)
            and not self._requests[name].removed
        )
        return capture_of(said, ids) if self._is_new(ids) else None

    def _take_boundary(self, said: pb.CaptureBoundary) -> Event | None:
        self._came()
        ids: list[str] = []
        for name in said.request_ids:
            request = self._requests.get(name)
            if request is None or request.removed:
                continue
            new = (
                request.take_begin(said.version, said.matched[name], said.progress)
                if said.begins
                else request.take_end(said.version, said.progress)
            )
            if new:
                ids.append(name)
        return boundary_of(said, tuple(ids)) if self._is_new(tuple(ids)) else None

    def _works(self) -> None:
        """The service does more than to confirm: what fails from now on is a first failure."""
        if self._backoff is not None:
            self._backoff.reset()

    def _came(self) -> None:
        self._works()
        if self._credit:
            self._credit -= 1

    def _is_new(self, ids: tuple[str, ...]) -> bool:
        """Whether something is handed out; else its credit is given again."""
        if not ids and self._credit is not None:
            self._credit += 1
            self._owed += 1
        return bool(ids)

    def _take_confirmed(self, said: pb.CaptureConfirmed) -> None:
        request = self._requests.get(said.request_id)
        if request is not None:
            request.confirm(confirmed_of(said))

    def _take_finished(self, said: pb.CaptureFinished) -> None:
        request = self._requests.get(said.request_id)
        if request is None:
            return
        error = _error(said.error, request.id) if said.HasField("error") else None
        if error is not None and error.transient:
            raise error  # which does not end it: it goes on from where it is
        del self._requests[request.id]
        request.end(error)
        if error is not None:
            raise error

    def _take_refused(self, said: pb.CaptureRefused) -> None:
        error = _error(said.error, said.request_id)
        request = self._requests.get(said.request_id)
        if said.reference == "limit":
            return  # it had ended by itself, which was told
        if request is not None and said.reference.startswith(_CHANGE):
            request.keep(said.reference)
        elif request is not None:
            del self._requests[request.id]
            request.end(error)
        raise error


async def _next(call: Any) -> Any:
    return await call.read()


def _credit(count: int) -> pb.CaptureCommand:
    return pb.CaptureCommand(reference="request", request=pb.CaptureCredit(n=count))


def _error(said: pb.CaptureError, name: str) -> PenstockError:
    """The error that the service told, of its class and with its sentence and markers."""
    trailers = {
        "penstock-code": said.code,
        "penstock-oldest": said.oldest,
        "penstock-after": said.after,
    }
    error = error_of(grpc.StatusCode.UNKNOWN, said.message, trailers)
    if name:
        error.add_note(f"of request {name}")
    return error


def _sequence(marker: str) -> int:
    return parse_progress(marker).sequence
