"""What a client hears over gRPC, without ours: calls by the method's path, and messages."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import msgspec

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.serve.captures.grpc import CaptureServicer, of_caller
from penstock.serve.captures.service import CaptureService
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import GrpcServer, serve_grpc
from penstock.subscribe.scope import Scope
from penstock.testing.contracts.capturing import Asked, Heard, StreamEndedError

CAPTURES = "/penstock.v1.CaptureService/Captures"
SUBSCRIBE = "/penstock.v1.CaptureService/Subscribe"
Call = Any
"""A call of gRPC, which has no type that its stubs could name."""


@asynccontextmanager
async def served(
    service: CaptureService, *, scope_of: Callable[[Any], Scope] = of_caller, **options: Any
) -> AsyncGenerator[GrpcServer]:
    """A gRPC server of a service that runs, on a free port."""
    config = ServeConfig.model_validate({"grpc": "127.0.0.1:0", **options})
    beside = [CaptureServicer(service, scope_of=scope_of)]
    async with await serve_grpc(service.log, config, beside=beside) as server:
        yield server


def captures_call(channel: grpc.aio.Channel) -> Call:
    """One bidirectional call."""
    untyped: Any = channel
    return untyped.stream_stream(
        CAPTURES,
        request_serializer=pb.CaptureCommand.SerializeToString,
        response_deserializer=pb.CaptureMessage.FromString,
    )()


def subscribe_call(channel: grpc.aio.Channel, *requests: Asked, envelope: str = "") -> Call:
    """One server-streaming call."""
    untyped: Any = channel
    asked = pb.CaptureSubscribeRequest(
        requests=[request_of(one) for one in requests], envelope=envelope
    )
    return untyped.unary_stream(
        SUBSCRIBE,
        request_serializer=pb.CaptureSubscribeRequest.SerializeToString,
        response_deserializer=pb.CaptureMessage.FromString,
    )(asked)


# --- requests ------------------------------------------------------------------------------------


def request_of(asked: Asked) -> pb.CaptureRequest:
    """A request as a message. What gRPC cannot say becomes what it can say that is as wrong."""
    request = pb.CaptureRequest(
        id=asked.get("id", ""),
        before_images=asked.get("beforeImages", False),
        complete_after=asked.get("completeAfter", 0) % (1 << 64),
        content=number_of(pb.CaptureContent, asked.get("content", "header")),
    )
    for given in asked.get("criteria", ()):
        criterion = request.criteria.add(area=number_of(pb.CaptureArea, given.get("area", "any")))
        if given.get("site") is not None:
            criterion.site.CopyFrom(site_of(given["site"]))
    since: Any = asked.get("since")
    if isinstance(since, str):
        since = {"beginning": True} if since == "beginning" else {"progress": since}
    if since and "version" in since:
        request.since.version.version = since["version"]
        request.since.version.index = since.get("index", 0)
    elif since and "transactionId" in since:
        said = since["transactionId"]
        name = "commit" if isinstance(said, int) else "transaction"
        setattr(request.since, name, said)
    elif since:
        ((name, said),) = since.items()
        setattr(request.since, name, said)
    return request


def site_of(given: Mapping[str, Any]) -> pb.CaptureSite:
    """A site as a message."""

    def listed(name: str) -> list[Any]:
        said: Any = given.get(name)
        if said is None:
            return []
        return cast("list[Any]", said) if isinstance(said, list) else [said]  # type: ignore[redundant-cast]

    return pb.CaptureSite(
        catalog=listed("catalog"),
        entity_type=listed("entityType"),
        entity_primary_key=[
            msgspec.json.encode(one).decode() for one in listed("entityPrimaryKey")
        ],
        operation=listed("operation"),
        container_type=[number_of(pb.CaptureContainer, one) for one in listed("containerType")],
        fields=listed("fields"),
    )


def number_of(kind: Any, word: str) -> Any:
    """The value that a word is called, or one that has no word."""
    return {name.partition("_")[2].lower(): number for name, number in kind.items()}.get(word, 99)


# --- what is heard -------------------------------------------------------------------------------


def heard_of(output: pb.CaptureOutput) -> Heard | None:
    """One thing that was told; None of a pong."""
    which = output.WhichOneof("output")
    if which == "confirmed":
        said = output.confirmed
        return Heard(
            kind="confirmed",
            ids=(said.request_id,),
            progress=said.progress,
            version=said.version,
            waiting=said.waiting,
        )
    if which in {"capture", "boundary"} and (enveloped := getattr(output, which).enveloped):
        return Heard(kind="capture", said=msgspec.json.decode(enveloped))
    if which == "capture":
        return _capture(output.capture)
    if which == "boundary":
        edge = output.boundary
        return Heard(
            kind="capture",
            ids=tuple(edge.request_ids),
            progress=edge.progress,
            version=edge.version,
            index=edge.index,
            area="infrastructure",
            operation="begin" if edge.begins else "commit",
            mutation_count=edge.mutation_count,
            matched=dict(edge.matched),
        )
    if which == "maintenance":
        told = output.maintenance
        return (
            Heard(kind="maintenance", progress=told.progress, positions=dict(told.positions))
            if told.progress
            else None
        )
    if which == "finished":
        ended = output.finished
        return _over("finished", ended.request_id, ended.error)
    if which == "refused":
        return _over("refused", output.refused.request_id, output.refused.error)
    return None


def _over(kind: Any, name: str, error: pb.CaptureError) -> Heard:
    return Heard(
        kind=kind,
        ids=(name,) if name else (),
        code=error.code,
        message=error.message,
        oldest=error.oldest or error.after,
    )


def _capture(said: pb.Capture) -> Heard:
    body: dict[str, Any] | None = None
    if said.HasField("body"):
        named = {
            "fullDocument": said.body.full_document,
            "updateDescription": said.body.update_description,
            "fullDocumentBeforeChange": said.body.full_document_before_change,
        }
        body = {name: msgspec.json.decode(text) for name, text in named.items() if text}
    return Heard(
        kind="capture",
        ids=tuple(said.request_ids),
        progress=said.progress,
        version=said.version,
        index=said.index,
        area=pb.CaptureArea.Name(said.area).partition("_")[2].lower(),
        operation=said.operation,
        entity_type=said.entity_type,
        body=body,
    )


class HeardClient:
    """A `CaptureClient` over either method."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waiting: list[Heard] = []

    async def next(self) -> Heard:
        while not self._waiting:
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise StreamEndedError(_code(error.code(), error.trailing_metadata())) from error
            if message is grpc.aio.EOF:
                raise StreamEndedError(
                    _code(await self._call.code(), await self._call.trailing_metadata())
                )
            found = [heard_of(output) for output in message.outputs]
            self._waiting = [one for one in found if one is not None]
        return self._waiting.pop(0)

    async def extend(self, *requests: Asked) -> None:
        for one in requests:
            await self.command(extend=request_of(one))

    async def change(self, request: Asked) -> None:
        await self.command(change=request_of(request))

    async def limit(self, *ids: str) -> None:
        for one in ids:
            await self.command(limit=pb.CaptureLimit(id=one))

    async def cancel_all(self) -> None:
        await self.command(cancel=pb.CaptureCancel())

    async def request(self, count: int) -> None:
        await self.command(request=pb.CaptureCredit(n=count))

    async def abort(self) -> None:
        self._call.cancel()

    async def command(self, **said: Any) -> None:
        """Send any command."""
        await self._call.write(pb.CaptureCommand(**said))


def _code(status: grpc.StatusCode, metadata: Any) -> str:
    if status is grpc.StatusCode.OK:
        return ""
    trailers = {str(name): str(one) for name, one in metadata or ()}
    return trailers.get("penstock-code", str(status.name))


class Endpoint:
    """A `CaptureEndpoint` of the bidirectional method."""

    def __init__(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AsyncGenerator[HeardClient]:
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = captures_call(channel)
            asked = pb.CaptureSubscribeRequest(
                requests=[request_of(one) for one in requests], credit=credit, envelope=envelope
            )
            # It is refused, and may be over already: `next` says so.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pb.CaptureCommand(subscribe=asked))
            try:
                yield HeardClient(call)
            finally:
                call.cancel()


class StreamEndpoint:
    """A `CaptureEndpoint` of the server-streaming method."""

    def __init__(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AsyncGenerator[HeardClient]:
        assert credit is None
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = subscribe_call(channel, *requests, envelope=envelope)
            try:
                yield StreamClient(call)
            finally:
                call.cancel()


class StreamClient(HeardClient):
    """Where a request cannot begin, the call says so and not a message of it."""

    async def next(self) -> Heard:
        try:
            return await super().next()
        except StreamEndedError as error:
            cause = error.__cause__
            if not isinstance(cause, grpc.aio.AioRpcError) or error.code.startswith("service"):
                raise
            trailers = {str(name): str(one) for name, one in cause.trailing_metadata() or ()}
            return Heard(
                kind="refused",
                code=error.code,
                message=cause.details() or "",
                oldest=trailers.get("penstock-oldest", trailers.get("penstock-after", "")),
            )


def outputs_of(messages: Sequence[pb.CaptureMessage]) -> list[pb.CaptureOutput]:
    return [output for message in messages for output in message.outputs]
