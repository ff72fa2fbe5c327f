"""`penstock status`: how capture, the log and its readers are. Works with the service down, too."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct, to_builtins
from rich.table import Table

from penstock.cli import output
from penstock.cli.status_shards import ShardReport, print_shards, shard_reports
from penstock.errors import LogError, PenstockError
from penstock.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.cli.config import Settings
    from penstock.ports import SourceState
    from penstock.serve.consumers import ConsumersStatus
    from penstock.state.standing import Standing

ASK_SECONDS = 5.0
STALE_MS = 10_000
"""What the serve process wrote longer ago than this is of a service that is down."""
NOT_CONFIGURED = "not configured"

_STYLES = {
    "running": "green",
    "finished": "green",
    "starting": "yellow",
    "retrying": "yellow",
    "log_full": "bold red",
    "paused": "yellow",
    "over_quota": "yellow",
    "stopped": "bold red",
    "down": "bold red",
}


class SourceReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """A source: where it stands in the log, and how its capture is."""

    source: str
    state: str
    """As capture says; `down` when capture does not answer, `not configured` when the log alone
    still knows it."""
    last_state: str | None = None
    """What it was when capture ended; None while capture answers. `since_ms`, `code` and `message`
    are of that state then."""
    since_ms: int | None = None
    code: str = ""
    message: str = ""
    """Why it is stopped or tried again, and what to do."""
    restarts: int = 0
    circuit: str = "closed"
    """`open` while a source that failed again and again is left alone; `half_open` on trial."""
    health: str | None = None
    """ok, degraded or unhealthy, as capture says."""
    silent: bool = False
    """It has had no change for silent_after. That is no gap."""
    seconds_to_loss: float | None = None
    """From the oldest change that the source still holds to our position; None where it cannot
    tell, or has discarded nothing yet."""
    events_per_second: float | None = None
    position: str | None = None
    commits: int = 0
    events: int = 0
    lag_seconds: float | None = None
    """For how long the source may have had what is not captured yet, by its heartbeats and the
    server's positions; None while capture does not answer."""
    unmatched: list[str] = []
    """Settings that name nothing which is there, a sentence each."""
    since_change_seconds: float | None = None
    """How far its newest event lies back, by its own clock and ours; None before the first."""
    moved_at_ms: int | None = None
    """When its position last moved; a quiet source moves it too."""
    rows: str | None = None
    """Its current rows: `current` or `behind` the log, complete both; `copying` or `incomplete`.
    None where nobody keeps them."""
    rows_lag_events: int | None = None
    """Entries of it that they do not have yet; None where they are too many to count."""
    rows_message: str = ""
    """Why they are not complete, and what to do."""


class LogReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The log: what it holds, and what it takes up."""

    path: str
    log_id: str
    trimmed: int
    head: int
    head_commit: int
    bytes: int


class ReaderReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """A consumer that is connected, or a pipeline that said how far it is."""

    name: str
    protocol: str
    sequence: int
    lag_events: int
    events_per_second: float | None = None
    """Of a consumer, since it connected; of a pipeline, between its last two reports."""
    at_ms: int
    """When it connected; for a pipeline, when it said so."""
    who: str = ""
    """Who said so, of a query that only says where it is."""
    state: str | None = None
    """Of a pipeline that `penstock pipeline run` runs, as `penstock pipeline list` says it; `away`
    while the service is down."""
    code: str = ""
    lag_seconds: float | None = None
    held_bytes: int | None = None


class StateReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The current rows beside the log."""

    sequence: int
    """How much of the log they have."""
    lag_events: int
    """Entries of the log that they do not have yet."""
    lag_seconds: float
    """Since when the first of those is durable; 0 if there is none."""
    code: str = ""
    """Of the error that keeps them from going on, as the serve process says, or from being read."""
    message: str = ""


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that `penstock status` says."""

    capture: bool
    serve: bool
    serve_told_ms: int
    """When what is said of consumers and pipelines was written, in Unix milliseconds; 0: never."""
    age_retention_paused: bool
    """The clocks have parted, so nothing is removed for its age until they agree again."""
    archive: dict[str, Any] | None
    """How far the archive is; None when capture does not answer or archives nothing."""
    publishing: dict[str, Any] | None
    """How the published copy is kept up; None when capture does not answer or publishes nothing."""
    log: LogReport | None
    state: StateReport | None
    """None where nobody keeps current rows."""
    sources: list[SourceReport]
    consumers: list[ReaderReport]
    pipelines: list[ReaderReport]
    unmatched: dict[str, list[str]]
    """By configured pipeline: a sentence for each setting that names what the log has not told
    of, where current rows are kept."""
    shards: list[ShardReport]
    """Of Zero; as the serve process knew them last."""


def command(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Say how every source, consumer and pipeline is, and what the log holds.

    Reads the log itself, so the service may be down. Exit code 1 unless capture and serve are up
    and every configured source is captured.
    """
    from penstock.cli.config import load

    settings = load(config)
    report = look(settings)
    if as_json:
        output.emit(to_builtins(report))
    else:
        show(report)
    if not healthy(report):
        raise typer.Exit(1)


def healthy(report: Report) -> bool:
    """Whether everything does what it should right now.

    A source that was taken out of the configuration is shown for what the log holds of it.
    """
    fine = {"running", "finished", "starting", NOT_CONFIGURED}
    return report.capture and report.serve and all(one.state in fine for one in report.sources)


def look(settings: "Settings") -> Report:
    """Ask capture, and read what the log and the serve process wrote."""
    from penstock.kv import exists
    from penstock.serve.consumers import consumers_path, read_status, there_ms

    path = settings.log.path
    answer = ask_capture(settings)
    now_ms = time.time_ns() // 1_000_000
    states: list[SourceState] = []
    log: LogReport | None = None
    rows: Standing | LogError | None = None
    if exists(path):
        states, log, rows = asyncio.run(_read_log(settings, now_ms))
    head = log.head if log is not None else 0
    status = read_status(consumers_path(settings.log.path))
    there = there_ms(consumers_path(settings.log.path))
    serving = status is not None and now_ms - max(status.written_at, there) < STALE_MS
    consumers: list[ReaderReport] = []
    pipelines: list[ReaderReport] = []
    if status is not None:
        for reader in status.readers if serving else ():
            seconds = max(1, now_ms - reader.connected_at) / 1000
            consumers.append(
                ReaderReport(
                    name=reader.consumer_id,
                    protocol=reader.protocol,
                    sequence=reader.sequence,
                    lag_events=max(0, head - reader.sequence),
                    events_per_second=reader.events / seconds,
                    at_ms=reader.connected_at,
                )
            )
        pipelines = pipeline_reports(status, head, serving)
    kept = None if isinstance(rows, LogError) else rows
    reports = _sources(settings, answer, states, now_ms, kept)
    return Report(
        capture=answer is not None,
        serve=serving,
        serve_told_ms=0 if status is None else status.written_at,
        age_retention_paused=bool((answer or {}).get("ageRetentionPaused")),
        archive=(answer or {}).get("archive"),
        publishing=ask_publishing(settings) if answer is not None else None,
        log=log,
        state=_state(rows, status if serving else None, head=head),
        sources=reports,
        consumers=consumers,
        pipelines=pipelines,
        unmatched=unmatched_names(settings),
        shards=shard_reports(
            *(status, log.head_commit if log is not None else 0),
            {one.source for one in reports if one.rows in {"copying", "incomplete"}},
            serving,
        ),
    )


def unmatched_names(settings: "Settings") -> dict[str, list[str]]:
    """What the configured pipelines name and the current rows beside the log do not know."""
    from penstock.state.tables import known_collections

    found: dict[str, list[str]] = {}
    for name, pipeline in settings.pipelines.items():
        known: set[tuple[str, str]] = set()
        with suppress(PenstockError):  # the rows that cannot be read are told by themselves
            known = known_collections(settings.log.path, pipeline.source)
        if told := pipeline.unmatched({collection for _, collection in known}):
            found[name] = told
    return found


def pipeline_reports(status: "ConsumersStatus", head: int, serving: bool) -> list[ReaderReport]:
    """What pipelines said, and Spark queries that only say where they are; by name."""
    rates = {said.name: said.events_per_second for said in status.reported if not said.who}
    known = [
        ReaderReport(
            name=one.pipeline,
            protocol=one.to,
            sequence=one.sequence,
            lag_events=max(0, head - one.sequence),
            events_per_second=rates.get(one.pipeline),
            at_ms=one.told_at_ms,
            state=one.state if serving or one.state != "running" else "away",
            code=one.code,
            lag_seconds=one.lag_seconds,
            held_bytes=one.held_bytes,
        )
        for one in status.pipelines
    ]
    names = {one.name for one in known}
    reported = [
        ReaderReport(
            name=said.name,
            protocol=said.kind,
            sequence=said.sequence,
            lag_events=max(0, head - said.sequence),
            events_per_second=said.events_per_second,
            at_ms=said.updated_at,
            who=said.who,
        )
        for said in status.reported
        if said.name not in names
    ]
    return sorted([*known, *reported], key=lambda one: one.name)


def ask_capture(settings: "Settings") -> dict[str, Any] | None:
    """What capture says of itself; None when it does not answer."""
    from penstock.log.wake import ask

    try:
        answer = ask(settings.log.path, {"request": "status"}, timeout_seconds=ASK_SECONDS)
    except LogError:
        return None
    return answer if "sources" in answer else None


def ask_publishing(settings: "Settings") -> dict[str, Any] | None:
    """How capture publishes; None when it does not answer, or publishes nothing."""
    from penstock.cli.control import request
    from penstock.errors import RequestError

    if settings.checkpoint.store == "none":
        return None
    try:
        return request(settings.log.path, "checkpoint", timeout_seconds=ASK_SECONDS) or None
    except (LogError, RequestError):
        return None


def _state(
    rows: "Standing | LogError | None", serve: "ConsumersStatus | None", *, head: int
) -> StateReport | None:
    """What lies beside the log, and what whoever keeps it says of itself."""
    said = None if serve is None else serve.current
    if rows is None:
        return None
    if isinstance(rows, LogError):
        return StateReport(
            sequence=0, lag_events=head, lag_seconds=0.0, code=rows.code, message=str(rows)
        )
    return StateReport(
        sequence=rows.sequence,
        lag_events=rows.lag_events,
        lag_seconds=rows.lag_seconds,
        code="" if said is None else said.code,
        message="" if said is None else said.message,
    )


async def _read_log(
    settings: "Settings", now_ms: int
) -> "tuple[list[SourceState], LogReport, Standing | LogError | None]":
    from penstock.log import LmdbLogReader
    from penstock.state.standing import standing

    path = settings.log.path
    async with LmdbLogReader(path) as reader:
        rows: Standing | LogError | None = None
        if settings.state.enabled:
            try:
                rows = await standing(reader, path, now_ms=now_ms)
            except LogError as error:  # told in its place: everything else can be said
                rows = error
        # In this order, so that the head is never behind what the sources have appended.
        sources = await reader.sources()
        bounds = await reader.bounds()
        report = LogReport(
            path=str(path),
            log_id=f"{bounds.log_id:016x}",
            trimmed=bounds.trimmed,
            head=bounds.head,
            head_commit=bounds.head_commit,
            bytes=(path / "data.mdb").stat().st_blocks * 512,
        )
        return sources, report, rows


def _sources(
    settings: "Settings",
    answer: dict[str, Any] | None,
    states: "list[SourceState]",
    now_ms: int,
    rows: "Standing | None",
) -> list[SourceReport]:
    """Sources that are configured, and those that only the log still knows."""
    from penstock.cli.last_states import LastStates

    told = {one["source"]: one for one in (answer or {}).get("sources", [])}
    last = LastStates(settings.log.path).read() if answer is None else {}
    durable = {state.source: state for state in states}
    reports: list[SourceReport] = []
    for name in dict.fromkeys([*settings.sources, *told, *durable]):
        said, state = told.get(name), durable.get(name)
        facts: dict[str, Any] = {"state": "down" if name in settings.sources else NOT_CONFIGURED}
        if name in settings.sources and name in last:
            was = last[name]
            facts |= {"since_ms": was.since_ms, "code": was.code, "message": was.message}
            facts["last_state"] = was.state
        if said is not None:
            facts = {
                "state": said["state"],
                "since_ms": said["sinceMs"],
                "code": said["code"],
                "message": said["message"],
                "restarts": said["restarts"],
                "circuit": said["circuit"],
                "health": said["health"],
                "silent": said["silent"],
                "seconds_to_loss": said["secondsToLoss"],
                "events_per_second": said["eventsPerSecond"],
                "lag_seconds": said["lagSeconds"],
                "unmatched": said["unmatched"],
            }
        if state is not None:
            facts |= {
                "position": state.position,
                "commits": state.commits,
                "events": state.events,
                "moved_at_ms": state.moved_at,
                "since_change_seconds": max(0.0, (now_ms - state.last_timestamp) / 1000)
                if state.last_timestamp
                else None,
            }
        kept = None if rows is None else rows.sources.get(name)
        if kept is not None:
            facts |= {
                "rows": kept.rows,
                "rows_lag_events": kept.lag_events,
                "rows_message": kept.message,
            }
        reports.append(SourceReport(source=name, **facts))
    return reports


# --- for people -------------------------------------------------------------------------------


def _print_archive(console: "Console", archive: dict[str, Any]) -> None:
    if archive["until"] is not None:
        console.print(
            f"archive: entries {archive['begin'] + 1:,} to {archive['until']:,} in "
            f"{archive['ranges']:,} files, {output.size(archive['bytes'])} in {archive['path']}",
            markup=False,
            soft_wrap=True,
        )
    if archive["lost"]:
        console.print(
            f"archive: {archive['lost']:,} entries were removed by retention before they were "
            f"archived; readers take what follows them",
            style="bold red",
            soft_wrap=True,
        )
    if archive["message"]:
        said = harmless(archive["message"])
        console.print(said, style="yellow", markup=False, soft_wrap=True)


def show(report: Report) -> None:
    """For people."""
    console, now_ms = output.stdout(), time.time_ns() // 1_000_000
    for name, up in (("capture", report.capture), ("serve", report.serve)):
        console.print(f"{name}: " + ("[green]up[/]" if up else "[bold red]down[/]"))
    old_ms = now_ms - report.serve_told_ms
    if report.serve and old_ms > STALE_MS:
        console.print(
            f"what is said of consumers and pipelines is {output.duration(old_ms / 1000)} old: it "
            f"could not be written since, as on a full disk. They are served all the same. The "
            f"service's log says why.",
            style="yellow",
            soft_wrap=True,
        )
    if report.age_retention_paused:
        console.print(
            "retention by age is paused: the clock was set, or the log was closed for over an "
            "hour. It goes on once the clock is right, or has been as it is for an hour; limits of "
            "bytes and entries hold meanwhile.",
            style="yellow",
            soft_wrap=True,
        )
    if report.publishing is not None and report.publishing["message"]:
        said = harmless(report.publishing["message"])
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    if report.log is None:
        console.print("log: none yet")
    else:
        log = report.log
        console.print(
            f"log: {log.head - log.trimmed:,} entries ({log.trimmed + 1:,} to {log.head:,}), "
            f"{log.head_commit:,} commits so far, {output.size(log.bytes)} in {log.path}",
            markup=False,
            soft_wrap=True,
        )
    if report.archive is not None:
        _print_archive(console, report.archive)
    if report.state is not None:
        _print_state(console, report.state)
    if report.sources:
        table = _table(
            *("source", "state", "position", "events", "rate", "lag", "quiet", "to loss", "rows")
        )
        for source in report.sources:
            style = _STYLES.get(source.state, "dim")
            rate, lag = source.events_per_second, source.lag_seconds
            since = source.since_change_seconds
            table.add_row(
                output.cell(source.source),
                f"[{style}]{source.state}[/]",
                output.cell(_shortened(source.position or "-")),
                f"{source.events:,}",
                "-" if rate is None else f"{rate:,.0f}/s",
                "-" if lag is None else output.duration(lag),
                "-" if since is None else output.duration(since),
                "-" if source.seconds_to_loss is None else output.duration(source.seconds_to_loss),
                _rows(source),
            )
        console.print(table)
        for source in report.sources:
            if source.silent:
                console.print(
                    f"{harmless(source.source)} has had no change for long. Nothing is missing; "
                    f"should it be quiet?",
                    style="yellow",
                    markup=False,
                )
            for sentence in source.unmatched:
                said = harmless(f"{source.source}: {sentence}")
                console.print(said, style="yellow", markup=False, soft_wrap=True)
            if source.message:
                was = "" if source.last_state is None else f"{source.last_state} before: "
                style = _STYLES.get(source.state, "")
                said = was + harmless(source.message)
                console.print(said, style=style, markup=False, soft_wrap=True)
    for title, readers in (("consumer", report.consumers), ("pipeline", report.pipelines)):
        if readers:
            named = Counter(reader.name for reader in readers)
            table = _table(title, "over", "sequence", "lag", "rate", "since", "state")
            for reader in readers:
                rate = reader.events_per_second
                by = f" ({reader.who})" if reader.who and named[reader.name] > 1 else ""
                table.add_row(
                    output.cell(reader.name + by) or "(unnamed)",
                    output.cell(reader.protocol),
                    f"{reader.sequence:,}",
                    f"{reader.lag_events:,} events",
                    "-" if rate is None else f"{rate:,.0f}/s",
                    output.ago(reader.at_ms, now_ms),
                    output.cell(reader.state or "-"),
                )
            console.print(table)
    for name, sentences in report.unmatched.items():
        for sentence in sentences:
            said = harmless(f"pipeline {name}: {sentence}")
            console.print(said, style="yellow", markup=False, soft_wrap=True)
    if report.shards:
        print_shards(console, report.shards, now_ms)


def _print_state(console: "Console", state: StateReport) -> None:
    lag = "at the log's end"
    if state.lag_events:
        since = output.duration(state.lag_seconds)
        lag = f"{state.lag_events:,} entries behind the log, for {since}"
    console.print(f"current rows: {lag}", markup=False)
    if state.message:
        said = harmless(state.message)
        console.print(said, style="yellow", markup=False, soft_wrap=True)


def _rows(source: SourceReport) -> str:
    if source.rows is None:
        return "-"
    style = {"current": "green", "behind": "green"}.get(source.rows, "yellow")
    lag = "" if not source.rows_lag_events else f" {source.rows_lag_events:,}"
    return f"[{style}]{source.rows}{lag}[/]"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # Where there is too little room, the last column has several lines.
        table.add_column(column, no_wrap=column != "rows")
    return table


def _shortened(position: str) -> str:
    return position if len(position) <= 24 else f"{position[:10]}…{position[-10:]}"
