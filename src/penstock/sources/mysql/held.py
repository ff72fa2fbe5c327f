"""What is held of a transaction until it ends, or there is too much of it. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress

from penstock.event import AnyEvent, ChangeEvent
from penstock.sources.mysql.binlog import MalformedEventError

Numbers = tuple[int, int]
"""Events of a transaction, from one number up to another."""
Copy = tuple[str, str, int]
"""A transaction's name, and where it was read: the file, and its beginning there. The name alone
may be given again, to one that is committed, when the server died within it."""
Undone = dict[Copy, list[Numbers]]
"""By transaction and where it was read: the events that were not committed."""


class Held:
    """The events of one transaction that are not handed on yet, by their numbers in it.

    What was handed on cannot be taken back. It is remembered in `undone`, and left out when the
    transaction is read again.
    """

    def __init__(self, undone: Undone) -> None:
        self.handed_on = 0
        """Up to which number events were handed on, as fragments."""
        self._undone = undone
        self._copy: Copy = ("", "", 0)
        self._left_out: Sequence[Numbers] = ()
        self._events: list[AnyEvent] = []
        self._numbers: list[int] = []
        self._bytes = 0
        self._savepoints: dict[str, int] = {}
        """By name: the number of the first event after it."""

    def begins(self, copy: Copy) -> None:
        """What comes is of this transaction, after another one that ended."""
        self._copy = copy
        self._left_out = self._undone.get(copy, ()) if self._undone else ()

    def ends(self) -> None:
        """Hold nothing any more. What was undone need not be remembered either."""
        if self._undone:
            self._undone.pop(self._copy, None)
        self.handed_on = 0
        self._savepoints.clear()
        if self._events:
            self._events, self._numbers, self._bytes = [], [], 0

    def add(self, events: Sequence[AnyEvent], first: int) -> None:
        """Hold events, of which the first has this number, but for those that were undone."""
        numbers: Sequence[int] = range(first, first + len(events))
        if self._left_out:
            out = self._left_out
            kept = [not any(start <= one < until for start, until in out) for one in numbers]
            events, numbers = list(compress(events, kept)), list(compress(numbers, kept))
        self._events += events
        self._numbers += numbers
        self._bytes += _weight(events)

    def save(self, name: str, number: int) -> None:
        """A savepoint, before the event of this number. Another one of the name, whose case does
        not count, takes the place of the first."""
        self._savepoints[name.casefold()] = number

    def saved(self, name: str) -> int:
        """The number of the first event after a savepoint."""
        number = self._savepoints.get(name.casefold())
        if number is None:
            raise MalformedEventError("a ROLLBACK TO a SAVEPOINT that was not set")
        return number

    def undo(self, first: int, until: int) -> bool:
        """Drop the events from this number on, up to another; whether reading must begin again,
        for some of them were handed on."""
        undone = slice(bisect_left(self._numbers, first), bisect_left(self._numbers, until))
        self._bytes -= _weight(self._events[undone])
        del self._events[undone], self._numbers[undone]
        known = self._undone.get(self._copy, [])
        if first >= min(self.handed_on, until) or (first, until) in known:
            return False
        self._undone[self._copy] = [*known, (first, until)]
        return True

    def beyond(self, bytes_max: int) -> bool:
        """Whether they are more than so many bytes."""
        return self._bytes > bytes_max

    def hand_on(self) -> tuple[AnyEvent, ...]:
        """Those that are held, which are not held any more."""
        events = tuple(self._events)
        if events:
            self.handed_on = self._numbers[-1] + 1
            self._events, self._numbers, self._bytes = [], [], 0
        return events


def _weight(events: Sequence[AnyEvent]) -> int:
    weight = 0
    for event in events:
        weight += 400 + len(event.origin or b"")
        if isinstance(event, ChangeEvent):
            weight += len(event.full_document or b"")
            weight += len(event.full_document_before_change or b"")
        else:
            weight += len(event.description)
    return weight
