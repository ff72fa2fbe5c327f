"""Which records are written together. Pure.

Commits are packed whole, up to the limits; one that exceeds them by itself goes in parts, which
become visible together. Each commit is proved as it ends: by its number of entries, and by their
digest.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import IncompleteCommitError

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


class Place(NamedTuple):
    """An entry of the log, by which a marker is made."""

    sequence: int
    check: int


class Whole(NamedTuple):
    """Whole commits that are written together; without entries, the place alone moves on."""

    entries: list[Entry]
    until: Place


class Part(NamedTuple):
    """The next records of a commit that is too large for one batch."""

    entries: list[Entry]


class Ended(NamedTuple):
    """The commit whose parts came before is whole."""

    until: Place


Step = Whole | Part | Ended


class Packer:
    """Takes entries in order, and says what to write."""

    def __init__(self, *, events_max: int, bytes_max: int, whole: bool) -> None:
        """`whole`: all entries of a commit come, for no filter drops any."""
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._whole = whole
        self._packed: list[Entry] = []
        """Records of commits that have ended."""
        self._packed_bytes = 0
        self._open: list[Entry] = []
        self._open_bytes = 0
        self._last: Entry | None = None
        self._rows = 0
        self._digest = 0
        self._parts = False
        self._until: Place | None = None
        """Where the last commit that ended ends."""

    def add(self, entry: Entry) -> Iterator[Step]:
        """Take the next entry. Raises IncompleteCommitError if the one before ended unproved."""
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
        here = Place(last.sequence, last.check)
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
        wrong = self._rows > last.commit_rows or (
            self._rows == last.commit_rows and self._digest != last.commit_digest
        )
        if wrong or (self._whole and self._rows < last.commit_rows):
            raise IncompleteCommitError(
                commit=last.commit,
                rows=self._rows,
                commit_rows=last.commit_rows,
                digest=self._digest,
                commit_digest=last.commit_digest,
            )
