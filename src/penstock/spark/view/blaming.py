"""Which of two joined rows is to blame where their condition cannot be computed. Pure, but for what
is asked.

Only pairs fail, so one failure says nothing. A row of a joined collection is to blame where it
fails with whatever row; else the row of the main collection is, as it is where an expression of
both cannot be computed. So one bad row never takes out those that it is compared with.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from penstock.spark.finding import failing

_ASKED: Final = 3
"""With so many a row fails that fails with whatever row."""


class Pairs(Protocol):
    """Rows of the main collection, and others that are joined to them; all by number."""

    @property
    def rows(self) -> int:
        """How many rows are looked at."""
        ...

    @property
    def others(self) -> int:
        """How many others there are."""
        ...

    def why_not(self, rows: range, others: range, without: Mapping[int, str]) -> str | None:
        """Why those rows cannot be joined to those others but some; None if they can."""
        ...

    def elsewhere(self, without: Iterable[int]) -> Sequence[int]:
        """A few of all rows of the main collection, by numbers of their own, but for some of those
        that are looked at."""
        ...

    def fails_there(self, elsewhere: int, other: int) -> bool:
        """Whether such a row cannot be joined to one of the others."""
        ...


def blamed(pairs: Pairs, *, most: int) -> tuple[dict[int, str], dict[int, str]]:
    """The rows and the others to blame, each with its reason. Without them all can be joined; but
    where there are more than `most` of either, one more than that is told, and no other."""
    own: dict[int, str] = {}
    bad: dict[int, str] = {}

    def fails(start: int, stop: int, _: Mapping[int, str]) -> str | None:
        return pairs.why_not(range(start, stop), range(pairs.others), bad)

    for row, first in failing(pairs.rows, fails, together=False):
        why: str | None = first
        while why is not None:
            other = _refused(pairs, row, bad)
            if other is None or not _refuses_all(pairs, other[0], {*own, row}):
                own[row] = why
                break
            bad |= dict([other])
            if len(bad) > most:
                return own, bad
            why = fails(row, row + 1, {})
        if len(own) > most:
            break
    return own, bad


def _refused(pairs: Pairs, row: int, bad: Mapping[int, str]) -> tuple[int, str] | None:
    """The first of the others that a row cannot be joined to; None where it can be to none."""

    def fails(start: int, stop: int, _: Mapping[int, str]) -> str | None:
        return pairs.why_not(range(row, row + 1), range(start, stop), bad)

    some = list(islice((at for at in range(pairs.others) if at not in bad), _ASKED))
    if len(some) > 1 and all(fails(at, at + 1, {}) is not None for at in some):
        return None
    return next(failing(pairs.others, fails, together=False), None)


def _refuses_all(pairs: Pairs, other: int, rows: Iterable[int]) -> bool:
    """Whether one of the others cannot be joined to any but those rows either."""
    some = pairs.elsewhere(rows)[:_ASKED]
    return bool(some) and all(pairs.fails_there(at, other) for at in some)
