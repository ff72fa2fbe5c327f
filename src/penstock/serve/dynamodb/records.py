"""A stream's records as the protocol writes them."""

from typing import Any, Final

import xxhash

from penstock.serve.dynamodb.names import check_of
from penstock.serve.dynamodb.numbers import number_of
from penstock.store import EventType, StreamRecord
from penstock.store.attributevalue import encode_attributes

_EVENTS: Final = {
    EventType.INSERT: "INSERT",
    EventType.MODIFY: "MODIFY",
    EventType.REMOVE: "REMOVE",
}


def write_record(record: StreamRecord, *, life: str, region: str) -> dict[str, Any]:
    """A record of GetRecords, which `life` wrote.

    The time is cut to whole seconds, as the protocol documents it. The event's id is the same
    however often the record is read, and no other record's.
    """
    change: dict[str, Any] = {
        "ApproximateCreationDateTime": record.timestamp // 1000,
        "Keys": encode_attributes(record.keys),
        "SequenceNumber": number_of(record.sequence_number, check_of(life)),
        "SizeBytes": record.size_bytes,
        "StreamViewType": record.view.value,
    }
    if record.new_image is not None:
        change["NewImage"] = encode_attributes(record.new_image)
    if record.old_image is not None:
        change["OldImage"] = encode_attributes(record.old_image)
    told: dict[str, Any] = {
        "eventID": xxhash.xxh3_128_hexdigest(record.position.encode()),
        "eventName": _EVENTS[record.event_type],
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": region,
        "dynamodb": change,
    }
    if record.user_identity is not None:
        identity = record.user_identity
        told["userIdentity"] = {"Type": identity["type"], "PrincipalId": identity["principal_id"]}
    return told
