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
    ServerSelectionTimeoutError,
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
    code_name,
    not_reached,
    refused,
    wrong_login,
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


def position_lost(
    source: str, position: MongoPosition, error: OperationFailure
) -> PositionLostError:
    """The error that stops a source whose position is lost."""
    since = datetime.fromtimestamp(position.token.time.t, UTC)
    detail = f"{code_name(error)}; our position is of {since:%Y-%m-%d %H:%M:%S} UTC"
    return PositionLostError(source=source, position=position.text(), detail=detail)


def translated(
    source: str, config: MongoSourceConfig, error: PyMongoError, client: Client | None
) -> PenstockError:
    """Our error for what the driver raised; `client` is the one that it came from."""
    address = config.address
    if isinstance(error, ServerSelectionTimeoutError) and client is not None:
        what, remedy = not_reached(client, address)
        return SourceUnavailableError(f"{source}: {what}. {_ON} {remedy}.")
    if isinstance(error, ConnectionFailure | ExecutionTimeout):
        return SourceUnavailableError(
            f"{source}: MongoDB at {address.hosts} does not answer, or broke off "
            f"({type(error).__name__}). {_ON}"
        )
    if isinstance(error, ConfigurationError):
        return _refused(source, config, error)
    if not isinstance(error, OperationFailure):
        return SourceError(
            f"{source}: the MongoDB driver failed ({type(error).__name__}). Capture has stopped "
            f"and nothing was skipped."
        )
    if error.code in WRONG_LOGIN:
        what, remedy = wrong_login(error, address)
        return ConfigError(f"{source}: {what}. Nothing was skipped. {remedy}.")
    if error.code == UNAUTHORIZED:
        return ConfigError(
            f"{source}: {lacks(config)} ({code_name(error)}). Nothing was skipped. As an "
            f"administrator, run in mongosh: {grant_command(config)}"
        )
    if error.code in _RESUMABLE_CODES or any(map(error.has_error_label, _RESUMABLE_LABELS)):
        return SourceUnavailableError(
            f"{source}: MongoDB at {address.hosts} broke off with {code_name(error)}. {_ON}"
        )
    return SourceError(
        f"{source}: MongoDB at {address.hosts} answered {code_name(error)}. Capture has stopped "
        f"and nothing was skipped. Look the code up in the server's log, then start the source "
        f"again."
    )


def _refused(source: str, config: MongoSourceConfig, error: ConfigurationError) -> PenstockError:
    address = config.address
    found = refused(error, address)
    if found is not None:
        what, remedy = found
        return ConfigError(f"{source}: {what}. Nothing was skipped. {remedy}.")
    if config.uri.get_secret_value().startswith("mongodb+srv://"):
        return SourceUnavailableError(
            f"{source}: the name service knows no hosts for {address.hosts}, which uri asks it for "
            f"(mongodb+srv). {_ON} Correct the host in uri, or the name service of this machine."
        )
    return ConfigError(
        f"{source}: the MongoDB driver refuses what uri says of {address.hosts}. Nothing was "
        f"skipped. Correct the options in uri; the driver's own words may quote a password."
    )


def lacks(config: MongoSourceConfig) -> str:
    """That who we are may not do what was asked."""
    address = config.address
    if address.user is None and address.database == "admin":
        return f"MongoDB at {address.hosts} asks for a user, and uri has none"
    who = "the user of uri" if address.user is None else repr(address.user)
    return f"{who} lacks a privilege at {address.hosts}"
