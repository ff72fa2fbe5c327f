"""Folders that have one writer: a lock that ends with the process that holds it."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from penstock.errors import PenstockError
from penstock.folders import no_place


def hold(path: Path, *, refused: Callable[[str], PenstockError]) -> int:
    """Take the lock at `path`, a file: a descriptor that holds it until it is closed.

    While another holds it, raises what `refused` makes of its process id, or of `unknown`. A child
    that inherits the descriptor holds the lock too. Raises ConfigError where it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise no_place(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise refused(owner) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
