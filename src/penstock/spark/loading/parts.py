"""Which ranges of which collections are loaded, and which are not. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct, structs

from penstock.ports import KeyRange, Listing

UNSPLIT: Final = 0
"""Nobody has said its ranges yet. Without a database: the collection of every database; without a
collection: all that is captured."""
OPEN: Final = 1
"""It is to be read."""
READ: Final = 2
"""Its rows are in the table; or it was listed, and what there is are parts of their own."""
DONE: Final = 3
"""And so is all that the source had committed when they were read."""


class Part(Struct, frozen=True, kw_only=True):
    """A range of keys, and how far it is."""

    database: str
    collection: str
    start: bytes | None = None
    stop: bytes | None = None
    state: int = UNSPLIT
    read_at: str = ""
    """When it was read, in the source's own words."""
    sequence: int = -1
    """What its table had applied once its rows were in; -1 if there were none."""
    version: int = -1
    """The version that its table had then; -1 if there was no table. Several may have one place in
    the log, and a table that was restored from before is known by its version alone."""

    @property
    def namespace(self) -> tuple[str, str]:
        return self.database, self.collection

    @property
    def is_range(self) -> bool:
        """Whether it is a range of keys, and not what is still to be divided into some."""
        return bool(self.database) and self.state != UNSPLIT

    @property
    def range(self) -> KeyRange:
        return KeyRange(
            database=self.database, collection=self.collection, start=self.start, stop=self.stop
        )


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a part that was read."""

    read_at: str
    sequence: int = -1
    version: int = -1


class Plan(Struct, frozen=True, kw_only=True):
    """All parts of a first load."""

    parts: tuple[Part, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the tables have all that was there."""
        return bool(self.parts) and all(part.state == DONE for part in self.parts)

    def of(self, state: int) -> list[Part]:
        """The parts in that state."""
        return [part for part in self.parts if part.state == state]

    @property
    def ranges(self) -> int:
        """How many ranges of keys are known."""
        return sum(part.is_range for part in self.parts)

    @property
    def ranges_loaded(self) -> int:
        """How many of them have their rows in their tables."""
        return sum(part.is_range and part.state != OPEN for part in self.parts)

    @property
    def undivided(self) -> tuple[str, ...]:
        """The collections of which nobody has said the ranges yet; empty: all of the source."""
        return tuple(dict.fromkeys(part.collection for part in self.of(UNSPLIT)))

    def with_collections(self, names: Iterable[str]) -> "Plan":
        """Load these collections of every database too, where that is not planned already."""
        known = {part.collection for part in self.parts if not part.database}
        added = (Part(database="", collection=name) for name in names if name not in known)
        return Plan(parts=(*self.parts, *added))

    def within(self, names: Collection[str]) -> "Plan":
        """Of other collections nothing is to be loaded, and nothing counts as loaded."""
        return Plan(parts=tuple(part for part in self.parts if part.collection in names))

    def split(self, part: Part, listing: Listing) -> "Plan":
        """`part` is these ranges; what was planned of their collections is planned anew.

        That something was not there is read too: between two listings, a collection may get
        another's name, and be in neither. The log must have told all that was before the listing.
        """
        if part not in self.parts:
            return self
        spaces = {(one.database, one.collection) for one in listing.ranges} | {part.namespace}
        kept = [one for one in self.parts if one.namespace not in spaces]
        if not part.database or not listing.ranges:
            kept.append(structs.replace(part, state=READ, read_at=listing.read_at))
        opened = (
            Part(
                database=one.database,
                collection=one.collection,
                start=one.start,
                stop=one.stop,
                state=OPEN,
            )
            for one in listing.ranges
        )
        return Plan(parts=(*kept, *opened))

    def anew(self, database: str, collection: str) -> "Plan":
        """What was loaded of the collection says nothing any more."""
        space = (database, collection)
        kept = (part for part in self.parts if part.namespace != space)
        return Plan(parts=(*kept, Part(database=database, collection=collection)))

    def ended(self, database: str, collection: str) -> "Plan":
        """What was planned of the collection is planned anew, for it is another one, or of another
        shape; without a name, of all of the database."""
        plan = self
        for own in dict.fromkeys(part.namespace for part in self.parts):
            if own == (database, collection) or (not collection and own[0] == database):
                plan = plan.anew(*own)
        return plan

    def again(self, names: Iterable[str]) -> "Plan":
        """As if nothing of these collections had been loaded, in whatever database."""
        again = dict.fromkeys(names)
        kept = (part for part in self.parts if part.collection not in again)
        return Plan(parts=(*kept, *(Part(database="", collection=name) for name in again)))

    def read(self, outcomes: Mapping[Part, Outcome]) -> "Plan":
        """These parts are in their tables; those that are planned anew meanwhile are not."""
        return Plan(
            parts=tuple(
                structs.replace(
                    part,
                    state=READ,
                    read_at=outcomes[part].read_at,
                    sequence=outcomes[part].sequence,
                    version=outcomes[part].version,
                )
                if part in outcomes
                else part
                for part in self.parts
            )
        )

    def passed(self) -> "Plan":
        """The tables have, by the log, all that was committed when the parts were read."""
        return Plan(
            parts=tuple(
                structs.replace(part, state=DONE) if part.state == READ else part
                for part in self.parts
            )
        )
