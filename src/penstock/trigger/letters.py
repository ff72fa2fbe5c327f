"""What is written of records that failed for good, as Lambda writes it for its destinations.

https://docs.aws.amazon.com/lambda/latest/dg/services-dynamodb-errors.html
"""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from penstock.trigger.batches import Piece
from penstock.trigger.environment import Outcome
from penstock.trigger.records import Record

Condition = Literal["RetryAttemptsExhausted", "RecordAgeExceeded"]
REPORTED: Final = "BatchItemFailures"
"""The error of an Outcome whose function returned, and reported failures."""


class RequestContext(Struct, frozen=True, rename="camel"):
    request_id: str
    function_arn: str
    condition: Condition
    approximate_invoke_count: int


class ResponseContext(Struct, frozen=True, rename="camel", omit_defaults=True):
    status_code: int
    executed_version: str
    function_error: str | None = None
    error_type: str | None = None
    """Penstock's own, as the next: only in whole letters."""
    error_message: str | None = None


class BatchInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where the records are in the stream. The end of a window has none, and lacks four members."""

    shard_id: str
    start_sequence_number: str | None = None
    end_sequence_number: str | None = None
    approximate_arrival_of_first_record: str | None = None
    approximate_arrival_of_last_record: str | None = None
    batch_size: int
    stream_arn: str


class Document(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """As Lambda documents it."""

    request_context: RequestContext
    response_context: ResponseContext | None = None
    """None if the records were never given to the function."""
    version: str
    timestamp: str
    batch_info: BatchInfo = field(name="DDBStreamBatchInfo")
    payload: str | None = None
    """The function's event in JSON; Lambda gives it to S3 alone."""


class Letter(Struct, frozen=True):
    """One document, in the forms that destinations take."""

    document: Document
    """Without payload and error."""
    event: bytes
    """What the function would be called with, in JSON."""
    outcome: Outcome
    """Of the last call, if any."""

    def metadata(self) -> bytes:
        """What Lambda sends to SQS and SNS: where the records are in the stream."""
        return msgspec.json.encode(self.document)

    def with_payload(self) -> bytes:
        """What Lambda writes to S3: the event too."""
        document = msgspec.structs.replace(self.document, payload=self.event.decode())
        return msgspec.json.encode(document)

    def whole(self) -> bytes:
        """The event, and the name and the text of the error."""
        response = self.document.response_context
        if response is not None:
            response = msgspec.structs.replace(
                response,
                error_type=self.outcome.error or None,
                error_message=self.outcome.message or None,
            )
        document = msgspec.structs.replace(
            self.document, response_context=response, payload=self.event.decode()
        )
        return msgspec.json.encode(document)


def write_letter(
    piece: Piece,
    event: bytes,
    *,
    condition: Condition,
    outcome: Outcome,
    shard: str,
    stream: str,
    arn: str,
) -> Letter:
    """The letter of records that are given up, or of the end of a window, which has none.

    `event` is what the function would be called with; `outcome` is that of the last call, if any.
    """
    now, response = datetime.now(UTC), None
    if piece.calls:
        is_error = outcome.error not in {"", REPORTED}
        response = ResponseContext(200, "$LATEST", "Unhandled" if is_error else None)
    document = Document(
        request_context=RequestContext(str(uuid.uuid4()), arn, condition, piece.calls),
        response_context=response,
        version="1.0",
        timestamp=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        batch_info=_batch_info(piece.records, shard=shard, stream=stream),
    )
    return Letter(document, event, outcome)


def _batch_info(records: Sequence[Record], *, shard: str, stream: str) -> BatchInfo:
    if not records:
        return BatchInfo(shard_id=shard, batch_size=0, stream_arn=stream)
    first, last = records[0], records[-1]
    return BatchInfo(
        shard_id=shard,
        start_sequence_number=first.number,
        end_sequence_number=last.number,
        approximate_arrival_of_first_record=_instant(first.arrived_seconds),
        approximate_arrival_of_last_record=_instant(last.arrived_seconds),
        batch_size=len(records),
        stream_arn=stream,
    )


def _instant(seconds: float) -> str:
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
