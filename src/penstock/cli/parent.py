"""The parent of the two processes: starts them, says when one died, and starts it again.

It holds no log and no port, so there is little in it that could fail. Its children die with it:
a second `penstock run` never meets the writer of a first that was killed.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from penstock.cli.config import Settings
from penstock.errors import PenstockError

logger = structlog.get_logger(__name__)

PARENT_VARIABLE: Final = "PENSTOCK_PARENT_PID"
RESTART_SECONDS_FIRST = 0.2
RESTART_SECONDS_MAX = 10.0
STEADY_SECONDS = 60.0
"""A process that ran so long starts with the shortest wait again."""
DRAIN_SECONDS_MAX = 15.0


class ChildFailedError(PenstockError):
    """A process could not start; its own sentence is on stderr, so this one is not shown."""

    code = "child"

    def __init__(self, code: int) -> None:
        super().__init__(f"a process of the service could not start (exit code {code})")
        self.returned = code


def die_with_parent() -> None:
    """Where a parent named itself: be killed when it dies, or exit now if it is gone already."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    # prctl(2): PR_SET_PDEATHSIG is 1. Bound to the parent's thread, which is its main one.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)


class Child:
    """One process of the service, kept alive."""

    def __init__(
        self, role: str, command: Callable[[], list[str]], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self.role = role
        self.facts: dict[str, Any] = {}
        """What it said when it was ready the last time."""
        self.ready = asyncio.Event()
        self._command = command
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._was_ready = False

    async def keep(self) -> None:
        """Run it, and again whenever it dies, until cancelled.

        Raises ChildFailedError if it ends before it was ever ready: that is no accident.
        """
        wait_seconds = RESTART_SECONDS_FIRST
        while True:
            started = asyncio.get_running_loop().time()
            code = await self._run()
            self.ready.clear()
            if not self._was_ready:
                raise ChildFailedError(code)
            if asyncio.get_running_loop().time() - started > STEADY_SECONDS:
                wait_seconds = RESTART_SECONDS_FIRST
            logger.error(
                "a process died; starting it again",
                role=self.role,
                exit_code=code,
                wait_seconds=wait_seconds,
            )
            self._tell({"event": "died", "role": self.role, "exitCode": code})
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(RESTART_SECONDS_MAX, 2 * wait_seconds)

    async def stop(self) -> int:
        """Ask it to drain and end; kill it if it does not in time. Return its exit code."""
        process = self._process
        if process is None or process.returncode is not None:
            return 0
        process.terminate()
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                return await process.wait()
        except TimeoutError:
            logger.warning("a process did not stop in time; killing it", role=self.role)
            process.kill()
            return await process.wait()

    async def _run(self) -> int:
        """One life of the process; returns its exit code, negative for a signal."""
        process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )
        self._process = process
        assert process.stdout is not None
        line = await process.stdout.readline()
        if line:
            again = self._was_ready
            self.facts = msgspec.json.decode(line)
            self._was_ready = True
            self.ready.set()
            if again:
                logger.info("a process is back", role=self.role, pid=process.pid)
                self._tell({"event": "restarted", "role": self.role, **self.facts})
        return await process.wait()


def ready_fact(
    settings: Settings, addresses: Mapping[str, Any], pids: Mapping[str, int]
) -> dict[str, Any]:
    """What is said once the service is up: where it listens, and who it is."""
    return {
        "event": "ready",
        "grpc": addresses["grpc"],
        "flight": addresses["flight"],
        "log": str(settings.log.path),
        "sources": list(settings.sources),
        "pids": dict(pids),
    }


async def supervise_processes(
    settings: Settings,
    *,
    stop: asyncio.Event,
    tell: Callable[[dict[str, Any]], None],
    options: Sequence[str] = (),
) -> None:
    """Run capture and serve until `stop`; `tell` gets the ready fact, deaths and restarts.

    `options` of `penstock run` are handed on to both.

    Both start at once: serve waits for capture to open the log. Raises ChildFailedError if either
    cannot start.
    """
    configured = {"grpc": settings.serve.grpc, "flight": settings.serve.flight}

    def command(role: str) -> list[str]:
        # Serve listens again where it did before, whatever port that was.
        listen = configured | serve.facts
        return [
            *(sys.executable, "-m", "penstock.cli", "run", "--config", str(settings.path)),
            *("--role", role, "--grpc", listen["grpc"], "--flight", listen["flight"]),
            *options,
        ]

    capture = Child("capture", lambda: command("capture"), tell)
    serve: Child = Child("serve", lambda: command("serve"), tell)
    children = (capture, serve)
    stopping = asyncio.ensure_future(stop.wait())
    keeping = [asyncio.ensure_future(child.keep()) for child in children]
    try:
        for child in children:
            await _first({stopping, *keeping}, child.ready)
        if stop.is_set():
            return
        tell(ready_fact(settings, serve.facts, {c.role: c.facts["pid"] for c in children}))
        await _first(set(keeping), stop)
    finally:
        for task in (stopping, *keeping):
            task.cancel()
        await asyncio.gather(stopping, *keeping, return_exceptions=True)
        # Readers first: they are told that the service stops while the log still answers.
        for child in reversed(children):
            await child.stop()


async def _first(tasks: "set[asyncio.Future[Any]]", event: asyncio.Event) -> None:
    """Wait until one of `tasks` ends, or `event` is set. Raises what a task raised."""
    happened = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait({*tasks, happened}, return_when=asyncio.FIRST_COMPLETED)
    happened.cancel()
    for task in done:
        task.result()
