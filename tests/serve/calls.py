"""Calls of `penstock.v1.PullerService` without our client."""

from typing import Any

import grpc.aio

from penstock._generated.penstock.v1 import penstock_pb2 as pb

Call = Any
"""A response stream of gRPC, which has no type that its stubs could name."""


def subscribe(channel: grpc.aio.Channel, **request: Any) -> Call:
    """One Event a message."""
    untyped: Any = channel
    return untyped.unary_stream(
        "/penstock.v1.PullerService/Subscribe",
        request_serializer=pb.SubscribeRequest.SerializeToString,
        response_deserializer=pb.Event.FromString,
    )(pb.SubscribeRequest(**request))


def subscribe_batch(channel: grpc.aio.Channel, **request: Any) -> Call:
    """Many Events a message."""
    untyped: Any = channel
    return untyped.unary_stream(
        "/penstock.v1.PullerService/SubscribeBatch",
        request_serializer=pb.SubscribeRequest.SerializeToString,
        response_deserializer=pb.EventBatch.FromString,
    )(pb.SubscribeRequest(**request))


async def take(call: Call, count: int) -> list[Any]:
    """The next `count` messages."""
    return [await call.read() for _ in range(count)]


async def events_until(call: Call, sequence: int) -> list[pb.Event]:
    """Events of a batched or single stream, up to the one at `sequence`."""
    events: list[pb.Event] = []
    while not events or events[-1].sequence < sequence:
        message = await call.read()
        events.extend(message.events if isinstance(message, pb.EventBatch) else [message])
    return events


async def failure(call: Call) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a stream ends, once everything before it was read: status, sentence, trailers."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        trailers = {str(key): str(value) for key, value in error.trailing_metadata()}
        return error.code(), error.details() or "", trailers
    raise AssertionError("the stream ended without an error")
