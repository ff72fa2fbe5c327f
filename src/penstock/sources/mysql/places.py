"""How far a stream has read a server's binlogs, by file and place: to stop where a copy belongs.

Pure. Events say where in their file the next one begins, in 32 bits. A server begins another file
long before that is not enough, but for a single transaction that is larger.
"""

from typing import Final, NamedTuple

from penstock.sources.mysql.binlog import Event, EventType, MalformedEventError, rotation

_ROTATE: Final = int(EventType.ROTATE)
OFFSETS: Final = 1 << 32
"""How many places an event can tell apart."""


class Place(NamedTuple):
    """Between two transactions, in the order of a server's binlogs."""

    number: int
    """Of the file."""
    offset: int

    @classmethod
    def of(cls, file: str, offset: int) -> "Place":
        """Raises MalformedEventError for what is no name of a binlog."""
        number = file.rpartition(".")[2]
        if not number.isdecimal():
            raise MalformedEventError(f"a binlog without a number: {file!r}")
        return cls(int(number), offset)


class Reach:
    """Where the last event of one stream ended."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._offset: int | None = None

    @property
    def place(self) -> Place | None:
        """None as long as no event has told."""
        if self._number is None or self._offset is None:
            return None
        return Place(self._number, self._offset)

    def passed(self, event: Event) -> None:
        """Take the next event of the stream."""
        if event.type == _ROTATE:
            said = rotation(event.body)
            place = Place.of(said.file, said.position)
            if event.end:
                self._offset = place.offset
            elif place.number != self._number:
                # What a server sends first of all only names the file, from its beginning.
                self._offset = None
            self._number = place.number
        elif event.end and self._number is not None:
            self._offset = event.end

    def is_at(self, place: Place) -> bool:
        """Whether everything before `place` was read."""
        ours = self.place
        return ours is not None and ours >= place
