"""Rejected changes of a replica, tried again with the steps of today.

A replica does not say up to which change a row is. So of each row with a rejected change all that
the log has is taken, up to the pipeline's place: it is known from its last whole document on, and
what follows is applied to that. A row of which the log has no whole document any more, or of which
a change is refused, by a step or by the destination, is left as it is: a part of its changes would
take it back, and hide what it lacks.

A transaction writes some of the rows and heals their rejects, if the place is still the one up to
which the log was read; so a pipeline may run meanwhile, and waits for no more than that. Where it
has moved on, the log is read again for what is left; so it is where a replay was broken off. The
pipeline goes on taking such a row for one that lacks a change until it is started again, or a whole
document comes.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import (
    PipelineChangedError,
    PipelineError,
    StreamChangedError,
    SupersededPipelineError,
)
from penstock.event import Kind
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import away
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.steps import Rows
from penstock.spark.replicate import destination_of
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import INPUT_COLUMNS, Chunk, reduce_entries
from penstock.spark.table.reduce import DELETE, RELATIVE, codes_of
from penstock.spark.table.rejects import REPLAYED, SUPERSEDED
from penstock.spark.transform.fate import LEFT, Replayed
from penstock.spark.transform.found import event_of
from penstock.spark.transform.replay import through
from penstock.spark.transform.settled import outcome
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES: Final = 5
"""In a row that bring nothing."""
_ROWS: Final = 1000
_BYTES: Final = 16 << 20
"""In one transaction, and what belongs to the last row of them."""

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
        raise away(name, destination, error, "Then try again.") from error
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
        self._pending: list[Row] | None = None
        """As it was looked last. What is rejected meanwhile is for another replay."""
        self._settled: list[Replayed] = []

    def run(self) -> list[Replayed]:
        """As `replay_rejects`."""
        try:
            return self._tried()
        finally:
            self._destination.reset()

    def _tried(self) -> list[Replayed]:
        failure: Exception | None = None
        tries = 0
        while tries < _TRIES:
            before = len(self._settled)
            try:
                return self._replayed()
            except (PipelineChangedError, SupersededPipelineError):
                failure = None  # the pipeline has moved on, or begun: its place is read again
            except self._destination.errors as error:
                if refusal := self._destination.judge(error):
                    raise refusal from error
                failure = error  # as of a conflict with the pipeline
            tries = tries + 1 if len(self._settled) == before else 1
        if failure is not None:
            raise away(self._name, self._destination, failure, "Then try again.") from failure
        raise PipelineError(
            f"pipeline {self._name} moves on faster than its rejects are replayed. What was "
            f"replayed is right, and nothing else was changed. Try again, or stop the pipeline "
            f"first."
        )

    def _replayed(self) -> list[Replayed]:
        place = self._destination.claim(self._kept)
        pending = self._looked()
        by_stream: dict[Stream, list[Row]] = {}
        for one in pending:
            by_stream.setdefault(Stream(one["database"], one["collection"]), []).append(one)
        reasons: dict[int, str] = {}
        for stream, rejects in by_stream.items():
            table = self._table(stream)
            here = [one for one in rejects if one["table"] == table]
            why = "an event about its whole collection moved it"
            reasons |= {one["sequence"]: why for one in rejects if one["table"] != table}
            if not here:
                continue
            chunk, why_not = self._chunk(stream, here, place)
            reasons |= why_not
            there = [one for one in pending if one["table"] == table]
            for part in row_slices(chunk):
                reasons |= self._apply(Rows(stream=stream, chunk=part), there, place)
        left = [
            outcome(one, LEFT, reasons.get(one["sequence"], str(one["reason"])))
            for one in self._looked()
        ]
        return sorted([*self._settled, *left], key=lambda one: one.sequence)

    def _looked(self) -> list[Row]:
        """What is left of the rejects that were there when it began; what is not is settled."""
        found = self._destination.pending()
        if self._pending is not None:
            wanted = {one["sequence"] for one in self._pending}
            found = [one for one in found if one["sequence"] in wanted]
            self._settled += _settled(self._pending, {one["sequence"] for one in found})
        self._pending = found
        return found

    def _apply(self, step: Rows, pending: Sequence[Row], place: Place) -> dict[int, str]:
        """Write the rows that the destination takes whole; why the others are left, by sequence."""
        reasons: dict[int, str] = {}
        while step.chunk.rows.num_rows:
            try:
                self._destination.apply([step], before=place, until=place, entries_at=refused_anew)
                break
            except RefusedAnewError as error:
                refused = frozenset(error.sequences)
            taken, why = _without(step.chunk, refused)
            reasons |= {
                one["sequence"]: why[one["key"]]
                for one in pending
                if one["key"] in why and one["sequence"] not in refused
            }
            step = structs.replace(step, chunk=taken)
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


def row_slices(chunk: Chunk) -> Generator[Chunk]:
    """The rows of a chunk, about a thousand at a time, each with all of its changes.

    Those that go come first: what has their place may be the same key to the destination, as 1 is
    to MongoDB, whatever its type.
    """
    count = chunk.rows.num_rows
    if not count:
        return
    size = max(1, min(_ROWS, count * _BYTES // max(1, chunk.nbytes)))
    _, firsts, codes, counts = np.unique(
        codes_of(chunk.rows), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((firsts, chunk.roles[firsts] != DELETE))
    parts = np.empty(len(order), np.int64)
    parts[order] = (np.cumsum(counts[order]) - counts[order]) // size
    for part in np.unique(parts):
        yield chunk.take(np.flatnonzero(parts[codes] == part))


def _without(chunk: Chunk, refused: Collection[int]) -> tuple[Chunk, dict[str, str]]:
    """The rows of a chunk of which no change was refused; by key, why not the others."""
    own: list[Any] = chunk.rows["key"].to_pylist()
    why = {
        key: f"the change at sequence {sequence} of its row is refused"
        for key, sequence in zip(own, chunk.sequences.tolist(), strict=True)
        if sequence in refused
    }
    return chunk.take(np.flatnonzero([key not in why for key in own])), why


def _settled(pending: Sequence[Row], left: Collection[int]) -> list[Replayed]:
    # A row is told by its table: one that was moved may have changes of two collections.
    last = {(one["table"], one["key"]): one["sequence"] for one in pending}
    return [
        outcome(one, REPLAYED if last[one["table"], one["key"]] == one["sequence"] else SUPERSEDED)
        for one in pending
        if one["sequence"] not in left
    ]


def _nothing() -> pa.Table:
    from penstock.wire import ARROW_SCHEMA

    schema = arrow.schema([ARROW_SCHEMA.field(name) for name in INPUT_COLUMNS])
    return schema.empty_table()


def refused_anew(sequences: Sequence[int]) -> pa.Table:
    """Raises RefusedAnewError: what is written anew is not noted a second time."""
    raise RefusedAnewError(sequences)
