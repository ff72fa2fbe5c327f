"""Errors as DynamoDB's clients read them: a name, a text, and for some of them more.

Names and texts: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
Programming.Errors.html, and what the service was observed to say.
"""

from typing import Any, ClassVar, Final

from penstock.errors import LogFullError, PenstockError
from penstock.store.errors import (
    AheadOfStreamError,
    ConditionCheckFailedError,
    DocumentTooLargeError,
    MalformedValueError,
    RefusedError,
    StoreError,
    StreamChangedError,
    StreamFullError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TrimmedDataError,
    dynamodb_text,
)

NOT_FOUND: Final = "Requested resource not found"
ITEM_TOO_LARGE: Final = "Item size has exceeded the maximum allowed size"
UPDATE_TOO_LARGE: Final = "Item size to update has exceeded the maximum allowed size"
CONDITION_FAILED: Final = "The conditional request failed"
_MODEL: Final = "com.amazonaws.dynamodb.v20120810"
_CORAL: Final = "com.amazon.coral.service"
_NAMESPACES: Final = {
    "ValidationException": "com.amazon.coral.validate",
    "SerializationException": _CORAL,
    "UnknownOperationException": _CORAL,
    "IncompleteSignatureException": _CORAL,
    "InvalidSignatureException": _CORAL,
    "MissingAuthenticationTokenException": _CORAL,
    "UnrecognizedClientException": _CORAL,
    "RequestEntityTooLargeException": _CORAL,
}


class WireError(PenstockError):
    """An error by its name in the protocol. What was asked was not done, and changed nothing."""

    code: ClassVar[str] = "dynamodb"

    def __init__(self, name: str, message: str, *, status: int = 400, **facts: Any) -> None:
        self.name = name
        self.status = status
        self.facts = facts
        """Members of the error beside its message."""
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        member = "Message" if self.name == "TransactionCanceledException" else "message"
        kind = f"{_NAMESPACES.get(self.name, _MODEL)}#{self.name}"
        return {"__type": kind, member: str(self), **self.facts}


class EmptyKeyError(WireError):
    """A key that is an empty text: refused before a transaction begins, which others cancel."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", message)


def validation(message: str) -> WireError:
    """A request that means nothing."""
    return WireError("ValidationException", message)


def not_found(what: str = "") -> WireError:
    """Something that is named and is not there."""
    return WireError("ResourceNotFoundException", f"{NOT_FOUND}: {what}" if what else NOT_FOUND)


def table_exists(table: str) -> WireError:
    """A table that is to be made and is there."""
    return WireError("ResourceInUseException", f"Table already exists: {table}")


def serialization(message: str) -> WireError:
    """JSON of another shape than the operation's."""
    return WireError("SerializationException", message)


def trimmed() -> WireError:
    """A place behind which something is not there any more."""
    return WireError(
        "TrimmedDataAccessException",
        "The operation attempted to read past the oldest stream record in a shard. Records behind "
        "this place were removed by the stream's retention.",
    )


def unavailable(message: str) -> WireError:
    """What passes; clients try again."""
    return WireError("InternalServerError", message, status=500)


def internal() -> WireError:
    """What should not happen; clients try again."""
    return WireError(
        "InternalServerError",
        "The request processing has failed because of an unknown error, exception or failure.",
        status=500,
    )


def wire_error(error: PenstockError) -> WireError:
    """What a client is told of an error of the store."""
    match error:
        case WireError():
            return error
        case TableNotFoundError():
            return not_found()
        case TableAlreadyExistsError():
            return table_exists(error.table)
        case ConditionCheckFailedError():
            return WireError("ConditionalCheckFailedException", CONDITION_FAILED)
        case MalformedValueError():
            return serialization(dynamodb_text(error))
        case DocumentTooLargeError():
            return validation(ITEM_TOO_LARGE)
        case RefusedError():
            return validation(dynamodb_text(error))
        case TrimmedDataError() | StreamChangedError():
            return WireError("TrimmedDataAccessException", str(error))
        case AheadOfStreamError():
            return validation(str(error))
        case StreamFullError():
            return WireError("LimitExceededException", str(error))
        case LogFullError() | StoreError():
            # Of a full disk or a store that is closing, clients should try again.
            return WireError("InternalServerError", str(error), status=500)
        case _:
            return internal()
