"""What `penstock audit restore` may be asked for, and what it tells. Needs no extra's package."""

from typing import Final

from msgspec import Struct

Name = tuple[str, str]
"""A database and a table."""
DOUBTS: Final = {
    "beginning": "rows from before the trail began are left out",
    "copying": "rows that a copy had not reached are left out",
    "copied_keyless": "rows of a table without a key may be there twice",
    "gap": "changes that were lost are left out",
    "erased": "changes that were erased are left out",
    "retired": "changes that were retired are left out",
    "missing": "changes that are not there are left out",
    "inexact": "updates without an exact meaning leave their rows out",
    "contradiction": "records that contradict one another are believed in their order",
    "altered": "what was in a column is taken for what is in the one that is called so now; "
    "`--mode replay --into NAME` runs the statements too",
    "ddl": "statements that changed a table are not undone",
    "partial": "rows that the source did not send as a whole are left out, or stay as they are",
    "hidden": "columns are written as the trail has them: masked, hashed, cut, or not at all",
    "copied": "what a copy said is taken for what was there",
    "strangers": "rows that changed past the trail are changed all the same",
}
"""What may be accepted, and what follows."""


class Asked(Struct, frozen=True, kw_only=True):
    """What is to be restored."""

    databases: tuple[str, ...] = ()
    tables: tuple[Name, ...] = ()
    """None of both: everything."""
    into: str | None = None
    """The database that the tables are to be in; None for their own."""
    accepted: frozenset[str] = frozenset()
    memory: int = 4 << 30

    def wants(self, name: Name) -> bool:
        """Whether a table is asked for. The table `*` stands for a whole database."""
        if not self.databases and not self.tables:
            return True
        if name[1] == "*":
            return name[0] in self.databases or any(db == name[0] for db, _ in self.tables)
        return name[0] in self.databases or name in self.tables

    def only(self, earlier: frozenset[Name] = frozenset()) -> list[Name] | None:
        """The tables whose records are to be read, with their `earlier` names; None for all."""
        return None if self.databases or not self.tables else [*self.tables, *sorted(earlier)]

    def to(self, name: Name) -> Name:
        """Where a table is to be."""
        return name if self.into is None else (self.into, name[1])


class Written(Struct, frozen=True, kw_only=True):
    """What became of a table, or would."""

    table: str
    rows: int
    """That are told by the trail."""
    same: int = 0
    missing: int = 0
    changed: int = 0
    extra: int = 0
    made: bool = False
    """Whether the table was not there, and is made."""
    sample: tuple[str, ...] = ()
    """A few rows that differ: `+` for one that is missing, `-` one too many, `~` changed."""
