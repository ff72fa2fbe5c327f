"""Which records are written together. Pure.

Commits are packed whole, up to the limits; one that exceeds them by itself goes in parts, which
become visible together. Each commit is proved as it ends, by its number of entries and their
digest: against what it was captured with, and against a tally of what of it was to come, where a
filter lets some of it through. So a commit of which all was lost is missed too.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.errors import AuditError, IncompleteCommitError, PenstockError

_U64: Final = (1 << 64) - 1


class Entry(NamedTuple):
    """An entry of the log, made ready by a worker."""

    sequence: int
    check: int
    """Of the log: 64 bits, not signed."""
    commit: int
    commit_rows: int
    commit_digest: int
    id: str
    record: bytes | None
    """BSON without its place; None for what a trail does not keep."""
    salt: bytes = b""
    leaf: bytes = b""
    spilled: bytes | None = None
    """What is too large for the record: BSON of its content."""
    timestamp: int = 0
    """When it was committed, in Unix milliseconds."""
    kind: int = 0
    """As in the log: 2 is a gap."""

    @property
    def size(self) -> int:
        return len(self.record or b"")

    @property
    def is_trimmed(self) -> bool:
        """Whether it stands for entries that retention removed before they were read."""
        return self.commit < 0


class Tally(NamedTuple):
    """What of a commit is to come."""

    commit: int
    rows: int | None
    """None: of this commit and those before it nothing is known, for the log has them no more."""
    digest: int = 0


class Whole(NamedTuple):
    """Whole commits that are written together; without entries, the place alone moves on."""

    entries: list[Entry]
    until: int
    """The log's last entry of them."""


class Part(NamedTuple):
    """The next records of a commit that is too large for one batch."""

    entries: list[Entry]


class Ended(NamedTuple):
    """The commit whose parts came before is whole."""

    until: int
    """The log's last entry of them."""


Step = Whole | Part | Ended


class Wholes(NamedTuple):
    """Batches that become visible together."""

    steps: list[Whole]


class Parts(NamedTuple):
    """Parts of one commit that are staged together."""

    steps: list[Part]


Stride = Wholes | Parts | Ended


def strides(steps: Iterable[Step], *, events_max: int, bytes_max: int) -> Iterator[Stride]:
    """Steps of one kind that follow each other, up to the limits; one alone may exceed them.

    Before an error of `steps` is raised, what came before it is yielded.
    """
    source = iter(steps)
    held: Wholes | Parts | None = None
    events = size = 0
    while True:
        try:
            step = next(source, None)
        except PenstockError:
            if held is not None:
                yield held
            raise
        entries = [] if step is None or isinstance(step, Ended) else step.entries
        more = sum(entry.size for entry in entries)
        full = events + len(entries) > events_max or size + more > bytes_max
        if held is not None and (full or not isinstance(step, _HELD[type(held)])):
            yield held
            held, events, size = None, 0, 0
        if step is None:
            return
        if isinstance(step, Ended):
            yield step
            continue
        if isinstance(step, Whole):
            held = held if isinstance(held, Wholes) else Wholes([])
            held.steps.append(step)
        else:
            held = held if isinstance(held, Parts) else Parts([])
            held.steps.append(step)
        events, size = events + len(entries), size + more


_HELD: Final[dict[type[Stride], type[Step]]] = {Wholes: Whole, Parts: Part}


class Packer:
    """Takes entries in order, and says what to write."""

    def __init__(
        self, *, events_max: int, bytes_max: int, tallies: Iterable[Tally] | None = None
    ) -> None:
        """`tallies` are of all commits of which something is to come, in their order.

        None: all entries of each commit that comes are to come.
        """
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._whole = tallies is None
        self._tallies = iter(tallies or ())
        self._next = next(self._tallies, None)
        self._packed: list[Entry] = []
        """Records of commits that have ended."""
        self._packed_bytes = 0
        self._open: list[Entry] = []
        self._open_bytes = 0
        self._last: Entry | None = None
        self._highest = 0
        self._rows = 0
        self._digest = 0
        self._parts = False
        self._until: int | None = None
        """Where the last commit that ended ends."""

    def add(self, entry: Entry) -> Iterator[Step]:
        """Take the next entry.

        Raises IncompleteCommitError if the commit before ended unproved, and AuditError if the
        entry is not behind those that came: a place must never move back.
        """
        if entry.sequence <= self._highest:
            raise AuditError(
                f"entry {entry.sequence} of the log came behind entry {self._highest}, out of its "
                f"order. Nothing of it was written, and the trail is safe. Start the pipeline "
                f"again; if it happens again, please report it."
            )
        self._highest = entry.sequence
        if self._last is not None and entry.commit != self._last.commit:
            yield from self._end()
        self._last = entry
        self._rows += 1
        self._digest = (self._digest + entry.check) & _U64
        if entry.record is None:
            return
        if self._open and not self._fits(self._open, self._open_bytes + entry.size):
            yield from self._part()
        self._open.append(entry)
        self._open_bytes += entry.size

    def end(self) -> Iterator[Step]:
        """No entry follows: what is held is written. Raises as `add`."""
        if self._last is not None:
            yield from self._end()
        if self._until is not None:
            yield from self._flush()
        while self._next is not None:
            if self._next.rows is not None:
                raise _incomplete(self._next, 0, 0)
            self._next = next(self._tallies, None)

    def before(self, entry: Entry) -> Iterator[Step]:
        """Write the whole commits before that of `entry`, which is not taken. Raises as `add`."""
        if self._last is not None and entry.commit != self._last.commit:
            yield from self._end()
        yield from self._flush()

    def _fits(self, entries: list[Entry], size: int) -> bool:
        """Whether one more entry, with which they come to `size` bytes, may join them."""
        return len(entries) < self._events_max and size <= self._bytes_max

    def _part(self) -> Iterator[Step]:
        yield from self._flush()
        yield Part(self._open)
        self._parts = True
        self._open, self._open_bytes = [], 0

    def _end(self) -> Iterator[Step]:
        last = self._last
        assert last is not None
        self._prove(last)
        here = last.sequence
        if self._parts:
            if self._open:
                yield Part(self._open)
            yield Ended(here)
        else:
            together = len(self._packed) + len(self._open)
            size = self._packed_bytes + self._open_bytes
            if self._packed and (together > self._events_max or size > self._bytes_max):
                yield from self._flush()
            self._packed += self._open
            self._packed_bytes += self._open_bytes
            self._until = here
        self._open, self._open_bytes = [], 0
        self._last, self._rows, self._digest, self._parts = None, 0, 0, False

    def _flush(self) -> Iterator[Step]:
        if self._until is not None:
            yield Whole(self._packed, self._until)
        self._packed, self._packed_bytes, self._until = [], 0, None

    def _prove(self, last: Entry) -> None:
        captured = Tally(last.commit, last.commit_rows, last.commit_digest)
        wrong = self._rows > last.commit_rows or (
            self._rows == last.commit_rows and self._digest != last.commit_digest
        )
        if wrong or (self._whole and self._rows < last.commit_rows):
            raise _incomplete(captured, self._rows, self._digest)
        if not self._whole and last.commit > 0:  # a gap that the reader made is in no commit
            self._compare(last)

    def _compare(self, last: Entry) -> None:
        tally = self._next
        while tally is not None and tally.commit < last.commit:
            if tally.rows is not None:
                raise _incomplete(tally, 0, 0)
            tally = self._next = next(self._tallies, None)
        if tally is not None and tally.rows is None:
            return
        if tally is None or tally.commit > last.commit:
            raise _incomplete(Tally(last.commit, 0), self._rows, self._digest)
        if (tally.rows, tally.digest) != (self._rows, self._digest):
            raise _incomplete(tally, self._rows, self._digest)
        self._next = next(self._tallies, None)


def _incomplete(tally: Tally, rows: int, digest: int) -> IncompleteCommitError:
    return IncompleteCommitError(
        commit=tally.commit,
        rows=rows,
        commit_rows=tally.rows or 0,
        digest=digest,
        commit_digest=tally.digest,
    )
