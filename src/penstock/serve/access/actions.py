"""Every call of every endpoint: who may make it, how large it may be, and what is kept of it.

The endpoints read this table. A call without a line here is refused, whoever makes it. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from penstock.errors import ForbiddenError, RequestError
from penstock.subscribe.scope import Scope, Verb


class Need(StrEnum):
    """What a caller must have for a call to be answered at all. What it shows is decided by the
    scope of the caller, entry by entry."""

    NOTHING = "nothing"
    """Anybody may, also who does not say who they are."""
    KNOWN = "known"
    """Whoever is known. A caller whose grants show nothing gets an empty answer."""
    READ = "read"
    """The verb `read`, on something."""
    FOLLOW = "follow"
    """The verb `read` or `schema`, on something."""
    WHOLE = "whole"
    """All four verbs on a whole source, nothing of it hidden."""
    ADMIN = "admin"
    """The verb `admin`, without limits."""


class Kept(Struct, frozen=True, kw_only=True):
    """What a call leaves in the service."""

    names_max: int
    """Of all callers together."""
    of_one_max: int
    """Of one caller, so that none takes all places."""
    name_length_max: int
    days: float | None
    """After the last call; None: until an operator removes it."""


class Action(Struct, frozen=True, kw_only=True):
    """One call."""

    needs: Need
    bytes_max: int | None = None
    """Of one message to us. None: no message is read, or `setting` says how large one may be."""
    setting: str = ""
    """The setting that says how large a message may be."""
    kept: Kept | None = None
    """None: nothing is kept when the call or the connection ends."""

    def refuse_size(self, length: int) -> None:
        """Raises RequestError for a message that is too large, of a call that has a size here."""
        assert self.bytes_max is not None
        if length > self.bytes_max:
            raise RequestError(
                f"this request has {length:,} bytes, and may have {self.bytes_max:,}. Nothing was "
                f"changed."
            )


NAME_LENGTH_MAX: Final = 200
"""Characters of a name that a client gives itself or what it runs."""
GRPC_BYTES_MAX: Final = 4 << 20
"""Of any message over gRPC."""
_STREAM_BYTES: Final = 1 << 20
"""Of a request that lists collections or shards."""
_FLIGHT_BYTES: Final = 64 << 10
"""Of an action over Flight."""
_MESSAGES: Final = "serve.captures.message_bytes_max"
"""Of every WebSocket over HTTP, and of a query of GraphQL."""
_BODIES: Final = "serve.dynamodb.request_bytes_max"

ACTIONS: Final[Mapping[str, Action]] = {
    # gRPC
    "grpc /grpc.health.v1.Health/Check": Action(needs=Need.NOTHING, bytes_max=GRPC_BYTES_MAX),
    "grpc /grpc.health.v1.Health/List": Action(needs=Need.NOTHING, bytes_max=GRPC_BYTES_MAX),
    "grpc /grpc.health.v1.Health/Watch": Action(needs=Need.NOTHING, bytes_max=GRPC_BYTES_MAX),
    "grpc /grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Action(
        needs=Need.NOTHING, bytes_max=GRPC_BYTES_MAX
    ),
    "grpc /PullerService/Subscribe": Action(needs=Need.KNOWN, bytes_max=_STREAM_BYTES),
    "grpc /penstock.v1.PullerService/Subscribe": Action(needs=Need.KNOWN, bytes_max=_STREAM_BYTES),
    "grpc /penstock.v1.PullerService/SubscribeBatch": Action(
        needs=Need.KNOWN, bytes_max=_STREAM_BYTES
    ),
    "grpc /penstock.v1.PullerService/Snapshot": Action(needs=Need.KNOWN, bytes_max=_STREAM_BYTES),
    "grpc /penstock.v1.CaptureService/Captures": Action(
        needs=Need.FOLLOW, bytes_max=GRPC_BYTES_MAX
    ),
    "grpc /penstock.v1.CaptureService/Subscribe": Action(
        needs=Need.FOLLOW, bytes_max=GRPC_BYTES_MAX
    ),
    # Flight
    "flight access": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight bounds": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight declared": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight marker": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight plan": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight position": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight get": Action(needs=Need.READ, bytes_max=_STREAM_BYTES),
    "flight report": Action(
        needs=Need.WHOLE,
        bytes_max=4 << 10,
        kept=Kept(names_max=1000, of_one_max=100, name_length_max=NAME_LENGTH_MAX, days=30.0),
    ),
    # The book wants all of the very source that a pipeline reads, and says so in its own words.
    "flight pipeline": Action(
        needs=Need.READ,
        bytes_max=16 << 10,
        kept=Kept(names_max=1000, of_one_max=500, name_length_max=NAME_LENGTH_MAX, days=None),
    ),
    "flight pipelines": Action(needs=Need.READ, bytes_max=_FLIGHT_BYTES),
    "flight order": Action(needs=Need.ADMIN, bytes_max=_FLIGHT_BYTES),
    # HTTP
    "http health": Action(needs=Need.NOTHING),
    "http ready": Action(needs=Need.NOTHING),
    "http metrics": Action(needs=Need.ADMIN),
    "http snapshot": Action(needs=Need.READ),
    "http ticket": Action(needs=Need.KNOWN),
    "http openapi": Action(needs=Need.KNOWN),
    "http entities": Action(needs=Need.FOLLOW),
    "http changes": Action(needs=Need.FOLLOW),
    "http events": Action(needs=Need.FOLLOW),
    "websocket system captures": Action(needs=Need.FOLLOW, setting=_MESSAGES),
    "websocket captures": Action(needs=Need.FOLLOW, setting=_MESSAGES),
    "http graphql": Action(needs=Need.FOLLOW, setting=_MESSAGES),
    "websocket graphql": Action(needs=Need.FOLLOW, setting=_MESSAGES),
    "http zero": Action(needs=Need.KNOWN),
    "websocket zero": Action(needs=Need.READ, setting=_MESSAGES),
    # DynamoDB Streams of what is captured
    "dynamodb alive": Action(needs=Need.NOTHING),
    "dynamodb DynamoDBStreams_20120810.ListStreams": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDBStreams_20120810.DescribeStream": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDBStreams_20120810.GetShardIterator": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDBStreams_20120810.GetRecords": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDB_20120810.ListTables": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDB_20120810.DescribeTable": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDB_20120810.DescribeTimeToLive": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDB_20120810.DescribeContinuousBackups": Action(
        needs=Need.KNOWN, setting=_BODIES
    ),
    "dynamodb DynamoDB_20120810.DescribeEndpoints": Action(needs=Need.KNOWN, setting=_BODIES),
    "dynamodb DynamoDB_20120810.CreateTable": Action(needs=Need.KNOWN, setting=_BODIES),
}


def action(name: str) -> Action:
    """The line of a call. Raises RequestError where there is none."""
    found = ACTIONS.get(name)
    if found is None:
        raise RequestError(f"this service has no call {name!r}.")
    return found


def kept_of(name: str) -> Kept:
    """What a call leaves in the service, one that leaves something."""
    found = ACTIONS[name].kept
    assert found is not None, name
    return found


def refusal(needs: Need, scope: Scope) -> ForbiddenError | None:
    """Why a caller with `scope` may not make a call that `needs` so much; None if it may."""
    match needs:
        case Need.NOTHING | Need.KNOWN:
            return None
        case Need.READ:
            allowed, verb = scope.reads_something, str(Verb.READ)
        case Need.FOLLOW:
            allowed, verb = scope.follows_something, str(Verb.READ)
        case Need.WHOLE:
            allowed = scope.is_everything or bool(scope.whole_sources)
            verb = "read, before-images, schema and admin on a whole source"
        case Need.ADMIN:
            allowed, verb = scope.administers, str(Verb.ADMIN)
    return None if allowed else ForbiddenError(verb=verb)
