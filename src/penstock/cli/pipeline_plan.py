"""`penstock pipeline plan | reset | backfill`: where a run would begin, where the next one is to,
and what it is to read from the source again."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.cli.pipeline_ask import EndpointOption, NameArgument, chosen, connected
from penstock.cli.pipeline_spark import ConfOption, MasterOption, catalog_session, own_errors
from penstock.errors import BackfillRefusedError, ConfigError, ResetRefusedError

if TYPE_CHECKING:
    from penstock.client.flight import LogClient


def plan(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """What a run of a pipeline would do: where it would begin and why, how much it would read, and
    which tables it would write. Nothing is written, and Spark is started only for tables in a
    catalog.

    The destination is asked where it stands, as a run does, so it must answer. Reads what a run
    would read. What a run would stop with is this command's error, with its exit code;
    but transforms and expectations are looked at when a run begins.
    """
    from penstock.cli.config import load, missing_extra

    settings = load(config)
    pipeline = chosen(settings, [name])[name]
    try:
        from penstock.spark.plan import plan_of
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    with (
        connected(settings, endpoint) as client,
        catalog_session("plan", name, pipeline, settings, master, conf) as spark,
    ):
        found = plan_of(name, pipeline, client, spark=spark)
    if as_json:
        output.emit(to_builtins(found))
        return
    output.say(f"{name} would begin after entry {found.sequence:,}: {found.why}.")
    output.say(
        f"It would read {found.entries:,} entries of source {found.source} up to "
        f"{found.until:,}, {output.size(found.bytes)}, in {found.batches:,} batches or more."
    )
    if found.lost:
        output.say(
            f"{found.lost:,} entries were removed by retention before it read them; it would write "
            f"a gap for them."
        )
    if found.control_events:
        output.say(f"{found.control_events:,} of them are no data: gaps, or changes of shape.")
    for one in found.collections:
        where = f" -> {one.table}" if one.table else ""
        output.say(f"  {one.collection}: {one.entries:,}{where}")
    for unknown in found.unknown:
        output.say(f"  {unknown}: the log has no entry of it; see that its name is right")


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
    master: MasterOption = None,
    conf: ConfOption = None,
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
        from penstock.spark import resetting
        from penstock.spark.table.lake import seen_lake
        from penstock.spark.table.standing import StandingTable
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    with connected(settings, endpoint) as client:
        if _runs(client, name):
            raise ResetRefusedError(
                pipeline=name,
                why="it is running",
                remedy=f"Stop it first: penstock pipeline stop {name}.",
            )
        place = resetting.reset_place(client, to, client.bounds())
    if as_json and not yes:
        raise ConfigError("reset asks before it changes anything; with --json give --yes.")
    with catalog_session("reset", name, pipeline, settings, master, conf) as spark:
        standing = StandingTable(pipeline, name, seen_lake(pipeline, name, spark))
        if not yes:
            typer.confirm(resetting.question(name, place, standing.read()), abort=True)
        with connected(settings, endpoint) as client:
            before, place = resetting.reset(name, pipeline, client, standing, to)
    if as_json:
        output.emit({"pipeline": name, "before": before.sequence, "after": place.sequence})
    else:
        output.say(
            f"{name} begins again after entry {place.sequence:,}; it stood at {before.sequence:,}."
        )


def backfill(
    name: NameArgument,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="COLLECTION",
            help="Only this one, as the pipeline's configuration names it; may be repeated.",
        ),
    ] = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Have the next run of a pipeline read rows from the source again, while changes go on.

    For tables with first_load = 'source', and a pipeline that does not run. Each row that the
    source has is put into its table by its key; newer changes win. It brings rows that were lost, a
    table that is gone or was put back from an older copy, a collection that was added. No row is
    removed: one that the source no longer has stays, unless the log says that it was deleted. Exit
    code 7 if refused.
    """
    from penstock.cli.config import load, missing_extra

    settings = load(config)
    pipeline = chosen(settings, [name])[name]
    if pipeline.to != "table":
        raise BackfillRefusedError(
            pipeline=name,
            why=f"its destination is {pipeline.to!r}, and only tables have rows from the source",
            remedy=f"Have the service copy rows through the log: penstock snapshot "
            f"{pipeline.source}.",
        )
    try:
        from penstock.spark.loading.backfill import ALL, backfill
        from penstock.spark.loading.load import require_readable
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    if pipeline.first_load == "source":
        require_readable(name, pipeline, settings.sources[pipeline.source].opening())
    with connected(settings, endpoint) as client:
        if _runs(client, name):
            raise BackfillRefusedError(
                pipeline=name,
                why="it is running",
                remedy=f"Stop it first: penstock pipeline stop {name}.",
            )
        bounds = client.bounds()
    names = [one.removeprefix(f"{pipeline.source}/") for one in collections or ()]
    if not yes:
        if as_json:
            raise ConfigError("backfill asks before it changes anything; with --json give --yes.")
        what = ", ".join(names) or "all its collections"
        typer.confirm(f"Have {name} read {what} from the source again?", abort=True)
    with own_errors(name):
        read = backfill(name, pipeline, names, bounds)
    if as_json:
        output.emit({"pipeline": name, "collections": [one for one in read if one != ALL]})
    else:
        said = ", ".join(read) if ALL not in read else f"all collections of {pipeline.source}"
        output.say(f"{name} reads {said} from the source in its next run.")


def _runs(client: "LogClient", name: str) -> bool:
    """Whether the service knows a run of the pipeline that is alive."""
    known = {one.pipeline: one for one in client.pipelines()}.get(name)
    return known is not None and known.state == "running"
