"""Where pipelines may go, and how one that goes there is configured."""

from typing import Final

from penstock.spark.config.audit import AuditPipelineConfig
from penstock.spark.config.changelog import ChangelogPipelineConfig
from penstock.spark.config.history import HistoryPipelineConfig
from penstock.spark.config.replicate import ReplicatePipelineConfig
from penstock.spark.config.table import TablePipelineConfig
from penstock.spark.config.view import ViewPipelineConfig

PipelineConfig = (
    TablePipelineConfig
    | AuditPipelineConfig
    | HistoryPipelineConfig
    | ReplicatePipelineConfig
    | ViewPipelineConfig
    | ChangelogPipelineConfig
)
TARGETS: Final[dict[str, type[PipelineConfig]]] = {
    "table": TablePipelineConfig,
    "audit": AuditPipelineConfig,
    "history": HistoryPipelineConfig,
    "replicate": ReplicatePipelineConfig,
    "view": ViewPipelineConfig,
    "changelog": ChangelogPipelineConfig,
}
"""By what a pipeline's `to` says: how it is configured."""


def config_class(to: object) -> type[PipelineConfig]:
    """How a pipeline with that `to` is configured. Raises ValueError for what does not exist."""
    if not isinstance(to, str) or to not in TARGETS:
        raise ValueError(
            f"a pipeline cannot go to {to!r}; what exists is: {', '.join(map(repr, TARGETS))}"
        )
    return TARGETS[to]
