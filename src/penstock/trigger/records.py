"""A stream's records as a function gets them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

EVENT_OVERHEAD_BYTES: Final = len(b'{"Records":[]}')


class Record(Struct, frozen=True):
    """A record of a shard."""

    number: str
    """Its sequence number: decimal digits, and greater than those before it in its shard."""
    arrived_seconds: float
    """When the change was made, by the service: Unix seconds, rounded down by some services."""
    key: bytes
    """The item's key, the same for every record of one item."""
    data: bytes
    """The record in JSON, as it stands in an event."""


def read_record(told: dict[str, Any], *, stream: str) -> Record:
    """A record of GetRecords, as botocore tells it, in the form that Lambda gives it.

    https://docs.aws.amazon.com/lambda/latest/dg/with-ddb.html: with `eventSourceARN`, the members
    of `userIdentity` in lower case, times as numbers, and binary values in base64.
    """
    change = dict(told["dynamodb"])
    created = change.get("ApproximateCreationDateTime", 0)
    seconds = created.timestamp() if isinstance(created, datetime) else float(created)
    change["ApproximateCreationDateTime"] = int(seconds) if seconds == int(seconds) else seconds
    record = {**told, "dynamodb": change, "eventSourceARN": stream}
    identity = told.get("userIdentity")
    if identity is not None:
        record["userIdentity"] = {
            "principalId": identity["PrincipalId"],
            "type": identity["Type"],
        }
    return Record(
        number=change["SequenceNumber"],
        arrived_seconds=seconds,
        key=_canonical.encode(change["Keys"]),
        data=_encoder.encode(record),
    )


def event_of(records: Sequence[Record]) -> bytes:
    """The event of a batch, in JSON."""
    return b'{"Records":[' + b",".join(record.data for record in records) + b"]}"


_encoder: Final = msgspec.json.Encoder()
_canonical: Final = msgspec.json.Encoder(order="deterministic")
