"""How the commits of batches went: what MySQL never takes is told, not tried for ever."""

import time
from typing import Final

from penstock.errors import DestinationError

_HOOK: Final = 3100
"""What Group Replication says of a transaction that is too large, and also of one that it cannot
send to the group at that moment."""
_CACHE: Final = 1197
_LASTS_SECONDS: Final = 60.0
"""By then a group is one again, or its members are read-only and say so."""
_REFUSED_MIN: Final = 5
"""And so often it was tried."""


class Commits:
    """Those of one pipeline; its batches are one at a time."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._refused = 0
        self._refused_since = 0.0

    def succeed(self) -> None:
        """A batch is committed: what went before says nothing of the next."""
        self._refused, self._refused_since = 0, 0.0

    def refusal_of(self, error: Exception) -> DestinationError | None:
        """What an error says for which the batch cannot be one transaction here; None for others,
        and for what may pass."""
        code, now = error.args[0] if error.args else None, time.monotonic()
        if code == _CACHE:
            return self._too_large(
                "a batch is more than the destination's binlog takes in one transaction (1197)",
                "max_binlog_cache_size",
            )
        if code != _HOOK:
            self.succeed()  # whatever it was, it says nothing of the batch
            return None
        self._refused += 1
        self._refused_since = self._refused_since or now
        if self._refused < _REFUSED_MIN or now - self._refused_since < _LASTS_SECONDS:
            return None
        return self._too_large(
            "the destination's replication refuses the commit of the batch each time (3100), as "
            "one that is larger than a group takes",
            "group_replication_transaction_size_limit, on each of its members. If the batch is "
            "small, see what the members' error logs say",
        )

    def _too_large(self, what: str, setting: str) -> DestinationError:
        return DestinationError(
            pipeline=self._pipeline,
            what=what,
            remedy=f"Lower max_events_per_batch; if it is one commit of the source, which is never "
            f"cut, raise {setting}.",
        )
