"""What an endpoint can be asked, and the answer to it. Blocks: it belongs in a thread."""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
import structlog

from penstock.errors import PenstockError
from penstock.serve.dynamodb.errors import WireError, internal, serialization, wire_error
from penstock.serve.dynamodb.shapes import Shape

_log = structlog.get_logger()

STREAMS_TARGET: Final = "DynamoDBStreams_20120810"
DATA_TARGET: Final = "DynamoDB_20120810"
DESCRIBE_ENDPOINTS: Final = f"{DATA_TARGET}.DescribeEndpoints"
_ENDPOINT_MINUTES: Final = 24 * 60
_PARTIQL: Final = frozenset({"ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction"})

Call = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""Given an endpoint and a request, returns the answer or raises a WireError."""


class Served(Protocol):
    """An endpoint, as the server sees it."""

    @property
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


Work = Literal["reads", "writes", "alters"]
"""What an operation does: nothing to the store, something to items, or something to tables, which
only one does at a time."""


class Operation(NamedTuple):
    """What an endpoint can be asked."""

    shape: Shape
    call: Call
    work: Work


def reading(shape: Shape, call: Call) -> Operation:
    """An operation that changes nothing."""
    return Operation(shape, call, "reads")


def writing(shape: Shape, call: Call) -> Operation:
    """An operation that changes items."""
    return Operation(shape, call, "writes")


def altering(shape: Shape, call: Call) -> Operation:
    """An operation that changes tables."""
    return Operation(shape, call, "alters")


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes
    is_packed: bool = False
    """Whether the body is compressed with gzip."""


def answer(endpoint: Served, operation: Operation, body: bytes) -> Answer:
    """Do what a request asks; whatever goes wrong is an answer too."""
    json: object = {}
    try:
        json = _decoded(body)
        request = operation.shape.read(json)
        return Answer(200, msgspec.json.encode(operation.call(endpoint, request)))
    except PenstockError as error:
        told = wire_error(error)
        if told.name == "ValidationException":
            told = _misfit(operation, json) or told
    except Exception as error:
        # Only where and what kind: a message may hold what somebody stored.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        _log.error(
            "a DynamoDB request failed unexpectedly",
            operation=operation.call.__name__,
            error=type(error).__name__,
            file=None if trace is None else trace.tb_frame.f_code.co_filename,
            line=None if trace is None else trace.tb_lineno,
        )
        told = internal()
    return refused(told)


def _misfit(operation: Operation, json: object) -> WireError | None:
    """What is said of a request that has a wrong type anywhere: it comes before all else.

    Only what is refused anyway is looked at so thoroughly.
    """
    try:
        operation.shape.refuse_types(json)
    except PenstockError as error:
        return wire_error(error)
    return None


def unknown(target: str) -> WireError:
    """What is said of an operation that the endpoint does not have."""
    name = target.rpartition(".")[2]
    if name in _PARTIQL:
        return WireError(
            "UnknownOperationException",
            f"{name}: PartiQL is not supported. Use GetItem, Query, PutItem and their like.",
        )
    return WireError("UnknownOperationException", "Unknown operation")


def endpoints_at(host: str) -> Answer:
    """The answer to DescribeEndpoints: the host that was asked, for a day."""
    endpoint = {"Address": host, "CachePeriodInMinutes": _ENDPOINT_MINUTES}
    return Answer(200, msgspec.json.encode({"Endpoints": [endpoint]}))


def refused(error: WireError) -> Answer:
    """The answer that says an error."""
    return Answer(error.status, msgspec.json.encode(error.body()))


def _decoded(body: bytes) -> object:
    try:
        return _decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise serialization("The request's body is no JSON") from None


_decoder: Final = msgspec.json.Decoder()
