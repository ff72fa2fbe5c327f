"""History in pages, which never split a transaction. Pure but for the log that it reads.

A page is a stretch of the log, between two places at which transactions end; its captures are those
of the stretch. It is found first, by counting, and sent afterwards, so that however large it is no
more of it is held than a piece. Pages that follow each other, in either direction, leave nothing
out and repeat nothing.
"""

from collections.abc import AsyncGenerator
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import GapError, RenamedError, TrimmedError
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.matching import Matcher, require_shown
from penstock.subscribe.captures.outputs import Boundary, Captured
from penstock.subscribe.captures.requests import CaptureRequest, Content
from penstock.subscribe.captures.survey import (
    Survey,
    Surveyor,
    boundary_of,
    stretches,
)
from penstock.subscribe.resume import oldest
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.wire import Block

_READ_BYTES: Final = 1 << 20
_WINDOW_ENTRIES: Final = 10_000

Stop = GapError | RenamedError
"""What a request does not go past."""


class Page(Struct, frozen=True, kw_only=True):
    """The entries behind `after`, up to and with `until`."""

    after: Progress
    until: Progress
    first: bool
    """Nothing that is kept lies before it;"""
    last: bool
    """nothing that was there when it was found lies behind it."""


class _Found(Struct, frozen=True):
    """Where a transaction ends, and what of it there was to count."""

    end: Progress
    first: int
    """Its first sequence that was looked at."""
    count: int
    stop: Stop | None
    """What ends the request in it."""


class Pages:
    """The pages of one request."""

    def __init__(
        self,
        log: LogReader,
        request: CaptureRequest,
        *,
        scope: Scope = EVERYTHING,
        limit: int,
        bytes_max: int,
    ) -> None:
        """A page ends with the transaction in which it has `limit` captures, or `bytes_max` of the
        log were looked at: then it may have fewer, even none, and the next goes on.

        Raises RequestError as `require_shown`.
        """
        require_shown(request, scope)
        self._log = log
        self._request = request
        self._matcher = Matcher((request,), scope)
        self._limit = limit
        self._bytes_max = bytes_max

    async def after(self, place: Progress) -> Page:
        """The page behind a place. Raises TrimmedError, and GapError or RenamedError for what comes
        first and lets the request not go past it."""
        head = await self._head()
        until, count, size = place, 0, 0
        while until.sequence < head.sequence and count < self._limit and size < self._bytes_max:
            found, read = await self._transactions(until.sequence, head.sequence)
            size += read
            for one in found:
                if one.stop is not None:
                    return await self._before_stop(place, until, one.stop)
                until, count = one.end, count + one.count
                if count >= self._limit:
                    break
            if not found:
                break
        return await self._page(place, until, last=until.sequence >= head.sequence)

    async def before(self, place: Progress) -> Page:
        """The page up to a place. Raises as `after`, for what comes last."""
        head = await self._head()
        bounds = await self._log.bounds()
        start, count, size = place, 0, 0
        while start.sequence > bounds.trimmed and count < self._limit and size < self._bytes_max:
            window, read = await self._window(start, bounds.trimmed)
            size += read
            for number in range(len(window) - 1, -1, -1):
                one = window[number]
                if one.stop is not None:
                    if start == place:
                        raise one.stop
                    return await self._page(start, place, last=place.sequence >= head.sequence)
                start = window[number - 1].end if number else await self._place(one.first - 1)
                count += one.count
                if count >= self._limit:
                    break
        return await self._page(start, place, last=place.sequence >= head.sequence)

    async def captures(self, page: Page) -> AsyncGenerator[list[Captured | Boundary]]:
        """What a page holds, a piece at a time. Raises TrimmedError if retention takes it away."""
        after, known = page.after, None
        while after.sequence < page.until.sequence:
            blocks = await self._log.read(
                after=after.sequence, until=page.until.sequence, bytes_max=_READ_BYTES
            )
            if not blocks:
                raise TrimmedError(oldest=str(oldest(await self._log.bounds())))
            for block in blocks:
                found, known = await self._outputs(block, after, known)
                after = block.place(block.stop - 1)
                yield found

    # --- finding --------------------------------------------------------------------------------

    async def _head(self) -> Progress:
        bounds = await self._log.bounds()
        return Progress(bounds.log_id, bounds.head, bounds.head_check)

    async def _place(self, sequence: int) -> Progress:
        bounds = await self._log.bounds()
        check = await self._log.check_at(sequence) if sequence else 0
        if check is None:
            raise TrimmedError(oldest=str(oldest(bounds)))
        return Progress(bounds.log_id, sequence, check)

    async def _page(self, after: Progress, until: Progress, *, last: bool) -> Page:
        trimmed = (await self._log.bounds()).trimmed
        return Page(after=after, until=until, first=after.sequence <= trimmed, last=last)

    async def _before_stop(
        self, place: Progress, until: Progress, stop: GapError | RenamedError
    ) -> Page:
        if until == place:
            raise stop
        return await self._page(place, until, last=False)

    async def _transactions(self, after: int, head: int) -> tuple[list[_Found], int]:
        """Whole transactions behind `after`, and how many bytes were read for them."""
        found: list[_Found] = []
        size, begun, count, stop = 0, after + 1, 0, None
        while not found and after < head:
            blocks = await self._log.read(after=after, until=head, bytes_max=_READ_BYTES)
            for block in blocks:
                size += block.nbytes
                for first, last in stretches(block):
                    more, here = self._counted(block, first, last)
                    count, stop = count + more, stop or here
                    if block.ends_commit(last):
                        found.append(_Found(block.place(last), begun, count, stop))
                        begun, count, stop = block.first_sequence + last + 1, 0, None
                after = block.last_sequence
            if not blocks:
                break
        return found, size

    async def _window(self, end: Progress, trimmed: int) -> tuple[list[_Found], int]:
        """The last transactions up to `end`, oldest first, and how many bytes were read."""
        entries, size = _WINDOW_ENTRIES, 0
        while True:
            begin = max(trimmed, end.sequence - entries)
            found: list[_Found] = []
            after = begin
            while after < end.sequence:
                some, read = await self._transactions(after, end.sequence)
                size += read
                if not some:
                    break
                found += some
                after = some[-1].end.sequence
            # The first of them may have begun before the window; and who asks for what is before
            # the middle of a transaction gets that part of it.
            if after < end.sequence:
                found.append(await self._part(after, end))
            if begin == trimmed:
                return found, size
            if len(found) > 1:
                return found[1:], size
            entries *= 4

    async def _part(self, after: int, end: Progress) -> _Found:
        count, stop, place = 0, None, after
        while place < end.sequence:
            blocks = await self._log.read(after=place, until=end.sequence, bytes_max=_READ_BYTES)
            for block in blocks:
                more, here = self._counted(block, block.start, block.stop - 1)
                count, stop, place = count + more, stop or here, block.last_sequence
        return _Found(end, after + 1, count, stop)

    def _counted(self, block: Block, first: int, last: int) -> tuple[int, Stop | None]:
        """How many captures entries of one transaction are, and what ends the request."""
        part = block.narrow(
            after=block.first_sequence + first - 1, until=block.first_sequence + last
        )
        matches = self._matcher.select(part)
        for match in matches:
            if match.ended:
                return 0, self._matcher.ending(block, match.i, 0)
        count = sum(1 for match in matches if match.requests)
        if self._matcher.infrastructure and block.ends_commit(last):
            numbers: list[int] = np.unique(block.stream_numbers()[first : last + 1]).tolist()
            count += any(self._matcher.headers(block.streams[number]) for number in numbers)
        return count, None

    # --- sending --------------------------------------------------------------------------------

    async def _outputs(
        self, block: Block, after: Progress, known: Survey | None
    ) -> tuple[list[Captured | Boundary], Survey | None]:
        matches = self._matcher.select(block)
        surveyor = Surveyor(self._log, self._matcher, block, matches, known=known)
        found: list[Captured | Boundary] = []
        ids, at = (self._request.id,), 0
        body = self._request.content is Content.BODY
        survey = known
        for first, last in stretches(block):
            edges = None
            if self._matcher.infrastructure:
                edges = await surveyor.survey(first, last)
                survey = edges or survey
            if edges is not None and block.ordinal(first) == 0:
                found.append(boundary_of(edges, block, first, ids, ids, before=after))
            while at < len(matches) and matches[at].i <= last:
                if matches[at].requests:
                    i = matches[at].i
                    before, mask = self._request.before, self._matcher.mask(block.stream(i))
                    found.append(
                        Captured(ids=ids, block=block, i=i, body=body, before=before, mask=mask)
                    )
                at += 1
            after = block.place(last)
            if edges is not None and block.ends_commit(last):
                found.append(boundary_of(edges, block, last, ids, ids, before=None))
        return found, survey
