"""`penstock pipeline run`: a Spark driver that keeps tables equal to collections."""

from typing import Annotated

import typer
from msgspec import to_builtins

from penstock.cli import logs, output
from penstock.cli.config import load, missing_extra, near
from penstock.client.flight import LogClient, PipelineReport
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

    def on_progress(progress: PipelineProgress) -> None:
        if progress.sequence:
            _tell_service(service, name, progress.sequence)
        if as_json:
            output.emit(to_builtins(progress))
        elif progress.entries:
            output.stdout().print(
                f"batch {progress.batch_id}: {progress.entries:,} entries, {progress.rows:,} rows, "
                f"{progress.rejected:,} rejected, up to {progress.sequence:,} "
                f"({progress.entries_per_second:,.0f}/s)",
                markup=False,
            )

    spark = None if master is None else local_session(app_name=f"penstock {name}", master=master)
    run_pipeline(
        name,
        pipeline,
        service,
        spark=spark,
        once=once,
        on_progress=on_progress,
    )


def _tell_service(endpoint: str, name: str, sequence: int) -> None:
    """Have `penstock status` show the batch; Spark itself would tell only when the next begins."""
    with LogClient(endpoint) as client:
        log_id = client.bounds().log_id
        client.report(PipelineReport(pipeline=name, log_id=log_id, sequence=sequence))
