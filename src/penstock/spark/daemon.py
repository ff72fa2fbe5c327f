"""The process that forks Spark's Python workers: Spark's own, whose workers clean up faster.

After each task a worker looks for garbage in cycles among all objects that it has, and most of them
are modules: with those that a pipeline uses that takes 0.1 s, several times what a small task does.
Here what is alive after such a search that took long is left out of the next ones, for good. It is
still freed when nothing refers to it any more.
"""

import gc
import time
from typing import Any, Final

LONG_SECONDS: Final = 0.02


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


def main() -> None:
    """Fork workers until Spark closes the standard input. argv: the module that they run."""
    from pyspark import daemon

    patched: Any = daemon
    patched.gc = Collector
    daemon.manager()


if __name__ == "__main__":
    main()
