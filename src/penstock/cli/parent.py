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
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.cli.processes_config import BEAT_SECONDS
from penstock.errors import PenstockError, SupersededError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.serve.config import ServeConfig

logger = structlog.get_logger(__name__)

PARENT_VARIABLE: Final = "PENSTOCK_PARENT_PID"
ADDRESSES: Final = ("grpc", "flight", "http", "dynamodb")
"""What serve listens on: settings of [serve], options of `penstock run`, and facts once ready."""
RESTART_SECONDS_FIRST = 0.2
RESTART_SECONDS_MAX = 10.0
STEADY_SECONDS = 60.0
"""A process that ran so long starts with the shortest wait again."""
DRAIN_SECONDS_MAX = 15.0
"""For each of the two, one after the other."""
_BEATS_MISSED_MAX = 4


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
        self,
        role: str,
        command: Callable[[], list[str]],
        tell: Callable[[dict[str, Any]], None],
        *,
        hung_after: float,
    ) -> None:
        """One that has beaten and then does not for `hung_after` seconds is killed."""
        self.role = role
        self._hung_after = hung_after
        self.facts: dict[str, Any] = {}
        """What it said when it was ready the last time."""
        self.ready = asyncio.Event()
        self._command = command
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._was_ready = False

    async def keep(self) -> None:
        """Run it, and again whenever it dies, until cancelled.

        Raises ChildFailedError if it ends before it was ever ready, or because another machine has
        taken its place: that is no accident.
        """
        wait_seconds = RESTART_SECONDS_FIRST
        while True:
            started = asyncio.get_running_loop().time()
            code = await self._run()
            self.ready.clear()
            if not self._was_ready or code == SupersededError.exit_code:
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

    def reload(self) -> None:
        """Have it read its configuration again; it must have been ready once."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

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
        line = b"\n"
        while line == b"\n":  # a beat, before it is ready
            line = await process.stdout.readline()
        if line:
            again = self._was_ready
            self.facts = msgspec.json.decode(line)
            self._was_ready = True
            self.ready.set()
            if again:
                logger.info("a process is back", role=self.role, pid=process.pid)
                self._tell({"event": "restarted", "role": self.role, **self.facts})
            await self._listen(process.stdout)
        return await process.wait()

    async def _listen(self, beats: asyncio.StreamReader) -> None:
        """Hear it beat until it ends; kill it if it lives on without.

        Silence is counted in parts, so that one long sleep of this process is not held against it:
        what was said meanwhile is read at the next part.
        """
        missed = 0
        while missed < _BEATS_MISSED_MAX:
            try:
                async with asyncio.timeout(self._hung_after / _BEATS_MISSED_MAX):
                    if not await beats.readline():
                        return
                missed = 0
            except TimeoutError:
                missed += 1
        assert self._process is not None
        logger.error("a process hangs; killing it", role=self.role, seconds=self._hung_after)
        self._process.kill()


async def beat() -> None:
    """Tell the parent, for ever, that this process's event loop turns. Nothing without a parent.

    A parent that does not listen is not waited for: the pipe may be full.
    """
    if PARENT_VARIABLE not in os.environ:
        return
    while True:
        os.set_blocking(1, False)
        try:
            os.write(1, b"\n")
        except (BlockingIOError, BrokenPipeError):
            pass
        finally:
            os.set_blocking(1, True)
        await asyncio.sleep(BEAT_SECONDS)


async def ready_fact(
    settings: "Settings", addresses: Mapping[str, Any], pids: Mapping[str, int]
) -> dict[str, Any]:
    """What is said once the service is up: where it listens, who it is, and how its sources are."""
    from penstock.cli.status import ask_capture

    told = await asyncio.to_thread(ask_capture, settings)
    states = {one["source"]: one["state"] for one in (told or {}).get("sources", ())}
    return {
        "event": "ready",
        "grpc": addresses["grpc"],
        "flight": addresses["flight"],
        "http": addresses["http"],
        "dynamodb": addresses["dynamodb"],
        "log": str(settings.log.path),
        "sources": list(settings.sources),
        "states": {name: states.get(name, "starting") for name in settings.sources},
        "pids": dict(pids),
    }


def addresses_of(serve: "ServeConfig") -> dict[str, str]:
    """Where serve is to listen, by protocol; `off` for one that it does not serve."""
    dynamodb = "off" if serve.dynamodb is None else serve.dynamodb.address
    return {
        "grpc": serve.grpc,
        "flight": serve.flight,
        "http": serve.http,
        "dynamodb": dynamodb,
    }


async def supervise_processes(
    settings: "Settings",
    *,
    stop: asyncio.Event,
    tell: Callable[[dict[str, Any]], None],
    options: Sequence[str] = (),
    hangup: asyncio.Event | None = None,
    taken_over: asyncio.Event | None = None,
) -> None:
    """Run capture and serve until `stop`; `tell` gets the ready fact, deaths and restarts.

    `options` of `penstock run` are handed on to both. At `hangup` capture reloads, and serve only
    at `taken_over`, when capture has: what one of them refuses, neither has.

    Both start at once: serve waits for capture to open the log. Raises ChildFailedError if either
    cannot start.
    """
    configured = addresses_of(settings.serve)

    def command(role: str) -> list[str]:
        # Serve listens again where it did before, whatever port that was.
        listen = configured | serve.facts
        return [
            *(sys.executable, "-m", "penstock.cli", "run", "--config", str(settings.path)),
            *("--role", role),
            *(part for name in ADDRESSES for part in (f"--{name}", listen[name])),
            *options,
        ]

    reload = hangup or asyncio.Event()

    def tell_of_capture(fact: dict[str, Any]) -> None:
        tell(fact)
        # If it died while it reloaded, it has the changed file now, and serve was not told.
        if fact["event"] == "restarted":
            reload.set()

    hung_after = settings.processes.hung_after
    capture = Child("capture", lambda: command("capture"), tell_of_capture, hung_after=hung_after)
    serve: Child = Child("serve", lambda: command("serve"), tell, hung_after=hung_after)
    children = (capture, serve)
    stopping = asyncio.ensure_future(stop.wait())
    keeping = [asyncio.ensure_future(child.keep()) for child in children]
    for asked, child in ((reload, capture), (taken_over or asyncio.Event(), serve)):
        keeping.append(asyncio.ensure_future(_pass_on(asked, child)))
    try:
        for child in children:
            await _first({stopping, *keeping}, child.ready)
        if stop.is_set():
            return
        pids = {child.role: child.facts["pid"] for child in children}
        tell(await ready_fact(settings, serve.facts, pids))
        await _first(set(keeping), stop)
    finally:
        for task in (stopping, *keeping):
            task.cancel()
        await asyncio.gather(stopping, *keeping, return_exceptions=True)
        # Readers first: they are told that the service stops while the log still answers.
        for child in reversed(children):
            await child.stop()


async def _pass_on(asked: asyncio.Event, child: Child) -> None:
    """Have `child` reload whenever `asked` is set; one that is starting, when it is ready: it may
    have read the file before it was changed."""
    while True:
        await asked.wait()
        asked.clear()
        await child.ready.wait()
        child.reload()


async def _first(tasks: "set[asyncio.Future[Any]]", event: asyncio.Event) -> None:
    """Wait until one of `tasks` ends, or `event` is set. Raises what a task raised."""
    happened = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait({*tasks, happened}, return_when=asyncio.FIRST_COMPLETED)
    happened.cancel()
    for task in done:
        task.result()
