"""Waking readers, and asking the writer for something: one unix stream socket beside the files.

The writer listens. It sends one empty line to a connection when it has accepted it, and one to all
of them after each group commit; a reader that has not read the last ones is awake anyway, so a
full socket is ignored. A connection may also send requests: one JSON object a line, answered by one
JSON object a line. Answers and wakes share the connection; an empty line is a wake.

A path beyond the 107 bytes that a unix socket allows (unix(7)) is reached through the folder's
file descriptor.
"""

import asyncio
import os
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from penstock.errors import PenstockError
from penstock.folders import no_place

SOCKET_NAME: Final = "wake.sock"
_PATH_BYTES_MAX: Final = 107
_LINE_BYTES_MAX: Final = 64 << 10
_CONNECTIONS_MAX: Final = 1024
POLL_SECONDS: Final = 0.25
"""How long a missed wake can last."""

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_log = structlog.get_logger()


@contextmanager
def _address(folder: Path) -> Generator[str]:
    path = str(folder / SOCKET_NAME)
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def connect(folder: Path, *, timeout_seconds: float) -> socket.socket:
    """A connection to the writer of what lies in `folder`. Raises OSError when nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_seconds)
        with _address(folder) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


class Bell:
    """Wakes whoever waits for the head to pass a sequence, in any event loop or thread."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._rings = 0

    @property
    def rings(self) -> int:
        """How often it was rung: who remembers it before looking misses no ring after it."""
        return self._rings

    def ring(self) -> None:
        """Wake every waiter; each looks at the head by itself."""
        with self._turn:
            self._rings += 1
            self._turn.notify_all()
            waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
            for future, loop in self._waiters.items():
                waiting.setdefault(loop, []).append(future)
            self._waiters.clear()
        for loop, futures in waiting.items():
            # A loop that has closed takes its waiters with it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, futures)

    async def wait(self, ready: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """True once `ready()`, asked now and after each ring; False at the timeout."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_seconds is None else loop.time() + timeout_seconds
        while True:
            future: asyncio.Future[None] = loop.create_future()
            with self._turn:
                self._waiters[future] = loop
            try:
                # Asked only after registering: a ring in between is not missed.
                if ready():
                    return True
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                return ready()
            finally:
                with self._turn:
                    self._waiters.pop(future, None)

    def wait_now(self, ready: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """As `wait`, for a thread."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        seen = self._rings
        while not ready():
            with self._turn:
                while self._rings == seen:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._turn.wait(left)
                seen = self._rings
        return True


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class WakeServer:
    """The writer's end: a thread that accepts readers and passes requests on."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError where nothing can be made in `folder`."""
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, bytearray] = {}
        self._handler: tuple[Handler, asyncio.AbstractEventLoop] | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            with _address(folder) as address:
                # The lock on the folder is ours: a socket left here is of a writer that died.
                (folder / SOCKET_NAME).unlink(missing_ok=True)
                self._listener.bind(address)
        except OSError as error:
            self._listener.close()
            self._selector.close()
            raise no_place(folder, error) from None
        (folder / SOCKET_NAME).chmod(0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="penstock-wake", daemon=True)
        self._thread.start()

    def on_request(self, handler: Handler) -> None:
        """Answer requests with `handler`, in the running loop. Its PenstockErrors are answers."""
        self._handler = (handler, asyncio.get_running_loop())

    def ring(self) -> None:
        """Wake every reader. Never blocks."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            # Full: the reader has wakes to read. Broken: the thread sees it too, and lets it go.
            with suppress(OSError):
                connection.send(b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self._stop.send(b"\n")
        self._thread.join()
        (self._folder / SOCKET_NAME).unlink(missing_ok=True)
        for connection in (self._listener, self._stop, self._stopped, *self._connections):
            connection.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # gone before we came
        if len(self._connections) >= _CONNECTIONS_MAX:
            connection.close()  # that reader polls, as it does without a writer
            return
        connection.setblocking(False)
        with self._lock:
            self._connections[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ, self._receive)
        # Who connects looks when it is let in, and may have looked before a write that no ring of
        # ours has told it of: it was not among the connections yet.
        with suppress(OSError):
            connection.send(b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received = self._connections[connection]
        received += data
        *lines, rest = received.split(b"\n")
        received[:] = rest
        if not data or len(rest) > _LINE_BYTES_MAX:
            self._drop(connection)
            return
        for line in lines:
            if line:
                self._pass_on(connection, bytes(line))

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        with self._lock:
            del self._connections[connection]
        connection.close()

    def _pass_on(self, connection: socket.socket, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            _send(connection, {"error": "request", "message": "not a JSON object on one line"})
            return
        if self._handler is None:
            message = "this writer takes no requests"
            _send(connection, {"error": "request", "message": message})
            return
        handler, loop = self._handler
        answer = _answer(handler, request, connection)
        try:
            asyncio.run_coroutine_threadsafe(answer, loop)
        except RuntimeError:  # the loop has closed: the writer is about to
            answer.close()
            _send(connection, {"error": "request", "message": "the writer is stopping"})


async def _answer(handler: Handler, request: dict[str, Any], connection: socket.socket) -> None:
    try:
        answer = await handler(request)
    except PenstockError as error:
        answer = {"error": error.code, "message": str(error)}
    except Exception as error:
        # Whoever asks must hear of it; nobody else looks at how this ended. Neither an error's text
        # nor what its frames hold, for both may quote a document.
        _log.error(
            "a request was not answered",
            error=type(error).__name__,
            where=traceback.format_tb(error.__traceback__),
        )
        why = type(error).__name__  # and what the system says, which quotes nothing
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        message = f"the writer failed to answer ({why}); its log says why"
        answer = {"error": "internal", "message": message}
    _send(connection, answer)


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    """An answer that does not fit into the socket goes to someone who reads none: hang up."""
    line = msgspec.json.encode(answer) + b"\n"
    with suppress(OSError):
        if connection.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) != len(line):
            connection.shutdown(socket.SHUT_RDWR)


class WakeClient:
    """A reader's end: a thread that hears the writer, and looks by itself when there is none."""

    def __init__(self, folder: Path, heard: Callable[[], None]) -> None:
        """`heard` is called once the writer is heard, after each wake, and every POLL_SECONDS
        without one."""
        self._folder = folder
        self._heard = heard
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-woken", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.send(b"\n")
        self._thread.join()
        self._stop.close()
        self._stopped.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            writer: socket.socket | None = None
            hung_up = False
            try:
                while True:
                    # After a hang-up a round passes, so that a writer that refuses is not stormed.
                    if writer is None and not hung_up:
                        writer = self._connect()
                        if writer is not None:
                            selector.register(writer, selectors.EVENT_READ)
                            self._heard()  # what was written before we listened
                    hung_up = False
                    ready = {key.fileobj for key, _ in selector.select(POLL_SECONDS)}
                    if self._stopped in ready:
                        return
                    if writer is not None and writer in ready and not _drained(writer):
                        selector.unregister(writer)
                        writer.close()
                        writer, hung_up = None, True
                    self._heard()
            finally:
                if writer is not None:
                    writer.close()

    def _connect(self) -> socket.socket | None:
        try:
            return connect(self._folder, timeout_seconds=POLL_SECONDS)
        except OSError:
            return None  # nobody writes: the next round looks again, POLL_SECONDS later


def _drained(writer: socket.socket) -> bool:
    """Read the wakes that have come; False when the writer is gone."""
    try:
        return bool(writer.recv(4096))
    except TimeoutError:
        return True
    except OSError:
        return False
