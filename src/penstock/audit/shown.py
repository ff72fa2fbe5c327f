"""Records as people read them. Pure.

What comes from a record may steer a terminal or turn a line around; whatever is shown goes through
`harmless`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from bson import json_util
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId

from penstock.audit.records import INDIA
from penstock.harmless import harmless

NULL: Final = "∅"
ERASED: Final = "(erased)"
MASKED: Final = "(changed, masked)"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def zone_name(tz: str) -> str:
    """What heads a column of local times."""
    return "IST" if tz == INDIA else tz


def milliseconds(ts: Any) -> int:
    """A time of a record as milliseconds since 1970."""
    if isinstance(ts, DatetimeMS):
        return int(ts)
    moment: datetime = ts if ts.tzinfo else ts.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def utc(ts: Any) -> str:
    """A time in RFC 3339, with milliseconds; beyond the year 9999, as a number of those."""
    ms = milliseconds(ts)
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")[:-6] + "Z"
    except OverflowError:
        return str(ms)


def local(ts: Any, tz: str, *, unit: str = "seconds") -> str:
    """A time as clocks in `tz` show it; empty beyond the year 9999."""
    return local_iso(ts, tz, unit=unit)[:-6].replace("T", " ")


def local_iso(ts: Any, tz: str, *, unit: str = "milliseconds") -> str:
    """A time in RFC 3339, with the offset of `tz`; empty beyond the year 9999."""
    try:
        there = (_EPOCH + timedelta(milliseconds=milliseconds(ts))).astimezone(ZoneInfo(tz))
    except OverflowError:
        return ""
    # Before there were time zones, offsets had seconds.
    return there.isoformat(timespec=unit)[
        : len("2026-01-31T12:00:00") + 6 + 4 * (unit != "seconds")
    ]


def plain_text(value: Any) -> str | None:
    """A lone value as text, exactly; None for what must be said as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(float(value)) if isinstance(value, float) else str(int(value))
    if isinstance(value, Decimal128 | ObjectId):
        return str(value)
    if isinstance(value, datetime | DatetimeMS):
        return utc(value)
    return None


def json_text(value: Any, *, canonical: bool = False) -> str:
    """Any value as Extended JSON, on one line."""
    options = json_util.CANONICAL_JSON_OPTIONS if canonical else json_util.RELAXED_JSON_OPTIONS
    return json_util.dumps(value, json_options=options, ensure_ascii=False, separators=(",", ":"))


def binary(value: Any) -> bytes | None:
    """The bytes that a value is; None for another value."""
    if isinstance(value, bytes) and (not isinstance(value, Binary) or value.subtype == 0):
        return bytes(value)
    return None


def value_text(value: Any) -> str:
    """A value for people: text in quotes, NULL as ∅, bytes as 0x and hex."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return json_text(harmless(value)) if harmless(value) != value else json_text(value)
    data = binary(value)
    if data is not None:
        return f"0x{data.hex()}"
    text = plain_text(value)
    return harmless(json_text(value)) if text is None else text


def key_text(record: Mapping[str, Any]) -> str:
    """The key of a record's row."""
    if "erased" in record:
        return ERASED
    return harmless(str(record["meta"].get("pk_text") or ""))


def changes_text(record: Mapping[str, Any]) -> str:
    """What a record says: `col:"a"→"b"`, one after the other.

    A side that is not there, as before an insert, is empty; NULL is ∅.
    """
    if "erased" in record:
        return ERASED
    if "spilled" in record:
        return f"({record['spilled']['bytes'] / (1 << 20):.1f} MiB of values)"
    if "said" in record:
        return harmless(said_text(record["said"]))
    changes: Mapping[str, Mapping[str, Any]] = record.get("chg") or {}
    return " | ".join(
        [
            *(
                f"{harmless(name)}:{_side(change, 'f')}→{_side(change, 't')}"
                for name, change in changes.items()
            ),
            *(f"{harmless(name)}:{MASKED}" for name in record.get("masked") or ()),
        ]
    )


def _side(change: Mapping[str, Any], side: str) -> str:
    if side == "t" and "size" in change:
        return f"(cut to {change['size']})"
    return value_text(change[side]) if side in change else ""


def said_text(said: Mapping[str, Any]) -> str:
    """What the source said of a schema change or of a gap."""
    statement = said.get("statement")
    if isinstance(statement, str):
        return statement
    return json_text(said)


def source_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a record comes from; of what was done to the trail itself there may be nothing."""
    return record.get("src") or {}


def gtid_text(record: Mapping[str, Any]) -> str:
    return harmless(str(source_of(record).get("gtid") or ""))


def place_text(record: Mapping[str, Any]) -> str:
    """Where in which binlog, as FILE:POS; empty for other sources."""
    binlog = source_of(record).get("binlog")
    return harmless(f"{binlog['file']}:{binlog['pos']}") if binlog else ""
