"""Whether the service keeps its promise, decided from what capture and the log say. Pure.

A source is judged by what it does, not by its events: a quiet one moves its position with every
heartbeat, so only one that stands still lags. Errors that passed are counted and never held
against it: the next change that becomes durable makes a source `ok` again (P34).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.ports import SourceState
from penstock.subscribe.current import CurrentStatus

OK: Final = "ok"
DEGRADED: Final = "degraded"
UNHEALTHY: Final = "unhealthy"
_SEVERITY: Final = (OK, DEGRADED, UNHEALTHY)


class BackendHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    """One source; the puller calls it a backend."""

    name: str
    status: str
    state: str
    """What its capture is doing, as `penstock status` says it."""
    code: str = ""
    """Of the error that led there."""
    last_event: int | None = None
    """Unix milliseconds of its newest event, by its own clock; null before the first."""
    events_total: int = 0
    errors: int = 0
    """Since capture started."""
    gaps_detected: int = 0
    lag: float | None = None
    """Seconds since its position last moved; a quiet source moves it too. Null before it did."""


class CurrentRowsHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    """The current rows beside the log; they hold up neither capture nor streams."""

    status: str
    code: str = ""
    """Of the error that keeps them from going on."""
    lag_events: int
    """Entries of the log that they do not have yet."""


class Health(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to GET /health: 200 for ok and degraded, 503 for unhealthy."""

    status: str
    version: str
    started_at: int
    """Unix milliseconds."""
    uptime: float
    """Seconds."""
    lag: float | None
    """Of the source that lags most."""
    backends: list[BackendHealth]
    consumers: int
    """Readers connected."""
    buffer_size: int
    """Bytes that the log takes up."""
    current_rows: CurrentRowsHealth | None = None
    """None where nobody keeps them."""

    @property
    def http_status(self) -> int:
        return 503 if self.status == UNHEALTHY else 200


class Facts(Struct, frozen=True, kw_only=True):
    """What health is decided from."""

    capture: Mapping[str, Any] | None
    """What the capture process says of itself (request `status`); None if it does not answer."""
    sources: Sequence[SourceState]
    """What the log says of each source."""
    consumers: int
    buffer_size: int
    head: int = 0
    """Sequence of the log's newest entry."""
    current: CurrentStatus | None = None
    """What the keeper of the current rows says of itself."""


def health(
    facts: Facts, *, version: str, started_at: int, now_ms: int, lag_seconds_max: float
) -> Health:
    """The health of the service: that of its worst part, and unhealthy without capture.

    A source that has been captured and whose position has stood still for `lag_seconds_max` is
    unhealthy, whatever it says of itself; 0 asks for no such limit.
    """
    told: list[Mapping[str, Any]] = list((facts.capture or {}).get("sources", ()))
    durable = {state.source: state for state in facts.sources}
    backends = [
        _backend(one, durable.get(str(one["source"])), now_ms, lag_seconds_max) for one in told
    ]
    rows = _current_rows(facts)
    found = [one.status for one in backends] + ([] if rows is None else [rows.status])
    worst = max(found, key=_SEVERITY.index, default=OK)
    if facts.capture is None:
        worst = UNHEALTHY
    elif facts.capture.get("ageRetentionPaused"):
        worst = max(worst, DEGRADED, key=_SEVERITY.index)
    return Health(
        status=worst,
        version=version,
        started_at=started_at,
        uptime=max(0, now_ms - started_at) / 1000,
        lag=max((one.lag for one in backends if one.lag is not None), default=None),
        backends=backends,
        consumers=facts.consumers,
        buffer_size=facts.buffer_size,
        current_rows=rows,
    )


def _current_rows(facts: Facts) -> CurrentRowsHealth | None:
    """Degraded at worst: who asks for rows meanwhile is answered with the error."""
    current = facts.current
    if current is None:
        return None
    return CurrentRowsHealth(
        status=DEGRADED if current.code else OK,
        code=current.code,
        lag_events=max(0, facts.head - current.sequence),
    )


def _backend(
    told: Mapping[str, Any], durable: SourceState | None, now_ms: int, lag_seconds_max: float
) -> BackendHealth:
    lag = None if durable is None else max(0, now_ms - durable.moved_at) / 1000
    status = str(told["health"])
    # One that has said all that it has to say, or was paused, stands still on purpose.
    rests = told["state"] in {"finished", "paused"}
    if not rests and lag is not None and 0 < lag_seconds_max < lag:
        status = UNHEALTHY
    return BackendHealth(
        name=str(told["source"]),
        status=status,
        state=str(told["state"]),
        code=str(told["code"]),
        last_event=(durable.last_timestamp or None) if durable is not None else None,
        events_total=durable.events if durable is not None else 0,
        errors=int(told.get("errors", 0)),
        gaps_detected=int(told.get("gapsDetected", 0)),
        lag=lag,
    )
