"""Many subscriptions: how late captures come, what a delivery costs, and what a silent one costs.

One process appends 1 KB events at a steady rate, one serves, one holds the clients, each with a
filter of its own (one key in a hundred), over plain sockets whose frames are told apart without
more work than that. Beside WebSocket, SSE and gRPC captures, the peer: the puller's own
`SubscribeBatch`, which sends every event to every client. Latency is from before the append to the
client; processor time is the serve process's, less what it needs without clients, by delivery.

Then 1,000 subscriptions that match nothing: processor time by 1,000 commits, and memory. The peer
is not there: its calls do not say when they have begun.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc.aio
import numpy as np
from msgspec import structs
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette

from bench.consumers.run import anonymous_mb, child
from bench.events import change
from penstock._generated.penstock.v1 import captures_pb2 as cpb
from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import Commit
from penstock.log import LmdbLog, LmdbLogReader, LogConfig
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.grpc import CaptureServicer
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.web import routes
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc
from penstock.serve.listen import StreamLimits, listen

_SPAWN = multiprocessing.get_context("spawn")
_TICKS = os.sysconf("SC_CLK_TCK")
_KEYS = 100
_COMMIT_EVENTS = 10
TARGET_MS = 100.0


def serve(path: Path, told: Connection) -> None:
    """The server process: says its addresses, and runs until it is terminated."""

    async def run() -> None:
        config = CapturesConfig(subscriptions_max=2_000)
        async with (
            await LmdbLogReader.open(path) as log,
            CaptureService(log, lambda: config).running() as service,
            await serve_grpc(
                log,
                ServeConfig(grpc="127.0.0.1:0", max_connections=2_000),
                beside=[CaptureServicer(service)],
            ) as grpc_server,
            await listen(
                Starlette(routes=routes(service)),
                "127.0.0.1:0",
                connections_max=2_100,
                advice="none",
                streams=StreamLimits(message_bytes_max=1 << 20, liveness_seconds=60),
            ) as http,
        ):
            told.send((http.address, grpc_server.address))
            await asyncio.Event().wait()

    asyncio.run(run())


@contextlib.contextmanager
def serving(path: Path) -> Generator[tuple[str, str]]:
    """A server process over the log at `path`; its addresses over HTTP and gRPC."""
    ours, theirs = _SPAWN.Pipe()
    server = _SPAWN.Process(target=serve, args=(path, theirs))
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def cpu_seconds(pid: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def asked(number: int, *, idle: bool) -> dict[str, Any]:
    """The request of client `number`: a key of its own, or a collection that is not there."""
    site = {"entityType": f"none{number}"} if idle else {"entityPrimaryKey": [number % _KEYS]}
    return {"criteria": [{"area": "data", "site": site}], "content": "body"}


# --- clients: each yields for every message how many captures it has, and when they were born ----


async def websocket(address: str, number: int, *, idle: bool) -> AsyncIterator[list[int]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /rest/system/change-captures HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        f"{base64.b64encode(os.urandom(16)).decode()}\r\n"
        f"Sec-WebSocket-Protocol: rest-transport-ws\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    for said in (
        {"type": "connection_init"},
        {"type": "subscribe", "id": "s", "payload": asked(number, idle=idle)},
    ):
        data = json.dumps(said).encode()
        writer.write(bytes([0x81, 0xFE, len(data) >> 8, len(data) & 255, 0, 0, 0, 0]) + data)
    while True:
        head = await reader.readexactly(2)
        size = head[1] & 127
        if size > 125:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        data = await reader.readexactly(size)
        if head[0] & 15 == 9:  # a ping
            writer.write(bytes([0x8A, 0x80 | size, 0, 0, 0, 0]) + data)
        elif b'"confirmed"' in data[:80]:
            yield []
        elif b'"requestIds"' in data[:80]:
            yield [_born(data)]


async def events(address: str, number: int, *, idle: bool) -> AsyncIterator[list[int]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    request = quote(json.dumps(asked(number, idle=idle)))
    path = f"/rest/shop/events?request={request}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    while True:
        line = await reader.readline()
        if line.startswith(b"event: confirmed"):
            yield []
        elif line.startswith(b'data: {"requestIds"'):
            yield [_born(line)]


def _born(data: bytes) -> int:
    at = data.index(b'"born":') + 7
    return int(data[at : at + 19])


def _captures_request(number: int, *, idle: bool) -> cpb.CaptureCommand:
    criterion = cpb.CaptureCriterion(area=cpb.AREA_DATA)
    if idle:
        criterion.site.entity_type.append(f"none{number}")
    else:
        criterion.site.entity_primary_key.append(str(number % _KEYS))
    request = cpb.CaptureRequest(criteria=[criterion], content=cpb.CONTENT_BODY)
    return cpb.CaptureCommand(subscribe=cpb.CaptureSubscribeRequest(requests=[request]))


async def captures(address: str, number: int, *, idle: bool) -> AsyncIterator[list[int]]:
    channel: Any = grpc.aio.insecure_channel(address, options=(("penstock.client", number),))
    call = channel.stream_stream(
        "/penstock.v1.CaptureService/Captures",
        request_serializer=cpb.CaptureCommand.SerializeToString,
        response_deserializer=cpb.CaptureMessage.FromString,
    )()
    await call.write(_captures_request(number, idle=idle))
    while (message := await call.read()) is not grpc.aio.EOF:
        for one in message.outputs:
            if one.HasField("confirmed"):
                yield []
        born = [
            _born(o.capture.body.full_document) for o in message.outputs if o.HasField("capture")
        ]
        if born:
            yield born


async def puller(address: str, number: int, *, idle: bool) -> AsyncIterator[list[int]]:
    channel: Any = grpc.aio.insecure_channel(address, options=(("penstock.client", number),))
    call = channel.unary_stream(
        "/penstock.v1.PullerService/SubscribeBatch",
        request_serializer=pb.SubscribeRequest.SerializeToString,
        response_deserializer=pb.EventBatch.FromString,
    )(pb.SubscribeRequest(collections=[f"none{number}"] if idle else []))
    yield []
    async for batch in call:
        if batch.events:
            yield [_born(event.full_document) for event in batch.events]


CLIENTS = {"WebSocket": websocket, "SSE": events, "gRPC Captures": captures, "puller": puller}


def hold(kinds: list[tuple[str, str, int]], idle: bool, line: Connection) -> None:
    """The clients' process: ready; at "begin" it forgets, at "stop" it tells latencies, in ms."""

    async def run() -> None:
        latencies: list[float] = []
        begun = 0

        async def read(kind: str, address: str, number: int) -> None:
            nonlocal begun
            async for born in CLIENTS[kind](address, number, idle=idle):
                now = time.time_ns()
                begun += not born
                latencies.extend((now - one) / 1e6 for one in born)

        tasks = [
            asyncio.create_task(read(kind, address, number))
            for kind, address, clients in kinds
            for number in range(clients)
        ]
        while begun < len(tasks):
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()
        line.send("ready")
        await asyncio.to_thread(line.recv)
        latencies.clear()
        line.send("begun")
        await asyncio.to_thread(line.recv)
        line.send(latencies)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def append(log: LmdbLog, number: int) -> None:
    """A commit of ten events that say when they were born."""
    born = time.time_ns()
    position = str(number)
    made = [
        change(
            number * _COMMIT_EVENTS + at,
            key=(number * _COMMIT_EVENTS + at) % _KEYS,
            document=b'{"born":%d,"text":"%s"}' % (born, b"0123456789abcdef" * 55),
        )
        for at in range(_COMMIT_EVENTS)
    ]
    told = tuple(structs.replace(one, position=position) for one in made)
    await log.append([Commit(source="shop", position=position, events=told)])


class Measured:
    """What one run showed."""

    def __init__(self, latencies: list[float], cpu: float, seconds: float, mb: float) -> None:
        self.latencies = latencies
        self.cpu = cpu
        self.seconds = seconds
        self.mb = mb


async def measure(
    path: Path, clients: dict[str, int], *, idle: bool, rate: float, seconds: float
) -> Measured:
    """The serve process with so many clients of each kind."""
    async with LmdbLog(LogConfig(path=path)) as log:
        with serving(path) as (http, grpc_address):
            pid = child()
            await append(log, 0)
            before = anonymous_mb(pid)
            kinds = [
                (kind, http if kind in {"WebSocket", "SSE"} else grpc_address, count)
                for kind, count in clients.items()
            ]
            ours, theirs = _SPAWN.Pipe()
            holder = _SPAWN.Process(target=hold, args=(kinds, idle, theirs))
            holder.start()
            theirs.close()
            await asyncio.to_thread(ours.recv)
            held = anonymous_mb(pid)
            ours.send("begin")
            await asyncio.to_thread(ours.recv)
            used = cpu_seconds(pid)
            began = time.perf_counter()
            commits = int(rate * seconds / _COMMIT_EVENTS)
            for number in range(1, commits + 1):
                wait = began + number * _COMMIT_EVENTS / rate - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                await append(log, number)
            await asyncio.sleep(0.5)
            took = time.perf_counter() - began
            used = cpu_seconds(pid) - used
            ours.send("stop")
            latencies: list[float] = await asyncio.to_thread(ours.recv)
            await asyncio.to_thread(holder.join)
    return Measured(latencies, used, took, held - before)


def main() -> None:
    """Print both tables, and the load beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=2_000.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    chosen = parser.parse_args()

    def run(clients: dict[str, int], *, idle: bool = False) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            return asyncio.run(
                measure(path, clients, idle=idle, rate=chosen.rate, seconds=chosen.seconds)
            )

    console = Console(width=110)
    alone = run({})
    rates = Table(title=f"{chosen.rate:g} events/s, {os.cpu_count()} cores")
    for column in ("clients", "deliveries/s", "p50 ms", "p99 ms", "CPU µs a delivery", "load"):
        rates.add_column(column, justify="right")
    n = chosen.clients
    for clients in (
        {"WebSocket": n, "SSE": n},
        {"WebSocket": n},
        {"SSE": n},
        {"gRPC Captures": n},
        {"puller": 1},
    ):
        found = run(clients)
        more = found.cpu - alone.cpu * found.seconds / alone.seconds
        rates.add_row(
            ", ".join(f"{count} {kind}" for kind, count in clients.items()),
            f"{len(found.latencies) / found.seconds:,.0f}",
            f"{np.percentile(found.latencies, 50):.1f}",
            f"{np.percentile(found.latencies, 99):.1f}",
            f"{more / len(found.latencies) * 1e6:.1f}",
            f"{os.getloadavg()[0]:.1f}",
        )
    console.print(rates)
    console.print(f"target: p99 under {TARGET_MS:g} ms for the first row")
    idle = Table(title=f"{chosen.idle} subscriptions that match nothing")
    for column in ("clients", "CPU ms by 1,000 commits", "above none", "KB each", "load"):
        idle.add_column(column, justify="right")
    commits = chosen.rate * chosen.seconds / _COMMIT_EVENTS / 1000
    for clients in ({}, {"WebSocket": chosen.idle}, {"SSE": chosen.idle}):
        found = alone if not clients else run(clients, idle=True)
        count = sum(clients.values())
        idle.add_row(
            ", ".join(f"{count} {kind}" for kind, count in clients.items()) or "none",
            f"{found.cpu / commits * 1e3:.0f}",
            f"{(found.cpu - alone.cpu) / commits * 1e3:+.0f}",
            f"{found.mb * 1024 / count:.0f}" if count else "",
            f"{os.getloadavg()[0]:.1f}",
        )
    console.print(idle)


if __name__ == "__main__":
    main()
