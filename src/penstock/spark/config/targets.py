"""How the pipelines that come with Penstock are configured, by what their `to` says."""

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
