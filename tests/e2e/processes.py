"""The processes of a deployment, each of which a test may kill with -9 at any moment."""

import os
import signal
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.children import Child, standing_still
from tests.waiting import wait_until


class Process:
    """One program of the deployment; its JSON lines are facts, its log has its stderr."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.command = command
        self.log_path = folder / f"{name}.log"
        self.kills = 0
        self._child: Child | None = None

    def start(self) -> None:
        """Start it; the facts of an earlier life are forgotten."""
        self._child = Child(sys.executable, *self.command, errors=self.log_path, whole=True)

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def facts(self) -> list[dict[str, Any]]:
        """All that it has said so far."""
        found: list[dict[str, Any]] = []
        for line in list(self.child.lines):
            with suppress(msgspec.DecodeError, msgspec.ValidationError):
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
        return found

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
        return self.child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and not self._child.ended()

    def kill(self) -> None:
        """kill -9, the whole session: a driver takes its JVM along, a service its children."""
        self.kills += 1
        with self.child as child:
            child.kill()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        with self.child as child:
            code = child.stop()
            child.rest()
        return code

    def tail(self) -> str:
        """The end of what it wrote, for a failure's message."""
        return self._child.tail() if self._child else "(not started)"


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
            for fact in self.facts:
                if fact.get("role") == role:
                    pid = fact["pid"] if fact["event"] == "restarted" else None
            return pid

        return wait_until(living, f"{role} to be back", diagnose=self.tail)
