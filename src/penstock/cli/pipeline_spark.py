"""The Spark session of a command: with the user's settings, as `penstock pipeline run` has it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.config import Settings
    from penstock.spark.config import PipelineConfig

MasterOption = Annotated[
    str | None,
    typer.Option(help="Spark's master; without it this machine, or what spark-submit says."),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; beats [spark]."),
]


@contextmanager
def own_errors(name: str) -> Generator[None]:
    """Raise whatever the block raises as an error of ours, of the pipeline of that name."""
    from penstock.spark.raised import own_error

    try:
        yield
    except (PenstockError, typer.Exit, typer.Abort):
        raise
    except Exception as error:
        raise own_error(error, pipeline=name) from error


@contextmanager
def session_for(
    what: str, name: str, settings: "Settings", master: str | None, conf: Sequence[str] | None
) -> "Generator[SparkSession]":
    """A session in which to do `what` for a pipeline; it is stopped at the end, if it was not there
    before. Spark's errors are raised as those that they are."""
    from pyspark.sql import SparkSession

    from penstock.cli.spark_settings import with_conf
    from penstock.spark.causes import LOST
    from penstock.spark.session import local_session, require_driver

    running = SparkSession.getActiveSession()
    spark = running or local_session(
        app_name=f"penstock {what} {name}",
        master=master,
        settings=with_conf(settings.spark, conf or ()),
    )
    require_driver(spark)
    try:
        with own_errors(name):
            yield spark
    finally:
        if running is None:
            with suppress(*LOST):
                spark.stop()


@contextmanager
def catalog_session(
    what: str,
    name: str,
    pipeline: "PipelineConfig",
    settings: "Settings",
    master: str | None,
    conf: Sequence[str] | None,
) -> "Generator[SparkSession | None]":
    """As `session_for`, where a pipeline's tables are in a catalog; no Spark is started for any
    other, and storage's errors are raised as those that they are."""
    if pipeline.to != "table" or pipeline.catalog is None:
        with own_errors(name):
            yield None
        return
    with session_for(what, name, settings, master, conf) as spark:
        yield spark
