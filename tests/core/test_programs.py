"""A program ends with the process that started it, and as if nothing stood between the two."""

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from penstock.programs import start_program
from tests.children import Child
from tests.waiting import wait_until
from tests_support.leftovers import marked_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervises on Linux only")

STARTER = """
import asyncio
from penstock.programs import start_program

async def main():
    await start_program(["sh", "-c", "sleep 900 & echo started; exec sleep 900"])
    await asyncio.Event().wait()

asyncio.run(main())
"""
MARK = "PENSTOCK_TEST_PROGRAM"


@contextmanager
def started(code: str, mark: str) -> Generator[Child]:
    """A process that has started a program, which has said so."""
    with Child(sys.executable, "-c", code, env={**os.environ, MARK: mark}) as starter:
        assert starter.line() == "started", starter.tail()
        yield starter


def test_after_kill_9_of_the_starter_neither_the_program_nor_its_child_lives() -> None:
    mark = str(os.getpid())
    with started(STARTER, mark) as starter:
        assert len(marked_processes(MARK, mark)) == 4  # with the supervisor
        starter.kill()
        assert starter.rest() == ""  # the end: nobody has this pipe open any more
        wait_until(lambda: not marked_processes(MARK, mark))  # the supervisor does not have it


READER = """
import asyncio
from asyncio.subprocess import PIPE
from penstock.programs import start_program

async def main():
    await start_program(["sh", "-c", "sleep 900 & echo started; exec cat"], stdin=PIPE)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_program_that_ends_because_its_starter_was_killed_leaves_no_child() -> None:
    """It sees the end of its input before the supervisor sees the end of the starter."""
    mark = str(os.getpid())
    for _ in range(10):
        with started(READER, mark) as starter:
            starter.kill()
        wait_until(lambda: not marked_processes(MARK, mark))


def test_a_process_that_asked_for_it_ends_with_its_parent() -> None:
    child = "from penstock.programs import end_with_parent; import time; end_with_parent(); "
    child += "print('started', flush=True); time.sleep(900)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with Child(sys.executable, "-c", code) as parent:
        assert parent.line() == "started", parent.tail()
        parent.kill()
        assert parent.rest() == ""  # the end: the child had this pipe open


@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15), ("kill -9 $$", -9)]
)
async def test_it_ends_as_its_program_ends(command: str, code: int) -> None:
    process = await start_program(["sh", "-c", command])
    assert await process.wait() == code


async def test_its_pipes_are_the_program_s_alone() -> None:
    """They are seen to end while the program, which has closed them, goes on."""
    process = await start_program(
        ["sh", "-c", "read line; echo got $line; exec >&- <&-; sleep 900"],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"it\n")
    assert await process.stdout.read() == b"got it\n"
    assert process.returncode is None
    os.killpg(process.pid, signal.SIGKILL)
    assert await process.wait() == -9


async def test_killing_the_process_alone_ends_the_program() -> None:
    process = await start_program(
        ["sh", "-c", "echo started; exec sleep 900"], stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    process.kill()
    assert await process.stdout.read() == b""
    await process.wait()


async def test_a_program_that_is_not_there_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        await start_program(["penstock-no-such-program"])
    with pytest.raises(PermissionError):
        await start_program(["/etc/passwd"])
