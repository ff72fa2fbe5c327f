"""What the writer before left in a log: unpublished extents, and when it last wrote."""

from collections.abc import Iterable

from penstock.kv import Env, Transaction
from penstock.log.layout import (
    ENTRIES,
    EXTENTS,
    extent_key,
    place_of,
    pointer_of,
    rows_of,
)
from penstock.ports import SourceState
from penstock.wire import Block


def unfinished_extents(txn: Transaction, env: Env) -> tuple[list[int], int]:
    """Extents that were never published, and the next extent number that is free."""
    unfinished: list[int] = []
    free = 1
    with txn.cursor(env[EXTENTS]) as cursor:
        found = cursor.first()
        while found:
            key = cursor.key()
            extent = rows_of(key).extent
            if key != extent_key(extent):
                unfinished.append(extent)
            free = extent + 1
            found = cursor.set_range(extent_key(free))
    return unfinished, free


def newest_ms(env: Env, sources: Iterable[SourceState]) -> int | None:
    """When the log was last written, by the clock of then; None for a new one."""
    times = [source.moved_at for source in sources]
    with env.read() as txn:
        newest = newest_entry_ms(txn, env)
    return max(times if newest is None else [*times, newest], default=None)


def newest_entry_ms(txn: Transaction, env: Env) -> int | None:
    """When the newest entry came, by the log's own times; None if the log holds none."""
    with txn.cursor(env[ENTRIES]) as cursor:
        if not cursor.last():
            return None
        place, value = place_of(cursor.key()), cursor.value()
    last = pointer_of(value) or Block(value, log_id=0, first_sequence=place.first)
    return last.ingested_at
