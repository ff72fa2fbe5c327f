"""The names that a table had: each with the places of the trail at which it was called so.

A table is whatever was called by its name at some place, with its rows of before and behind it
under other names. What another table was called by the same other name, at other places, is not
of it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from bson.int64 import Int64
from msgspec import Struct

from penstock import checks
from penstock.audit.fold import EXACT, Name, name_of, said_of
from penstock.audit.reading import Reader
from penstock.audit.trail import Document, Trail
from penstock.errors import AuditError

_TELLING: Final = ("create", "drop", "dropDatabase", "rename")
_END: Final = (1 << 63) - 1


class Table(Struct, frozen=True):
    """A table of the source."""

    db: str
    tbl: str

    def __str__(self) -> str:
        return f"{self.db}.{self.tbl}"


def table_of(text: str) -> Table:
    """What "db.tbl" names. Raises AuditError for anything else."""
    db, dot, tbl = text.partition(".")
    if not (db and dot and tbl):
        raise AuditError(f"{text!r} is no table: write it as db.tbl. Nothing was changed.")
    return Table(db, tbl)


class Called(Struct, frozen=True):
    """Another name of a table, from one place to another."""

    name: Name
    first: int
    last: int


class Names(Struct, frozen=True):
    """Where a trail has the records of a table."""

    table: Table
    """Under this name they are all of it,"""
    others: tuple[Called, ...] = ()
    """and under these at their places."""

    def wanted(self) -> Document:
        """What MongoDB is asked for."""
        own, *others = self.parts().values()
        return {"$or": [own, *others]} if others else own

    def parts(self) -> dict[Name, Document]:
        """What MongoDB is asked for under each name, that of `table` first."""
        own = self.table.db, self.table.tbl
        parts: dict[Name, Document] = {own: {"meta.db": own[0], "meta.tbl": own[1]}}
        for name in dict.fromkeys(one.name for one in self.others):
            spans = [
                {"at": {"$gte": Int64(one.first), "$lte": Int64(one.last)}}
                for one in self.others
                if one.name == name
            ]
            parts[name] = {"meta.db": name[0], "meta.tbl": name[1], "$or": spans}
        return parts

    def hold(self, db: object, tbl: object, at: int) -> bool:
        """Whether a record at a place is of the table."""
        return (db, tbl) == (self.table.db, self.table.tbl) or any(
            (db, tbl) == one.name and one.first <= at <= one.last for one in self.others
        )

    def others_shown(self) -> list[str]:
        """The other names, for people."""
        return sorted({".".join(one.name) for one in self.others})


def names_of(reader: Reader, table: Table, *, last: int) -> Names:
    """The names of a table, as far as statements tell them up to a place."""
    records = reader.trail.records.with_options(codec_options=EXACT)
    told: Document = {"op": "ddl", "at": {"$lte": Int64(last)}}
    renamed = told | {"said.operation": "rename"}
    if reader.call(lambda: records.find_one(renamed, {"_id": 1})) is None:
        return Names(table)
    shape = {"at": 1, "meta": 1, "said.operation": 1, "said.to": 1, "said.truncated": 1}
    telling = told | {"said.operation": {"$in": list(_TELLING)}}
    statements: list[Document] = reader.call(
        lambda: list(records.find(telling, shape).sort("at", 1))
    )
    return Names(table, tuple(other_names((table.db, table.tbl), statements)))


def other_names(name: Name, statements: Iterable[Mapping[str, Any]]) -> Iterator[Called]:
    """What else the tables were called that were called by a name, at any place.

    `statements` are the trail's, by their places.
    """
    lives = _Lives()
    for statement in statements:
        lives.take(statement)
    for life in lives.all:
        if any(one.name == name for one in life):
            yield from (one for one in life if one.name != name)


def unmatched(trail: Trail, asked: Iterable[tuple[str | None, str | None]]) -> list[str]:
    """A sentence for each database and table (either may be None: any) of which a trail has no
    record, with the nearest names that it has; what archives have is not looked at."""
    missing = [one for one in asked if one != (None, None) and not _is_told(trail, *one)]
    if not missing:
        return []
    names = list(_all(trail))
    found: list[str] = []
    for db, tbl in missing:
        if tbl is None:
            setting, wanted, there = "database", str(db), {one for one, _ in names}
        elif db is None:
            setting, wanted, there = "table", tbl, {one for _, one in names}
        else:
            setting, wanted, there = "table", f"{db}.{tbl}", {".".join(one) for one in names}
        found += checks.unmatched(
            [(setting, wanted)], there, there.__contains__, what="of the trail"
        )
    return found


def _is_told(trail: Trail, db: str | None, tbl: str | None) -> bool:
    own: Document = {"meta.db": db} if tbl is None else {"meta.db": db, "meta.tbl": tbl}
    if db is None:
        # No index begins with a table's name: without its database all records would be read.
        if any(name == tbl for _, name in _all(trail)):
            return True
    elif trail.records.find_one(own, {"_id": 1}) is not None:
        return True
    to = {"db": db, "coll": tbl}
    renamed: Document = {"op": "ddl", "said.operation": "rename"}
    renamed |= {f"said.to.{member}": name for member, name in to.items() if name is not None}
    return trail.records.find_one(renamed, {"_id": 1}) is not None


def _all(trail: Trail) -> Iterator[Name]:
    """The names of the tables of which a trail has records: a look into its index for each."""
    names: Document = {"meta.db": {"$type": "string"}, "meta.tbl": {"$type": "string"}}
    wanted = names
    while True:
        found = trail.records.find_one(
            wanted, {"meta.db": 1, "meta.tbl": 1}, sort=[("meta.db", 1), ("meta.tbl", 1)]
        )
        if found is None:
            return
        db, tbl = name_of(found)
        if tbl:
            yield db, tbl
        later = [{"meta.db": db, "meta.tbl": {"$gt": tbl}}, {"meta.db": {"$gt": db}}]
        wanted = names | {"$or": later}


class _Lives:
    """What each table was called, one name after the other."""

    def __init__(self) -> None:
        self.all: list[list[Called]] = []
        """Of each table that was ever renamed."""
        self._now: dict[Name, list[Called]] = {}
        """Of those, the ones that are there, by what they are called now."""
        self._since: dict[Name, int] = {}
        """From where on a name, or all of a database's, can be another table's."""

    def take(self, statement: Mapping[str, Any]) -> None:
        name, at, said = name_of(statement), int(statement["at"]), said_of(statement)
        if said["operation"] == "rename":
            if "to" in said:
                self._rename(name, (str(said["to"]["db"]), str(said["to"]["coll"])), at)
        elif said["operation"] == "dropDatabase":
            for one in [one for one in self._now if one[0] == name[0]]:
                self._end(one, at)
            self._since[name[0], ""] = at
        elif "truncated" not in said:
            self._end(name, at)

    def _rename(self, old: Name, new: Name, at: int) -> None:
        life = self._now.get(old)
        if life is None:
            since = max(self._since.get(old, 1), self._since.get((old[0], ""), 1))
            life = [Called(old, since, _END)]
            self.all.append(life)
        self._end(old, at)
        self._end(new, at)
        life[-1] = Called(old, life[-1].first, at)
        life.append(Called(new, at, _END))
        self._now[new] = life

    def _end(self, name: Name, at: int) -> None:
        """No table is called so any more, until another one is."""
        life = self._now.pop(name, None)
        if life is not None:
            life[-1] = Called(name, life[-1].first, at)
        self._since[name] = at
