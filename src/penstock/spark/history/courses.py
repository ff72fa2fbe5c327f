"""What is to be done with rejected changes of a history, by what table and log say of a row. Pure.

A change that was rejected left a mark on the version that was open, or nothing where the row was
not there. What happens from there on until the row is known again is a stretch: it ends with the
next change that the table has, or with an event that took the row away. A version that lasts beyond
a rejected change without its mark has that change: it was replayed before.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

UNKNOWN: Final = "the log no longer has it"


class Span(Struct, frozen=True, kw_only=True):
    """From which change to which a version lasts."""

    begun: int
    ended: int | None
    mark: int | None
    """The first rejected change that it names."""

    def has(self, sequence: int) -> bool:
        """Whether it was open right behind that change."""
        return self.begun <= sequence and (self.ended is None or sequence < self.ended)

    def knows(self, sequence: int) -> bool:
        """Whether the row is known from it at that change."""
        return self.has(sequence) and (self.mark is None or self.mark > sequence)


class Ending(Struct, frozen=True, kw_only=True):
    """An event that takes the row away."""

    sequence: int
    hands_over: bool = False
    """It goes on under another name."""


class Course(Struct, frozen=True, kw_only=True):
    """What is to be done with the rejected changes of a row."""

    done: tuple[int, ...] = ()
    """The table has them."""
    tried: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    """Behind these changes and events the row was not there, as far as the table knows."""
    left: dict[int, str] = {}
    """By sequence: why."""


def course_of(
    pending: Sequence[int],
    *,
    spans: Sequence[Span],
    changes: Collection[int],
    endings: Sequence[Ending],
    applied: int,
    known_from: int,
) -> Course:
    """What to do with the rejected changes of one row, by their sequences, ascending.

    `spans` are its versions in the table, which is as far as `applied`; of the sequences from
    `known_from` to there, `changes` are all changes of the row in the log and `endings` the events.
    """
    done = tuple(at for at in pending if any(span.knows(at) for span in spans))
    left: dict[int, str] = {}
    for at in pending:
        if at in done:
            continue
        if at > applied:
            left[at] = "its batch is not in the table yet"
        elif at < known_from:
            left[at] = UNKNOWN
        elif at not in changes:
            left[at] = "an event about its whole collection moved it"
    open_ = [at for at in pending if at not in done and at not in left]
    told = set(changes) - (set(pending) - set(done))
    gone = {at for at in told if not any(span.has(at) for span in spans)}
    handed = {one.sequence for one in endings if one.hands_over}
    edges = sorted({*(span.begun for span in spans), *gone, *(one.sequence for one in endings)})
    for at in open_:
        edge = next((edge for edge in edges if edge > at), None)
        if edge in handed:
            left[at] = f"its collection was renamed at sequence {edge}, before its row was known"
    return Course(
        done=done,
        tried=tuple(at for at in open_ if at not in left),
        ends=tuple(sorted(gone | {one.sequence for one in endings})),
        left=left,
    )
