"""Anonymous memory of a running service under load, beside its limit.

`penstock run` captures the simulated shop at full speed (events of about 1 KB) into a log whose
retention trims it all the while; four consumer processes read by `SubscribeBatch` as fast as they
can, and a fifth stops reading after its first message. Anonymous memory (RssAnon) is what a process
has of its own: the pages of the log's map belong to the file and the system takes them back.

Shown for each of the service's two processes, and for both together: the middle and the most of
all samples, and the most beside the limit. Target: at most 250 MB for both at any moment.
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from penstock._generated.penstock.v1 import penstock_pb2 as pb

LIMIT_MB = 250
CONSUMERS = 4
PROCESSES = ("capture", "serve")
_SPAWN = multiprocessing.get_context("spawn")
_CONFIG = """
[log]
path = "log"
retention_bytes = "128MB"
[sources.shop]
type = "script"
events_per_second = 0
note_bytes = 700
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
"""


def read(address: str, stalls: bool, stop: Event, events: Any) -> None:
    """A consumer: counts what it gets, and begins at the head again when it was overtaken."""
    options = (("grpc.max_receive_message_length", -1),)
    with grpc.insecure_channel(address, options=options) as channel:
        method: Any = channel.unary_stream(
            "/penstock.v1.PullerService/SubscribeBatch",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.EventBatch.FromString,
        )
        while not stop.is_set():
            call = method(pb.SubscribeRequest())
            try:
                for batch in call:
                    events.value += len(batch.events)
                    if stalls:
                        stop.wait()
                    if stop.is_set():
                        break
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                    raise
            call.cancel()


def anonymous_mb(pid: int) -> float:
    """RssAnon of a process (proc(5)), in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    raise ValueError(f"process {pid} tells no RssAnon")


def sample(pids: dict[str, int], seconds: float) -> dict[str, list[float]]:
    """MB by process and of both together, five times a second."""
    taken: dict[str, list[float]] = {name: [] for name in (*PROCESSES, "both")}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = [anonymous_mb(pids[name]) for name in PROCESSES]
        for name, used in zip(taken, (*now, sum(now)), strict=True):
            taken[name].append(used)
        time.sleep(0.2)
    return taken


def told(config: Path, command: str) -> subprocess.Popen[str]:
    """A command of ours, telling facts as JSON."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", command, "--config", str(config), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )


def first_fact(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first that it tells."""
    assert process.stdout is not None
    fact: dict[str, Any] = json.loads(process.stdout.readline())
    return fact


def measure(seconds: float) -> tuple[dict[str, list[float]], int, int]:
    """The samples, the events that the log got, and those that all consumers got."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "penstock.toml"
        config.write_text(_CONFIG)
        service = told(config, "run")
        ready = first_fact(service)
        stop = _SPAWN.Event()
        counts = [_SPAWN.Value("Q", 0) for _ in range(CONSUMERS + 1)]
        consumers = [
            _SPAWN.Process(target=read, args=(ready["grpc"], number == 0, stop, counted))
            for number, counted in enumerate(counts)
        ]
        try:
            for consumer in consumers:
                consumer.start()
            taken = sample(ready["pids"], seconds)
            with told(config, "status") as asked:
                head = int(first_fact(asked)["log"]["head"])
            return taken, head, sum(counted.value for counted in counts)
        finally:
            stop.set()
            for consumer in consumers:
                consumer.terminate()
                consumer.join()
            service.terminate()
            service.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    taken, captured, consumed = measure(options.seconds)
    table = Table(
        "process",
        "middle MB",
        "most MB",
        f"most / {LIMIT_MB} MB",
        title=f"{captured:,} events captured, {consumed:,} consumed, {options.seconds:.0f} s",
    )
    for name, used in taken.items():
        most = max(used)
        table.add_row(
            name, f"{statistics.median(used):.0f}", f"{most:.0f}", f"{most / LIMIT_MB:.2f}"
        )
    Console().print(table)
    print(f"target {LIMIT_MB} MB: {'met' if max(taken['both']) <= LIMIT_MB else 'MISSED'}")


if __name__ == "__main__":
    main()
