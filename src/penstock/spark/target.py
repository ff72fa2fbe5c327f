"""Where a pipeline's changes go: what `penstock.spark.run` asks of a target."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Applied(Struct, frozen=True, kw_only=True):
    """What a batch came to."""

    entries: int
    """Entries read."""
    rows: int
    """Rows or records written or deleted; 0 when the batch was applied before."""
    rejected: int = 0
    sequence: int = 0
    """The last one applied; 0 for an empty batch."""
    timestamp: int = 0
    """When that was committed, in Unix milliseconds; 0 where the target does not know."""
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges, each (after, until], that retention removed before they were read."""

    @property
    def entries_lost(self) -> int:
        """How many entries that were."""
        return sum(until - after for after, until in self.lost)


class Beginning(Struct, frozen=True, kw_only=True):
    """Where a run would begin."""

    after: Progress
    """As `Target.start` would give it."""
    stood: Progress | None
    """How far the destination says that it has come; None if it has nothing of the pipeline."""
    restepped: Sequence[str] = ()
    """Collections whose steps are others than its rows were made with; "" where it is all."""


class TargetStoppedError(Exception):
    """The pipeline was told to stop while a batch was written."""


class Target(Protocol):
    """Applies batches, and keeps with what it writes how far it has come."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it needs of an entry."""
        ...

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Progress:
        """Where to go on, for a run that begins now; what an earlier one left is finished first.

        `bounds` are the log's, and `whole` asks for those of the log with its archive, if it has
        one: only where a run begins with the oldest entry that there is.

        Raises PenstockError where going on would leave out changes.
        """
        ...

    def declare(self, declared: Sequence[Declared]) -> None:
        """What events up to there say of the types of fields, after each `start`: of those behind
        which the run begins it is told nothing else."""
        ...

    def apply(
        self,
        batch: "DataFrame",
        batch_id: int,
        *,
        until: Progress,
        refused: "pa.Table | None" = None,
    ) -> Applied:
        """Write whole commits of entries (`columns`, any order), and that all up to `until` is in.

        `refused` are the rejects (REJECTS_SCHEMA) of the steps before it, for a target whose
        pipeline has no table of them: it writes them with its place.

        What was applied before is ignored. Raises PenstockError; what it names is not written.
        TargetStoppedError: the pipeline was told to stop, and what was written is whole.
        """
        ...

    def save(self, batch_id: int) -> None:
        """Store how far it has come, if that is not stored; it is when this returns.

        TargetStoppedError: the pipeline was told to stop, and it is read once more.
        """
        ...

    def close(self) -> None:
        """The run is over."""
        ...
