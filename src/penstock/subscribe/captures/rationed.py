"""How much of an archive is looked through to find where one answer begins.

What the log itself holds is found quickly, and looked through to its end. What only the archive
holds is made anew, entry by entry, for one reader at a time: whoever sought there for as long as it
takes would keep all others waiting.
"""

from typing import Final, Protocol

from penstock.errors import HistoryUnknownError
from penstock.ports import Bounds, LogReader, SourceState
from penstock.wire import Block

_STRIDE_BYTES: Final = 4 << 20
"""After which other readers of the archive have their turn."""


class PastReader(LogReader, Protocol):
    """A log with what it does not hold any more."""

    async def calm(self, *, after: int, timestamp: int, bytes_max: int) -> tuple[int, int]:
        """Up to where, behind `after`, the archive has no gap and no change of `timestamp` or
        later, as far as about `bytes_max` bytes of its files tell; and how many these were.

        Entries behind that may be as calm. `after` itself for what the log holds.
        """
        ...


class Rationed:
    """A `LogReader` for one answer. Beside what a log raises: HistoryUnknownError once `bytes_max`
    of what only the archive holds were read."""

    def __init__(self, past: PastReader, *, trimmed: int, bytes_max: int) -> None:
        """The log alone holds what follows `trimmed`."""
        self._past = past
        self._trimmed = trimmed
        self._bytes_max = self._left = bytes_max

    async def bounds(self) -> Bounds:
        """As `LogReader.bounds`."""
        return await self._past.bounds()

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`."""
        if after >= self._trimmed:
            return await self._past.read(after=after, until=until, bytes_max=bytes_max)
        most = min(bytes_max, self._require_left())
        blocks = await self._past.read(after=after, until=until, bytes_max=most)
        self._left -= sum(block.nbytes for block in blocks)
        return blocks

    async def calm(self, *, after: int, timestamp: int) -> int:
        """Up to where, behind `after`, there is no gap and no change of `timestamp` or later; at
        least so far. Costs a small part of reading it."""
        while after < self._trimmed:
            most = min(_STRIDE_BYTES, self._require_left())
            reached, size = await self._past.calm(after=after, timestamp=timestamp, bytes_max=most)
            self._left -= size
            if reached == after or size < most:
                return reached
            after = reached
        return after

    async def check_at(self, sequence: int) -> int | None:
        """As `LogReader.check_at`."""
        return await self._past.check_at(sequence)

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `LogReader.wait`."""
        return await self._past.wait(after=after, timeout_seconds=timeout_seconds)

    async def sources(self) -> list[SourceState]:
        """As `LogReader.sources`."""
        return await self._past.sources()

    def _require_left(self) -> int:
        """How much may be read yet."""
        if self._left > 0:
            return self._left
        raise HistoryUnknownError(
            what="where the answer begins",
            why=f"it is not among the {self._bytes_max} bytes of the archive that are looked "
            f"through for one answer (scan_bytes_max under [serve.captures])",
            remedy="Ask with a version or a marker, which are found at once, or raise it",
        )
