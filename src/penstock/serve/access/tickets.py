"""One-time tickets, for browsers: they cannot set a header on WebSocket and EventSource.

A ticket goes into an address, which others may see afterwards; so it opens the door once, soon, and
for who asked for it. They are kept in memory only, as hashes.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable

from penstock.errors import RateLimitedError
from penstock.serve.access.principals import Principal


class Tickets:
    """Those that were given and not used. Safe for any number of threads."""

    def __init__(self, *, seconds: float, most: int, clock: Callable[[], float]) -> None:
        """`clock` only moves forward."""
        self.seconds = seconds
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._given: dict[bytes, tuple[float, Principal]] = {}

    def give(self, principal: Principal, mark: str = "") -> str:
        """A new one, which begins with `mark`. Raises RateLimitedError while too many are
        unused."""
        ticket = mark + secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            # All last equally long, so those that are over lie in front.
            for given, (until, _) in list(self._given.items()):
                if until > now:
                    break
                del self._given[given]
            mine = sum(1 for _, one in self._given.values() if one.who == principal.who)
            if len(self._given) >= self._most or mine >= max(1, self._most // 8):
                raise RateLimitedError(
                    what=f"{self._most} unused tickets", wait_seconds=self.seconds
                )
            self._given[_digest(ticket)] = (now + self.seconds, principal)
        return ticket

    def use(self, ticket: str) -> Principal | None:
        """Who a ticket is of; None for one that was used, is over, or never was."""
        with self._lock:
            found = self._given.pop(_digest(ticket), None)
        if found is None or found[0] <= self._clock():
            return None
        return found[1]


def _digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()
