"""What to do when MongoDB does not answer: try again, leave it alone for a while, then go on."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from penstock.audit.trail import Trail
from penstock.client import patience
from penstock.client.patience import StoppedError
from penstock.errors import AuditError, TrailUnavailableError
from penstock.telemetry import AUDIT_CIRCUIT_OPEN, AUDIT_RETRIES

__all__ = ["Brief", "Patience", "StoppedError", "passes", "refused", "unavailable"]

logger = structlog.get_logger(__name__)
T = TypeVar("T")

_LABELS: Final = (
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "RetryableWriteError",
    "RetryableError",
)
_CODES: Final = frozenset(
    {
        6,  # HostUnreachable
        7,  # HostNotFound
        24,  # LockTimeout
        50,  # MaxTimeMSExpired
        64,  # WriteConcernFailed
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        112,  # WriteConflict
        133,  # FailedToSatisfyReadPreference
        134,  # ReadConcernMajorityNotAvailableYet
        189,  # PrimarySteppedDown
        202,  # NetworkInterfaceExceededTimeLimit
        225,  # TransactionTooOld
        246,  # SnapshotUnavailable
        251,  # NoSuchTransaction
        262,  # ExceededTimeLimit
        290,  # TransactionExceededLifetimeLimitSeconds
        317,  # ConnectionPoolExpired
        358,  # InternalTransactionNotSupported, while a node changes its role
        9001,  # SocketException
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)
"""Source: MongoDB's error_codes.yml and its drivers' specification of retryable errors."""


def passes(error: PyMongoError) -> bool:
    """Whether an error goes away by itself: by its label and code, never its text (A4)."""
    if isinstance(error, ConfigurationError):
        return False
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WTimeoutError) or error.timeout:
        return True
    if any(error.has_error_label(label) for label in _LABELS):
        return True
    return isinstance(error, OperationFailure) and error.code in _CODES


def refused(trail: Trail, error: PyMongoError, *, role: str = "readWrite") -> AuditError:
    """What an error that does not pass says; `role` is what was needed on the database."""
    what, remedy = trail.cause(error, role=role)
    safe = (
        "What is in the trail is safe, and the log keeps what comes"
        if role == "readWrite"
        else "Nothing was changed"
    )
    return AuditError(f"trail of {trail.source}: {what}. {safe}. {remedy}")


def unavailable(trail: Trail, error: PyMongoError, *, done: str) -> TrailUnavailableError:
    """What an error that passes says to who does not wait; `done` is what became of it all."""
    what, remedy = trail.cause(error)
    return TrailUnavailableError(f"trail of {trail.source}: {what}. {done} {remedy}")


class Patience(patience.Patience):
    """Calls MongoDB until it answers (A6)."""

    errors = PyMongoError

    def __init__(self, trail: Trail, *, stopping: threading.Event) -> None:
        super().__init__(trail.config, stopping=stopping)
        self._trail = trail
        self._config = trail.config
        AUDIT_CIRCUIT_OPEN.labels(trail.source).set(0)
        AUDIT_RETRIES.labels(trail.source)

    def judge(self, error: Exception) -> AuditError | None:
        assert isinstance(error, PyMongoError)
        return None if passes(error) else refused(self._trail, error)

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        AUDIT_RETRIES.labels(self._trail.source).inc()

    def opened(self, error: Exception, failures: int) -> None:
        assert isinstance(error, PyMongoError)
        why, remedy = self._trail.cause(error)
        logger.warning(
            "the audit trail's MongoDB does not answer; the log keeps what comes",
            trail=self._trail.source,
            why=why,
            remedy=remedy,
            attempts=failures,
            wait_seconds=self._config.circuit_seconds,
        )
        AUDIT_CIRCUIT_OPEN.labels(self._trail.source).set(1)

    def closed(self) -> None:
        logger.warning("the audit trail is written again", trail=self._trail.source)
        AUDIT_CIRCUIT_OPEN.labels(self._trail.source).set(0)

    def once(self, act: Callable[[], T]) -> T:
        """What `act` returns at the first attempt. Raises TrailUnavailableError, or AuditError."""
        try:
            return act()
        except PyMongoError as error:
            if passes(error):
                raise unavailable(self._trail, error, done="Nothing was changed.") from None
            raise refused(self._trail, error) from None


class Brief(Patience):
    """Calls MongoDB as often as the configuration tries again, and no more: for commands."""

    def call(self, act: Callable[[], T]) -> T:
        """What `act`, which may be repeated, returns. Raises TrailUnavailableError, AuditError."""
        for attempt in range(self._config.retry_attempts):
            try:
                return act()
            except PyMongoError as error:
                if not passes(error):
                    raise refused(self._trail, error) from None
            self._wait(min(self._config.retry_longest, self._config.retry_first * 2**attempt))
        try:
            return act()
        except PyMongoError as error:
            if not passes(error):
                raise refused(self._trail, error) from None
            done = "What was done before is done; run this again, and it goes on."
            raise unavailable(self._trail, error, done=done) from None
