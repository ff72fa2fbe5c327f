"""`penstock audit query`: records of a trail, page by page, for people and for programs."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import audit_options as options
from penstock.cli import output
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.audit.cursors import Cursor
    from penstock.audit.filters import Filters, Order
    from penstock.audit.querying import Querier

FORMATS: Final = ("table", "jsonl", "csv")
_SHOWN: Final = 100
_PAGE: Final = 1_000
_OUTPUT = "What is written"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query")(command)


def command(
    name: options.NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as --format jsonl.", rich_help_panel=_OUTPUT)
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="A table for people, Extended JSON by lines, or CSV (RFC 4180).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    canonical: Annotated[
        bool,
        typer.Option(
            "--canonical",
            help="With jsonl: canonical Extended JSON, which keeps every type.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", help="With table: clip nothing, however wide.", rich_help_panel=_OUTPUT
        ),
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
    order: Annotated[
        str,
        typer.Option(
            "--order", metavar="asc|desc", help="In the source's order, or the newest first."
        ),
    ] = "desc",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="So many records at most; 100 in a table, without it all of them elsewhere."
        ),
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(help="Go on where a page ended, with the same filters.")
    ] = None,
) -> None:
    """Records of an audit trail: who changed what, and when.

    Where there are more, the cursor of the next page is written to stderr; in ascending order
    always, for there may be more later. Nothing that is half written is ever shown.
    """
    from penstock.cli.trails import open_trail, say_unmatched

    form = _format(format_, as_json=as_json, canonical=canonical, wide=wide)
    which = _order(order)
    with open_trail(config, name) as trail:
        from penstock.audit.cursors import cursor_of
        from penstock.audit.querying import Querier
        from penstock.cli.audit_writing import write_csv, write_jsonl

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
        querier = Querier(trail)
        after = None
        if cursor is not None:
            went = cursor_of(cursor, filters=filters, order=which)
            querier.require(went)
            after = went.after
        asked = _Asked(querier, filters, which, after, limit, trail.config.tz)
        if form == "csv":
            # Twice over the same records: the first line has the columns of all of them.
            last = querier.head().at
            write_csv(
                sys.stdout.buffer, querier, lambda: asked.records(until=last), tz=trail.config.tz
            )
        elif form == "jsonl":
            write_jsonl(sys.stdout.buffer, querier, asked.records(), canonical=canonical)
        else:
            asked.limit = limit or _SHOWN
            _write_table(asked, wide=wide)
        if asked.found_nothing and after is None:
            say_unmatched(trail, [(filters.database, filters.table)], as_json=as_json)
        sys.stdout.flush()
        _say_next(asked.next(), as_json=as_json)


def _format(format_: str | None, *, as_json: bool, canonical: bool, wide: bool) -> str:
    if format_ is not None and format_ not in FORMATS:
        raise ConfigError(f"--format {format_!r} is none of {', '.join(FORMATS)}.")
    if as_json and format_ not in (None, "jsonl"):
        raise ConfigError(f"--json and --format {format_} exclude each other. Give one of them.")
    form = "jsonl" if as_json else format_ or "table"
    if canonical and form != "jsonl":
        raise ConfigError("--canonical is about --format jsonl. Add that, or leave it out.")
    if wide and form != "table":
        raise ConfigError("--wide is about --format table. Leave it out.")
    return form


def _order(order: str) -> "Order":
    if order == "asc":
        return "asc"
    if order == "desc":
        return "desc"
    raise ConfigError(f"--order {order!r} is neither asc nor desc.")


class _Asked:
    """A query under way."""

    def __init__(
        self,
        querier: "Querier",
        filters: "Filters",
        order: "Order",
        after: int | None,
        limit: int | None,
        tz: str,
    ) -> None:
        self.querier = querier
        self.filters = filters
        self.order: Order = order
        self.after = after
        self.limit = limit
        self.tz = tz
        self._shown: int | None = None
        """The last place that was written."""
        self._more = False

    def records(self, *, until: int | None = None) -> Iterator[Any]:
        """The records, as bytes, up to the limit."""
        wanted = None if self.limit is None else self.limit + 1
        found = self.querier.records(
            self.filters, order=self.order, after=self.after, limit=wanted, until=until, page=_PAGE
        )
        for count, record in enumerate(found):
            if count == self.limit:
                self._more = True
                return
            yield record
            self._shown = int(record["at"])

    @property
    def found_nothing(self) -> bool:
        """Whether no record was written."""
        return self._shown is None

    def next(self) -> "Cursor | None":
        """Where the next page begins; None if there can be none."""
        head = self.querier.head()
        if self._more and self._shown is not None:
            after = self._shown
        elif self.order == "asc":
            after = max(self._shown or 0, self.after or 0)
        else:
            return None
        return self.querier.cursor(self.filters, order=self.order, after=after, head=head)


def _write_table(asked: _Asked, *, wide: bool) -> None:
    from penstock.audit.querying import decoded
    from penstock.cli.audit_lines import Lines

    console = output.stdout()
    found = asked.records()
    first = [decoded(record) for _, record in zip(range(_SHOWN), found, strict=False)]
    clipped = console.is_terminal and not wide
    lines = Lines(first, tz=asked.tz, width=console.width if clipped else None)
    if first:
        console.print(lines.header(), soft_wrap=True)
    else:
        output.stderr().print(_nothing(asked.filters), markup=False, style="dim")
    for record in first:
        console.print(lines.line(record), soft_wrap=True)
    for record in found:
        console.print(lines.line(decoded(record)), soft_wrap=True)


def _nothing(filters: "Filters") -> str:
    """What is said where no record is found; a key may have been taken for another type."""
    key = filters.key
    if key is None or not key.bare or isinstance(key.typed, str):
        return "no record matches"
    return (
        f"no record matches; the key was looked for as a value of JSON, which is no text: write "
        f"--pk '\"{key.texts[0]}\"' for that, or --pk-text for both"
    )


def _say_next(cursor: "Cursor | None", *, as_json: bool) -> None:
    if cursor is None:
        return
    if as_json:
        sys.stderr.write(f'{{"cursor":"{cursor}"}}\n')
        return
    output.stderr().print(f"go on with: --cursor {cursor}", markup=False, style="dim")
