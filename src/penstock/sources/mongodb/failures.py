"""What the driver raises, in our words.

Source: MongoDB's error codes (src/mongo/base/error_codes.yml) and the change streams and retryable
reads specifications of its drivers.
"""

from datetime import UTC, datetime

from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
)

from penstock.errors import (
    ConfigError,
    PositionLostError,
    SourceError,
    SourceUnavailableError,
)
from penstock.sources.mongodb.positions import MongoPosition

LOST_CODES = frozenset({286, 280, 260, 136})
"""ChangeStreamHistoryLost, ChangeStreamFatalError, InvalidResumeToken, CappedPositionLost (S7)."""
TOO_LARGE_CODE = 10334
"""BSONObjectTooLarge: an event over 16 MiB (S9)."""
_DENIED_CODES = frozenset({11, 13, 18, 8000})
"""UserNotFound, Unauthorized, AuthenticationFailed, AtlasError."""
_RESUMABLE_CODES = frozenset(
    {6, 7, 43, 50, 63, 89, 91, 112, 133, 134, 150, 175, 189, 211, 234, 237, 262, 264, 290, 317}
    | {365, 384, 402, 461, 462, 9001, 10107, 11600, 11601, 11602, 13388, 13435, 13436}
)
_RESUMABLE_LABELS = (
    "ResumableChangeStreamError",
    "TransientTransactionError",
    "RetryableWriteError",
    "SystemOverloadedError",
)


def is_lost(error: Exception) -> bool:
    """Whether the server no longer holds what follows the position."""
    return isinstance(error, OperationFailure) and error.code in LOST_CODES


def is_too_large(error: Exception) -> bool:
    """Whether an event is larger than a reply can be."""
    return isinstance(error, OperationFailure) and error.code == TOO_LARGE_CODE


def code_name(error: OperationFailure) -> str:
    """`ChangeStreamHistoryLost (286)`; never the message, which may hold a key."""
    name = (error.details or {}).get("codeName", "")
    return f"{name or 'error'} ({error.code})"


def position_lost(
    source: str, position: MongoPosition, error: OperationFailure
) -> PositionLostError:
    """The error that stops a source whose position is lost."""
    since = datetime.fromtimestamp(position.token.time.t, UTC)
    detail = f"{code_name(error)}; our position is of {since:%Y-%m-%d %H:%M:%S} UTC"
    return PositionLostError(source=source, position=position.text(), detail=detail)


def translated(source: str, error: PyMongoError, *, grant: str) -> Exception:
    """Our error for what the driver raised. `grant` is the command that grants what is needed."""
    if isinstance(error, ConnectionFailure | ExecutionTimeout):
        return SourceUnavailableError(
            f"{source}: MongoDB does not answer ({type(error).__name__}). Nothing was skipped; "
            f"capture goes on from its durable position."
        )
    if not isinstance(error, OperationFailure):
        return SourceError(
            f"{source}: the MongoDB driver failed ({type(error).__name__}). Capture has stopped "
            f"and nothing was skipped."
        )
    if error.code in _DENIED_CODES:
        return ConfigError(
            f"{source}: MongoDB refuses us: {code_name(error)}. Nothing was skipped. "
            f"As an administrator, run in mongosh: {grant}"
        )
    if error.code in _RESUMABLE_CODES or any(map(error.has_error_label, _RESUMABLE_LABELS)):
        return SourceUnavailableError(
            f"{source}: MongoDB broke off with {code_name(error)}. Nothing was skipped; capture "
            f"goes on from its durable position."
        )
    return SourceError(
        f"{source}: MongoDB answered {code_name(error)}. Capture has stopped and nothing was "
        f"skipped. Look the code up in the server's log, then start the source again."
    )
