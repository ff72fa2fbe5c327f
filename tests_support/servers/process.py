"""Server processes: each in a session of its own, and never outliving the tests."""

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from penstock.errors import PenstockError
from tests_support.leftovers import OwnedFolder

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 4096

# Ports that the kernel hands to outgoing connections begin at 32768. Below them, a port that we
# chose stays ours while its server is down between kill and restart.
PORTS = range(15_000, 32_000)

# The ports belong to the machine: this is not below TMPDIR, which each run of tests has its own of.
_CLAIMS = Path("/tmp/penstock-ports")
"""A process has a port while it locks the byte at that offset."""
_claimed: set[int] = set()
"""The ports of this process: its own locks do not exclude it."""

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

    @property
    def exit_code(self) -> int | None:
        """What it ended with, a signal as its number below zero; None while it runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        """The last few lines that the server wrote, for an error message."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def terminate(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask the server to stop; returns at once."""
        if self.running:
            self._process.send_signal(how)

    def stop(
        self,
        *,
        timeout_seconds: float = STOP_SECONDS_MAX,
        how: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Stop with a signal, or with SIGKILL once `timeout_seconds` have passed."""
        self.terminate(how)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Stop with SIGKILL, as a power cut would; returns when the process is gone."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class ServerFolder(OwnedFolder):
    """A temporary folder that goes when the test does, or at the next start if that was killed."""

    def __init__(self) -> None:
        super().__init__("penstock-server-")


class Server(ABC):
    """One server on loopback, with a temporary data folder.

    It keeps its ports and its data over kills and restarts. Stop it, or use it as a context
    manager; should the process die first, the server dies too.
    """

    NAME: ClassVar[str]
    """As its messages call it."""
    PORTS: ClassVar[int] = 1
    """How many it listens on."""
    PORTS_IN_A_ROW: ClassVar[bool] = False
    """Whether it is told the first alone, and takes those that follow."""
    START_SECONDS: ClassVar[float] = START_SECONDS_MAX
    """How long it may take to answer, on a machine that does much else."""
    STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    """What it takes for a wish to end soon."""

    def __init__(self) -> None:
        self._folder: ServerFolder | None = None
        self._ports: list[int] = []
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def process(self) -> ServerProcess:
        """Its process: the pid, and whether it runs."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def folder(self) -> Path:
        """Where all of its files are, gone when it is stopped."""
        assert self._folder is not None, "not started"
        return self._folder.path

    def start(self) -> None:
        """Make its data folder, start it, and return when it answers.

        Raises ServerUnavailableError when it is not installed, and ServerStartError with the end of
        its log when it does not come up.
        """
        if self._folder is not None:
            raise RuntimeError(f"{self.NAME} is already started")
        self._require()
        self._folder = ServerFolder()
        self._ports = free_ports(self.PORTS, in_a_row=self.PORTS_IN_A_ROW)
        try:
            self._prepare()
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it and remove its data; harmless when nothing runs."""
        if self._process is not None:
            self._process.stop(how=self.STOP_SIGNAL)
            self._process = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def ended(self) -> str | None:
        """How it ended, and the last that it wrote; None while it runs or was never started."""
        if self._process is None or self._process.running:
            return None
        return f"exit code {self._process.exit_code}\n{self._process.log_tail()}"

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would; its data stays."""
        self.process.kill()

    def restart(self) -> None:
        """Start it again on its own ports and data, stopping it first if it runs."""
        self.process.stop(how=self.STOP_SIGNAL)
        self._launch()

    @property
    def log_path(self) -> Path:
        """What it writes, of all its starts."""
        return self.folder / "server.log"

    def _launch(self) -> None:
        self._process = ServerProcess(
            self._command(), log_path=self.log_path, environment=self._environment()
        )
        deadline = time.monotonic() + self.START_SECONDS
        while not self._answers():
            if not self._process.running or time.monotonic() > deadline:
                raise ServerStartError(
                    f"{self.NAME} did not come up. Its log ends:\n{self._process.log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    @abstractmethod
    def _require(self) -> None:
        """Raise ServerUnavailableError unless it is installed."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make its data, in `folder`. Raises ServerStartError."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What starts it."""

    def _environment(self) -> Mapping[str, str]:
        """What its environment has besides ours."""
        return {}

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it does; not yet, while it comes up."""


def free_ports(count: int, *, in_a_row: bool = False) -> list[int]:
    """Return `count` loopback ports that nobody listens on right now.

    No other process gets one of them from this function while this process lives.
    """
    width = count if in_a_row else 1
    ports: list[int] = []
    for first in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(ports) >= count:
            break
        row = range(first, first + width)
        if all(_is_free(port) and _claim(port) for port in row):
            ports.extend(row)
    return ports


def _claim(port: int) -> bool:
    """Lock the port's byte until this process ends; False if it was claimed before."""
    if port in _claimed:
        return False
    try:
        fcntl.lockf(_claims_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    _claimed.add(port)
    return True


@cache
def _claims_file() -> int:
    """Open for the life of this process: closing any descriptor of it would release its locks."""
    with suppress(FileExistsError):
        created = os.open(_CLAIMS, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(created, 0o666)
        return created
    return os.open(_CLAIMS, os.O_RDWR)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
