"""`penstock audit view`: a trail as it grows."""

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import audit_options as options
from penstock.cli import output
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from bson.raw_bson import RawBSONDocument

    from penstock.audit.filters import Filters
    from penstock.audit.querying import Querier
    from penstock.audit.trail import Trail
    from penstock.cli.audit_lines import Lines


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view")(command)


def command(
    name: options.NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    history: Annotated[
        int, typer.Option("--history", "-n", min=0, help="Begin with the last so many records.")
    ] = 20,
    wide: Annotated[bool, typer.Option("--wide", help="Clip nothing, however wide.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="The whole screen: filters, activity, details, export."),
    ] = False,
    db: options.DbOption = None,
    table: options.TableOption = None,
    pk: options.PkOption = None,
    pk_text: options.PkTextOption = None,
    op: options.OpOption = None,
    since: options.SinceOption = None,
    until: options.UntilOption = None,
    transaction: options.TransactionOption = None,
    actor: options.ActorOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many records.")] = None,
) -> None:
    """Watch an audit trail: its last records, and then each as it is added.

    None is left out and none is shown twice, also where MongoDB was away meanwhile: that is said on
    stderr, and waited for. Ends with Ctrl-C, or after --limit records.
    """
    from penstock.cli.trails import open_trail

    if full and (as_json or wide or limit is not None):
        raise ConfigError("--full has the whole screen: leave out --json, --wide and --limit.")
    with open_trail(config, name) as trail:
        filters = options.filters(
            trail.config.tz,
            db=db,
            table=table,
            pk=pk,
            pk_text=pk_text,
            op=op,
            since=since,
            until=until,
            transaction=transaction,
            actor=actor,
        )
        if full:
            from penstock.cli.audit_screen import run_screen

            written = {
                "db": db,
                "table": table,
                "pk": pk,
                "pk_text": pk_text,
                "op": op,
                "since": since,
                "until": until,
                "transaction": transaction,
                "actor": actor,
            }
            run_screen(name, trail, {key: text for key, text in written.items() if text})
        else:
            _follow(trail, filters, history=history, limit=limit, as_json=as_json, wide=wide)


def _follow(
    trail: "Trail",
    filters: "Filters",
    *,
    history: int,
    limit: int | None,
    as_json: bool,
    wide: bool,
) -> None:
    from penstock.audit.following import Follower
    from penstock.audit.querying import Querier

    write = _Json(Querier(trail)) if as_json else _Lines(trail.config.tz, wide=wide)
    left = limit
    with Follower(trail, filters, stopping=threading.Event(), on_outage=_say) as follower:
        shown = follower.history(history if left is None else min(history, left))
        write.history(shown)
        left = None if left is None else left - len(shown)
        if left == 0:
            return
        for record in follower.records():
            if record is None:
                write.flush()
                continue
            write.one(record)
            left = None if left is None else left - 1
            if left == 0:
                return


def _say(away: bool) -> None:
    said = "MongoDB does not answer; going on when it does" if away else "MongoDB answers again"
    output.stderr().print(said, style="bold red" if away else "green", markup=False)


class _Json:
    """Records as relaxed Extended JSON, each on a line."""

    def __init__(self, querier: "Querier") -> None:
        self._querier = querier

    def history(self, records: "list[RawBSONDocument]") -> None:
        for record in records:
            self.one(record)
        self.flush()

    def one(self, record: "RawBSONDocument") -> None:
        from penstock.audit.shown import json_text

        sys.stdout.buffer.write(json_text(self._querier.whole(record)).encode() + b"\n")

    def flush(self) -> None:
        sys.stdout.flush()


class _Lines:
    """Records as lines of a table, whose columns fit the first of them."""

    def __init__(self, tz: str, *, wide: bool) -> None:
        self._console = output.stdout()
        clipped = self._console.is_terminal and not wide
        self._width = self._console.width if clipped else None
        self._tz = tz
        self._lines: Lines | None = None

    def history(self, records: "list[RawBSONDocument]") -> None:
        if records:
            self._begin(records)
        for record in records:
            self.one(record)

    def _begin(self, records: "list[RawBSONDocument]") -> "Lines":
        from penstock.audit.querying import decoded
        from penstock.cli.audit_lines import Lines

        lines = Lines([decoded(one) for one in records], tz=self._tz, width=self._width)
        self._console.print(lines.header(), soft_wrap=True)
        self._lines = lines
        return lines

    def one(self, record: "RawBSONDocument") -> None:
        from penstock.audit.querying import decoded

        lines = self._lines or self._begin([record])
        self._console.print(lines.line(decoded(record)), soft_wrap=True)

    def flush(self) -> None:
        self._console.file.flush()
