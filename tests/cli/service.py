"""A service of this test's own: `penstock run --json` as its users start it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from penstock.cli import main
from tests.children import Child

COMMAND = (sys.executable, "-m", "penstock.cli")

SHOP = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
events_per_second = {rate}
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
"""


def configure(folder: Path, text: str = "", *, rate: float = 300.0) -> Path:
    """Write a configuration: the simulated shop on free ports, unless `text` says otherwise."""
    path = folder / "penstock.toml"
    path.write_text(text or SHOP.format(rate=rate))
    return path


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def penstock(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    """Run one command in this process."""
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["penstock", *arguments])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    out, err = capsys.readouterr()
    return Done(code if isinstance(code, int) else 0, out, err)


def spawn(*arguments: str) -> Done:
    """Run one command in a process of its own: Spark's session is one to a process."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


class Service:
    """A running `penstock run`; stopped, or killed with its children, at the end of the block."""

    def __init__(
        self,
        config: Path,
        *options: str,
        command: Sequence[str] = COMMAND,
        **given: Any,
    ) -> None:
        """`command` is what stands for `penstock`; what else is given goes to its Child."""
        self.config = config
        self.process = Child(
            *(*command, "run", "--config", config, "--json", *options),
            errors=config.parent / "stderr.txt",
            **given,
        )
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.process)
            self.ready = self.expect("ready")
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.process:
            self.process.stop()

    def expect(self, event: str) -> dict[str, Any]:
        """The next fact that the service tells, which must be this one."""
        line = self.process.line()
        assert line, f"the service ended without {event}: {self.process.tail()}"
        fact: dict[str, Any] = json.loads(line)
        assert fact["event"] == event, fact
        return fact

    def errors(self) -> str:
        """What it wrote to stderr, and those that ran in its folder before."""
        return self.process.errors()

    def kill(self, role: str, pid: int) -> int:
        """kill -9 one process of it; returns the pid of the one that took its place."""
        os.kill(pid, signal.SIGKILL)
        assert self.expect("died") == {"event": "died", "role": role, "exitCode": -9}
        back = self.expect("restarted")
        assert back["role"] == role
        return int(back["pid"])

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; returns its exit code."""
        return self.process.stop(with_signal)


def commands_alive(pids: Sequence[int]) -> list[int]:
    """Those of `pids` that still run (a zombie does not)."""
    alive: list[int] = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            alive.append(pid)
    return alive
