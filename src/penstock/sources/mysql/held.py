"""What is held of a transaction until it ends, or there is too much of it. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress

from penstock.event import AnyEvent, ChangeEvent

Numbers = tuple[int, int]
"""Events of a transaction, from one number up to another."""


class Held:
    """The events of one transaction that are not handed on yet, by their numbers in it."""

    def __init__(self) -> None:
        self.handed_on = 0
        """Up to which number events were handed on, as fragments."""
        self._events: list[AnyEvent] = []
        self._numbers: list[int] = []
        self._bytes = 0

    def add(self, events: Sequence[AnyEvent], first: int, *, undone: Sequence[Numbers]) -> None:
        """Hold events, of which the first has this number, but for those of `undone`."""
        numbers: Sequence[int] = range(first, first + len(events))
        if undone:
            kept = [not any(start <= one < until for start, until in undone) for one in numbers]
            events, numbers = list(compress(events, kept)), list(compress(numbers, kept))
        self._events += events
        self._numbers += numbers
        self._bytes += sum(map(_weight, events))

    def undo(self, first: int) -> bool:
        """Drop the events from this number on; whether some of them were handed on already."""
        keep = bisect_left(self._numbers, first)
        self._bytes -= sum(map(_weight, self._events[keep:]))
        del self._events[keep:], self._numbers[keep:]
        return first < self.handed_on

    def beyond(self, bytes_max: int) -> bool:
        """Whether they are more than so many bytes."""
        return self._bytes > bytes_max

    def hand_on(self) -> tuple[AnyEvent, ...]:
        """Those that are held, which are not held any more."""
        events = tuple(self._events)
        if self._numbers:
            self.handed_on = self._numbers[-1] + 1
        self._events, self._numbers, self._bytes = [], [], 0
        return events


def _weight(event: AnyEvent) -> int:
    weight = 400 + len(event.origin or b"")
    if not isinstance(event, ChangeEvent):
        return weight + len(event.description)
    after, before = event.full_document, event.full_document_before_change
    if after is not None:
        weight += len(after)
    return weight if before is None else weight + len(before)
