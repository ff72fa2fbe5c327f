"""Where a source stands in a MySQL without GTIDs: a binlog's file, and how far it is read. Pure.

Such a place says nothing to another server, not even to a replica of this one.
"""

from typing import Final

BEGINNING: Final = 4
"""Where the first event of a binlog is."""


class FilePlace:
    """Behind what ends there: `mysql-bin.000003:1234`."""

    def __init__(self, file: str, offset: int) -> None:
        self.file = file
        self.offset = offset

    @classmethod
    def parse(cls, text: str) -> "FilePlace":
        """Raises ValueError for what is none."""
        file, _, offset = text.rpartition(":")
        place = cls(file, int(offset))
        _number(file)
        if place.offset < BEGINNING:
            raise ValueError(f"{text!r} is before the first event")
        return place

    def add(self, name: str) -> None:
        """Go on to a place."""
        moved = self.parse(name)
        self.file, self.offset = moved.file, moved.offset

    def text(self) -> str:
        """As a position has it."""
        return f"{self.file}:{self.offset}"

    def is_before(self, other: "FilePlace") -> bool:
        """Whether another place of the same binlogs is behind this one."""
        return (_number(self.file), self.offset) < (_number(other.file), other.offset)

    def is_behind(self, end: str) -> bool:
        """Whether a server whose binlogs end there has more."""
        return self.is_before(self.parse(end))

    def purged(self, before: str) -> str | None:
        """What is lost: our file, if it is older than the server's oldest; None if it is not (S7).

        `before` is where the oldest begins.
        """
        oldest = self.parse(before)
        return self.file if _number(self.file) < _number(oldest.file) else None

    def unknown(self, end: str) -> str | None:
        """This place, if the server's binlogs end before it, or have another name; else None."""
        last = self.parse(end)
        same = self.file.rpartition(".")[0] == last.file.rpartition(".")[0]
        ours, theirs = (_number(self.file), self.offset), (_number(last.file), last.offset)
        return None if same and ours <= theirs else self.text()


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
