"""`penstock pipeline list | lag | stop | forget`: what the service knows of pipelines."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs, to_builtins
from rich.table import Table

from penstock.cli import output
from penstock.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.client.flight import LogClient
    from penstock.client.pipelines import PipelineStatus
    from penstock.spark.config import PipelineConfig

_PATIENCE_SECONDS = 2.0
_LOOK_SECONDS = 0.2
STYLES = {
    "running": "green",
    "following": "green",
    "ended": "green",
    "waiting": "yellow",
    "away": "yellow",
    "failed": "bold red",
}

EndpointOption = Annotated[
    str | None,
    typer.Option(help="The service's Flight address, instead of the configured one."),
]
NameArgument = Annotated[str, typer.Argument(help="The pipeline: NAME of [pipelines.NAME].")]


class PipelineReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """A pipeline that is configured, or that the service knows; or both."""

    pipeline: str
    to: str
    source: str
    configured: bool
    state: str
    """`never run`, or as the service says: `running`, `away` (it ran, and has said nothing for half
    a minute), `ended`, `stopped` (as the service was asked), `failed`."""
    code: str = ""
    """Of the error that it failed with, or that it waits for to pass."""
    stopping: bool = False
    progress: str | None = None
    """Where its destination has durably come; None before it ran."""
    sequence: int | None = None
    lag_entries: int | None = None
    """Entries of the log that follow, of all sources."""
    lag_seconds: float | None = None
    """Since when the first of them is in the log."""
    trimmed: bool = False
    """Retention has removed entries that it has not applied: it will stop with TRIMMED, or write a
    gap for them (`changelog` and `audit`)."""
    held_bytes: int | None = None
    """About what of the log follows its place."""
    held_until_ms: int | None = None
    """Until when the log is kept for it, if its driver says nothing more."""
    told_at_ms: int | None = None
    batches: int = 0
    entries: int = 0
    rows: int = 0
    rejected: int = 0
    """Of its last run, as the three before."""
    batch_seconds: float = 0.0
    entries_per_second: float = 0.0
    verified_at_ms: int = 0
    """When its tables were last compared with the log (`verify_every`); 0 for never."""
    differences: int = 0
    """Rows that differed then."""
    verify_code: str = ""
    """Of the error for which the last comparison came to nothing."""
    lost: int = 0
    """Entries that retention removed before its last run read them: its destination has a gap."""
    untidied: int = 0
    """Tables of which not all was tidied, when that was due last."""
    unmatched: list[str] = []
    """A sentence for each setting that names what the log on this machine has not told of."""


def chosen(settings: "Settings", names: Sequence[str]) -> "dict[str, PipelineConfig]":
    """The pipelines of these names, each once; without names, all. Raises ConfigError for one that
    is not there, and where there is none."""
    from penstock.cli.config import near

    for name in names:
        if name not in settings.pipelines:
            raise ConfigError(
                f"{settings.path}: there is no [pipelines.{name}]"
                f"{near(name, settings.pipelines)}. Nothing was started."
            )
    if not settings.pipelines:
        raise ConfigError(
            f"{settings.path}: there is no [pipelines.NAME]. Nothing was started. Write one, as "
            f"docs/how-to/pipelines.md shows."
        )
    return {name: settings.pipelines[name] for name in names or settings.pipelines}


def connected(settings: "Settings", endpoint: str | None) -> "LogClient":
    """A client of the service, and of its archive, that shows the token of the environment."""
    from penstock.archive.opening import log_client
    from penstock.client.credentials import Credentials

    return log_client(
        endpoint or settings.serve.flight,
        archive=settings.archive.path or "",
        patience_seconds=_PATIENCE_SECONDS,
        credentials=Credentials.from_environment(),
    )


def reports(
    pipelines: "Mapping[str, PipelineConfig]", known: "Sequence[PipelineStatus]"
) -> list[PipelineReport]:
    """Those that are configured and those that are known, by name."""
    said = {one.pipeline: one for one in known}
    return [
        _report(name, pipelines.get(name), said.get(name)) for name in sorted({*pipelines, *said})
    ]


def _report(
    name: str, config: "PipelineConfig | None", said: "PipelineStatus | None"
) -> PipelineReport:
    if said is None:
        assert config is not None
        return PipelineReport(
            pipeline=name, to=config.to, source=config.source, configured=True, state="never run"
        )
    shared = {
        field: getattr(said, field)
        for field in PipelineReport.__struct_fields__
        if field in said.__struct_fields__
    }
    return PipelineReport(configured=config is not None, **shared)


def list_all(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
) -> None:
    """How every pipeline is: where it stands, how far it is behind, and what the log keeps for it.

    With --json, one object a line. Exit code 6 if the service does not answer.
    """
    from penstock.cli.config import load
    from penstock.cli.status import unmatched_names

    settings = load(config)
    with connected(settings, endpoint) as client:
        found = reports(settings.pipelines, client.pipelines())
    names = unmatched_names(settings)
    found = [structs.replace(one, unmatched=names.get(one.pipeline, [])) for one in found]
    if as_json:
        for one in found:
            output.emit(to_builtins(one))
        return
    if not found:
        output.say("there are no pipelines")
        return
    output.stdout().print(table_of(found))
    for one in found:
        for sentence in one.unmatched:
            output.say(f"{one.pipeline}: {sentence}")


def lag(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
) -> None:
    """How far a pipeline is behind the log, in entries and seconds.

    Exit code 1 if it never ran, or retention has removed what it needs.
    """
    from penstock.cli.config import load

    settings = load(config)
    with connected(settings, endpoint) as client:
        found = {one.pipeline: one for one in reports(settings.pipelines, client.pipelines())}
    one = found.get(name)
    if one is None:
        raise _unknown(name)
    if as_json:
        output.emit(to_builtins(one))
    elif one.sequence is None:
        output.say(f"{name} never ran")
    else:
        output.say(
            f"{name}: {one.lag_entries or 0:,} entries, {output.duration(one.lag_seconds or 0.0)} "
            f"behind; {one.state}"
        )
        if one.trimmed:
            output.say("retention has removed entries that it has not applied")
    if one.sequence is None or one.trimmed:
        raise typer.Exit(1)


def stop(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for it to end; 0: not at all.")
    ] = 60.0,
) -> None:
    """Have the driver that runs a pipeline finish its batch and end it, wherever it runs.

    It stays stopped until somebody runs it again; its other pipelines go on. Exit code 1 if it has
    not ended in time: it was told, or will be when it can be.
    """
    from penstock.cli.config import load
    from penstock.client.pipelines import PipelineOrder

    settings = load(config)
    deadline = time.monotonic() + wait
    with connected(settings, endpoint) as client:
        client.order(PipelineOrder(pipeline=name, order="stop"))
        while True:
            found = {one.pipeline: one for one in client.pipelines()}.get(name)
            if found is None or not found.stopping or time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_SECONDS)
    state = "forgotten" if found is None else "stopping" if found.stopping else found.state
    if as_json:
        output.emit({"pipeline": name, "state": state})
    else:
        output.say(f"{name}: {state}")
    if state == "stopping" and wait:
        raise typer.Exit(1)


def forget(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: EndpointOption = None,
) -> None:
    """Keep nothing of the log for a pipeline any more, until it runs again.

    What its destination has stays. For one that was given up, or takes too much of the log.
    """
    from penstock.cli.config import load
    from penstock.client.pipelines import PipelineOrder

    settings = load(config)
    with connected(settings, endpoint) as client:
        client.order(PipelineOrder(pipeline=name, order="forget"))
    if as_json:
        output.emit({"pipeline": name, "state": "forgotten"})
    else:
        output.say(f"{name}: forgotten")


def _unknown(name: str) -> RequestError:
    return RequestError(
        f"there is no pipeline {name!r}, neither configured nor known to the service. "
        f"`penstock pipeline list` has their names."
    )


def table_of(found: Sequence[PipelineReport]) -> Table:
    """For people."""
    now_ms = time.time_ns() // 1_000_000
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("pipeline", "to", "source", "state", "at", "behind", "rate", "rejected", "held"):
        table.add_column(column, no_wrap=True)
    for one in found:
        behind = "-"
        if one.trimmed:
            behind = "[bold red]TRIMMED[/]"
        elif one.lag_entries is not None:
            behind = f"{one.lag_entries:,}"
            if one.lag_entries:
                behind += f", {output.duration(one.lag_seconds or 0.0)}"
        state = "stopping" if one.stopping else one.state
        if state == "running" and one.code:
            state = "waiting"
        code = f" ({output.cell(one.code)})" if one.code else ""
        state = f"[{STYLES.get(state, 'dim')}]{state}{code}[/]"
        if one.differences:
            state += f" [bold red]{one.differences:,} DIFFER[/]"
        if one.lost:
            state += f" [bold red]{one.lost:,} LOST[/]"
        if one.untidied:
            state += f" [bold red]{one.untidied:,} NOT TIDIED[/]"
        table.add_row(
            output.cell(one.pipeline),
            output.cell(one.to),
            output.cell(one.source),
            state,
            "-" if one.sequence is None else f"{one.sequence:,}",
            behind,
            f"{one.entries_per_second:,.0f}/s" if one.batches else "-",
            f"{one.rejected:,}" if one.batches else "-",
            "-" if (one.held_until_ms or 0) <= now_ms else output.size(one.held_bytes or 0),
        )
    return table
