"""Statements of a restoration: for a server that nobody looked at, a replay, and a file."""

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO, TypeVar

from penstock.audit.fold import Name, Table, names_before, whole_rows
from penstock.audit.points import Place, absent, records, renames
from penstock.audit.trail import Document, Trail
from penstock.cli.restore_asked import Asked
from penstock.cli.restoring import Tick, refuse_doubts
from penstock.errors import AuditError, ConfigError
from penstock.mysql_sql.tokens import significant, tokens
from penstock.sources.mysql.restoring import sql
from penstock.sources.mysql.restoring.columns import ServerTable, quoted
from penstock.sources.mysql.restoring.ddl import Restated, UnclearStatementError, recreated
from penstock.sources.mysql.restoring.replay import Replay
from penstock.sources.mysql.restoring.server import Failure, Server
from penstock.sources.mysql.restoring.sql import BEGIN, COMMIT, HEAD, Statement, UnfitError

T = TypeVar("T")
_GIVES_JSON: Final = frozenset({"JSON", "LIKE", "SELECT"})
"""What may give a table a column of JSON."""


def created(table: Table, asked: Asked) -> Restated | None:
    """The statement that makes a table, where the trail has all of it."""
    if not table.statement or table.shape:
        return None
    with suppress(UnclearStatementError):
        name = asked.to(table.name)
        return recreated(table.statement, table.sql_mode, table.made_as, name, asked.to)
    return None


def filling(table: Table, name: Name, facts: ServerTable | None) -> Iterator[Statement]:
    """Statements that insert all rows of a table, of whose columns nothing may be known (None).

    Raises AuditError where it may have columns that the server computes, or JSON of MySQL, and
    nobody can be asked.
    """
    if facts is None and _computes(table):
        raise AuditError(
            f"{'.'.join(table.name)} has columns that the server computes, and which ones is asked "
            f"of the server that has the table. Nothing was written. Name it (--target), or "
            f"restore with --execute."
        )
    if facts is None and table.of_mysql and _has_documents(table):
        raise AuditError(
            f"{'.'.join(table.name)} is a table of MySQL that has JSON columns, or may have them: "
            f"which ones is asked of the server that has the table, for a text is written "
            f"otherwise there. Nothing was written. Name it (--target), or restore with --execute."
        )
    rows = (row.values for _, row in whole_rows(table) for _ in range(row.times))
    yield from all_fitting(sql.inserts(name, rows, facts, about=".".join(name)))


def _has_documents(table: Table) -> bool:
    """Whether a table of MySQL may have JSON columns, as far as its statement says."""
    return not table.statement or bool(table.shape) or not _GIVES_JSON.isdisjoint(_words(table))


def _computes(table: Table) -> bool:
    """Whether a table may have columns that its server computes: AS (a + b), AS ROW START."""
    return any(one == "AS" and two in {"(", "ROW"} for one, two in pairwise(_words(table)))


def _words(table: Table) -> list[str]:
    return [one.word for one in significant(tokens(table.statement, table.sql_mode or ""))]


def alone(tables: list[Table], asked: Asked) -> Iterator[Statement]:
    """Statements that make tables what they were whatever they hold, for a server that was not
    looked at."""
    from penstock.sources.mysql.restoring.sql import Statement

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
            yield Statement(
                text=statement.text, about=about, sql_mode=statement.sql_mode, alters=True
            )
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
    head: int,
    facts_of: Callable[[Name], ServerTable | None],
    tick: Tick,
) -> Iterator[Statement]:
    """The changes between two places as statements. Raises AuditError."""
    gone = absent(trail, after=after.at, until=until.at, head=head)
    earlier = names_before(asked.wants, renames(trail, until=until.at))
    concerned = (
        one for one in gone if not one.table[1] or asked.wants(one.table) or one.table in earlier
    )
    refuse_doubts(concerned, asked.accepted)
    only = asked.only(earlier)

    def ticked() -> Iterator[Document]:
        for record in records(trail, after=after.at, until=until.at, tables=only):
            yield record
            tick(int(record["at"]))

    if asked.into is not None:
        database = f"CREATE DATABASE IF NOT EXISTS {quoted(asked.into)}"
        yield Statement(text=database, about=asked.into, alters=True)
    replay = Replay(
        wanted=lambda name: asked.wants(name) or name in earlier,
        to=asked.to,
        facts_of=facts_of,
        on_doubt=lambda doubt: refuse_doubts([doubt], asked.accepted),
    )
    yield from replay.statements(ticked())


def certain(statements: Iterable[Statement]) -> Iterator[Statement]:
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
    server: Server,
    statements: Iterable[Statement],
    *,
    goes_on: bool,
) -> tuple[int, list[Failure]]:
    """Run statements; how many were, and, where it `goes_on`, which did not do what they must."""
    done = 0
    failures: list[Failure] = []

    def count(_: Statement) -> None:
        nonlocal done
        done += 1

    server.run(statements, on_done=count, on_failure=failures.append if goes_on else None)
    return done, failures


def fitting(act: Callable[[], T]) -> T:
    """What `act` returns; what does not fit a table is an AuditError."""
    try:
        return act()
    except UnfitError as error:
        raise _unfit(error) from error


def all_fitting(statements: Iterable[Statement]) -> Iterator[Statement]:
    """As `fitting`, of each statement."""
    try:
        yield from statements
    except UnfitError as error:
        raise _unfit(error) from error


def _unfit(error: ValueError) -> AuditError:
    return AuditError(
        f"{error}. Nothing was changed. Have every statement done again in a new database: --mode "
        f"replay --into NAME."
    )
