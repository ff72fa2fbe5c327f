"""Whoever mends rows of tables in a catalog, those of a replica, or plain files, is alone there.

Of two commits to a table in a folder Delta refuses one. Through a catalog, rows are mended beside
the mark by which it would (`penstock.spark.table.catalog_table`). A replica's rows are mended while
its place stays, which a pipeline that runs moves on. And plain files get their names behind their
commit.
"""

from typing import Final

from penstock.client.flight import LogClient
from penstock.errors import PipelineError
from penstock.spark.config import ChangelogPipelineConfig, PipelineConfig, TablePipelineConfig

_WRITING: Final = {
    "running": "is running",
    "away": "has not said that it ended, nor anything else of late",
}
"""In which states somebody may write, and how that is told."""


def refuse_running(name: str, config: PipelineConfig, client: LogClient) -> None:
    """Raise PipelineError where whoever mends must be alone, and the pipeline runs, or may."""
    mended = _mended_alone(config)
    if mended:
        refuse_beside(name, mended, client)


def refuse_beside(name: str, mended: str, client: LogClient) -> None:
    """Raise PipelineError where the pipeline runs, or may; `mended` is what is not done then."""
    known = {one.pipeline: one for one in client.pipelines()}.get(name)
    if known is None or known.state not in _WRITING:
        return
    raise PipelineError(
        f"pipeline {name} {_WRITING[known.state]}, and {mended} while nobody else writes there. "
        f"Nothing was changed. "
        + (
            f"Stop it first: penstock pipeline stop {name}."
            if known.state == "running"
            else f"See that its driver has ended, and run it to its end, which says so to the "
            f"service: penstock pipeline run {name} --once."
        )
    )


def _mended_alone(config: PipelineConfig) -> str:
    """What must be mended by nobody else at the same time; empty for nothing."""
    if isinstance(config, TablePipelineConfig) and config.catalog is not None:
        return "rows of a table in a catalog are mended"
    if isinstance(config, ChangelogPipelineConfig) and config.format == "parquet":
        return "entries come into a folder of plain files"
    return ""
