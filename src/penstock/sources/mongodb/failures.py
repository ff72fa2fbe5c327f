"""What the driver raises, in our words.

Source: MongoDB's error codes (src/mongo/base/error_codes.yml) and the change streams and retryable
reads specifications of its drivers.
"""

from datetime import UTC, datetime

from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
)

from penstock.errors import (
    ConfigError,
    PenstockError,
    PositionLostError,
    SourceError,
    SourceUnavailableError,
)
from penstock.mongo_causes import (
    UNAUTHORIZED,
    WRONG_LOGIN,
    Address,
    cause,
    is_unresolved,
)
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.deployment import Client, grant_command
from penstock.sources.mongodb.positions import MongoPosition

LOST_CODES = frozenset({286, 280, 260, 136})
"""ChangeStreamHistoryLost, ChangeStreamFatalError, InvalidResumeToken, CappedPositionLost (S7)."""
TOO_LARGE_CODE = 10334
"""BSONObjectTooLarge: an event over 16 MiB (S9)."""
_ON = "Nothing was skipped; capture tries again by itself, from its durable position."
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


def position_lost(source: str, position: MongoPosition, reason: str) -> PositionLostError:
    """The error that stops a source whose position is lost."""
    since = datetime.fromtimestamp(position.token.time.t, UTC)
    detail = f"{reason}; our position is of {since:%Y-%m-%d %H:%M:%S} UTC"
    return PositionLostError(source=source, position=position.text(), detail=detail)


def translated(
    source: str, config: MongoSourceConfig, error: PyMongoError, client: Client | None
) -> PenstockError:
    """Our error for what the driver raised; `client` is the one that it came from."""
    address = config.address
    seen = None if client is None else client.topology_description
    what, remedy = cause(error, seen, address, granting=grant_command(config))
    if _passes(error, address):
        return SourceUnavailableError(f"{source}: {what}. {_ON} {remedy}")
    code = error.code if isinstance(error, OperationFailure) else None
    if isinstance(error, ConfigurationError) or code in {*WRONG_LOGIN, UNAUTHORIZED}:
        return ConfigError(f"{source}: {what}. Nothing was skipped. {remedy}")
    return SourceError(
        f"{source}: {what}. Capture has stopped and nothing was skipped. {remedy} Then start the "
        f"source again."
    )


def _passes(error: PyMongoError, address: Address) -> bool:
    if isinstance(error, ConnectionFailure | ExecutionTimeout):
        return True
    if isinstance(error, ConfigurationError):
        return is_unresolved(error, address)
    if not isinstance(error, OperationFailure) or error.code in {*WRONG_LOGIN, UNAUTHORIZED}:
        return False
    return error.code in _RESUMABLE_CODES or any(map(error.has_error_label, _RESUMABLE_LABELS))
