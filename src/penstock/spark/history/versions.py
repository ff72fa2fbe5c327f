"""Which versions a batch makes of its rows, and which it ends. Pure, by column.

Everything that is told of rows is a *point*: an open version that the table has, a whole row (PUT),
a DELETE, or a change that was rejected (REJECT). A row's points in the order of the log make its
versions:

- A PUT opens a version, and ends the one before; but one that leaves all tracked columns as they
  were belongs to the open version, and sets its other columns.
- A DELETE ends the open version; without one it does nothing.
- After a REJECT nobody knows how the row was: the open version says so, and the next PUT opens
  another, whatever it tells.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.spark.table.reduce import DELETE, PUT

OPEN: Final = 4
"""The role of an open version of the table; `penstock.spark.table.reduce` has those of changes."""
REJECT: Final = 5
"""The role of a change that was rejected."""

NEVER: Final = 0
"""In place of a sequence."""

Places = NDArray[np.intp]
Differ = Callable[[Places, Places], tuple[NDArray[np.bool_], NDArray[np.bool_]]]
"""Of pairs of points: whether their tracked columns differ, and whether any columns do."""


class Points(Struct, frozen=True, kw_only=True):
    """What is told of rows. Where sequences are equal, the order of the points is that of time."""

    codes: NDArray[np.int64]
    """Equal exactly for points of the same row."""
    sequences: NDArray[np.int64]
    roles: NDArray[np.int8]
    marks: NDArray[np.int64]
    """The first rejected change that an OPEN or PUT brings along; NEVER for none."""


class Versions(Struct, frozen=True, kw_only=True):
    """The versions that the table must have after the batch, but for those it has just so."""

    first: Places
    """By version: the point that opened it."""
    last: Places
    """The last point that changed its values."""
    end: Places
    """The point that ended it; -1 while it is open."""
    rejected: NDArray[np.int64]
    """The first rejected change since; NEVER for none."""


def decide(points: Points, differ: Differ) -> Versions:
    """The versions of all rows, by row and then by time."""
    order = np.lexsort((points.sequences, points.codes))
    roles = points.roles[order]
    states = np.flatnonzero(roles != REJECT)
    at = order[states]
    if not len(at):
        nothing = np.array([], np.intp)
        return Versions(first=nothing, last=nothing, end=nothing, rejected=nothing)
    marks = _marks(points, order, states)
    codes, roles = points.codes[at], points.roles[at]
    same = np.append(False, codes[1:] == codes[:-1])
    known = same & np.append(False, (roles[:-1] != DELETE) & (marks[:-1] == NEVER))
    pairs = np.flatnonzero(known & (roles == PUT))
    tracked, anything = differ(at[pairs - 1], at[pairs])
    opens = roles != DELETE
    opens[pairs] = tracked
    tells = opens.copy()
    tells[pairs] |= anything
    # A version lasts until the next one or a delete; another row begins with one of these.
    edges = np.flatnonzero(opens | (roles == DELETE))
    firsts = np.flatnonzero(opens)
    nexts = np.append(edges, len(at))[np.searchsorted(edges, firsts, side="right")]
    ended = np.append(same, False)[nexts]
    lasts = np.maximum.accumulate(np.where(tells, np.arange(len(at)), 0))[nexts - 1]
    rejected = marks[nexts - 1]
    as_it_was = (roles[firsts] == OPEN) & ~ended & (lasts == firsts)
    as_it_was &= rejected == points.marks[at[firsts]]
    ends = np.where(ended, np.append(at, -1)[nexts], -1)
    kept = ~as_it_was
    return Versions(
        first=at[firsts][kept], last=at[lasts][kept], end=ends[kept], rejected=rejected[kept]
    )


def _marks(points: Points, order: Places, states: Places) -> NDArray[np.int64]:
    """The first rejected change that each state has, brought along or right behind it."""
    behind = np.minimum(states + 1, len(order) - 1)
    own, following = order[states], order[behind]
    rejects = (points.roles[following] == REJECT) & (points.codes[following] == points.codes[own])
    found = np.where(rejects, points.sequences[following], NEVER)
    return np.where(points.marks[own] != NEVER, points.marks[own], found)
