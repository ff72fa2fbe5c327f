"""A log in memory, made of real blocks: what Flight and Spark tests read from."""

import bisect
import itertools
import threading
from collections.abc import Iterable, Sequence

from penstock.errors import TrimmedError
from penstock.event import AnyEvent, ChangeEvent, ClusterTime, Operation, SystemEvent, event_id
from penstock.extjson import encode
from penstock.ports import Ancestor, Bounds, SourceState
from penstock.progress import Progress
from penstock.wire import Block, build_block, encode_commit, joined, places_of, summaries_of

_positions = itertools.count(1)


def insert(
    number: int, *, source: str = "shop", collection: str = "orders", document: object = None
) -> ChangeEvent:
    """An insert of document `number`."""
    position = str(next(_positions))
    body = {"_id": number, "total": number * 2} if document is None else document
    return ChangeEvent(
        event_id=event_id(source, position, 0),
        source=source,
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + number, 1),
        timestamp=1_700_000_000_000 + number,
        position=position,
        document_id=str(number),
        key=encode({"_id": number}),
        operation=Operation.INSERT,
        full_document=encode(body),  # type: ignore[arg-type]
    )


def gap(*, source: str = "shop") -> SystemEvent:
    """A gap of `source`."""
    position = str(next(_positions))
    return SystemEvent(
        event_id=event_id(source, position, 0),
        source=source,
        database="",
        tenant="",
        collection="",
        cluster_time=ClusterTime(0),
        timestamp=0,
        position=position,
        operation="gap",
        description=encode({"reason": "test"}),
    )


class BlockLog:
    """Commits as blocks of at most `block_events` entries; a commit may span several."""

    def __init__(self, *, log_id: int = 0x1234, block_events: int = 7) -> None:
        self.log_id = log_id
        self.block_events = block_events
        self.trimmed = self.trimmed_check = 0
        self.head = self.head_commit = self.head_check = 0
        self.ancestors: tuple[Ancestor, ...] = ()
        self.blocks: list[Block] = []
        self.reads = 0
        self.sources: list[SourceState] = []
        self._lasts: list[int] = []
        self._lock = threading.Lock()

    def append(self, commits: Iterable[Sequence[AnyEvent]]) -> None:
        """Append whole commits."""
        encoded = [encode_commit("shop", events, position="p").events for events in commits]
        events, rows = joined(encoded), [len(one) for one in encoded]
        places, summaries = places_of(rows), summaries_of(events, rows)
        with self._lock:
            for at in range(0, len(events), self.block_events):
                part = places[at : at + self.block_events]
                first, last = int(part["commit"][0]), int(part["commit"][-1])
                data = build_block(
                    events.cut(at, at + len(part)),
                    part,
                    summaries[first : last + 1],
                    first_commit=self.head_commit + 1 + first,
                    ingested_at=1,
                    before=self.head_check,
                )
                block = Block(data, log_id=self.log_id, first_sequence=self.head + 1)
                self.blocks.append(block)
                self.head += len(part)
                self._lasts.append(self.head)
                self.head_check = block.history(len(part) - 1)
            self.head_commit += len(rows)

    def trim(self, sequence: int) -> None:
        """Remove the entries up to `sequence`."""
        block = self.read_now(after=sequence - 1, until=sequence)[0]
        with self._lock:
            self.trimmed = sequence
            self.trimmed_check = block.history(block.start)

    def bounds_now(self) -> Bounds:
        with self._lock:
            return Bounds(
                log_id=self.log_id,
                trimmed=self.trimmed,
                trimmed_check=self.trimmed_check,
                head=self.head,
                head_commit=self.head_commit,
                head_check=self.head_check,
                ancestors=self.ancestors,
            )

    def sources_now(self) -> list[SourceState]:
        """Where the sources stand, as a test says."""
        with self._lock:
            return list(self.sources)

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        with self._lock:
            self.reads += 1
            if after < self.trimmed:
                oldest = Progress(self.log_id, self.trimmed, self.trimmed_check)
                raise TrimmedError(oldest=str(oldest))
            end = self.head if until is None else min(until, self.head)
            found: list[Block] = []
            size = 0
            at = bisect.bisect_left(self._lasts, after + 1)
            while at < len(self.blocks) and self.blocks[at].first_sequence <= end:
                found.append(self.blocks[at].narrow(after=after, until=end))
                size += found[-1].nbytes
                at += 1
                if size >= bytes_max:
                    break
            return found

    def check_at_now(self, sequence: int) -> int | None:
        with self._lock:
            if sequence == self.trimmed:
                return self.trimmed_check
        if not self.trimmed < sequence <= self.head:
            return None
        block = self._block_at(sequence)
        return block.history(sequence - block.first_sequence)

    def commit_end(self, *, after: int, events_max: int) -> int:
        end = after
        for sequence in range(after + 1, self.head + 1):
            block = self._block_at(sequence)
            if sequence > after + events_max and end > after:
                break
            if block.ends_commit(sequence - block.first_sequence):
                end = sequence
        return end

    def ranges(self, *, after: int, until: int, count: int) -> list[tuple[int, int]]:
        edges = [after]
        for part in range(1, count):
            edge = self._block_at(after + (until - after) * part // count + 1).last_sequence
            if edges[-1] < edge < until:
                edges.append(edge)
        edges.append(until)
        return list(itertools.pairwise(edges))

    def _block_at(self, sequence: int) -> Block:
        return self.blocks[bisect.bisect_left(self._lasts, sequence)]

    def marker(self, sequence: int) -> Progress:
        """The marker of an entry."""
        if sequence == 0:
            return Progress(self.log_id, 0, 0)
        block = self.read_now(after=sequence - 1, until=sequence)[0]
        return Progress(self.log_id, sequence, block.history(block.start))
