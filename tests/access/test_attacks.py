"""What somebody tries who knows how the door works: one test for each way that was found open."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow.flight as fl
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.client import Credentials
from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import RateLimitedError, ServiceUnavailableError, UnauthenticatedError
from penstock.serve.access import Access, AccessConfig, Presented
from penstock.serve.access.calls import OPEN_STREAMS_MAX, Guard
from penstock.serve.access.record import AccessLog
from penstock.serve.access.web import Guard as WebGuard
from penstock.serve.access.web import principal_of
from penstock.serve.config import ServeConfig
from penstock.serve.gate import Gate, GateLimits
from penstock.serve.listen import bind, listen
from penstock.subscribe.scope import EVERYTHING
from penstock.telemetry import SERVE_REGISTRY
from tests.access.capturing import headers, shop, socket
from tests.access.support import bearer, issue, service
from tests.captures.grpc_client import SUBSCRIBE
from tests.captures.sockets import get, said, send
from tests.subscribe.events import change, commit
from tests.waiting import until


async def status(address: str, path: str, token: str | None = None, **more: str) -> int:
    asked = {**headers(token), **more}
    async with get(address, path, headers=asked) as answer:
        return answer.status


# --- who it is ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_address_that_a_client_claims_to_have_is_not_believed(tmp_path: Path) -> None:
    """Neither by the record nor by the limit of refusals, also from this machine."""
    issue(tmp_path / "access.json", "one")
    record = tmp_path / "record.jsonl"
    async with service(tmp_path, record=record, refusals_per_second=1) as served:
        found = [
            await status(served.http, "/metrics", "pst_x", **{"X-Forwarded-For": f"198.51.100.{n}"})
            for n in range(7)
        ]
        assert found[-1] == 429
    peers = {json.loads(line)["peer"] for line in record.read_text().splitlines()}
    assert peers - {""} == {"127.0.0.1"}, "and the line that counts the last ones has none"


@pytest.mark.slow
async def test_a_ticket_gives_no_other_ticket(tmp_path: Path) -> None:
    """Else whoever saw one in an address could live on by the next, and the next."""
    token = issue(tmp_path / "access.json", "one")
    async with service(tmp_path) as served:
        async with get(served.http, "/ticket", headers=headers(token), method="POST") as answer:
            ticket = (await answer.body())["ticket"]
        path = f"/ticket?ticket={ticket}"
        async with get(served.http, path, method="POST") as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    "path", ["/graphql", "/rest/openapi.json", "/rest/shop/changes", "/ticket", "/snapshot/x"]
)
def test_an_open_path_cannot_lie_where_others_must_say_who_they_are(path: str) -> None:
    with pytest.raises(ValueError, match="health_path"):
        ServeConfig.model_validate({"health_path": path})


@pytest.mark.slow
async def test_whoever_comes_by_an_open_path_sees_nothing(tmp_path: Path) -> None:
    """Whatever is behind it one day: nobody known is not everybody."""
    issue(tmp_path / "access.json", "one")
    for access, expected in (
        (Access(AccessConfig(tokens=tmp_path / "access.json")), False),
        (Access(AccessConfig()), True),
    ):

        async def shown(request: Request) -> Response:
            return PlainTextResponse(str(principal_of(request).scope == EVERYTHING))

        app = WebGuard(Starlette(routes=[Route("/open", shown)]), access, ["/open"])
        async with (
            await listen(app, "127.0.0.1:0", connections_max=4, advice="") as server,
            get(server.address, "/open") as answer,
        ):
            assert await answer.text() == str(expected)


# --- how much of it -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_client_cannot_take_all_subscriptions(tmp_path: Path) -> None:
    """However many of them it begins on how few connections."""
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one"), issue(tokens, "other")
    few = {"captures": {"subscriptions_max": 8}}
    async with (
        service(tmp_path, serve=few, subscriptions_max=4) as served,
        socket(served, one) as first,
        socket(served, one) as second,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        answers: list[str] = []
        for connection in (first, second):
            await send(connection, "connection_init")
            assert (await said(connection))["type"] == "connection_ack"
            for number in range(4):
                await send(connection, "subscribe", id=f"s{number}", payload={"since": "now"})
                answers.append((await said(connection))["type"])
        assert answers == [*["next"] * 4, *["error"] * 4]
        assert served.captures.subscriptions == 4
        assert await status(served.http, "/rest/shop/events", one) == 429
        untyped: Any = channel
        asked = pb.CaptureSubscribeRequest(requests=[pb.CaptureRequest()]).SerializeToString()
        call = untyped.unary_stream(SUBSCRIBE)(asked, metadata=bearer(one))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await status(served.http, "/rest/shop/events", other) == 200
        await first.close()
        await until(lambda: not served.captures.subscriptions)
        assert await status(served.http, "/rest/shop/events", one) == 200


@pytest.mark.slow
async def test_one_client_cannot_take_all_reads_over_flight(tmp_path: Path) -> None:
    """By asking for much and taking none of it."""
    tokens = tmp_path / "access.json"
    one, other = issue(tokens, "one"), issue(tokens, "other")
    async with service(tmp_path) as served:
        for position in range(1, 40):
            large = change(position, document={"_id": 1, "x": "x" * (1 << 20)})
            await served.log.append([commit(large)])
        bounds = await served.log.bounds()
        request = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head, batch_bytes=1)

        def attack() -> None:
            with contextlib.ExitStack() as stack:

                def begin(token: str) -> None:
                    shown = Credentials(token=token)
                    client = LogClient(served.flight, patience_seconds=0, credentials=shown)
                    batches: Any = stack.enter_context(client).read(request)
                    stack.callback(batches.close)
                    next(batches)

                for _ in range(12):
                    begin(one)
                with pytest.raises(ServiceUnavailableError, match="12 at a time"):
                    begin(one)
                begin(other)

        await asyncio.to_thread(attack)


@pytest.mark.slow
async def test_streams_that_are_open_to_anybody_are_bounded_and_checks_are_answered(
    tmp_path: Path,
) -> None:
    issue(tmp_path / "access.json", "one")
    async with (
        service(tmp_path) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        watched = [stub.Watch(asked) for _ in range(OPEN_STREAMS_MAX)]
        for one in watched:
            assert (await one.read()).status == health_pb2.HealthCheckResponse.SERVING
        more = stub.Watch(asked)
        assert await more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        for one in watched:
            one.cancel()
        while True:
            again = stub.Watch(asked)
            try:
                if await again.read() is not grpc.aio.EOF:
                    break
            except grpc.aio.AioRpcError:
                continue
        again.cancel()


# --- what is written down -----------------------------------------------------------------------


async def test_of_a_call_that_breaks_nobody_is_told_the_text(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC would send it to the client, and log it: it may quote a document."""

    async def breaks(_: bytes, context: Any) -> None:
        await context.write(b"")
        raise ValueError("a document")

    untyped: Any = grpc
    gate = Gate("grpc", bind("127.0.0.1:0", backlog=8, advice=""), GateLimits())
    server = grpc.aio.server(interceptors=(Guard(Access(AccessConfig()), gate),))
    handlers = {"Snapshot": untyped.unary_stream_rpc_method_handler(breaks)}
    name = "penstock.v1.PullerService"
    server.add_generic_rpc_handlers((untyped.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gate.start(port)
    with capture_logs() as lines:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gate.port}") as channel:
            untyped = channel
            call = untyped.unary_stream(f"/{name}/Snapshot")(b"")
            await call.read()
            assert await call.code() is grpc.StatusCode.INTERNAL
            assert "a document" not in await call.details()
    await server.stop(None)
    gate.stop()
    assert [(one["event"], one["error"]) for one in lines] == [("a call broke", "ValueError")]
    assert "a document" not in f"{lines}{caplog.text}{capfd.readouterr().err}"


@pytest.mark.slow
async def test_of_a_read_over_flight_that_breaks_the_text_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    token = issue(tmp_path / "access.json", "one")

    def broken() -> Any:
        raise ValueError("a document")

    async with service(tmp_path) as served:
        monkeypatch.setattr(served.log, "bounds_now", broken)

        def ask() -> None:
            shown = Credentials(token=token)
            with (
                LogClient(served.flight, patience_seconds=0, credentials=shown) as client,
                pytest.raises(fl.FlightInternalError) as caught,
            ):
                client.bounds()
            assert "a document" not in str(caught.value)

        with capture_logs() as lines:
            await asyncio.to_thread(ask)
        monkeypatch.undo()
    told = [one for one in lines if one["event"] == "flight request failed"]
    assert [one["error"] for one in told] == ["ValueError"]
    assert "a document" not in f"{lines}{capfd.readouterr().err}"


@pytest.mark.slow
async def test_every_refusal_is_in_the_record(tmp_path: Path) -> None:
    """Also that of who was known: too many places, and nothing to follow, over gRPC too."""
    tokens, record = tmp_path / "access.json", tmp_path / "record.jsonl"
    token, operator = issue(tokens, "one"), issue(tokens, "operator", verbs=("admin",))
    async with (
        shop(tmp_path, record=record, connections_max=1) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        path = "/rest/shop/events"
        async with get(served.http, path, headers=headers(token)) as first:
            assert first.status == 200
            assert await status(served.http, path, token) == 429
        untyped: Any = channel
        asked = pb.CaptureSubscribeRequest(requests=[pb.CaptureRequest()]).SerializeToString()
        call = untyped.unary_stream(SUBSCRIBE)(asked, metadata=bearer(operator))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        with capture_logs() as lines, contextlib.suppress(InvalidStatus):
            async with socket(served, token, origin="https://evil.example"):
                pass
        assert not [one for one in lines if one["log_level"] == "error"]
    refused = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(one["who"], one["code"]) for one in refused if not one["allowed"]] == [
        ("token:one", "service.limited"),
        ("token:operator", "access.forbidden"),
        ("", "access.unauthenticated"),
    ]


def test_a_line_of_the_record_that_is_not_whole_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = AccessLog(tmp_path / "record.jsonl")
    write = os.write

    def torn(file: int, data: bytes) -> int:
        return write(file, data[:10])

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OSError, match="part of a line"):
        record.tell(None, Presented(), "test")
    record.close()


# --- odd input ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_number_of_thousands_of_digits_is_refused_as_any_other(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "one")
    digits = "1" * 6_000
    async with shop(tmp_path) as served:
        for name in ("sinceTransaction", "sinceVersion", "limit", "completeAfter", "after"):
            path = f"/rest/shop/changes?{name}={digits}"
            assert await status(served.http, path, token) == 400, name
        path = f"/rest/shop.db/entities/orders/{digits}"
        assert await status(served.http, path, token) == 410
        assert await status(served.http, f"/rest/shop.db/entities/orders/1?asOf={digits}", token)


# --- the record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("addresses", [1, 10_000])
def test_refusals_beyond_the_limit_are_counted_not_written(tmp_path: Path, addresses: int) -> None:
    """However many addresses they come from, and of one who is known and asks too often."""
    path, now = tmp_path / "record.jsonl", 1_000.0
    token = issue(tmp_path / "access.json", "one")
    config = AccessConfig(
        tokens=tmp_path / "access.json",
        log=path,
        refusals_per_second=2,
        requests_per_second=1,
        requests_burst=3,
    )
    access = Access(config, clock=lambda: now)
    before = _refusals()

    def ask(number: int, header: str) -> None:
        peer = f"peer {number % addresses}"
        with contextlib.suppress(UnauthenticatedError, RateLimitedError):
            access.authenticate(Presented(authorization=header, peer=peer), "http /metrics")

    for number in range(3_000):
        ask(number, "Bearer wrong")
        ask(number, f"Bearer {token}")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    refused = [one["who"] for one in lines if not one["allowed"]]
    assert (refused.count(""), refused.count("token:one")) == (10, 10)
    assert sum(one["allowed"] for one in lines) == 3
    now += 61.0
    ask(0, f"Bearer {token}")
    ask(0, "Bearer wrong")
    access.close()
    counted = [json.loads(line) for line in path.read_text().splitlines()][len(lines) :]
    assert counted[0]["refusals"] == 2_990 + 2_987
    assert [one["allowed"] for one in counted] == [False, True, False]
    assert _refusals() - before == 3_001 + 2_997


def test_what_was_counted_is_said_at_the_end_too(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = AccessLog(path, refusals_per_second=1, clock=lambda: 0.0)
    for _ in range(9):
        record.tell(None, Presented(), "http /", code="access.unauthenticated")
    record.close()
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["code"], last["refusals"]) == ("access.counted", 4)


def test_refusals_that_a_full_disk_did_not_take_are_counted_until_it_does(tmp_path: Path) -> None:
    path, now = tmp_path / "record.jsonl", 0.0
    path.symlink_to("/dev/full")
    record = AccessLog(path, refusals_per_second=1, clock=lambda: now)

    def refuse() -> None:
        record.tell(None, Presented(), "http /", code="access.unauthenticated")

    for number in range(9):
        with pytest.raises(OSError, match="space") if number < 5 else contextlib.nullcontext():
            refuse()
    now += 61.0
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            refuse()
    with capture_logs() as logs:
        record.close()
    assert [(one["event"], one["refusals"]) for one in logs] == [("refusals not recorded", 11)]


def test_refusals_that_were_not_written_are_told_once_there_is_room(tmp_path: Path) -> None:
    path, now = tmp_path / "record.jsonl", 0.0
    path.symlink_to("/dev/full")
    record = AccessLog(path, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            record.tell(None, Presented(), "http /", code="access.unauthenticated")
        now += 61.0
    path.unlink()
    record.tell(None, Presented(), "http /")
    record.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one.get("refusals") for one in lines] == [3, None]


def _refusals() -> float:
    name = "penstock_access_refusals_total"
    codes = ("access.unauthenticated", "service.limited")
    return sum(SERVE_REGISTRY.get_sample_value(name, {"code": one}) or 0.0 for one in codes)
