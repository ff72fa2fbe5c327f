"""A log, a server over it, and clients of every kind that a user may bring."""

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.ports import LogReader
from penstock.serve.config import ServeConfig
from penstock.serve.consumers import Consumers
from penstock.serve.grpc import GrpcServer, serve_grpc

PROTO = Path(__file__).parents[2] / "proto"


Log = LmdbLog | MemoryLog


@pytest.fixture(params=["lmdb", "memory"])
async def log(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    """Both logs: what is read from one is read from the other."""
    lmdb = request.param == "lmdb"
    async with LmdbLog(LogConfig(path=tmp_path / "log")) if lmdb else MemoryLog() as log:
        yield log


Serve = Callable[..., Awaitable[GrpcServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a log on a free port, with ServeConfig's options; stopped at the test's end."""
    async with AsyncExitStack() as stack:

        async def start(
            log: LogReader, consumers: Consumers | None = None, **options: Any
        ) -> GrpcServer:
            config = ServeConfig.model_validate({"grpc": "127.0.0.1:0", **options})
            return await stack.enter_async_context(await serve_grpc(log, config, consumers))

        yield start


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], grpc.aio.Channel]]:
    """Channels as any client makes them, without options; closed at the test's end."""
    async with AsyncExitStack() as stack:
        channels: list[grpc.aio.Channel] = []

        def channel(address: str) -> grpc.aio.Channel:
            channels.append(grpc.aio.insecure_channel(address))
            stack.push_async_callback(channels[-1].close)
            return channels[-1]

        yield channel


@pytest.fixture(scope="session")
def puller_stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The modules that protoc makes of puller.proto itself: messages, and stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", "puller.proto"]
    subprocess.run([*protoc, f"--python_out={folder}", f"--grpc_python_out={folder}"], check=True)
    sys.path.insert(0, str(folder))
    yield import_module("puller_pb2"), import_module("puller_pb2_grpc")
    sys.path.remove(str(folder))
