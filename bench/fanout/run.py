"""Fan-out over gRPC: one log, one server process, 1, 4 and 16 consumer processes.

Every consumer reads the whole backlog of 1 KB events from the beginning and parses each event.
`Subscribe` sends one event a message, `SubscribeBatch` up to 500; `follow` is our client over the
latter, which also keeps progress. Shown: events/s per consumer (the slowest) and in all.
Target: SubscribeBatch at least 20 times Subscribe per consumer, with one consumer.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from bench.events import fill
from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client import follow_sync
from penstock.log import LmdbLogReader
from penstock.serve.config import ServeConfig
from penstock.serve.grpc import serve_grpc

_SPAWN = multiprocessing.get_context("spawn")
_OPTIONS = (("grpc.max_receive_message_length", -1),)


def serve(path: Path, told: Connection) -> None:
    """The server process: runs until it is terminated."""

    async def run() -> None:
        async with (
            await LmdbLogReader.open(path) as log,
            await serve_grpc(log, ServeConfig(grpc="127.0.0.1:0")) as server,
        ):
            told.send(server.address)
            await asyncio.Event().wait()

    asyncio.run(run())


def _stub(channel: Any, method: str, deserializer: Any) -> Any:
    return channel.unary_stream(
        f"/penstock.v1.PullerService/{method}",
        request_serializer=pb.SubscribeRequest.SerializeToString,
        response_deserializer=deserializer,
    )


def read_single(address: str, after: str, events: int) -> None:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = _stub(channel, "Subscribe", pb.Event.FromString)(pb.SubscribeRequest(after=after))
        for count, _ in enumerate(call, start=1):
            if count >= events:
                call.cancel()
                return


def read_batches(address: str, after: str, events: int) -> None:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        method = _stub(channel, "SubscribeBatch", pb.EventBatch.FromString)
        call = method(pb.SubscribeRequest(after=after))
        count = 0
        for batch in call:
            count += len(batch.events)
            if count >= events:
                call.cancel()
                return


def read_followed(address: str, after: str, events: int) -> None:
    with follow_sync(address, after=after) as changes:
        for count, one in enumerate(changes, start=1):
            if one.sequence and count >= events:
                return


READERS: dict[str, Callable[[str, str, int], None]] = {
    "Subscribe": read_single,
    "SubscribeBatch": read_batches,
    "follow": read_followed,
}


def consume(method: str, address: str, after: str, events: int, line: Connection) -> None:
    """A consumer process: ready, go, and then how long it took."""
    line.send("ready")
    line.recv()
    started = time.perf_counter()
    READERS[method](address, after, events)
    line.send(time.perf_counter() - started)


def measure(method: str, consumers: int, *, address: str, after: str, events: int) -> float:
    """Events/s of the slowest of `consumers` that read at the same time."""
    lines: list[Connection] = []
    processes: list[Any] = []
    for _ in range(consumers):
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=consume, args=(method, address, after, events, theirs))
        process.start()
        lines.append(ours)
        processes.append(process)
    for line in lines:
        line.recv()
    for line in lines:
        line.send("go")
    slowest: float = max(line.recv() for line in lines)
    for process in processes:
        process.join()
    return events / slowest


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """A server process over the log at `path`; its address."""
    ours, theirs = _SPAWN.Pipe()
    server = _SPAWN.Process(target=serve, args=(path, theirs))
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000, help="backlog of a batch reader")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 4, 16])
    arguments = parser.parse_args()
    table = Table(title=f"gRPC fan-out, 1 KB events, {os.cpu_count()} cores, median")
    for column in ("method", "consumers", "events/s each", "events/s in all", "x Subscribe"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        after = asyncio.run(fill(path, arguments.events))
        with serving(path) as address:
            for consumers in arguments.consumers:
                base = 0.0
                for method in READERS:
                    # One message an event is slow: a tenth of the backlog says as much.
                    share = 10 if method == "Subscribe" else 1
                    events = arguments.events // share // (4 if consumers == 16 else 1)
                    rates = sorted(
                        measure(method, consumers, address=address, after=after, events=events)
                        for _ in range(arguments.rounds)
                    )
                    rate = rates[len(rates) // 2]
                    base = base or rate
                    table.add_row(
                        method,
                        str(consumers),
                        f"{rate:,.0f}",
                        f"{rate * consumers:,.0f}",
                        f"{rate / base:.1f}",
                    )
    Console().print(table)


if __name__ == "__main__":
    main()
