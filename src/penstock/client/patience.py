"""What to do when a database that we write to does not answer: try again, leave it alone for a
while, then go on."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from pydantic import Field

from penstock.capture.breaker import Breaker, Circuit
from penstock.config import Config, Seconds
from penstock.errors import PenstockError

T = TypeVar("T")


class PatienceConfig(Config):
    """How long what is written to may be away."""

    retry_attempts: int = Field(
        5, ge=0, le=1000, description="Try again so often before the circuit opens."
    )
    retry_first: Seconds = Field(
        0.1, gt=0, le=60, description="The first pause between attempts; each next one is double."
    )
    retry_longest: Seconds = Field(10.0, gt=0, le=3600, description="The longest pause.")
    circuit_seconds: Seconds = Field(
        30.0,
        gt=0,
        le=3600,
        description="An open circuit lets one attempt through so often, until one succeeds. The "
        "log keeps what comes meanwhile.",
    )


class StoppedError(Exception):
    """We were told to stop while we waited."""


class Patience(ABC):
    """Calls what may be away until it answers (A6)."""

    def __init__(self, config: PatienceConfig, *, stopping: threading.Event) -> None:
        self._retry = config
        self._stopping = stopping
        self._breaker = Breaker(
            steady_seconds=time.monotonic,
            failures_max=config.retry_attempts + 1,
            open_seconds=config.circuit_seconds,
        )

    errors: ClassVar[type[Exception]]
    """What calls raise: the client library's own."""

    @abstractmethod
    def judge(self, error: Exception) -> PenstockError | None:
        """What an error that does not pass by itself says; None for one that passes."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """A call failed, and is made again."""

    @abstractmethod
    def opened(self, error: Exception, failures: int) -> None:
        """It is left alone for a while from now on."""

    @abstractmethod
    def closed(self) -> None:
        """It answers again."""

    def call(self, act: Callable[[], T]) -> T:
        """What `act`, which may be repeated, returns at last.

        Raises what `judge` gives, StoppedError once we are to stop.
        """
        failures = 0
        while True:
            self._wait(self._breaker.wait_seconds())
            before = self._breaker.circuit
            self._breaker.admit()
            try:
                found = act()
            except self.errors as error:
                refused = self.judge(error)
                if refused is not None:
                    self._breaker.undecided()
                    raise refused from None
                self._breaker.failed()
                failures += 1
                self.failed(error)
                if before is Circuit.CLOSED and self._breaker.circuit is Circuit.OPEN:
                    self.opened(error, failures)
                if self._breaker.circuit is Circuit.CLOSED:
                    pause = self._retry.retry_first * 2 ** (failures - 1)
                    self._wait(min(self._retry.retry_longest, pause))
            except BaseException:
                self._breaker.undecided()
                raise
            else:
                self._breaker.succeeded()
                if before is not Circuit.CLOSED:
                    self.closed()
                return found

    def pause(self, seconds: float) -> None:
        """Wait. Raises StoppedError once we are to stop."""
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds) if seconds > 0 else self._stopping.is_set():
            raise StoppedError
