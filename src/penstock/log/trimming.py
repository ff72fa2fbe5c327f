"""Trimming inside the writer's transactions: the watermark moves at once, pages go in steps.

Moving the watermark hides entries from readers in one small write, however many they are. Removing
their blocks then takes a bounded number of steps in each transaction, so that no append waits long.
The same steps remove what was staged and never published.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.clocks import Clock, Trust
from penstock.disks import space
from penstock.errors import AheadError
from penstock.kv import Env, Transaction
from penstock.log.config import LogConfig
from penstock.log.layout import (
    ENTRIES,
    EXTENTS,
    Pointer,
    entry_key,
    on_disk,
    place_of,
    pointer_of,
    row_key,
    rows_of,
)
from penstock.log.retention import Holdings, Old, due, ends
from penstock.ports import Hold
from penstock.wire import Block

if TYPE_CHECKING:
    from penstock.log.draft import Applied, Draft

_BLOCKS_MIN: Final = 16
"""How many blocks a transaction removes at least, if there are any to remove."""
_AGE_CHECK_SECONDS: Final = 1.0
_EVERY_ROW: Final = (1 << 64) - 1


class _Removed(NamedTuple):
    blocks: int
    more: bool
    """Whether some are left that a later step must remove."""


class Trimmer:
    """Applies retention, a step in each write transaction. Used by the writer's thread only."""

    def __init__(self, env: Env, config: LogConfig, clock: Clock, trust: Trust) -> None:
        self._env = env
        self.config = config
        """The limits; they may be replaced at any time, and hold from the next step on."""
        self._clock = clock
        self._trust = trust
        self.begun = True
        """Whether retention may choose; False until all who hold something have said so."""
        self.looks: list[Callable[[int], Hold | None]] = []
        """What others need of the log now, told how far it is trimmed; asked before anything goes,
        so they must be quick."""
        self._age_checked = float("-inf")
        self.pending = False
        """Whether the last step left something to remove."""
        self.bytes = 0
        """What the published entries take up on disk, as of the last step."""
        self.age_paused = False
        """Whether retention by age waits because the clocks have parted."""

    def wanted(self, truth: "Draft") -> bool:
        """Whether a step would do anything now, though nobody appends."""
        if self.pending or truth.dropped:
            return True
        with self._env.read() as txn:
            if self._left_over(txn, truth.state.trimmed):
                return True
            old = self._due(txn, truth, self._clock.wall_ms(), _BLOCKS_MIN)
        if old is not None:
            self._age_checked = float("-inf")  # the step that follows asks again, and acts
        return old is not None

    def step(self, applied: "Applied") -> None:
        """Remove a bounded number of blocks; move the watermark if retention says so."""
        draft, txn = applied.draft, applied.txn
        budget = max(_BLOCKS_MIN, 2 * draft.blocks)
        dropped = self._remove_dropped(txn, draft, budget)
        removed = self._remove_trimmed(txn, draft.state.trimmed, budget - dropped.blocks)
        self.pending = dropped.more or removed.more
        # While trimmed pages are still counted, the bytes say nothing about what should go next.
        old = None if removed.more else self._due(txn, draft, draft.now, budget)
        if old is not None:
            draft.state = draft.state._replace(trimmed=old.sequence, trimmed_check=old.check)
            self.pending = True

    def _due(self, txn: Transaction, draft: "Draft", now: int, blocks_max: int) -> Old | None:
        """Up to where retention wants to trim now."""
        held = self._held(txn, draft)
        self.bytes = held.bytes
        if not self.begun:
            return None
        if draft.dropped:
            # Their pages are counted until they are removed, and must not push out the log's.
            held = held._replace(bytes=0)
        if not self._over(held, draft) and not self._age_due():
            return None
        self._age_checked = self._clock.steady_seconds()
        return due(
            self._candidates(txn, draft, blocks_max),
            config=self.config,
            held=held,
            now=now if self._trusted() else None,
            holds=self._holds(draft.state.trimmed),
        )

    def _holds(self, trimmed: int) -> list[Hold]:
        """What is held, as long as the disk is not about to make capture wait."""
        holds = [hold for look in self.looks if (hold := look(trimmed)) is not None]
        if holds and space(self._env.path).free < 2 * self.config.free_bytes_min:
            return []
        return holds

    def _left_over(self, txn: Transaction, trimmed: int) -> bool:
        """Whether the oldest value holds a block that lies wholly at or below the watermark."""
        with txn.cursor(self._env[ENTRIES]) as cursor:
            if not cursor.first():
                return False
            place = place_of(cursor.key())
            pointer = pointer_of(cursor.value())
        if pointer is None or place.last <= trimmed:
            return place.last <= trimmed
        with txn.cursor(self._env[EXTENTS]) as cursor:
            cursor.set_range(row_key(pointer.extent, 1, 0))
            return place.first - 1 + rows_of(cursor.key()).last <= trimmed

    def trim(self, applied: "Applied", until: int) -> None:
        """Move the watermark to `until` exactly; it never moves back."""
        applied.flush()
        state = applied.draft.state
        if until > state.head:
            raise AheadError(sequence=until, head=state.head)
        if until > state.trimmed:
            check = self._check_at(applied.txn, until)
            applied.draft.state = state._replace(trimmed=until, trimmed_check=check)
            self.pending = True

    def _trusted(self) -> bool:
        self.age_paused = self.config.retention is not None and not self._trust.trusted()
        return not self.age_paused

    def _age_due(self) -> bool:
        since = self._clock.steady_seconds() - self._age_checked
        return self.config.retention is not None and since >= _AGE_CHECK_SECONDS

    def _over(self, held: Holdings, draft: "Draft") -> bool:
        config, state = self.config, draft.state
        return (config.retention_bytes is not None and held.bytes > config.retention_bytes) or (
            config.retention_events is not None
            and state.head - state.trimmed > config.retention_events
        )

    def _held(self, txn: Transaction, draft: "Draft") -> Holdings:
        pages = 0
        psize = 0
        for name in (ENTRIES, EXTENTS):
            stat = txn.stat(self._env[name])
            psize = stat["psize"]
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        # What is being staged is not yet the log's, and must not push out what is.
        staged = sum(staging.disk_bytes for staging in draft.stagings.values())
        return Holdings(draft.state.head, max(0, pages * psize - staged))

    def _candidates(self, txn: Transaction, draft: "Draft", blocks_max: int) -> Iterator[Old]:
        """Commit ends beyond the watermark, oldest first, from `blocks_max` blocks (or until the
        first, where a commit takes more)."""
        trimmed, gone, found_any = draft.state.trimmed, 0, False
        with txn.cursor(self._env[ENTRIES]) as cursor:
            found = cursor.set_range(entry_key(trimmed + 1, 0))
            while found and (blocks_max > 0 or not found_any):
                place, value = place_of(cursor.key()), cursor.value()
                pointer = pointer_of(value)
                if pointer is not None:
                    gone += on_disk(pointer.stored_bytes)
                    check = self._row_check(txn, pointer, pointer.rows)
                    yield Old(place.last, check, pointer.ingested_at, gone)
                    found_any = True
                else:
                    block = Block(value, log_id=0, first_sequence=place.first)
                    size = on_disk(len(value))
                    for old in ends(block, trimmed=trimmed, gone=gone, bytes_=size):
                        yield old
                        found_any = True
                    gone += size
                blocks_max -= 1
                found = cursor.next()

    def _row_check(self, txn: Transaction, pointer: Pointer, row: int) -> int:
        with txn.cursor(self._env[EXTENTS]) as cursor:
            cursor.set_range(row_key(pointer.extent, row, 0))
            rows = rows_of(cursor.key())
            block = Block(cursor.value(), log_id=0, first_sequence=rows.first, extent=pointer.facts)
            return block.history(row - rows.first)

    def _check_at(self, txn: Transaction, sequence: int) -> int:
        with txn.cursor(self._env[ENTRIES]) as cursor:
            cursor.set_range(entry_key(sequence, 0))
            place, value = place_of(cursor.key()), cursor.value()
        pointer = pointer_of(value)
        if pointer is not None:
            return self._row_check(txn, pointer, sequence - place.first + 1)
        block = Block(value, log_id=0, first_sequence=place.first)
        return block.history(sequence - place.first)

    # --- removing pages -------------------------------------------------------------------------

    def _remove_trimmed(self, txn: Transaction, trimmed: int, blocks_max: int) -> _Removed:
        """Remove blocks that lie wholly at or below the watermark, oldest first."""
        blocks = 0
        with txn.cursor(self._env[ENTRIES]) as cursor:
            while cursor.first():
                place = place_of(cursor.key())
                if place.first > trimmed:
                    break
                if blocks >= blocks_max:
                    return _Removed(blocks, more=True)
                pointer = pointer_of(cursor.value())
                if pointer is not None:
                    rows_max = trimmed - place.first + 1
                    removed = self._remove_rows(txn, pointer.extent, rows_max, blocks_max - blocks)
                    blocks += removed.blocks
                    if removed.more:
                        return _Removed(blocks, more=True)
                if place.last > trimmed:
                    break
                if pointer is not None:
                    txn.delete(row_key(pointer.extent, 0, 0), db=self._env[EXTENTS])
                cursor.delete()
                blocks += 1
        return _Removed(blocks, more=False)

    def _remove_dropped(self, txn: Transaction, draft: "Draft", blocks_max: int) -> _Removed:
        """Remove extents that were abandoned, or left unfinished by a writer that died."""
        blocks = 0
        while draft.dropped:
            removed = self._remove_rows(txn, draft.dropped[0], _EVERY_ROW, blocks_max - blocks)
            blocks += removed.blocks
            if removed.more:
                return _Removed(blocks, more=True)
            draft.dropped.popleft()
        return _Removed(blocks, more=False)

    def _remove_rows(
        self, txn: Transaction, extent: int, row_max: int, blocks_max: int
    ) -> _Removed:
        blocks = 0
        with txn.cursor(self._env[EXTENTS]) as cursor:
            found = cursor.set_range(row_key(extent, 1, 0))
            while found:
                rows = rows_of(cursor.key())
                if rows.extent != extent or rows.last > row_max:
                    break
                if blocks >= blocks_max:
                    return _Removed(blocks, more=True)
                cursor.delete()
                blocks += 1
                found = cursor.set_range(row_key(extent, rows.last + 1, 0))
        return _Removed(blocks, more=False)
