"""An HTTP server on one address, inside somebody else's event loop."""

import asyncio
import math
import resource
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp

from penstock.accepting import stop_accepting
from penstock.errors import ConfigError
from penstock.serve.access.config import TlsConfig
from penstock.serve.access.tls import http_context, load_into
from penstock.serve.arrivals import Arrivals
from penstock.serve.connections import HALF_OPEN_MAX, Bounded, Encrypted, HalfOpen, Socket

GRACE_SECONDS: Final = 2
"""How long a stop waits for what only reads, and may be asked again."""
_FILES: Final = 1_024
"""For everything else of the process."""


class StreamLimits(Struct, frozen=True, kw_only=True):
    """Of a server whose answers may go on for ever, and of its WebSockets."""

    message_bytes_max: int
    """A larger message closes its socket."""
    liveness_seconds: float
    """Who takes nothing of what is sent for so long, or does not answer a ping, is disconnected."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self.servers:
            await stop_accepting(one)
        await super().shutdown(sockets)


class HttpServer:
    """A running HTTP server. `address` is where it listens, with the port it really got."""

    def __init__(
        self,
        server: uvicorn.Server,
        task: "asyncio.Task[None]",
        bound: socket.socket,
        address: str,
        half_open: HalfOpen,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._context = context
        self._half_open = half_open
        self._server = server
        self._task = task
        self._bound = bound
        self.address = address

    def renew(self, tls: TlsConfig) -> None:
        """Show the certificate that the files hold now to who connects from now on.

        Raises ConfigError if they cannot be read; the one before stays.
        """
        if self._context is not None:
            load_into(self._context, tls)

    async def stop(self) -> None:
        """Answer what was asked, then close."""
        self._server.should_exit = True
        self._half_open.close()
        await self._task
        await self._half_open.wait_closed(GRACE_SECONDS)
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
    app: ASGIApp,
    address: str,
    *,
    connections_max: int,
    of_one_address: int | None = None,
    spares_loopback: bool = False,
    name: str = "http",
    advice: str,
    keep_alive_seconds: int = 5,
    tls: TlsConfig | None = None,
    streams: StreamLimits | None = None,
    request_seconds: float = 10.0,
    stop_seconds: float = GRACE_SECONDS,
) -> HttpServer:
    """Serve `app` on `host:port` until `stop`; a connection over the limit is answered with 503,
    and one more than `of_one_address`, or than can wait for that answer, is closed; with
    `spares_loopback` no loopback address is bounded so. `name` is that of the port in metrics.

    Who has not sent a whole request `request_seconds` after it began is answered with 408, and who
    has not shaken hands by then is hung up on; those who ask for nothing do not take the place of
    others (connections.py). The limit of open files of this process is raised to what that takes,
    as far as it may.

    What is not answered `stop_seconds` after `stop` was called, rounded up to whole ones, is given
    up.

    With `tls`, requests have the names of their client's certificate in
    `scope["state"]["client_certificate"]`. WebSockets are served with `streams` only, without
    compression: what it saves on the wire costs more than anything else that is done for an event.

    Raises ConfigError, with the advice, if the port is taken, and if the files of `tls` cannot be
    read.
    """
    context = None if tls is None else http_context(tls)
    bound = bind(address, backlog=connections_max, advice=advice)
    if streams is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        # What it accepts inherits it. Also of who is there and never reads (tcp(7)).
        waits = int(streams.liveness_seconds * 1000)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, waits)
    host = address.rpartition(":")[0]
    need_files(connections_max + HALF_OPEN_MAX)
    in_all = connections_max + 2 * HALF_OPEN_MAX
    arrivals = Arrivals(
        name,
        in_all=in_all,
        of_one_address=of_one_address or in_all,
        spares_loopback=spares_loopback,
    )
    half_open = HalfOpen(request_seconds, arrivals)
    http: Any = partial(Bounded, half_open=half_open)
    if context is not None:
        http = partial(Encrypted, half_open=half_open, context=context)
    server = _Server(
        uvicorn.Config(
            app,
            http=http,
            log_config=None,
            log_level="warning",  # what is less important has paths in it, with tickets and keys
            access_log=False,
            proxy_headers=False,  # anybody can write them, and the record is to be believed
            lifespan="off",
            server_header=False,
            limit_concurrency=connections_max + 1,  # it counts the one that it refuses
            timeout_graceful_shutdown=math.ceil(stop_seconds),
            timeout_keep_alive=keep_alive_seconds,
            ws="none" if streams is None else Socket,
            ws_max_size=0 if streams is None else streams.message_bytes_max,
            ws_ping_interval=None if streams is None else streams.liveness_seconds / 2,
            ws_ping_timeout=None if streams is None else streams.liveness_seconds / 2,
            ws_per_message_deflate=False,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.005)
    return HttpServer(server, task, bound, f"{host}:{bound.getsockname()[1]}", half_open, context)


def need_files(connections: int) -> int:
    """Let this process open so many files more, as far as it may; how many there are for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return (
        connections if soft == resource.RLIM_INFINITY else max(0, min(connections, soft - _FILES))
    )


def bind(address: str, *, backlog: int, advice: str) -> socket.socket:
    """Listen on `host:port`. Raises ConfigError, with the advice, if that cannot be."""
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
