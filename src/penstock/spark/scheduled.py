"""What a pipeline keeps is compared with its log from time to time, or with its source:
`verify_every`.

Beside the batches, on a thread of its own: a batch waits only while it is looked where the tables
stand. What differs is told loudly (the log, the service's metrics, `penstock pipeline list`) and
never repaired: somebody may have meant it. A row beside the tables says when it was last done, so
that a pipeline that is started again, or runs once in a while, gets to it too.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct, structs

from penstock.progress import parse_progress
from penstock.spark.config import LakePipelineConfig
from penstock.spark.raised import TO_END, own_error
from penstock.spark.table.arrow import arrow
from penstock.spark.table.lake import lake_of
from penstock.spark.table.progress_columns import VERIFIED_SCHEMA
from penstock.spark.table.stamp import Stamp
from penstock.spark.verifying import Verified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

POOL: Final = "spark.scheduler.pool"
_LOOK_SECONDS: Final = 0.2
_CLOSE_SECONDS_MAX: Final = 30.0
_FIRST_SECONDS: Final = 60.0
"""By then a new pipeline has tables, usually; else it is tried again, later and later."""

Verify = Callable[[], Verified]


class Verification(Struct, frozen=True, kw_only=True):
    """What is known of a pipeline's tables."""

    at_ms: int = 0
    """When they were last compared, in Unix milliseconds; 0 for never."""
    differences: int = 0
    """Rows that differed then."""
    code: str = ""
    """Of the error for which the last try came to nothing."""


def first_seconds(every: float, *, done_ms: int, now_ms: int) -> float:
    """How long a run that begins waits for its first comparison; 0 if that is due. Pure.

    One that never was is due soon: whoever begins again oftener than `every` would not get to it.
    A clock that went wrong may have said `done_ms`; one that is still to come says nothing.
    """
    if not done_ms:
        return min(every, _FIRST_SECONDS)
    if done_ms > now_ms:
        return 0.0
    return max(0.0, every - (now_ms - done_ms) / 1000)


class VerifySchedule:
    """The comparisons of one run."""

    def __init__(
        self,
        pipeline: str,
        config: LakePipelineConfig,
        spark: "SparkSession",
        *,
        verify: Verify,
        tell: Callable[[Verification], None],
    ) -> None:
        """`tell` is called with what is known, from threads of its own."""
        self._pipeline = pipeline
        self._every = config.verify_every
        self._spark = spark
        self._verify = verify
        self._tell = tell
        self._table = lake_of(config, pipeline, spark).verified()
        now_ms, stored = _now_ms(), self._read()
        self._known = structs.replace(stored, at_ms=min(stored.at_ms, now_ms))
        # Within a run no clock counts that somebody may set.
        self._due_at = time.monotonic() + first_seconds(
            self._every, done_ms=stored.at_ms, now_ms=now_ms
        )
        self._pause_seconds = _FIRST_SECONDS
        self._closing = threading.Event()
        self._group = f"penstock-verifies-{pipeline}-{now_ms}"
        self._pool: str | None = spark.sparkContext.getLocalProperty(POOL)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Compare whenever it is due, until it is closed."""
        if self._known.at_ms:
            self._tell(self._known)
        self._run(self._work)

    def compare_if_due(self, stopping: threading.Event) -> None:
        """Compare now if it is due, or never was, and wait for that; not if told to stop."""
        if self._known.at_ms:
            self._tell(self._known)
        never = not self._known.at_ms
        if stopping.is_set() or (not never and self._due()):
            return
        self._run(self._once)
        assert self._thread is not None
        while self._thread.is_alive() and not stopping.is_set():
            self._thread.join(_LOOK_SECONDS)

    def close(self) -> None:
        """End; what is being compared is given up."""
        self._closing.set()
        started = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            # Again and again: between two jobs there is none to cancel.
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_LOOK_SECONDS)
            if time.monotonic() - started > _CLOSE_SECONDS_MAX:
                return  # it writes nothing but a scratch folder of its own

    def _run(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(
            target=work, name=f"penstock-verifies-{self._pipeline}", daemon=True
        )
        self._thread.start()

    def _due(self) -> float:
        """How long until the next comparison; 0 if it is due."""
        return max(0.0, self._due_at - time.monotonic())

    def _work(self) -> None:
        while not self._closing.wait(self._due()):
            if not self._due():
                self._once()

    def _once(self) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty(POOL, self._pool)  # type: ignore[arg-type]
        context.setJobGroup(self._group, "penstock verify", interruptOnCancel=True)
        self._due_at = time.monotonic() + self._every
        try:
            found = self._verify()
        except TO_END:
            raise
        except BaseException as error:
            if self._closing.is_set():
                return  # it was given up
            if not self._known.at_ms:
                self._due_at = time.monotonic() + min(self._every, self._pause_seconds)
                self._pause_seconds *= 2
            code = own_error(error, pipeline=self._pipeline).code
            log.warning("tables not compared", pipeline=self._pipeline, code=code)
            self._know(structs.replace(self._known, code=code))
            return
        differences = sum(one.differences for one in found.tables)
        if differences:
            log.error(
                f"WHAT IS KEPT DIFFERS FROM THE {found.against.upper()}; nothing was changed, "
                f"`penstock pipeline verify` lists what differs",
                pipeline=self._pipeline,
                differences=differences,
                collections=[one.collection for one in found.tables if one.differences],
            )
        if rejected := sum(one.rejected for one in found.tables):
            log.warning(
                "rows not judged, their last change was rejected",
                pipeline=self._pipeline,
                rejected=rejected,
            )
        if apart := [one.collection for one in found.tables if not one.judged]:
            log.warning(
                "tables not compared, a rename brought what the log does not tell by now",
                pipeline=self._pipeline,
                collections=apart,
            )
        # Told first: whether it can be written where the tables are is another matter.
        self._know(Verification(at_ms=_now_ms(), differences=differences))
        try:
            self._write(self._known, found)
        except TO_END:
            raise
        except BaseException as error:
            if self._closing.is_set():
                return
            code = own_error(error, pipeline=self._pipeline).code
            log.warning(
                "that the tables were compared is not stored; a new run compares them again",
                pipeline=self._pipeline,
                code=code,
            )
            self._know(structs.replace(self._known, code=code))

    def _know(self, known: Verification) -> None:
        self._known = known
        self._tell(known)

    def _read(self) -> Verification:
        rows: list[dict[str, Any]] = [
            row for batch in self._table.scan() for row in batch.to_pylist()
        ]
        for row in rows:
            if row["pipeline"] == self._pipeline:
                return Verification(at_ms=row["verified_at_ms"], differences=row["differences"])
        return Verification()

    def _write(self, known: Verification, found: Verified) -> None:
        progress = parse_progress(found.progress)
        row = {
            "pipeline": self._pipeline,
            "verified_at_ms": known.at_ms,
            "differences": known.differences,
            "progress": found.progress,
        }
        stamp = Stamp(
            pipeline=self._pipeline,
            log_id=progress.log_id,
            after=progress.sequence,
            until=progress.sequence,
            batch=-1,
        )
        self._table.reload()
        self._table.replace(arrow.Table.from_pylist([row], schema=VERIFIED_SCHEMA), stamp)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
