"""Rejected changes of a replica, tried again with the steps of today.

A replica does not say up to which change a row is. So of each row with a rejected change all that
the log has is taken, up to the pipeline's place: it is known from its last whole document on, and
what follows is applied to that. A row of which the log has no whole document any more, or of which
a change is refused, by a step or by the destination, is left as it is: a part of its changes would
take it back, and hide what it lacks.

One transaction writes the rows and heals the rejects, if the place is still the one up to which the
log was read; so a pipeline may run meanwhile. It goes on taking such a row for one that lacks a
change until it is started again, or a whole document comes.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import (
    DestinationError,
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
    SupersededPipelineError,
)
from penstock.event import Kind
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.steps import Rows
from penstock.spark.replicate import destination_of
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import INPUT_COLUMNS, Chunk, reduce_entries
from penstock.spark.table.reduce import RELATIVE
from penstock.spark.table.rejects import REPLAYED, SUPERSEDED
from penstock.spark.transform.fate import LEFT, Replayed
from penstock.spark.transform.found import event_of
from penstock.spark.transform.replay import through
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES: Final = 5

Row = dict[str, Any]


class RefusedAnewError(Exception):
    """The destination refuses changes of a replay. Nothing was written."""

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = sequences
        super().__init__()


def pending_at(name: str, config: ReplicatePipelineConfig) -> list[Row]:
    """The pipeline's rejects that are not healed, by sequence. Raises DestinationError."""
    destination = destination_of(name, config)
    try:
        return destination.pending()
    except destination.errors as error:
        raise _away(name, error) from error
    finally:
        destination.reset()


class ReplicaReplay:
    """One replay of one pipeline."""

    def __init__(
        self,
        name: str,
        config: ReplicatePipelineConfig,
        client: LogClient,
        spark: "SparkSession | None",
    ) -> None:
        self._name = name
        self._config = config
        self._client = client
        self._spark = spark
        self._destination = destination_of(name, config)
        self._stage = Stage(name, config, INPUT_COLUMNS)

    def run(self) -> list[Replayed]:
        """As `replay_rejects`."""
        try:
            for _ in range(_TRIES):
                try:
                    return self._replayed()
                except (PipelineChangedError, SupersededPipelineError):
                    continue  # the pipeline has moved on, or begun: its place is read again
        except self._destination.errors as error:
            raise _away(self._name, error) from error
        finally:
            self._destination.reset()
        raise PipelineError(
            f"pipeline {self._name} moves on faster than its rejects are replayed. Nothing was "
            f"changed. Try again, or stop the pipeline first."
        )

    def _replayed(self) -> list[Replayed]:
        place = self._destination.claim(self._kept)
        pending = self._destination.pending()
        by_stream: dict[Stream, list[Row]] = {}
        for one in pending:
            by_stream.setdefault(Stream(one["database"], one["collection"]), []).append(one)
        reasons: dict[int, str] = {}
        steps: list[Rows] = []
        for stream, rejects in by_stream.items():
            here = [one for one in rejects if one["table"] == self._table(stream)]
            why = "an event about its whole collection moved it"
            reasons |= {one["sequence"]: why for one in rejects if one not in here}
            if not here:
                continue
            chunk, why_not = self._chunk(stream, here, place)
            reasons |= why_not
            if chunk.rows.num_rows:
                steps.append(Rows(stream=stream, chunk=chunk))
        reasons |= self._apply(steps, pending, place)
        left = {one["sequence"] for one in self._destination.pending()}
        return _outcomes(pending, left, reasons)

    def _apply(self, steps: Sequence[Rows], pending: Sequence[Row], place: Place) -> dict[int, str]:
        """Write the rows that the destination takes whole; why the others are left, by sequence."""
        reasons: dict[int, str] = {}
        while steps:
            try:
                self._destination.apply(steps, before=place, until=place, entries_at=refused_anew)
                break
            except RefusedAnewError as error:
                refused = frozenset(error.sequences)
            rest: list[Rows] = []
            for step in steps:
                taken, why = _without(step.chunk, refused)
                table = self._table(step.stream)
                reasons |= {
                    one["sequence"]: why[one["key"]]
                    for one in pending
                    if one["table"] == table
                    and one["key"] in why
                    and one["sequence"] not in refused
                }
                if taken.rows.num_rows:
                    rest.append(structs.replace(step, chunk=taken))
            steps = rest
        return reasons

    def _kept(
        self,
        place: Place | None,
        _tables: Collection[str],
        _gone: Collection[str],
    ) -> Place:
        """The place as it is: a replay moves nothing on."""
        log_id = self._client.bounds().log_id
        if place is None:
            raise PipelineError(
                f"pipeline {self._name} has never run: nothing was rejected. Nothing was changed. "
                f"Run it first: penstock pipeline run {self._name}."
            )
        if place.progress.log_id != log_id:
            raise StreamChangedError(
                f"what pipeline {self._name} has written was made from log "
                f"{place.progress.log_id:016x}, and this is log {log_id:016x}. Nothing was changed."
            )
        return place

    def _table(self, stream: Stream) -> str:
        return self._config.table_of(stream.database, stream.collection)

    def _chunk(
        self, stream: Stream, rejects: Sequence[Row], place: Place
    ) -> tuple[Chunk, dict[int, str]]:
        """The rows of a stream that are known whole by now; by sequence, why the others are not."""
        keys = {one["key"] for one in rejects}
        entries = self._read(stream, keys, place)
        entries, refused = through(self._stage, entries, pipeline=self._name, spark=self._spark)
        chunk = reduce_entries(entries, decode=self._destination.decode)
        why = dict.fromkeys(keys, "the log no longer has it whole")
        firsts: dict[str, int] = {}
        own: list[Any] = chunk.rows["key"].to_pylist()
        for key, role, sequence in zip(
            own,
            chunk.roles.tolist(),
            chunk.sequences.tolist(),
            strict=True,
        ):
            if firsts.setdefault(key, role) != RELATIVE:
                why.pop(key, None)
            if sequence in refused:
                why[key] = refused[sequence]
                firsts[key] = RELATIVE
        whole = [key not in why for key in own]
        return chunk.take(np.flatnonzero(whole)), {
            one["sequence"]: why[one["key"]] for one in rejects if one["key"] in why
        }

    def _read(self, stream: Stream, keys: Iterable[str], place: Place) -> pa.Table:
        """All that the log has of these rows, since an event that ended or moved them."""
        bounds = self._client.bounds()
        wanted = arrow.array(sorted(keys), pa.string())
        found: list[pa.RecordBatch] = []
        own_place = (stream.collection, stream.database)
        since = bounds.trimmed
        if since >= place.progress.sequence:
            return _nothing()
        request = ReadRequest(
            log_id=bounds.log_id,
            after=since,
            until=place.progress.sequence,
            source=self._config.source,
            collections=(f"{self._config.source}/{stream.collection}",),
            columns=self._stage.columns,
        )
        for batch in self._client.read(request):
            data = compute.equal(batch["kind"], int(Kind.DATA))
            own = compute.and_(
                compute.equal(batch["collection"], stream.collection),
                compute.equal(batch["database"], stream.database),
            )
            here = compute.and_(compute.and_(data, own), compute.is_in(batch["key"], wanted))
            found.append(batch.filter(here))
            for row in batch.filter(compute.invert(data)).to_pylist():
                event = event_of(row, self._config)
                if event is not None and event.behind(own_place) != own_place:
                    since = max(since, row["sequence"])
        if not found:
            return _nothing()
        entries = arrow.Table.from_batches(found)
        return entries.filter(compute.greater(entries["sequence"], since))


def _without(chunk: Chunk, refused: Collection[int]) -> tuple[Chunk, dict[str, str]]:
    """The rows of a chunk of which no change was refused; by key, why not the others."""
    own: list[Any] = chunk.rows["key"].to_pylist()
    why = {
        key: f"the change at sequence {sequence} of its row is refused"
        for key, sequence in zip(own, chunk.sequences.tolist(), strict=True)
        if sequence in refused
    }
    return chunk.take(np.flatnonzero([key not in why for key in own])), why


def _outcomes(
    pending: Sequence[Row], left: Collection[int], reasons: Mapping[int, str]
) -> list[Replayed]:
    # A row is told by its table: one that was moved may have changes of two collections.
    last = {(one["table"], one["key"]): one["sequence"] for one in pending}
    outcomes: list[Replayed] = []
    for one in pending:
        sequence = one["sequence"]
        newest = last[one["table"], one["key"]] == sequence
        state = LEFT if sequence in left else REPLAYED if newest else SUPERSEDED
        outcomes.append(
            Replayed(
                sequence=sequence,
                database=one["database"],
                collection=one["collection"],
                key=one["key"],
                state=state,
                reason=reasons.get(sequence, str(one["reason"])) if state == LEFT else "",
            )
        )
    return outcomes


def _nothing() -> pa.Table:
    from penstock.wire import ARROW_SCHEMA

    schema = arrow.schema([ARROW_SCHEMA.field(name) for name in INPUT_COLUMNS])
    return schema.empty_table()


def refused_anew(sequences: Sequence[int]) -> pa.Table:
    """Raises RefusedAnewError: what is written anew is not noted a second time."""
    raise RefusedAnewError(sequences)


def _away(name: str, error: Exception) -> DestinationError:
    return DestinationError(
        pipeline=name,
        what=f"the destination does not answer as it should ({type(error).__name__})",
        remedy="See that it runs, then try again.",
    )
