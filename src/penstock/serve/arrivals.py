"""How many connections a port has, in all and of one address; whoever comes beyond is counted."""

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

import structlog

from penstock.telemetry import CONNECTIONS, CONNECTIONS_REFUSED

log = structlog.get_logger(__name__)

TOLD_SECONDS: Final = 60.0
_IPV6_PREFIX: Final = 64

Reason = Literal["in_all", "of_one_address", "waiting", "late", "large"]


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 a network of 64 bits, since a client has so many."""
    found = _parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False).network_address)
    return address if found is None else str(found)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _is_loopback(address: str) -> bool:
    found = _parsed(address)
    return found is not None and found.is_loopback


class Arrivals:
    """The connections of one port. Safe for any number of threads.

    What is refused is counted in a metric, and told in one line a minute.
    """

    def __init__(
        self,
        port: str,
        *,
        in_all: int,
        of_one_address: int,
        spares_loopback: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `spares_loopback`, only `in_all` bounds the connections of loopback addresses."""
        self._port = port
        self._in_all = in_all
        self._of_one_address = of_one_address
        self._spares_loopback = spares_loopback
        self._clock = clock
        self._lock = threading.Lock()
        self._taken = Counter[str]()
        self._untold = Counter[Reason]()
        self._told_at = float("-inf")

    def enter(self, address: str) -> bool:
        """Take a place for a connection of `address`; then `leave` must follow. False if there is
        none."""
        network = network_of(address)
        with self._lock:
            reason = self._why_full(address, network)
            if reason is None:
                self._taken[network] += 1
        if reason is not None:
            self.refused(reason)
            return False
        CONNECTIONS.labels(self._port).inc()
        return True

    def why_full(self, address: str) -> Reason | None:
        """Why there is no place for one more connection of `address`; None if there is one."""
        with self._lock:
            return self._why_full(address, network_of(address))

    def _why_full(self, address: str, network: str) -> Reason | None:
        if self._taken.total() >= self._in_all:
            return "in_all"
        if self._taken[network] < self._of_one_address:
            return None
        return None if self._spares_loopback and _is_loopback(address) else "of_one_address"

    def leave(self, address: str) -> None:
        """Give a place back."""
        network = network_of(address)
        with self._lock:
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]
        CONNECTIONS.labels(self._port).dec()

    def refused(self, reason: Reason) -> None:
        """A connection was closed for this."""
        CONNECTIONS_REFUSED.labels(self._port, reason).inc()
        with self._lock:
            self._untold[reason] += 1
            now = self._clock()
            if now - self._told_at < TOLD_SECONDS:
                return
            self._told_at = now
            told, self._untold = dict(self._untold), Counter[Reason]()
        log.warning("connections closed", port=self._port, **told)
