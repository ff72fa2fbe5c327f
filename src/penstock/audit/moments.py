"""Moments as people write them: a day, or RFC 3339. Strict, and each has a length. Pure."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

_DAY: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_INSTANT: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """The unit of time that was said: a day, a second, or a part of one."""

    first_ms: int
    """Its first millisecond since 1970, UTC."""
    end_ms: int
    """The first millisecond behind it; it holds at least one."""


def span_of(text: str, *, tz: str) -> Span:
    """What `text` names: `2026-01-31`, a day in the time zone `tz`, or an instant of RFC 3339 with
    its offset, `2026-01-31T12:00:00Z`, which is that whole second, or the part of one that is said.

    Raises ValueError for anything else, with a sentence that says how to write it.
    """
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return Span(_midnight(day, tz), _midnight(day + timedelta(days=1), tz))
        found = _INSTANT.fullmatch(text)
        if found:
            return _instant(*found.groups())
    except (ValueError, OverflowError):
        pass  # the 31st of April, or the end of time
    raise ValueError(
        f"{text!r} is no moment; write a day, as 2026-01-31, or RFC 3339 with its offset, as "
        f"2026-01-31T12:00:00Z or 2026-01-31T12:00:00.250+05:30"
    )


def _midnight(day: date, tz: str) -> int:
    return _ms(datetime.combine(day, time(), ZoneInfo(tz)))


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _instant(day: str, clock: str, fraction: str | None, offset: str) -> Span:
    zone = "+00:00" if offset in "Zz" else offset
    second_ms = _ms(datetime.fromisoformat(f"{day}T{clock}{zone}"))
    digits = fraction or ""
    unit_ns = 10 ** (9 - len(digits))
    first_ns = int(digits or "0") * unit_ns
    first_ms, end_ms = first_ns // 1_000_000, -(-(first_ns + unit_ns) // 1_000_000)
    return Span(second_ms + first_ms, second_ms + end_ms)
