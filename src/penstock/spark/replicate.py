"""`to = "replicate"`: keep tables or collections of another database equal to a source's.

Workers reduce and decode (`penstock.spark.table.chunk`); this process writes. A batch is one
transaction of the destination: all its source transactions are in it, whole and in order, and so is
the pipeline's place (`penstock.spark.replica.place`). Of a row's changes in a batch only what they
come to is written.

| event | the table |
|---|---|
| drop, dropDatabase; TRUNCATE, which is a drop and a create | loses its rows; its columns stay |
| rename to a collection of this pipeline | hands its rows over; what was there is replaced |
| rename to any other, or to one that the source does not capture | loses its rows |
| rename from a collection that this pipeline does not follow | cannot be known: a gap |
| rename behind which the rows are copied (convertToCapped) | loses its rows; copies follow |
| gap | `on_gap`: stop before it, or note it in the rejects |
| create, modify, indexes, sharding, invalidate, system events | is as it was |
| rename to a collection with other steps | is a gap too, and both lose their rows |
| any other | is not guessed at: the pipeline stops before it |

All of it in the transaction of its batch. Where the pipeline stops, the source transactions before
that of the event are applied.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import structs

from penstock.archive.opening import log_client
from penstock.client.patience import StoppedError
from penstock.errors import IncompleteCommitError, TrimmedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.replica.destination import Destination, ReplicaPatience, away
from penstock.spark.replica.place import Place, decide_start
from penstock.spark.replica.steps import Done, Steps, refused_of, steps_of
from penstock.spark.table.chunk import INPUT_COLUMNS, Collected
from penstock.spark.table.collect import before_commit, collect_batch, entries_of
from penstock.spark.table.declared import Declarations
from penstock.spark.target import Applied, Beginning, TargetStoppedError
from penstock.spark.within import place_within
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.spark.replica.dialect import Dialect

_QUIET_SECONDS: Final = 10.0
"""How often the place moves on while nothing is applied: it needs to only before retention."""


class Within(Protocol):
    """`penstock.spark.within.place_within`, of the log that the batches are of."""

    def __call__(self, sequence: int, *, until: Progress) -> Progress: ...


class ReplicaTarget:
    """The tables of a pipeline, and its place beside them."""

    columns = (*INPUT_COLUMNS, "ordinal")

    def __init__(
        self,
        pipeline: str,
        config: ReplicatePipelineConfig,
        *,
        stopping: threading.Event,
        within: Within,
        destination: Destination | None = None,
    ) -> None:
        """`within` asks the log for a place within a batch; `destination` is another than the one
        that is configured. Raises ConfigError."""
        self._pipeline = pipeline
        self._config = config
        self._destination = destination or destination_of(pipeline, config)
        self._patience = ReplicaPatience(pipeline, config, self._destination, stopping=stopping)
        self._within = within
        self._place: Place | None = None
        self._unsaved: Place | None = None
        """A place that is further on, with nothing to write on the way."""
        self._saved_at = time.monotonic()
        self._declarations = Declarations()

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """As `Target.start`; raises as `decide_start`, DestinationError."""
        decide = partial(_decided, self._pipeline, self._config, bounds, whole)
        try:
            self._place = self._patience.call(lambda: self._destination.claim(decide))
        except StoppedError:
            raise TargetStoppedError from None
        self._unsaved = None
        return self._place.progress

    def declare(self, declared: Sequence[Declared]) -> None:
        """As `Target.declare`."""
        self._declarations = Declarations(declared)

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,
        *,
        until: Progress,
        refused: "pa.Table | None" = None,
    ) -> Applied:
        """As `Target.apply`.

        Raises IncompleteCommitError, BatchTooLargeError, ChangesLostError, DestinationError,
        SupersededPipelineError, PipelineChangedError, and PipelineError for an event that is not
        understood.
        """
        place = self._place
        assert place is not None
        if until.sequence <= place.progress.sequence:
            return Applied(entries=0, rows=0)
        collected = self._collected(batch, place)
        steps = self._steps(collected, place)
        if steps.stop is not None:
            # Collected anew: what the rest of its commit came to has replaced what was before.
            before = before_commit(batch, steps.stop.sequence)
            sequence = _last_of(before)
            if sequence > place.progress.sequence:
                try:
                    last = self._within(sequence, until=until)
                except TrimmedError:
                    # No place, no write: why it stops is what there is to mend first.
                    raise steps.stop.error from None
                whole = self._steps(self._collected(before, place), place)
                noted = refused_of(refused, after=place.progress.sequence, until=last.sequence)
                self._write([*whole.steps, *noted], place, last, before)
            raise steps.stop.error
        if steps.steps:
            noted = refused_of(refused, after=place.progress.sequence, until=until.sequence)
            done = self._write([*steps.steps, *noted], place, until, batch)
        else:
            done = Done()
            self._unsaved = structs.replace(place, progress=until)
            if time.monotonic() - self._saved_at >= _QUIET_SECONDS:
                self.save(batch_id)
        # A table is made with its first row, which may come later.
        self._declarations.note(collected.controls)
        return Applied(
            entries=steps.entries,
            rows=done.rows,
            rejected=done.rejected,
            sequence=collected.chunk.last_sequence,
        )

    def _collected(self, batch: "DataFrame", place: Place) -> Collected:
        collect = partial(
            collect_batch,
            batch,
            pipeline=self._pipeline,
            whole=not self._config.collections,
            bytes_max=self._config.max_bytes_per_batch,
            decode=self._destination.decode,
        )
        try:
            return collect()
        except IncompleteCommitError:
            # Pipelines once stopped right before a gap, though it was in the middle of a commit.
            applied = place.progress.sequence
            if not _has_rest_of_commit(batch, applied):
                raise
            return collect(lacks=[(0, applied)])

    def _steps(self, collected: Collected, place: Place) -> Steps:
        return steps_of(
            collected,
            pipeline=self._pipeline,
            config=self._config,
            after=place.progress.sequence,
            declarations=self._declarations,
        )

    def _write(self, steps: Any, place: Place, until: Progress, batch: "DataFrame | None") -> Done:
        behind = structs.replace(place, progress=until)
        entries_at = entries_of(batch) if batch is not None else _no_entries

        def apply() -> Done:
            return self._destination.apply(steps, before=place, until=behind, entries_at=entries_at)

        try:
            done = self._patience.call(apply)
        except StoppedError:
            raise TargetStoppedError from None
        self._place, self._unsaved = behind, None
        self._saved_at = time.monotonic()
        return done

    def save(self, batch_id: int) -> None:  # noqa: ARG002
        """As `Target.save`."""
        place, unsaved = self._place, self._unsaved
        if place is None or unsaved is None:
            return
        self._write([], place, unsaved.progress, None)

    def close(self) -> None:
        """Close the connection."""
        self._destination.reset()


def open_target(run: PipelineRun) -> ReplicaTarget:
    """The target of a pipeline to `replicate`."""

    def within(sequence: int, *, until: Progress) -> Progress:
        with closing(
            log_client(run.endpoint, archive=run.archive, credentials=run.credentials)
        ) as log:
            return place_within(log, sequence, until=until)

    return ReplicaTarget(run.name, run.config, stopping=run.stopping, within=within)


def beginning_of_replica(
    pipeline: str,
    config: ReplicatePipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None = None,
) -> Beginning:
    """Where `ReplicaTarget.start` would begin; raises as it does, and writes nothing. The
    destination is asked once: DestinationError where it does not answer."""
    destination = destination_of(pipeline, config)
    try:
        found = destination.standing()
    except destination.errors as error:
        then = "Only there it is written where a run would begin; a run would wait for it."
        raise away(pipeline, destination, error, then) from None
    place = _decided(pipeline, config, bounds, whole, found.place, found.tables, found.gone)
    return Beginning(
        after=place.progress, stood=None if found.place is None else found.place.progress
    )


def destination_of(pipeline: str, config: ReplicatePipelineConfig) -> Destination:
    """What a pipeline's URI names. Raises ConfigError."""
    if config.kind.startswith("mongodb"):
        from penstock.spark.replica.mongodb import MongoDestination

        return MongoDestination(pipeline, config)
    from penstock.spark.replica.sql import SqlDestination

    return SqlDestination(pipeline, config, dialect_of(pipeline, config))


def dialect_of(pipeline: str, config: ReplicatePipelineConfig) -> "Dialect":
    """What the SQL database is that a pipeline's URI names. Raises ConfigError."""
    if config.kind.startswith("postgres"):
        from penstock.spark.replica.postgres import PostgresDialect

        return PostgresDialect(pipeline, config)
    from penstock.spark.replica.mysql import MysqlDialect

    return MysqlDialect(pipeline, config)


def _decided(
    pipeline: str,
    config: ReplicatePipelineConfig,
    bounds: Bounds,
    whole: Callable[[], Bounds] | None,
    place: Place | None,
    tables: Any,
    gone: Any,
) -> Place:
    return decide_start(
        pipeline, config, place=place, tables=tables, gone=gone, bounds=bounds, whole=whole
    )


def _last_of(batch: "DataFrame") -> int:
    """The sequence of a batch's last entry; 0 for an empty one."""
    found = batch.select("sequence").orderBy("sequence", ascending=False).first()
    return 0 if found is None else int(found[0])


def _has_rest_of_commit(batch: "DataFrame", after: int) -> bool:
    """Whether `after` is in the middle of a commit, of which the batch has all that follows."""
    rest = batch.where(f"sequence = {after + 1}").select("commit", "commit_rows", "ordinal").first()
    if rest is None or not rest["ordinal"]:
        return False
    entries = batch.where(f"`commit` = {rest['commit']}").count()
    return bool(entries == rest["commit_rows"] - rest["ordinal"])


def _no_entries(_: Any) -> Any:
    raise AssertionError("a batch without steps rejects nothing")
