"""`penstock audit verify` and `repair`: prove a trail, and put back what was altered."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from penstock.cli import logs, output
from penstock.errors import AuditError, RequestError

if TYPE_CHECKING:
    from penstock.audit.archives import Archives
    from penstock.audit.findings import Report
    from penstock.audit.outages import Patience
    from penstock.audit.trail import Trail

_SHOWN = 10

NameArgument = Annotated[
    str, typer.Argument(help="The pipeline that keeps the trail.", metavar="NAME")
]
ArchiveOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--archive",
        metavar="FOLDER",
        help="An archive of the trail, or a folder of them. May be said several times.",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="On a MongoDB without transactions: the pipeline is stopped, so write the trail from "
        "here.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to those of `penstock audit`."""
    app.command("verify")(verify)
    app.command("repair")(repair)


@contextmanager
def opened(config: Path, name: str, *, as_json: bool) -> "Generator[tuple[Trail, Patience]]":
    """A pipeline's trail, and how long to wait for it, for the time of the block."""
    from penstock.audit.outages import Brief
    from penstock.cli.trails import open_trail

    logs.configure(as_json=as_json, process="audit")
    with open_trail(config, name) as trail:
        yield trail, Brief(trail, stopping=threading.Event())


def archives_of(folders: list[Path] | None, source: str) -> "Archives":
    """The archives that were named."""
    from penstock.audit.archives import Archives

    return Archives.at(folders or [], source=source)


def say(line: str) -> None:
    """One line to people."""
    output.say(line)


def also_named(names: list[str]) -> str:
    """That a table is looked for under other names that it had."""
    return f"under its other names too: {', '.join(names)}"


def verify(
    name: NameArgument,
    first: Annotated[
        int,
        typer.Option("--from", min=1, metavar="N", help="Begin at the batch with this place."),
    ] = 1,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="A hash that an earlier proof gave, which must be on the chain."
        ),
    ] = None,
    archive: ArchiveOption = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Prove that nothing in a trail is missing, added or altered; beside a pipeline that runs.

    Names the first broken or missing record, and counts the others. Exit code 7 if anything is
    broken, or an erasure or retirement is unfinished.
    """
    from penstock.audit.verify import Proof

    wanted = _hash(expect)
    with opened(config, name, as_json=as_json) as (trail, patience):
        archives = archives_of(archive, trail.source)
        report = Proof(trail, patience, first=first, expect=wanted, archives=archives).run()
    if as_json:
        output.emit(to_builtins(report))
    else:
        _print(report)
    if not report.sound:
        raise typer.Exit(AuditError.exit_code)


def _hash(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise RequestError(
            "--expect takes the 64 hex digits that `penstock audit verify` gave as the hash. "
            "Nothing was looked at."
        )
    return found


def _print(report: "Report") -> None:
    say(
        f"trail of {report.source}, places {report.first:,} to {report.last:,} in "
        f"{report.batches:,} batches ({report.seconds:.1f} s)"
    )
    say(
        f"proved: {report.proved:,} records whole, {report.erased:,} erased, "
        f"{report.archived:,} of {report.retired:,} retired"
    )
    if report.first_broken is not None:
        say(f"BROKEN: {report.broken:,}; the first: {report.first_broken.sentence()}")
    if report.unfinished:
        say(
            f"UNFINISHED: {report.unfinished:,}; run `penstock audit erase --unfinished`, or "
            f"`penstock audit retain` again"
        )
    others = [one for one in report.findings if one != report.first_broken]
    for one in others[:_SHOWN]:
        say(f"  {one.sentence()}")
    if len(others) > _SHOWN:
        say(f"  and more; --json lists {len(report.findings):,}")
    for sentence in report.unchecked:
        say(f"not checked: {sentence}")
    if report.expected is not None:
        say(f"the expected hash is that of {report.expected}")
    if report.sound:
        say(f"sound. Keep this hash elsewhere, and give it to a later proof: {report.hash}")


def repair(
    name: NameArgument,
    write: Annotated[
        bool, typer.Option("--write", help="Do it; else only what would be done is said.")
    ] = False,
    archive: ArchiveOption = None,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="Whether to make records from the service's log.")
    ] = True,
    endpoint: Annotated[
        str | None,
        typer.Option(help="The service's Flight address, instead of the configured one."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who does it; the user of this machine.")] = None,
    take_over: TakeOverOption = False,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Put back broken and missing records and batches, where what is found gives the proved hash.

    Exit code 7 if something is left that cannot be put back.
    """
    from penstock.audit.remaking import Log
    from penstock.audit.repair import Repairer
    from penstock.cli.config import load
    from penstock.client.credentials import Credentials

    service = endpoint or load(config).serve.flight
    with opened(config, name, as_json=as_json) as (trail, patience):
        kept = trail.config
        head = patience.call(trail.head)
        source = Log(
            service,
            source=trail.source,
            tz=kept.tz,
            bytes_max=kept.batch_bytes,
            id_key=b"" if head is None else head.id_key,
            credentials=Credentials.from_environment(),
        )
        repairer = Repairer(
            trail,
            patience,
            archives_of(archive, trail.source),
            source if log else None,
            take_over=take_over,
        )
        done = repairer.repair(by=by or getuser(), dry_run=not write)
    if as_json:
        output.emit(to_builtins(done))
    else:
        would = "put back" if write else "would be put back; say --write to do it"
        say(f"broken: {done.broken:,}")
        from_ = ", ".join(f"{count:,} from the {one}" for one, count in done.sources.items())
        say(f"records: {len(done.records):,} {would}{f' ({from_})' if from_ else ''}")
        say(f"batches: {len(done.batches):,} {would}")
        for line in done.left:
            say(f"left: {line}")
    if done.left:
        raise typer.Exit(AuditError.exit_code)
