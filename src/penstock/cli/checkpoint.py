"""`penstock checkpoint show | set | clear`: where sources stand, here and as published."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, to_builtins
from rich.table import Table

from penstock.cli import output
from penstock.errors import CheckpointError, ConfigError, LogError, LogLockedError, RequestError
from penstock.harmless import harmless

if TYPE_CHECKING:
    from penstock.capture.moving import Move
    from penstock.cli.config import Settings
    from penstock.ports import Bounds, Checkpoint, SourceState

app = typer.Typer(
    help="Where every source stands: in the log, and as published. Move one by hand.",
    no_args_is_help=True,
)

SourceArgument = Annotated[str, typer.Argument(help="The source's name.", metavar="SOURCE")]


class SourceReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """A source: its position beside the events, and the published one."""

    source: str
    position: str | None
    moved_at_ms: int | None
    published: str | None
    """None where nothing is published of it."""
    published_moved_at_ms: int | None


class PublishedReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The published copy of this service."""

    log_id: str
    sequence: int
    commit: int
    published_at_ms: int
    standing: str | None
    """What the log here is to it (`penstock.capture.lineage.Standing`); None without a log."""
    lag_events: int | None
    """How many entries of our log it does not know yet; None if it is of another log."""


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that `penstock checkpoint show` says."""

    store: str
    instance: str | None
    log_id: str | None
    sequence: int
    commit: int
    published: PublishedReport | None
    publishing: dict[str, Any] | None
    """How the running service publishes; None when it does not run or publishes nothing."""
    sources: list[SourceReport]
    code: str = ""
    """Why the store could not be asked."""
    message: str = ""


@app.command("show")
def show(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Show each source's position, sequence and age: in the log, and as published.

    Asks the log and the store themselves, so the service may be down. Exit code 8 when the store
    does not answer; what the log says is shown even then.
    """
    from penstock.cli.config import load

    report = asyncio.run(_look(load(config)))
    if as_json:
        output.emit(to_builtins(report))
    else:
        _print(report)
    if report.code:
        raise typer.Exit(CheckpointError.exit_code)


@app.command("set")
def set_(
    source: SourceArgument,
    position: Annotated[
        str, typer.Argument(help="A position of this source, whole.", metavar="POSITION")
    ],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Have a source go on from another position; the log gets a gap that says so.

    Only while it is not captured: the service is down, or the source is paused or has stopped. The
    position is the source's own text. A copy that was under way begins anew there.
    """
    _moved(config, source, position, as_json=as_json)


@app.command("clear")
def clear(
    source: Annotated[
        str | None, typer.Argument(help="The source's name.", metavar="[SOURCE]")
    ] = None,
    published: Annotated[
        bool,
        typer.Option("--published", help="Forget the published copy of this service instead."),
    ] = False,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Forget a source's position, so that it begins where its `start` says; the log gets a gap.

    Only while it is not captured, as for `set`. With --published, forget this service's copy in the
    store: then the next service of that name to publish takes it, whatever its log.
    """
    if (source is None) == (not published):
        raise RequestError("name a SOURCE, or say --published. Nothing was changed.")
    if source is not None:
        _moved(config, source, None, as_json=as_json)
        return
    from penstock.cli.config import load

    settings = load(config)
    asyncio.run(_unpublish(settings))
    instance = settings.checkpoint.instance
    if as_json:
        output.emit({"instance": instance, "cleared": True})
    else:
        _say(f"nothing is published of instance {instance} any more")


# --- moving a position --------------------------------------------------------------------------


def _moved(config: Any, source: str, position: str | None, *, as_json: bool) -> None:
    from penstock.cli.config import load

    done = asyncio.run(_move(load(config), source, position))
    if as_json:
        output.emit(to_builtins(done))
        return
    to = "where its `start` says" if done.after is None else f"from {_shortened(done.after)}"
    told = "; the log has a gap that says so" if done.gap else ""
    _say(f"{source} goes on {to}{told}. It stood at {_shortened(done.before)}.")
    if done.copy == "anew":
        _say("The copy that was under way begins anew there: what it told before proves nothing.")
    elif done.copy == "dropped":
        _say(
            f"The copy that was under way is given up. Unless `start` makes one, run "
            f"`penstock snapshot {source}` once it is captured."
        )


async def _move(settings: "Settings", source: str, position: str | None) -> "Move":
    """Move in the log itself if nobody writes it, and else through whoever does."""
    import msgspec

    from penstock.capture.moving import Move, move
    from penstock.cli.config import near
    from penstock.cli.control import request
    from penstock.kv import exists
    from penstock.log import LmdbLog

    path = settings.log.path
    if not exists(path):
        raise LogError(f"there is no log at {path} yet, so nothing stands anywhere in it.")
    try:
        log = LmdbLog(settings.log, trims=False)
    except LogLockedError:
        answer = await asyncio.to_thread(
            request, path, "checkpoint_move", source=source, position=position
        )
        return msgspec.convert(answer["move"], Move)
    async with log:
        known = {*settings.sources, *(state.source for state in await log.sources())}
        if source not in known:
            raise RequestError(
                f"there is no source {source!r}{near(source, sorted(known))}. Nothing was changed."
            )
        adapter = settings.sources[source].open() if source in settings.sources else None
        now_ms = time.time_ns() // 1_000_000
        return await move(log, source, position, now_ms=now_ms, adapter=adapter)


async def _unpublish(settings: "Settings") -> None:
    from penstock.cli.publishing import instance_of, store_of

    store = store_of(settings)
    if store is None:
        raise ConfigError(
            f"{settings.path} names no store of published copies ([checkpoint] store). Nothing was "
            f"changed."
        )
    try:
        await store.clear(instance_of(settings))
    finally:
        await store.close()


# --- looking ------------------------------------------------------------------------------------


async def _look(settings: "Settings") -> Report:
    from penstock.capture.lineage import standing
    from penstock.cli.status import ask_publishing
    from penstock.kv import exists
    from penstock.log import LmdbLogReader

    published, failure = await _published(settings)
    states: list[SourceState] = []
    bounds: Bounds | None = None
    says: PublishedReport | None = None
    if exists(settings.log.path):
        async with LmdbLogReader(settings.log.path) as log:
            states, bounds = await log.sources(), await log.bounds()
            if published is not None:
                check = await log.check_at(published.sequence)
                stands = standing(published, bounds, check=check).value
                says = _said(published, bounds, stands)
    elif published is not None:
        says = _said(published, None, None)
    copies = {} if published is None else {state.source: state for state in published.sources}
    local = {state.source: state for state in states}
    return Report(
        store=settings.checkpoint.store,
        instance=settings.checkpoint.instance,
        log_id=None if bounds is None else f"{bounds.log_id:016x}",
        sequence=0 if bounds is None else bounds.head,
        commit=0 if bounds is None else bounds.head_commit,
        published=says,
        publishing=await asyncio.to_thread(ask_publishing, settings),
        sources=[
            _source(name, local.get(name), copies.get(name))
            for name in dict.fromkeys([*settings.sources, *local, *copies])
        ],
        code="" if failure is None else failure.code,
        message="" if failure is None else str(failure),
    )


def _source(
    name: str, local: "SourceState | None", published: "SourceState | None"
) -> SourceReport:
    return SourceReport(
        source=name,
        position=None if local is None else local.position,
        moved_at_ms=None if local is None else local.moved_at,
        published=None if published is None else published.position,
        published_moved_at_ms=None if published is None else published.moved_at,
    )


def _said(
    published: "Checkpoint", bounds: "Bounds | None", standing: str | None
) -> PublishedReport:
    ours = bounds is not None and bounds.log_id == published.log_id
    return PublishedReport(
        log_id=f"{published.log_id:016x}",
        sequence=published.sequence,
        commit=published.commit,
        published_at_ms=published.published_at,
        standing=standing,
        lag_events=bounds.head - published.sequence if ours and bounds is not None else None,
    )


async def _published(settings: "Settings") -> "tuple[Checkpoint | None, CheckpointError | None]":
    from penstock.cli.publishing import published_now, store_of

    store = store_of(settings)
    if store is None:
        return None, None
    try:
        return await published_now(settings, store), None
    except CheckpointError as error:
        return None, error
    finally:
        await store.close()


def _print(report: Report) -> None:
    console, now_ms = output.stdout(), time.time_ns() // 1_000_000
    if report.log_id is None:
        console.print("log: none yet")
    else:
        _say(f"log {report.log_id}: sequence {report.sequence:,}, commit {report.commit:,}")
    if report.store == "none":
        console.print("nothing is published: [checkpoint] names no store", markup=False)
    elif report.published is not None:
        copy = report.published
        lag = "" if copy.lag_events is None else f", {copy.lag_events:,} entries behind the log"
        _say(
            f"published in {report.store} as {report.instance}: log {copy.log_id}, sequence "
            f"{copy.sequence:,}, commit {copy.commit:,}, "
            f"{output.ago(copy.published_at_ms, now_ms)} ago{lag} ({copy.standing or 'no log'})"
        )
    elif not report.message:
        _say(f"published in {report.store} as {report.instance}: nothing yet")
    if report.sources:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("source", "position", "age", "published", "age"):
            table.add_column(column, no_wrap=True)
        for one in report.sources:
            table.add_row(
                output.cell(one.source),
                output.cell(_shortened(one.position)),
                output.ago(one.moved_at_ms or 0, now_ms),
                output.cell(_shortened(one.published)),
                output.ago(one.published_moved_at_ms or 0, now_ms),
            )
        console.print(table)
    for message in (report.message, (report.publishing or {}).get("message", "")):
        if message:
            console.print(harmless(message), style="bold red", markup=False, soft_wrap=True)
            break


def _say(line: str) -> None:
    output.stdout().print(line, markup=False, soft_wrap=True, highlight=False)


def _shortened(position: str | None) -> str:
    if position is None:
        return "-"
    return position if len(position) <= 32 else f"{position[:14]}…{position[-14:]}"
