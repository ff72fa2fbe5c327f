"""`penstock pipeline export`: a pipeline as a project of Spark Declarative Pipelines."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.pipeline_spark import own_errors
from penstock.errors import ConfigError


def command(
    name: Annotated[str, typer.Argument(help="The pipeline: NAME of [pipelines.NAME].")],
    folder: Annotated[Path, typer.Option("--to", help="A new folder for the project.")],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            help="The columns of a collection: 'COLLECTION=NAME TYPE, …'. Without it those of the "
            "table that the pipeline has made."
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="The service's Flight address, instead of the configured one."),
    ] = None,
) -> None:
    """Write a project that applies the same changes with the engine's AUTO CDC.

    Nothing runs. The project keeps tables of its own, and where it stands by itself.
    """
    from penstock.cli.config import load, missing_extra, near

    settings = load(config)
    pipeline = settings.pipelines.get(name)
    if pipeline is None:
        raise ConfigError(
            f"{config}: there is no [pipelines.{name}]{near(name, settings.pipelines)}. "
            f"Nothing was written."
        )
    try:
        from penstock.archive.place import shown
        from penstock.spark.config import (
            DeltaPipelineConfig,
            HistoryPipelineConfig,
            TablePipelineConfig,
        )
        from penstock.spark.exporting import SPEC, columns_of, project
        from penstock.spark.history.delta import VersionTable
        from penstock.spark.table.delta import Table, secrets
        from penstock.spark.table.writing import HARMLESS
    except ImportError as error:
        raise missing_extra("an export", "spark", error) from error

    schemas = dict(_named(one) for one in schema or ())
    if isinstance(pipeline, TablePipelineConfig) and pipeline.catalog is not None:
        unknown = sorted(set(pipeline.collections).difference(schemas))
        if unknown:
            raise ConfigError(
                f"the tables of pipeline {name} are in a catalog, which this does not read: tell "
                f"the columns of {', '.join(unknown)} with --schema 'COLLECTION=NAME TYPE, …'. "
                f"Nothing was written."
            )
    if isinstance(pipeline, DeltaPipelineConfig):
        storage = secrets(pipeline.storage_options)
        kind = VersionTable if isinstance(pipeline, HistoryPipelineConfig) else Table
        for one in set(pipeline.collections).difference(schemas):
            with own_errors(name):
                table = kind(pipeline.table_path(one), storage_options=storage)
                schemas[one] = columns_of(table.schema)
    archive = settings.archive.path or ""
    files = project(
        name,
        pipeline,
        endpoint=endpoint or settings.serve.flight,
        storage=(folder.resolve() / "storage").as_uri(),
        schemas=schemas,
        harmless=HARMLESS,
        archive=archive,
        archive_is_secret=shown(archive) != archive,
    )
    if folder.exists():
        raise ConfigError(f"{folder} is there already. Nothing was written. Name a new folder.")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    output.say(f"{folder / SPEC}: run it there with `spark-pipelines run`")


def _named(given: str) -> tuple[str, str]:
    collection, equals, columns = given.partition("=")
    if not equals or not collection or not columns.strip():
        raise ConfigError(
            f"--schema is {given!r}; it must be COLLECTION=COLUMNS. Nothing was written."
        )
    return collection, columns
