"""Where a request begins: what it says, held against what the log holds.

A version and index are inclusive, a transaction and a marker exclusive. What lies ahead is waited
for, but a marker ahead is refused, as on every transport: it is of another history (E8).
"""

from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import RequestError, TrimmedError
from penstock.event import Kind
from penstock.ports import Bounds, LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.rationed import Rationed
from penstock.subscribe.captures.requests import Since
from penstock.subscribe.commits import entry_at, first_where
from penstock.subscribe.resume import oldest, resume, start
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.wire import Block, Stream

_SKEW_MS: Final = 86_400_000
"""By how much a source's clock may be ahead of the one that the log goes by."""
_WINDOW_BYTES: Final = 4 << 20
_WINDOW_ENTRIES: Final = 10_000


class Gate(Struct, frozen=True, kw_only=True):
    """What a request does not want yet of what follows its place.

    It opens once, at an entry of the log, whatever the request matches and however the log is cut
    into blocks; all from there on is wanted.
    """

    version: int = 0
    index: int = 0
    """Nothing before this, by version and index;"""
    timestamp: int | None = None
    """nothing before the first change of data that is as old."""

    def opening(self, block: Block) -> int | None:
        """The first entry in view of `block` that is wanted; None if all of it lies before."""
        part = slice(block.start, block.stop)
        if self.timestamp is not None:
            old = block.index["timestamp"][part] >= self.timestamp
            open_ = (block.kinds()[part] == Kind.DATA) & old
        else:
            places = block.places[part]
            commits = places["commit"].astype(np.int64) + block.first_commit
            indexes = places["ordinal"].astype(np.int64) + 1
            here = (commits == self.version) & (indexes >= self.index)
            open_ = (commits > self.version) | here
        found = np.flatnonzero(open_)
        return block.start + int(found[0]) if len(found) else None

    def shows_header(self, block: Block, first: int, opening: int | None) -> bool:
        """Whether the header of the commit that begins with entry `first` is wanted, and so all
        of the commit; `opening` is what this gate says of the block."""
        if self.timestamp is None:
            return (block.commit(first), 0) >= (self.version, self.index)
        return opening is not None and opening <= first

    def hides_gap(self, block: Block) -> bool:
        """Whether what is missing at a gap in `block`, before the opening, is wanted by nobody.

        Of a time only where the gap was there so long before it that no clock of a source is as
        far ahead: else the first change that is as late may be among what was lost.
        """
        return self.timestamp is None or block.ingested_at < self.timestamp - _SKEW_MS


class Start(Struct, frozen=True, kw_only=True):
    """Where a request begins."""

    after: Progress
    gate: Gate | None = None
    waiting: bool = False
    """What it waits for is ahead of the log."""


async def resolve(log: LogReader, since: Since, scope: Scope = EVERYTHING) -> Start:
    """The place that `since` means now. A transaction of which `scope` shows nothing is none.

    Raises TrimmedError, with the oldest marker, for what retention removed; ProgressError as
    `subscribe.start`; RequestError for a transaction that the log never had; and what `log` does.
    For a transaction or a time, much of the log may be read: give a `Rationed` one with an archive.
    """
    bounds = await log.bounds()
    if since.progress is not None:
        return Start(after=await start(log, str(since.progress)))
    if since.beginning:
        return Start(after=oldest(bounds))
    if isinstance(since.transaction, str):
        return Start(after=await _behind_transaction(log, bounds, since.transaction, scope))
    if since.transaction is not None:
        return await _at_version(log, bounds, since.transaction + 1, 0)
    if since.version is not None:
        return await _at_version(log, bounds, since.version, since.index)
    if since.timestamp is not None:
        return await _at_timestamp(log, bounds, since.timestamp)
    return Start(after=resume(None, bounds=bounds, check=None))


async def _at_version(log: LogReader, bounds: Bounds, version: int, index: int) -> Start:
    gate = Gate(version=version, index=index)
    if version > bounds.head_commit:
        return Start(after=_head(bounds), gate=gate, waiting=version > bounds.head_commit + 1)
    first = await first_where(
        log, bounds, lambda block, i: (block.commit(i), block.ordinal(i) + 1) >= (version, index)
    )
    if first is None:
        _require_kept(bounds)
        return Start(after=_head(bounds), gate=gate)
    if first == bounds.trimmed + 1 and bounds.trimmed:
        # Nothing is missing only if the very entry that is meant, or the header, is still here.
        block = await entry_at(log, first)
        here = (block.commit(block.start), block.ordinal(block.start) + 1)
        if here > (version, max(index, 1)):
            raise TrimmedError(oldest=str(oldest(bounds)))
    return Start(after=await _marker(log, bounds, first - 1), gate=gate)


async def _at_timestamp(log: LogReader, bounds: Bounds, timestamp: int) -> Start:
    """Before the first change that is as old. Those around it may be older, or come from a source
    whose clock goes otherwise: none that is younger lies before.

    Before a gap that comes first, if changes that are as old may be among what it lost: then with
    a gate, behind which the gap is told.
    """
    gate = Gate(timestamp=timestamp)
    near = await first_where(
        log, bounds, lambda block, _: block.ingested_at >= timestamp - _SKEW_MS
    )
    if near is None:
        _require_kept(bounds)
        return Start(after=_head(bounds), gate=gate, waiting=True)
    after = near - 1
    gaps: dict[Stream, int] = {}
    while True:
        if isinstance(log, Rationed) and not gaps:
            after = await log.calm(after=after, timestamp=timestamp)
        blocks = await log.read(after=after, bytes_max=_WINDOW_BYTES)
        for block in blocks:
            opening = gate.opening(block)
            _note_gaps(gaps, block, block.stop if opening is None else opening)
            if opening is not None:
                first = min([block.first_sequence + opening, *gaps.values()])
                if first == bounds.trimmed + 1 and bounds.trimmed:
                    raise TrimmedError(oldest=str(oldest(bounds)))
                place = await _marker(log, bounds, first - 1)
                return Start(after=place, gate=gate if gaps else None)
            after = block.last_sequence
        if not blocks:
            # Behind what was read, and no further: the log may have grown since.
            after = min([after, *(sequence - 1 for sequence in gaps.values())])
            return Start(after=await _marker(log, bounds, after), gate=gate, waiting=True)


def _note_gaps(gaps: dict[Stream, int], block: Block, stop: int) -> None:
    """Note the gaps before entry `stop`, by their streams, and forget those behind which an older
    change of the same stream came, or of the source if a gap is of all of it: what was lost is
    older still."""
    kinds = block.kinds()[block.start : stop]
    if not gaps and not bool(np.any(kinds == Kind.GAP)):
        return
    for i, kind in enumerate(kinds.tolist(), start=block.start):
        stream = block.stream(i)
        if kind == Kind.GAP:
            gaps.setdefault(stream, block.first_sequence + i)
        elif kind == Kind.DATA:
            for gap in [one for one in gaps if _is_of(stream, one)]:
                del gaps[gap]


def _is_of(stream: Stream, gap: Stream) -> bool:
    if gap.collection:
        return stream == gap
    return stream.source == gap.source and gap.database in {"", stream.database}


async def _behind_transaction(log: LogReader, bounds: Bounds, name: str, scope: Scope) -> Progress:
    """The place behind the last entry of a transaction, sought from the newest on."""
    needle = name.encode()
    until = bounds.head
    while until > bounds.trimmed:
        after = max(bounds.trimmed, until - _WINDOW_ENTRIES)
        found = await _last_of(log, after, until, needle, scope)
        if found is not None:
            return found
        until = after
    if bounds.trimmed:
        raise TrimmedError(oldest=str(oldest(bounds)))
    raise RequestError(
        "since.transactionId is of no transaction that the log has. Nothing was sent. Begin with a "
        "version, a timestamp, or the beginning."
    )


async def _last_of(
    log: LogReader, after: int, until: int, needle: bytes, scope: Scope
) -> Progress | None:
    """The place behind its last entry; None if it has none, or none that is shown."""
    last: Progress | None = None
    is_shown = False
    while after < until:
        blocks = await log.read(after=after, until=until, bytes_max=_WINDOW_BYTES)
        for block in blocks:
            if needle in block.data:
                for i in range(block.start, block.stop):
                    if block.cell(i, "transaction") == needle:
                        is_shown = is_shown or scope.shows(block.stream(i))
                        last = block.place(i)
            after = block.last_sequence
        if not blocks:
            break
    return last if is_shown else None


def _require_kept(bounds: Bounds) -> None:
    """Nobody can say of a log that was trimmed to its end that what is sought was not in it."""
    if bounds.trimmed and bounds.trimmed == bounds.head:
        raise TrimmedError(oldest=str(oldest(bounds)))


async def _marker(log: LogReader, bounds: Bounds, sequence: int) -> Progress:
    check = await log.check_at(sequence)
    return resume(
        Progress(bounds.log_id, sequence, check or 0), bounds=await log.bounds(), check=check
    )


def _head(bounds: Bounds) -> Progress:
    return Progress(bounds.log_id, bounds.head, bounds.head_check)
