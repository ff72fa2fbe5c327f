"""What grows while a destination takes batch after batch: what is counted, and what is held."""

import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Final

import pytest

HELD_BYTES_MAX: Final = 64 << 10
"""What a driver may hold more than before: caches fill late."""
TIMED: Final = 100
SLOWER_MAX: Final = 3.0
"""So much longer than the first batches the last ones may take, of as many."""


def batches(short: int = 24) -> pytest.MarkDecorator:
    """Of a test of as many `batches`, and in the long runs of 500."""
    long = pytest.param(500, marks=[pytest.mark.soak, pytest.mark.slow])
    return pytest.mark.parametrize("batches", [pytest.param(short), long])


class Growth:
    """What was there after each batch."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._settled = batches * 2 // 3
        self._most: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        """Of what was counted, before the last third and in it."""
        self._ended: list[float] = []
        self._held: list[int] = []
        self._is_long = batches > 2 * TIMED

    def note(self, counted: Mapping[str, int]) -> None:
        """A batch was applied, and this is there now."""
        most = self._most[len(self._ended) >= self._settled]
        most |= Counter(counted)
        self._ended.append(time.perf_counter())
        if self._is_long and len(self._ended) in {self._settled, self._batches - 1}:
            gc.collect()
            self._held.append(tracemalloc.get_traced_memory()[0])

    def check(self) -> None:
        """In the last third nothing is more than it ever was before, and, of many batches, the
        process holds no more at the end of it than at its beginning, and the last took no longer.
        """
        assert len(self._ended) == self._batches
        most, later = self._most
        assert not later - most, f"{dict(later)} instead of {dict(most)}"
        if self._is_long:
            before, after = self._held
            assert after - before < HELD_BYTES_MAX, f"{after - before} bytes more are held"
            took = [after - before for before, after in pairwise(self._ended)]
            first, last = median(took[:TIMED]), median(took[-TIMED:])
            assert last < SLOWER_MAX * first, f"{last} instead of {first} seconds a batch"


@contextmanager
def growth(batches: int) -> Generator[Growth]:
    """Notes what is there, and checks it at the end of the block."""
    noted = Growth(batches)
    tracemalloc.start()
    try:
        yield noted
    finally:
        tracemalloc.stop()
    noted.check()
