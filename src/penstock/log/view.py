"""What any log answers from one consistent view of it, whatever it is kept in."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise

from penstock.errors import AheadError, TrimmedError
from penstock.log.layout import Place, State
from penstock.ports import Bounds, SourceState
from penstock.progress import Progress
from penstock.wire import Block
from penstock.wire.layout import COMMIT_PACK


class View(ABC):
    """One moment of a log. Subclasses say where its blocks are; the answers are all here."""

    log_id: int
    state: State

    @abstractmethod
    def bounds(self) -> Bounds: ...

    @abstractmethod
    def sources(self) -> list[SourceState]: ...

    @abstractmethod
    def blocks(self, after: int) -> Iterator[Block]:
        """Whole blocks, from the one that holds `after` + 1 on.

        Raises LogCorruptError at a hole: what is missing is never passed over in silence.
        """

    def require(self, after: int) -> None:
        """Raise TrimmedError or AheadError unless a reader at `after` misses nothing."""
        state = self.state
        if after < state.trimmed:
            oldest = Progress(self.log_id, state.trimmed, state.trimmed_check)
            raise TrimmedError(oldest=str(oldest))
        if after > state.head:
            raise AheadError(sequence=after, head=state.head)

    def block_at(self, sequence: int) -> Block:
        """The block that holds the entry, which must be in (trimmed, head]."""
        return next(self.blocks(sequence - 1))

    def read(self, *, after: int, until: int | None, bytes_max: int) -> list[Block]:
        self.require(after)
        stop = self.state.head if until is None else min(until, self.state.head)
        found: list[Block] = []
        size = 0
        if after >= stop:
            return found
        for block in self.blocks(after):
            whole = after < block.first_sequence and block.last_sequence <= stop
            found.append(block if whole else block.narrow(after=after, until=stop))
            size += block.nbytes
            if block.last_sequence >= stop or size >= bytes_max:
                break
        return found

    def check_at(self, sequence: int) -> int | None:
        state = self.state
        if sequence == state.trimmed:
            return state.trimmed_check
        if sequence == state.head:
            return state.head_check
        if not state.trimmed < sequence < state.head:
            return None
        block = self.block_at(sequence)
        return block.history(sequence - block.first_sequence)

    def commit_span(self, sequence: int) -> Place:
        """The first and the last entry of the commit that the entry belongs to."""
        block = self.block_at(sequence)
        i = sequence - block.first_sequence
        first = sequence - block.ordinal(i)
        number = block.commit(i) - block.first_commit
        rows, _ = COMMIT_PACK.unpack_from(block.summary_table, number * COMMIT_PACK.size)
        return Place(first, first + rows - 1)

    def commit_end(self, *, after: int, events_max: int) -> int:
        self.require(after)
        target = min(after + events_max, self.state.head)
        if target == self.state.head or target <= after:
            return target
        first, last = self.commit_span(target)
        if last == target:
            return target
        # The commit before `first` ends there; if `after` is not before it, take one whole commit.
        return first - 1 if first - 1 > after else self.commit_span(after + 1).last

    def ranges(self, *, after: int, until: int, count: int) -> list[tuple[int, int]]:
        self.require(after)
        until = min(until, self.state.head)
        splits = [after]
        for part in range(1, count):
            wanted = after + (until - after) * part // count
            if wanted > splits[-1]:
                split = self.block_at(wanted).last_sequence
                if splits[-1] < split < until:
                    splits.append(split)
        if until > after:
            splits.append(until)
        return list(pairwise(splits))


class Reads(ABC):
    """The synchronous face of a log, safe for any number of threads."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[View]:
        """The log as it is now; valid inside the `with` block."""

    def bounds_now(self) -> Bounds:
        """As `LogReader.bounds`."""
        with self.snapshot() as snapshot:
            return snapshot.bounds()

    def sources_now(self) -> list[SourceState]:
        """As `LogReader.sources`."""
        with self.snapshot() as snapshot:
            return snapshot.sources()

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`."""
        with self.snapshot() as snapshot:
            return snapshot.read(after=after, until=until, bytes_max=bytes_max)

    def check_at_now(self, sequence: int) -> int | None:
        """As `LogReader.check_at`."""
        with self.snapshot() as snapshot:
            return snapshot.check_at(sequence)

    def commit_end(self, *, after: int, events_max: int) -> int:
        """The last commit end within `events_max` entries after `after`.

        If the next commit alone exceeds that, the end of that commit; `after` itself at the head.
        Raises TrimmedError or AheadError as `read` does.
        """
        with self.snapshot() as snapshot:
            return snapshot.commit_end(after=after, events_max=events_max)

    def ranges(self, *, after: int, until: int, count: int) -> list[tuple[int, int]]:
        """(`after`, `until`] as at most `count` ranges of about equal length, in order.

        They meet at block boundaries, so that no block is read twice. Each is (after, until].
        Raises TrimmedError or AheadError as `read` does.
        """
        with self.snapshot() as snapshot:
            return snapshot.ranges(after=after, until=until, count=count)
