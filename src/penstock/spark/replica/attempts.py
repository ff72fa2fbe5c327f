"""How the transactions of a batch went: what MongoDB never lets through is told, not tried on."""

import time
from typing import Final

from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from penstock.audit.outages import passes
from penstock.errors import DestinationError
from penstock.spark.replica.connection import LIFETIME_SECONDS

_OVERDUE: Final = 290
"""TransactionExceededLifetimeLimitSeconds: of what was under way."""
_NO_SUCH: Final = 251
"""NoSuchTransaction: of what comes behind that, or behind another end of it."""
_TOO_LARGE_FOR_CACHE: Final = 388
_ENDED: Final = frozenset({112, 225, 246, 251})
"""WriteConflict, TransactionTooOld, SnapshotUnavailable, NoSuchTransaction: it was ended."""
_LIFETIMES: Final = 2
"""In so many, whatever transaction it was in conflict with has ended."""
_ABORTED_MIN: Final = 5
"""And so often it was tried: a server that was away meanwhile says nothing of the batch."""


class Attempts:
    """Those of one pipeline; its transactions are one at a time."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self.lifetime_seconds = LIFETIME_SECONDS
        self._began = 0.0
        self._aborted = 0
        self._aborted_since = 0.0

    def begin(self) -> None:
        """A transaction begins."""
        self._began = time.monotonic()

    def succeed(self) -> None:
        """It is committed: what went before says nothing of the next."""
        self._aborted, self._aborted_since = 0, 0.0

    def refusal_of(self, error: PyMongoError) -> DestinationError | None:
        """What an error says for which the batch cannot be one transaction here; None for others,
        and for what may pass."""
        now, code = time.monotonic(), getattr(error, "code", None)
        took = now - self._began
        late = code == _NO_SUCH and self._began and took >= self.lifetime_seconds
        if late or code == _OVERDUE:
            return DestinationError(
                pipeline=self._pipeline,
                what=f"a batch took {took:.0f} s, and MongoDB ends a transaction after "
                f"{min(self.lifetime_seconds, took):.3g} s",
                remedy="Lower max_events_per_batch; if it is one commit of the source, which is "
                "never cut, or empties or moves a whole collection, raise MongoDB's "
                "transactionLifetimeLimitSeconds.",
            )
        codes = _codes(error)
        if _TOO_LARGE_FOR_CACHE in codes:
            return self._too_large()
        if passes(error) and not _ENDED.isdisjoint(codes):
            # As a conflict, by several codes: also a transaction that is more than the cache takes.
            self._aborted += 1
            self._aborted_since = self._aborted_since or now
            lasts = now - self._aborted_since >= _LIFETIMES * self.lifetime_seconds
            return self._too_large() if lasts and self._aborted >= _ABORTED_MIN else None
        self.succeed()  # whatever it was, it says nothing of the batch
        return None

    def _too_large(self) -> DestinationError:
        return DestinationError(
            pipeline=self._pipeline,
            what="MongoDB ends the batch's transaction each time, as one that is more than its "
            "cache takes, or that somebody else's writes are in the way of",
            remedy="Lower max_events_per_batch; if it is one commit of the source, which is never "
            "cut, give MongoDB a larger cache (storage.wiredTiger.engineConfig.cacheSizeGB). See "
            "who else writes to its collections.",
        )


def _codes(error: PyMongoError) -> set[int]:
    """What the server calls it, and each of its parts."""
    found: set[int] = set()
    if isinstance(error, OperationFailure) and error.code is not None:
        found.add(error.code)
    if isinstance(error, BulkWriteError):
        found.update(int(one["code"]) for one in error.details.get("writeErrors") or ())
    return found
