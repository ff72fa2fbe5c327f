"""Processes that run a function, one call at a time in each, started when they are needed.

A process for each concurrent call, as Lambda does it: functions are written for one call at a time
(a module-level BatchProcessor is shared state), a call that hangs can be killed, and one that takes
its process down is one failed batch.
"""

import asyncio
import sys
import uuid
from asyncio import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.errors import ConfigError
from penstock.programs import start_program
from penstock.trigger.environment import HEAD, Facts, Outcome
from penstock.trigger.streams import StoppedError

ANSWER_BYTES_MAX: Final = 6 << 20
"""Of an answer in JSON, as Lambda's."""
_LEAVE_SECONDS: Final = 10.0
_LOAD_SECONDS: Final = 300.0
"""For importing the function's module."""


class _TooLargeError(Exception):
    """An answer beyond ANSWER_BYTES_MAX; what there is of it lies in the pipe."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the answer has {size} bytes of JSON, and {ANSWER_BYTES_MAX} is the limit; the "
            f"process was ended"
        )

    def outcome(self) -> Outcome:
        return Outcome(error="AnswerTooLarge", message=str(self))


class Environments:
    """A function's processes."""

    def __init__(
        self,
        reference: str,
        *,
        name: str,
        arn: str,
        timeout_seconds: float,
        count_max: int,
        lock: int,
        stop: asyncio.Event,
    ) -> None:
        """`lock` is a descriptor that each process keeps open. None begins a call after `stop`."""
        self._reference = reference
        self._name, self._arn = name, arn
        self._timeout_seconds = timeout_seconds
        self._lock, self._stop = lock, stop
        self._free = asyncio.Semaphore(count_max)
        self._idle = list[subprocess.Process]()
        self._running = set[subprocess.Process]()

    async def __aenter__(self) -> Self:
        """Start the first one. Raises ConfigError if the function cannot be loaded, and
        StoppedError if it was still loading at `stop`."""
        process, loaded = await self._start()
        if loaded.error:
            await self._end(process)
            raise ConfigError(
                f"{self._reference} cannot be loaded: {loaded.error}: {loaded.message}. Nothing "
                f"was read from the stream. Name module:function, importable from here."
            )
        self._idle.append(process)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        idle = set(self._idle)
        ending = [self._end(process, kill=process not in idle) for process in self._running]
        await asyncio.gather(*ending)

    async def call(self, event: bytes) -> Outcome:
        """Call the function with an event in JSON, once one of the processes is free.

        What happens to the function or its process is in the outcome. A call that is cancelled ends
        its process. Raises StoppedError if `stop` was set before the function was called.
        """
        async with self._free:
            if self._stop.is_set():
                raise StoppedError
            process = await self._idle_one()
            if process is None:
                process, loaded = await self._start()
                if loaded.error:
                    await self._end(process)
                    return loaded
            facts = Facts(str(uuid.uuid4()), self._name, self._arn, self._timeout_seconds)
            request = b'{"event":' + event + b',"facts":' + msgspec.json.encode(facts) + b"}"
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    outcome = await _ask(process, request)
            except TimeoutError:
                await self._end(process, kill=True)
                return Outcome(
                    error="Timeout", message=f"killed after {self._timeout_seconds:g} seconds"
                )
            except _TooLargeError as error:
                await self._end(process, kill=True)
                return error.outcome()
            except asyncio.CancelledError:
                await self._end(process, kill=True)
                raise
            if outcome is None:
                code = await self._end(process, kill=True)
                return Outcome(error="EnvironmentEnded", message=f"with exit code {code}")
            self._idle.append(process)
            return outcome

    async def _idle_one(self) -> subprocess.Process | None:
        """One that waits for a call. One that has died meanwhile fails no batch."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            await self._end(process)
        return None

    async def _start(self) -> tuple[subprocess.Process, Outcome]:
        module = "penstock.trigger.environment"
        process = await start_program(
            [sys.executable, "-m", module, self._reference, str(self._lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._lock,),
        )
        self._running.add(process)
        loading = asyncio.create_task(_answer(process))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                {loading, stopping}, timeout=_LOAD_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            if not loading.done():
                loading.cancel()
                await asyncio.wait({loading})  # only one may read what it says
                await self._end(process, kill=True)
        if loading.cancelled() or not loading.done():
            if self._stop.is_set():
                raise StoppedError
            return process, Outcome(
                error="Timeout", message=f"not loaded within {_LOAD_SECONDS:g} seconds"
            )
        try:
            loaded = loading.result()
        except _TooLargeError as error:
            loaded = error.outcome()
        if loaded is None:
            loaded = Outcome(error="EnvironmentEnded", message="before the function was loaded")
        return process, loaded

    async def _end(self, process: subprocess.Process, *, kill: bool = False) -> int | None:
        """End a process, at once with `kill`; returns its exit code."""
        if kill and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await _over(process)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            # What has left it and holds its output is not waited for.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await _over(process)
        self._running.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        return process.returncode


async def _over(process: subprocess.Process) -> None:
    """Wait until it has ended. What it left in its pipe is read: asyncio sees no end of a full
    one."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()


async def _ask(process: subprocess.Process, request: bytes) -> Outcome | None:
    """Send a request; its outcome, or None if the process ended. Raises _TooLargeError."""
    assert process.stdin is not None
    try:
        process.stdin.write(HEAD.pack(len(request)) + request)
        await process.stdin.drain()
    except ConnectionError:
        return None
    return await _answer(process)


async def _answer(process: subprocess.Process) -> Outcome | None:
    assert process.stdout is not None
    try:
        (size,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
        if size > ANSWER_BYTES_MAX:
            raise _TooLargeError(size)
        body = await process.stdout.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return _decoder.decode(body)


_decoder: Final = msgspec.json.Decoder(Outcome)
