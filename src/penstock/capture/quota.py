"""A source's share of the log: what one may write, so that it cannot push out the others' history.

The log is one order, and retention removes its oldest entries, whoever wrote them. So a share can
only be kept at the other end: a source that has written its quota within the age for which the log
keeps entries waits until some of that has grown old. Nothing is dropped: its database holds what
was not read yet, and the time to loss says for how long.

What was written is counted in reservations: a part of the quota, kept durably before it is used. A
restart counts all of it as used, so that no crash lets a source write more than its quota.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct

from penstock.capture.supervise import Clock
from penstock.telemetry import SOURCE_OVER_QUOTA

logger = structlog.get_logger(__name__)

_SPANS: Final = 64
"""A reservation lapses after this part of the window, so that its time says when it was used."""
_STEPS: Final = 128
"""A reservation is this part of the quota: a slow source, whose every one lapses, needs half."""
LOOK_SECONDS: Final = 5.0
"""How long at most a source that is over its quota waits before it looks again."""
APPEND_BYTES: Final = 4096
"""What any append takes up, however small: a page."""


class Reservation(Struct, frozen=True, array_like=True):
    """A part of the quota that counts as written."""

    at_ms: int
    """Unix milliseconds when it was made."""
    bytes: int


class Quota:
    """At most `bytes_max` within any `window_ms`. Pure: it is told the time.

    One append that is larger than the whole quota is let through when nothing else counts.
    """

    def __init__(
        self, *, bytes_max: int, window_ms: int, reserved: Sequence[Reservation] = ()
    ) -> None:
        """`reserved` is what was kept before a restart."""
        self._bytes_max = bytes_max
        self._window_ms = window_ms
        self._span_ms = max(1, window_ms // _SPANS)
        self._reserved = list(reserved)
        self._left = 0

    def reserved(self, now_ms: int) -> list[Reservation]:
        """What still counts, oldest first."""
        # A clock that was set back makes none of them count for longer than from now on.
        self._reserved = [
            one if one.at_ms <= now_ms else Reservation(now_ms, one.bytes) for one in self._reserved
        ]
        until = now_ms - self._window_ms - self._span_ms
        self._reserved = [one for one in self._reserved if one.at_ms > until]
        return list(self._reserved)

    def wait_ms(self, size: int, now_ms: int) -> int:
        """How long an append of `size` bytes must wait; 0 if it may be made now."""
        counting = self.reserved(now_ms)
        if size <= self._usable(now_ms) or not counting:
            return 0
        excess = sum(one.bytes for one in counting) + self._needed(size, now_ms) - self._bytes_max
        for one in counting:
            if excess <= 0:
                return 0
            excess -= one.bytes
            expires = one.at_ms + self._window_ms + self._span_ms
            if excess <= 0:
                return expires - now_ms
        return counting[-1].at_ms + self._window_ms + self._span_ms - now_ms

    def take(self, size: int, now_ms: int) -> bool:
        """Count an append that need not wait; True if the reservations must be kept before it."""
        usable = self._usable(now_ms)
        if size <= usable:
            self._left = usable - size
            return False
        needed = self._needed(size, now_ms)
        self._reserved = [*self.reserved(now_ms), Reservation(now_ms, needed)]
        self._left = usable + needed - size
        return True

    def _usable(self, now_ms: int) -> int:
        """What is left of the newest reservation, unless it has lapsed."""
        fresh = self._reserved and 0 <= now_ms - self._reserved[-1].at_ms < self._span_ms
        return self._left if fresh else 0

    def _needed(self, size: int, now_ms: int) -> int:
        return max(self._bytes_max // _STEPS, size - self._usable(now_ms))


class Share:
    """A source's quota while it runs: makes its pump wait, and says so."""

    def __init__(
        self,
        source: str,
        quota: Quota,
        clock: Clock,
        *,
        keep: Callable[[Sequence[Reservation]], Awaitable[None]],
    ) -> None:
        """`keep` makes reservations durable."""
        self.waiting = False
        """The source has written its quota, and waits."""
        self._source = source
        self._quota = quota
        self._clock = clock
        self._keep = keep
        SOURCE_OVER_QUOTA.labels(source).set(0)

    async def admit(self, size: int) -> None:
        """Wait until an append of about `size` bytes may be made."""
        size += APPEND_BYTES
        try:
            while (wait_ms := self._quota.wait_ms(size, self._clock.now_ms())) > 0:
                if not self.waiting:
                    logger.warning(
                        "source has written its quota and waits",
                        source=self._source,
                        wait_seconds=round(wait_ms / 1000),
                    )
                self._say(waiting=True)
                await self._clock.sleep(min(LOOK_SECONDS, wait_ms / 1000))
        finally:
            self._say(waiting=False)
        now_ms = self._clock.now_ms()
        if self._quota.take(size, now_ms):
            await self._keep(self._quota.reserved(now_ms))

    def _say(self, *, waiting: bool) -> None:
        self.waiting = waiting
        SOURCE_OVER_QUOTA.labels(self._source).set(waiting)
