"""Which ranges are due, and where they end. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.archive.config import ArchiveConfig


class End(NamedTuple):
    """The end of a commit that waits to be archived."""

    sequence: int
    bytes: int
    """What waits up to here, all of it."""


class Waiting(NamedTuple):
    """What is in the log and not in the archive."""

    ends: Sequence[End]
    """Ascending; of all that waits, or of its first ranges."""
    since_ms: int
    """When the log took the oldest of it."""


def due(waiting: Waiting, config: ArchiveConfig, *, now_ms: int) -> bool:
    """Whether something must be archived now."""
    if not waiting.ends:
        return False
    aged = now_ms - waiting.since_ms >= config.range_age * 1000
    return aged or waiting.ends[-1].bytes >= config.range_bytes


def cuts(ends: Sequence[End], *, range_bytes: int) -> list[int]:
    """Where the ranges end that make up all of `ends`: each at the end of a commit, and the last
    at the last. All others hold `range_bytes` or more, and no commit beyond that."""
    if not ends:
        return []
    total = ends[-1].bytes
    share = total / max(1, total // range_bytes)
    found: list[int] = []
    before = 0
    for end in ends[:-1]:
        if end.bytes - before >= share:
            found.append(end.sequence)
            before = end.bytes
    return [*found, ends[-1].sequence]
