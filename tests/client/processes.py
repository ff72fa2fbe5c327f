"""Processes of our own that a test may kill."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def running(script: str, *arguments: object) -> "Generator[subprocess.Popen[str]]":
    """A process of ours, killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.client.{script}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
