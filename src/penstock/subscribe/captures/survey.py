"""What a transaction comes to for a lane, known before its first entry is sent (E11).

A transaction that ends in a later block is counted by looking ahead, a piece at a time: its
documents are not decoded, and nothing of it is kept.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.event import Kind
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.matching import Match, Matcher
from penstock.subscribe.captures.outputs import Boundary
from penstock.subscribe.scope import Verb
from penstock.wire import Block

_AHEAD_BYTES: Final = 4 << 20


class Survey(Struct, frozen=True, kw_only=True):
    """Of one transaction."""

    version: int
    requests: int
    """Who gets its edges."""
    rows: int
    """Entries that may be seen."""
    digest: int | None
    """None where some may not."""
    matched: tuple[int, ...]
    """For each request of the lane, by bit, how many entries it matches."""


def boundary_of(
    survey: Survey,
    block: Block,
    i: int,
    ids: tuple[str, ...],
    lane: tuple[str, ...],
    *,
    before: Progress | None,
) -> Boundary:
    """An edge of the transaction of entry `i`, for `ids` of the requests of a `lane`: its beginning
    with the place `before` its first entry, or its end (None)."""
    begins = before is not None
    matched = dict(zip(lane, survey.matched, strict=True))
    return Boundary(
        ids=ids,
        begins=begins,
        progress=str(before) if begins else block.progress(i),
        source=block.stream(i).source,
        transaction=block.cell(i, "transaction").decode() or None,
        version=survey.version,
        timestamp=block.timestamp(i),
        rows=survey.rows,
        digest=survey.digest,
        matched={name: matched[name] for name in ids},
    )


def stretches(block: Block) -> list[tuple[int, int]]:
    """The first and last entry in view of each transaction."""
    commits = block.places["commit"][block.start : block.stop]
    cuts = (np.flatnonzero(np.diff(commits)) + 1 + block.start).tolist()
    firsts = [block.start, *cuts]
    lasts = [*(cut - 1 for cut in cuts), block.stop - 1]
    return list(zip(firsts, lasts, strict=True))


class Surveyor:
    """Surveys the transactions of one block."""

    def __init__(
        self,
        log: LogReader,
        matcher: Matcher,
        block: Block,
        matches: Sequence[Match],
        *,
        known: Survey | None,
    ) -> None:
        """`known` is what was found of a transaction that began before the block."""
        self._log = log
        self._matcher = matcher
        self._block = block
        self._matches = matches
        self._known = known

    async def survey(self, first: int, last: int) -> Survey | None:
        """Of the transaction whose entries in view are `first` to `last`.

        None where neither of its edges is here, and where they are for nobody.
        """
        block = self._block
        if block.ordinal(first) and not block.ends_commit(last):
            return None
        if self._known is not None and self._known.version == block.commit(first):
            return self._known
        tally = _Tally(self._matcher)
        whole = block.ordinal(first) == 0 and block.ends_commit(last)
        rows, digest = block.summaries[block.commit(first) - block.first_commit]
        if whole:
            matches = [match for match in self._matches if first <= match.i <= last]
            tally.add(block, range(first, last + 1), matches)
        else:
            begin = block.first_sequence + first - block.ordinal(first)
            await self._look_at_all(tally, begin, begin + int(rows) - 1)
        if not tally.requests:
            return None
        return Survey(
            version=block.commit(first),
            requests=tally.requests,
            rows=tally.rows,
            # It proves every entry as it is: nothing to whom something is kept from (wire.shown).
            digest=int(digest)
            if tally.rows == int(rows)
            and self._matcher.scope.shows_all_of(block.stream(first).source)
            else None,
            matched=tuple(tally.matched),
        )

    async def _look_at_all(self, tally: "_Tally", begin: int, end: int) -> None:
        after = begin - 1
        # Its beginning may be gone, for who starts in the middle: then what is left is counted.
        after = max(after, (await self._log.bounds()).trimmed)
        while after < end:
            blocks = await self._log.read(after=after, until=end, bytes_max=_AHEAD_BYTES)
            for block in blocks:
                tally.add(block, range(block.start, block.stop), self._matcher.select(block))
                after = block.last_sequence


class _Tally:
    """Counts entries of one transaction."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.rows = 0
        self.requests = 0
        self.matched = [0] * len(matcher.requests)

    def add(self, block: Block, entries: range, matches: Sequence[Match]) -> None:
        part = slice(entries.start, entries.stop)
        numbers = block.stream_numbers()[part]
        data = block.kinds()[part] == Kind.DATA
        for verb, chosen in ((Verb.READ, numbers[data]), (Verb.SCHEMA, numbers[~data])):
            for number, count in zip(*np.unique(chosen, return_counts=True), strict=True):
                stream = block.streams[int(number)]
                if self._matcher.scope.allows(verb, stream):
                    self.rows += int(count)
                    self.requests |= self._matcher.headers(stream)
        for match in matches:
            for bit in range(len(self.matched)):
                self.matched[bit] += match.requests >> bit & 1
