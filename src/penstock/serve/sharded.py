"""What is counted of readers that take some shards of the stream."""

from collections.abc import Generator
from contextlib import contextmanager

from penstock.subscribe.shards import Shards
from penstock.telemetry import CONSUMERS_BY_SHARD_CONFIG, EVENTS_BY_SHARD, SHARD_FILTER_RATIO

_FORGET = 0.9
"""How much of what was seen before still counts, with each delivery."""


class ShardCounts:
    """Of one service; its readers tell it of what they passed and what they were sent."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._sent = 0.0

    @contextmanager
    def connected(self, shards: Shards | None) -> Generator[None]:
        """A reader of `shards` is connected until the block ends."""
        if shards is None:
            yield
            return
        gauge = CONSUMERS_BY_SHARD_CONFIG.labels(str(shards.count))
        gauge.inc()
        EVENTS_BY_SHARD.labels(str(shards.count), _told(shards))
        try:
            yield
        finally:
            gauge.dec()

    def moved(self, shards: Shards | None, *, passed: int, sent: int) -> None:
        """A reader of `shards` passed so many entries, and was sent so many of them."""
        if shards is None:
            return
        EVENTS_BY_SHARD.labels(str(shards.count), _told(shards)).inc(sent)
        self._passed = self._passed * _FORGET + passed
        self._sent = self._sent * _FORGET + sent
        if self._passed:
            SHARD_FILTER_RATIO.set(max(0.0, 1 - self._sent / self._passed))


def _told(shards: Shards) -> str:
    return str(next(iter(shards.ids))) if len(shards.ids) == 1 else "several"
