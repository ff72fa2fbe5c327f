"""Faults on demand: a TCP connection that breaks at an exact byte, falls silent, lies, or is slow.

    async with CutProxy(server.host, server.port) as proxy:
        proxy.cut(1234, once=lambda sent: sent.startswith(b"..."))
        ...  # connect to proxy.port
        proxy.hush()  # what is connected stays so, and hears nothing more
        proxy.damage()  # what is connected hears one bit that was not said
        proxy.slow(1_000_000)  # what is connected hears a million bytes a second

Everything is on loopback and in one event loop; nothing else is slowed down but by the loop.
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

_READ_BYTES = 64 << 10
_SHORT_BYTES = 2000


class CutProxy:
    """Passes connections on to a server, and breaks one off where it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._after: int | None = None
        self._once: Callable[[bytes], bool] = lambda _: True
        self._hushed = asyncio.Event()
        self._damaged = asyncio.Event()
        self._bytes_per_second: int | None = None
        self.passed = 0
        """Bytes that the server sent over the connections that count, since `cut` was called."""
        self.broken = 0
        """How many connections were broken off since then."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where it listens, on loopback."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self, after: int | None, *, once: Callable[[bytes], bool] = lambda _: True) -> None:
        """Break off when the server has sent so many bytes (None: never).

        A connection counts from when the client sends something of which `once` is true.
        """
        self._after, self._once = after, once
        self.passed = self.broken = 0

    def hush(self) -> None:
        """Let nothing more through of what the server sends over the connections that are there.

        They stay open, as over a network that drops packets; later ones are as good as any.
        """
        self._hushed.set()
        self._hushed = asyncio.Event()

    def damage(self) -> None:
        """Change one bit of what the server sends next over each of the connections that are
        there."""
        self._damaged.set()
        self._damaged = asyncio.Event()

    def slow(self, bytes_per_second: int | None) -> None:
        """Let through no more than that of what the server sends over each connection, but short
        answers at once; None: as it comes."""
        self._bytes_per_second = bytes_per_second

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
            counts = asyncio.Event()
            ways = (
                asyncio.ensure_future(self._ask(reader, far, counts)),
                asyncio.ensure_future(self._answer(far_reader, writer, counts)),
            )
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # the server is away, so the client finds its connection closed
        finally:
            for one in (writer, far):
                if one is not None:
                    one.close()
                    with contextlib.suppress(OSError):
                        await one.wait_closed()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: asyncio.Event
    ) -> None:
        while data := await reader.read(_READ_BYTES):
            if self._once(data):
                counts.set()
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: asyncio.Event
    ) -> None:
        hushed, damaged = self._hushed, self._damaged
        while data := await reader.read(_READ_BYTES):
            if hushed.is_set():
                continue
            if self._bytes_per_second is not None and len(data) > _SHORT_BYTES:
                await asyncio.sleep(len(data) / self._bytes_per_second)
            if damaged.is_set():
                damaged = asyncio.Event()
                data = data[:-1] + bytes([data[-1] ^ 1])
            if counts.is_set():
                left = None if self._after is None else self._after - self.passed
                if left is not None and len(data) >= left:
                    writer.write(data[:left])
                    await writer.drain()
                    self.passed += left
                    self.broken += 1
                    self._after = None
                    return
                self.passed += len(data)
            writer.write(data)
            await writer.drain()
