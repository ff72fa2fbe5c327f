"""Where an event stream stands, as the `id` of its events says it. Pure.

A browser sends the last id back as Last-Event-ID and asks for the same URL again. So an id says of
each request, in their order and with commas between them, what a new connection needs:

    MARKER     it goes on behind this place
    MARKER*7   and ends after 7 captures more
    x          it is over, and is not begun again
               (nothing) it begins as the URL says: it waits still for what it begins with

Of one request without `completeAfter` that is a marker. An event without an id leaves the one
before it in force: such is the last entry of a transaction whose end comes next and has the same
marker.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from penstock.errors import RequestError
from penstock.progress import Progress, parse_progress
from penstock.subscribe.captures import (
    Boundary,
    Captured,
    CaptureRequest,
    Confirmed,
    Finished,
    Maintained,
    Since,
)

_OVER: Final = "x"
_AGAIN_MAX: Final = 2
"""A transaction's beginning and its only entry: more never comes again."""


class _Standing:
    """Of one request."""

    def __init__(self, request: CaptureRequest) -> None:
        self.is_over = False
        self.counts = request.complete_after > 0
        since = request.since
        self.waits = since.version is not None or since.timestamp is not None
        self.waits = self.waits or isinstance(since.transaction, int)
        """What it begins with may lie behind the place that is confirmed."""
        self._left = request.complete_after
        self._again: deque[int] = deque(maxlen=_AGAIN_MAX)
        """Of the captures that came last, the first place behind which they do not come again."""
        self._said = ""

    def count(self, behind: int) -> None:
        """A capture came; behind the place `behind` it does not come again."""
        self._left -= 1
        self._again.append(behind)

    def stand(self, place: Progress) -> None:
        """All up to here came."""
        self._said = str(place)
        if self.counts:
            left = self._left + sum(one > place.sequence for one in self._again)
            # Behind the last one it is over, though that is said next.
            self._said = f"{place}*{left}" if left else _OVER

    def __str__(self) -> str:
        return _OVER if self.is_over else self._said


class Ids:
    """The ids of one stream's events. Tell it everything, in order."""

    def __init__(self, requests: Sequence[CaptureRequest | None]) -> None:
        """The requests of the URL; None for one that was over before."""
        self._all = [None if one is None else _Standing(one) for one in requests]
        pairs = zip(requests, self._all, strict=True)
        self._standing = {
            one.id: standing for one, standing in pairs if one is not None and standing is not None
        }

    def confirmed(self, said: Confirmed) -> str:
        """The id of a confirmation; empty for none, as of all that follows."""
        one = self._standing[said.id]
        if not one.waits:
            one.stand(said.after)
        return self._id()

    def captured(self, said: Captured) -> str:
        """The id of a capture: of several requests it has none, since they stand elsewhere."""
        place = parse_progress(said.progress)
        for name in said.ids:
            self._standing[name].count(place.sequence)
        return "" if said.ends else self._single(said.ids, place)

    def edge(self, said: Boundary) -> str:
        """The id of a transaction's beginning or end. A beginning comes again behind its own."""
        place = parse_progress(said.progress)
        for name in said.ids:
            self._standing[name].count(place.sequence + said.begins)
        return self._single(said.ids, place)

    def maintained(self, said: Maintained) -> str:
        """The id of a maintenance event."""
        for name, place in said.positions.items():
            self._standing[name].stand(place)
        return self._id()

    def finished(self, said: Finished) -> str:
        """The id of an end: what may pass leaves the request as it was, to be begun again."""
        if said.error is not None and said.error.transient:
            return ""
        self._standing[said.id].is_over = True
        return self._id()

    def _single(self, names: Sequence[str], place: Progress) -> str:
        if len(self._all) > 1:
            return ""
        for name in names:
            self._standing[name].stand(place)
        return self._id()

    def _id(self) -> str:
        return ",".join(_OVER if one is None else str(one) for one in self._all)


def resumed(asked: Sequence[CaptureRequest], last: str) -> list[CaptureRequest | None]:
    """What is left of the requests of a URL behind the event whose id is `last`: None of one that
    is over.

    Raises RequestError for an id of another URL, MalformedProgressError for what is no id.
    """
    said = last.split(",")
    if len(said) != len(asked):
        raise RequestError(
            f"Last-Event-ID is of {len(said)} requests, and the URL has {len(asked)}. Nothing was "
            f"sent. Send it with the URL that it came of, or leave it out."
        )
    left: list[CaptureRequest | None] = []
    for request, one in zip(asked, said, strict=True):
        if one == _OVER:
            left.append(None)
            continue
        marker, _, count = one.partition("*")
        since = Since(progress=parse_progress(marker)) if marker else request.since
        left.append(
            structs.replace(
                request, since=since, complete_after=_count(count, request.complete_after)
            )
        )
    return left


def _count(text: str, asked: int) -> int:
    """How many captures are left of `asked`; a marker alone says nothing of it."""
    if not text:
        return asked
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= asked):
        raise RequestError(
            "Last-Event-ID has a count that is not of this URL. Nothing was sent. Send it with the "
            "URL that it came of, or leave it out."
        )
    return int(text)
