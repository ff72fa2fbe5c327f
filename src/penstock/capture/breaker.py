"""A circuit breaker: leave alone, for a while, what has failed again and again.

Pure but for the clock that it is given. Whoever calls something that may be down asks
`wait_seconds` first, and says how it went.
"""

from collections.abc import Callable
from enum import StrEnum


class Circuit(StrEnum):
    """Whether calls go through."""

    CLOSED = "closed"
    """They do."""
    OPEN = "open"
    """They do not: too many failed in a row."""
    HALF_OPEN = "half_open"
    """One is on trial: its success closes the circuit, its failure opens it again."""


class Breaker:
    """Opens after `failures_max` failures in a row, for `open_seconds`; then lets one call try.

    A success at any time closes it and forgets the failures before.
    """

    def __init__(
        self,
        *,
        steady_seconds: Callable[[], float],
        failures_max: int = 5,
        open_seconds: float = 30.0,
    ) -> None:
        """`steady_seconds` is a clock that never jumps."""
        if failures_max < 1 or open_seconds < 0:
            raise ValueError("a breaker needs at least one failure, and no negative time")
        self._now = steady_seconds
        self._failures_max = failures_max
        self._open_seconds = open_seconds
        self._failures = 0
        self._opened: float | None = None
        self._trying = False

    @property
    def circuit(self) -> Circuit:
        """As it stands now."""
        if self._opened is None:
            return Circuit.CLOSED
        return Circuit.HALF_OPEN if self._trying else Circuit.OPEN

    def wait_seconds(self) -> float:
        """How long the next call must wait; 0 if it may be made now. Changes nothing."""
        if self._opened is None:
            return 0.0
        if self._trying:
            return self._open_seconds
        return max(0.0, self._opened + self._open_seconds - self._now())

    def admit(self) -> bool:
        """Whether a call may be made now; the caller then says how it went.

        That is `succeeded`, `failed` or `undecided`.

        In an open circuit, once its time has come, one caller is admitted until it has said so.
        """
        if self.wait_seconds() > 0:
            return False
        self._trying = self._opened is not None
        return True

    def succeeded(self) -> None:
        """A call went well: the circuit is closed."""
        self._failures, self._opened, self._trying = 0, None, False

    def undecided(self) -> None:
        """The call was made, and something else kept it from telling: the next one may try.

        Changes nothing after `succeeded` or `failed`, so it may be said at every call's end.
        """
        self._trying = False

    def failed(self) -> None:
        """A call failed: a trial, or one failure too many, opens the circuit from now on."""
        self._failures += 1
        if self._trying or self._failures >= self._failures_max:
            self._opened, self._trying = self._now(), False
