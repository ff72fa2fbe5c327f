"""`to = "table"` and `to = "history"`: Delta tables of collections, from Spark.

Current rows (SCD type 1) and all versions of rows (SCD type 2) differ in what a batch does to a
table, which `penstock.spark.table.batch` and `penstock.spark.history.batch` describe. Workers
reduce and decode (`penstock.spark.table.chunk`), this process joins and writes.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BatchTooLargeError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.history.batch import HistoryWriter
from penstock.spark.scratch import shared_scratch
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.batch import BatchWriter
from penstock.spark.table.chunk import INPUT_COLUMNS, Collected, from_chunks, join, to_chunks
from penstock.spark.table.reduce import IDENTITY, verify_commits
from penstock.spark.table.rejects import ENTRY_COLUMNS
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.writing import BatchResult, Writer, cuts_of
from penstock.spark.target import Applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHUNK_DDL = (
    "rows binary, cells binary, file string, size long, commits binary, first long, entries long"
)


class TableTarget:
    """The tables of a pipeline, and the row beside them that says how far they have come."""

    columns = INPUT_COLUMNS

    def __init__(self, pipeline: str, config: TablePipelineConfig | HistoryPipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._standing = StandingTable(config, pipeline)

    def start(self, bounds: Bounds) -> Progress:
        """As `Target.start`; raises as `decide_start`."""
        self._standing = StandingTable(self._config, self._pipeline)
        return self._standing.start(bounds).after

    def apply(self, batch: "DataFrame", batch_id: int, *, until: Progress) -> Applied:
        """As `Target.apply`; raises as `merge_into_delta`."""
        result = merge_into_delta(
            batch,
            batch_id,
            pipeline=self._pipeline,
            config=self._config,
            log_id=until.log_id,
            tables=self._standing.tables,
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


def merge_into_delta(
    batch: "DataFrame",
    batch_id: int,
    *,
    pipeline: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    log_id: int | None = None,
    tables: Mapping[str, int] | None = None,
) -> BatchResult:
    """Apply a batch of entries to the pipeline's tables; for use in foreachBatch.

    `batch` has the columns INPUT_COLUMNS, as `format("penstock")` gives them, in any order and
    partitioning, and holds whole commits. `pipeline` is the identity under which the tables keep
    their place: the same name goes on, another one starts over. `log_id` is the log's, so that the
    tables refuse another one. Entries applied before are ignored. `tables` says, by collection,
    what sequence its table must have already. A path belongs to one pipeline: rows are told apart
    by key, source and database, not by collection.

    Memory: workers pass on the last change of each row, or all for a history, and this process
    holds and joins those of the whole batch at once, with the open versions of its rows, some four
    times `max_bytes_per_batch` at worst. A batch holds at least one commit, however large.

    Raises IncompleteCommitError, ChangesLostError, StreamChangedError, PipelineChangedError,
    BatchTooLargeError, and PipelineError for an event that is not understood; nothing of what
    follows the place named is written.
    """
    whole = not config.collections
    collect = partial(_collect, batch, whole=whole, pipeline=pipeline, config=config)
    collected = collect()
    if config.to == "table" and (cuts := cuts_of(collected.controls)):
        collected = collect(cuts=cuts)

    def entries_at(sequences: Sequence[int]) -> pa.Table:
        # Read again rather than carried along: rejects are rare, and are kept as captured.
        entries = batch.select(*ENTRY_COLUMNS)
        work = partial(_chosen, wanted=arrow.array(sequences, pa.int64()))
        return entries.mapInArrow(work, entries.schema).toArrow()

    writer = writer_of(config)(
        pipeline=pipeline,
        log_id=log_id,
        batch_id=batch_id,
        entries_at=entries_at,
        tables=tables,
    )
    return writer.apply(collected)


def writer_of(
    config: TablePipelineConfig | HistoryPipelineConfig,
) -> Callable[..., Writer[Any]]:
    """Who applies a batch, told what else `Writer` must know."""
    if config.to == "history":
        return partial(HistoryWriter, config=config)
    return partial(BatchWriter, config=config)


def _chosen(
    batches: Iterable[pa.RecordBatch], *, wanted: pa.Int64Array
) -> Iterator[pa.RecordBatch]:
    """The entries with one of these sequences; a condition of SQL cannot name so many."""
    for batch in batches:
        yield batch.filter(compute.is_in(batch["sequence"], wanted))


def _collect(
    frame: "DataFrame",
    *,
    whole: bool,
    pipeline: str,
    config: TablePipelineConfig | HistoryPipelineConfig,
    cuts: Sequence[int] = (),
) -> Collected:
    """The batch, reduced and decoded by the workers, joined and verified here."""
    every = config.to == "history"
    entries = frame.select(*INPUT_COLUMNS)
    if not every and entries.rdd.getNumPartitions() > 1:
        # A large batch: with a key's changes in one place, only its last ones are decoded.
        cores = frame.sparkSession.sparkContext.defaultParallelism
        entries = entries.repartition(cores, *IDENTITY)
    with shared_scratch(frame.sparkSession) as scratch:
        work = partial(to_chunks, cuts=tuple(cuts), scratch=scratch, every=every)
        table = entries.mapInArrow(work, _CHUNK_DDL).toArrow()
        sizes: list[Any] = table["size"].to_pylist()
        entries_read: list[Any] = table["entries"].to_pylist()
        if sum(sizes) > config.max_bytes_per_batch:
            raise BatchTooLargeError(
                pipeline=pipeline,
                entries=sum(entries_read),
                size=sum(sizes),
                size_max=config.max_bytes_per_batch,
            )
        parts = from_chunks(table)
    if parts:
        verify_commits(arrow.concat_tables([commits for _, commits in parts]), whole=whole)
    firsts: list[Any] = table["first"].to_pylist()
    return Collected(
        chunk=join([one for one, _ in parts], cuts=cuts, every=every),
        after=min(firsts, default=1) - 1,
        entries=sum(entries_read),
    )
