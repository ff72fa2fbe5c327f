"""What `penstock audit restore` does: read a trail up to a place, and put it where it is asked for.

Nothing is changed before everything is known that can be: doubts are told first, and refused unless
they were accepted by name; rows that are written are read back before they are committed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from penstock.audit.fold import (
    Doubt,
    Fold,
    Name,
    Table,
    name_of,
    names_before,
    said_of,
    whole_rows,
)
from penstock.audit.points import Place, absent, copied_later, records, renames
from penstock.audit.trail import Trail
from penstock.audit.undoing import Undoing
from penstock.cli.restore_asked import DOUBTS, Asked
from penstock.errors import AuditError

_SHOWN: Final = 10
Tick = Callable[[int], None]


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
    told = list(renames(trail, until=place.at))
    earlier = names_before(asked.wants, told)
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
    for database in asked.databases:
        if not any(one == database for one, _ in there):
            raise AuditError(
                f"no table of {database} was there at record {place.at}, as far as the trail says. "
                f"Nothing was changed. `penstock audit query --db` shows when one was."
            )
    doubts: list[Doubt] = []
    gone = absent(trail, after=0, until=place.at, head=head)
    for table in tables:
        doubts += fold.doubts(table)
        names = names_before(table.name.__eq__, told) | {table.name}
        doubts += [one for one in gone if _concerns(one, table, names)]
        doubts += _still_copied(trail, table, place, head)
    refuse_doubts(doubts, asked.accepted)
    return tables, doubts


def _concerns(doubt: Doubt, table: Table, names: Collection[Name]) -> bool:
    """Whether records that are not there may have been of the rows that a table holds, under one of
    the names that it had."""
    concerned = {*names, *((db, "") for db, _ in names), ("", "")}
    return doubt.at > table.at and doubt.table in concerned


def _still_copied(trail: Trail, table: Table, place: Place, head: int) -> list[Doubt]:
    """A copy that had not ended at the place, told by the rows of it that come behind."""
    if table.began != "copied" or table.copied:
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
        if _is_of(record, asked):
            undoing.take(record)
        tick(int(record["at"]))
    gone = absent(trail, after=place.at, until=head, head=head)
    doubts = [one for one in gone if not one.table[1] or asked.wants(one.table)]
    doubts += [*undoing.everywhere, *(d for table in undoing.tables.values() for d in table.doubts)]
    refuse_doubts(doubts, asked.accepted)
    return undoing


def _is_of(record: Mapping[str, Any], asked: Asked) -> bool:
    """Whether a record is of a table that is asked for, of its database, or of everything; also a
    statement that gave another table its name."""
    db, tbl = name_of(record)
    if not tbl:
        return not db or asked.wants((db, "*"))
    to = said_of(record).get("to")
    return asked.wants((db, tbl)) or (to is not None and asked.wants((to["db"], to["coll"])))


def rows_known(table: Table) -> int:
    """How many rows of a table are known, equal ones counted."""
    return sum(row.times for _, row in whole_rows(table))
