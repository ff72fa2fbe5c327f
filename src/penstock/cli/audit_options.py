"""The filters of `penstock audit`, as options; one spelling for every command."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.audit.filters import Filters

_PANEL = "Which records"

NameArgument = Annotated[str, typer.Argument(help="The pipeline that keeps the trail.")]
DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="NAME", help="Of this database.", rich_help_panel=_PANEL),
]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="DB.TABLE",
        help="Of this table; the table's name alone where --db is said.",
        rich_help_panel=_PANEL,
    ),
]
PkOption = Annotated[
    str | None,
    typer.Option(
        "--pk",
        metavar="KEY",
        help="Of this key: an ordered JSON object, the value of its only column as JSON (5 is no "
        '"5"), or else its text.',
        rich_help_panel=_PANEL,
    ),
]
PkTextOption = Annotated[
    str | None,
    typer.Option(
        "--pk-text",
        metavar="TEXT",
        help="Of this key as it is shown, whatever its type.",
        rich_help_panel=_PANEL,
    ),
]
OpOption = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="OPS",
        help="Of these operations: i, u, d, ddl, gap, sys, with commas between them.",
        rich_help_panel=_PANEL,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From this day of the trail's time zone (2026-01-31), or this moment "
        "(2026-01-31T12:00:00Z).",
        rich_help_panel=_PANEL,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Up to and with all of this day, this second, or the part of one that is said.",
        rich_help_panel=_PANEL,
    ),
]
TransactionOption = Annotated[
    str | None,
    typer.Option(
        "--transaction",
        metavar="ID",
        help="Of this transaction of the source, all of it.",
        rich_help_panel=_PANEL,
    ),
]
ActorOption = Annotated[
    str | None,
    typer.Option("--actor", metavar="NAME", help="Done by this actor.", rich_help_panel=_PANEL),
]


def filters(tz: str, **said: str | None) -> "Filters":
    """The filters that were written. Raises ConfigError by the option's name."""
    from penstock.audit.filters import filters_of

    return filters_of(tz=tz, **said)
