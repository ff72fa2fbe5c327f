"""The archive's task in the capture process: a thread that archives, and what is told of it.

It delays neither capture nor its end: a failure is told and tried again, with growing pauses.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from penstock.archive.config import ArchiveConfig
from penstock.archive.log import ArchivedLog
from penstock.client.retry import Backoff, Retry
from penstock.errors import ArchiveError, LogError, PenstockError
from penstock.errors.base import codes_of
from penstock.log.config import LogConfig
from penstock.ports import Hold
from penstock.telemetry import (
    ARCHIVE_BYTES,
    ARCHIVE_ERRORS,
    ARCHIVE_LOST_ENTRIES,
    ARCHIVE_SEQUENCE,
)

if TYPE_CHECKING:
    from penstock.archive.writing import Archiver

LOOK_SECONDS: Final = 1.0
_RETRY: Final = Retry(initial_seconds=2 * LOOK_SECONDS, max_seconds=60.0)

log = structlog.get_logger(__name__)


class CapturedLog(ArchivedLog, Protocol):
    """The log of the process that trims it."""

    def held_by(self, look: Callable[[int], Hold | None]) -> None: ...


def _within(config: ArchiveConfig, limits: LogConfig) -> ArchiveConfig:
    """`config` for a log that keeps less than a range has: one is due before the log is full."""
    if limits.retention_bytes is None:
        return config
    # Small entries take up to twice as much on disk.
    most = max(1, limits.retention_bytes // 4)
    return config.model_copy(update={"range_bytes": min(config.range_bytes, most)})


class Archiving:
    """Archives `captured` as `config` says; does nothing without a path."""

    def __init__(self, captured: CapturedLog, config: ArchiveConfig, limits: LogConfig) -> None:
        """`limits` says what the log keeps."""
        self._config = config
        self._path: str | None = None
        self._archiver: Archiver | None = None
        self._working: asyncio.Future[bool] | None = None
        self._error: PenstockError | None = None
        if config.path is not None:
            # Parquet takes memory and half a second to load, which only an archive needs.
            from penstock.archive import place, writing

            for code in codes_of(ArchiveError, LogError):
                ARCHIVE_ERRORS.labels(code)
            self._path = place.shown(config.path)
            self._archiver = writing.Archiver(captured, _within(config, limits), config.path)
            captured.held_by(self._archiver.hold)

    def retain(self, limits: LogConfig) -> None:
        """The log keeps by `limits` from now on."""
        if self._archiver is not None:
            self._archiver.config = _within(self._config, limits)

    async def run(self) -> None:
        """Archive, for as long as capture runs."""
        if self._archiver is None:
            return
        backoff = Backoff(_RETRY)
        while True:
            self._working = asyncio.ensure_future(asyncio.to_thread(self._archiver.step))
            pause: float | None = LOOK_SECONDS
            try:
                await asyncio.shield(self._working)
                self._error = None
                backoff.reset()
            except PenstockError as error:
                self._failed(error)
                pause = backoff.next_wait()
            except Exception as error:
                kind = type(error).__name__
                # Its text may quote a document. Capture must go on, whatever it is.
                self._failed(
                    ArchiveError(
                        f"archiving failed on a defect ({kind}). It is tried again, and the log "
                        f"keeps what is not archived for a while. Please report it."
                    )
                )
                pause = backoff.next_wait()
            self._tell()
            await asyncio.sleep(pause or LOOK_SECONDS)

    def _failed(self, error: PenstockError) -> None:
        ARCHIVE_ERRORS.labels(error.code).inc()
        if self._error is None or str(self._error) != str(error):
            log.error("archiving failed; capture goes on", code=error.code, message=str(error))
        self._error = error

    def _tell(self) -> None:
        archived = self._archiver.archived if self._archiver is not None else None
        if archived is not None:
            ARCHIVE_SEQUENCE.set(archived.until)
            ARCHIVE_BYTES.set(archived.bytes)
            ARCHIVE_LOST_ENTRIES.set(archived.lost)

    def status(self) -> dict[str, Any] | None:
        """For `penstock status`; None without an archive."""
        if self._archiver is None:
            return None
        archived, error = self._archiver.archived, self._error
        return {
            "path": self._path,
            "begin": archived and archived.begin,
            "until": archived and archived.until,
            "ranges": archived and archived.ranges,
            "bytes": archived and archived.bytes,
            "lost": archived and archived.lost,
            "updatedAtMs": archived and archived.updated_at,
            "code": error and error.code,
            "message": error and str(error),
        }

    async def close(self) -> None:
        """End what is under way: the log is closed next."""
        if self._archiver is not None:
            self._archiver.stop()
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)
