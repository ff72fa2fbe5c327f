"""Live consumers: how late events come to 1, 16 and 100 of them, and what each costs the service.

One process appends 1 KB events at a steady rate, one serves them, one holds all consumers
(`SubscribeBatch`, each event parsed). Latency is from before the append to the consumer. Memory is
the serve process's anonymous memory (RssAnon), above what it has without consumers, by consumer.

Then one of a hundred stops reading: the others' p99 may rise by 20 % at most, and the service's
memory must stay what it was, however long that one stalls.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.fanout.run import serving
from bench.latency.run import append
from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.log import LmdbLog, LogConfig
from penstock.subscribe.resume import oldest

_SPAWN = multiprocessing.get_context("spawn")
_STALLED_OPTIONS = (("grpc.http2.lookahead_bytes", 64 << 10),)


def hold(address: str, after: str, consumers: int, stalled: int, line: Connection) -> None:
    """The consumers' process: says ready, and on each "stop" the latencies since, in ms."""
    asyncio.run(_hold(address, after, consumers, stalled, line))


async def _hold(address: str, after: str, consumers: int, stalled: int, line: Connection) -> None:
    latencies: list[float] = []
    started = [asyncio.Event() for _ in range(consumers)]
    channels: list[grpc.aio.Channel] = []

    def call(number: int) -> Any:
        options = (("penstock.consumer", number), *_STALLED_OPTIONS)
        channel: Any = grpc.aio.insecure_channel(address, options=options)
        channels.append(channel)
        return channel.unary_stream(
            "/penstock.v1.PullerService/SubscribeBatch",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.EventBatch.FromString,
        )(pb.SubscribeRequest(after=after))

    async def read(number: int) -> None:
        async for batch in call(number):
            now = time.time_ns()
            latencies.extend((now - int(event.position)) / 1e6 for event in batch.events)
            if batch.events:
                started[number].set()

    async def stall() -> None:
        stuck = call(-1)
        await stuck.read()
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(read(number)) for number in range(consumers)]
    tasks += [asyncio.create_task(stall()) for _ in range(stalled)]
    await asyncio.gather(*(event.wait() for event in started))
    line.send("ready")
    latencies.clear()
    await asyncio.to_thread(line.recv)
    line.send(latencies)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()


def anonymous_mb(pid: int) -> float:
    """RssAnon of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} tells no RssAnon")


def child() -> int:
    """The pid of the serve process: our only child besides the resource tracker."""
    pids = [process.pid for process in multiprocessing.active_children()]
    return next(pid for pid in pids if pid is not None)


async def measure(
    path: Path, consumers: int, *, stalled: int, rate: float, seconds: float
) -> tuple[list[float], float, float]:
    """Latencies in ms; the serve process's anonymous MB before and with the consumers."""
    async with LmdbLog(LogConfig(path=path)) as log:
        after = str(oldest(await log.bounds()))
        with serving(path) as address:
            server = child()
            before = anonymous_mb(server)
            ours, theirs = _SPAWN.Pipe()
            holder = _SPAWN.Process(target=hold, args=(address, after, consumers, stalled, theirs))
            holder.start()
            theirs.close()  # or its end would never be told from its silence
            await append(log, 0)
            await asyncio.to_thread(ours.recv)
            began = time.perf_counter()
            for number in range(int(rate * seconds)):
                wait = began + number / rate - time.perf_counter()
                if wait > 0:
                    await asyncio.sleep(wait)
                await append(log, number)
            await asyncio.sleep(0.5)
            held = anonymous_mb(server)
            ours.send("stop")
            latencies: list[float] = await asyncio.to_thread(ours.recv)
            await asyncio.to_thread(holder.join)
    return latencies, before, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 16, 100])
    parser.add_argument("--rate", type=float, default=100.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="for the stalled one")
    chosen = parser.parse_args()
    table = Table(title=f"live consumers at {chosen.rate:g} events/s, {os.cpu_count()} cores")
    for column in ("consumers", "deliveries/s", "p50 ms", "p99 ms", "MB each"):
        table.add_column(column, justify="right")

    def run(consumers: int, stalled: int = 0) -> tuple[list[float], float, float]:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(
                measure(
                    Path(folder) / "log",
                    consumers,
                    stalled=stalled,
                    rate=chosen.rate,
                    seconds=chosen.seconds,
                )
            )

    for consumers in chosen.consumers:
        latencies, before, held = run(consumers)
        table.add_row(
            str(consumers),
            f"{len(latencies) / chosen.seconds:,.0f}",
            f"{np.percentile(latencies, 50):.2f}",
            f"{np.percentile(latencies, 99):.2f}",
            f"{(held - before) / consumers:.2f}",
        )
    console = Console()
    console.print(table)
    free: list[float] = []
    beside: list[float] = []
    grown: list[float] = []
    for _ in range(chosen.rounds):
        latencies, _, flat = run(99)
        free.append(float(np.percentile(latencies, 99)))
        latencies, _, held = run(99, stalled=1)
        beside.append(float(np.percentile(latencies, 99)))
        grown.append(held - flat)
    ratio = float(np.median(beside) / np.median(free))
    console.print(
        f"99 consumers: p99 {np.median(free):.2f} ms; beside a stalled one {np.median(beside):.2f} "
        f"ms: ratio {ratio:.2f} (limit 1.20), {np.median(grown):+.1f} MB of the service's memory"
    )


if __name__ == "__main__":
    main()
