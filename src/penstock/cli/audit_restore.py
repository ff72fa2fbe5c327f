"""`penstock audit restore`: tables as they were, from an audit trail."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import output
from penstock.cli.config import load, missing_extra
from penstock.cli.restore_asked import DOUBTS, Asked, Name
from penstock.cli.trails import trail_config
from penstock.config import parse_size
from penstock.errors import ConfigError

_PLACE: Final = (
    "A day of the trail's time zone (2026-01-31), a moment (2026-01-31T12:00:00Z), a transaction, "
    "at:N, beginning, or head"
)


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
        str,
        typer.Option(
            "--until", "--end-date", help=f"Behind which the tables are wanted. {_PLACE}."
        ),
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
    if dry_run:
        execute, to_file, delta = False, None, None
    _refuse_combinations(mode, target, into, to_file, delta, execute=execute)
    settings = load(config)
    source, kept = trail_config(settings, name)
    try:
        from penstock.cli.restore_job import Job, refuse_hidden, server_of
    except ImportError as error:
        raise missing_extra("an audit trail", "mongodb", error) from error
    where = None if target is None else server_of(target)
    refuse_hidden(settings, source, asked)
    with Job.of(source, kept, asked, target=where, as_json=as_json) as job:
        until_place = job.place(until)
        if mode is Mode.REPLAY:
            since_place = job.place(since, before=True)
            job.replay(
                since_place, until_place, to_file, execute=execute, goes_on=continue_on_error
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
