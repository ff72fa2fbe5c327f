"""A store's server: JSON lines over a Unix socket that only its owner may open.

A connection is answered request by request, in order; clients that want more at once open more.
Writes that come together are kept together (`penstock.store.together`), in as many threads as then
wait; reads go through a few, and the loop itself never touches the store.

A subscription is pushed what is committed. When its client does not read, its outbox fills, and the
subscription waits: it goes on from the store, from where it was, so it is never cut short and never
held in memory. If retention overtakes it meanwhile, it ends with TrimmedDataAccess.
"""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.accepting import stop_accepting
from penstock.errors import ConfigError, PenstockError
from penstock.store.errors import StreamClosedError
from penstock.store.remote import requests as ask
from penstock.store.remote.answers import (
    answer,
    create_index,
    form_of,
    read_records,
    records,
    written,
)
from penstock.store.remote.config import ServerConfig
from penstock.store.remote.errors import (
    RequestTooLargeError,
    ServerBusyError,
    ServerStoppingError,
)
from penstock.store.remote.forms import told, write_error
from penstock.store.remote.holding import Held
from penstock.store.remote.requests import AnyRequest, Form, decode_request, encode_line
from penstock.store.store import Store
from penstock.store.streams import Page
from penstock.store.together import WRITES_MAX

_PATH_BYTES_MAX: Final = 107
_LOOK_SECONDS: Final = 1.0
"""How soon a client that hung up while it waited is noticed."""
_PUSH_RECORDS: Final = 1000
_READER_THREADS: Final = 4
_READS: Final = (
    ask.Sync,  # others write while it waits for the disk
    ask.GetItem,
    ask.GetItemVersioned,
    ask.BatchGetItem,
    ask.Query,
    ask.Scan,
    ask.Count,
    ask.ListTables,
    ask.DescribeTable,
    ask.GetTtl,
    ask.GetStreamInfo,
    ask.GetStreamRecords,
)
Result = TypeVar("Result")


class _UnderWayError(asyncio.CancelledError):
    """Cancelled too late: a write has begun, or is done, and its client was not told of it."""


class StoreServer:
    """Serves one store, whose only writer is this process. Made by `serving`."""

    def __init__(self, store: Store, config: ServerConfig) -> None:
        self.store = store
        self.config = config
        self._writers = ThreadPoolExecutor(WRITES_MAX, "store-writes")
        self._readers = ThreadPoolExecutor(_READER_THREADS, "store-reads")
        self._indexer = ThreadPoolExecutor(1, "store-indexes")
        self._connections = dict[asyncio.Task[None], Connection]()
        self._stopping = False

    @property
    def outbox_bytes(self) -> int:
        """What waits to be read by all clients together."""
        return sum(connection.outbox_bytes for connection in self._connections.values())

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection to its end."""
        connection = Connection(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        if self._stopping or len(self._connections) >= self.config.connections_max:
            await connection.refuse(stopping=self._stopping)
            return
        self._connections[task] = connection
        try:
            await connection.run()
        finally:
            del self._connections[task]

    async def stop(self) -> None:
        """Answer what is under way, end every connection, and let go of the threads.

        Whose write has begun and is not done after `stop_seconds_max` hears nothing: it is waited
        for, and may be kept.
        """
        self._stopping = True
        tasks = dict(self._connections)
        for task, connection in tasks.items():
            connection.stop(task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.config.stop_seconds_max)
            for task in late:
                task.cancel()  # it waits for its client
            if late:
                await asyncio.wait(late)
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._indexer.shutdown)

    async def write(self, call: Callable[[], Result]) -> Result:
        """Call in a thread that writes."""
        return await _written(self._writers, call)

    async def read(self, call: Callable[[], Result]) -> Result:
        """Call in a thread that reads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def index(self, call: Callable[[], Result]) -> Result:
        """Call in the thread that makes indexes: it writes a step at a time, between others."""
        return await _written(self._indexer, call)

    def refuse_stopping(self) -> None:
        """Have an index that is being made given up once the server is to end.

        Raises ServerStoppingError.
        """
        if self._stopping:
            raise ServerStoppingError(
                "the store's server is stopping. Nothing was done. Try again."
            )


class Connection:
    """One client."""

    def __init__(
        self, server: StoreServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._store = server.store
        self._reader = reader
        self._writer = writer
        self._writer.transport.set_write_buffer_limits(high=server.config.outbox_bytes_max)
        self._interruptible = False
        """Nothing is under way that a stop would have to wait for."""
        self._stopping = False

    @property
    def outbox_bytes(self) -> int:
        """What waits to be read by the client."""
        return self._writer.transport.get_write_buffer_size()

    def stop(self, task: "asyncio.Task[None]") -> None:
        """End once what is under way is answered."""
        self._stopping = True
        if self._interruptible:
            task.cancel()

    async def refuse(self, *, stopping: bool) -> None:
        """Say why this connection is not served, and close it."""
        error: PenstockError = (
            ServerStoppingError("the store's server is stopping. Nothing was done. Try again.")
            if stopping
            else ServerBusyError(
                f"{self._server.config.connections_max} connections are open, and no more are "
                f"allowed. Nothing was done. Try again later, or raise connections_max."
            )
        )
        await self._end(error)

    async def run(self) -> None:
        """Answer requests until the client hangs up or the server stops."""
        try:
            while not self._stopping:
                self._interruptible = True
                line = await self._line()
                self._interruptible = False
                if line is None or not await self._serve(line):
                    break
            await self._end(None)
        except (ConnectionError, _UnderWayError):
            # Of a write that has begun no word is true: its client takes the silence for that.
            self._writer.transport.abort()
        except asyncio.CancelledError:
            # Ours: `stop` cancels only what may be; whoever else did so wants an end as well.
            stopping = "the store's server is stopping. What was answered is kept. Connect again."
            await self._end(ServerStoppingError(stopping))

    async def _end(self, error: PenstockError | None) -> None:
        """Say why, if there is a reason, and close."""
        with suppress(OSError):
            if error is not None:
                self._writer.write(encode_line(write_error("plain", error)))
            self._writer.close()
            # A client that reads nothing must not hold the server's end.
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _line(self) -> bytes | None:
        """The next request; None at the end, also in the middle of a line."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            limit = self._server.config.request_bytes_max
            error = RequestTooLargeError(
                f"a request has more than {limit} bytes. Nothing of it was done. Send less at "
                f"once, or raise request_bytes_max."
            )
            await self._end(error)
            return None

    async def _send(self, line: bytes) -> None:
        self._writer.write(line)
        await self._writer.drain()

    # --- requests --------------------------------------------------------------------------------

    async def _serve(self, line: bytes) -> bool:
        """Answer one request; False when the connection is to end."""
        form: Form = "plain"
        goes_on = True
        try:
            request = decode_request(line)
            form = form_of(request)
            # What follows a transaction that broke was meant for it.
            goes_on = not isinstance(request, ask.BeginTransaction)
            match request:
                case ask.Subscribe():
                    await self._subscribe(request)
                    return False
                case ask.BeginTransaction():
                    return await self._transaction()
                case ask.GetStreamRecords():
                    reply = await self._poll(request)
                case _:
                    reply = await self._done(request)
        except ConnectionError:
            raise
        except Exception as error:
            reply = encode_line(write_error(form, told(error)))
        await self._send(reply)
        return goes_on

    async def _done(self, request: AnyRequest) -> bytes:
        """The line that answers a request which the store answers at once."""

        def call() -> bytes:
            return encode_line(written(answer(self._store, request), form_of(request)))

        if isinstance(request, ask.CreateIndex):
            check = self._server.refuse_stopping
            return await self._server.index(
                lambda: encode_line(
                    written(create_index(self._store, request, check), form_of(request))
                )
            )
        reads = isinstance(request, _READS)
        return await (self._server.read(call) if reads else self._server.write(call))

    async def _poll(self, request: ask.GetStreamRecords) -> bytes:
        """A page of a stream, once there is one or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        while True:
            rings = self._store.bell.rings
            page = await self._server.read(partial(read_records, self._store, request))
            left = deadline - loop.time()
            over = page.records or page.closed or left <= 0
            if over or self._stopping or self._reader.at_eof():
                return encode_line(written(records(page), request.values))
            # The latest place moves with each write, so what is waited for is behind this one.
            request = ask.GetStreamRecords(
                table=request.table,
                after=page.position,
                limit=request.limit,
                max_bytes=request.max_bytes,
                values=request.values,
            )
            await self._store.wait_async(rings, min(left, _LOOK_SECONDS))

    # --- transactions ----------------------------------------------------------------------------

    async def _transaction(self) -> bool:
        """Requests from here on are one transaction; False when the connection is to end."""
        held = Held(self._store, seconds_max=self._server.config.transaction_seconds_max)
        running = asyncio.ensure_future(self._server.write(held.run))
        try:
            begun = await held.begun(running)
            await self._send(encode_line({"ok": True}) if begun is None else _error(begun))
            while begun is None:
                line = await self._line()
                if line is None:
                    return False
                ended, reply = await held.ask(line, running)
                await self._send(reply)
                if ended is not None:
                    return ended
            return True
        except asyncio.CancelledError:
            held.abort()
            await asyncio.wait([running])
            if running.exception() is None and running.result():
                raise _UnderWayError from None  # it was committed
            raise
        finally:
            held.abort()
            await asyncio.wait([running])
            running.exception()  # whoever was to hear of it was told

    # --- subscriptions ---------------------------------------------------------------------------

    async def _subscribe(self, request: ask.Subscribe) -> None:
        """Push what is committed until the stream or the client ends."""
        wanted = ask.GetStreamRecords(
            table=request.table,
            after=request.after,
            start=request.start,
            limit=_PUSH_RECORDS,
            values=request.values,
        )
        gone = asyncio.ensure_future(self._reader.read(1))
        self._interruptible = True
        first = True
        try:
            while not gone.done():
                rings = self._store.bell.rings
                page, line = await self._server.read(partial(self._pushed, wanted, first=first))
                if line:
                    await self._send(line)
                first = False
                wanted = ask.GetStreamRecords(
                    table=request.table,
                    after=page.position,
                    limit=_PUSH_RECORDS,
                    values=request.values,
                )
                if page.records:
                    continue
                if page.closed:
                    raise StreamClosedError(request.table, position=page.position)
                await self._news(rings, gone)
        except PenstockError as error:
            await self._end(error)
        finally:
            await _cancelled(gone)

    async def _news(self, rings: int, gone: "asyncio.Future[bytes]") -> None:
        """Wait until something was written, or the client is gone."""
        news = asyncio.ensure_future(self._store.wait_async(rings, None))
        waiting: list[asyncio.Future[Any]] = [news, gone]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(news)

    def _pushed(self, wanted: ask.GetStreamRecords, *, first: bool) -> tuple[Page, bytes]:
        """The next page and its line; no line for nothing, but for the first."""
        page = read_records(self._store, wanted)
        if not page.records and not first:
            return page, b""
        return page, encode_line(written(records(page), wanted.values))


async def _written(pool: ThreadPoolExecutor, call: Callable[[], Result]) -> Result:
    """Call in the pool. Cancelled once that has begun, it raises _UnderWayError."""
    running = pool.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if running.cancel():
            raise
        raise _UnderWayError from None


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    """End a task of ours, and see it end."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # of a client that is gone


def _error(error: PenstockError) -> bytes:
    return encode_line(write_error("plain", error))


@asynccontextmanager
async def serving(
    store: Store, address: Path, config: ServerConfig | None = None
) -> AsyncGenerator[StoreServer]:
    """Serve `store` at the socket `address` inside the block, and stop gracefully at its end.

    Raises ConfigError when something else is at the address, or the path is too long for a socket.
    """
    settings = config or ServerConfig()
    listener, remove = listen(address)
    server = StoreServer(store, settings)
    try:
        accepting = await asyncio.start_unix_server(
            server.accept, sock=listener, limit=settings.request_bytes_max
        )
        try:
            yield server
        finally:
            await stop_accepting(accepting)
            accepting.close()
            await server.stop()
    finally:
        listener.close()
        remove()


def listen(address: Path) -> tuple[socket.socket, Callable[[], None]]:
    """A socket at `address` that only this user may open, and what removes its file.

    One left by a dead server is replaced.

    Raises ConfigError.
    """
    if len(os.fsencode(address)) > _PATH_BYTES_MAX:
        raise ConfigError(
            f"the path of a Unix socket has at most {_PATH_BYTES_MAX} bytes (unix(7)), and "
            f"{address} is longer. Nothing was started. Choose a shorter one."
        )
    _make_room(address)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(address))
        # Nobody can connect before it listens, so nobody does while it has another mode.
        address.chmod(stat.S_IRUSR | stat.S_IWUSR)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {address}: {error.strerror}") from error
    ours = address.stat().st_ino

    def remove() -> None:
        with suppress(OSError):
            if address.stat().st_ino == ours:
                address.unlink()

    return listener, remove


def _make_room(address: Path) -> None:
    try:
        found = address.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{address} is there, and is no socket. Nothing was changed.")
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(address))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                raise ConfigError(f"cannot use {address}: {error.strerror}") from error
            address.unlink(missing_ok=True)
            return
    raise ConfigError(
        f"another process listens at {address}. Nothing was changed. Choose another path, or stop "
        f"that process."
    )
