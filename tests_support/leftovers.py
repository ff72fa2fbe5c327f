"""Folders and processes that end with their owner, even when the owner is killed with SIGKILL.

A folder is owned through a lock on a file in it, which the kernel releases when the owner dies.
Processes are found through a variable that they inherit in their environment, so that one in a
session of its own, or one whose parent is gone, is found too (Linux's proc_pid_environ(5)).

Run as a program, this module guards a folder. It waits until its parent ends or writes to its
standard input, kills every process that the folder's path marks, and removes the folder. It
imports nothing but the standard library: it must work whatever state the environment is in.
"""

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_POLL_SECONDS: Final = 0.02
_MEMORY: Final = Path("/dev/shm")
_NEW: Final = "penstock-new-"


def marked_processes(name: str, value: str) -> set[int]:
    """The living processes that have the variable `name` with `value`, or a path below it, in
    their environment, and all of their descendants.

    Some programs write their title over their environment, as PostgreSQL's workers do: these are
    found as descendants. The calling process is never included.
    """
    wanted = f"{name}={value}".encode()
    children: dict[int, list[int]] = defaultdict(list)
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid, folder = int(entry.name), Path(entry.path)
        # A process that has ended is gone or a zombie; other users' environments are closed to us.
        with suppress(OSError):
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state == b"Z" or pid == os.getpid():
                continue
            children[int(parent)].append(pid)
            variables = (folder / "environ").read_bytes().split(b"\0")
            if any(one == wanted or one.startswith(wanted + b"/") for one in variables):
                found.append(pid)
    marked: set[int] = set()
    while found:
        pid = found.pop()
        if pid not in marked:
            marked.add(pid)
            found.extend(children[pid])
    return marked


def kill_marked(name: str, value: str) -> None:
    """Kill `marked_processes` with SIGKILL; returns when all of them are gone."""
    while found := marked_processes(name, value):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


class OwnedFolder:
    """A temporary folder that `remove` removes, or, if its owner was killed, the next of its kind.

    `prefix` is the kind. `remove_abandoned` gets the path of a folder whose owner is gone.
    """

    def __init__(
        self, prefix: str, *, remove_abandoned: Callable[[Path], None] | None = None
    ) -> None:
        self._sweep(prefix, remove_abandoned or _remove)
        unlocked = Path(tempfile.mkdtemp(prefix=_NEW))
        self.lock = _open_lock(unlocked)
        """Open while the folder is in use; a process that inherits it is an owner too."""
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        # It gets the name that sweeps look for once it is locked: no sweep finds it without.
        self.path = unlocked.rename(unlocked.with_name(prefix + unlocked.name.removeprefix(_NEW)))

    def remove(self) -> None:
        _remove(self.path)
        self.lock.close()

    @staticmethod
    def _sweep(prefix: str, remove: Callable[[Path], None]) -> None:
        """Remove folders whose owner is gone: a database left behind is 300 MB."""
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            # Raises where the folder is in use, or another user's.
            with suppress(OSError), _open_lock(folder) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)


def _open_lock(folder: Path) -> IO[str]:
    return (folder / "lock").open("w")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


class GuardedFolder:
    """A temporary folder that goes, with all processes marked by it, when this process ends.

    Start processes with the variable `mark` set to `path` to mark them. A guard process survives
    every end of this one; were it killed too, the next GuardedFolder of that prefix cleans up.
    """

    def __init__(self, prefix: str, *, mark: str) -> None:
        def remove_abandoned(folder: Path) -> None:
            clean(mark, folder)

        self._folder = OwnedFolder(prefix, remove_abandoned=remove_abandoned)
        # Servers that run as another user must reach their folders below this one.
        self._folder.path.chmod(0o711)
        self._guard = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", __file__),
                *(mark, str(self.path), str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            cwd="/",
            pass_fds=(self._folder.lock.fileno(),),
            start_new_session=True,
        )

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def memory(self) -> Path:
        """A folder in memory that goes with it, or `path` on a machine without one."""
        if not _MEMORY.is_dir():
            return self.path
        memory = _in_memory(self.path)
        memory.mkdir(mode=0o711, exist_ok=True)
        return memory

    def close(self) -> None:
        """Kill every marked process and remove the folder; returns when that is done."""
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.write(b"\n")
            self._guard.stdin.close()
        self._guard.wait()
        self._folder.lock.close()


def clean(mark: str, folder: Path) -> None:
    """Kill every process that `mark` marks with `folder`; remove the folder, also in memory."""
    kill_marked(mark, str(folder))
    _remove(_in_memory(folder))
    _remove(folder)


def _in_memory(folder: Path) -> Path:
    return _MEMORY / folder.name


def _guard(mark: str, folder: Path, parent: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    with suppress(ProcessLookupError):
        ended = os.pidfd_open(parent)
        # If the parent was gone before, that id may be another process's by now.
        if os.getppid() == parent:
            select.select([sys.stdin.fileno(), ended], [], [])
    clean(mark, folder)


if __name__ == "__main__":
    _guard(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
