"""However a test run ends, none of its processes lives on and none of its folders is left."""

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.children import Child
from tests.cleanup import MARK, MEMORY
from tests_support import leftovers
from tests_support.leftovers import marked_processes
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = 2

# Each test starts a server, a process in a session of its own, and one whose parent ends at once.
CODE: Final = """
import json, os, signal, subprocess, sys, tempfile
from pathlib import Path
import pytest
from tests_support.servers import MongoReplicaSet

ORPHAN = "setsid sleep 900 & echo $!"

@pytest.mark.parametrize("number", range(%(tests)d))
def test_it(number, tmp_path):
    with MongoReplicaSet() as mongo:
        alone = subprocess.Popen(["sleep", "900"], start_new_session=True)
        orphan = subprocess.Popen(["sh", "-c", ORPHAN], stdout=subprocess.PIPE)
        pids = [mongo.members[0].pid, alone.pid, int(orphan.stdout.readline()), os.getpid()]
        orphan.wait()
        places = [os.environ["%(memory)s"], str(tmp_path), str(mongo.members[0].log_path.parent)]
        Path(os.environ["%(memory)s"], f"made{number}").mkdir()
        fact = {"run": os.environ["%(mark)s"], "pids": pids, "places": places}
        with open("%(facts)s", "w") as facts:
            facts.write(json.dumps(fact) + "\\n")
        %(then)s
"""


class Run:
    """A run of pytest with xdist; `then` is what its tests do once all is started."""

    def __init__(self, folder: Path, then: str, command: tuple[str, ...] = ()) -> None:
        (folder / "pytest.ini").write_text("[pytest]\n")
        facts = folder / "facts"
        os.mkfifo(facts)
        names = {"tests": TESTS, "memory": MEMORY, "mark": MARK, "facts": facts, "then": then}
        (folder / "test_generated.py").write_text(CODE % names)
        self._facts = os.open(facts, os.O_RDWR)
        self.process = Child(
            # A shell has the commands that it runs in the background ignore SIGINT.
            *("env", "--default-signal=INT,HUP"),
            *(command or (*PYTEST, "-n", str(TESTS), *arguments(folder))),
            cwd=ROOT,
            env=environment(),
        )
        self.run = Path()
        self.pids: set[int] = set()
        self.places: list[Path] = []

    def wait_until_started(self) -> None:
        """Wait for the facts of all tests."""
        ended = os.pidfd_open(self.process.pid)
        said = b""
        while said.count(b"\n") < TESTS:
            ready, _, _ = select.select([self._facts, ended], [], [])
            assert self._facts in ready, self.process.tail()
            said += os.read(self._facts, 1 << 16)
        os.close(ended)
        for line in said.splitlines():
            fact: dict[str, Any] = msgspec.json.decode(line)
            self.run = Path(fact["run"])
            self.pids.update(fact["pids"])
            self.places.extend(map(Path, fact["places"]))

    def guards(self) -> set[int]:
        """The guard of the run's folder."""
        wanted = f"{leftovers.__file__}\0{MARK}\0{self.run}\0".encode()
        return {
            int(one.parent.name)
            for one in Path("/proc").glob("[0-9]*/cmdline")
            if wanted in read(one)
        }

    def left(self) -> dict[str, object]:
        """The processes and folders of the run that are still there."""
        processes = {
            pid: read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode()
            for pid in {*self.pids, *marked_processes(MARK, str(self.run)), *self.guards()}
            if read(Path(f"/proc/{pid}/cmdline"))
        }
        folders = [str(place) for place in (self.run, *self.places) if place.exists()]
        return {"processes": processes, "folders": folders}

    def close(self) -> None:
        """Whatever a failing test has left."""
        os.close(self._facts)
        with self.process:
            pass
        if self.run != Path():
            leftovers.clean(MARK, self.run)


def arguments(folder: Path) -> tuple[str, ...]:
    """Of pytest, for the tests in a folder."""
    return ("-c", str(folder / "pytest.ini"), "-p", "tests.cleanup", str(folder))


def environment() -> dict[str, str]:
    """Ours, without what makes a pytest take itself for a process of xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def read(path: Path) -> bytes:
    """Empty when the process is gone, or a zombie."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def start(tmp_path: Path, mongo: MongoReplicaSet) -> Iterator[Callable[..., Run]]:
    """Start a run; `mongo` skips the test where there is no MongoDB."""
    runs: list[Run] = []

    def one(then: str, command: tuple[str, ...] = ()) -> Run:
        runs.append(Run(tmp_path, then, command))
        runs[-1].wait_until_started()
        return runs[-1]

    yield one
    for run in runs:
        run.close()


PYTEST: Final = (sys.executable, "-m", "pytest")
NOTHING: Final[dict[str, object]] = {"processes": {}, "folders": []}
FOR_EVER: Final = "signal.pause()"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_controlling_process_ends_everything(
    start: Callable[..., Run], how: signal.Signals
) -> None:
    run = start(FOR_EVER)
    assert all(place.exists() for place in run.places)
    run.process.send_signal(how)
    assert run.process.wait() == pytest.ExitCode.INTERRUPTED
    assert run.left() == NOTHING


@pytest.mark.parametrize(("then", "code"), [("assert False", 1), ("return", 0)])
def test_a_run_that_fails_or_passes_ends_everything(
    start: Callable[..., Run], then: str, code: int
) -> None:
    run = start(then)
    assert run.process.wait() == code
    assert run.left() == NOTHING


def test_after_kill_9_of_the_controlling_process_the_guard_ends_everything(
    start: Callable[..., Run],
) -> None:
    run = start(FOR_EVER)
    with (run.run / "lock").open() as lock:
        run.process.kill()
        fcntl.flock(lock, fcntl.LOCK_EX)  # once the guard has ended
    assert run.left() == NOTHING


def test_after_kill_9_of_the_guard_too_the_next_run_ends_everything(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(FOR_EVER)
    guards = run.guards()
    run.process.send_signal(signal.SIGSTOP)  # so that the guard dies first
    for guard in guards:
        os.kill(guard, signal.SIGKILL)
    run.process.kill()
    # Servers die with their parents; the other processes live on.
    assert run.run.exists()
    assert marked_processes(MARK, str(run.run))
    command = (*PYTEST, "--collect-only", "--quiet", *arguments(tmp_path))
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, stdout=subprocess.DEVNULL)
    assert run.left() == NOTHING


def test_sigterm_to_make_ends_everything(start: Callable[..., Run], tmp_path: Path) -> None:
    """GNU make hands the signal on to what it runs, which is pytest itself and not a shell."""
    ours = (ROOT / "Makefile").read_text().splitlines()
    shell = [line for line in ours if line.startswith(("SHELL", ".SHELLFLAGS"))]
    recipe = "\tONE=1 " + " ".join((*PYTEST, "-n", str(TESTS), *arguments(tmp_path)))
    makefile = tmp_path / "Makefile"
    makefile.write_text("\n".join([*shell, "test:", recipe, ""]))
    run = start(FOR_EVER, command=("make", "-f", str(makefile), "test"))
    with (run.run / "lock").open() as lock:
        assert run.process.stop() != 0
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert run.left() == NOTHING
