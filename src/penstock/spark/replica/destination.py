"""What the replication asks of a destination, and how long it waits for one that is away."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import structlog
from msgspec import Struct

from penstock.client.patience import Patience
from penstock.errors import (
    DestinationError,
    PenstockError,
    PipelineChangedError,
    SupersededPipelineError,
)
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.steps import Done, EntriesAt, Step
from penstock.spark.table.chunk import Decode

logger = structlog.get_logger(__name__)

PLACES = "_penstock_pipelines"
TABLES = "_penstock_tables"
REJECTS = "_penstock_rejects"
COLUMNS = "_penstock_columns"
"""Only in SQL."""

Decide = Callable[[Place | None, Mapping[str, Stream], Collection[str]], Place]
"""From the stored place, the pipeline's tables and what is replicated into them, and the tables
that are gone, to the place of a run."""


class Standing(Struct, frozen=True, kw_only=True):
    """What a destination says of a pipeline: what its `Decide` is told."""

    place: Place | None = None
    tables: Mapping[str, Stream] = {}
    gone: Collection[str] = ()


def away(pipeline: str, destination: "Destination", error: Exception, then: str) -> PenstockError:
    """What one of a destination's errors says to who does not wait for it to pass; `then` is a
    sentence on what that means to them."""
    if (refused := destination.judge(error)) is not None:
        return refused
    what, remedy = destination.cause(error)
    return DestinationError(
        pipeline=pipeline,
        what=f"its destination does not answer: {what}",
        remedy=f"{remedy} {then}",
    )


class Destination(Protocol):
    """A database, in a transaction at a time. Blocks; one thread calls it."""

    @property
    def decode(self) -> Decode:
        """What workers make of documents and keys for it."""
        ...

    @property
    def errors(self) -> type[Exception]:
        """What its calls raise beside our own errors."""
        ...

    def judge(self, error: Exception) -> PenstockError | None:
        """What an error says that does not pass by itself; None for one that does."""
        ...

    def cause(self, error: Exception) -> tuple[str, str]:
        """What happened, with where, and the next step as a sentence; for one that passes too."""
        ...

    def claim(self, decide: Decide) -> Place:
        """Begin a run: store the place that `decide` gives for the one that is stored.

        Raises what `decide` raises, DestinationError.
        """
        ...

    def standing(self) -> Standing:
        """What `claim` would decide by. Changes nothing, makes nothing, and locks nothing.

        Raises DestinationError.
        """
        ...

    def apply(
        self, steps: Sequence[Step], *, before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        """Do all steps and move the place to `until`, in one transaction.

        May be repeated after any error: once the place is at `until`, nothing is done.

        Raises DestinationError, SupersededPipelineError, PipelineChangedError.
        """
        ...

    def pending(self) -> list[dict[str, Any]]:
        """The pipeline's rejects that are of rows and not healed (ENTRY_COLUMNS, reason, field,
        table), by sequence."""
        ...

    def reset(self) -> None:
        """Close the connection, if there is one; the next call opens another.

        Each call that fails does so itself.
        """
        ...


def is_applied(stored: Place | None, *, before: Place, until: Place) -> bool:
    """Whether the place says that everything up to `until` is applied; else it is at `before`.

    Steps that move no place, as of a replay, are never known to be: they are done again.

    Raises SupersededPipelineError, PipelineChangedError.
    """
    if stored is not None and stored.epoch != before.epoch:
        raise SupersededPipelineError(pipeline=before.pipeline)
    if stored is not None and stored.progress == until.progress != before.progress:
        return True
    if stored is None or stored.progress != before.progress:
        raise PipelineChangedError(
            pipeline=before.pipeline,
            change="its place is not where it was, as after a restore of the destination",
            remedy="or start it again, to go on from the place that is there",
            new="name",
        )
    return False


class ReplicaPatience(Patience):
    """Calls a destination until it answers (A6)."""

    errors = Exception

    def __init__(
        self,
        pipeline: str,
        config: ReplicatePipelineConfig,
        destination: Destination,
        *,
        stopping: threading.Event,
    ) -> None:
        super().__init__(config, stopping=stopping)
        self._pipeline = pipeline
        self._config = config
        self._destination = destination

    def judge(self, error: Exception) -> PenstockError | None:
        if not isinstance(error, self._destination.errors):
            raise error
        return self._destination.judge(error)

    def failed(self, error: Exception) -> None:
        """The destination has forgotten its connection by itself."""

    def opened(self, error: Exception, failures: int) -> None:
        why, remedy = self._destination.cause(error)
        logger.warning(
            "the pipeline's destination does not answer; the log keeps what comes",
            pipeline=self._pipeline,
            why=why,
            remedy=remedy,
            attempts=failures,
            wait_seconds=self._config.circuit_seconds,
        )

    def closed(self) -> None:
        logger.warning("the pipeline's destination answers again", pipeline=self._pipeline)
