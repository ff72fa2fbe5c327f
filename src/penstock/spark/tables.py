"""`to = "table"`: keep Delta tables equal to collections (SCD type 1), from Spark.

Workers reduce and decode (`penstock.spark.chunk`), this process joins and writes
(`penstock.spark.batch`); what a batch does to a table is described there.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.spark.batch import CUTTING, BatchResult, BatchWriter
from penstock.spark.chunk import CHUNK_SCHEMA, INPUT_COLUMNS, Collected, from_chunk, join, to_chunks
from penstock.spark.config import PipelineConfig
from penstock.spark.reduce import verify_commits
from penstock.spark.rejects import ENTRY_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHUNK_DDL = "rows binary, cells binary, commits binary, first long, entries long, bytes long"


def merge_into_delta(
    batch: "DataFrame",
    batch_id: int,
    *,
    pipeline: str,
    config: PipelineConfig,
    log_id: int | None = None,
) -> BatchResult:
    """Apply a batch of entries to the pipeline's tables; for use in foreachBatch.

    `batch` has the columns INPUT_COLUMNS, as `format("penstock")` gives them, in any order and
    partitioning, and holds whole commits. `pipeline` is the identity under which the tables keep
    their place: the same name goes on, another one starts over. `log_id` is the log's, so that the
    tables refuse another one. Entries applied before are ignored.

    Raises IncompleteCommitError, ChangesLostError, StreamChangedError; nothing of what follows the
    place named is written.
    """
    whole = not config.collections
    collected = _collect(batch, whole=whole)
    cuts = [event.sequence for event in collected.controls if event.operation in CUTTING]
    if cuts:
        collected = _collect(batch, whole=whole, cuts=cuts)

    def entries_at(sequences: Sequence[int]) -> pa.Table:
        # Read again rather than carried along: rejects are rare, and are kept as captured.
        from pyspark.sql import functions as sql

        wanted = sql.col("sequence").isin(list(sequences))
        return batch.select(*ENTRY_COLUMNS).where(wanted).toArrow()

    writer = BatchWriter(
        pipeline=pipeline, config=config, log_id=log_id, batch_id=batch_id, entries_at=entries_at
    )
    return writer.apply(collected)


def _collect(frame: "DataFrame", *, whole: bool, cuts: Sequence[int] = ()) -> Collected:
    """The batch, reduced and decoded by the workers, joined and verified here."""
    work = partial(to_chunks, cuts=tuple(cuts))
    table = frame.select(*INPUT_COLUMNS).mapInArrow(work, _CHUNK_DDL).toArrow()
    parts = [from_chunk(row) for row in _rows(table)]
    if parts:
        verify_commits(pa.concat_tables([commits for _, commits in parts]), whole=whole)
    return Collected(
        chunk=join([one for one, _ in parts], cuts=cuts),
        after=min(table["first"].to_pylist(), default=1) - 1,
        entries=sum(table["entries"].to_pylist()),
    )


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    names = CHUNK_SCHEMA.names[:3]
    for batch in table.to_batches():
        for at in range(batch.num_rows):
            yield {name: batch[name][at].as_buffer() for name in names}
