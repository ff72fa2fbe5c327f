"""Rejected changes, listed and tried again: `penstock pipeline rejects` and `replay`.

| to | replay |
|---|---|
| table | onto the rows that the table has (`penstock.spark.transform.replay`) |
| view | the same of its current rows, and then the view, with what its query refused |
| history | versions where they belong (`penstock.spark.history.replaying`) |
| changelog | entries beside those that tell nothing (`penstock.spark.changelog.replaying`) |
| replicate | whole rows from the log (`penstock.spark.replica.replaying`) |
"""

from typing import TYPE_CHECKING, Any

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.errors import ConfigError
from penstock.spark.config import (
    ChangelogPipelineConfig,
    HistoryPipelineConfig,
    LakePipelineConfig,
    ReplicatePipelineConfig,
    TablePipelineConfig,
)
from penstock.spark.mending import refuse_running
from penstock.spark.table.lake import seen_lake
from penstock.spark.transform.fate import Replayed
from penstock.spark.transform.replay import Replay
from penstock.spark.transform.settled import pending_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.config import PipelineConfig


def pending_rejects(
    name: str, config: "PipelineConfig", *, spark: "SparkSession | None" = None
) -> list[dict[str, Any]]:
    """The pipeline's rejected changes that are not settled, by sequence; `spark` sees tables that
    are in a catalog.

    Raises ConfigError for a pipeline that rejects nothing, DestinationError.
    """
    if isinstance(config, ReplicatePipelineConfig):
        from penstock.spark.replica.replaying import pending_at

        return pending_at(name, config)
    if not isinstance(config, LakePipelineConfig):
        raise _rejects_none(name, config)
    return pending_in(name, seen_lake(config, name, spark).rejects())


def replay_rejects(
    name: str,
    config: "PipelineConfig",
    endpoint: str,
    *,
    spark: "SparkSession | None" = None,
    credentials: Credentials = NOBODY,
    archive: str = "",
) -> list[Replayed]:
    """Try the pipeline's rejected changes again; what became of each, by sequence.

    `archive` is where the service's [archive] is; `spark` sees tables that are in a catalog. Raises
    StreamChangedError for tables of another log, PipelineError as `refuse_running`, ConfigError,
    ServiceUnavailableError, DestinationError.
    """
    if not isinstance(config, LakePipelineConfig | ReplicatePipelineConfig):
        raise _rejects_none(name, config)
    with log_client(endpoint, archive=archive, credentials=credentials) as client:
        if isinstance(config, ReplicatePipelineConfig):
            from penstock.spark.replica.replaying import ReplicaReplay

            return ReplicaReplay(name, config, client, spark).run()
        refuse_running(name, config, client)
        if isinstance(config, HistoryPipelineConfig):
            from penstock.spark.history.replaying import HistoryReplay

            return HistoryReplay(name, config, client, spark).run()
        if isinstance(config, ChangelogPipelineConfig):
            from penstock.spark.changelog.replaying import ChangelogReplay

            return ChangelogReplay(name, config, client, spark).run()
        if isinstance(config, TablePipelineConfig):
            return Replay(name, config, client, spark).run()
        from penstock.spark.session import local_session
        from penstock.spark.views import ViewTarget, tables_of

        session = spark or local_session(app_name=f"penstock {name}")
        outcomes = Replay(name, tables_of(config), client, session).run()
        outcomes += ViewTarget(name, config, session).settle()
        return sorted(outcomes, key=lambda one: one.sequence)


def _rejects_none(name: str, config: "PipelineConfig") -> ConfigError:
    return ConfigError(
        f"pipeline {name} goes to {config.to!r}, which keeps every change as it was captured, and "
        f"rejects none. Nothing was changed."
    )
