"""`penstock audit erase`: take a key's content out of a trail, so that the chain still holds."""

from getpass import getuser
from typing import Annotated

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


def register(app: typer.Typer) -> None:
    """Add the command to those of `penstock audit`."""
    app.command("erase")(erase)


def erase(
    name: NameArgument,
    table: Annotated[
        str | None, typer.Option("--table", metavar="DB.TABLE", help="The table of the key.")
    ] = None,
    pk: Annotated[
        str | None,
        typer.Option("--pk", metavar="KEY", help='The key, as {"id": 5}, or its text.'),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(help="Why; it stays in the trail, so name no person here."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who does it; the user of this machine.")] = None,
    archive: ArchiveOption = None,
    statements: Annotated[
        bool,
        typer.Option(
            "--with-statements",
            help="Also erase records of other keys that hold the SQL text of these rows.",
        ),
    ] = False,
    broken: Annotated[
        bool, typer.Option("--broken", help="Also erase records that are not what was written.")
    ] = False,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished", help="Carry out all erasures of the trail again; no key is needed."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, and say what would be erased.")
    ] = False,
    take_over: TakeOverOption = False,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Erase everything that a trail says of a key, up to now, and of what the key was before.

    What stays is that something happened, when, and to which table. May run beside the pipeline,
    and again after it broke off.
    """
    from penstock.audit.erase import Eraser
    from penstock.audit.names import table_of
    from penstock.audit.searching import key_of

    if unfinished == (table is not None or pk is not None):
        raise RequestError("say --table, --pk and --reason, or --unfinished. Nothing was changed.")
    with opened(config, name, as_json=as_json) as (trail, patience):
        eraser = Eraser(trail, patience, archives_of(archive, trail.source), take_over=take_over)
        if table is None or pk is None or not reason:
            if not unfinished:
                raise RequestError("say --table, --pk and --reason, all. Nothing was changed.")
            resumed = eraser.resume(everything=True)
            if as_json:
                output.emit({"resumed": resumed})
            else:
                say(f"{resumed:,} erasures of this trail are carried out in full")
            return
        done = eraser.erase(
            table_of(table),
            key_of(pk),
            reason=reason,
            by=by or getuser(),
            statements=statements,
            broken=broken,
            dry_run=dry_run,
        )
        if not done.records:
            erased = table_of(table)
            say_unmatched(trail, [(erased.db, erased.tbl)], patience)
    if as_json:
        output.emit(to_builtins(done))
        return
    if done.resumed:
        say(f"{done.resumed:,} earlier erasures had broken off, and are finished")
    if done.names:
        say(also_named(done.names))
    if dry_run:
        say(f"{done.records:,} records{' or more' if done.more else ''} would be erased")
    else:
        where = f", {done.taken_archived:,} in archives" if archive else ""
        say(f"erased: {done.taken:,} records{where}; told at {done.at or 'no place'}")
    for key in done.alike:
        say(
            f"another key of the table is written so, as one is whose column was renamed: "
            f"{key}. Erase it too where it is the same"
        )
    if done.statements and not statements:
        say(
            f"{done.statements:,} records of other keys hold the SQL text of statements that wrote "
            f"these rows: say --with-statements to erase them too"
        )
    if not archive:
        say("archives of this trail were not looked at: name them with --archive")
    say("backups, and what the log still keeps, are not touched: see docs/how-to/audit.md")
