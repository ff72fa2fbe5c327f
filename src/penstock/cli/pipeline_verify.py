"""`penstock pipeline verify`: whether what a pipeline makes is what log, or source, says it is."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins
from rich.table import Table as Grid

from penstock.cli import output
from penstock.cli.pipeline_ask import EndpointOption, NameArgument
from penstock.cli.pipeline_spark import ConfOption, MasterOption, session_for
from penstock.cli.steps import Doing, Steps, steps
from penstock.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.spark.config import PipelineConfig
    from penstock.spark.progress import VerifyProgress, VerifyStep
    from penstock.spark.verifying import Verified

_SHOWN = 20
_STEPS: "Mapping[VerifyStep, tuple[str, str]]" = {
    "applying": ("applying the log anew", "entries"),
    "dividing": ("dividing the source into ranges", "collections"),
    "reading": ("reading the source", "ranges"),
    "waiting": ("waiting for the log to tell what was committed", ""),
    "changes": ("seeing what changed meanwhile", ""),
    "comparing": ("comparing", "tables"),
}
"""What a comparison does, and what is counted of it."""


class Against(StrEnum):
    """What is compared with."""

    LOG = "log"
    SOURCE = "source"


def command(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    against: Annotated[
        Against,
        typer.Option(
            help="`log`: apply it anew beside what is there. `source`: read every row there again, "
            "which proves capture too; of tables alone, those with a first load among them."
        ),
    ] = Against.LOG,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make rows that differ as they should be.")
    ] = False,
    ranges: Annotated[
        int, typer.Option(min=1, max=1 << 16, help="Into how many ranges keys are divided.")
    ] = 256,
    listed: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="How many differences to list at most.")
    ] = 1000,
    scratch: Annotated[
        str | None,
        typer.Option(help="A path that Spark's workers can read and write, on a cluster."),
    ] = None,
    endpoint: EndpointOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Compare what a pipeline keeps with the log, or tables with the source; the pipeline may run
    meanwhile.

    Keys and the names of columns are told, no values. Rows whose last change was rejected are
    counted and not judged; so are those that change while the source is read. A table whose rows
    the log does not tell by now is not judged either, which is said. Exit code 7 if a row differs
    that was not repaired. Repairing needs a pipeline that does not run.
    """
    from penstock.cli import logs
    from penstock.cli.config import load, near
    from penstock.client.credentials import Credentials

    logs.configure(as_json=as_json, process="pipeline")
    settings = load(config)
    pipeline = settings.pipelines.get(name)
    if pipeline is None:
        raise ConfigError(
            f"{config}: there is no [pipelines.{name}]{near(name, settings.pipelines)}. "
            f"Nothing was compared."
        )
    verify = _verifying(name, pipeline, settings, against)
    with (
        session_for("verify", name, settings, master, conf) as spark,
        steps(wanted=not as_json) as shown,
    ):
        found = verify(
            name,
            pipeline,
            endpoint or settings.serve.flight,
            spark=spark,
            scratch=scratch,
            ranges=ranges,
            listed_max=listed,
            repair=repair,
            credentials=Credentials.from_environment(),
            archive=settings.archive.path or "",
            on_progress=None if shown is None else partial(_show, shown),
        )
    if as_json:
        output.emit({**to_builtins(found), "sound": found.sound})
    else:
        _print(found, pipeline.to)
    if any(one.differences > one.repaired for one in found.tables):
        raise typer.Exit(PipelineError.exit_code)


def _verifying(
    name: str, pipeline: "PipelineConfig", settings: "Settings", against: Against
) -> "Callable[..., Verified]":
    """Who compares what the pipeline makes. Raises ConfigError where nobody does."""
    from penstock.cli.config import missing_extra
    from penstock.spark.destinations import destination_named, function

    destination = destination_named(pipeline.to)
    if not destination.verify:
        raise ConfigError(
            f"pipeline {name} goes to {pipeline.to!r}, which is not compared. Nothing was "
            f"compared. {destination.unverified.format(name=name)}".rstrip()
        )
    if against is Against.SOURCE and pipeline.to != "table":
        raise ConfigError(
            f"pipeline {name} goes to {pipeline.to!r}, and the source is compared with tables of "
            f"current rows alone (to = 'table'). Nothing was compared. Leave --against out: then "
            f"it is compared with the log."
        )
    try:
        if against is Against.SOURCE:
            from penstock.spark.against.source import verify_with_source

            source = settings.sources.get(pipeline.source)
            opening = None if source is None else source.opening()
            return partial(verify_with_source, open_source=opening)
        return function(destination.verify)
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error


def _show(shown: Steps, step: "VerifyProgress") -> None:
    what, unit = _STEPS[step.step]
    shown.tell(Doing(what=what, unit=unit, done=step.done, total=step.total, of=step.collection))


def _print(found: "Verified", to: str) -> None:
    whole = "the view" if to == "view" else "all"
    heads = ["table", f"rows by the {found.against}", "rows found", "differences", "repaired"]
    apart = found.against == Against.SOURCE
    gone = any(one.untold for one in found.tables)
    heads += [*(["changed meanwhile"] if apart else []), "rejected"]
    grid = Grid(*heads, *(["not told any more"] if gone else []))
    for one in found.tables:
        numbers = [one.rows, one.found, one.differences, one.repaired]
        numbers += [
            *([one.changed] if apart else []),
            one.rejected,
            *([one.untold] if gone else []),
        ]
        grid.add_row(output.cell(one.collection or whole), *(f"{number:,}" for number in numbers))
    out = output.stdout()
    out.print(grid)
    for one in found.tables:
        for row in one.listed[:_SHOWN]:
            columns = f" in {', '.join(row.columns)}" if row.columns else ""
            begins = "" if row.from_sequence is None else f" from {row.from_sequence}"
            whose = one.collection or (whole if to == "view" else f"entry {row.sequence}")
            whose += "" if row.element is None else f" element {row.element}"
            out.print(f"{whose} {row.key}{begins}: {row.what}{columns}", markup=False)
        if len(one.listed) > _SHOWN:
            out.print(f"… {one.differences - _SHOWN:,} more; --json lists them", markup=False)
        if one.left:
            out.print(one.left, markup=False)
