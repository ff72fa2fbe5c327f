"""`penstock pipeline plan | reset`: where a run would begin, and where the next one is to."""

from typing import Annotated

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.cli.pipeline_ask import EndpointOption, NameArgument, chosen, connected
from penstock.errors import ConfigError, ResetRefusedError


def plan(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
) -> None:
    """What a run of a pipeline would do: where it would begin and why, how much it would read, and
    which tables it would write. Nothing is written, and no Spark is started.

    Reads what a run would read. What a run would stop with is this command's error, with its exit
    code.
    """
    from penstock.cli.config import load, missing_extra

    settings = load(config)
    pipeline = chosen(settings, [name])[name]
    try:
        from penstock.spark.plan import plan_of
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    with connected(settings, endpoint) as client:
        known = {one.pipeline: one for one in client.pipelines()}.get(name)
        found = plan_of(name, pipeline, client, known)
    if as_json:
        output.emit(to_builtins(found))
        return
    typer.echo(f"{name} would begin after entry {found.sequence:,}: {found.why}.")
    typer.echo(
        f"It would read {found.entries:,} entries of source {found.source} up to "
        f"{found.until:,}, {output.size(found.bytes)}, in {found.batches:,} batches or more."
    )
    if found.control_events:
        typer.echo(f"{found.control_events:,} of them are no data: gaps, or changes of shape.")
    for one in found.collections:
        where = f" -> {one.table}" if one.table else ""
        typer.echo(f"  {one.collection}: {one.entries:,}{where}")


_REMEDIES = {
    "history": "A run goes on where the history stands, so nothing of it need be told again. A "
    "collection that was added has its history from a pipeline of its own, with its own path. ",
    "replicate": "Rows that are wrong are replaced by another pipeline into an empty database. ",
    "view": "A view that is wrong is made from the log again by another one of the same query. ",
}
"""What to do in place of going back, by destination, beside what goes for all."""


def reset(
    name: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="beginning|oldest|MARKER", help="Behind which place the next run begins."
        ),
    ],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Have a pipeline that does not run begin again at an earlier place of the log.

    For tables: nothing is removed, and tables ignore what they have, so nothing is applied twice.
    It brings what is missing: a table that is gone or was restored, a collection that was added. A
    place ahead is refused, and so is any destination but tables. Exit code 7 if refused.
    """
    from penstock.cli.config import load, missing_extra

    settings = load(config)
    pipeline = chosen(settings, [name])[name]
    if pipeline.to != "table":
        raise ResetRefusedError(
            pipeline=name,
            why=f"its destination is {pipeline.to!r}, which keeps its place with what it wrote, "
            f"and going back would bring nothing that it lacks, or write some of it twice",
            remedy=_REMEDIES.get(pipeline.to, "")
            + "To build it anew, give it a new name and a new place to write to; start = 'oldest' "
            "begins with what is left. The old one stays as it is until you remove it.",
        )
    try:
        from penstock.spark.plan import reset_place
        from penstock.spark.table.standing import StandingTable
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    with connected(settings, endpoint) as client:
        known = {one.pipeline: one for one in client.pipelines()}.get(name)
        if known is not None and known.state == "running":
            raise ResetRefusedError(
                pipeline=name,
                why="it is running",
                remedy=f"Stop it first: penstock pipeline stop {name}.",
            )
        place, bounds = reset_place(client, to), client.bounds()
    if not yes:
        if as_json:
            raise ConfigError("reset asks before it changes anything; with --json give --yes.")
        typer.confirm(f"Have {name} begin again after entry {place.sequence:,}?", abort=True)
    before = StandingTable(pipeline, name).reset(place, bounds)
    if as_json:
        output.emit({"pipeline": name, "before": before.sequence, "after": place.sequence})
    else:
        typer.echo(
            f"{name} begins again after entry {place.sequence:,}; it stood at {before.sequence:,}."
        )
