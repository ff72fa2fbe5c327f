"""Connections of gRPC, Flight and HTTP are bounded: in all, of one address, and before a token."""

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow.flight as fl
import pytest
from grpc_health.v1 import health_pb2
from structlog.testing import capture_logs

from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient, ReadRequest
from penstock.clocks import SystemClock
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.access import Access, AccessConfig
from penstock.serve.arrivals import TOLD_SECONDS, Arrivals, network_of
from penstock.serve.config import ServeConfig
from penstock.serve.dynamodb.captured.index import CapturedIndex
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.server import serving_captured
from penstock.serve.flight import FlightServer
from penstock.serve.gate import Gate, GateLimits, gate_limits
from penstock.serve.grpc import serve_grpc
from penstock.serve.listen import bind
from penstock.telemetry import SERVE_REGISTRY
from tests.access.capturing import events
from tests.access.support import ALL, bearer, issue, service
from tests.waiting import PATIENCE_SECONDS, until, wait_until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def refused(reason: str, port: str = "test") -> float:
    labels = {"port": port, "reason": reason}
    return SERVE_REGISTRY.get_sample_value("penstock_connections_refused_total", labels) or 0.0


def taken(port: str = "test") -> float:
    return SERVE_REGISTRY.get_sample_value("penstock_connections", {"port": port}) or 0.0


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not hung up."""
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


class Echo:
    """A server behind a gate that says everything again, and reads only while it is let."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.reading = threading.Event()
        self.reading.set()
        self.peers: list[str] = []
        self.held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Be gone, as the server is when its gate stops."""
        self.listening.close()
        self.reading.set()
        for connection in self.held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, (host, port) = self.listening.accept()
                self.peers.append(f"ipv4:{host}:{port}")
                self.held.append(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while self.reading.wait() and (data := connection.recv(1 << 16)):
                connection.sendall(data)


@contextmanager
def gated(**limits: Any) -> Generator[tuple[Gate, Echo]]:
    echo = Echo()
    gate = Gate("test", bind("127.0.0.1:0", backlog=64, advice=""), GateLimits(**limits))
    gate.start(echo.listening.getsockname()[1])
    try:
        yield gate, echo
    finally:
        echo.close()
        gate.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[Gate], socket.socket]]:
    held: list[socket.socket] = []

    def made(gate: Gate) -> socket.socket:
        held.append(socket.create_connection(("127.0.0.1", gate.port), PATIENCE_SECONDS))
        return held[-1]

    yield made
    for one in held:
        one.close()


Connect = Callable[[Gate], socket.socket]


def known(gate: Gate, echo: Echo, connection: socket.socket) -> str:
    """Have a call of this connection let in, the newest; what the server calls it."""
    connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    gate.admit(echo.peers[-1])
    return echo.peers[-1]


def test_bytes_pass_in_both_directions_and_the_address_is_told(connect: Connect) -> None:
    with gated() as (gate, echo):
        connection = connect(gate)
        peer = known(gate, echo, connection)
        assert gate.address_of(peer) == "127.0.0.1"
        data = bytes(range(256)) * 20_000
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        came = b""
        while len(came) < len(data):
            came += connection.recv(1 << 16)
        sending.join()
        assert came == data
        connection.close()
        wait_until(lambda: gate.address_of(peer) is None)


def test_what_is_beyond_all_places_is_closed(connect: Connect) -> None:
    with gated(in_all=3) as (gate, echo):
        before = refused("in_all")
        first = [connect(gate) for _ in range(3)]
        one_more = connect(gate)
        wait_until(lambda: not is_open(one_more))
        assert all(map(is_open, first))
        assert refused("in_all") == before + 1
        first[0].close()
        wait_until(lambda: taken() == 2)
        known(gate, echo, connect(gate))


def test_one_address_has_a_part_of_the_places(connect: Connect) -> None:
    with gated(of_one_address=2) as (gate, echo):
        for _ in range(2):
            known(gate, echo, connect(gate))
        before = refused("of_one_address")
        connect(gate)
        wait_until(lambda: refused("of_one_address") > before)


def test_the_oldest_that_wait_make_room_and_those_let_in_stay(connect: Connect) -> None:
    with gated(waiting=3, waiting_of_one_address=3) as (gate, echo):
        friend = connect(gate)
        known(gate, echo, friend)
        strangers = [connect(gate) for _ in range(9)]
        wait_until(lambda: [is_open(one) for one in strangers] == [False] * 6 + [True] * 3)
        assert is_open(friend)


def test_who_asks_for_nothing_is_closed_in_time_and_who_asked_stays(connect: Connect) -> None:
    with gated(waiting_seconds=0.2) as (gate, echo):
        friend, before = connect(gate), refused("late")
        known(gate, echo, friend)
        stranger = connect(gate)
        wait_until(lambda: not is_open(stranger))
        assert refused("late") > before
        assert is_open(friend)


def test_little_is_taken_before_a_call_is_let_in_and_between_two_calls(connect: Connect) -> None:
    with gated(first_bytes=1000, call_bytes=5000) as (gate, echo):
        echo.reading.clear()
        stranger = connect(gate)
        before = refused("large")
        stranger.sendall(b"x" * 1001)
        wait_until(lambda: not is_open(stranger))
        assert refused("large") == before + 1
        echo.reading.set()
        friend = connect(gate)
        for _ in range(3):
            known(gate, echo, friend)
            friend.sendall(b"x" * 4000)
            left = 4000
            while left:
                left -= len(friend.recv(left))
        with contextlib.suppress(OSError):
            friend.sendall(b"x" * 10_000)
        wait_until(lambda: not is_open(friend))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_what_is_refused_is_told_once_a_minute() -> None:
    now = 0.0
    arrivals = Arrivals("test", in_all=1, of_one_address=1, clock=lambda: now)
    assert arrivals.enter("a")
    with capture_logs() as lines:
        for _ in range(1000):
            assert not arrivals.enter("b")
        now = TOLD_SECONDS
        arrivals.enter("b")
    assert [one["in_all"] for one in lines] == [1, 1000]


def test_loopback_addresses_may_be_spared() -> None:
    """Behind a proxy on this machine, all clients have one address."""
    arrivals = Arrivals("test", in_all=20, of_one_address=2, spares_loopback=True)
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "::1"):
        assert all(arrivals.enter(address) for _ in range(4))
    for address in ("192.0.2.7", "2001:db8::1", ""):
        assert [arrivals.enter(address) for _ in range(3)] == [True, True, False]
        assert arrivals.why_full(address) == "of_one_address"
    assert arrivals.enter("127.0.0.1")
    assert arrivals.enter("127.0.0.1")
    assert arrivals.why_full("127.0.0.1") == "in_all"


# --- the servers --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpc", "flight"])
async def test_a_crowd_of_strangers_keeps_nobody_out(tmp_path: Path, kind: str) -> None:
    """They say HTTP/2's first words and no more, which neither library bounds."""
    token = issue(tmp_path / "access.json", "reader", verbs=ALL)
    # A queue of listening that holds the whole crowd: who does not fit in comes in later than the
    # client, as one that is newer than it at its address.
    limits = {"connections": {"waiting": 8, "in_all": 200}, "request_timeout": 3.0}
    config = ServeConfig.model_validate({"grpc": "127.0.0.1:0", **limits})
    access = Access(AccessConfig(tokens=tmp_path / "access.json"))
    log, held = MemoryLog(), list[socket.socket]()
    before = refused("waiting", kind)

    def crowd(address: str) -> None:
        for _ in range(100):
            one = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
            with contextlib.suppress(OSError):
                one.sendall(PREFACE)
            held.append(one)

    try:
        if kind == "grpc":
            async with await serve_grpc(log, config, access=access) as server:
                await asyncio.to_thread(crowd, server.address)
                async with grpc.aio.insecure_channel(server.address) as channel:
                    untyped: Any = channel
                    name = "/penstock.v1.PullerService/Subscribe"
                    call = untyped.unary_stream(name)(b"", metadata=bearer(token))
                    if not await call.initial_metadata():
                        pytest.fail(f"{await call.code()}: {await call.details()}")
                    # Whoever was let in stays, also when the others are all gone.
                    await until(lambda: not any(map(is_open, held)))
                    assert not call.done()
                    call.cancel()
                    checked = untyped.unary_unary(
                        "/grpc.health.v1.Health/Check",
                        response_deserializer=health_pb2.HealthCheckResponse.FromString,
                    )
                    assert (await checked(b"")).status == health_pb2.HealthCheckResponse.SERVING
        else:
            flight = FlightServer(log, access=access, limits=gate_limits(config))
            flight.start()
            try:
                await asyncio.to_thread(crowd, flight.address)
                shown = Credentials(token=token)
                with LogClient(flight.address, patience_seconds=0, credentials=shown) as client:
                    await asyncio.to_thread(client.bounds)
                    await until(lambda: not any(map(is_open, held)))
                    await asyncio.to_thread(client.bounds)
            finally:
                await asyncio.to_thread(flight.stop)
    finally:
        for one in held:
            one.close()
        await log.close()
    assert refused("waiting", kind) >= before + 50


def _call(message: bytes) -> bytes:
    """HTTP/2 of one call of Flight's DoAction, its message compressed with gzip, by nobody."""
    packed = gzip.compress(message)

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return (
            struct.pack(">I", len(payload))[1:]
            + bytes([kind, flags])
            + struct.pack(">I", stream)
            + payload
        )

    headers = b""
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/arrow.flight.protocol.FlightService/DoAction",
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
        "grpc-encoding": "gzip",
    }.items():
        headers += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)
    body = b"\1" + struct.pack(">I", len(packed)) + packed
    for at in range(0, len(body), 16_000):
        said += frame(0, 0, 1, body[at : at + 16_000])
    return said


@pytest.mark.slow
async def test_a_large_request_over_flight_is_not_taken_compressed_or_not(tmp_path: Path) -> None:
    issue(tmp_path / "access.json", "reader")
    async with service(tmp_path) as served:
        before = refused("large", "flight")
        with fl.connect(f"grpc://{served.flight}") as client:
            asked = fl.Action("bounds", b"x" * (8 << 20))
            with pytest.raises(fl.FlightError):
                await asyncio.to_thread(lambda: list(client.do_action(asked)))
        assert refused("large", "flight") > before
        before = refused("large", "flight")
        port = int(served.flight.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(_call(bytes(128 << 20)))
            await until(lambda: refused("large", "flight") > before)


@pytest.mark.slow
async def test_a_reader_of_thousands_of_collections_is_let_in_before_it_names_them(
    tmp_path: Path,
) -> None:
    """Its request is larger than what is taken of a stranger."""
    token = issue(tmp_path / "access.json", "reader")
    async with service(tmp_path) as served:
        await served.log.append(events())
        credentials = Credentials(token=token)
        with LogClient(served.flight, credentials=credentials) as client:
            bounds = await asyncio.to_thread(client.bounds)
        names = ("orders", *(f"collection_number_{n}" for n in range(5_000)))
        request = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head, collections=names)
        with LogClient(served.flight, credentials=credentials, patience_seconds=5) as client:
            batches = await asyncio.to_thread(lambda: list(client.read(request)))
        assert sum(batch.num_rows for batch in batches)


def test_whoever_waits_leaves_room_for_who_is_let_in() -> None:
    """Also where there are few places in all, or of one address."""
    limits = gate_limits(
        ServeConfig.model_validate({"connections": {"in_all": 100, "of_one_address": 20}})
    )
    assert (limits.waiting, limits.waiting_of_one_address) == (50, 10)


@pytest.mark.slow
async def test_of_dynamodb_one_address_has_a_part_of_the_places(tmp_path: Path) -> None:
    async with LmdbLog(LogConfig(path=tmp_path / "log", free_bytes_min=0)) as log:
        config = CapturedConfig(address="127.0.0.1:0")
        index = CapturedIndex(log, tmp_path / "index", config, clock=SystemClock())
        async with serving_captured(log, index, config, of_one_address=5) as address:
            before = refused("of_one_address", "dynamodb")
            port = int(address.rpartition(":")[2])
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            try:
                await until(lambda: refused("of_one_address", "dynamodb") == before + 15)
            finally:
                for one in held:
                    one.close()
            await until(lambda: not taken("dynamodb"))


@pytest.mark.slow
async def test_of_http_one_address_has_a_part_of_the_places(tmp_path: Path) -> None:
    limits = {"connections": {"of_one_address": 5}}
    async with service(tmp_path, flights=False, serve=limits) as served:
        before = refused("of_one_address", "http")
        port = int(served.http.rpartition(":")[2])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        try:
            await until(lambda: refused("of_one_address", "http") == before + 15)
            await until(lambda: sum(map(is_open, held)) == 5)
        finally:
            for one in held:
                one.close()

        await until(lambda: not taken("http"))
