"""Whoever mends rows of tables in a catalog is alone there.

Of two commits to a table in a folder Delta refuses one. Through a catalog, rows are mended beside
the mark by which it would (`penstock.spark.table.catalog_table`).
"""

from penstock.client.flight import LogClient
from penstock.errors import PipelineError
from penstock.spark.config import PipelineConfig, TablePipelineConfig


def refuse_running(name: str, config: PipelineConfig, client: LogClient) -> None:
    """Raise PipelineError where the tables are in a catalog, and the pipeline runs."""
    if not isinstance(config, TablePipelineConfig) or config.catalog is None:
        return
    known = {one.pipeline: one for one in client.pipelines()}.get(name)
    if known is not None and known.state == "running":
        raise PipelineError(
            f"pipeline {name} is running, and rows of a table in a catalog are mended while nobody "
            f"else writes there. Nothing was changed. Stop it first: penstock pipeline stop {name}."
        )
