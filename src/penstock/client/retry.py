"""How a client comes back: exponential backoff with jitter."""

import random
from collections.abc import Callable

from msgspec import Struct


class Retry(Struct, frozen=True, kw_only=True):
    """Waits of 1 s, 2 s, 4 s ... 30 s between attempts, each shortened by up to a half.

    The jitter keeps consumers that lost one server from coming back in the same instant.
    """

    initial_seconds: float = 1.0
    max_seconds: float = 30.0
    max_retries: int = 0
    """Failures in a row after which the last one is raised; 0 = never give up. To follow, those
    are in a row between which came neither a change nor a heartbeat."""


class Backoff:
    """Counts the failures in a row of one connection."""

    def __init__(self, retry: Retry, random_unit: Callable[[], float] = random.random) -> None:
        self._retry = retry
        self._random_unit = random_unit
        self.failures = 0

    def reset(self) -> None:
        """The server answered."""
        self.failures = 0

    def next_wait(self) -> float | None:
        """Count a failure. Seconds to wait before the next attempt, or None to give up."""
        retry = self._retry
        self.failures += 1
        if retry.max_retries and self.failures > retry.max_retries:
            return None
        # Beyond 2**30 the ceiling has long been reached, and the power would only grow.
        seconds = retry.initial_seconds * 2.0 ** min(self.failures - 1, 30)
        return min(seconds, retry.max_seconds) * (1 - self._random_unit() / 2)
