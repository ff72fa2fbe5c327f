"""`penstock pipeline tidy`: what is done for tables between batches, by hand."""

from typing import Final

from penstock.cli import output
from penstock.cli.pipeline_ask import NameArgument, chosen
from penstock.cli.pipeline_spark import ConfOption, MasterOption, catalog_session
from penstock.errors import ConfigError, PipelineError

_NUMBERS: Final = ("joined", "into", "deleted", "took")


def command(
    name: NameArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Join the small files of a pipeline's tables, and delete replaced ones older than `history`.

    A running pipeline does this by itself (`compact_every`, `vacuum_every`). Files that
    a table's log has forgotten go here only. No row changes, and Spark is started only for tables
    in a catalog. With --json, one object a table. Exit code 7 if a table could not be tidied.
    """
    from rich.table import Table

    from penstock.cli.config import load, missing_extra

    settings = load(config)
    pipeline = chosen(settings, [name])[name]
    try:
        from penstock.spark.config import LakePipelineConfig
        from penstock.spark.tidying import tidy_pipeline
    except ImportError as error:
        raise missing_extra("tidying", "spark", error) from error
    if not isinstance(pipeline, LakePipelineConfig):
        raise ConfigError(
            f"{config}: pipeline {name} goes to {pipeline.to!r}, which has no files to tidy. "
            f"Nothing was changed."
        )
    with catalog_session("tidy", name, pipeline, settings, master, conf) as spark:
        done = list(tidy_pipeline(name, pipeline, spark=spark))
    if as_json:
        for one in done:
            output.emit(one)
    elif not done:
        output.stdout().print("There are no tables yet.")
    else:
        table = Table()
        for column in ("table", "joined", "into", "deleted", "took", ""):
            table.add_column(column, justify="right" if column in _NUMBERS else "left")
        for one in done:
            counts = (str(one.joined), str(one.into), str(one.deleted))
            said = (output.duration(one.seconds), output.cell(one.failed))
            table.add_row(output.cell(one.path), *counts, *said)
        output.stdout().print(table)
    if failed := [one for one in done if one.failed]:
        raise PipelineError(
            f"pipeline {name}: {len(failed)} of {len(done)} tables could not be tidied: "
            f"{failed[0].failed}. Their rows are as they were. Run this again, while the pipeline "
            f"does not run if it was in the way."
        )
