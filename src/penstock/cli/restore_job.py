"""One run of `penstock audit restore`: its modes, and what it tells of them."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import to_builtins
from pymongo.errors import PyMongoError

from penstock.audit.config import TrailConfig
from penstock.audit.outages import passes, refused, unavailable
from penstock.audit.points import Place, place_of
from penstock.audit.trail import Trail
from penstock.cli import output, restoring
from penstock.cli.config import Settings, missing_extra
from penstock.cli.restore_asked import DOUBTS, Asked, Written
from penstock.cli.restoring import Tick
from penstock.cli.steps import Doing, steps
from penstock.cli.trails import say_unmatched
from penstock.errors import AuditError, ConfigError

if TYPE_CHECKING:
    from penstock.sources.mysql.restoring.server import Target

_SHOWN: Final = 10


def server_of(dsn: str) -> "Target":
    """The server that is restored to. Raises ConfigError as `target_of` does."""
    try:
        from penstock.sources.mysql.restoring.server import target_of
    except ImportError as error:
        raise missing_extra("a restore to SQL", "mysql", error) from error
    return target_of(dsn)


def refuse_hidden(settings: Settings, source: str, asked: Asked) -> None:
    """Raise AuditError where the trail has other values than the tables have, by intention."""
    columns = getattr(settings.sources[source].config, "columns", None)
    scope = getattr(columns, "scope", None)
    if scope is not None and scope.patterns and "hidden" not in asked.accepted:
        raise AuditError(
            f"[sources.{source}.columns] hides columns from the trail, so what it has is not what "
            f"was in the tables. Nothing was changed. To go on knowingly: --accept hidden: "
            f"{DOUBTS['hidden']}."
        )


@contextmanager
def _translating(trail: Trail) -> Generator[None]:
    """MongoDB's errors as ours."""
    try:
        yield
    except PyMongoError as error:
        if passes(error):
            done = "What was not committed was rolled back; run the command again."
            raise unavailable(trail, error, done=done) from None
        raise refused(trail, error) from None


class Job:
    """One run of the command."""

    def __init__(
        self, trail: Trail, asked: Asked, *, target: "Target | None", as_json: bool
    ) -> None:
        self._trail = trail
        self._asked = asked
        self._target = target
        self._as_json = as_json
        self._head = 0

    @classmethod
    @contextmanager
    def of(
        cls,
        source: str,
        kept: TrailConfig,
        asked: Asked,
        *,
        target: "Target | None",
        as_json: bool,
    ) -> "Generator[Job]":
        """A run over the trail of a source. Raises AuditError for what MongoDB answers."""
        with closing(Trail(source, kept)) as trail, _translating(trail):
            job = cls(trail, asked, target=target, as_json=as_json)
            job._head = restoring.head_of(trail)
            say_unmatched(trail, [*((db, None) for db in asked.databases), *asked.tables])
            yield job

    def place(self, text: str, *, before: bool = False) -> Place:
        """The place that `text` names; what is odd about it is told to whoever runs the command."""
        place = place_of(self._trail, text, head=self._head, before=before)
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
            try:
                from penstock.spark.restored import write_state
            except ImportError as error:
                raise missing_extra("--delta", "spark", error) from error

            made = write_state(delta, self._trail.source, tables, at=place.at)
            written = [Written(table=name, rows=rows, made=True) for name, rows in made]
            self._say(place, written, "written to Delta")
            return
        try:
            from penstock.cli import restore_sql
            from penstock.cli.restorer import Restorer
        except ImportError as error:
            raise missing_extra("a restore to SQL", "mysql", error) from error

        with self._server() as server:
            if server is None:
                statements = restore_sql.alone(tables, self._asked)
                rows = [
                    Written(
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

    def _say(self, place: Place, rows: list[Written], what: str) -> None:
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
        with steps(wanted=not self._as_json) as shown:
            seen = 0

            def tick(at: int) -> None:
                nonlocal seen
                seen += 1
                if shown is not None and seen % 500 == 0:
                    shown.tell(Doing(what=what, unit="records", done=at, total=total))

            yield tick
