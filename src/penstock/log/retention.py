"""What retention removes. Pure: the log says what stands at its old end, this says what goes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.log.config import LogConfig
from penstock.ports import Hold
from penstock.wire import Block


def within_disk(config: LogConfig, total: int) -> LogConfig:
    """`config` for a disk of `total` bytes: what it can never hold, retention must not promise.

    The disk's size counts and not what is free of it: another's files make capture wait, and never
    push out what readers have not seen. A quarter is left for staging and for pages in transit.
    """
    above_floor = total - config.free_bytes_min
    if config.retention_bytes is None or above_floor <= 0:
        return config
    kept = min(config.retention_bytes, above_floor // 4 * 3)
    return config.model_copy(update={"retention_bytes": kept})


class Old(NamedTuple):
    """A commit's end near the log's old end, and what trimming up to it would take."""

    sequence: int
    check: int
    ingested_at: int
    """Of the newest entry that would go."""
    bytes: int
    """Of all blocks that would go wholly."""


class Holdings(NamedTuple):
    """What the log holds now."""

    head: int
    bytes: int
    """Of the pages in use; what was trimmed but not yet removed is not counted."""


def ends(block: Block, *, trimmed: int, gone: int, bytes_: int) -> Iterator[Old]:
    """The commit ends of `block` beyond the watermark, oldest first.

    The block takes up `bytes_`, and goes only with its last entry; those before it `gone`.
    """
    for i in np.flatnonzero(block.places["ends"]).tolist():
        sequence = block.first_sequence + i
        if sequence > trimmed:
            whole = bytes_ if sequence == block.last_sequence else 0
            yield Old(sequence, block.history(i), block.ingested_at, gone + whole)


def due(
    candidates: Iterable[Old],
    *,
    config: LogConfig,
    held: Holdings,
    now: int | None,
    holds: Sequence[Hold] = (),
) -> Old | None:
    """The newest candidate (oldest first) up to which retention may trim now; None for none.

    By ingest time (never the source's, P22), bytes and count, whichever comes first. `now` None
    pauses the first. The newest entries stay, and so does what any of `holds`
    says, which are still valid; each up to its own size of the log.
    """
    chosen: Old | None = None
    gone = 0
    held_to = [(hold.sequence, _held_bytes_max(hold, config)) for hold in holds]
    for old in candidates:
        left = held.bytes - gone
        over_bytes = (
            config.retention_bytes is not None
            and left > config.retention_bytes
            and old.sequence < held.head
        )
        over_count = (
            config.retention_events is not None
            and held.head - old.sequence >= config.retention_events
        )
        over_age = (
            now is not None
            and config.retention is not None
            and now - old.ingested_at > config.retention * 1000
        )
        if not (over_bytes or over_count or over_age):
            break
        if any(old.sequence > after and left <= most for after, most in held_to):
            break
        chosen, gone = old, old.bytes
    return chosen


def _held_bytes_max(hold: Hold, config: LogConfig) -> float:
    """Up to what size of the log what is held may stay."""
    if config.retention_bytes is None:
        return float("inf")
    # `within_disk` left a third as much again, and not for readers alone.
    return config.retention_bytes + min(hold.bytes_max, config.retention_bytes // 4)
