"""A log and its archive as one, for who reads in the service's own process.

The log is asked first. Where it says TRIMMED, the archive answers, up to where both meet, in blocks
that are made of its rows: the same entries with the same markers, so whoever reads need not know.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from penstock.errors import ArchiveBehindError, ArchiveForeignError, TrimmedError
from penstock.event import Kind
from penstock.ports import Bounds, LogReader, SourceState
from penstock.progress import Progress
from penstock.subscribe.criteria import Criteria
from penstock.wire import ARROW_SCHEMA, Block

if TYPE_CHECKING:
    from penstock.archive.joining import Joining
    from penstock.archive.reading import Archive

_ROWS: Final = 2_000
"""Of an archive that are made blocks of at once."""
_EVERYTHING: Final = Criteria(control_events=True)
T = TypeVar("T")


class TieredLog:
    """A `LogReader` of all that a log and its archive hold.

    While nothing is archived, and where the archive ends before the log begins, it is the log
    alone: what neither has is TRIMMED. Beside what a log raises: ArchiveError for an archive that
    cannot be read or is another log's, whenever something older than the log is asked for, or how
    old the oldest is.
    """

    def __init__(self, log: LogReader, path: str, *, folder: Path) -> None:
        """`path` is that of the archive, `folder` the log's. Nothing is opened before it is
        needed."""
        self._log = log
        self._folder = folder
        self._path = path
        # An archive belongs to one thread, and a bucket may take its time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._joining: Joining | None = None

    async def close(self) -> None:
        """Let go of the archive; the log stays open."""
        if self._joining is not None:
            await self._beside(self._joining.close)
        # A read of a bucket may be under way, for which the loop must not wait.
        await asyncio.to_thread(self._thread.shutdown)

    async def bounds(self) -> Bounds:
        """What both hold together."""
        live = await self._log.bounds()
        if live.trimmed == 0:
            return live
        joined = await self._joined(live)
        if joined is None:
            return live
        from penstock.archive.joining import joined_bounds

        return joined_bounds(live, joined[0])

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        """As `LogReader.read`. What is read at once is of the archive or of the log."""
        try:
            return await self._log.read(after=after, until=until, bytes_max=bytes_max)
        except TrimmedError as error:
            live, trimmed = await self._log.bounds(), error
        joined = await self._joined(live)
        if joined is None:
            raise trimmed
        archive, joint = joined
        begin = archive.manifest
        if after < begin.begin:
            oldest = Progress(live.log_id, begin.begin, begin.begin_check)
            raise TrimmedError(oldest=str(oldest)) from None
        stop = joint.sequence if until is None else min(until, joint.sequence)
        return await self._beside(lambda: _blocks(archive, live.log_id, after, stop, bytes_max))

    async def calm(self, *, after: int, timestamp: int, bytes_max: int) -> tuple[int, int]:
        """As `PastReader.calm`."""
        live = await self._log.bounds()
        if after >= live.trimmed or (joined := await self._joined(live)) is None:
            return after, 0
        archive, joint = joined
        if after < archive.manifest.begin:
            return after, 0
        stop = joint.sequence
        return await self._beside(lambda: _calm(archive, after, stop, timestamp, bytes_max))

    async def check_at(self, sequence: int) -> int | None:
        """As `LogReader.check_at`."""
        found = await self._log.check_at(sequence)
        if found is not None:
            return found
        live = await self._log.bounds()
        if sequence > live.trimmed or (joined := await self._joined(live)) is None:
            return None
        return await self._beside(lambda: joined[0].check_at(sequence))

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        """As `LogReader.wait`."""
        return await self._log.wait(after=after, timeout_seconds=timeout_seconds)

    async def sources(self) -> list[SourceState]:
        """As `LogReader.sources`."""
        return await self._log.sources()

    async def _joined(self, live: Bounds) -> "tuple[Archive, Progress] | None":
        """The archive, and where it and the log meet; None if they do not."""
        try:
            found = await self._beside(lambda: self._found(live, live))
        except ArchiveForeignError:
            # Unless the log has gone on, and was archived, since it was asked.
            latest = await self._log.bounds()
            found = await self._beside(lambda: self._found(live, latest))
        if found is None:
            return None
        joining, archive, joint = found
        if not joining.has_met(joint):
            joining.meet(joint, await self._log.check_at(joint.sequence))
        return archive, joint

    def _found(self, live: Bounds, latest: Bounds) -> "tuple[Joining, Archive, Progress] | None":
        # Parquet takes memory and half a second to load, which only an archive needs.
        from penstock.archive.joining import Joining, is_there

        if self._joining is None:
            if not is_there(self._path, log=self._folder):
                return None
            self._joining = Joining(self._path)
        try:
            return self._joining, *self._joining.at(live, lambda: latest)
        except ArchiveBehindError:
            return None

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _calm(
    archive: "Archive", after: int, until: int, timestamp: int, bytes_max: int
) -> tuple[int, int]:
    """As `PastReader.calm`, of (after, until] of an archive."""
    size = 0
    rows = archive.batches(
        after=after, until=until, columns=("kind", "timestamp"), criteria=_EVERYTHING
    )
    for batch, last in rows:
        one = archive.manifest.holding(after + 1)
        size += 1 + one.bytes * batch.num_rows // one.rows
        kinds = batch.column("kind").to_numpy()
        late = batch.column("timestamp").to_numpy() >= timestamp
        found = np.flatnonzero((kinds == Kind.GAP) | ((kinds == Kind.DATA) & late))
        if len(found):
            return after + int(found[0]), size
        after = last
        if size >= bytes_max:
            break
    return after, size


def _blocks(archive: "Archive", log_id: int, after: int, until: int, bytes_max: int) -> list[Block]:
    """Blocks that cover (after, until], or its beginning, of about `bytes_max` bytes."""
    from penstock.log.repacking import Repacking

    found: list[Block] = []
    size = 0
    repacking = Repacking(archive, after)
    rows = archive.batches(
        after=after, until=until, columns=ARROW_SCHEMA.names, criteria=_EVERYTHING
    )
    for batch, _ in rows:
        one = archive.manifest.holding(repacking.after + 1)
        for at in range(0, batch.num_rows, _ROWS):
            for packed in repacking.add(one, batch.slice(at, _ROWS)):
                first = packed.last - packed.rows + 1
                found.append(Block(packed.data, log_id=log_id, first_sequence=first))
                size += len(packed.data)
            if size >= bytes_max:
                return found
    return found
