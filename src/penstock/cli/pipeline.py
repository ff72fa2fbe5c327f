"""`penstock pipeline`: one Spark driver for all pipelines, and what may be asked of each."""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import to_builtins

from penstock.cli import (
    output,
    pipeline_ask,
    pipeline_export,
    pipeline_plan,
    pipeline_spark,
    pipeline_tidy,
    pipeline_verify,
)
from penstock.errors import ConfigError, PenstockError, PipelinesStoppedError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.spark.config import PipelineConfig

app = typer.Typer(help="Spark pipelines.", no_args_is_help=True)
app.command("list")(pipeline_ask.list_all)
app.command("lag")(pipeline_ask.lag)
app.command("plan")(pipeline_plan.plan)
app.command("stop")(pipeline_ask.stop)
app.command("forget")(pipeline_ask.forget)
app.command("reset")(pipeline_plan.reset)
app.command("backfill")(pipeline_plan.backfill)
app.command("tidy")(pipeline_tidy.command)
app.command("export")(pipeline_export.command)
app.command("verify")(pipeline_verify.command)


@app.command("run")
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Those of [pipelines.NAME]; without, all that there are."
        ),
    ] = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    once: Annotated[
        bool, typer.Option("--once", help="Apply what the log holds now, and end.")
    ] = False,
    endpoint: pipeline_ask.EndpointOption = None,
    master: pipeline_spark.MasterOption = None,
    conf: pipeline_spark.ConfOption = None,
) -> None:
    """Apply the log's changes to the pipelines' destinations until stopped with Ctrl-C.

    All run in one Spark session, each with a fair share of it. The service must run; each pipeline
    waits for it when it is away. One that cannot go on stops no other; it is named at the end, and
    the exit code is not 0 then. Batches that are being written are finished first.
    """
    import structlog

    from penstock.cli import logs
    from penstock.cli.config import load, missing_extra
    from penstock.cli.pipeline_metrics import Meter, shown
    from penstock.cli.spark_settings import with_conf
    from penstock.cli.status import unmatched_names
    from penstock.cli.telling import Teller
    from penstock.client.credentials import Credentials

    logs.configure(as_json=as_json, process="pipeline")
    settings = load(config)
    chosen = pipeline_ask.chosen(settings, names or ())
    log = structlog.get_logger()
    unmatched = unmatched_names(settings)
    for name in chosen:
        for sentence in unmatched.get(name, ()):
            log.warning("a setting names nothing", pipeline=name, reason=sentence)
    spark_settings = with_conf(settings.spark, conf or ())
    try:
        from penstock.cli.pipeline_screen import screen
        from penstock.spark.causes import LOST
        from penstock.spark.many import run_pipelines
        from penstock.spark.progress import PipelineProgress, RunBegan, RunFact
        from penstock.spark.rejected import Counted, with_rejected
        from penstock.spark.session import local_session
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error

    service = endpoint or settings.serve.flight
    expected = [(name, one) for name, config in chosen.items() for one in config.expectations]
    meter = Meter(list(chosen), service, expected=expected)
    credentials = Credentials.from_environment()
    addresses = [one.metrics for one in chosen.values()]
    stop = threading.Event()
    with _signals(stop), shown(addresses, meter):
        teller = Teller(as_json=as_json, stop=stop)
        try:
            spark = local_session(
                app_name=f"penstock {' '.join(chosen)}"[:100],
                master=master,
                settings=spark_settings,
            )
        except Exception:
            if stop.is_set():
                return  # the JVM got the signal too, before it could ignore it; nothing had begun
            raise
        with (
            _signals(stop),  # PySpark took SIGINT for itself
            screen(chosen, service, credentials, once=once, wanted=not as_json) as drawn,
        ):
            # Whoever sees the bars needs no lines; a file or a pipe has them all the same.
            lines_wanted = drawn is None or not sys.stdout.isatty()

            written = {name: Counted() for name in chosen}

            def tell(progress: PipelineProgress) -> None:
                meter.count(progress)
                written[progress.pipeline].count(progress)
                if drawn is not None:
                    drawn.batch(progress)
                if lines_wanted:
                    teller(progress)

            def fact(told: RunFact) -> None:
                if isinstance(told, RunBegan):
                    meter.began(told)
                if drawn is not None:
                    drawn.fact(told)

            def ended(name: str, error: PenstockError | None) -> None:
                if drawn is not None:
                    drawn.ended(name, error)
                elif error is not None and len(chosen) > 1:
                    _report(name, error, as_json=as_json)

            try:
                errors = run_pipelines(
                    chosen,
                    service,
                    spark=spark,
                    stop=stop,
                    once=once,
                    on_progress=tell,
                    on_fact=fact,
                    on_end=ended,
                    credentials=credentials,
                    archive=settings.archive.path or "",
                    open_sources={one.name: one.opening() for one in settings.sources.values()},
                )
            finally:
                with suppress(*LOST):  # it has stopped with its JVM
                    spark.stop()
    errors = with_rejected(errors, written)
    if len(chosen) == 1:
        for failed in errors.values():
            raise failed
    if errors:
        said = " ".join(f"[{name}] {error.code}: {error}" for name, error in errors.items())
        raise PipelinesStoppedError(failed=len(errors), of=len(chosen), said=said)


def _report(name: str, error: PenstockError, *, as_json: bool) -> None:
    """Say at once that one cannot go on; the others do."""
    if as_json:
        fact = {"pipeline": name, "error": {"code": error.code, "message": str(error)}}
        typer.echo(msgspec.json.encode(fact).decode(), err=True)
    else:
        output.say(f"{name} stopped for good: {error}", err=True)


@app.command("rejects")
def rejects(
    name: pipeline_ask.NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    master: pipeline_spark.MasterOption = None,
    conf: pipeline_spark.ConfOption = None,
) -> None:
    """List the changes that were rejected, and neither replayed nor followed by a later one.

    Spark is started only for tables in a catalog.
    """
    settings, pipeline = _pipeline(name, config)
    from penstock.cli.config import missing_extra

    try:
        from penstock.spark.replaying import pending_rejects
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error

    shown = ("sequence", "collection", "key", "reason", "step", "expectation", "field")
    with pipeline_spark.catalog_session("rejects", name, pipeline, settings, master, conf) as spark:
        pending = pending_rejects(name, pipeline, spark=spark)
    for one in pending:
        if as_json:
            output.emit({column: one.get(column) for column in shown})
        else:
            where = f"{one['collection'] or ''} {one['key'] or ''}".strip()
            output.say(f"{one['sequence']:,} {where}: {one['reason']}")


@app.command("replay")
def replay(
    name: pipeline_ask.NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    endpoint: pipeline_ask.EndpointOption = None,
    master: pipeline_spark.MasterOption = None,
    conf: pipeline_spark.ConfOption = None,
) -> None:
    """Try rejected changes again, as the pipeline is configured now.

    A change is applied once, and to current rows only while no later one of its row is in the
    table. A pipeline whose tables are in a catalog, or whose changelog is plain files, must not
    run meanwhile.
    """
    settings, pipeline = _pipeline(name, config)
    from penstock.cli.config import missing_extra
    from penstock.client.credentials import Credentials

    try:
        from penstock.spark.replaying import replay_rejects
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error
    service = endpoint or settings.serve.flight
    with pipeline_spark.catalog_session("replay", name, pipeline, settings, master, conf) as spark:
        outcomes = replay_rejects(
            name,
            pipeline,
            service,
            spark=spark,
            credentials=Credentials.from_environment(),
            archive=settings.archive.path or "",
        )
    for one in outcomes:
        if as_json:
            output.emit(to_builtins(one))
        else:
            why = f": {one.reason}" if one.reason else ""
            output.say(f"{one.sequence:,} {one.collection or ''} {one.key or ''} {one.state}{why}")


def _pipeline(name: str, config: Path) -> "tuple[Settings, PipelineConfig]":
    from penstock.cli.config import load, near

    settings = load(config)
    pipeline = settings.pipelines.get(name)
    if pipeline is None:
        raise ConfigError(
            f"{config}: there is no [pipelines.{name}]{near(name, settings.pipelines)}. "
            f"Nothing was changed."
        )
    return settings, pipeline


@contextmanager
def _signals(stop: threading.Event) -> Generator[None]:
    """SIGTERM and SIGINT set `stop`, while the block runs."""

    def handle(_signal: int, _frame: object) -> None:
        stop.set()

    before = {which: signal.signal(which, handle) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
