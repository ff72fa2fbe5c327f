"""`to = "changelog"`: every change of a source, append-only and unaltered, from Spark.

It promises: each entry that the pipeline is given is in the changelog once, whatever is applied
again or torn; every column as the log has it, control events and gaps too; a source transaction
whole or not at all, or with a gap in the place of what retention removed while it was read. Events
are kept, not understood, so none is unknown here.

With steps before it (`penstock.spark.transform`) a document is what they make of it, and the rest
is as the log has it: a change that a filter leaves out is a delete, and one that is refused an
update without a document, which is in the rejects; once it is replayed, the entry as it should be
is there too (`penstock.spark.changelog.replaying`). Where a step hides something, the hashes of the
captured event are null: they would tell whether a guess of it is right.

Workers write the files (`penstock.spark.changelog.writing`); this process only says which of them
count (`penstock.spark.changelog.formats`), and holds no entry.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import ChangesLostError, PipelineChangedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.changelog.entries import ENTRY_SCHEMA
from penstock.spark.changelog.folder import LEFTOVER_SECONDS
from penstock.spark.changelog.formats import Format, format_of, writing_of
from penstock.spark.changelog.writing import REPORT_DDL, Report, read_reports, write_entries
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.table.arrow import arrow
from penstock.spark.table.reduce import verify_commits
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.standing import StandingTable, Start
from penstock.spark.table.upkeep import keep_up
from penstock.spark.target import Applied, Beginning
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a worker makes of its part of the entries."""
Run = Callable[[Work], pa.Table]
"""Has workers do that for all parts, and gives what they made."""

_EVERYTHING: Final = ""
"""The collection under which the standing row has the one table."""


class ChangelogTarget:
    """The changelog of a pipeline, and the row that says how far it has come."""

    columns: tuple[str, ...] = tuple(ENTRY_SCHEMA.names)

    def __init__(self, pipeline: str, config: ChangelogPipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._standing = StandingTable(config, pipeline)
        self._looked_at: float | None = None

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """As `Target.start`; raises as `decide_start`, and as `Format.check`."""
        kept, start, applied = self._decided(bounds, whole)
        if applied > max(start.tables.values(), default=0):
            kept.finish(applied)
        return start.after

    @property
    def has_entries(self) -> bool:
        """Whether any were written, in this run or before."""
        return any(self._standing.tables.values())

    def beginning(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Beginning:
        """Where `start` would begin; raises as it does, and writes nothing."""
        _, start, _ = self._decided(bounds, whole)
        return Beginning(
            after=start.after,
            stood=self._standing.stood,
            restepped=self._standing.restepped,
        )

    def _decided(
        self, bounds: Bounds, whole: Callable[[], Bounds] | None
    ) -> tuple[Format, Start, int]:
        """The format as it is, where to go on, and up to where the changelog has everything."""
        kept = format_of(self._pipeline, self._config)
        kept.check()
        self._standing = StandingTable(self._config, self._pipeline)
        start = self._standing.start(bounds, whole)
        return kept, start, kept.table.applied(self._pipeline, log_id=bounds.log_id)

    def declare(self, declared: Sequence[Declared]) -> None:
        """Nothing here has types of its own."""

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,
        *,
        until: Progress,
        refused: "pa.Table | None" = None,  # noqa: ARG002 - written beside the target
    ) -> Applied:
        """As `Target.apply`. Raises IncompleteCommitError, ChangesLostError, PipelineError."""
        entries = batch.select(*self.columns)

        def run(work: Work) -> pa.Table:
            return entries.mapInArrow(work, REPORT_DDL).toArrow()

        return self.add(run, batch_id, until=until)

    def add(self, run: Run, batch_id: int, *, until: Progress) -> Applied:
        """As `apply`, by a `run` over the entries; it may be called twice."""
        kept = format_of(self._pipeline, self._config)
        after = kept.table.applied(self._pipeline, log_id=until.log_id)
        if after < max(self._standing.tables.values(), default=0):
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table {kept.table.path} is gone or older than it was",
                remedy="or put the table back",
            )
        reports = self._write(run, kept, after=after)
        lost, end = None, until.sequence
        if self._config.on_gap == "halt":
            lost = min((one.gap for one in reports if one.gap is not None), default=None)
        if lost is not None:
            begins = min(one.gap_begins for one in reports if one.gap_begins is not None)
            reports, end = self._write(run, kept, after=after, before=begins), begins - 1
        files = [file for one in reports for file in one.files]
        if files:
            stamp = Stamp(
                pipeline=self._pipeline,
                log_id=until.log_id,
                after=after,
                until=end,
                batch=batch_id,
            )
            kept.add(files, stamp)
        if lost is not None:
            raise ChangesLostError(
                pipeline=self._pipeline, sequence=lost, description="a gap of the source"
            )
        tables = dict.fromkeys(self._config.collections or (_EVERYTHING,), end) if files else {}
        self._standing.advance(until, tables, batch_id=batch_id)
        keep_up(self._pipeline, self._config, [kept.table], leftovers=self._leftovers(kept))
        last = max(reports, key=lambda one: one.last)
        return Applied(
            entries=sum(one.entries for one in reports),
            rows=sum(file.rows for file in files),
            sequence=last.last,
            timestamp=last.timestamp,
            lost=tuple(sorted(lost for one in reports for lost in one.lost if lost[1] > after)),
        )

    def _write(
        self,
        run: Run,
        kept: Format,
        *,
        after: int,
        before: int | None = None,
    ) -> list[Report]:
        """Have the workers write what is in (after, before), and check that no entry is missing.

        What they have written is gone again if this raises, or if not all of it is to be kept:
        where a gap stops the pipeline they write a second time, up to the commit that it is in.
        """
        writing = writing_of(self._config, kept, after=after, before=before)
        try:
            reports, sums = read_reports(run(partial(write_entries, writing=writing)))
            if sums:
                records = self._config.outlives_retention
                verify_commits(
                    arrow.concat_tables(sums),
                    whole=not self._config.collections,
                    lost=[lost for one in reports for lost in one.lost] if records else (),
                )
        except BaseException:
            kept.discard(writing.attempt)
            raise
        halts = self._config.on_gap == "halt" and before is None
        if halts and any(one.gap is not None for one in reports):
            kept.discard(writing.attempt)
        return reports or [Report()]

    def _leftovers(self, kept: Format) -> Callable[[], int] | None:
        """Looked for once a day: it lists the whole folder."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < LEFTOVER_SECONDS:
            return None

        def look() -> int:
            self._looked_at = now
            return kept.leftovers()

        return look

    def save(self, batch_id: int) -> None:
        """As `Target.save`."""
        self._standing.save(batch_id=batch_id)

    def close(self) -> None:
        """Nothing is held between runs."""


def open_target(run: PipelineRun) -> ChangelogTarget:
    """The target of a pipeline to `changelog`."""
    return ChangelogTarget(run.name, run.config)


def beginning_of_changelog(
    pipeline: str,
    config: ChangelogPipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
) -> Beginning:
    """Where `ChangelogTarget.start` would begin; raises as it does, and writes nothing."""
    return ChangelogTarget(pipeline, config).beginning(bounds, whole)
