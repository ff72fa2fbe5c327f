"""`penstock pipeline run`: a Spark driver that keeps tables equal to collections."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
from msgspec import to_builtins

from penstock.cli import logs, output
from penstock.cli.config import load, missing_extra, near
from penstock.client.flight import LogClient, PipelineReport
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.run import PipelineProgress

logger = structlog.get_logger(__name__)

app = typer.Typer(help="Spark pipelines.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="The pipeline: NAME of [pipelines.NAME].")],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    once: Annotated[
        bool, typer.Option("--once", help="Apply what the log holds now, and end.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(help="The service's Flight address, instead of the configured one."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master; without it this machine, or what spark-submit says."),
    ] = None,
) -> None:
    """Apply the log's changes to the pipeline's tables until stopped with Ctrl-C.

    The service must run; this waits for it when it is away. A batch that is being written is
    finished first.
    """
    logs.configure(as_json=as_json, process="pipeline")
    settings = load(config)
    pipeline = settings.pipelines.get(name)
    if pipeline is None:
        raise ConfigError(
            f"{config}: there is no [pipelines.{name}]{near(name, settings.pipelines)}. "
            f"Nothing was started."
        )
    try:
        from penstock.spark.run import run_pipeline
        from penstock.spark.session import local_session
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error

    service = endpoint or settings.serve.flight
    with _signals() as stop:
        run_pipeline(
            name,
            pipeline,
            service,
            spark=None
            if master is None
            else local_session(app_name=f"penstock {name}", master=master),
            once=once,
            on_progress=Teller(name, service, as_json=as_json, stop=stop),
            stop=stop,
        )


class Teller:
    """Says what a batch did: to the service, for `penstock status`, and on stdout.

    Neither may fail the pipeline: its tables are what counts. A service that does not listen costs
    a second at most. A reader of stdout that went away has seen enough, so `stop` is set.
    """

    def __init__(self, name: str, endpoint: str, *, as_json: bool, stop: threading.Event) -> None:
        self._name = name
        self._endpoint = endpoint
        self._as_json = as_json
        self._stop = stop
        self._heard = True

    def __call__(self, progress: "PipelineProgress") -> None:
        try:
            self._say(progress)
        except BrokenPipeError:
            output.silence()
            self._stop.set()
        if progress.sequence:
            self._tell_service(progress.sequence)

    def _say(self, progress: "PipelineProgress") -> None:
        if self._as_json:
            output.emit(to_builtins(progress))
        elif progress.entries:
            # Not through rich, which ends the program at a broken pipe.
            typer.echo(
                f"batch {progress.batch_id}: {progress.entries:,} entries, {progress.rows:,} rows, "
                f"{progress.rejected:,} rejected, up to {progress.sequence:,} "
                f"({progress.entries_per_second:,.0f}/s)"
            )

    def _tell_service(self, sequence: int) -> None:
        """Spark itself would tell only when the next batch begins."""
        try:
            with LogClient(self._endpoint, patience_seconds=0, call_seconds=0.5) as client:
                log_id = client.bounds().log_id
                client.report(PipelineReport(pipeline=self._name, log_id=log_id, sequence=sequence))
        except Exception as error:
            # Whatever it is: the next report, or the next read of the log, meets it again.
            if self._heard:
                code = error.code if isinstance(error, PenstockError) else type(error).__name__
                logger.warning("service not told of a batch", pipeline=self._name, code=code)
            self._heard = False
        else:
            self._heard = True


@contextmanager
def _signals() -> Generator[threading.Event]:
    """An event that SIGTERM and SIGINT set, while the block runs."""
    stop = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        stop.set()

    before = {which: signal.signal(which, handle) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
