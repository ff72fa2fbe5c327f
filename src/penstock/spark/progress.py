"""What a run of a pipeline says of itself and its batches, and telling it to whoever asked."""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import structlog
from msgspec import Struct

from penstock.spark.target import Applied

if TYPE_CHECKING:
    from penstock.spark.loading.parts import Plan

log = structlog.get_logger()

_TOLD_MAX: Final = 1000
_TOLD_SECONDS_MAX: Final = 5.0


class PipelineProgress(Struct, frozen=True, kw_only=True):
    """A batch that is in the target."""

    pipeline: str
    batch_id: int
    entries: int
    """Entries read."""
    rows: int
    """Rows or records written or deleted."""
    rejected: int
    sequence: int
    """The last entry applied; 0 when the batch held nothing for this pipeline."""
    seconds: float
    """What the batch took, from its plan to the last commit."""

    timestamp: int = 0
    """When the last entry was committed, in Unix milliseconds; 0 where that is not known."""
    unmet: dict[str, int] = {}
    """By expectation: how many changes did not meet it."""
    lost: int = 0
    """Entries that retention removed before they were read: the target has a gap for them."""
    until: int = 0
    """The place in the log up to which everything is applied: behind `sequence` come entries of
    others."""

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0

    @classmethod
    def of(
        cls,
        name: str,
        batch_id: int,
        result: Applied,
        seconds: float,
        unmet: dict[str, int],
        *,
        until: int,
    ) -> "PipelineProgress":
        """Of what a batch that ends at `until` came to."""
        return cls(
            pipeline=name,
            batch_id=batch_id,
            entries=result.entries,
            rows=result.rows,
            rejected=result.rejected,
            sequence=result.sequence,
            seconds=seconds,
            timestamp=result.timestamp,
            unmet=unmet,
            lost=result.entries_lost,
            until=until,
        )


class RunBegan(Struct, frozen=True, kw_only=True):
    """A run goes on from its place in the log; told again when it goes on after an error."""

    pipeline: str
    sequence: int
    """Everything up to here was in the target before."""
    head: int
    """Where the log ended."""


class RunWaits(Struct, frozen=True, kw_only=True):
    """An error that passes holds a run up."""

    pipeline: str
    code: str


class LoadProgress(Struct, frozen=True, kw_only=True):
    """How far a first load, or a backfill, has come."""

    pipeline: str
    loaded: int
    """Ranges of keys whose rows are in their tables."""
    ranges: int
    """All that are known."""
    undivided: tuple[str, ...]
    """Collections of which nobody knows the ranges yet; an empty name is all of the source."""
    complete: bool
    """Whether the log has also told all that was committed when they were read."""

    @classmethod
    def of(cls, name: str, plan: "Plan") -> "LoadProgress":
        """Of what is planned."""
        return cls(
            pipeline=name,
            loaded=plan.ranges_loaded,
            ranges=plan.ranges,
            undivided=plan.undivided,
            complete=plan.complete,
        )


RunFact = RunBegan | RunWaits | LoadProgress

VerifyStep = Literal["applying", "dividing", "reading", "waiting", "changes", "comparing"]
"""`applying` the log anew; `dividing` the source into ranges, `reading` these, `waiting` for the
log to tell what was committed meanwhile, and seeing which `changes` that were; `comparing`."""


class VerifyProgress(Struct, frozen=True, kw_only=True):
    """How far a comparison of tables has come."""

    pipeline: str
    step: VerifyStep
    done: int = 0
    """Entries of the log, collections, ranges of keys, or tables."""
    total: int | None = None
    """Of all; None where nobody knows."""
    collection: str = ""
    """Whose."""


_Told = TypeVar("_Told", bound=PipelineProgress | RunFact | VerifyProgress)


class ProgressTeller(Generic[_Told]):
    """Calls `on_progress` where it can neither fail nor delay a batch."""

    def __init__(self, on_progress: Callable[[_Told], None] | None) -> None:
        self._on_progress: Callable[[_Told], None] | None = on_progress
        self._waiting: queue.Queue[_Told | None] = queue.Queue(_TOLD_MAX)
        self._thread = threading.Thread(target=self._run, name="penstock-told", daemon=True)
        if on_progress is not None:
            self._thread.start()

    def tell(self, progress: _Told) -> None:
        """Have it called; not, if it is a thousand calls behind."""
        self._put(progress)

    def close(self) -> None:
        """Wait a little for what is left."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=_TOLD_SECONDS_MAX)
            self._thread.join(_TOLD_SECONDS_MAX)

    def _put(self, progress: _Told) -> None:
        if self._on_progress is None:
            return
        try:
            self._waiting.put_nowait(progress)
        except queue.Full:
            return  # who is so slow misses some; what is counted for others is counted elsewhere

    def _run(self) -> None:
        assert self._on_progress is not None
        failed = False
        while (progress := self._waiting.get()) is not None:
            try:
                self._on_progress(progress)
            except Exception as error:
                if not failed:
                    log.warning(
                        "on_progress failed; its later errors are not logged",
                        pipeline=progress.pipeline,
                        error=type(error).__name__,
                    )
                failed = True


class StepTeller:
    """Tells the steps of a comparison, where that can neither fail nor delay it."""

    def __init__(
        self, pipeline: str, teller: ProgressTeller[VerifyProgress], *, heard: bool
    ) -> None:
        self._pipeline = pipeline
        self._teller = teller
        self.heard = heard
        """Whether anybody listens."""

    def __call__(
        self, step: VerifyStep, *, done: int = 0, total: int | None = None, collection: str = ""
    ) -> None:
        told = VerifyProgress(
            pipeline=self._pipeline, step=step, done=done, total=total, collection=collection
        )
        self._teller.tell(told)


@contextmanager
def step_teller(
    pipeline: str, on_progress: Callable[[VerifyProgress], None] | None
) -> Generator[StepTeller]:
    """Who tells `on_progress`, for the time of the block."""
    teller = ProgressTeller(on_progress)
    try:
        yield StepTeller(pipeline, teller, heard=on_progress is not None)
    finally:
        teller.close()
