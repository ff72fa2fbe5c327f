"""The processes of a deployment, each of which a test may kill with -9 at any moment."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from tests.children import standing_still
from tests.waiting import PATIENCE_SECONDS, wait_until


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: see prctl(2)


class Process:
    """One program of the deployment; its JSON lines are facts, the rest goes to its log."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.command = command
        self.log_path = folder / f"{name}.log"
        self.facts: list[dict[str, Any]] = []
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start it; the facts of an earlier life are forgotten."""
        self.facts = []
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing outlives the test run
            )
        arguments = (self._process, self.facts)
        self._reader = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[bytes]", facts: list[dict[str, Any]]) -> None:
        assert process.stdout is not None
        with process.stdout as lines, self.log_path.open("ab") as log:
            for line in lines:
                try:
                    facts.append(msgspec.json.decode(line, type=dict[str, Any]))
                except (msgspec.DecodeError, msgspec.ValidationError):
                    log.write(line)

    def fact(self, event: str) -> dict[str, Any]:
        """The newest fact of that name; waits for the first."""
        return wait_until(
            lambda: next((f for f in reversed(self.facts) if f.get("event") == event), None),
            f"{self.name} to say {event!r}",
            diagnose=self.tail,
        )

    @property
    def pid(self) -> int:
        """Of its first process, and so of its session."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9, the whole session: a driver takes its JVM along, a service its children."""
        assert self._process is not None
        self.kills += 1
        os.killpg(self._process.pid, signal.SIGKILL)
        self._ended(self._process.wait())

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._ended(self._process.wait(PATIENCE_SECONDS))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} ignored SIGTERM; see {self.tail()}") from None

    def _ended(self, code: int) -> int:
        assert self._reader is not None
        self._reader.join()
        return code

    def tail(self) -> str:
        """The end of its log, for a failure's message."""
        if not self.log_path.exists():
            return "(no log)"
        return self.log_path.read_text(errors="replace")[-3000:]


class Service(Process):
    """`penstock run --json`: a process whose children can be killed one by one."""

    def __init__(self, config: Path, folder: Path) -> None:
        command = ["-m", "penstock.cli", "run", "--config", str(config), "--json"]
        super().__init__("service", command, folder)

    def kill_role(self, role: str) -> None:
        """kill -9 that child. The service starts it again by itself."""
        os.kill(self._pid(role), signal.SIGKILL)

    def paused(self, role: str) -> AbstractContextManager[None]:
        """That child stands still meanwhile."""
        return standing_still(self._pid(role))

    def _pid(self, role: str) -> int:
        """The pid of a role's living process; waits while it is being started again."""

        def living() -> int | None:
            pid: int | None = self.fact("ready")["pids"][role]
            for fact in list(self.facts):
                if fact.get("role") == role:
                    pid = fact["pid"] if fact["event"] == "restarted" else None
            return pid

        return wait_until(living, f"{role} to be back", diagnose=self.tail)
