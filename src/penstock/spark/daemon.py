"""The process that forks Spark's Python workers: Spark's own, whose workers start and clean up
faster.

A worker of Spark's loads pandas and what its task uses by itself, which takes 1.5 s of processor
time; and a worker ends with every task that fails. Here they are loaded once, before the first
fork: only what starts no thread that a fork would leave without its work (`PRELOADED`).

After each task a worker looks for garbage in cycles among all objects that it has, and most of them
are modules: with those that a pipeline uses that takes 0.1 s, several times what a small task does.
Here what was loaded before the fork, and what is alive after such a search that took long, is left
out of the next ones, for good. It is still freed when nothing refers to it any more.
"""

import gc
import importlib
import os
import sys
import time
from contextlib import suppress
from typing import Any, Final

LONG_SECONDS: Final = 0.02
PRELOADED: Final = ("pyarrow", "pandas", "penstock.spark.transform.stage")
"""What tasks of a pipeline load. Of their threads only those of memory allocators run once they are
loaded, and allocators start theirs anew in a fork."""
_TASKS: Final = "pyspark.worker"


class Collector:
    """In place of the module gc, of which Spark's daemon uses one function."""

    @staticmethod
    def collect() -> int:
        """The number of unreachable objects that were found."""
        start = time.perf_counter()
        found = gc.collect()
        if time.perf_counter() - start > LONG_SECONDS:
            gc.freeze()
        return found


def preload(module: str) -> None:
    """Load what workers that run `module` use, so that each has it from the start.

    NumPy seeds its random numbers when it is loaded: each worker is to have its own.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # A worker with one task has no use for its pool of threads, which a fork would lose.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module(module)
    # Elsewhere not every library that these load can be forked.
    if module == _TASKS and sys.platform == "linux":
        for name in PRELOADED:
            with suppress(ImportError):  # a task that needs it says so
                importlib.import_module(name)
        if (numpy := sys.modules.get("numpy")) is not None:
            os.register_at_fork(after_in_child=numpy.random.seed)
    gc.freeze()


def main() -> None:
    """Fork workers until Spark closes the standard input. argv: the module that they run, which
    must be one of Spark's own."""
    from pyspark import daemon

    patched: Any = daemon
    patched.gc = Collector
    named = sys.argv[1:2]
    preload(named[0] if named and named[0].startswith("pyspark") else _TASKS)
    daemon.manager()


if __name__ == "__main__":
    main()
