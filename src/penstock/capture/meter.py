"""What a pump counts of its source: how much, how long it took, and how much waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.errors import LogError, SourceError
from penstock.errors.base import codes_of
from penstock.event import Commit, Fragment
from penstock.telemetry import (
    BACKPRESSURE_EVENTS,
    BATCH_SIZE,
    CHECKPOINT_ERRORS,
    CHECKPOINTS_SAVED,
    COMMITS_APPENDED,
    DEAD_LETTERS,
    EVENTS_APPENDED,
    GAPS_DETECTED,
    INGESTION_LATENCY_SECONDS,
    QUEUE_DEPTH,
    SOURCE_ERRORS,
    SOURCE_RECONNECTS,
)

WAITED: Final = "waited"
_LEVELS: Final = ((0.1, "slow"), (0.4, "critical"))
"""Every further wait of so many seconds is the next level."""


def begin_counting(source: str) -> None:
    """Have every counter of the source at 0: an increase from nothing is none to Prometheus."""
    Meter(source)
    for counter in (
        SOURCE_RECONNECTS,
        GAPS_DETECTED,
        DEAD_LETTERS,
        CHECKPOINTS_SAVED,
        CHECKPOINT_ERRORS,
    ):
        counter.labels(source)
    for code in codes_of(SourceError, LogError) | {"internal"}:
        SOURCE_ERRORS.labels(source, code)


class Meter:
    """The metrics of one source. Cheap: it is told of batches, never of single events."""

    def __init__(self, source: str) -> None:
        self._events = EVENTS_APPENDED.labels(source)
        self._commits = COMMITS_APPENDED.labels(source)
        self._latency = INGESTION_LATENCY_SECONDS.labels(source)
        self._batch = BATCH_SIZE.labels(source)
        self._waits = {
            level: BACKPRESSURE_EVENTS.labels(source, level)
            for level in (WAITED, *(level for _, level in _LEVELS))
        }
        self._hand_over = QUEUE_DEPTH.labels(source, "hand_over")
        self._append = QUEUE_DEPTH.labels(source, "append")

    def durable(self, batch: Sequence[Commit | Fragment], *, since: float | None = None) -> None:
        """`batch` is durable; `since` is when the first of its changes came from the source.

        By `time.perf_counter`; None for what did not come from it.
        """
        events = sum(len(item.events) for item in batch)
        if not events:
            return
        self._events.inc(events)
        self._commits.inc(sum(isinstance(item, Commit) and bool(item.events) for item in batch))
        self._batch.observe(events)
        if since is not None:
            self._latency.observe(time.perf_counter() - since)

    async def wait(self, room: Callable[[], Awaitable[object]]) -> None:
        """Wait for `room`, and count that the source had to, by how long it does."""
        self._waits[WAITED].inc()
        waiting = asyncio.ensure_future(room())
        try:
            for seconds, level in _LEVELS:
                done, _ = await asyncio.wait({waiting}, timeout=seconds)
                if done:
                    return
                self._waits[level].inc()
            await waiting
        finally:
            waiting.cancel()

    def watch(self, *, hand_over: Callable[[], int], append: Callable[[], int]) -> None:
        """Show these depths, until `rest`."""
        self._hand_over.set_function(hand_over)
        self._append.set_function(append)

    def rest(self) -> None:
        """Nothing of the source is on its way any more."""
        # Not `set`: the function would still answer, and hold on to what it asks.
        self._hand_over.set_function(_nothing)
        self._append.set_function(_nothing)


def _nothing() -> float:
    return 0.0
