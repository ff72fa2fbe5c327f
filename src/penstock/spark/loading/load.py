"""The first load of a pipeline's tables, beside its stream.

A thread reads ranges of keys with Spark's tasks; the pipeline's own thread writes what was read,
between two batches. Nothing is read while nobody notes what the log changes: a window is opened,
between two batches, before a read is asked for, and closed when its rows are written.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient
from penstock.client.retry import Backoff, Retry
from penstock.errors import (
    BatchTooLargeError,
    ConfigError,
    PenstockError,
    SourceUnavailableError,
)
from penstock.ports import Listing, ReadsRanges
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import OPEN, READ, UNSPLIT, Outcome, Part, Plan
from penstock.spark.loading.reading import OpenSource, PartRows, read_parts
from penstock.spark.loading.stored import StoredPlan
from penstock.spark.loading.window import Window, ends_of, redefines, renamed_to, unapplied
from penstock.spark.loading.writing import LoadWriter
from penstock.spark.progress import LoadProgress
from penstock.spark.raised import own_error
from penstock.spark.sharing import enter_pool
from penstock.spark.table.chunk import Collected
from penstock.spark.table.standing import StandingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

_PART_MEMORY: Final = 64 << 20
"""What a part may take of `max_bytes_per_batch`: twice what a source gives it, about."""
_PARTS_PER_CORE: Final = 2
_RETRY: Final = Retry(max_seconds=10.0)
_ATTEMPTS_ONCE: Final = 3
UNTOLD: Final = (
    "waits for the log to have all that was committed when rows were read; where capture has no "
    "lag, look for an XA transaction at the source that is prepared and not ended (XA RECOVER)"
)
_LOOK_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 5.0
_STILL_SECONDS: Final = 60.0
"""So long a source may stand still in the log while the load waits for it. One that is idle moves
on every ten seconds."""


def first_load(
    name: str,
    config: TablePipelineConfig,
    endpoint: str,
    spark: "SparkSession",
    open_source: OpenSource | None,
    credentials: Credentials,
    tell: Callable[[LoadProgress], None] | None = None,
) -> "FirstLoad":
    """The first load of a pipeline. Nothing is stored yet. Raises as `require_readable`.

    `tell` is called with how far it is, and may neither fail nor delay it.
    """
    readable = require_readable(name, config, open_source)
    return FirstLoad(name, config, endpoint, spark, readable, credentials=credentials, tell=tell)


def require_readable(
    name: str, config: TablePipelineConfig, open_source: OpenSource | None
) -> OpenSource:
    """Raise ConfigError for a source that nobody but itself can read, or not beside its stream."""
    source = None if open_source is None else open_source()
    if open_source is None or not isinstance(source, ReadsRanges):
        raise ConfigError(
            f"pipeline {name}: first_load = 'source' needs a source that can be read by ranges of "
            f"keys, which are MongoDB, MySQL and MariaDB; {config.source} is none, or its settings "
            f"are not known here. "
            f"Nothing was written. Leave first_load out, and have the service copy the rows "
            f"through the log: penstock snapshot {config.source}."
        )
    source.require_readable()
    return open_source


class Split(Struct, frozen=True, kw_only=True):
    """The ranges of a part."""

    part: Part
    listing: Listing


class Wave(Struct, frozen=True, kw_only=True):
    """Parts that were read together."""

    parts: list[Part]
    rows: list[PartRows]


class Told(Struct, frozen=True, kw_only=True):
    """The log holds, up to its head, all that was committed when the parts were read."""

    head: int


class Waiting(Struct, frozen=True, kw_only=True):
    """It is not time yet: the log does not say enough of the source."""

    position: str | None
    """Where the log has the source; None: nowhere."""


Work = Split | Wave | Told | Waiting


class FirstLoad:
    """The load of one pipeline. All but what it reads happens under the pipeline's own lock."""

    def __init__(
        self,
        pipeline: str,
        config: TablePipelineConfig,
        endpoint: str,
        spark: "SparkSession",
        open_source: OpenSource,
        *,
        credentials: Credentials = NOBODY,
        tell: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._tell = tell
        self._config = config
        self._endpoint = endpoint
        self._spark = spark
        self._open_source = open_source
        self._credentials = credentials
        self._stored = StoredPlan(pipeline, config)
        self._writer = LoadWriter(pipeline, config)
        self._standing: StandingTable | None = None
        self._plan = Plan()
        self._window: Window | None = None
        self._ahead: dict[str, int] = {}
        """What tables had when changes of theirs first came behind the last start."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-load-{pipeline}")
        self._work: Future[Work] | None = None
        self._until: int | None = None
        """The place in the log at which the load is complete, once that is known."""
        cores = spark.sparkContext.defaultParallelism
        self._parts_max = max(
            1, min(cores * _PARTS_PER_CORE, config.max_bytes_per_batch // _PART_MEMORY)
        )
        self._backoff = Backoff(_RETRY)
        self._not_before = 0.0
        self._closed = threading.Event()
        self._position: str | None = None
        self._still_since: float | None = None
        """Since when the log says that of the source, and the load waits for more."""
        self._waits_since: float | None = None
        """Since when it waits, or told of it."""

    @property
    def complete(self) -> bool:
        """Whether the tables have all that was there."""
        return self._plan.complete

    def begin(self, standing: StandingTable) -> None:
        """The pipeline goes on where `standing` says; so does the load, as far as tables have it.

        A new pipeline is written down before anything is loaded: what comes behind the place where
        it begins, it must read. Of a collection that the pipeline does not follow, nothing is kept:
        what the stream leaves out makes old what was loaded, so if it comes back, it is new.
        """
        self._standing = standing
        self._ahead = {}
        if standing.stood is None:
            standing.settle()
            plan = Plan()
        else:
            plan = self._followed(self._stored.read(), standing.added)
        log_id = standing.progress.log_id
        loaded = [part for part in plan.parts if part.version >= 0]
        written = {
            collection: self._writer.written(collection, log_id=log_id)
            for collection in {part.collection for part in loaded}
        }
        gone = {
            part.namespace
            for part in loaded
            if written[part.collection].sequence < part.sequence
            or written[part.collection].version < part.version
        }
        for database, collection in sorted(gone):
            plan = plan.anew(database, collection)
        plan = plan.with_collections(self._config.collections or ("",))
        if plan != self._plan:
            self._keep(plan)

    def applying(self, collected: Collected) -> None:
        """These changes are about to be written to the tables."""
        if self.complete:
            return
        plan = self._plan
        for control in collected.controls:
            # A range is one of the table that was listed, and so are the values that were read.
            own = (control.database, control.collection)
            for space in ends_of(control) or ([own] if redefines(control) else []):
                if self._window is not None:
                    self._window.end(*space)
                plan = plan.ended(*space)
            taken_over = renamed_to(control)
            if taken_over is not None and self._follows(taken_over[1]):
                # Rows came to it that were not loaded under their old name.
                plan = plan.anew(*taken_over)
        if plan != self._plan:
            self._keep(plan)
        if self._window is not None:
            self._window.see(unapplied(collected.chunk.rows, self._had))

    @property
    def is_due(self) -> bool:
        """Whether there is something to write, or to begin."""
        if self.complete or self._standing is None or time.monotonic() < self._not_before:
            return False
        return self._work is None or self._work.done()

    def step(self, *, once: bool) -> None:
        """Write what was read, or have more read. No batch is written meanwhile.

        A source or service that is away is waited for; `once`, not for ever. Raises PenstockError.
        """
        assert self._standing is not None
        if self._until is not None:
            if self._standing.progress.sequence >= self._until:
                self._keep(self._plan.passed())
                log.info("first load is complete", pipeline=self._pipeline)
            return
        if self._work is None:
            self._window = Window()
            log_id = self._standing.progress.log_id
            self._work = self._thread.submit(self._next, self._plan, self._parts_max, log_id)
            return
        work, window, self._work, self._window = self._work, self._window, None, None
        try:
            found = work.result()
        except Exception as error:
            self._failed(own_error(error, pipeline=self._pipeline), once=once)
            return
        self._backoff.reset()
        if isinstance(found, Split):
            assert window is not None
            listed = {(one.database, one.collection) for one in found.listing.ranges}
            # And what was asked for: where nothing was found, something may be there now.
            if any(window.ended(*space) for space in {*listed, found.part.namespace}):
                log.warning(
                    "first load lists the source again: collections are not what they were",
                    pipeline=self._pipeline,
                )
            else:
                self._keep(self._plan.split(found.part, found.listing))
        elif isinstance(found, Told):
            if not self._plan.of(UNSPLIT):  # else a rename came in between
                self._until = found.head
        elif isinstance(found, Wave):
            assert window is not None
            self._write(found, window)
        if isinstance(found, Waiting):
            self._waits(found.position, once=once)
        else:
            self._still_since = self._waits_since = None

    def close(self) -> None:
        """What is being read is let go."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        while self._work is not None and not self._work.done():
            # Again and again: between two jobs there is none to cancel.
            self._spark.sparkContext.cancelJobGroup(self._group)
            futures.wait([self._work], timeout=_LOOK_SECONDS)
        self._thread.shutdown()

    # --- under the lock -------------------------------------------------------------------------

    def _write(self, wave: Wave, window: Window) -> None:
        assert self._standing is not None
        size = sum(one.size for one in wave.rows)
        if window.is_full or (size > self._config.max_bytes_per_batch and len(wave.parts) > 1):
            self._parts_max = max(1, len(wave.parts) // 2)
            log.warning(
                "first load reads ranges again: too much came, or changed meanwhile",
                pipeline=self._pipeline,
                collections=sorted({part.collection for part in wave.parts}),
                ranges=len(wave.parts),
                ranges_next=self._parts_max,
            )
            return
        if size > self._config.max_bytes_per_batch:
            raise BatchTooLargeError(
                pipeline=self._pipeline,
                entries=sum(one.rows for one in wave.rows),
                size=size,
                size_max=self._config.max_bytes_per_batch,
                loading=wave.parts[0].collection,
            )
        sound = [
            (part, rows)
            for part, rows in zip(wave.parts, wave.rows, strict=True)
            if not window.ended(*part.namespace) and part in self._plan.parts
        ]
        outcomes: dict[Part, Outcome] = {}
        for collection in dict.fromkeys(part.collection for part, _ in sound):
            # A part with a row that the stream could not tell of is read again.
            own = [
                (part, rows)
                for part, rows in sound
                if part.collection == collection
                and not self._writer.lacks(collection, rows.chunks, window)
            ]
            chunks = [chunk for _, rows in own for chunk in rows.chunks]
            inexact = [row for _, rows in own for row in rows.inexact]
            done = self._writer.write(collection, chunks, window, self._standing, inexact=inexact)
            for part, rows in own:
                outcomes[part] = Outcome(
                    read_at=rows.read_at, sequence=done.sequence, version=done.version
                )
        self._keep(self._plan.read(outcomes))
        left = len(self._plan.of(OPEN))
        log.info("first load has come on", pipeline=self._pipeline, ranges_left=left)

    def _waits(self, position: str | None, *, once: bool) -> None:
        """Capture is to move on. It is told of if it does not; `once`, it is an error."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if self._still_since is None or position != self._position:
            self._position, self._still_since = position, now
        if now - self._still_since < _STILL_SECONDS:
            if now - self._waits_since >= _STILL_SECONDS:
                self._waits_since = now
                log.warning(UNTOLD, pipeline=self._pipeline, source=self._config.source)
            return
        source = self._config.source
        if not once:
            self._still_since = now
            log.warning("first load waits for capture", pipeline=self._pipeline, source=source)
            return
        self._backoff.failures = _ATTEMPTS_ONCE
        stands = "is not captured" if position is None else "is captured no further"
        error = SourceUnavailableError(
            f"{source}: for {_STILL_SECONDS:g} s the service's log has not moved on with it: it "
            f"{stands}. The first load of pipeline {self._pipeline} needs what comes next. What "
            f"was loaded is in the tables, and kept. See what `penstock status` says of the "
            f"source, have the service capture it, and start the pipeline again."
        )
        self._failed(error, once=once)

    def _failed(self, error: PenstockError, *, once: bool) -> None:
        pause = self._backoff.next_wait()
        if pause is None or not error.transient:
            raise error
        if once and self._backoff.failures >= _ATTEMPTS_ONCE:
            raise error
        self._not_before = time.monotonic() + pause
        log.warning("first load waits", pipeline=self._pipeline, code=error.code, pause=pause)

    def _keep(self, plan: Plan) -> None:
        assert self._standing is not None
        place = self._standing.progress
        self._stored.write(plan, log_id=place.log_id, sequence=place.sequence)
        self._plan, self._until = plan, None
        if self._tell is not None:
            self._tell(LoadProgress.of(self._pipeline, plan))

    def _had(self, collection: str) -> int:
        """The sequence up to which the collection's table ignores changes: what comes is behind all
        that it gets in this run, so it is asked once."""
        if collection not in self._ahead:
            assert self._standing is not None
            log_id = self._standing.progress.log_id
            self._ahead[collection] = self._writer.written(collection, log_id=log_id).sequence
        return self._ahead[collection]

    def _followed(self, plan: Plan, added: Collection[str]) -> Plan:
        """What `plan` says of collections that the pipeline has followed ever since."""
        if not self._config.collections:
            return plan
        return plan.within({*self._config.collections}.difference(added))

    def _follows(self, collection: str) -> bool:
        return not self._config.collections or collection in self._config.collections

    # --- in a thread of its own -----------------------------------------------------------------

    @property
    def _group(self) -> str:
        return f"penstock-load-{self._pipeline}"

    def _next(self, plan: Plan, parts_max: int, log_id: int) -> Work:
        """What comes next of `plan`. Asked for after the window was opened."""
        with LogClient(
            self._endpoint, patience_seconds=_PATIENCE_SECONDS, credentials=self._credentials
        ) as client:
            # Asked for now, it is at or behind all that the tables have.
            position = client.position(self._config.source)
            if position is None:
                time.sleep(_LOOK_SECONDS)  # it is not captured yet
                return Waiting(position=None)
            if unsplit := plan.of(UNSPLIT):
                return Split(part=unsplit[0], listing=self._listing(unsplit[0], position))
            if opened := plan.of(OPEN)[:parts_max]:
                if self._closed.is_set():
                    return Waiting(position=position)
                context = self._spark.sparkContext
                context.setJobGroup(self._group, f"first load {self._pipeline}")
                enter_pool(self._spark)
                rows = read_parts(self._spark, opened, self._open_source, position=position)
                return Wave(parts=opened, rows=rows)
            source = self._open_source()
            reads = {part.read_at for part in plan.of(READ)}
            if not all(source.has_told(position, one) for one in reads):
                time.sleep(_LOOK_SECONDS)
                return Waiting(position=position)
            bounds = client.bounds()
            if bounds.log_id != log_id:  # the stream says so
                return Waiting(position=position)
            return Told(head=bounds.head)

    def _listing(self, part: Part, position: str) -> Listing:
        async def ask() -> Listing:
            source = self._open_source()
            try:
                return await source.ranges(
                    part.database,
                    part.collection,
                    rows=self._config.first_load_rows,
                    position=position,
                )
            finally:
                await source.close()

        return asyncio.run(ask())
