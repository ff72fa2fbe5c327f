"""Where goes what has failed for good, before the checkpoint passes it.

These destinations get letters whole, with the event: the stream will have forgotten the records by
the time that somebody reads it. Those in AWS are in `aws`.
"""

import asyncio
import os
import shlex
import signal
from asyncio import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from penstock.folders import make_folder, sync_folder
from penstock.programs import start_program
from penstock.trigger.environments import Environments
from penstock.trigger.letters import Letter

Deliver = Callable[[Letter], Awaitable[None]]
"""Keeps a letter: for good when it returns. Raises OSError or UndeliveredError."""


class UndeliveredError(Exception):
    """A destination did not keep a letter; the text says why, and quotes nothing of it."""


def to_file(path: Path) -> Deliver:
    """Letters as lines of a file, each made durable."""

    def append(line: bytes) -> None:
        make_folder(path.parent)
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # a crash cut the last one short: it comes again, whole
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # Whether new or not: whoever made it may have failed, or died, in front of this.
        sync_folder(path.parent)

    turn = asyncio.Lock()

    async def deliver(letter: Letter) -> None:
        async with turn:
            await asyncio.to_thread(append, letter.whole())

    return deliver


def to_command(command: str, *, timeout_seconds: float) -> Deliver:
    """Letters on the standard input of a program, which has taken one if it exits with 0.

    It is split as a shell would, and run without one.
    """
    arguments = shlex.split(command)

    async def deliver(letter: Letter) -> None:
        process = await start_program(arguments, stdin=subprocess.PIPE)
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.communicate(letter.whole())
        except TimeoutError:
            raise UndeliveredError("the command did not end in time, and was killed") from None
        finally:
            if process.returncode is None:
                # Its children too: one that holds standard input open would be waited for.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise UndeliveredError(f"the command ended with exit code {process.returncode}")

    return deliver


def to_function(environments: Environments) -> Deliver:
    """Letters as events of a function, which has taken one if it returns.

    Delivering raises StoppedError where a call does.
    """

    async def deliver(letter: Letter) -> None:
        outcome = await environments.call(letter.whole())
        if outcome.error:
            raise UndeliveredError(f"the function failed: {outcome.error}")

    return deliver
