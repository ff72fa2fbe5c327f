"""A program of any language as a consumer: JSON lines in, one answer a line out.

The program reads one event a line from its standard input, in the JSON of the puller's design, and
writes one line to its standard output once it is done with it: `ok`, or `error` and a reason. What
it writes before it was given an event answers nothing, and ends it. Its standard error is its own.
It is started again when it ends, and killed, with what it started, when it does not answer.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from penstock.client.change import Change
from penstock.errors import ProgramError
from penstock.programs import start_program
from penstock.wire import to_json

ANSWER_BYTES_MAX: Final = 64 << 10
_LEAVE_SECONDS: Final = 10.0


class Program:
    """A running program, started when it is first asked. One change at a time."""

    def __init__(self, command: Sequence[str], *, answer_seconds: float = 60.0) -> None:
        """`answer_seconds`: how long it may take for one change; 0 = as long as it likes."""
        self._command = list(command)
        self._answer_seconds = answer_seconds
        self._process: asyncio.subprocess.Process | None = None

    async def __call__(self, change: Change) -> None:
        """Have `change` processed.

        Raises ProgramError if the program says that it could not, if it ends, answers anything
        else, or does not answer in time. All but the first end it: what it still does with the
        change cannot be known, so the next change meets a new one.

        Raises it too, and ends the program, if it has written anything since its last answer: that
        would be taken for the answer to this change. What comes after that look cannot be told
        from an answer; it is seen at the next change, when the answer itself is left over.
        """
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        if await _is_unasked(process.stdout):
            await self._end(process)
            raise ProgramError(
                "the program wrote more than one answer to an event, or wrote before it had one; "
                "what it has to say beside its answers belongs on its standard error"
            )
        try:
            async with asyncio.timeout(self._answer_seconds or None):
                process.stdin.write(to_json(change.entry) + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError:
            await self._end(process)
            raise ProgramError(
                f"the program did not answer within {self._answer_seconds:g} s, and was killed"
            ) from None
        except (ConnectionError, ValueError) as error:
            answer = b""
            if isinstance(error, ValueError):
                await self._end(process)
                raise ProgramError("the program answered with a line beyond 64 KiB") from None
        except asyncio.CancelledError:
            await self._end(process)
            raise
        word, _, reason = answer.decode(errors="replace").strip().partition(" ")
        if word == "ok" and answer.endswith(b"\n"):
            return
        if word == "error":
            raise ProgramError(f"the program said: {reason or 'no reason'}")
        code = await self._end(process)
        if not answer:
            raise ProgramError(f"the program ended with exit code {code} before it answered")
        raise ProgramError(
            "the program answered neither `ok` nor `error REASON`, one line an event; what it "
            "has to say beside that belongs on its standard error"
        )

    async def aclose(self) -> None:
        """Let the program read its end of input and leave; kill it if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        await self._end(process, leave_seconds=_LEAVE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            try:
                # In a session of its own: a terminal's Ctrl-C is for us, and we end it once it has
                # answered.
                self._process = await start_program(
                    self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=ANSWER_BYTES_MAX,
                )
            except OSError as error:
                raise ProgramError(f"the program cannot be started: {error}") from error
        return self._process

    async def _end(
        self, process: asyncio.subprocess.Process, *, leave_seconds: float = 0.2
    ) -> int | None:
        """Kill it, with what it started, if it does not leave by itself; its exit code.

        What has left its session cannot be killed, and is not waited for.
        """
        self._process = None
        try:
            async with asyncio.timeout(leave_seconds):
                return await _over(process)
        except TimeoutError:
            _kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await _over(process)
        return process.returncode


def _kill(process: asyncio.subprocess.Process) -> None:
    """Its children too: one that holds its output would be waited for. On Windows it alone."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


async def _over(process: asyncio.subprocess.Process) -> int:
    """Its exit code, once it and all that hold its output have ended. What they say is read, for
    asyncio sees no end of a pipe that is full."""
    assert process.stdout is not None
    while await process.stdout.read(ANSWER_BYTES_MAX):
        pass
    return await process.wait()


async def _is_unasked(output: asyncio.StreamReader) -> bool:
    """Whether there is output now. Takes some of it."""
    # What lies in the pipe is in the reader after these: the loop reads it, then hands it on.
    for _ in range(3):
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0):
            return bool(await output.read(1))
    except TimeoutError:
        return False
