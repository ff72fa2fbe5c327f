"""`penstock log check | backup | compact | restore`: looking after the log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.cli.steps import entries_told, steps
from penstock.errors import ConfigError, LogError

if TYPE_CHECKING:
    from penstock.log.maintenance import CheckReport

app = typer.Typer(help="Look after the log.", no_args_is_help=True)

PathOption = Annotated[
    Path | None, typer.Option("--path", help="The log's folder, instead of the configured one.")
]


def _path(config: Path, path: Path | None) -> Path:
    from penstock.cli.config import load

    return path or load(config).log.path


@app.command("check")
def check(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    path: PathOption = None,
) -> None:
    """Read the whole log and verify every byte; the service may run. Exit code 4 if damaged."""
    from penstock.log import maintenance

    folder = _path(config, path)
    with steps(wanted=not as_json) as shown:
        report = maintenance.check(folder, entries_told(shown, "checking"))
    if as_json:
        facts = {"path": str(folder), **to_builtins(report)}
        # JSON readers keep 53 bits of a number; ids have 64.
        output.emit({**facts, "log_id": f"{report.log_id:016x}", "ok": not report.problems})
    else:
        _print(folder, report)
    if report.problems:
        raise typer.Exit(LogError.exit_code)


@app.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    path: PathOption = None,
) -> None:
    """Copy the log, at one moment of it, while the service runs.

    The copy is a log like any other. Once it is written to, markers beyond it are refused.
    """
    from penstock.log import maintenance

    folder = _path(config, path)
    maintenance.backup(folder, target)
    size = (target / "data.mdb").stat().st_size
    if as_json:
        output.emit({"path": str(folder), "target": str(target), "bytes": size})
    else:
        output.stdout().print(
            f"copied {folder} to {target}: {output.size(size)}", markup=False, soft_wrap=True
        )


@app.command("compact")
def compact(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    path: PathOption = None,
) -> None:
    """Give the log's free pages back to the disk. The service must be stopped."""
    from penstock.log import maintenance

    folder = _path(config, path)
    done = maintenance.compact(folder)
    if as_json:
        output.emit({"path": str(folder), **to_builtins(done)})
    else:
        output.stdout().print(
            f"{folder}: {output.size(done.bytes_before)}, now {output.size(done.bytes_after)}",
            markup=False,
            soft_wrap=True,
        )


@app.command("restore")
def restore(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    path: PathOption = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", help="The archive, instead of the configured one."),
    ] = None,
) -> None:
    """Make a log of its archive, where there is none; every entry is proved on the way.

    Once it is written to, it is a log of its own: markers beyond the archive are refused.
    """
    from penstock.archive.place import shown
    from penstock.archive.reading import Archive
    from penstock.cli.config import load
    from penstock.log.restoring import restore

    place = archive or load(config).archive.path
    if place is None:
        raise ConfigError(
            f"{config} has no [archive] path. Nothing was made. Write it, or say --archive."
        )
    folder = _path(config, path)
    with steps(wanted=not as_json) as bar:
        made = restore(
            Archive.open(place),
            folder,
            on_restored=entries_told(bar, "restoring"),
            on_checked=entries_told(bar, "reading it again"),
        )
    if as_json:
        facts = {"path": str(folder), "archive": shown(place), **to_builtins(made)}
        output.emit({**facts, "log_id": f"{made.log_id:016x}"})
        return
    console = output.stdout()
    console.print(
        f"{folder}: {made.head - made.trimmed:,} entries ({made.trimmed + 1:,} to {made.head:,}) "
        f"of {made.commits:,} commits, all as they were archived",
        markup=False,
        soft_wrap=True,
        style="green",
    )
    for sentence in made.warnings:
        console.print(sentence, markup=False, soft_wrap=True, style="yellow")


def _print(folder: Path, report: "CheckReport") -> None:
    console = output.stdout()
    console.print(
        f"{folder}: {report.entries:,} entries ({report.trimmed + 1:,} to {report.head:,}) of "
        f"{report.commits:,} commits in {report.blocks:,} blocks, {output.size(report.bytes)}; "
        f"{len(report.sources)} source(s), {report.unfinished_extents} unfinished commit(s)",
        markup=False,
        soft_wrap=True,
    )
    for problem in report.problems:
        console.print(f"  damaged: {problem}", markup=False, soft_wrap=True, style="bold red")
    if not report.problems:
        console.print("  every entry is as it was written", style="green")
