"""Where rows are that came by a rename which cannot be followed, as a pipeline is configured now.

Applied anew, the log does not tell what they were: a collection was taken out of the pipeline since
the rename, or got steps of its own. The pipeline may well have handed them over then. So whoever
compares sets apart where they are, rather than to take right rows for extra ones.
"""

from penstock.spark.table.events import Effect, Place

_NOTHING: frozenset[int] = frozenset()


class Unfollowed:
    """The renames, as the log is applied anew, in its order."""

    def __init__(self, *, keeps_versions: bool = False) -> None:
        """`keeps_versions`: rows that are gone, or are elsewhere, are still told."""
        self._keeps_versions = keeps_versions
        self._sequences: dict[Place, frozenset[int]] = {}

    def note(self, sequence: int, effect: Effect) -> None:
        """Take in the event at `sequence`, by what it does."""
        for place in effect.ends:
            self.ended(place)
        if effect.moves is not None:
            self.moved(*effect.moves)
        if effect.brings is not None:
            self.came(effect.brings, sequence)

    def came(self, place: Place, sequence: int) -> None:
        """Rows came there that are not known, in place of those that it had."""
        self.ended(place)
        self._sequences[place] = self._at(place) | {sequence}

    def moved(self, place: Place, to: Place) -> None:
        """The rows of `place` are those of `to`, in place of those that it had."""
        moved = self._at(place)
        self.ended(to)
        self.ended(place)
        if moved:
            self._sequences[to] = self._at(to) | moved

    def ended(self, place: Place) -> None:
        """All rows there are gone; an empty collection stands for the whole database."""
        if self._keeps_versions:
            return
        database, collection = place
        if collection:
            self._sequences.pop(place, None)
        else:
            kept = {one: held for one, held in self._sequences.items() if one[0] != database}
            self._sequences = kept

    def _at(self, place: Place) -> frozenset[int]:
        return self._sequences.get(place, _NOTHING)

    def into(self, collection: str, *, database: str | None = None) -> frozenset[int]:
        """The sequences of the renames whose rows are there, in one database or in any."""
        found = (
            held
            for (one, name), held in self._sequences.items()
            if name == collection and database in {None, one}
        )
        return _NOTHING.union(*found)
