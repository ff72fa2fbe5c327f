"""A test run leaves no process and no folder behind, however it ends.

A plugin of pytest, active in the process that controls the run. It gives the run a temporary folder
of its own, also to every process that the tests start, and a mark that these inherit. When the run
ends, by itself or by a signal, the marked processes are killed and the folder is removed: see
`tests_support.leftovers`. `--basetemp` keeps the tests' own folders where it says.
"""

import atexit
import os
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from tests_support.leftovers import GuardedFolder

MARK: Final = "PENSTOCK_TEST_RUN"
"""The variable that every process of a run inherits: the run's folder."""
MEMORY: Final = "PENSTOCK_TEST_MEMORY"
"""The run's folder in memory, for tests that write much and test no disk."""
PREFIX: Final = "penstock-run-"
_WORKER: Final = "PYTEST_XDIST_WORKER"


def memory_folder() -> str | None:
    """Where a test may write without a disk; None for the usual place."""
    return os.environ.get(MEMORY)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(folder: GuardedFolder, owner: int) -> None:
    if os.getpid() != owner:
        return  # a process that a test has forked
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)  # what they ask for is being done
    folder.close()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Begin before anything asks where temporary files go."""
    if _WORKER in os.environ:
        return
    folder = GuardedFolder(PREFIX, mark=MARK)
    # What is registered first runs last: Spark and execnet have ended their processes by then.
    atexit.register(_end, folder, os.getpid())
    os.environ.update({MARK: str(folder.path), MEMORY: str(folder.memory)})
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.path)
    # These end a run as Ctrl-C does. nohup's wish to ignore SIGHUP stays.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _interrupt)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep paths short: those of sockets have a limit of 107 bytes."""
    if _WORKER not in os.environ and config.option.basetemp is None:
        config.option.basetemp = str(Path(os.environ[MARK], "t"))
