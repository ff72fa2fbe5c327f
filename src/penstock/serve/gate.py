"""A gate before a server whose library bounds no connections: gRPC, and Arrow Flight.

It listens where the clients come, and hands each connection on to the server, which listens on a
port of loopback. What has not made a call that was let in is waiting: few of those are kept, in all
and of one address, for a short time, and little is taken from them, so that nobody without a token
takes files, memory or places. TLS goes through untouched. The server tells the gate of each call by
the address that it sees, and asks it where that call comes from.

One thread for each gate; `admit` and `address_of` are for any thread.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Any, Final

import structlog
from msgspec import Struct

from penstock.accepting import stop_accepting
from penstock.serve.arrivals import Arrivals, network_of
from penstock.serve.config import ServeConfig
from penstock.serve.listen import need_files

log = structlog.get_logger(__name__)

_FILES_EACH: Final = 3
_COPY_BYTES: Final = 256 << 10
_STOP_SECONDS: Final = 1.0
_SENT_PER_RECEIVED: Final = 16
"""A client that reads much says so in HTTP/2: it may send a part of what it was sent."""


class GateLimits(Struct, frozen=True, kw_only=True):
    """What a gate lets through."""

    in_all: int = 1024
    of_one_address: int = 512
    waiting: int = 256
    """Connections without a call that was let in."""
    waiting_of_one_address: int = 64
    waiting_seconds: float = 10.0
    first_bytes: int = 64 << 10
    """Of one that is waiting. Compressed messages unfold to a thousand times as much."""
    call_bytes: int | None = None
    """What may come between two calls; None where the server bounds its messages itself."""


def gate_limits(config: ServeConfig) -> GateLimits:
    """What the settings say, and how many files this process may open: a gate takes three for each
    connection, and there are two gates."""
    connections = config.connections
    room = need_files(2 * _FILES_EACH * connections.in_all) // (2 * _FILES_EACH)
    if room < connections.in_all:
        log.warning(
            "fewer connections than [serve.connections] in_all, for want of open files",
            in_all=room,
        )
    # Whoever waits never takes more than half, so that there is room for who is let in.
    in_all = max(2, room)
    waiting = min(connections.waiting, in_all // 2)
    return GateLimits(
        in_all=in_all,
        of_one_address=connections.of_one_address,
        waiting=waiting,
        waiting_of_one_address=max(1, min(waiting // 4, connections.of_one_address // 2)),
        waiting_seconds=config.request_timeout,
        first_bytes=connections.first_bytes,
    )


class _Side(asyncio.BufferedProtocol):
    """One of the two sides of a connection, which writes what comes to the other."""

    def __init__(self, whole: "_Connection", other: "_Side | None" = None) -> None:
        self.transport: Any = None
        self.whole = whole
        self.other = other
        """None to a client, which is not read from, until the server has answered."""
        self._buffer = whole.gate.buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.whole.gate.sides.add(self)
        self.whole.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self.whole.passes(self, nbytes):
            return
        if self.other is not None:
            self.other.transport.write(bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.whole.gate.sides.discard(self)
        self.whole.lost(self)


class _Connection:
    """A client's connection, and ours to the server."""

    def __init__(self, gate: "Gate") -> None:
        self.gate = gate
        self.address = ""
        self.client = _Side(self)
        self.server: _Side | None = None
        self.port = 0
        """Ours to the server, by which it knows the connection."""
        self.is_known = False
        self.deadline: asyncio.TimerHandle | None = None
        self._received = self._sent = 0
        self._entered = False
        self.connecting: asyncio.Task[None] | None = None

    def made(self, side: _Side) -> None:
        if side is not self.client:
            return
        peer = side.transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        side.transport.pause_reading()
        self._entered = self.gate.enter(self)
        if not self._entered:
            side.transport.abort()
            return
        self.connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop, made = asyncio.get_running_loop(), _Side(self, self.client)
        try:
            await loop.create_connection(lambda: made, "127.0.0.1", self.gate.inner_port)
        except OSError:
            self.client.transport.abort()
            return
        if self.client.transport.is_closing():
            made.transport.abort()
            return
        self.port = made.transport.get_extra_info("sockname")[1]
        self.gate.connected(self)
        self.server = self.client.other = made
        self.client.transport.resume_reading()

    def passes(self, side: _Side, count: int) -> bool:
        """Whether more may come; what sends too much is cut."""
        if side is not self.client:
            self._sent += count
            return True
        self._received += count
        limits = self.gate.limits
        most = limits.call_bytes if self.is_known else limits.first_bytes
        if most is None or self._received <= most + self._sent // _SENT_PER_RECEIVED:
            return True
        self.gate.arrivals.refused("large")
        self.cut()
        return False

    def called(self) -> None:
        """A call began."""
        self._received = self._sent = 0

    def cut(self) -> None:
        self.client.transport.abort()

    def lost(self, side: _Side) -> None:
        if side is self.client:
            if self._entered:
                self._entered = False
                self.gate.leave(self)
            if self.server is not None:
                self.server.transport.abort()
        elif not self.client.transport.is_closing():
            # What the server said last goes out, to a client that takes it.
            self.client.transport.close()
            if self.client.transport.get_write_buffer_size():
                self.gate.end_soon(self)


class Gate:
    """Stands before one server, from `start` to `stop`."""

    def __init__(self, name: str, bound: socket.socket, limits: GateLimits) -> None:
        """`name` is that of the port in metrics; `bound` listens."""
        self.limits = limits
        self.arrivals = Arrivals(name, in_all=limits.in_all, of_one_address=limits.of_one_address)
        self.inner_port = 0
        self.sides: set[_Side] = set()
        """Of connections, those that are open."""
        self.buffer = memoryview(bytearray(_COPY_BYTES))
        self._bound = bound
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"penstock-gate-{name}", daemon=True)
        self._by_port: dict[int, _Connection] = {}
        self._waiting: dict[_Connection, None] = {}
        self._all: set[_Connection] = set()
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def port(self) -> int:
        """Where clients come."""
        return int(self._bound.getsockname()[1])

    def start(self, inner_port: int) -> None:
        """Let clients in, to the server at this port of loopback."""
        self.inner_port = inner_port
        self._thread.start()

    def stop(self) -> None:
        """Let go of all connections, once they have what the server said last. It must be gone."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        else:
            self._loop.close()
        self._bound.close()

    # --- for the server -------------------------------------------------------------------------

    def address_of(self, peer: str) -> str | None:
        """Where a call comes from, of which the server says that it comes from `peer`; None for one
        that did not come through the gate."""
        found = self._by_port.get(_port_of(peer))
        return None if found is None else found.address

    def admit(self, peer: str) -> None:
        """A call of this connection was let in."""
        with contextlib.suppress(RuntimeError):  # it is stopped
            self._loop.call_soon_threadsafe(self._admit, _port_of(peer), True)

    def touch(self, peer: str) -> None:
        """A call of this connection was one that anybody may make: it waits anew."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._admit, _port_of(peer), False)

    def _admit(self, port: int, is_known: bool) -> None:
        found = self._by_port.get(port)
        if found is None:
            return
        found.called()
        if found in self._waiting:
            found.is_known = is_known
            self._waits_no_more(found)
            if not is_known:
                self._wait(found)

    # --- for connections ------------------------------------------------------------------------

    def enter(self, one: _Connection) -> bool:
        """Whether there is a place for one more; the oldest that wait make room for who comes."""
        if self._stopping.is_set() or not self.arrivals.enter(one.address):
            return False
        self._all.add(one)
        self._wait(one)
        network = network_of(one.address)
        beside = [other for other in self._waiting if network_of(other.address) == network]
        if len(beside) > self.limits.waiting_of_one_address:
            self._give_up(beside[0], late=False)
        elif len(self._waiting) > self.limits.waiting:
            self._give_up(next(iter(self._waiting)), late=False)
        return True

    def _wait(self, one: _Connection) -> None:
        self._waiting[one] = None
        one.deadline = self._loop.call_later(self.limits.waiting_seconds, self._give_up, one)

    def connected(self, one: _Connection) -> None:
        """The server knows it by its port from now on."""
        self._by_port[one.port] = one

    def leave(self, one: _Connection) -> None:
        """It is gone."""
        self._waits_no_more(one)
        self._all.discard(one)
        if self._by_port.get(one.port) is one:
            del self._by_port[one.port]
        self.arrivals.leave(one.address)
        self._gone.set()

    def end_soon(self, one: _Connection) -> None:
        """The server has closed it."""
        self._waits_no_more(one)
        one.deadline = self._loop.call_later(self.limits.waiting_seconds, one.cut)

    def _waits_no_more(self, one: _Connection) -> None:
        self._waiting.pop(one, None)
        if one.deadline is not None:
            one.deadline.cancel()
            one.deadline = None

    def _give_up(self, one: _Connection, *, late: bool = True) -> None:
        self._waits_no_more(one)
        self.arrivals.refused("late" if late else "waiting")
        one.cut()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(
            lambda: _Connection(self).client, sock=self._bound, backlog=self.limits.in_all
        )
        await self._stopping.wait()
        await stop_accepting(server)
        server.close()
        # The server is gone, and what it said last is on its way.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                while self._all:
                    self._gone.clear()
                    await self._gone.wait()
        for one in tuple(self._all):
            one.cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        while self.sides:  # noqa: ASYNC110 - a transport closes in the next round of the loop
            await asyncio.sleep(0)


def _port_of(peer: str) -> int:
    _, _, port = peer.rpartition(":")
    return int(port) if port.isdecimal() else 0
