"""How the transactions of a batch went: what MongoDB never lets through is told, not tried on."""

import time
from typing import Final

from pymongo.errors import PyMongoError

from penstock.errors import DestinationError
from penstock.spark.replica.connection import LIFETIME_SECONDS

_OVERDUE: Final = frozenset({251, 290})
"""NoSuchTransaction, TransactionExceededLifetimeLimitSeconds."""
_ABORTED: Final = frozenset({112, 251})
"""WriteConflict, NoSuchTransaction. Another's write was in the way; up to MongoDB 6.1 this also is
what it says of a transaction that is more than its cache takes."""
_TOO_LARGE_FOR_CACHE: Final = 388
_LIFETIMES: Final = 2
"""In so many, whatever transaction it was in conflict with has ended."""


class Attempts:
    """Those of one pipeline; its transactions are one at a time."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self.lifetime_seconds = LIFETIME_SECONDS
        self._began = 0.0
        self._aborted_since: float | None = None

    def begin(self) -> None:
        """A transaction begins."""
        self._began = time.monotonic()

    def succeed(self) -> None:
        """It is committed."""
        self._aborted_since = None

    def refusal_of(self, error: PyMongoError) -> DestinationError | None:
        """What an error says for which the batch cannot be one transaction here; None for others,
        and for what may pass."""
        now, code = time.monotonic(), getattr(error, "code", None)
        took = now - self._began
        if code in _OVERDUE and self._began and took >= self.lifetime_seconds:
            return DestinationError(
                pipeline=self._pipeline,
                what=f"a batch took {took:.0f} s, and MongoDB ends a transaction after "
                f"{self.lifetime_seconds:g} s",
                remedy="Lower max_events_per_batch; if it is one commit of the source, which is "
                "never cut, raise MongoDB's transactionLifetimeLimitSeconds.",
            )
        if code not in _ABORTED:
            self._aborted_since = None
        elif self._aborted_since is None:
            self._aborted_since = now
        elif now - self._aborted_since >= _LIFETIMES * self.lifetime_seconds:
            return self._too_large()
        return self._too_large() if code == _TOO_LARGE_FOR_CACHE else None

    def _too_large(self) -> DestinationError:
        return DestinationError(
            pipeline=self._pipeline,
            what="MongoDB ends the batch's transaction each time, as one that is more than its "
            "cache takes, or that somebody else's writes are in the way of",
            remedy="Lower max_events_per_batch; if it is one commit of the source, which is never "
            "cut, give MongoDB a larger cache (storage.wiredTiger.engineConfig.cacheSizeGB). See "
            "who else writes to its collections.",
        )
