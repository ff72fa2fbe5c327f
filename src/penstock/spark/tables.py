"""`to = "table"` and `to = "history"`: Delta tables of collections, from Spark.

Current rows (SCD type 1) and all versions of rows (SCD type 2) differ in what a batch does to a
table, which `penstock.spark.table.batch` and `penstock.spark.history.batch` describe. Workers
reduce and decode (`penstock.spark.table.chunk`), this process joins and writes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.history.batch import HistoryWriter
from penstock.spark.loading.load import FirstLoad
from penstock.spark.loading.stored import refuse_unfinished
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.table.batch import BatchWriter
from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.table.collect import before_commit, collect_batch, entries_of
from penstock.spark.table.declared import Declarations
from penstock.spark.table.lake import Lake, lake_of
from penstock.spark.table.standing import StandingTable, loads
from penstock.spark.table.unfollowed import Unfollowed
from penstock.spark.table.upkeep import keep_up
from penstock.spark.table.writing import BatchResult, Writer
from penstock.spark.target import Applied, Beginning
from penstock.spark.transform.stage import Stage
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class TableTarget:
    """The tables of a pipeline, and the row beside them that says how far they have come."""

    columns = INPUT_COLUMNS

    def __init__(
        self,
        pipeline: str,
        config: TablePipelineConfig | HistoryPipelineConfig,
        *,
        spark: "SparkSession | None" = None,
        load: FirstLoad | None = None,
        unfollowed: Unfollowed | None = None,
    ) -> None:
        """`spark` writes tables that are in a catalog, `load` brings the rows that were there
        before the log, `unfollowed` is as `Writer` takes it. Raises as `Lake.check`."""
        self._pipeline = pipeline
        self._config = config
        self._load = load
        self._unfollowed = unfollowed
        self._declarations = Declarations()
        self._lake = lake_of(config, pipeline, spark)
        self._lake.check()
        self._standing = StandingTable(config, pipeline, self._lake)

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """As `Target.start`; raises as `decide_start`, and PipelineChangedError where a first load
        was given up before it was complete: rows are missing then that no log tells."""
        self._standing = StandingTable(self._config, self._pipeline, self._lake)
        start = self._standing.start(bounds, whole)
        if self._standing.stood is None:
            for name in self._config.collections:
                self._lake.table(name)  # whatever is there is refused before anything is written
        if self._load is not None:
            self._load.begin(self._standing)
        else:
            _refuse_unfinished(self._pipeline, self._config)
        return start.after

    def declare(self, declared: Sequence[Declared]) -> None:
        """As `Target.declare`: a batch's own are kept by the columns that they make."""
        self._declarations = Declarations(declared)

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,
        *,
        until: Progress,
        refused: "pa.Table | None" = None,  # noqa: ARG002 - written beside the target
    ) -> Applied:
        """As `Target.apply`; raises as `merge_into_delta`."""
        result = merge_staged(
            batch,
            batch_id,
            pipeline=self._pipeline,
            config=self._config,
            log_id=until.log_id,
            tables=self._standing.tables,
            load=self._load,
            lake=self._lake,
            unfollowed=self._unfollowed,
            declarations=self._declarations,
        )
        self._standing.advance(until, result.tables, batch_id=batch_id)
        return Applied(
            entries=result.entries,
            rows=result.rows,
            rejected=result.rejected,
            sequence=result.sequence,
        )

    def save(self, batch_id: int) -> None:
        """As `Target.save`."""
        self._standing.save(batch_id=batch_id)

    def close(self) -> None:
        """Nothing is held between runs."""


def open_target(run: PipelineRun) -> TableTarget:
    """The target of a pipeline to `table` or `history`."""
    return TableTarget(run.name, run.config, spark=run.spark, load=run.load)


def beginning_of_tables(
    pipeline: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
    *,
    lake: Lake | None = None,
) -> Beginning:
    """Where `TableTarget.start` would begin; raises as it does, and writes nothing. `lake` is where
    the tables are; without it, in folders."""
    standing = StandingTable(config, pipeline, lake)
    start = standing.start(bounds, whole)
    if not loads(config):
        _refuse_unfinished(pipeline, config)
    return Beginning(after=start.after, stood=standing.stood, restepped=standing.restepped)


def _refuse_unfinished(pipeline: str, config: TablePipelineConfig | HistoryPipelineConfig) -> None:
    if isinstance(config, TablePipelineConfig) and config.catalog is None:
        refuse_unfinished(pipeline, config)


def merge_into_delta(
    batch: "DataFrame",
    batch_id: int,
    *,
    pipeline: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    log_id: int | None = None,
    tables: Mapping[str, int] | None = None,
) -> BatchResult:
    """Do the pipeline's steps to a batch of entries, and apply it; for use in foreachBatch.

    `batch` has the columns INPUT_COLUMNS, and READ_COLUMNS too where there are steps, as
    `format("penstock")` gives them, in any order and partitioning, and holds whole commits.
    `pipeline` is the identity under which the tables keep their place: the same name goes on, and
    another one is refused. `log_id` is the log's, so that the tables refuse another one. Entries
    applied before are ignored. `tables` says, by collection, what sequence its table must have
    already, and, without `collections`, whose rows a dropped database had: the `tables` of the
    results before. A path belongs to one pipeline: rows are told apart by key, source and database,
    not by collection.

    Memory: workers pass on the last change of each row, or all for a history, and this process
    holds and joins those of the whole batch at once, with the open versions of its rows, some four
    times `max_bytes_per_batch` at worst. A batch holds at least one commit, however large.

    Raises IncompleteCommitError, ChangesLostError, StreamChangedError, PipelineChangedError,
    BatchTooLargeError, and PipelineError for an event that is not understood; nothing of what
    follows the place named is written. As `Stage.staged` for what is wrong with the steps.
    """
    stage = Stage(pipeline, config, INPUT_COLUMNS)
    with stage.staged(batch, batch_id, log_id=log_id) as staged:
        result = merge_staged(
            staged.frame,
            batch_id,
            pipeline=pipeline,
            config=config,
            log_id=log_id,
            tables=tables,
        )
        return structs.replace(result, rejected=result.rejected + staged.rejected)


def merge_staged(
    batch: "DataFrame",
    batch_id: int,
    *,
    pipeline: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    log_id: int | None = None,
    tables: Mapping[str, int] | None = None,
    load: FirstLoad | None = None,
    lake: Lake | None = None,
    unfollowed: Unfollowed | None = None,
    declarations: Declarations | None = None,
) -> BatchResult:
    """As `merge_into_delta`, of a batch to which all steps are done; `load` is told of it before
    it is written, `lake` is where the tables are, if that was asked before, and `unfollowed` and
    `declarations` are as `Writer` takes them."""
    collect = partial(
        collect_batch,
        pipeline=pipeline,
        whole=not config.collections,
        bytes_max=config.max_bytes_per_batch,
        every=config.to == "history",
    )
    collected = collect(batch)
    if load is not None:
        load.applying(collected)
    loading = load is not None and not load.complete
    writer = writer_of(config, loading=loading)(
        pipeline=pipeline,
        log_id=log_id,
        batch_id=batch_id,
        entries_at=entries_of(batch),
        lake=lake or lake_of(config, pipeline, batch.sparkSession),
        tables=tables,
        unfollowed=unfollowed,
        declarations=declarations,
    )
    result = writer.apply(collected, before=lambda at: collect(before_commit(batch, at)))
    keep_up(pipeline, config, writer.opened)
    return result


def writer_of(
    config: TablePipelineConfig | HistoryPipelineConfig, *, loading: bool = False
) -> Callable[..., Writer[Any]]:
    """Who applies a batch, told what else `Writer` must know."""
    if config.to == "history":
        return partial(HistoryWriter, config=config)
    return partial(BatchWriter, config=config, loading=loading)
