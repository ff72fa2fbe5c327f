"""`penstock audit archive` and `retain`: move what is old out of MongoDB, proved."""

from datetime import UTC, date, datetime
from getpass import getuser
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.cli.audit_verify import (
    ArchiveOption,
    NameArgument,
    TakeOverOption,
    also_named,
    archives_of,
    opened,
    say,
)
from penstock.cli.trails import say_unmatched
from penstock.errors import RequestError

_DAY_MS = 86_400_000

TableOption = Annotated[
    str | None, typer.Option("--table", metavar="DB.TABLE", help="Of this table alone.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to those of `penstock audit`."""
    app.command("archive")(archive)
    app.command("retain")(retain)


def archive(
    name: NameArgument,
    before: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="What came into the trail before this day of its time zone (2026-01-31), or this "
            "moment (2026-01-31T12:00:00Z).",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where archives are kept.")],
    table: TableOption = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Write what is old to files that prove themselves, behind what the folder has already.

    Whole batches, each proved first. Nothing is removed from the trail: `retain` does that.
    """
    from penstock.audit.archiving import archive as write
    from penstock.audit.names import table_of

    of = None if table is None else table_of(table)
    with opened(config, name, as_json=as_json) as (trail, patience):
        done = write(trail, patience, before_ms=_moment(before, trail.config.tz), table=of, to=to)
        if of is not None:
            say_unmatched(trail, [(of.db, of.tbl)], patience)
    if as_json:
        output.emit(to_builtins(done))
    elif done.folder is None:
        say(f"nothing to archive: it is all there up to place {done.first - 1:,}")
    else:
        say(
            f"archived {done.rows:,} records of places {done.first:,} to {done.last:,} to "
            f"{done.folder}"
        )


def retain(
    name: NameArgument,
    days: Annotated[
        float,
        typer.Option(min=0, help="Keep rows for so many days after they came into the trail."),
    ],
    table: TableOption = None,
    archived: ArchiveOption = None,
    without_archive: Annotated[
        bool,
        typer.Option("--without-archive", help="Remove them for good, archived or not."),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; it stays in the trail.")] = "retention",
    by: Annotated[str | None, typer.Option(help="Who does it; the user of this machine.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, and say what would be removed.")
    ] = False,
    take_over: TakeOverOption = False,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Remove old rows of a table, or of all, that an archive has; their place stays proved.

    Nothing is removed that no archive proves, unless --without-archive says so.
    """
    from penstock.audit.names import table_of
    from penstock.audit.retire import Retirer

    if bool(archived) == without_archive:
        raise RequestError("name the --archive, or say --without-archive. Nothing was removed.")
    of = None if table is None else table_of(table)
    with opened(config, name, as_json=as_json) as (trail, patience):
        if of is not None:
            say_unmatched(trail, [(of.db, of.tbl)], patience)
        archives = archives_of(archived, trail.source)
        done = Retirer(trail, patience, archives, take_over=take_over).retire(
            of,
            before_ms=patience.call(trail.now_ms) - int(days * _DAY_MS),
            reason=reason,
            by=by or getuser(),
            without_archive=without_archive,
            dry_run=dry_run,
        )
    if as_json:
        output.emit(to_builtins(done))
        return
    if done.resumed:
        say(f"{done.resumed:,} earlier retirements had broken off, and are finished")
    if done.names:
        say(also_named(done.names))
    if dry_run:
        say(f"{done.records:,} rows up to place {done.last:,} would be removed")
        if done.unarchived:
            say(f"{done.unarchived:,} of them are in no archive that was named")
    else:
        say(f"removed {done.taken:,} rows up to place {done.last:,}")


def _moment(text: str, tz: str) -> int:
    """Unix milliseconds of a day's beginning, or of a moment."""
    try:
        if len(text) == len("2026-01-31"):
            day = date.fromisoformat(text)
            found = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(tz))
        else:
            found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise RequestError(
            f"{text!r} is neither a day (2026-01-31) nor a moment with its offset "
            f"(2026-01-31T12:00:00Z). Nothing was done."
        )
    return int(found.astimezone(UTC).timestamp() * 1000)
