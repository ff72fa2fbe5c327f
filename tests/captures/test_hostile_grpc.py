"""Clients of gRPC that mean harm: each gets a defined answer, and nobody else notices.

As in test_hostile.py, with a third client that follows over gRPC.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock._generated.penstock.v1 import captures_pb2 as pb
from tests.captures.grpc_client import CAPTURES, SUBSCRIBE, captures_call, request_of
from tests.captures.sockets import get
from tests.captures.test_hostile import (
    DATA,
    Place,
    attacked,
    follow_socket,
    head,
    reach,
    service,
)
from tests.cli.service import Service
from tests.seeds import seed_of
from tests.waiting import patience, until

__all__ = ["service"]  # a fixture

pytestmark = pytest.mark.slow
BODIES = request_of({**DATA, "content": "body"})
ALONE = (("grpc.use_local_subchannel_pool", 1),)
"""Of a channel with a connection of its own."""


async def follow_calls(address: str, found: list[Place]) -> None:
    async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
        call = captures_call(channel)
        asked = pb.CaptureSubscribeRequest(requests=[request_of(DATA)])
        await call.write(pb.CaptureCommand(subscribe=asked))
        while True:
            found.extend(
                (output.capture.version, output.capture.index)
                for output in (await call.read()).outputs
                if output.HasField("capture")
            )


@asynccontextmanager
async def attacked_by_calls(service: Service) -> AsyncGenerator[tuple[str, grpc.aio.Channel]]:
    """The block attacks by the channel; afterwards all must be as if it had not."""
    address = service.ready["grpc"]
    found: list[Place] = []
    again: list[Place] = []
    following = [asyncio.create_task(follow_calls(address, found))]
    try:
        await reach(found, (1, 1), following[0])
        async with attacked(service) as http:
            before = await readers(http)
            async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
                yield address, channel

            async def all_gone() -> bool:
                return await readers(http) <= before

            await until(all_gone)
            async with patience():
                last = await head(http)
                await reach(found, last, following[0])
                following.append(asyncio.create_task(follow_socket(http, again)))
                await reach(again, last, following[-1])
            end = again.index(last) + 1
            assert found[:end] == again[:end]
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    assert "broke" not in service.errors()


async def readers(http: str) -> int:
    """How many capture calls there are, by the metrics."""
    async with get(http, "/metrics") as answer:
        text = await answer.text()
    prefix = 'penstock_readers{protocol="captures-grpc"} '
    return sum(int(float(line[len(prefix) :])) for line in text.splitlines() if prefix in line)


def raw_call(channel: grpc.aio.Channel) -> Any:
    """A call whose messages are bytes."""
    untyped: Any = channel
    return untyped.stream_stream(CAPTURES)()


async def ended(call: Any) -> grpc.StatusCode:
    """Read to the end; the status."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    status: grpc.StatusCode = await call.code()
    return status


def nonsense(draw: random.Random) -> bytes:
    """Something that may be a command."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    names = ["", "a", "a", "b", "\x00", "é" * 300]
    content: Any = draw.choice([0, 1, 2, 99])
    request = pb.CaptureRequest(
        id=draw.choice(names),
        content=content,
        complete_after=draw.choice([0, 1, (1 << 64) - 1]),
    )
    site = request.criteria.add(area=draw.choice([0, 1, 2, 3, 99])).site
    site.fields.append(draw.choice(["", "at", "a" * 10_000, "$.x", "a..b"]))
    site.entity_primary_key.append(draw.choice(["", "{", "5", "[" * 3_000, '{"$oid":1}', "\x00"]))
    request.since.version.version = draw.choice([0, 1, (1 << 64) - 1])
    if draw.randrange(3) == 0:
        request.since.progress = draw.choice(["", "x", "A" * 28, "é" * 5_000])
    command = pb.CaptureCommand(reference=draw.choice(names))
    if kind == 1:
        command.subscribe.requests.extend([request] * draw.choice([0, 1, 3]))
        command.subscribe.credit = draw.choice([0, 1, (1 << 63), (1 << 64) - 1])
    elif kind == 2:
        command.extend.CopyFrom(request)
    elif kind == 3:
        command.change.CopyFrom(request)
    elif kind == 4:
        command.limit.id = draw.choice(names)
    else:
        command.request.n = draw.choice([0, 1, (1 << 63), (1 << 64) - 1])
    data = command.SerializeToString()
    if draw.randrange(6) == 0 and data:
        at = draw.randrange(len(data))
        data = data[:at] + draw.randbytes(2) + data[at + 1 :]
    return data


async def test_whatever_a_call_says_it_is_answered_or_ended_with_a_status(
    service: Service,
) -> None:
    """E15. Seeded."""
    seed = seed_of("hostile commands")
    draw = random.Random(seed)
    async with attacked_by_calls(service) as (_, channel):
        for _ in range(200):
            said = [nonsense(draw) for _ in range(draw.randrange(1, 10))]
            call = raw_call(channel)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for one in said:
                    await call.write(one)
                ping = pb.CaptureCommand(reference="are you there", ping=pb.CapturePing())
                await call.write(ping.SerializeToString())
            answered = False
            with contextlib.suppress(grpc.aio.AioRpcError):
                while not answered and (message := await call.read()) is not grpc.aio.EOF:
                    outputs = pb.CaptureMessage.FromString(message).outputs
                    answered = any(
                        one.HasField("pong") and one.pong.reference == "are you there"
                        for one in outputs
                    )
            if not answered:
                code, text = await call.code(), await call.details()
                # The second is what this client says when it was writing while the call ended.
                wanted = (
                    code is grpc.StatusCode.INVALID_ARGUMENT,
                    text == "Internal error from Core",
                )
                assert any(wanted), (seed, code, text, said)
            call.cancel()


async def test_messages_and_filters_that_are_too_large_are_refused_and_large_ones_are_served(
    service: Service,
) -> None:
    names = [f"name{number}" for number in range(1_000)]
    large = request_of(
        {"criteria": [{"area": "data", "site": {"entityType": names, "fields": names}}] * 16}
    )
    wrong: list[dict[str, Any]] = [
        {"criteria": [{}] * 65},
        {"criteria": [{"area": "data", "site": {"entityType": [*names, "one more"]}}]},
        {"criteria": [{"area": "data", "site": {"entityType": "x" * 513}}]},
        {"id": "x" * 257},
    ]
    async with attacked_by_calls(service) as (_, channel):
        call = captures_call(channel)
        for given in wrong:
            await call.write(pb.CaptureCommand(extend=request_of(given)))
            (output,) = (await call.read()).outputs
            assert output.refused.error.code == "request"
        for number in range(20):
            one = pb.CaptureRequest()
            one.CopyFrom(large)
            one.id = f"l{number}"
            await call.write(pb.CaptureCommand(extend=one))
            while not any(output.HasField("confirmed") for output in (await call.read()).outputs):
                pass
        call.cancel()
        call = raw_call(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(b"\x00" * (5 << 20))
        assert await ended(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        many = pb.CaptureSubscribeRequest(requests=[pb.CaptureRequest()] * 20_000)
        untyped: Any = channel
        call = untyped.unary_stream(SUBSCRIBE)(many.SerializeToString())
        assert await ended(call) is grpc.StatusCode.INVALID_ARGUMENT


COMMANDS_MAX = 20_000


async def flood(
    channel: grpc.aio.Channel, commands: list[bytes], seconds: float, most: int = COMMANDS_MAX
) -> int:
    """Say this again and again and read nothing, until the server takes no more; how often."""
    call = raw_call(channel)
    said = 0
    with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while said < most:
            for one in commands:
                async with asyncio.timeout(seconds):
                    await call.write(one)
                said += 1
    call.cancel()
    return said


def command(**said: Any) -> bytes:
    return pb.CaptureCommand(**said).SerializeToString()


WRONG = pb.CaptureRequest(id="x" * 300)
STORMS = {
    "extend and cancel": [command(extend=BODIES), command(cancel=pb.CaptureCancel())],
    "refused": [command(reference="r" * 5_000, extend=WRONG)] * 10,
    "subscribe": [
        command(subscribe=pb.CaptureSubscribeRequest(requests=[BODIES] * 100)),
        command(cancel=pb.CaptureCancel()),
    ],
    "change": [
        command(extend=pb.CaptureRequest(id="a" * 250)),
        *[command(change=pb.CaptureRequest(id="a" * 250))] * 1_000,
    ],
    "ping": [command(reference="p" * 50_000, ping=pb.CapturePing())],
    "limit": [command(limit=pb.CaptureLimit(id=f"unknown{n}")) for n in range(100)],
}
UNANSWERED = {"extend and cancel", "limit"}
"""Storms of which no answers are left: what was cancelled before it was told is not told."""


@pytest.mark.parametrize(
    "storm",
    # Half a minute for what others are held up by as well.
    [pytest.param(one, marks=pytest.mark.soak) if one == "change" else one for one in STORMS],
)
async def test_a_storm_from_who_reads_no_answers_is_held_up(service: Service, storm: str) -> None:
    """E13: it waits, and nothing gathers."""
    async with attacked_by_calls(service) as (address, _), contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=ALONE))
            for _ in range(4)
        ]
        # The answers to a change are so short that windows hold those to tens of thousands.
        most = 10 * COMMANDS_MAX if storm == "change" else COMMANDS_MAX
        said = await asyncio.gather(*(flood(one, STORMS[storm], 2.0, most) for one in channels))
        assert (max(said) < most) is (storm not in UNANSWERED)


async def test_who_never_reads_costs_the_others_nothing(service: Service) -> None:
    """E13: also who closed its own side, and who asked for all of it at once."""
    async with attacked_by_calls(service) as (address, _), contextlib.AsyncExitStack() as stack:
        for number in range(20):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=ALONE)
            )
            if number % 2:
                untyped: Any = channel
                asked = pb.CaptureSubscribeRequest(requests=[BODIES] * 5)
                stack.callback(untyped.unary_stream(SUBSCRIBE)(asked.SerializeToString()).cancel)
                continue
            call = captures_call(channel)
            stack.callback(call.cancel)
            for _ in range(5):
                await call.write(pb.CaptureCommand(extend=BODIES))
            if number % 4:
                await call.done_writing()
        http = service.ready["http"]
        for _ in range(3):
            await reach_new(http)


async def reach_new(http: str) -> None:
    """Wait for a change that is new now."""
    found: list[Place] = []
    task = asyncio.create_task(follow_socket(http, found))
    try:
        await reach(found, await head(http), task)
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_calls_that_are_cancelled_at_any_moment_leave_nothing(service: Service) -> None:
    """Seeded: before a command, in the middle of many, behind the first answer."""
    draw = random.Random(seed_of("cancelled calls"))
    async with attacked_by_calls(service) as (_, channel):

        async def one() -> None:
            call = captures_call(channel)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                for _ in range(draw.randrange(4)):
                    await call.write(pb.CaptureCommand(extend=BODIES))
                if draw.randrange(2):
                    await call.read()
                if draw.randrange(3) == 0:
                    await call.done_writing()
            call.cancel()

        for _ in range(20):
            await asyncio.gather(*(one() for _ in range(50)))


async def test_a_call_that_is_half_closed_ends_when_it_has_nothing_more_to_say(
    service: Service,
) -> None:
    async with attacked_by_calls(service) as (_, channel):
        calls = [captures_call(channel) for _ in range(50)]
        for call in calls:
            await call.done_writing()
        assert {await ended(call) for call in calls} == {grpc.StatusCode.OK}
        call = captures_call(channel)
        asked = request_of({**DATA, "completeAfter": 3})
        await call.write(pb.CaptureCommand(extend=asked))
        await call.done_writing()
        assert await ended(call) is grpc.StatusCode.OK
        call = captures_call(channel)
        await call.write(pb.CaptureCommand(extend=WRONG))
        await call.done_writing()
        assert await ended(call) is grpc.StatusCode.OK


async def test_more_calls_than_there_may_be_are_told_to_come_back(service: Service) -> None:
    async with attacked_by_calls(service) as (_, channel):
        calls = [captures_call(channel) for _ in range(250)]
        for call in calls:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pb.CaptureCommand(ping=pb.CapturePing()))
        codes = list[grpc.StatusCode]()
        for call in calls:
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                codes.append(error.code())
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert 50 <= len(codes) < 250
        for call in calls:
            call.cancel()


async def test_credit_beyond_counting_is_all_there_can_be_over_calls(service: Service) -> None:
    async with attacked_by_calls(service) as (_, channel):
        call = captures_call(channel)
        asked = pb.CaptureSubscribeRequest(requests=[request_of(DATA)], credit=0)
        await call.write(pb.CaptureCommand(subscribe=asked))
        for count in (1 << 63, (1 << 64) - 1, (1 << 64) - 1):
            await call.write(pb.CaptureCommand(request=pb.CaptureCredit(n=count)))
        heard = 0
        while heard < 50:
            heard += sum(one.HasField("capture") for one in (await call.read()).outputs)
        call.cancel()
