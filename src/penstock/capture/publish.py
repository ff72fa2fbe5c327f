"""Publishes where the log and its sources stand, and notices when another machine took over.

What is published was durable before (P33): it is read from the log, where nothing else is. A store
that fails never holds capture up. It is asked again at the next interval, and left alone for a
while after some failures in a row.

Each process draws a name at its start, the `writer`, and claims its instance by writing it. Every
write replaces exactly the copy that this process wrote last, so that once another process has
written, ours is refused, whatever it wanted to say: then it has been superseded, and it ends.
"""

import asyncio

import structlog
from msgspec import Struct, structs

from penstock.capture.breaker import Breaker, Circuit
from penstock.capture.lineage import Standing, copy_of, standing
from penstock.capture.supervise import Clock
from penstock.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointStoreError,
    CheckpointUnavailableError,
    ForeignCheckpointError,
    OutdatedLogError,
    SupersededError,
)
from penstock.ports import Bounds, Checkpoint, CheckpointStore, Kept, LogReader, SourceState
from penstock.telemetry import (
    CHECKPOINT_ERRORS,
    CHECKPOINT_FAILURES,
    CHECKPOINT_LATENCY_SECONDS,
    CHECKPOINTS_SAVED,
)

logger = structlog.get_logger(__name__)

RENEW_SECONDS = 10.0
"""A copy is written again after so long even if nothing changed: an idle machine must notice too
that it was replaced, and the copy's age says whether its machine is there."""
PAUSE_SECONDS = 0.1
"""Between two copies, however many events there are: each costs the store a write."""
_CLAIM_TRIES = 5


class PublishLimits(Struct, frozen=True, kw_only=True):
    """How often to publish."""

    interval_seconds: float = 1.0
    """What has changed is published at least so often."""
    event_count: int = 1000
    """Earlier, once so many events were captured."""


class PublisherStatus(Struct, frozen=True, kw_only=True):
    """How publishing is, for `status`, health and metrics."""

    instance: str
    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    """In a row."""
    code: str = ""
    """Of the last failure; empty once a copy was written again."""
    message: str = ""
    sequence: int | None = None
    """Published last by this process; None before the first."""
    published_at: int = 0
    """Unix milliseconds."""


class Publisher:
    """Publishes one log as one instance. `run` until cancelled, then `finish`."""

    def __init__(
        self,
        log: LogReader,
        store: CheckpointStore,
        *,
        instance: str,
        writer: str,
        clock: Clock,
        breaker: Breaker,
        limits: PublishLimits | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._writer = writer
        self._clock = clock
        self._breaker = breaker
        self._limits = limits or PublishLimits()
        self._limited_anew = asyncio.Event()
        self._last: Kept | None = None
        """The copy that this process wrote last; or, before the first, the one to replace."""
        self._claimed = False
        self._status = PublisherStatus(instance=instance)

    def status(self) -> PublisherStatus:
        """How publishing is."""
        return structs.replace(self._status, circuit=self._breaker.circuit)

    def configure(self, limits: PublishLimits) -> None:
        """Publish as often as `limits` say from now on."""
        self._limits = limits
        self._limited_anew.set()

    async def run(self) -> None:
        """Publish for as long as capture runs.

        Raises SupersededError, ForeignCheckpointError or OutdatedLogError, when this process must
        not go on as this instance. No other failure of the store ends it.
        """
        while True:
            if self._breaker.admit():
                await self._try()
            await self._clock.sleep(max(PAUSE_SECONDS, self._breaker.wait_seconds()))
            await self._due()

    async def finish(self) -> None:
        """Publish once more, after capture has ended; a failure is said, and changes nothing.

        Raises as `run`.
        """
        if await self._changed() and self._breaker.admit():
            await self._try()

    async def publish(self) -> Checkpoint:
        """Publish how things stand now, and return what was published.

        The first time, the instance is claimed. Raises CheckpointError.
        """
        for _ in range(_CLAIM_TRIES):
            # In this order: see `copy_of`.
            states = await self._log.sources()
            bounds = await self._log.bounds()
            if not self._claimed:
                self._last = await self._store.read(self._status.instance)
                await self._require_place(self._last, bounds)
            copy = self._copy(states, bounds)
            try:
                replacing = None if self._last is None else self._last.revision
                with CHECKPOINT_LATENCY_SECONDS.time():
                    revision = await self._store.write(copy, replacing=replacing)
            except CheckpointConflictError:
                await self._look_again(bounds)
                continue
            self._last, self._claimed = Kept(copy, revision), True
            return copy
        raise CheckpointConflictError(instance=self._status.instance)

    def _copy(self, states: list[SourceState], bounds: Bounds) -> Checkpoint:
        return copy_of(
            states,
            bounds,
            instance=self._status.instance,
            writer=self._writer,
            before=self._last.checkpoint if self._last is not None else None,
            now_ms=self._clock.now_ms(),
        )

    async def _look_again(self, bounds: Bounds) -> None:
        """After a refused write: what is there now, and may we still write?"""
        found = await self._store.read(self._status.instance)
        ours = found is not None and found.checkpoint.writer == self._writer
        if self._claimed and found is not None and not ours:
            raise SupersededError(
                instance=self._status.instance,
                log_id=bounds.log_id,
                taken_over_by=found.checkpoint.log_id,
            )
        # It is ours if the answer to a write that was kept got lost; gone if somebody cleared it.
        self._last = found

    async def _require_place(self, found: Kept | None, bounds: Bounds) -> None:
        published = None if found is None else found.checkpoint
        check = None if published is None else await self._log.check_at(published.sequence)
        require_place(published, bounds, check=check, instance=self._status.instance)

    async def _try(self) -> None:
        before = self._status
        try:
            copy = await self.publish()
        except (
            CheckpointUnavailableError,
            CheckpointStoreError,
            CheckpointConflictError,
        ) as error:
            self._breaker.failed()
            await self._failed(error)
        else:
            self._breaker.succeeded()
            if before.failures:
                logger.info("publishing goes on", failures=before.failures)
            self._status = PublisherStatus(
                instance=before.instance, sequence=copy.sequence, published_at=copy.published_at
            )
            CHECKPOINT_FAILURES.set(0)
            for state in copy.sources:
                CHECKPOINTS_SAVED.labels(state.source).inc()
        finally:
            # Cancelled in mid-trial: `finish` must be able to try.
            self._breaker.undecided()

    async def _failed(self, error: CheckpointError) -> None:
        failures = self._status.failures + 1
        self._status = structs.replace(
            self._status, failures=failures, code=error.code, message=str(error)
        )
        CHECKPOINT_FAILURES.set(failures)
        for state in await self._log.sources():
            CHECKPOINT_ERRORS.labels(state.source).inc()
        if failures == 1 or self._breaker.circuit is Circuit.OPEN:
            logger.warning(
                "the published copy is not kept up; capture goes on",
                code=error.code,
                failures=failures,
                wait_seconds=round(self._breaker.wait_seconds(), 3),
            )

    async def _due(self) -> None:
        """Wait until there is something to publish, or the copy is to be renewed."""
        waited = 0.0
        while True:
            began = self._clock.now_ms()
            many = await self._many()
            waited += max(0, self._clock.now_ms() - began) / 1000
            if many or waited >= RENEW_SECONDS or self._status.failures or await self._changed():
                return

    async def _many(self) -> bool:
        """Wait for an interval, or for many events: whether there are. Ends when limits change."""
        self._limited_anew.clear()
        anew = asyncio.ensure_future(self._limited_anew.wait())
        waiting = asyncio.ensure_future(
            self._log.wait(
                after=(self._status.sequence or 0) + self._limits.event_count - 1,
                timeout_seconds=self._limits.interval_seconds,
            )
        )
        try:
            await asyncio.wait({anew, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.done() and waiting.result()
        finally:
            anew.cancel()
            waiting.cancel()

    async def _changed(self) -> bool:
        """Whether the last copy does not say how things stand."""
        if not self._claimed or self._last is None:
            return True
        states = await self._log.sources()
        bounds = await self._log.bounds()
        now = structs.replace(
            self._copy(states, bounds), published_at=self._last.checkpoint.published_at
        )
        return now != self._last.checkpoint


def require_place(
    published: Checkpoint | None, bounds: Bounds, *, check: int | None, instance: str
) -> None:
    """Raise unless the log with `bounds` may publish in place of `published`; see `standing`."""
    if published is None:
        return
    match standing(published, bounds, check=check):
        case Standing.SUPERSEDED:
            raise SupersededError(
                instance=instance, log_id=bounds.log_id, taken_over_by=published.log_id
            )
        case Standing.FOREIGN:
            raise ForeignCheckpointError(
                instance=instance, log_id=bounds.log_id, published=published.log_id
            )
        case Standing.BEHIND:
            raise OutdatedLogError(instance=instance, log_id=bounds.log_id)
        case _:
            return
