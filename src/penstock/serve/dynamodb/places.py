"""What every endpoint says alike: of places in shards, of keys, and of what none of them has."""

from collections.abc import Sequence
from typing import Any, Final

from penstock.serve.dynamodb.errors import validation

NO_BACKUPS: Final = {
    "ContinuousBackupsDescription": {
        "ContinuousBackupsStatus": "DISABLED",
        "PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "DISABLED"},
    }
}


def refuse_place(kind: str, request: dict[str, Any]) -> None:
    """Refuse a place that is not said, or said twice."""
    numbered = kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}
    if numbered and "SequenceNumber" not in request:
        raise validation(f"SequenceNumber is required for ShardIteratorType {kind}")
    if not numbered and "SequenceNumber" in request:
        raise validation(f"SequenceNumber must not be specified for ShardIteratorType {kind}")
    if (kind == "AT_TIMESTAMP") != ("Timestamp" in request):
        verb = "is required" if kind == "AT_TIMESTAMP" else "must not be specified"
        raise validation(f"Timestamp {verb} for ShardIteratorType {kind}")


def first_second(seconds: float) -> int:
    """The first whole second, as records tell them, at `seconds` or later. None is before 1970."""
    return -int(-max(seconds, 0) // 1)


def key_schema_of(names: Sequence[str]) -> list[dict[str, str]]:
    """The KeySchema of a table or a stream: the first attribute is hashed, the next one sorts."""
    return [
        {"AttributeName": name, "KeyType": "RANGE" if place else "HASH"}
        for place, name in enumerate(names)
    ]
