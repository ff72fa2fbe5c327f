"""What is held of a transaction until it ends, or there is too much of it. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

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

    def add(self, events: Sequence[AnyEvent], first: int, *, undone: Iterable[Numbers]) -> None:
        """Hold events, of which the first has this number, but for those of `undone`."""
        for number, event in enumerate(events, first):
            if not any(start <= number < until for start, until in undone):
                self._events.append(event)
                self._numbers.append(number)
                self._bytes += _weight(event)

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
    return weight + len(event.full_document or b"") + len(event.full_document_before_change or b"")
