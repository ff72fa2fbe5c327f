"""A batch from the workers to the driver: reduced and decoded there, joined and verified here."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BatchTooLargeError
from penstock.spark.scratch import shared_scratch
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import (
    INPUT_COLUMNS,
    Collected,
    Decode,
    decode_rows,
    from_chunks,
    join,
    removed_by,
    to_chunks,
)
from penstock.spark.table.reduce import IDENTITY, verify_commits
from penstock.spark.table.rejects import ENTRY_COLUMNS
from penstock.spark.table.writing import cuts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHUNK_DDL = (
    "rows binary, cells binary, file string, size long, commits binary, first long, entries long"
)


def collect_batch(
    frame: "DataFrame",
    *,
    pipeline: str,
    whole: bool,
    bytes_max: int,
    every: bool = False,
    decode: Decode = decode_rows,
    lacks: Sequence[tuple[int, int]] = (),
) -> Collected:
    """What still matters of a batch, cut at the events that concern a whole collection's rows.

    `whole`: no filter left out entries. `every` change matters, not only the last of each row, and
    nothing is cut. `lacks` are ranges, each (after, until], that a commit may be without. Raises
    IncompleteCommitError, BatchTooLargeError.
    """
    collect = partial(
        _collect,
        frame,
        pipeline,
        whole=whole,
        bytes_max=bytes_max,
        every=every,
        decode=decode,
        lacks=lacks,
    )
    collected = collect()
    if not every and (cuts := cuts_of(collected.controls)):
        collected = collect(cuts=cuts)
    return collected


def before_commit(frame: "DataFrame", sequence: int) -> "DataFrame":
    """What of a batch is before the commit of its entry at `sequence`.

    A gap may be in the middle of a commit, as that of a dead letter is.
    """
    found = frame.where(f"sequence = {sequence}").select("commit").first()
    before = frame.where(f"sequence < {sequence}")
    if found is None or found[0] is None:  # what retention removed is of no commit
        return before
    return before.where(f"`commit` IS NULL OR `commit` < {found[0]}")


def entries_of(frame: "DataFrame") -> Callable[[Sequence[int]], pa.Table]:
    """What gives entries of the batch by their sequences, as captured (ENTRY_COLUMNS).

    They are read again rather than carried along: rejects are rare.
    """

    def entries_at(sequences: Sequence[int]) -> pa.Table:
        entries = frame.select(*ENTRY_COLUMNS)
        work = partial(_chosen, wanted=arrow.array(sequences, pa.int64()))
        return entries.mapInArrow(work, entries.schema).toArrow()

    return entries_at


def _chosen(
    batches: Iterable[pa.RecordBatch], *, wanted: pa.Int64Array
) -> Iterator[pa.RecordBatch]:
    """The entries with one of these sequences; a condition of SQL cannot name so many."""
    for batch in batches:
        yield batch.filter(compute.is_in(batch["sequence"], wanted))


def _collect(
    frame: "DataFrame",
    pipeline: str,
    *,
    whole: bool,
    bytes_max: int,
    every: bool,
    decode: Decode,
    lacks: Sequence[tuple[int, int]],
    cuts: Sequence[int] = (),
) -> Collected:
    entries = frame.select(*INPUT_COLUMNS)
    if not every and entries.rdd.getNumPartitions() > 1:
        # A large batch: with a key's changes in one place, only its last ones are decoded.
        cores = frame.sparkSession.sparkContext.defaultParallelism
        entries = entries.repartition(cores, *IDENTITY)
    with shared_scratch(frame.sparkSession) as scratch:
        work = partial(to_chunks, cuts=tuple(cuts), scratch=scratch, every=every, decode=decode)
        table = entries.mapInArrow(work, _CHUNK_DDL).toArrow()
        sizes: list[Any] = table["size"].to_pylist()
        entries_read: list[Any] = table["entries"].to_pylist()
        if sum(sizes) > bytes_max:
            raise BatchTooLargeError(
                pipeline=pipeline, entries=sum(entries_read), size=sum(sizes), size_max=bytes_max
            )
        parts = from_chunks(table)
    firsts: list[Any] = table["first"].to_pylist()
    collected = Collected(
        chunk=join([one for one, _ in parts], cuts=cuts, every=every),
        after=min(firsts, default=1) - 1,
        entries=sum(entries_read),
    )
    if parts:
        sums = arrow.concat_tables([commits for _, commits in parts])
        verify_commits(sums, whole=whole, lost=[*lacks, *removed_by(collected.controls)])
    return collected
