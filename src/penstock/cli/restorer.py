"""A server's tables, made what a trail says that they were."""

from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial
from typing import Final

from msgspec import structs

from penstock.audit.fold import Name, Table, decoded
from penstock.audit.points import Place
from penstock.audit.trail import Trail
from penstock.audit.undoing import Undoing
from penstock.cli.restore_asked import DOUBTS, Asked, Written
from penstock.cli.restore_sql import all_fitting, created, filling, fitting
from penstock.cli.restoring import rows_known
from penstock.errors import AuditError
from penstock.sources.mysql.restoring.columns import ServerTable, quoted
from penstock.sources.mysql.restoring.ddl import Restated
from penstock.sources.mysql.restoring.differences import (
    Difference,
    against_state,
    against_undone,
    undone_counts,
)
from penstock.sources.mysql.restoring.making import Making
from penstock.sources.mysql.restoring.server import Server
from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT, Statement

_SHOWN: Final = 10


class Restorer:
    """Makes the tables of a server what a trail says that they were."""

    def __init__(self, server: Server, trail: Trail, asked: Asked, place: Place) -> None:
        self._server = server
        self._trail = trail
        self._asked = asked
        self._place = place

    def look(self, tables: list[Table]) -> list[Written]:
        """What would be done; nothing is changed."""
        found: list[Written] = []
        for table in tables:
            name = self._asked.to(table.name)
            facts = self._server.facts(name)
            if facts is None:
                self._creation(table)
                model = self._model(table)
                for _ in () if model is None else filling(table, name, model):
                    pass  # what has no room is refused now
                rows = rows_known(table)
                found.append(Written(table=".".join(name), rows=rows, missing=rows, made=True))
            else:
                found.append(_written(table, self._difference(table, facts)))
        self.refuse_triggers([self._asked.to(table.name) for table in tables])
        return found

    def restore(self, tables: list[Table]) -> list[Written]:
        """Do it, in one transaction but for tables that are made, and prove it before it is
        committed: the rows are read back.

        Raises AuditError; then no row was changed, and what was made is gone again, or is named.
        """
        names = [self._asked.to(table.name) for table in tables]
        self.refuse_triggers(names)
        making = Making(self._server)
        try:
            # All are known before the first one is made.
            for name, statements in self._creations(tables).items():
                making.make(name, statements)
            return self._fill(tables, names, making.tables)
        except BaseException as error:
            making.unmake(error)
            raise

    def _fill(
        self, tables: list[Table], names: list[Name], made: Collection[Name]
    ) -> list[Written]:
        facts = {name: self._facts(name) for name in names}
        differences = [
            self._difference(table, facts[name]) for table, name in zip(tables, names, strict=True)
        ]

        def prove() -> None:
            for table, name in zip(tables, names, strict=True):
                again = self._difference(table, facts[name])
                if not again.is_none:
                    raise _not_proved(again)

        statements = (
            statement for one in differences for statement in one.statements(facts[one.name])
        )
        self._server.transaction(all_fitting(statements), prove)
        return [
            _written(table, difference, made=name in made)
            for table, name, difference in zip(tables, names, differences, strict=True)
        ]

    def statements(self, tables: list[Table]) -> Iterator[Statement]:
        """What `restore` would do, as statements."""
        absent: list[Table] = []
        mended: list[tuple[Difference, ServerTable]] = []
        for table in tables:
            facts = self._server.facts(self._asked.to(table.name))
            if facts is None:
                absent.append(table)
            else:
                mended.append((self._difference(table, facts), facts))
        for table in absent:
            yield from self._creation(table)
        yield BEGIN
        for difference, facts in mended:
            yield from difference.statements(facts)
        for table in absent:
            yield from filling(table, self._asked.to(table.name), self._model(table))
        yield COMMIT

    def look_at_undoing(self, undoing: Undoing) -> list[Difference]:
        """How the rows that have changed differ from what they were.

        Raises AuditError for rows that changed past the trail, unless that was accepted.
        """
        found: list[Difference] = []
        for name, undone in sorted(undoing.tables.items()):
            at = self._asked.to(name)
            if undone.keyless:
                found.append(undone_counts(at, undone))
            elif undone.rows:
                facts = self._facts(at)
                keys = [decoded(key) for key in undone.rows]
                with closing(self._server.rows_of(at, facts, keys)) as current:
                    found.append(fitting(partial(against_undone, at, undone, facts, current)))
        strangers = [f"{one.strangers} of {'.'.join(one.name)}" for one in found if one.strangers]
        if strangers and "strangers" not in self._asked.accepted:
            raise AuditError(
                f"rows are not what the trail said last: {', '.join(strangers)}. They changed "
                f"behind the trail's head, or this is not the server that was captured. Nothing "
                f"was changed. To go on knowingly: --accept strangers: {DOUBTS['strangers']}."
            )
        self.refuse_triggers([one.name for one in found])
        return found

    def undo(self, undoing: Undoing) -> list[Difference]:
        """Take the changes back, in one transaction, and read back before it is committed."""
        found = self.look_at_undoing(undoing)
        facts = {one.name: self._facts(one.name) for one in found}
        proved = structs.replace(self._asked, accepted=frozenset({"strangers"}))

        def prove() -> None:
            again = Restorer(self._server, self._trail, proved, self._place)
            for one in again.look_at_undoing(undoing):
                if not one.is_none and not undoing.tables[self._from(undoing, one.name)].keyless:
                    raise _not_proved(one)

        statements = (statement for one in found for statement in one.statements(facts[one.name]))
        self._server.transaction(all_fitting(statements), prove)
        return found

    def undoing_statements(self, found: list[Difference]) -> Iterator[Statement]:
        """What `undo` would do, as statements."""
        yield BEGIN
        for one in found:
            yield from all_fitting(one.statements(self._facts(one.name)))
        yield COMMIT

    def _from(self, undoing: Undoing, name: Name) -> Name:
        return next(one for one in undoing.tables if self._asked.to(one) == name)

    def refuse_triggers(self, names: list[Name]) -> None:
        """Raise AuditError for triggers: they would add to what is written."""
        found = self._server.triggers(names)
        if found:
            raise AuditError(
                f"there are triggers, which would change more than what is restored: "
                f"{', '.join(found[:_SHOWN])}. Nothing was changed. Restore into another database "
                f"(--into), or drop them and make them again."
            )

    def _difference(self, table: Table, facts: ServerTable) -> Difference:
        name = self._asked.to(table.name)
        with closing(self._server.rows(name, facts)) as current:
            return fitting(lambda: against_state(name, table, facts, current))

    def _model(self, table: Table) -> ServerTable | None:
        """The table that is there, if it is what it was at the place."""
        db, tbl = table.name
        of_table = {"op": "ddl", "meta.db": db, "meta.tbl": {"$in": [tbl, ""]}}
        shape = self._trail.records.find_one(
            {**of_table, "at": {"$lte": self._place.at}, "schema": {"$exists": True}},
            {"schema": 1},
            sort=[("at", -1)],
        )
        # Another table takes its name only once a statement has taken it from this one; its columns
        # are told again by each session.
        other = {} if shape is None else {"schema": {"$ne": shape["schema"]}}
        altered = self._trail.records.find_one(
            {**of_table, **other, "at": {"$gt": self._place.at}}, {"at": 1}
        )
        return self._server.facts(table.name) if altered is None else None

    def _facts(self, name: Name) -> ServerTable:
        facts = self._server.facts(name)
        if facts is None:
            raise AuditError(f"{'.'.join(name)} is not there. Nothing was changed.")
        return facts

    def _creations(self, tables: list[Table]) -> dict[Name, list[Statement]]:
        """What makes each of the tables that are not there."""
        names = {self._asked.to(table.name): table for table in tables}
        return {
            name: self._creation(table)
            for name, table in names.items()
            if self._server.facts(name) is None
        }

    def _creation(self, table: Table) -> list[Statement]:
        """Statements that make a table as it was. Raises AuditError where that is not known."""
        name = self._asked.to(table.name)
        about = ".".join(name)
        made = created(table, self._asked)
        if made is None and name != table.name and self._model(table) is not None:
            made = Restated(f"CREATE TABLE {quoted(*name)} LIKE {quoted(*table.name)}")
        if made is None:
            raise AuditError(
                f"{about} is not there, and how it was made is not known from the trail. Nothing "
                f"was changed. Make it as it was then, and restore again; or have every statement "
                f"done again in a new database: --mode replay --into NAME."
            )
        database = f"CREATE DATABASE IF NOT EXISTS {quoted(name[0])}"
        return [
            Statement(text=database, about=about, alters=True),
            Statement(text=made.text, about=about, sql_mode=made.sql_mode, alters=True),
        ]


def undone(found: list[Difference]) -> list[Written]:
    """What undoing does to each table, of the rows that changed."""
    return [_told(one, one.same + one.missing + one.changed) for one in found]


def _written(table: Table, difference: Difference, *, made: bool = False) -> Written:
    return _told(difference, rows_known(table), made=made)


def _told(one: Difference, rows: int, *, made: bool = False) -> Written:
    return Written(
        table=".".join(one.name),
        rows=rows,
        same=one.same,
        missing=one.missing,
        changed=one.changed,
        extra=one.extra,
        made=made,
        sample=tuple(one.sample),
    )


def _not_proved(difference: Difference) -> AuditError:
    return AuditError(
        f"{'.'.join(difference.name)} was read back, and is not what was to be written: "
        f"{difference.missing} rows are missing, {difference.changed} differ, "
        f"{difference.extra} are too many. Everything was rolled back. Is somebody writing to it, "
        f"or was a column changed since?"
    )
