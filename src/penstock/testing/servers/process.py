"""One server process: started in a session of its own, and never outliving the tests."""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from penstock.errors import PenstockError

STOP_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 4096

# Ports that the kernel hands to outgoing connections begin at 32768. Below them, a port that we
# chose stays ours while its server is down between kill and restart.
PORTS = range(15_000, 32_000)

# Linux ties "die with your parent" to the *thread* that started the child. One thread that lives
# as long as this process starts them all, so that a test may start a server from any thread.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-servers")

# Runs between us and the server: no code of ours runs after a fork of this threaded process.
_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted this server is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerStartError(PenstockError):
    """A server was started and did not come up; the end of its log is in the message."""

    code = "testing.server_start"


class ServerProcess:
    """A server, addressed by its pid alone: nothing else on the machine is ever signalled.

    Started by the constructor; output goes to `log_path`, appended over restarts.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = _starter.submit(
                subprocess.Popen[bytes],
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self) -> str:
        """The last few lines that the server wrote, for an error message."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def terminate(self) -> None:
        """Ask the server to stop; returns at once."""
        if self.running:
            self._process.terminate()

    def stop(self, *, timeout_seconds: float = STOP_SECONDS_MAX) -> None:
        """Stop with SIGTERM, or with SIGKILL once `timeout_seconds` have passed."""
        self.terminate()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Stop with SIGKILL, as a power cut would; returns when the process is gone."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class ServerFolder:
    """A temporary folder that goes when the test does, or at the next start if that was killed."""

    _PREFIX = "penstock-server-"

    def __init__(self) -> None:
        self._sweep()
        unlocked = Path(tempfile.mkdtemp(prefix="penstock-new-"))
        self._lock = self._open_lock(unlocked)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Named like a server's folder only once locked, so that no sweep takes it for abandoned.
        self.path = unlocked.rename(unlocked.with_name(self._PREFIX + unlocked.name[-8:]))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    @classmethod
    def _sweep(cls) -> None:
        """Remove folders whose owner is gone: a database left behind is 300 MB."""
        for folder in Path(tempfile.gettempdir()).glob(f"{cls._PREFIX}*"):
            try:
                with cls._open_lock(folder) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # in use, or another user's

    @staticmethod
    def _open_lock(folder: Path) -> IO[str]:
        return (folder / "lock").open("w")


def free_ports(count: int) -> list[int]:
    """Return `count` loopback ports that nobody listens on right now."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports
