"""An HTTP server on one address, inside somebody else's event loop."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import uvicorn
from starlette.types import ASGIApp

from penstock.errors import ConfigError

_GRACE_SECONDS: Final = 2


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpServer:
    """A running HTTP server. `address` is where it listens, with the port it really got."""

    def __init__(
        self, server: uvicorn.Server, task: "asyncio.Task[None]", bound: socket.socket, address: str
    ) -> None:
        self._server = server
        self._task = task
        self._bound = bound
        self.address = address

    async def stop(self) -> None:
        """Answer what was asked, then close."""
        self._server.should_exit = True
        await self._task
        self._bound.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


async def listen(
    app: ASGIApp, address: str, *, connections_max: int, advice: str, keep_alive_seconds: int = 5
) -> HttpServer:
    """Serve `app` on `host:port` until `stop`; a connection over the limit is answered with 503.

    Raises ConfigError, with the advice, if the port is taken.
    """
    bound = _bind(address, backlog=connections_max, advice=advice)
    host = address.rpartition(":")[0]
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=connections_max + 1,  # it counts the one that it refuses
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=keep_alive_seconds,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.005)
    return HttpServer(server, task, bound, f"{host}:{bound.getsockname()[1]}")


def _bind(address: str, *, backlog: int, advice: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    # The event loop turns Nagle's algorithm off for what says that it is TCP, and only for that:
    # else an answer, which is written in two parts, waits 40 ms for the client's acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((name, int(port)))
        bound.listen(backlog)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {address}: it is in use, or not of this machine. Nothing was "
            f"started. Stop what uses it, or {advice}."
        ) from error
    return bound
