"""`penstock pipeline run`: a Spark driver that keeps tables equal to collections."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli import output
from penstock.errors import ConfigError

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
    from penstock.cli import logs
    from penstock.cli.config import load, missing_extra, near
    from penstock.cli.pipeline_metrics import Meter, shown
    from penstock.cli.telling import Teller
    from penstock.client.credentials import Credentials

    logs.configure(as_json=as_json, process="pipeline")
    settings = load(config)
    pipeline = settings.pipelines.get(name)
    if pipeline is None:
        raise ConfigError(
            f"{config}: there is no [pipelines.{name}]{near(name, settings.pipelines)}. "
            f"Nothing was started."
        )
    try:
        from penstock.spark.run import PipelineProgress, run_pipeline
        from penstock.spark.session import local_session
    except ImportError as error:
        raise missing_extra("a pipeline", "spark,java", error) from error

    service = endpoint or settings.serve.flight
    meter = Meter(name, service)
    with _signals() as stop, shown(pipeline.metrics, meter):
        teller = Teller(name, service, as_json=as_json, stop=stop)

        def tell(progress: PipelineProgress) -> None:
            meter.count(progress)
            teller(progress)

        run_pipeline(
            name,
            pipeline,
            service,
            spark=None
            if master is None
            else local_session(app_name=f"penstock {name}", master=master),
            once=once,
            on_progress=tell,
            stop=stop,
            credentials=Credentials.from_environment(),
            archive=settings.archive.path or "",
        )


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
