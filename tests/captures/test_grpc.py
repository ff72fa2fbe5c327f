"""Capture subscriptions over gRPC: the contract of every server, and what is gRPC's own."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.log.lmdb import LmdbLog
from penstock.progress import parse_progress
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.grpc import CaptureServicer
from penstock.serve.captures.service import CaptureService
from penstock.serve.grpc import GrpcServer
from penstock.testing.contracts.captures import CaptureServerContract
from penstock.testing.contracts.captures_base import (
    ALL,
    append_large,
    captures,
    sequences,
    until,
)
from penstock.testing.contracts.capturing import (
    StreamEndedError,
    committed,
    opened_log,
    singles,
    told,
)
from tests.captures.grpc_client import (
    CAPTURES,
    SUBSCRIBE,
    Endpoint,
    HeardClient,
    StreamEndpoint,
    captures_call,
    request_of,
    served,
    subscribe_call,
)

pytestmark = pytest.mark.slow


class GrpcContract(CaptureServerContract):
    async def test_what_cannot_be_meant_is_refused_by_name(self) -> None:
        """E8: a start that is both a version and a transaction cannot even be said."""
        async with self.served() as served:
            for asked, name in (
                ({"id": "a", "criteria": [{"area": "nonsense"}]}, "criteria[0].area"),
                ({"id": "a", "completeAfter": -1}, "completeAfter"),
                ({"id": "a", "since": "no marker"}, "no marker"),
                ({"id": "a", "since": {"version": 0, "index": 1}}, "since.version"),
                ({"id": "a", "since": {"timestamp": -1}}, "since.timestamp"),
                ({"id": "é"}, "id must be"),
            ):
                async with served.connect(asked) as client:
                    over = (await until(client, "refused"))[-1]
                assert over.code in {"request", "MALFORMED"}
                assert name in over.message


class TestCaptures(GrpcContract):
    @asynccontextmanager
    async def serving(self, service: CaptureService) -> AsyncGenerator[Endpoint]:
        async with served(service, scope_of=lambda _: self.scope) as server:
            yield Endpoint(server.address)


class TestSubscribe(GrpcContract):
    can_change = False
    has_credits = False

    @asynccontextmanager
    async def serving(self, service: CaptureService) -> AsyncGenerator[StreamEndpoint]:
        async with served(service, scope_of=lambda _: self.scope) as server:
            yield StreamEndpoint(server.address)


# --- what is gRPC's own --------------------------------------------------------------------------


@asynccontextmanager
async def calling(**options: Any) -> AsyncGenerator[tuple[LmdbLog, GrpcServer, grpc.aio.Channel]]:
    """A log, a server of it, and a channel to that."""
    config = CapturesConfig.model_validate({"maintenance_interval": 0.05, **options})
    async with (
        opened_log() as log,
        CaptureService(log, lambda: config).running() as service,
        served(service) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield log, server, channel


def raw_call(channel: grpc.aio.Channel) -> Any:
    """A call of bytes."""
    untyped: Any = channel
    return untyped.stream_stream(CAPTURES)()


async def status(call: Any) -> tuple[grpc.StatusCode, dict[str, str]]:
    """How a call ended, once all before it was read; a second status there cannot be."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    trailers = await call.trailing_metadata()
    return await call.code(), {str(name): str(one) for name, one in trailers or ()}


async def test_reflection_and_health_tell_of_it() -> None:
    async with calling() as (_, server, _channel):

        def ask() -> tuple[bool, list[str], int]:
            with grpc.insecure_channel(server.address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                service = DescriptorPool(database).FindServiceByName(CaptureServicer.name)
                health: Any = health_pb2_grpc.HealthStub(channel)
                asked = health_pb2.HealthCheckRequest(service=CaptureServicer.name)
                return (
                    CaptureServicer.name in database.get_services(),
                    [method.name for method in service.methods],
                    health.Check(asked).status,
                )

        assert await asyncio.to_thread(ask) == (True, ["Captures", "Subscribe"], 1)


async def test_bytes_that_are_no_command_end_the_call() -> None:
    async with calling() as (_, _server, channel):
        call = raw_call(channel)
        await call.write(b"\xff\xff\xff")
        code, trailers = await status(call)
        assert (code, trailers["penstock-code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "request")
        untyped: Any = channel
        code, _ = await status(untyped.unary_stream(SUBSCRIBE)(b"\xff"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        code, _ = await status(subscribe_call(channel))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_who_is_refused_may_send_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that writes when its call ends would take it for broken, and never learn why."""
    monkeypatch.setattr("penstock.serve.access.calls._FIRST_SECONDS_MAX", 60)
    async with calling(subscriptions_max=1) as (_, _server, channel):
        client = HeardClient(captures_call(channel))
        await client.extend({"id": "a", "criteria": [{"area": "data"}]})
        await until(client, "confirmed")
        call = raw_call(channel)
        await asyncio.sleep(0.1)
        assert not call.done()
        await call.write(b"")
        refused = (grpc.StatusCode.RESOURCE_EXHAUSTED, "service.busy")
        code, trailers = await status(call)
        assert (code, trailers["penstock-code"]) == refused
        # Whoever sends nothing does not stay for it.
        monkeypatch.setattr("penstock.serve.access.calls._FIRST_SECONDS_MAX", 0)
        code, trailers = await status(raw_call(channel))
        assert (code, trailers["penstock-code"]) == refused


async def test_a_command_that_cannot_be_is_refused_with_its_reference_and_the_rest_goes_on() -> (
    None
):
    async with calling() as (log, _server, channel):
        call = captures_call(channel)
        client = HeardClient(call)
        await client.extend({"id": "a", "criteria": [{"area": "data"}]})
        await until(client, "confirmed")
        commands: dict[str, dict[str, Any]] = {
            "none": {},
            "credit": {"request": pb.CaptureCredit(n=0)},
            "key": {"extend": _with_keys("{" * 2_000)},
            "json": {"extend": _with_keys("nonsense")},
            "deep": {"extend": _with_keys('{"a":' * 200 + "1" + "}" * 200, *["1"] * 1_000)},
            "deeper": {"extend": _with_keys("[" * 1_024)},
            "change": {"change": pb.CaptureRequest()},
        }
        for name, command in commands.items():
            await client.command(reference=name, **command)
            refused = None
            while refused is None:
                for output in (await call.read()).outputs:
                    if output.WhichOneof("output") == "refused":
                        refused = output.refused
            assert (refused.reference, refused.error.code) == (name, "request")
        await client.command(reference="alive", ping=pb.CapturePing())
        pongs = [
            output.pong.reference
            for output in (await call.read()).outputs
            if output.WhichOneof("output") == "pong"
        ]
        while not pongs:
            outputs = (await call.read()).outputs
            pongs = [one.pong.reference for one in outputs if one.WhichOneof("output") == "pong"]
        assert pongs == ["alive"]
        await log.append(singles(1, 1))
        assert sequences(await captures(client, 1)) == [1]


def _with_keys(*texts: str) -> pb.CaptureRequest:
    site = pb.CaptureSite(entity_primary_key=texts)
    return pb.CaptureRequest(criteria=[pb.CaptureCriterion(area=pb.AREA_DATA, site=site)])


@pytest.mark.parametrize(
    "request_",
    [
        pb.CaptureRequest(criteria=[pb.CaptureCriterion()] * 100_000),
        pb.CaptureRequest(
            criteria=[pb.CaptureCriterion(site=pb.CaptureSite(entity_type=[""] * 500_000))]
        ),
        pb.CaptureRequest(
            criteria=[pb.CaptureCriterion(site=pb.CaptureSite(fields=["x" * 1_000_000]))]
        ),
    ],
    ids=["criteria", "values", "text"],
)
async def test_a_request_larger_than_anybodys_is_refused(request_: pb.CaptureRequest) -> None:
    async with calling() as (_, _server, channel):
        client = HeardClient(captures_call(channel))
        await client.command(extend=request_)
        assert (await until(client, "refused"))[-1].code == "request"


async def test_more_requests_than_there_may_be_are_refused_at_once() -> None:
    async with calling(requests_max=3) as (_, _server, channel):
        call = captures_call(channel)
        asked = pb.CaptureSubscribeRequest(requests=[pb.CaptureRequest()] * 100_000)
        await call.write(pb.CaptureCommand(subscribe=asked))
        over = (await until(HeardClient(call), "refused"))[-1]
        assert "at most 3" in over.message
        code, _ = await status(subscribe_call(channel, *[{"id": name} for name in "abcd"]))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_who_floods_commands_and_reads_nothing_waits_alone() -> None:
    """Invariants 6 and 8: the server takes no more than it can answer."""
    async with calling() as (log, server, channel):
        flooding = captures_call(channel)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                for name in ("a", "b"):
                    request = pb.CaptureRequest(id=name, since=pb.CaptureSince(beginning=True))
                    await flooding.write(pb.CaptureCommand(extend=request))
                    limit = pb.CaptureLimit(id=name)
                    await flooding.write(pb.CaptureCommand(limit=limit))
                    credit = pb.CaptureCredit(n=(1 << 64) - 1)
                    await flooding.write(pb.CaptureCommand(request=credit))
                    ping = pb.CaptureCommand(reference="x" * 30_000, ping=pb.CapturePing())
                    await flooding.write(ping)
                    sent += 4

        task = asyncio.create_task(flood())
        asked = {"id": "healthy", "criteria": [{"area": "data"}]}
        async with Endpoint(server.address).connect(asked) as healthy:
            await until(healthy, "confirmed")
            for at in range(1, 21):
                await log.append(singles(at, at))
                assert sequences(await captures(healthy, 1)) == [at]
            before = -1
            while sent != before:  # until it is made to wait
                before = sent
                await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait({task})
        flooding.cancel()


async def test_a_call_ends_in_order_once_nothing_is_left() -> None:
    """E14: with OK behind everything, whether its requests ended before its side was closed."""
    async with calling() as (log, _server, channel):
        await log.append(singles(1, 3))
        two = {"id": "two", "since": "beginning", "completeAfter": 2}
        for closes_first in (True, False):
            call = captures_call(channel)
            client = HeardClient(call)
            await client.extend(two)
            if closes_first:
                await call.done_writing()
            found = await until(client, "finished")
            if not closes_first:
                await client.extend(two)
                await client.cancel_all()
                await call.done_writing()
                found = await until(client, "finished")
            assert found[-1].ids == ("two",)
            with pytest.raises(StreamEndedError) as ended:
                await until(client, "capture")
            assert ended.value.code == ""
        once = subscribe_call(channel, two)
        assert (await status(once))[0] is grpc.StatusCode.OK


async def test_a_single_request_that_fails_is_the_status_of_its_call() -> None:
    async with calling() as (log, _server, channel):
        await log.append([*singles(1, 1), committed(told(2, "gap"))])
        asked = {"id": "a", "since": "beginning", "criteria": [{"area": "data"}]}
        code, trailers = await status(subscribe_call(channel, asked))
        assert code is grpc.StatusCode.DATA_LOSS
        assert parse_progress(trailers["penstock-after"]).sequence == 2


@pytest.mark.parametrize("seed", range(8))
async def test_however_ends_race_a_call_has_one_status_and_the_server_goes_on(seed: int) -> None:
    """E14: the client cancels, closes, breaks its word; the service stops; inside writes too."""
    draw = random.Random(seed)
    async with calling() as (log, server, channel):
        await append_large(log, 400)
        asked = request_of({**ALL, "content": "body"})
        calls: list[Any] = []
        for _ in range(12):
            call = raw_call(channel)
            calls.append(call)
            begin = pb.CaptureCommand(extend=asked).SerializeToString()
            await call.write(begin)
            for _ in range(draw.randrange(3)):
                await call.read()
            for how in draw.sample(["cancel", "close", "break", "nothing"], 2):
                with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    if how == "cancel":
                        call.cancel()
                    elif how == "close":
                        await call.done_writing()
                    elif how == "break" and not call.done():
                        await call.write(b"\xff")
        stopping = asyncio.create_task(server.stop(0.2))
        ends = await asyncio.gather(*(_end(call) for call in calls))
        await stopping
        assert set(ends) <= {
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.INVALID_ARGUMENT,
        }


async def _end(call: Any) -> grpc.StatusCode:
    with contextlib.suppress(asyncio.CancelledError):
        return (await status(call))[0]
    return grpc.StatusCode.CANCELLED
