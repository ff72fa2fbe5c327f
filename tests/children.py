"""Programs that a test starts, reads and ends. Servers are in `tests_support.servers`."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Final, Self, TypeVar

from tests.waiting import PATIENCE_SECONDS, wait_until

MODULE: Final = (sys.executable, "-m")
"""What a command begins with that runs a module."""
_TAIL_LINES = 20
_TAIL_BYTES = 4000

T = TypeVar("T")


class Child:
    """A program, started at once and killed at the end of the block if it still runs.

    What it prints is read as it comes: it never waits for a reader. What it writes to stderr is
    appended to the file `errors`, or kept in one without a name. With `whole` it gets a process
    group, and a kill takes all that it has started along. Its stdout is closed after `lines_max`
    lines, as by `head`.
    """

    def __init__(
        self,
        *command: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        errors: Path | None = None,
        whole: bool = False,
        lines_max: int | None = None,
    ) -> None:
        self.lines: list[str] = []
        """What it has printed so far."""
        self._errors: IO[bytes] = errors.open("a+b") if errors else TemporaryFile()  # noqa: SIM115
        self._left = ""
        self._whole = whole
        self._process = subprocess.Popen(
            list(map(str, command)),
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
            start_new_session=whole,
        )
        self._taken = 0
        self._closed = False
        self._turn = threading.Condition()
        threading.Thread(target=self._read, args=(lines_max,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self.close_stdin()
        self._left = self.errors()
        self._errors.close()

    def _read(self, lines_max: int | None) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in islice(lines, lines_max):
                with self._turn:
                    self.lines.append(line.rstrip("\n"))
                    self._turn.notify_all()
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """What it ended with, a signal as its number below zero; None while it runs."""
        return self._process.poll()

    def ended(self) -> bool:
        return self.code is not None

    # --- what it says ---------------------------------------------------------------------------

    def line(self) -> str:
        """The next line that it prints; "" once its output has ended."""
        self._wait_for_lines(self._taken + 1)
        if self._taken == len(self.lines):
            return ""
        self._taken += 1
        return self.lines[self._taken - 1]

    def rest(self) -> str:
        """All that it prints from here on. Its output ends with the last process that has it."""
        self._wait_for_lines(sys.maxsize)
        found, self._taken = self.lines[self._taken :], len(self.lines)
        return "\n".join(found)

    def says(self, more: int) -> None:
        """Wait until it has printed so many lines more than by now."""
        wanted = len(self.lines) + more
        self._wait_for_lines(wanted)
        assert len(self.lines) >= wanted, f"it ended by itself\n{self.tail()}"

    def _wait_for_lines(self, count: int) -> None:
        with self._turn:
            came = self._turn.wait_for(
                lambda: self._closed or len(self.lines) >= count, PATIENCE_SECONDS
            )
        assert came, f"it says nothing\n{self.tail()}"

    def wait_until(self, condition: Callable[[], T | None], what: str = "") -> T:
        """Wait for it while this runs."""
        return wait_until(condition, what, unless=self.ended, diagnose=self.tail)

    def errors(self) -> str:
        """What its file for stderr has; after the block, what it had."""
        if self._errors.closed:
            return self._left
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def tail(self) -> str:
        """How it stands and the last that it wrote, for a failure's message."""
        state = "runs" if self.code is None else f"ended with {self.code}"
        errors = self.errors()[-_TAIL_BYTES:]
        return "\n".join([f"{self._process.args!r} {state}", *self.lines[-_TAIL_LINES:], errors])

    # --- what it is told ------------------------------------------------------------------------

    def write(self, line: str) -> None:
        """Write a line to its stdin, which was asked for as a pipe."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def send_signal(self, which: signal.Signals) -> None:
        """To the program alone; none once it has ended."""
        self._process.send_signal(which)

    def stop(self, which: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait for that; its exit code."""
        self.send_signal(which)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.tail()}") from None

    def kill(self) -> None:
        """kill -9, and wait for its end, of its whole group if it has one; nothing if it has
        ended."""
        if self.ended():
            return
        if self._whole:
            os.killpg(self.pid, signal.SIGKILL)
            self._wait_for_lines(sys.maxsize)
        self._process.kill()
        self._process.wait()

    def kill_after(self, seconds: float) -> bool:
        """Kill it then; whether it had not ended by itself."""
        if self.ends_in(seconds):
            return False
        self.kill()
        return True

    def ends_in(self, seconds: float) -> bool:
        """Whether it ends by itself in this time, which is waited for."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.ended()


async def lines_of(*command: object, cwd: Path | None = None) -> list[str]:
    """What a program prints that ends well, by itself."""
    with Child(*command, cwd=cwd) as child:
        lines = (await asyncio.to_thread(child.rest)).splitlines()
        code = await asyncio.to_thread(child.wait)
        assert code == 0, child.tail()
    return lines


@contextmanager
def standing_still(pid: int) -> Generator[None]:
    """That process stands still meanwhile, as on a machine that has no time for it.

    On a busy machine its threads go on for a while behind the signal; this waits for the last.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _stands_still(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    states = [
        one.read_text().rpartition(")")[2].split()[0]
        for one in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) <= {"T", "t"}
