"""What the HTTP endpoints of the serve process tell: of both processes, and of the log."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock import __version__
from penstock.cli.config import Settings
from penstock.cli.control import request
from penstock.cli.metrics import told
from penstock.client.pipelines import PipelineStatus
from penstock.errors import PenstockError
from penstock.ports import LogReader
from penstock.serve.access import Access
from penstock.serve.captures.service import CaptureService
from penstock.serve.consumers import Consumers
from penstock.serve.counted import begin_counting
from penstock.serve.health import Facts, Health, health
from penstock.serve.http import Told
from penstock.serve.zero.service import ZeroService
from penstock.state.standing import incomplete_sources
from penstock.subscribe.current import CurrentState
from penstock.telemetry import (
    QUERY_BATCH_SECONDS,
    QUERY_DIFFERENCES,
    QUERY_ENTRIES,
    QUERY_ENTRIES_PER_SECOND,
    QUERY_HELD_BYTES,
    QUERY_LAG_ENTRIES,
    QUERY_LAG_SECONDS,
    QUERY_LOST_ENTRIES,
    QUERY_REJECTED,
    QUERY_ROWS,
    QUERY_RUNNING,
    QUERY_UNTIDIED,
    QUERY_VERIFIED,
    SERVE_REGISTRY,
    STATE_FAILED,
    STATE_LAG_EVENTS,
    ZERO_LAG_COMMITS,
    ZERO_SHARDS,
    exposition,
)

_ASK_SECONDS = 3.0
_QUERY_METRICS = (
    QUERY_BATCH_SECONDS,
    QUERY_ENTRIES,
    QUERY_ENTRIES_PER_SECOND,
    QUERY_DIFFERENCES,
    QUERY_VERIFIED,
    QUERY_HELD_BYTES,
    QUERY_LAG_ENTRIES,
    QUERY_LAG_SECONDS,
    QUERY_LOST_ENTRIES,
    QUERY_REJECTED,
    QUERY_ROWS,
    QUERY_RUNNING,
)


def count_pipelines(pipelines: Sequence[PipelineStatus]) -> None:
    """Have the metrics say how these pipelines are, and nothing of any other."""
    for metric in _QUERY_METRICS:
        metric.clear()
    for one in pipelines:
        name = one.pipeline
        QUERY_RUNNING.labels(name).set(one.state == "running")
        QUERY_LAG_ENTRIES.labels(name).set(one.lag_entries)
        QUERY_LAG_SECONDS.labels(name).set(one.lag_seconds)
        QUERY_HELD_BYTES.labels(name).set(one.held_bytes)
        QUERY_ENTRIES.labels(name).set(one.entries)
        QUERY_ROWS.labels(name).set(one.rows)
        QUERY_REJECTED.labels(name).set(one.rejected)
        QUERY_LOST_ENTRIES.labels(name).set(one.lost)
        QUERY_BATCH_SECONDS.labels(name).set(one.batch_seconds)
        QUERY_ENTRIES_PER_SECOND.labels(name).set(one.entries_per_second)
        QUERY_DIFFERENCES.labels(name).set(one.differences)
        QUERY_UNTIDIED.labels(name).set(one.untidied)
        QUERY_VERIFIED.labels(name).set(one.verified_at_ms / 1000)


class Page:
    """Asks capture over its socket, and the log."""

    def __init__(
        self,
        settings: Settings,
        log: LogReader,
        consumers: Consumers,
        *,
        started_at: int,
        current: CurrentState | None = None,
        access: Access | None = None,
        captures: CaptureService | None = None,
        zero: ZeroService | None = None,
        pipelines: Callable[[], Sequence[PipelineStatus]] = tuple,
    ) -> None:
        """`started_at`: Unix milliseconds. `consumers` says how the current rows are kept up."""
        begin_counting(settings.sources)
        self._settings = settings
        self._serve = settings.serve
        self._log = log
        self._consumers = consumers
        self._started_at = started_at
        self._current = current
        self._access = access
        self._captures = captures
        self._zero = zero
        self._pipelines = pipelines

    def told(self) -> Told:
        """What the endpoints ask."""
        return Told(
            health=self._health,
            ready=self._ready,
            metrics=self._metrics,
            current=self._current,
            access=self._access,
            captures=self._captures,
            zero=self._zero,
            batch_bytes_max=lambda: self._serve.batch_bytes_max,
        )

    def configure(self, settings: Settings) -> None:
        """Answer by the limits of `settings` from now on, and count for its sources."""
        begin_counting(settings.sources)
        self._serve = settings.serve

    async def _ask(self, name: str) -> dict[str, Any] | None:
        """What capture answers; None if it does not."""
        folder = self._settings.log.path
        try:
            return await asyncio.to_thread(request, folder, name, timeout_seconds=_ASK_SECONDS)
        except PenstockError:
            return None

    async def _health(self) -> Health:
        status = self._consumers.status()
        bounds = await self._log.bounds()
        incomplete = frozenset[str]()
        if status.shards:
            incomplete = await incomplete_sources(self._log, self._settings.log.path)
        facts = Facts(
            capture=await self._ask("status"),
            sources=await self._log.sources(),
            consumers=len(status.readers),
            head=bounds.head,
            head_commit=bounds.head_commit,
            current=status.current,
            captures=self._captures is not None,
            captures_failure=None if self._captures is None else self._captures.failure,
            shards=status.shards,
            pipelines=await asyncio.to_thread(self._pipelines),
            incomplete=incomplete,
            buffer_size=(self._settings.log.path / "data.mdb").stat().st_blocks * 512,
        )
        return health(
            facts,
            version=__version__,
            started_at=self._started_at,
            now_ms=time.time_ns() // 1_000_000,
            lag_seconds_max=self._serve.health_lag_max,
        )

    async def _ready(self) -> bool:
        return await self._ask("status") is not None

    async def _count_shards(self, zero: ZeroService) -> None:
        head = (await self._log.bounds()).head_commit
        shards = zero.shards()
        ZERO_SHARDS.clear()
        for one in shards:
            ZERO_SHARDS.labels(one.state).inc()
        ZERO_LAG_COMMITS.set(max((head - one.commit for one in shards), default=0))

    async def _metrics(self) -> bytes:
        answer = await self._ask("metrics")
        if self._zero is not None:
            await self._count_shards(self._zero)
        count_pipelines(await asyncio.to_thread(self._pipelines))
        current = self._consumers.status().current
        if current is not None:
            head = (await self._log.bounds()).head
            STATE_LAG_EVENTS.set(max(0, head - current.sequence))
            STATE_FAILED.set(bool(current.code))
        captured, up = b"", "0"
        if answer is not None:
            captured, up = told(answer), "1"
        return (
            captured
            + exposition(SERVE_REGISTRY)
            + b"# HELP penstock_capture_up Whether the capture process answered.\n"
            + b"# TYPE penstock_capture_up gauge\n"
            + f"penstock_capture_up {up}\n".encode()
        )
