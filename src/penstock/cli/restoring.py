"""What `penstock audit restore` does: read a trail up to a place, and put it where it is asked for.

Nothing is changed before everything is known that can be: doubts are told first, and refused unless
they were accepted by name; rows that are written are read back before they are committed.
"""

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from msgspec import Struct, structs

from penstock.audit.fold import (
    Doubt,
    Fold,
    Name,
    Table,
    decoded,
    names_before,
    whole_rows,
)
from penstock.audit.points import Place, copied_later, records, renames
from penstock.audit.trail import Document, Trail
from penstock.audit.undoing import Undoing
from penstock.errors import AuditError, ConfigError

if TYPE_CHECKING:
    from penstock.sources.mysql.restoring.columns import ServerTable
    from penstock.sources.mysql.restoring.differences import Difference
    from penstock.sources.mysql.restoring.server import Failure, Server
    from penstock.sources.mysql.restoring.sql import Statement

DOUBTS: Final = {
    "beginning": "rows from before the trail began are left out",
    "copying": "rows that a copy had not reached are left out",
    "copied_keyless": "rows of a table without a key may be there twice",
    "gap": "changes that were lost are left out",
    "erased": "changes that were erased are left out",
    "inexact": "updates without an exact meaning leave their rows out",
    "contradiction": "records that contradict one another are believed in their order",
    "ddl": "statements that changed a table are not undone",
    "partial": "rows that the source did not send before their change stay as they are",
    "copied": "what a copy said is taken for what was there",
    "strangers": "rows that changed past the trail are changed all the same",
}
"""What may be accepted, and what follows."""
_SHOWN: Final = 10
Tick = Callable[[int], None]
T = TypeVar("T")


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
    keeps = names_before(asked.wants, renames(trail, until=place.at))
    fold = Fold(keeps, bytes_max=asked.memory)
    for record in records(trail, after=0, until=place.at):
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
    for table in tables:
        doubts += fold.doubts(table)
        doubts += _still_copied(trail, table, place, head)
    refuse_doubts(doubts, asked.accepted)
    return tables, doubts


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
    for record in records(trail, after=place.at, until=head):
        if not record["meta"]["tbl"] or asked.wants((record["meta"]["db"], record["meta"]["tbl"])):
            undoing.take(record)
        tick(int(record["at"]))
    doubts = [*undoing.everywhere, *(d for table in undoing.tables.values() for d in table.doubts)]
    refuse_doubts(doubts, asked.accepted)
    return undoing


# --- into a server --------------------------------------------------------------------------------


class Restorer:
    """Makes the tables of a server what a trail says that they were."""

    def __init__(self, server: "Server", trail: Trail, asked: Asked, place: Place) -> None:
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
                self._creation(table)  # or it is refused
                rows = _rows(table)
                found.append(Written(table=".".join(name), rows=rows, missing=rows, made=True))
            else:
                found.append(_written(table, self._difference(table, facts)))
        self.refuse_triggers([self._asked.to(table.name) for table in tables])
        return found

    def restore(self, tables: list[Table]) -> list[Written]:
        """Do it, in one transaction but for tables that are made, and prove it before it is
        committed: the rows are read back. Raises AuditError; then no row was changed."""
        names = [self._asked.to(table.name) for table in tables]
        self.refuse_triggers(names)
        made = self._make(tables)
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
        self._server.transaction(_fitting(statements), prove)
        return [
            _written(table, difference, made=name in made)
            for table, name, difference in zip(tables, names, differences, strict=True)
        ]

    def statements(self, tables: list[Table]) -> Iterator["Statement"]:
        """What `restore` would do, as statements."""
        from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT

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
            # Made like the one that is there, which says what its columns are.
            yield from filling(table, self._asked.to(table.name), self._server.facts(table.name))
        yield COMMIT

    def look_at_undoing(self, undoing: Undoing) -> list["Difference"]:
        """How the rows that have changed differ from what they were.

        Raises AuditError for rows that changed past the trail, unless that was accepted.
        """
        from penstock.sources.mysql.restoring.differences import against_undone, undone_counts

        found: list[Difference] = []
        for name, undone in sorted(undoing.tables.items()):
            at = self._asked.to(name)
            if undone.keyless:
                found.append(undone_counts(at, undone))
            elif undone.rows:
                facts = self._facts(at)
                keys = [decoded(key) for key in undone.rows]
                current = self._server.rows_of(at, facts, keys)
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

    def undo(self, undoing: Undoing) -> list["Difference"]:
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
        self._server.transaction(_fitting(statements), prove)
        return found

    def undoing_statements(self, found: list["Difference"]) -> Iterator["Statement"]:
        """What `undo` would do, as statements."""
        from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT

        yield BEGIN
        for one in found:
            yield from _fitting(one.statements(self._facts(one.name)))
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

    def _difference(self, table: Table, facts: "ServerTable") -> "Difference":
        from penstock.sources.mysql.restoring.differences import against_state

        name = self._asked.to(table.name)
        return fitting(lambda: against_state(name, table, facts, self._server.rows(name, facts)))

    def _facts(self, name: Name) -> "ServerTable":
        facts = self._server.facts(name)
        if facts is None:
            raise AuditError(f"{'.'.join(name)} is not there. Nothing was changed.")
        return facts

    def _make(self, tables: list[Table]) -> set[Name]:
        """Make the tables that are not there."""
        made: set[Name] = set()
        for table in tables:
            name = self._asked.to(table.name)
            if self._server.facts(name) is None:
                self._server.run(self._creation(table))
                made.add(name)
        return made

    def _creation(self, table: Table) -> list["Statement"]:
        """Statements that make a table as it was. Raises AuditError where that is not known."""
        from penstock.sources.mysql.restoring.columns import quoted
        from penstock.sources.mysql.restoring.sql import Statement

        name = self._asked.to(table.name)
        about = ".".join(name)
        made = created(table, self._asked)
        if made is None and name != table.name and self._server.facts(table.name) is not None:
            later = self._trail.records.find_one(
                {
                    "op": "ddl",
                    "at": {"$gt": self._place.at},
                    "meta.db": table.name[0],
                    "meta.tbl": table.name[1],
                },
                {"at": 1},
            )
            if later is None:
                made = f"CREATE TABLE {quoted(*name)} LIKE {quoted(*table.name)}"
        if made is None:
            raise AuditError(
                f"{about} is not there, and how it was made is not known from the trail. Nothing "
                f"was changed. Make it as it was then, and restore again; or have every statement "
                f"done again in a new database: --mode replay --into NAME."
            )
        database = f"CREATE DATABASE IF NOT EXISTS {quoted(name[0])}"
        return [
            Statement(text=database, about=about, alters=True),
            Statement(text=made, about=about, alters=True),
        ]


def created(table: Table, asked: Asked) -> str | None:
    """The statement that makes a table, where the trail has all of it."""
    from penstock.sources.mysql.restoring.ddl import UnclearStatementError, recreated

    if not table.statement or table.shape:
        return None
    with suppress(UnclearStatementError):
        return recreated(table.statement, table.made_as, asked.to(table.name), asked.to)
    return None


def filling(table: Table, name: Name, facts: "ServerTable | None") -> Iterator["Statement"]:
    """Statements that insert all rows of a table."""
    from penstock.sources.mysql.restoring import sql

    rows = (row.values for _, row in whole_rows(table) for _ in range(row.times))
    yield from _fitting(sql.inserts(name, rows, facts, about=".".join(name)))


def alone(tables: list[Table], asked: Asked) -> Iterator["Statement"]:
    """Statements that make tables what they were whatever they hold, for a server that was not
    looked at."""
    from penstock.sources.mysql.restoring.columns import quoted
    from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT, Statement

    if asked.into is not None:
        for table in tables:
            name = asked.to(table.name)
            statement = created(table, asked)
            if statement is None:
                raise AuditError(
                    f"how {'.'.join(table.name)} was made is not known from the trail. Nothing was "
                    f"written. Name the server that has it (--target), or leave out --into and "
                    f"have the file fill the tables that are there."
                )
            about = ".".join(name)
            made = f"CREATE DATABASE IF NOT EXISTS {quoted(name[0])}"
            yield Statement(text=made, about=about, alters=True)
            yield Statement(text=statement, about=about, alters=True)
    yield BEGIN
    for table in tables:
        name = asked.to(table.name)
        if asked.into is None:
            yield Statement(text=f"DELETE FROM {quoted(*name)}", about=".".join(name))  # noqa: S608
        yield from filling(table, name, None)
    yield COMMIT


def replayed(
    trail: Trail,
    asked: Asked,
    *,
    after: Place,
    until: Place,
    facts_of: "Callable[[Name], ServerTable | None]",
    tick: Tick,
) -> Iterator["Statement"]:
    """The changes between two places as statements. Raises AuditError."""
    from penstock.sources.mysql.restoring.columns import quoted
    from penstock.sources.mysql.restoring.replay import Replay
    from penstock.sources.mysql.restoring.sql import Statement

    def ticked() -> Iterator[Document]:
        for record in records(trail, after=after.at, until=until.at):
            yield record
            tick(int(record["at"]))

    if asked.into is not None:
        database = f"CREATE DATABASE IF NOT EXISTS {quoted(asked.into)}"
        yield Statement(text=database, about=asked.into, alters=True)
    replay = Replay(
        wanted=names_before(asked.wants, renames(trail, until=until.at)),
        to=asked.to,
        facts_of=facts_of,
        on_doubt=lambda doubt: refuse_doubts([doubt], asked.accepted),
    )
    yield from replay.statements(ticked())


def certain(statements: Iterable["Statement"]) -> Iterator["Statement"]:
    """Statements for a file, as long as what they are for is there to be asked.

    Raises AuditError at one that alters a table: what its columns are then, nobody can be asked
    before it was run.
    """
    for statement in statements:
        if statement.alters and not statement.text.startswith("CREATE DATABASE"):
            raise AuditError(
                f"{statement.about} alters a table, and what its columns are behind that is asked "
                f"of the server when it was done. Nothing was written. Replay with --execute, or "
                f"up to that record."
            )
        yield statement


# --- into a file ----------------------------------------------------------------------------------


@contextmanager
def sql_file(path: Path, *, says: str) -> Generator[TextIO]:
    """A file of SQL that only its owner may read, and that is there when it is whole.

    Raises ConfigError where it cannot be written, or is there already.
    """
    from penstock.sources.mysql.restoring.sql import HEAD

    if path.exists():
        raise ConfigError(f"{path} is there already. Nothing was written. Name another --output.")
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            unfinished.chmod(stat.S_IRUSR | stat.S_IWUSR)
            file.write(f"-- {says}\n-- Run it in one session that ends at the first error.\n")
            for line in HEAD:
                file.write(f"{line};\n")
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        unfinished.unlink(missing_ok=True)


def run_all(
    server: "Server",
    statements: Iterable["Statement"],
    *,
    goes_on: bool,
) -> tuple[int, list["Failure"]]:
    """Run statements; how many were, and, where it `goes_on`, which did not do what they must."""
    done = 0
    failures: list[Failure] = []

    def count(_: "Statement") -> None:
        nonlocal done
        done += 1

    server.run(statements, on_done=count, on_failure=failures.append if goes_on else None)
    return done, failures


# --- small things ---------------------------------------------------------------------------------


def counted(tables: Iterable[Table]) -> list[tuple[Table, int]]:
    """How many rows of each table are known."""
    return [(table, _rows(table)) for table in tables]


def _rows(table: Table) -> int:
    return sum(row.times for _, row in whole_rows(table))


def _written(table: Table, difference: "Difference", *, made: bool = False) -> Written:
    return Written(
        table=".".join(difference.name),
        rows=_rows(table),
        same=difference.same,
        missing=difference.missing,
        changed=difference.changed,
        extra=difference.extra,
        made=made,
    )


def _not_proved(difference: "Difference") -> AuditError:
    return AuditError(
        f"{'.'.join(difference.name)} was read back, and is not what was to be written: "
        f"{difference.missing} rows are missing, {difference.changed} differ, "
        f"{difference.extra} are too many. Everything was rolled back. Is somebody writing to it, "
        f"or was a column changed since?"
    )


def fitting(act: Callable[[], T]) -> T:
    """What `act` returns; what does not fit a table is an AuditError."""
    from penstock.sources.mysql.restoring.sql import UnfitError

    try:
        return act()
    except UnfitError as error:
        raise _unfit(error) from error


def _fitting(statements: Iterable["Statement"]) -> Iterator["Statement"]:
    from penstock.sources.mysql.restoring.sql import UnfitError

    try:
        yield from statements
    except UnfitError as error:
        raise _unfit(error) from error


def _unfit(error: ValueError) -> AuditError:
    return AuditError(
        f"{error}. Nothing was changed. Have every statement done again in a new database: --mode "
        f"replay --into NAME."
    )
