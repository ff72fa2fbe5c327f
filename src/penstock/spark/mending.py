"""Whoever mends rows of tables in a catalog is alone there.

Of two commits to a table in a folder Delta refuses one. Through a catalog, rows are mended beside
the mark by which it would (`penstock.spark.table.catalog_table`).
"""

from typing import Final

from penstock.client.flight import LogClient
from penstock.errors import PipelineError
from penstock.spark.config import PipelineConfig, TablePipelineConfig

_WRITING: Final = {
    "running": "is running",
    "away": "has not said that it ended, nor anything else of late",
}
"""In which states somebody may write, and how that is told."""


def refuse_running(name: str, config: PipelineConfig, client: LogClient) -> None:
    """Raise PipelineError where the tables are in a catalog, and the pipeline runs, or may."""
    if not isinstance(config, TablePipelineConfig) or config.catalog is None:
        return
    known = {one.pipeline: one for one in client.pipelines()}.get(name)
    if known is None or known.state not in _WRITING:
        return
    raise PipelineError(
        f"pipeline {name} {_WRITING[known.state]}, and rows of a table in a catalog are mended "
        f"while nobody else writes there. Nothing was changed. "
        + (
            f"Stop it first: penstock pipeline stop {name}."
            if known.state == "running"
            else f"See that its driver has ended, and run it to its end, which says so to the "
            f"service: penstock pipeline run {name} --once."
        )
    )
