"""What a pipeline is: one source, some of its collections, and where they go.

    reading.py    what all pipelines have, and the steps that most may have
    lake.py       what those to files have
    table.py, history.py, changelog.py, view.py, audit.py, replicate.py
                  those that go there, as `to` says
    targets.py    which `to` there are
    names.py      what the folder, or the table, of a collection is called

To import them needs no Spark: the service reads what its pipelines are.
"""

from penstock.spark.config.audit import AuditPipelineConfig
from penstock.spark.config.changelog import ChangelogPipelineConfig
from penstock.spark.config.history import HistoryPipelineConfig
from penstock.spark.config.lake import DeltaPipelineConfig, LakePipelineConfig
from penstock.spark.config.names import folder_of, is_shortened, shortened, table_name_of
from penstock.spark.config.reading import ReadingConfig, SteppedPipelineConfig
from penstock.spark.config.replicate import DESTINATIONS, ReplicatePipelineConfig
from penstock.spark.config.table import TablePipelineConfig
from penstock.spark.config.targets import PipelineConfig
from penstock.spark.config.view import ViewPipelineConfig

__all__ = [
    "DESTINATIONS",
    "AuditPipelineConfig",
    "ChangelogPipelineConfig",
    "DeltaPipelineConfig",
    "HistoryPipelineConfig",
    "LakePipelineConfig",
    "PipelineConfig",
    "ReadingConfig",
    "ReplicatePipelineConfig",
    "SteppedPipelineConfig",
    "TablePipelineConfig",
    "ViewPipelineConfig",
    "folder_of",
    "is_shortened",
    "shortened",
    "table_name_of",
]
