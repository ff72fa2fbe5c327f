"""Entries through a pipeline's steps in this process, for tests without Spark."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.flight import LogClient, ReadRequest
from penstock.ports import Bounds
from penstock.spark.config import ReplicatePipelineConfig, SteppedPipelineConfig
from penstock.spark.table.arrow import compute
from penstock.spark.table.rejects import Reject, rejects_table
from penstock.spark.transform.plan import plan_of
from penstock.spark.transform.worker import UNMET, VERDICT, Pass, Verdict
from tests.spark.tables import LOG_ID, Entries


def stepped(
    entries: pa.Table, config: SteppedPipelineConfig, pipeline: str = "p"
) -> tuple[pa.Table, pa.Table | None]:
    """The entries as their target is to have them, and the rejects that it writes.

    Of a pipeline whose steps need nothing that Spark computes.
    """
    if not config.transform:
        return entries, None
    nothing = pa.nulls(entries.num_rows, pa.string())
    table = entries.append_column(VERDICT, nothing)
    table = table.append_column(UNMET, pa.nulls(entries.num_rows, pa.list_(pa.string())))
    plan = plan_of(config.transform, ())
    (segment,) = plan.segments
    work = Pass(
        answered=(),
        steps=segment.steps,
        asks=(),
        hiding=plan.hiding_at(0),
        schema=table.schema,
        pipeline=pipeline,
        transforms=True,
        keyed=isinstance(config, ReplicatePipelineConfig),
    )
    done = pa.Table.from_batches(work.run(table.combine_chunks().to_batches()), table.schema)
    refused = done.filter(compute.is_valid(done[VERDICT]))
    told: list[dict[str, Any]] = refused.select(["sequence", VERDICT]).to_pylist()
    rejects = [
        _reject(one["sequence"], msgspec.json.decode(one[VERDICT], type=Verdict)) for one in told
    ]
    rows = rejects_table(pipeline, rejects, entries, captured=True) if rejects else None
    return done.drop_columns([VERDICT, UNMET]), rows


def entries_at(entries: pa.Table) -> Any:
    """What gives entries by their sequences."""

    def chosen(wanted: Sequence[int]) -> pa.Table:
        return entries.filter(compute.is_in(entries["sequence"], pa.array(wanted, pa.int64())))

    return chosen


def _reject(sequence: int, verdict: Verdict) -> Reject:
    told = None if verdict.captured else (verdict.full_document, verdict.update_description)
    return Reject(sequence=sequence, reason=verdict.reason, step=verdict.step, told=told)


class MemoryLog(LogClient):
    """Entries in memory, read as from a service."""

    def __init__(self, entries: Entries, trimmed: int) -> None:
        self._entries, self._trimmed = entries, trimmed

    def bounds(self) -> Bounds:
        head = self._entries.head
        return Bounds(
            log_id=LOG_ID,
            trimmed=self._trimmed,
            trimmed_check=0,
            head=head,
            head_commit=head,
            head_check=0,
            ancestors=(),
        )

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        table = self._entries.table(request.after, request.until)
        yield from table.combine_chunks().to_batches()
