"""Puts of 1, 8 and 32 writers at once, each durable as it returns, on a disk of slow flushes.

Three ways in: threads beside the store, threads that have each a client of its server in another
process, and with boto3 at its DynamoDB endpoint. What is to be seen is how many share a flush, so
that flush is made slow: a library that is loaded before all others waits in `fdatasync`, which LMDB
calls once for each commit. On a disk that answers in a fraction of a millisecond the processor is
what is waited for instead.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import boto3
from botocore.config import Config

from bench.store.writes import item
from penstock import store
from penstock.store import Client, KeyType, StreamViewType

Way = Literal["embedded", "protocol", "dynamodb"]
WAYS: Final[tuple[Way, ...]] = ("embedded", "protocol", "dynamodb")
WRITERS: Final = (1, 8, 32)
TABLE: Final = "items"
KEYS: Final = 1000
"""Of each writer."""
Rates = dict[int, list[float]]
"""Puts a second of each round, by how many write."""
Put = Callable[[int, int], object]
_SLOW: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    usleep(FLUSH_US);
    return real(file);
}
"""


def slowed(folder: Path, flush_ms: float) -> dict[str, str]:
    """The environment in which a flush takes so much longer. Needs a compiler of C."""
    if not flush_ms:
        return {}
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SLOW)
    microseconds = f"-DFLUSH_US={round(flush_ms * 1000)}"
    subprocess.run(["cc", "-shared", "-fPIC", microseconds, "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


def measure(folder: Path, *, flush_ms: float, seconds: float, rounds: int) -> dict[Way, Rates]:
    """Puts a second of each way, by how many write, one for each round; ways take turns."""
    environment = os.environ | slowed(folder, flush_ms)
    found = {way: {writers: list[float]() for writers in WRITERS} for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            path = folder / f"{way}-{number}"
            with _filled(path, way, environment) as run:
                for writers in WRITERS:
                    found[way][writers].append(run(writers, seconds))
    return found


@contextmanager
def _filled(
    path: Path, way: Way, environment: dict[str, str]
) -> Iterator[Callable[[int, float], float]]:
    """A store with a table; yields what has so many write for so many seconds."""
    with store.open(path, sync="none") as db:
        db.create_table(TABLE).partition_key("id", KeyType.STRING).stream(
            StreamViewType.KEYS_ONLY
        ).execute()
    if way == "embedded":
        yield lambda writers, seconds: _beside(path, environment, writers, seconds)
        return
    socket = path.with_suffix(".sock")
    command = [sys.executable, "-m", "penstock.cli", "store", "serve", str(path), "--json"]
    address = ["--socket", str(socket)] if way == "protocol" else ["--dynamodb", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *address],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            served = json.loads(process.stdout.readline())
            if way == "protocol":
                with ExitStack() as stack:
                    some = [stack.enter_context(Client(socket)) for _ in range(max(WRITERS))]
                    yield lambda writers, seconds: rate(
                        lambda key, number: some[key // KEYS].put(TABLE, item(key, number)),
                        *(writers, seconds),
                    )
            else:
                yield lambda writers, seconds: rate(
                    _boto3(served["dynamodb"], writers), writers, seconds
                )
        finally:
            process.terminate()


def _boto3(endpoint: str, writers: int) -> Put:
    config = Config(max_pool_connections=writers, parameter_validation=False)
    sdk: Any = boto3
    client = sdk.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=config,
    )

    def put(key: int, number: int) -> object:
        values = {name: {"S": str(value)} for name, value in item(key, number).items()}
        return client.put_item(TableName=TABLE, Item=values)

    return put


def _beside(path: Path, environment: dict[str, str], writers: int, seconds: float) -> float:
    """Threads of a process of its own, which has the store open."""
    command = [sys.executable, "-m", "bench.store.together", str(path), f"{writers}", f"{seconds}"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def rate(put: Put, writers: int, seconds: float) -> float:
    """How many puts a second so many threads get done."""
    done, stop = [0] * writers, threading.Event()

    def write(writer: int) -> None:
        while not stop.is_set():
            put(writer * KEYS + done[writer] % KEYS, done[writer])
            done[writer] += 1

    with ThreadPoolExecutor(writers) as pool:
        written = [pool.submit(write, writer) for writer in range(writers)]
        time.sleep(seconds / 4)  # warming up
        before, begun = sum(done), time.perf_counter()
        time.sleep(seconds)
        count, took = sum(done) - before, time.perf_counter() - begun
        stop.set()
    for one in written:
        one.result()
    return count / took


if __name__ == "__main__":
    with contextlib.closing(store.open(sys.argv[1], sweep_seconds=None)) as opened:
        print(
            rate(
                lambda key, number: opened.put(TABLE, item(key, number)),
                int(sys.argv[2]),
                float(sys.argv[3]),
            )
        )
