"""What time it is to a store: what its clock says, and what may be done on its word.

A clock may be wrong when a store is opened, and then there is only what the store knows itself to
tell it by. Three things hang on it, and cost more or less where it was believed wrongly:

- What age removes is gone for good: records of streams, and items where there are streams. A clock
  is believed if it is at most an hour after the time that was believed last (`Trust`).
- What writes take for expired, and where no table has a stream what the sweep removes: here a lock
  that expired is taken anew, and whoever opens a store for a moment now and then has no hour in
  which to find out. So a clock is believed at once that is at most 40 days after that time.
- A clock that was not believed is remembered. If it has gone on for an hour by when the store is
  opened again, whoever set it meant it, as if the store had been open meanwhile.
"""

from typing import Final, NamedTuple

from penstock.clocks import Clock, Trust

_AWAY_MS_MAX: Final = 40 * 86_400_000
"""More than a month, which is how often some scripts run."""
_GONE_ON_MS_MIN: Final = 3_600_000


class Known(NamedTuple):
    """What a store knows of the time, in Unix milliseconds."""

    believed_ms: int | None
    """The newest time of a clock that was believed; None in a store that never kept one."""
    doubted_ms: int | None
    """Where a clock stood first that was not believed since."""
    recorded_ms: int | None
    """Of the newest record; None where no table has a stream."""


class Times(NamedTuple):
    """What a transaction goes by, in Unix milliseconds."""

    now_ms: int
    """What the clock says."""
    aged_ms: int | None
    """By which age may remove; None while the clock is not believed that far."""
    expired_ms: int
    """By which items have expired for writes, which destroy what they do not see: what had expired
    by a time that was believed, for a clock that is not."""
    likely_ms: int
    """The best that is known, for what is only compared with years."""


class StoreTime:
    """The clock of an open store."""

    def __init__(self, clock: Clock, known: Known) -> None:
        now_ms = clock.wall_ms()
        seen_ms = known.recorded_ms if known.believed_ms is None else known.believed_ms
        gone_on = _within(known.doubted_ms, now_ms, least_ms=_GONE_ON_MS_MIN)
        near = _within(seen_ms, now_ms)
        streams = known.recorded_ms is not None
        self._clock = clock
        self._ages = Trust(clock, newest_ms=None if gone_on or (near and not streams) else seen_ms)
        self._expires = Trust(clock, newest_ms=None if gone_on or near else seen_ms)
        doubted = not self._ages.trusted() and not _within(known.doubted_ms, now_ms)
        self.doubted_ms = now_ms if doubted else None
        """Where the clock stands, if that is to be kept as doubted."""

    def ages(self) -> bool:
        """Whether what is too old may be removed by the clock, as it is now."""
        return self._ages.trusted()

    def now(self, *, believed_ms: int | None) -> Times:
        """What a transaction goes by; `believed_ms` is the time that is kept."""
        now_ms = self._clock.wall_ms()
        aged_ms = now_ms if self._ages.trusted() else None
        if self._expires.trusted():
            return Times(now_ms, aged_ms, expired_ms=now_ms, likely_ms=now_ms)
        if believed_ms is None:
            return Times(now_ms, aged_ms, expired_ms=0, likely_ms=now_ms)
        expired_ms = min(now_ms, believed_ms)
        return Times(now_ms, aged_ms, expired_ms=expired_ms, likely_ms=believed_ms)


def _within(since_ms: int | None, now_ms: int, *, least_ms: int = 0) -> bool:
    return since_ms is not None and least_ms <= now_ms - since_ms <= _AWAY_MS_MAX
