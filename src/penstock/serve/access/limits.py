"""How often somebody may ask, and at how many places at once. Pure, but for a lock."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.errors import RateLimitedError

_BUCKETS_MAX: Final = 4096


class Rates:
    """A token bucket for each name; safe for any number of threads.

    At most 4096 names are remembered. The one that was not heard of for the longest is forgotten,
    and begins with a full bucket again: to use that, a client would need as many names.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, name: str) -> float:
        """Take one; 0 if there was one, else how long until there is one."""
        now = self._clock()
        with self._lock:
            left, at = self._buckets.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._per_second)
            taken = left >= 1.0
            self._buckets[name] = (left - 1.0 if taken else left, now)
            if len(self._buckets) > _BUCKETS_MAX:
                self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._per_second

    def take(self, name: str) -> None:
        """Take one. Raises RateLimitedError if there is none."""
        wait = self.wait_seconds(name)
        if wait:
            raise RateLimitedError(what=f"{self._per_second:g} a second", wait_seconds=wait)


class Places:
    """How many calls of each name run; safe for any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Those of everybody."""
        with self._lock:
            return sum(self._taken.values())

    def enter(self, name: str) -> None:
        """Raises RateLimitedError if all places are taken. Otherwise `leave` must follow."""
        with self._lock:
            taken = self._taken.get(name, 0)
            if taken >= self._most:
                raise RateLimitedError(what=f"{self._most} at a time")
            self._taken[name] = taken + 1

    def leave(self, name: str) -> None:
        with self._lock:
            left = self._taken[name] - 1
            if left:
                self._taken[name] = left
            else:
                del self._taken[name]
