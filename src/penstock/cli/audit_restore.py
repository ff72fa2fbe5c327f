"""`penstock audit restore`: tables as they were, from an audit trail."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import to_builtins
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.audit.fold import Name
from penstock.audit.points import Place, place_of
from penstock.audit.trail import Trail
from penstock.cli import output, restoring
from penstock.cli.config import Settings, load
from penstock.cli.restoring import DOUBTS, Asked, Tick
from penstock.cli.trails import trail_config
from penstock.config import parse_size
from penstock.errors import AuditError, ConfigError

if TYPE_CHECKING:
    from penstock.sources.mysql.restoring.server import Target

_SHOWN: Final = 10
_PLACE: Final = "a time (2026-01-31T12:00:00Z), a transaction, at:N, beginning, or head"


class Mode(StrEnum):
    """What is written."""

    STATE = "state"
    REPLAY = "replay"
    UNDO = "undo"


def register(app: typer.Typer) -> None:
    """Add the command to the commands of `penstock audit`."""
    app.command("restore")(command)


def command(
    name: Annotated[str, typer.Argument(help="The pipeline that keeps the trail.")],
    until: Annotated[
        str, typer.Option("--until", "--end-date", help=f"The place to restore: {_PLACE}.")
    ],
    since: Annotated[
        str, typer.Option("--from", "--start-date", help=f"Of --mode replay: from where. {_PLACE}.")
    ] = "beginning",
    mode: Annotated[
        Mode,
        typer.Option(
            help="state: the rows as they were. replay: the changes again, in order. undo: take "
            "back, in the tables that are there, what changed behind the place."
        ),
    ] = Mode.STATE,
    databases: Annotated[
        list[str] | None, typer.Option("--db", help="Only tables of this database.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table, as db.table.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(help="Restore into this database, and leave the tables' own.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The server: mysql://user@host:port?tls=verify&ca=FILE. Its password is read from "
            "PENSTOCK_TARGET_PASSWORD."
        ),
    ] = None,
    to_file: Annotated[
        Path | None, typer.Option("--output", help="Write the statements to this file.")
    ] = None,
    delta: Annotated[
        str | None, typer.Option(help="Write the rows as Delta tables below this folder or URL.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Change the target.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change and write nothing, and say what would be.")
    ] = False,
    continue_on_error: Annotated[
        bool,
        typer.Option(
            help="Of --mode replay --execute: report a statement that fails, and go on with the "
            "next one; the exit code is 1."
        ),
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(help=f"Go on in spite of a doubt: {', '.join(DOUBTS)}."),
    ] = None,
    memory: Annotated[str, typer.Option(help="What the rows may take.")] = "4GiB",
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Restore tables from an audit trail, as they were behind a transaction.

    Without --execute, --output or --delta nothing is written: what would be is told, and with
    --target how it differs from the rows that are there.
    """
    asked = _asked(databases, tables, into, accept, memory)
    where = None if target is None else _target(target)
    if dry_run:
        execute, to_file, delta = False, None, None
    _refuse_combinations(mode, target, into, to_file, delta, execute=execute)
    settings = load(config)
    source, kept = trail_config(settings, name)
    _refuse_hidden(settings, source, asked)
    with closing(Trail(source, kept)) as trail:
        job = _Job(trail, asked, target=where, as_json=as_json)
        with job.translating():
            until_place = job.place(until)
            if mode is Mode.REPLAY:
                job.replay(
                    job.place(since),
                    until_place,
                    to_file,
                    execute=execute,
                    goes_on=continue_on_error,
                )
            elif mode is Mode.UNDO:
                job.undo(until_place, to_file, execute=execute)
            else:
                job.state(until_place, to_file, delta, execute=execute)


def _asked(
    databases: list[str] | None,
    tables: list[str] | None,
    into: str | None,
    accept: list[str] | None,
    memory: str,
) -> Asked:
    names: list[Name] = []
    for table in tables or ():
        db, _, name = table.partition(".")
        if not db or not name:
            raise ConfigError(f"{table!r} is not db.table. Nothing was changed.")
        names.append((db, name))
    for kind in accept or ():
        if kind not in DOUBTS:
            raise ConfigError(
                f"--accept {kind} is none of {', '.join(DOUBTS)}. Nothing was changed."
            )
    dbs = tuple(databases or ())
    if into is not None and len({*dbs, *(db for db, _ in names)}) != 1:
        raise ConfigError(
            "--into is one database, and so takes the tables of one: name it with --db, or its "
            "tables with --table. Nothing was changed."
        )
    try:
        size = int(parse_size(memory))
    except ValueError as error:
        raise ConfigError(f"--memory: {error}. Nothing was changed.") from None
    return Asked(
        databases=dbs,
        tables=tuple(names),
        into=into,
        accepted=frozenset(accept or ()),
        memory=size,
    )


def _refuse_combinations(
    mode: Mode,
    target: str | None,
    into: str | None,
    to_file: Path | None,
    delta: str | None,
    *,
    execute: bool,
) -> None:
    wrong = ""
    if execute and to_file is not None:
        wrong = "--execute and --output are two ways of doing one thing; choose one"
    elif execute and target is None:
        wrong = "--execute needs the server that is to be changed (--target)"
    elif delta is not None and (mode is not Mode.STATE or execute or to_file is not None):
        wrong = "--delta is the rows as they were (--mode state), and goes with no other output"
    elif mode is Mode.UNDO and target is None:
        wrong = "--mode undo starts from the rows that are there, and needs their server (--target)"
    elif mode is Mode.UNDO and into is not None:
        wrong = "--mode undo is of the tables that are there, and goes without --into"
    elif mode is Mode.REPLAY and to_file is not None and target is None:
        wrong = (
            "--mode replay asks which columns the server sets or computes by itself, and needs it "
            "(--target) for a file too"
        )
    if wrong:
        raise ConfigError(f"{wrong}. Nothing was changed.")


def _target(dsn: str) -> "Target":
    try:
        from penstock.sources.mysql.restoring.server import target_of
    except ImportError as error:
        from penstock.cli.config import missing_extra

        raise missing_extra("--target", "mysql", error) from error
    return target_of(dsn)


def _refuse_hidden(settings: Settings, source: str, asked: Asked) -> None:
    """Raise AuditError where the trail has other values than the tables have, by intention."""
    columns = getattr(settings.sources[source].config, "columns", None)
    scope = getattr(columns, "scope", None)
    if scope is not None and scope.patterns and "hidden" not in asked.accepted:
        raise AuditError(
            f"[sources.{source}.columns] hides columns from the trail, so what it has is not what "
            f"was in the tables. Nothing was changed. To go on knowingly: --accept hidden: "
            f"{DOUBTS['hidden']}."
        )


class _Job:
    """One run of the command."""

    def __init__(
        self, trail: Trail, asked: Asked, *, target: "Target | None", as_json: bool
    ) -> None:
        self._trail = trail
        self._asked = asked
        self._target = target
        self._as_json = as_json
        self._head = 0

    @contextmanager
    def translating(self) -> Generator[None]:
        """MongoDB's errors as ours."""
        from pymongo.errors import PyMongoError

        from penstock.audit.outages import passes, refused
        from penstock.errors import TrailUnavailableError

        try:
            self._head = restoring.head_of(self._trail)
            yield
        except PyMongoError as error:
            if passes(error):
                raise TrailUnavailableError(
                    f"trail of {self._trail.source}: its MongoDB does not answer "
                    f"({type(error).__name__}). What was not committed was rolled back; run the "
                    f"command again."
                ) from None
            raise refused(self._trail.source, error) from None

    def place(self, text: str) -> Place:
        """The place that `text` names, told to whoever runs the command."""
        if text == "beginning":
            return Place(at=0)
        place = place_of(self._trail, text, head=self._head)
        if place.late:
            output.stderr().print(
                f"{place.late} records behind {text} say an earlier time, by a clock that went "
                f"back, and are left out: the trail's order is the server's. To have them, name a "
                f"transaction.",
                style="yellow",
                markup=False,
            )
        return place

    # --- the modes -------------------------------------------------------------------------------

    def state(
        self, place: Place, to_file: Path | None, delta: str | None, *, execute: bool
    ) -> None:
        with self._progress("reading the trail", place.at) as tick:
            tables, doubts = restoring.state_at(
                self._trail, self._asked, place, head=self._head, tick=tick
            )
        for doubt in doubts:
            output.stderr().print(f"accepted: {doubt}", style="yellow", markup=False)
        if delta is not None:
            from penstock.spark.restored import write_state

            made = write_state(delta, self._trail.source, tables, at=place.at)
            written = [restoring.Written(table=name, rows=rows, made=True) for name, rows in made]
            self._say(place, written, "written to Delta")
            return
        from penstock.cli import restore_sql
        from penstock.cli.restorer import Restorer

        with self._server() as server:
            if server is None:
                statements = restore_sql.alone(tables, self._asked)
                rows = [
                    restoring.Written(
                        table=".".join(self._asked.to(one.name)), rows=restoring.rows_known(one)
                    )
                    for one in tables
                ]
                if to_file is not None:
                    self._to_file(to_file, place, statements)
                self._say(place, rows, "written to the file" if to_file else "would be written")
                return
            restorer = Restorer(server, self._trail, self._asked, place)
            if execute:
                self._say(place, restorer.restore(tables), "restored")
                return
            self._say(place, restorer.look(tables), "would be restored")
            if to_file is not None:
                self._to_file(to_file, place, restorer.statements(tables))

    def undo(self, place: Place, to_file: Path | None, *, execute: bool) -> None:
        with self._progress("reading the trail", self._head - place.at) as tick:
            undoing = restoring.undone_to(
                self._trail,
                self._asked,
                place,
                head=self._head,
                tick=lambda at: tick(at - place.at),
            )
        from penstock.cli.restorer import Restorer, undone

        with self._server() as server:
            assert server is not None
            restorer = Restorer(server, self._trail, self._asked, place)
            found = restorer.undo(undoing) if execute else restorer.look_at_undoing(undoing)
            self._say(place, undone(found), "undone" if execute else "would be undone")
            if to_file is not None:
                self._to_file(to_file, place, restorer.undoing_statements(found))

    def replay(
        self, after: Place, until: Place, to_file: Path | None, *, execute: bool, goes_on: bool
    ) -> None:
        from penstock.cli import restore_sql

        if after.at > until.at:
            raise ConfigError("--from is behind --until. Nothing was changed.")
        with (
            self._server() as server,
            self._progress("replaying", until.at - after.at) as tick,
        ):
            statements = restore_sql.replayed(
                self._trail,
                self._asked,
                after=after,
                until=until,
                head=self._head,
                facts_of=(lambda _: None) if server is None else server.facts,
                tick=lambda at: tick(at - after.at),
            )
            if execute:
                assert server is not None
                done, failures = restore_sql.run_all(server, statements, goes_on=goes_on)
            elif to_file is not None:
                assert server is not None
                written = self._to_file(to_file, until, restore_sql.certain(statements))
                done, failures = written, []
            else:
                done, failures = sum(1 for _ in statements), []
        self._say_replayed(until, done, [to_builtins(one) for one in failures], execute=execute)
        if failures:
            raise typer.Exit(1)

    # --- saying ----------------------------------------------------------------------------------

    def _to_file(self, path: Path, place: Place, statements: Iterator[Any]) -> int:
        from penstock.cli import restore_sql
        from penstock.sources.mysql.restoring.sql import script

        says = f"Penstock: the trail of {self._trail.source} at record {place.at}"
        count = 0
        with restore_sql.sql_file(path, says=says) as file:
            for statement in statements:
                file.write(script(statement))
                count += 1
        return count

    def _say(self, place: Place, rows: list[restoring.Written], what: str) -> None:
        if self._as_json:
            said = {"at": place.at, "transaction": place.transaction, "what": what}
            output.emit({**said, "tables": [to_builtins(one) for one in rows]})
            return
        console = output.stdout()
        when = f", {output.instant(place.ts)} UTC" if place.ts else ""
        console.print(
            f"{len(rows)} tables as of record {place.at} ({place.transaction or '-'}{when}) {what}",
            markup=False,
        )
        for one in rows:
            made = ", made" if one.made else ""
            shown = [*one.sample[:_SHOWN], *(["..."] if len(one.sample) > _SHOWN else [])]
            console.print(
                f"  {one.table}: {one.rows:,} rows; {one.missing:,} missing, {one.changed:,} "
                f"changed, {one.extra:,} too many, {one.same:,} the same{made}",
                markup=False,
            )
            for line in shown:
                console.print(f"    {line}", markup=False, overflow="ellipsis", no_wrap=True)

    def _say_replayed(self, place: Place, done: int, failures: list[Any], *, execute: bool) -> None:
        if self._as_json:
            output.emit({"at": place.at, "statements": done, "failures": failures, "ran": execute})
            return
        for failure in failures:
            output.stderr().print(
                f"failed: {failure['about']}: {failure['what']}", style="red", markup=False
            )
        verb = "run" if execute else "written, or would be run"
        output.stdout().print(f"{done:,} statements {verb}, {len(failures):,} failed", markup=False)

    @contextmanager
    def _server(self) -> Generator[Any]:
        if self._target is None:
            yield None
            return
        from penstock.sources.mysql.restoring.server import PASSWORD, Server

        with Server(self._target, os.environ.get(PASSWORD, "")) as server:
            yield server

    @contextmanager
    def _progress(self, what: str, total: int) -> Generator[Tick]:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=output.stderr(),
            disable=self._as_json or not output.stderr().is_terminal,
            transient=True,
        ) as progress:
            task = progress.add_task(what, total=total)
            seen = 0

            def tick(at: int) -> None:
                nonlocal seen
                seen += 1
                if seen % 500 == 0:
                    progress.update(task, completed=at)

            yield tick
