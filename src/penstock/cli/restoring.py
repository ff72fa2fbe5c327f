"""What `penstock audit restore` does: read a trail up to a place, and put it where it is asked for.

Nothing is changed before everything is known that can be: doubts are told first, and refused unless
they were accepted by name; rows that are written are read back before they are committed.
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from penstock.audit.fold import (
    Doubt,
    Fold,
    Name,
    Table,
    names_before,
    whole_rows,
)
from penstock.audit.points import Place, absent, copied_later, records, renames
from penstock.audit.trail import Trail
from penstock.audit.undoing import Undoing
from penstock.errors import AuditError

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
    "ddl": "statements that changed a table are not undone",
    "partial": "rows that the source did not send as a whole are left out, or stay as they are",
    "hidden": "columns are written as the trail has them: masked, hashed, cut, or not at all",
    "copied": "what a copy said is taken for what was there",
    "strangers": "rows that changed past the trail are changed all the same",
}
"""What may be accepted, and what follows."""
_SHOWN: Final = 10
Tick = Callable[[int], None]


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


# --- the state at a place -------------------------------------------------------------------------


def head_of(trail: Trail) -> int:
    """How far the trail has come. Raises AuditError for one that is empty."""
    head = trail.head()
    if head is None or head.at == 0:
        raise AuditError(
            f"there is no trail of {trail.source} in this database. Nothing was changed. See that "
            f"the source's name, the database and the collection are those of the pipeline."
        )
    return head.at


def state_at(
    trail: Trail, asked: Asked, place: Place, *, head: int, tick: Tick
) -> tuple[list[Table], list[Doubt]]:
    """The tables that are asked for as they were at a place, and what is doubtful about them.

    Raises AuditError for doubts that were not accepted, and for a table that was not there.
    """
    earlier = names_before(asked.wants, renames(trail, until=place.at))
    fold = Fold(lambda name: asked.wants(name) or name in earlier, bytes_max=asked.memory)
    only = asked.only(earlier)
    for record in records(trail, after=0, until=place.at, tables=only):
        fold.take(record)
        tick(int(record["at"]))
    tables = [table for name, table in sorted(fold.tables.items()) if asked.wants(name)]
    there = {table.name for table in tables}
    for name in asked.tables:
        if name not in there:
            raise AuditError(
                f"{'.'.join(name)} was not there at record {place.at}, as far as the trail says. "
                f"Nothing was changed. `penstock audit query --table` shows when it was."
            )
    doubts: list[Doubt] = []
    gone = absent(trail, after=0, until=place.at, head=head)
    for table in tables:
        doubts += fold.doubts(table)
        doubts += [one for one in gone if _concerns(one, table)]
        doubts += _still_copied(trail, table, place, head)
    refuse_doubts(doubts, asked.accepted)
    return tables, doubts


def _concerns(doubt: Doubt, table: Table) -> bool:
    """Whether records that are not there may have been of the rows that a table holds."""
    return doubt.at > table.at and doubt.table in {table.name, (table.name[0], ""), ("", "")}


def _still_copied(trail: Trail, table: Table, place: Place, head: int) -> list[Doubt]:
    """A copy that had not ended at the place, told by the rows of it that come behind."""
    if table.began != "copied":
        return []
    later = copied_later(trail, table.name, after=place.at, until=head)
    if later is None:
        return []
    said = f"it was being copied, until record {later} or later: rows may be missing"
    return [Doubt(kind="copying", table=table.name, at=table.copied_at, ts=place.ts, said=said)]


def refuse_doubts(doubts: Iterable[Doubt], accepted: frozenset[str]) -> None:
    """Raise AuditError that names the doubts that were not accepted."""
    open_ = [doubt for doubt in doubts if doubt.kind not in accepted]
    if not open_:
        return
    kinds = sorted({doubt.kind for doubt in open_})
    shown = "; ".join(map(str, open_[:_SHOWN]))
    more = f"; and {len(open_) - _SHOWN} more" if len(open_) > _SHOWN else ""
    remedies = "; ".join(f"--accept {kind}: {DOUBTS[kind]}" for kind in kinds)
    back = (
        " `--mode undo` goes back from the rows that are there now, and needs no beginning."
        if "beginning" in kinds
        else ""
    )
    raise AuditError(
        f"what was there is not known for certain: {shown}{more}. Nothing was changed. To go on "
        f"knowingly: {remedies}.{back}"
    )


def undone_to(trail: Trail, asked: Asked, place: Place, *, head: int, tick: Tick) -> Undoing:
    """What has changed behind a place. Raises AuditError for doubts that were not accepted."""
    undoing = Undoing()
    for record in records(trail, after=place.at, until=head, tables=asked.only()):
        if not record["meta"]["tbl"] or asked.wants((record["meta"]["db"], record["meta"]["tbl"])):
            undoing.take(record)
        tick(int(record["at"]))
    gone = absent(trail, after=place.at, until=head, head=head)
    doubts = [one for one in gone if not one.table[1] or asked.wants(one.table)]
    doubts += [*undoing.everywhere, *(d for table in undoing.tables.values() for d in table.doubts)]
    refuse_doubts(doubts, asked.accepted)
    return undoing


def rows_known(table: Table) -> int:
    """How many rows of a table are known, equal ones counted."""
    return sum(row.times for _, row in whole_rows(table))
