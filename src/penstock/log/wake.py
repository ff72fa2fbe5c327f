"""Asking the writer of a log for something, over the socket by which it wakes readers."""

import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import LogError
from penstock.wake import connect


def ask(folder: Path, request: dict[str, Any], *, timeout_seconds: float = 30) -> dict[str, Any]:
    """Send a request to the writer of the log in `folder` and return its answer.

    Raises LogError when nobody writes the log, or the writer does not answer in time.
    """
    until = time.monotonic() + timeout_seconds
    try:
        with connect(folder, timeout_seconds=timeout_seconds) as connection:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    if line != b"\n":
                        return msgspec.json.decode(line, type=dict[str, Any])
                    # The writer wakes us for each of its writes, which is no answer.
                    left = until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("timed out")
                    connection.settimeout(left)
    except OSError as error:
        raise LogError(
            f"nobody answers for the log at {folder} ({error.strerror or error}). Nothing was "
            f"changed. Is `penstock run` running?"
        ) from error
    raise LogError(f"the writer of the log at {folder} hung up. Ask `penstock status`.")
