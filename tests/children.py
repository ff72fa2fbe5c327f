"""Programs of a test's own, to be killed with -9 at any moment."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def standing_still(pid: int) -> Generator[None]:
    """That process stands still meanwhile, as on a machine that has no time for it.

    On a busy machine its threads go on for a while behind the signal; this waits for the last.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while not _stands_still(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    states = [
        one.read_text().rpartition(")")[2].split()[0]
        for one in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) <= {"T", "t"}


class Child:
    """A module that is run, and says something now and then, until it is killed."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        self._said = 0
        self._turn = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for _ in lines:
                with self._turn:
                    self._said += 1
                    self._turn.notify_all()
        with self._turn:
            self._turn.notify_all()

    def says(self, more: int) -> None:
        """Wait until it has said so many lines more."""
        with self._turn:
            wanted = self._said + more
            assert self._turn.wait_for(
                lambda: self._said >= wanted or self._process.poll() is not None, timeout=120
            )
        assert self._process.poll() is None, "it ended by itself"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


@contextmanager
def running(module: str, *arguments: object) -> Generator[list[Child]]:
    """One of it at a time, to be replaced by another."""
    children = [Child(module, *arguments)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
