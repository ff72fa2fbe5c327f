"""The faces of a store for tests: a server in a thread, and the asynchronous client as one that
waits."""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from penstock import store
from penstock.clocks import Clock
from penstock.store import AsyncClient, Store
from penstock.store.remote.config import ServerConfig
from penstock.store.remote.server import serving


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.within = threading.local()
        """`block`: the asynchronous block that this thread is in."""

    def run(self, awaited: Awaitable[Any]) -> Any:
        """Wait for it: in the task of the block that this thread is in, or in one of its own."""
        block: _Block | None = getattr(self.within, "block", None)
        return self.run_alone(awaited if block is None else block.done(awaited))

    def run_alone(self, awaited: Awaitable[Any]) -> Any:
        """Wait for it, in a task of its own."""

        async def result() -> Any:
            return await awaited

        return asyncio.run_coroutine_threadsafe(result(), self._loop).result()

    def close(self) -> None:
        """End the loop."""
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def served(db: Store, address: Path, config: ServerConfig | None = None) -> Generator[None]:
    """A server of that store, in a thread of its own."""
    loop = Loop()
    try:
        server = serving(db, address, config)
        loop.run(server.__aenter__())
        try:
            yield
        finally:
            loop.run(server.__aexit__(None, None, None))
    finally:
        loop.close()


@contextmanager
def opened_and_served(
    folder: Path, clock: Clock | None = None, config: ServerConfig | None = None
) -> Generator[Path]:
    """A store that nobody sweeps, and the address of its server."""
    with store.open(folder / "store", sweep_seconds=None, clock=clock) as db:
        address = folder / "s"
        with served(db, address, config):
            yield address


class Waiting:
    """The asynchronous client, or a part of it, whose results are waited for."""

    def __init__(self, loop: Loop, part: Any) -> None:
        self._loop = loop
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._waited(
                found(
                    *(self._awaitable(one) for one in arguments),
                    **{name: self._awaitable(one) for name, one in options.items()},
                )
            )

        return call

    def _waited(self, result: Any) -> Any:
        if result is self._part:
            return self
        if inspect.isasyncgen(result):
            return self._iterated(cast("AsyncGenerator[Any]", result))
        if hasattr(result, "__aenter__"):
            return self._entered(result)
        if inspect.isawaitable(result):
            return self._loop.run(result)
        return result if _plain(result) else Waiting(self._loop, result)

    def _iterated(self, results: AsyncGenerator[Any]) -> Iterator[Any]:
        end = object()
        try:
            while (result := self._loop.run(anext(results, end))) is not end:
                yield result
        finally:
            self._loop.run(results.aclose())

    @contextmanager
    def _entered(self, manager: Any) -> Generator[Any]:
        if getattr(self._loop.within, "block", None) is not None:
            # Inside another block, and so in its task.
            self._loop.run(manager.__aenter__())
            raise AssertionError("no block is entered inside another")
        with ExitStack() as stack:
            # One task for all of the block, as where it is written.
            yield Waiting(self._loop, stack.enter_context(_Block(self._loop, manager)))

    def _awaitable(self, given: Any) -> Any:
        """A callback as the asynchronous consumer wants it: run in a thread, to be awaited."""
        if not callable(given) or isinstance(given, type):
            return given
        called: Callable[..., Any] = given

        async def awaited(*arguments: Any) -> Any:
            return await asyncio.to_thread(called, *arguments)

        return awaited


def _plain(result: Any) -> bool:
    return not type(result).__module__.startswith("penstock.store") or isinstance(
        result, tuple | dict | list
    )


class _Block:
    """An asynchronous block, in a task of its own that does what it is told."""

    def __init__(self, loop: Loop, manager: Any) -> None:
        self._loop = loop
        self._manager = manager
        self._todo: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]] | None]
        self._raised: BaseException | None = None

    def __enter__(self) -> Any:
        value = self._loop.run(self._begin())
        self._before = getattr(self._loop.within, "block", None)
        self._loop.within.block = self
        return value

    async def _begin(self) -> Any:
        self._todo = asyncio.Queue()
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._work(begun))
        await asyncio.wait([begun, self._task], return_when=asyncio.FIRST_COMPLETED)
        return begun.result() if begun.done() else self._task.result()

    async def _work(self, begun: asyncio.Future[Any]) -> None:
        async with self._manager as value:
            begun.set_result(value)
            while (todo := await self._todo.get()) is not None:
                awaited, result = todo
                try:
                    result.set_result(await awaited)
                except Exception as error:
                    result.set_exception(error)
            if self._raised is not None:
                raise self._raised

    async def done(self, awaited: Awaitable[Any]) -> Any:
        """Await it in the block's task."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._todo.put((awaited, result))
        return await result

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        self._raised = raised
        self._loop.within.block = self._before
        self._loop.run_alone(self._ended())

    async def _ended(self) -> None:
        await self._todo.put(None)
        await self._task


@contextmanager
def waiting_client(address: Path) -> Generator[Any]:
    """The asynchronous client, as one that waits."""
    loop = Loop()
    try:
        client = Waiting(loop, AsyncClient(address))
        try:
            yield client
        finally:
            client.close()
    finally:
        loop.close()
