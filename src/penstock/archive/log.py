"""What an archive needs of a log."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from penstock.ports import Bounds, SourceState
from penstock.wire import Block


class Moment(Protocol):
    """One moment of a log."""

    def bounds(self) -> Bounds: ...

    def sources(self) -> list[SourceState]: ...


class ArchivedLog(Protocol):
    """A log, read by a thread."""

    path: Path
    """Its folder."""

    def snapshot(self) -> AbstractContextManager[Moment]:
        """The log as it is now; valid inside the `with` block."""
        ...

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`."""
        ...
