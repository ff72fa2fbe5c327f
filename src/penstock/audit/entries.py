"""Entries of the log, made ready to be written. Pure but for the salts."""

import hashlib
import time
from typing import Any, Final

import bson
from bson.errors import InvalidDocument, InvalidStringData

from penstock.audit.chain import leaf_of, new_salt
from penstock.audit.packing import Entry
from penstock.audit.records import Record, Row, id_of, parts_of, record_of
from penstock.errors import AuditError

_U64: Final = (1 << 64) - 1
SPILLED_FIELDS: Final = ("chg", "paths", "said")


def entry_of(row: Row, *, tz: str, bytes_max: int, id_key: bytes = b"") -> Entry:
    """The entry of a row (records.COLUMNS); a record over `bytes_max` has its values spilled.
    `id_key` is the trail's."""
    lone = row["commit"] is None  # a gap that the reader of the log made of what was trimmed
    if lone:  # of no table, and dated by when it was found
        found = {"ordinal": 0, "database": "", "collection": "", "timestamp": _now_ms()}
        row = {**row, **found}
    record = record_of(row, tz=tz, id_key=id_key)
    check = (row["check"] or 0) & _U64
    place: dict[str, Any] = {
        "sequence": row["sequence"],
        "check": check,
        "commit": -row["sequence"] if lone else row["commit"],
        "commit_rows": 1 if lone else row["commit_rows"],
        "commit_digest": check if lone else (row["commit_digest"] or 0) & _U64,
        "id": id_of(row["event_id"], id_key),
        "timestamp": row["timestamp"] or 0,
        "kind": row["kind"],
    }
    if record is None:
        return Entry(**place, record=None)
    return Entry(**place, **made_ready(record, bytes_max=bytes_max))


def said_range(entry: Entry) -> tuple[int, int]:
    """The range (after, until] that an entry stands for which is trimmed."""
    assert entry.record is not None
    said: Record = bson.decode(entry.record)["said"]  # pyright: ignore[reportUnknownMemberType]
    return int(said["from"]), int(said["to"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def made_ready(record: Record, *, bytes_max: int) -> dict[str, Any]:
    """What an Entry has of its record: its BSON, a salt, the leaf, and what is spilled."""
    try:
        data, spilled = bson.encode(record), None
    except (InvalidDocument, InvalidStringData) as error:
        raise AuditError(
            f"record {record['_id']} of {record['meta']['db']}.{record['meta']['tbl']} has a name "
            f"that MongoDB cannot keep, as one with a zero byte is ({type(error).__name__}). "
            f"Nothing of its batch was written. Leave the table out of the pipeline's collections."
        ) from None
    if len(data) > bytes_max:
        record, spilled = _spill(record)
        data = bson.encode(record)
    salt = new_salt()
    return {
        "record": data,
        "salt": salt,
        "leaf": leaf_of(parts_of(record), salt),
        "spilled": spilled,
    }


def _spill(record: Record) -> tuple[Record, bytes]:
    values: Record = {name: record[name] for name in SPILLED_FIELDS if name in record}
    data = bson.encode(values)
    said = {"bytes": len(data), "sha256": hashlib.sha256(data).digest()}
    left = {name: value for name, value in record.items() if name not in SPILLED_FIELDS}
    return {**left, "spilled": said}, data
