"""Rejected changes of a history, tried again with the steps of today.

A version has its place by the order of the log, so a change that fits by now belongs where it would
have been: it opens a version there, the one before ends at it, and it ends where the next one
begins, or where the row was deleted. The log says what the change was and what followed it, the
table what the row was before: so of each row only what lies around its rejected changes is decided
again (`mending`), and what came before or after stays as it is.

What builds on a change that is still refused stays in the rejects, as in any batch. So does a
change behind which the row was renamed before it was known again: what it was then is in the table
of the new name too, and two tables have no commit in common.

The table is written first, in one commit, then the rejects say so; a crash in between is seen in
the versions. The commit carries the table's own place, unmoved: Delta refuses whichever of two
commits comes last, so a pipeline may run meanwhile.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import BatchTooLargeError
from penstock.event import Kind
from penstock.spark.config import HistoryPipelineConfig
from penstock.spark.history.batch import tracking_of
from penstock.spark.history.columns import FROM_SEQUENCE, TO_SEQUENCE
from penstock.spark.history.courses import Course, Ending, Span, course_of
from penstock.spark.history.delta import VersionTable
from penstock.spark.history.mending import Identity, mend
from penstock.spark.history.resolve import TooLargeError
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.table.lake import KeptTable, lake_of
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SOURCE
from penstock.spark.table.rejects import REPLAYED
from penstock.spark.transform.fate import LEFT, Replayed
from penstock.spark.transform.found import event_of
from penstock.spark.transform.replay import through
from penstock.spark.transform.settled import mark, outcome, pending_in, unmoved
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rejected = Mapping[str, Any]
"""A row of the rejects table."""


class HistoryReplay:
    """One replay of one pipeline."""

    def __init__(
        self,
        name: str,
        config: HistoryPipelineConfig,
        client: LogClient,
        spark: "SparkSession | None",
    ) -> None:
        self._name = name
        self._config = config
        self._client = client
        self._spark = spark
        self._lake = lake_of(config, name)
        self._bounds = client.bounds()
        self._stage = Stage(name, config, INPUT_COLUMNS)

    def run(self) -> list[Replayed]:
        """As `replay_rejects`."""
        rejects = self._lake.rejects()
        rejects.applied(self._name, log_id=self._bounds.log_id)
        outcomes: list[Replayed] = []
        by_collection: dict[str, list[Rejected]] = {}
        for one in pending_in(self._name, rejects):
            if one["collection"] and one["key"] is not None:
                by_collection.setdefault(one["collection"], []).append(one)
            else:
                outcomes.append(outcome(one, LEFT, "it is no change of a row"))
        for collection, pending in by_collection.items():
            settled = self._collection(collection, pending)
            self._mark(rejects, settled)
            outcomes += settled
        return sorted(outcomes, key=lambda one: one.sequence)

    def _collection(self, collection: str, pending: Sequence[Rejected]) -> list[Replayed]:
        """Settle the rejects of a collection."""
        table = self._lake.table(collection)
        assert isinstance(table, VersionTable)
        applied = table.applied(self._name, log_id=self._bounds.log_id)
        groups: dict[Identity, list[int]] = {}
        for one in pending:
            own = (one["key"], one["source"], one["database"])
            groups.setdefault(own, []).append(one["sequence"])
        versions = table.rows(sorted({own[0] for own in groups}))
        told = self._read(collection, pending, applied)
        spans = _spans(versions)
        courses = {
            own: course_of(
                sequences,
                spans=spans.get(own, ()),
                changes=told.changes.get(own, ()),
                endings=told.endings.get(own[2], ()),
                applied=applied,
                known_from=self._bounds.trimmed + 1,
            )
            for own, sequences in groups.items()
        }
        refused = self._apply(table, applied, versions, told, courses)
        outcomes: list[Replayed] = []
        for one in pending:
            at = one["sequence"]
            course = courses[one["key"], one["source"], one["database"]]
            why = course.left.get(at) or refused.get(at)
            outcomes.append(outcome(one, LEFT, why) if why else outcome(one, REPLAYED))
        return outcomes

    def _read(self, collection: str, pending: Sequence[Rejected], until: int) -> "_Told":
        """What the log has of their rows, from the first rejected change on, up to `until`."""
        rejected = [one["sequence"] for one in pending]
        keys = {one["key"] for one in pending}
        after = max(min(rejected) - 1, self._bounds.trimmed)
        told = _Told(collection=collection)
        if after >= until:
            return told
        request = ReadRequest(
            log_id=self._bounds.log_id,
            after=after,
            until=until,
            source=self._config.source,
            collections=(f"{self._config.source}/{collection}",),
            columns=self._stage.columns,
        )
        for batch in self._client.read(request):
            told.add(batch, keys, rejected, self._config)
        return told

    def _apply(
        self,
        table: VersionTable,
        applied: int,
        versions: pa.Table,
        told: "_Told",
        courses: Mapping[Identity, Course],
    ) -> dict[int, str]:
        """Write what fits now; of the other changes that were tried, why not."""
        tried = [at for course in courses.values() for at in course.tried]
        if not tried:
            return {}
        entries, reasons = through(
            self._stage, told.entries(tried), pipeline=self._name, spark=self._spark
        )
        try:
            mended = mend(
                versions,
                entries,
                courses=courses,
                times=told.times,
                schema=table.schema,
                tracking=tracking_of(self._config),
                bytes_max=self._config.max_bytes_per_batch,
            )
        except TooLargeError as error:
            raise BatchTooLargeError(
                pipeline=self._name,
                entries=len(tried),
                size=error.size,
                size_max=self._config.max_bytes_per_batch,
            ) from None
        if mended.versions.num_rows or mended.gone.num_rows:
            stamp = unmoved(self._name, log_id=self._bounds.log_id, at=applied)
            if mended.widened:
                table.mend_wider(mended.versions, mended.gone, stamp)
            else:
                table.mend(mended.versions, mended.gone, stamp)
        return {at: reasons.get(at, why) for at, why in mended.refused.items()}

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        mark(rejects, settled, pipeline=self._name, log_id=self._bounds.log_id)


class _Told(Struct, kw_only=True):
    """What a part of the log says of some rows of a collection."""

    collection: str
    changes: dict[Identity, list[int]] = {}
    endings: dict[str, list[Ending]] = {}
    """By database."""
    times: dict[int, int] = {}
    """By sequence of a change or an event: its Unix milliseconds."""
    batches: list[pa.RecordBatch] = []
    """The changes that were rejected; of the others it is enough where they are."""

    def add(
        self,
        batch: pa.RecordBatch,
        keys: set[str],
        rejected: Sequence[int],
        config: HistoryPipelineConfig,
    ) -> None:
        """Take in a part of the log, behind those before."""
        data = compute.equal(batch["kind"], int(Kind.DATA))
        own = compute.and_(compute.equal(batch["collection"], self.collection), data)
        wanted = compute.is_in(batch["key"], arrow.array(sorted(keys), pa.string()))
        found = batch.filter(compute.and_(own, wanted))
        told = compute.is_in(found["sequence"], arrow.array(rejected, pa.int64()))
        self.batches.append(found.filter(told))
        names = ["key", "source", "database", "sequence", "timestamp"]
        for key, source, database, sequence, time in zip(
            *(found[name].to_pylist() for name in names), strict=True
        ):
            self.changes.setdefault((key, source, database), []).append(sequence)
            self.times[sequence] = time or 0
        for entry in batch.filter(compute.invert(data)).to_pylist():
            event = event_of(entry, config)
            if event is None:
                continue
            for database in {event.place[1], *(event.to or ())[1:]}:
                behind = event.behind((self.collection, database))
                if behind == (self.collection, database):
                    continue
                self.times[event.sequence] = entry["timestamp"] or 0
                self.endings.setdefault(database, []).append(
                    Ending(sequence=event.sequence, hands_over=behind is not None)
                )

    def entries(self, sequences: Sequence[int]) -> pa.Table:
        """The entries of these sequences."""
        whole = arrow.Table.from_batches(self.batches)
        return whole.filter(compute.is_in(whole["sequence"], arrow.array(sequences, pa.int64())))


def _spans(versions: pa.Table) -> dict[Identity, list[Span]]:
    names = [KEY, SOURCE, DATABASE, FROM_SEQUENCE, TO_SEQUENCE, REJECTED]
    spans: dict[Identity, list[Span]] = {}
    for key, source, database, begun, ended, rejected in zip(
        *(versions[name].to_pylist() for name in names), strict=True
    ):
        span = Span(begun=begun, ended=ended, mark=rejected)
        spans.setdefault((key, source, database), []).append(span)
    return spans
