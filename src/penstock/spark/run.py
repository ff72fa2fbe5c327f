"""Run a pipeline: from the service's log to its tables, until it is told to stop.

One Spark query per pipeline. Where it goes on is in Spark's checkpoint; what the tables hold is in
the tables. If the checkpoint is lost the query starts after what every table has, so that nothing
is skipped, and the tables ignore what they have already.

A service that is away is waited for: the query is started again, with growing pauses. Whatever
cannot heal by itself is raised as the error of errors.py that it is.
"""

import random
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from deltalake.exceptions import CommitFailedError
from msgspec import Struct

from penstock import errors
from penstock.client.flight import LogClient
from penstock.errors import PenstockError, PipelineError
from penstock.spark import register
from penstock.spark.batch import BatchResult, reached
from penstock.spark.chunk import INPUT_COLUMNS
from penstock.spark.config import PipelineConfig
from penstock.spark.session import local_session
from penstock.spark.tables import merge_into_delta, sweep_scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = structlog.get_logger()

_LOOK_SECONDS: Final = 0.2
_PAUSE_SECONDS_MAX: Final = 10.0
_ATTEMPTS_ONCE: Final = 3
_SAID_MAX: Final = 500
_NAMED = re.compile(r"penstock\.errors\.(\w+): (.*)")


class PipelineProgress(Struct, frozen=True, kw_only=True):
    """A batch that is in the tables."""

    pipeline: str
    batch_id: int
    entries: int
    """Entries read."""
    rows: int
    """Rows written or deleted."""
    rejected: int
    sequence: int
    """The last entry applied; 0 when the batch held nothing for this pipeline."""
    seconds: float
    """What the batch took, from its plan to the last commit."""

    @property
    def entries_per_second(self) -> float:
        return self.entries / self.seconds if self.seconds else 0.0


def run_pipeline(
    name: str,
    config: PipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession | None" = None,
    once: bool = False,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Apply the log's changes to the pipeline's tables until `stop` is set, or SIGTERM or SIGINT.

    `name` is the identity under which the tables keep their place. `endpoint` is the service's
    Flight address. `once` (as trigger = "availableNow") applies what is there now and returns.
    `on_progress` is called after each batch, in another thread. A session that is not given is
    made, and stopped at the end. A batch that is being written is finished first.

    Raises PenstockError: what cannot heal by itself, and with `once` a service that stays away.
    """
    with _told_to_stop(stop) as stopping:
        session = spark or local_session(app_name=f"penstock {name}")
        sweep_scratch()
        runner = _Runner(name, config, endpoint, session, stopping, on_progress)
        try:
            runner.run(once=once or config.trigger == "availableNow")
        finally:
            if spark is None:
                session.stop()


class _Runner:
    """One pipeline in one session."""

    def __init__(
        self,
        name: str,
        config: PipelineConfig,
        endpoint: str,
        spark: "SparkSession",
        stopping: threading.Event,
        on_progress: Callable[[PipelineProgress], None] | None,
    ) -> None:
        self._name = name
        self._config = config
        self._endpoint = endpoint
        self._spark = spark
        self._stopping = stopping
        self._on_progress = on_progress or _ignore
        self._writing = threading.Lock()
        self._raised: PenstockError | None = None
        self._batches = 0

    def run(self, *, once: bool) -> None:
        """Start the query, and again after errors that pass."""
        attempt = 0
        while not self._stopping.is_set():
            before = self._batches
            try:
                self._query(once=once)
                return
            except PenstockError as error:
                attempt = 1 if self._batches > before else attempt + 1
                if not error.transient or (once and attempt >= _ATTEMPTS_ONCE):
                    raise
                pause = random.uniform(0.5, 1.0) * min(_PAUSE_SECONDS_MAX, 0.5 * 2**attempt)
                log.warning(
                    "pipeline waits for its service",
                    pipeline=self._name,
                    code=error.code,
                    attempt=attempt,
                    pause_seconds=round(pause, 1),
                )
                self._stopping.wait(pause)

    def _query(self, *, once: bool) -> None:
        """One run of the query. Returns when it is done or told to stop."""
        with LogClient(self._endpoint) as client:
            log_id = client.bounds().log_id
        self._raised = None
        query = self._start(log_id, once=once)
        try:
            while query.isActive and not self._stopping.is_set():
                query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
            self._stop(query)
        except Exception as error:
            raise self._own(error) from error
        finally:
            query.stop()
        if self._raised is not None:
            raise self._raised

    def _start(self, log_id: int, *, once: bool) -> "StreamingQuery":
        config = self._config
        register(self._spark)
        from penstock.spark.rows import ENTRY_SCHEMA

        columns = ENTRY_SCHEMA.__class__([ENTRY_SCHEMA[column] for column in INPUT_COLUMNS])
        options = {
            "endpoint": self._endpoint,
            "source": config.source,
            "collections": ",".join(config.collections),
            "startingOffsets": self._starting(log_id),
            "maxOffsetsPerTrigger": str(config.max_events_per_batch),
            "failOnDataLoss": "true" if config.on_gap == "halt" else "false",
            "pipeline": self._name,
        }
        stream = self._spark.readStream.format("penstock").schema(columns).options(**options)
        writer = (
            stream.load()
            .writeStream.foreachBatch(self._apply(log_id))
            .option("checkpointLocation", config.checkpoint_path)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{config.trigger} seconds").start()

    def _starting(self, log_id: int) -> str:
        """Where a query without a checkpoint starts: after what every table has."""
        sequence = reached(self._config, self._name, log_id=log_id)
        if not sequence:
            return "earliest"
        return f'{{"logId": "{log_id:016x}", "sequence": {sequence}}}'

    def _apply(self, log_id: int) -> Callable[["DataFrame", int], None]:
        def apply(batch: "DataFrame", batch_id: int) -> None:
            with self._writing:
                if self._stopping.is_set():
                    raise _Stopped
                started = time.monotonic()
                try:
                    result = merge_into_delta(
                        batch, batch_id, pipeline=self._name, config=self._config, log_id=log_id
                    )
                except Exception as error:
                    self._raised = self._own(error)
                    raise
                self._batches += 1
                self._on_progress(_progress(self._name, result, time.monotonic() - started))

        return apply

    def _stop(self, query: "StreamingQuery") -> None:
        """Stop between batches: no write is torn off, though one that were would do no harm."""
        with self._writing:
            failed = query.exception()
            query.stop()
        if failed is not None and not self._stopping.is_set():
            raise failed

    def _own(self, error: BaseException) -> PenstockError:
        """The error of the tree that `error` is, or comes from."""
        if self._raised is not None:
            return self._raised
        return own_error(error, pipeline=self._name)


def _ignore(_: PipelineProgress) -> None:
    """Nobody wants to know."""


class _Stopped(Exception):  # noqa: N818 - no error: it ends a batch that was not begun
    """The pipeline was told to stop before this batch."""


def own_error(error: BaseException, *, pipeline: str) -> PenstockError:
    """What `error`, which may have come through Spark as text, says in our own words.

    Spark's workers and its JVM hand errors on as the text of a traceback; ours are found by the
    name of their class there.
    """
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, CommitFailedError):
        return PipelineError(
            f"pipeline {pipeline}: another process committed to the same table at the same time "
            f"({error}). Nothing of the batch was written twice. Run one driver per pipeline."
        )
    for name, sentence in reversed(_NAMED.findall(str(error))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            found = kind.__new__(kind)
            Exception.__init__(found, sentence)
            return found
    said = (str(error).splitlines() or [""])[0][:_SAID_MAX]
    return PipelineError(
        f"pipeline {pipeline}: {type(error).__name__}: {said}. The tables are as the last whole "
        f"batch left them; the batch will be applied again when the pipeline is started."
    )


def _progress(name: str, result: BatchResult, seconds: float) -> PipelineProgress:
    return PipelineProgress(
        pipeline=name,
        batch_id=result.batch_id,
        entries=result.entries,
        rows=result.rows,
        rejected=result.rejected,
        sequence=result.sequence,
        seconds=seconds,
    )


@contextmanager
def _told_to_stop(stop: threading.Event | None) -> Generator[threading.Event]:
    """The event that stops the pipeline; without one, signals do, where they can be caught."""
    stopping = stop or threading.Event()
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(_signal: int, _frame: Any) -> None:
        stopping.set()

    before = {which: signal.signal(which, handle) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
