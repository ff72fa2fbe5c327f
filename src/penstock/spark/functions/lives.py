"""Where rows come to: the lives of collections, from event to event. Pure.

Rows have the name of a collection (a *place*) for a while. A drop ends all of them, a rename has
them go on elsewhere, in place of the rows that were there. What is told of a key belongs to one
row exactly where it is of one *life*: a chain of places and stretches of the log that no event
ends. So entries need no cutting at events: each is given its life, and a key's entries of a life,
in log order, are those of one row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from penstock.spark.table.events import Effect, Place

_Own = tuple[str, Place]


class Turn(Struct, frozen=True, kw_only=True):
    """An event that ends rows, or takes them elsewhere."""

    sequence: int
    timestamp: int
    """Unix milliseconds."""
    source: str
    effect: Effect

    def behind(self, place: Place) -> Place | None:
        """Where the rows are that were at a place that it concerns; None where they are gone."""
        moves = self.effect.moves
        return moves[1] if moves is not None and moves[0] == place else None


class Life(NamedTuple):
    """What tells a life from all others of its source."""

    database: str
    collection: str
    """Its last place."""
    end: int
    """The sequence of the event that ends it; 0 while it goes on."""


class Lives:
    """All lives that some events make."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = sorted(turns, key=lambda turn: turn.sequence)
        self._sequences = [turn.sequence for turn in self.turns]
        self._of_place: dict[_Own, list[int]] = {}
        self._of_database: dict[tuple[str, str], list[int]] = {}
        self._known: dict[tuple[str, Place, int], Life] = {}
        for at, turn in enumerate(self.turns):
            for database, collection in dict.fromkeys([*turn.effect.ends, *_moved(turn)]):
                if collection:
                    self._of_place.setdefault((turn.source, (database, collection)), []).append(at)
                else:
                    self._of_database.setdefault((turn.source, database), []).append(at)

    def life(self, source: str, place: Place, *, since: int) -> Life:
        """The life of what the entry `since` tells of a row at `place`."""
        first = bisect_right(self._sequences, since)
        own = (source, place, first)
        if own not in self._known:
            life = Life(*place, 0)
            for turn, _, after in self.steps(source, place, since=since):
                end = turn.sequence if after is None else 0
                life = Life(*(after or (life.database, life.collection)), end)
            self._known[own] = life
        return self._known[own]

    def moved(self, life: Life, source: str) -> int:
        """The sequence of the last rename on a life that goes on; 0 for none."""
        place = (life.database, life.collection)
        concerning = self._of_place.get((source, place), [])
        renames = [at for at in concerning if place in _moved(self.turns[at])[1:]]
        return self.turns[renames[-1]].sequence if renames and not life.end else 0

    def steps(
        self, source: str, place: Place, *, since: int, until: int | None = None
    ) -> Iterator[tuple[Turn, Place, Place | None]]:
        """The events in (since, until) of rows that are at `place` right behind the entry `since`:
        each with the place before it and the one behind it, None where it ends them."""
        at = bisect_right(self._sequences, since)
        while (found := self._next(source, place, at)) is not None:
            turn = self.turns[found]
            if until is not None and turn.sequence >= until:
                return
            after = turn.behind(place)
            yield turn, place, after
            if after is None:
                return
            place, at = after, found + 1

    def _next(self, source: str, place: Place, at: int) -> int | None:
        concerning = (
            self._of_place.get((source, place), []),
            self._of_database.get((source, place[0]), []),
        )
        places = [(found, bisect_left(found, at)) for found in concerning]
        return min((found[one] for found, one in places if one < len(found)), default=None)


def _moved(turn: Turn) -> tuple[Place, ...]:
    return turn.effect.moves or ()
